/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/data/entry.h"
#include "base/data/json.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/attempt/collect.h"
#include "core/config/words.h"
#include "core/record/observed.h"
#include "core/target/fetch_sink.h"
#include "core/target/target_work.h"

enum {
	JOB_MAX = 8 << 20,
	STATE_MAX = 64 << 10,
	LOCK_WAIT_MS = 200, /* others only check for a moment */
	POLL_MS = 5,
	HOST_SIZE = 256,
};

/*
 * Files
 */

static int attempt_read_json(
	const char *dir, const char *name, size_t max, struct json **ret, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, name);
	AUTO_BUF struct buf text = {0};
	int r = fs_read(path, max, &text, NULL, err);

	return r < 0 ? r : json_parse(text.data, text.len, max, path, ret, err);
}

static int write_json(const char *dir, const char *name, const struct json *json, size_t max,
	enum fs_sync sync, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, name);
	AUTO_BUF struct buf text = buf_with(max);
	int r;

	json_print(json, &text);
	buf_addc(&text, '\n');
	r = buf_check(&text, path, err);
	return r < 0 ? r : fs_replace(path, text.data, text.len, 0600, sync, err);
}

static bool attempt_has_file(const char *dir, const char *name)
{
	AUTO_FREE char *path = fs_join(dir, name);

	return access(path, F_OK) == 0;
}

static void set_path(struct json *json, const char *key, const char *path)
{
	if (path)
		json_set_bytes(json, key, path, strlen(path));
}

/*
 * The job
 */

int attempt_job_write(const char *dir, const struct attempt_job *job, struct err *err)
{
	AUTO_JSON struct json *json = json_object();

	json_set_str(json, "schema", "dlrun/job/v1");
	json_set_str(json, "run", job->run_id);
	json_set_int(json, "attempt", job->attempt);
	spec_add_members(&job->spec, json);
	words_set(json, "defaults", &job->defaults);
	set_path(json, "layout", job->layout);
	json_set_str(json, "image", job->image);
	set_path(json, "spares", job->spares);
	set_path(json, "outputs_dir", job->outputs);
	set_path(json, "setups", job->setups);
	set_path(json, "slots", job->slots);
	json_set_int(json, "tree_bytes", (int64_t)job->tree_bytes);
	json_set_bool(json, "cgroup", job->cgroup);
	return write_json(dir, ATTEMPT_JOB, json, JOB_MAX, FS_SYNC_NONE, err);
}

static int64_t not_negative(const struct json *json, const char *key)
{
	int64_t value = json_get_int(json, key, 0);

	return value < 0 ? 0 : value;
}

/* A job without resources is from a version that wrote its limits instead: a supervisor that takes
 * it over keeps them. */
static void read_limits(const struct json *json, struct resources *ret)
{
	if (json_get(json, "resources"))
		return;
	ret->memory_bytes = (uint64_t)not_negative(json, "limit_memory_bytes");
	ret->cpus_milli = not_negative(json, "limit_cpus_milli");
}

static int job_from_json(const struct json *json, struct attempt_job *job, struct err *err)
{
	int r = spec_from_members(json, &job->spec, err);

	if (r == 0)
		r = words_get(json, "defaults", &job->defaults, err);
	if (r < 0)
		return r;
	read_limits(json, &job->spec.resources);
	job->run_id = mem_strdup(json_get_str(json, "run"));
	job->attempt = (int)json_get_int(json, "attempt", 1);
	job->layout = words_get_one(json, "layout");
	job->image = mem_strdup(json_get_str(json, "image"));
	job->spares = words_get_one(json, "spares");
	job->outputs = words_get_one(json, "outputs_dir");
	job->setups = words_get_one(json, "setups");
	job->slots = words_get_one(json, "slots");
	job->tree_bytes = (uint64_t)not_negative(json, "tree_bytes");
	job->cgroup = json_get_bool(json, "cgroup", true);
	return job->run_id ? 0 : err_set(err, E_DATA, "a job needs a run");
}

int attempt_job_read(const char *dir, struct attempt_job *ret, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	AUTO(attempt_job_done) struct attempt_job job = {0};

	int r = attempt_read_json(dir, ATTEMPT_JOB, JOB_MAX, &json, err);
	if (r == 0)
		r = job_from_json(json, &job, err);
	if (r < 0)
		return r;
	*ret = job;
	job = (struct attempt_job){0};
	return 0;
}

void attempt_job_done(struct attempt_job *job)
{
	if (!job)
		return;
	free(job->run_id);
	spec_done(&job->spec);
	strv_done(&job->defaults);
	free(job->layout);
	free(job->image);
	free(job->spares);
	free(job->outputs);
	free(job->setups);
	free(job->slots);
	*job = (struct attempt_job){0};
}

/*
 * The state
 */

bool attempt_process_alive(const struct attempt_process *process)
{
	return process->pid > 0 && os_process_alive(process->pid, process->start);
}

bool attempt_program_alive(const struct attempt_state *state)
{
	if (attempt_process_alive(&state->program))
		return true;
	for (int i = 0; i < state->n_ranks; i++)
		if (state->ranks[i].state == RUN_RUNNING &&
			attempt_process_alive(&state->ranks[i].program))
			return true;
	return false;
}

void attempt_state_init(struct attempt_state *state)
{
	*state = (struct attempt_state){.state = RUN_STARTING};
	state->supervisor.pid = getpid();
	state->supervisor.start = os_process_start(getpid());
	if (!os_boot_id(state->boot_id))
		state->boot_id[0] = '\0';
	if (!os_machine_id(state->machine_id))
		state->machine_id[0] = '\0';
}

static void set_process(struct json *json, const char *key, const struct attempt_process *process)
{
	struct json *object = json_sub(json, key);

	json_set_int(object, "pid", process->pid);
	json_set_int(object, "start", (int64_t)process->start);
}

static void get_process(const struct json *json, const char *key, struct attempt_process *ret)
{
	const struct json *object = json_get(json, key);

	ret->pid = (pid_t)json_get_int(object, "pid", 0);
	ret->start = (uint64_t)json_get_int(object, "start", 0);
}

static void attempt_get_text(const struct json *json, const char *key, char *out, size_t size)
{
	const char *text = json_get_str(json, key);

	snprintf(out, size, "%s", text ? text : "");
}

static void set_ranks(struct json *json, const struct attempt_state *state)
{
	struct json *list = state->n_ranks ? json_array() : NULL;

	for (int i = 0; i < state->n_ranks; i++) {
		const struct attempt_rank *rank = &state->ranks[i];
		struct json *item = json_object();

		set_process(item, "program", &rank->program);
		json_set_str(item, "state", run_state_name(rank->state));
		if (run_state_is_final(rank->state))
			json_set(item, "exit", run_exit_to_json(&rank->exit));
		json_add(list, item);
	}
	if (list)
		json_set(json, "ranks", list);
}

static void get_ranks(const struct json *json, struct attempt_state *ret)
{
	const struct json *list = json_get(json, "ranks");

	for (const struct json *item = list ? json_first(list) : NULL;
		item && ret->n_ranks < ATTEMPT_RANKS_MAX; item = json_next(item)) {
		struct attempt_rank *rank = &ret->ranks[ret->n_ranks++];

		get_process(item, "program", &rank->program);
		rank->state = run_state_find(json_get_str(item, "state"));
		if (run_state_is_final(rank->state))
			run_exit_from_json(json_get(item, "exit"), &rank->exit);
		else
			rank->state = RUN_RUNNING;
	}
}

struct json *attempt_ranks_json(const struct attempt_state *state, int number)
{
	struct json *list = state->n_ranks ? json_array() : NULL;
	char host[HOST_SIZE] = "";

	gethostname(host, sizeof(host) - 1);
	for (int i = 0; i < state->n_ranks; i++) {
		const struct attempt_rank *rank = &state->ranks[i];
		bool has_ended = run_state_is_final(rank->state);
		struct json *item = json_object();

		json_set_int(item, "rank", i);
		json_set_str(item, "state", run_state_name(rank->state));
		json_set_bytes(item, "host", host, strlen(host));
		json_set_int(item, "attempt", number);
		json_set(item, "exit", has_ended ? run_exit_to_json(&rank->exit) : json_null());
		json_add(list, item);
	}
	return list;
}

/* Only what dlrun has made: it is removed when all is over. */
static void get_family(const struct json *json, const char *key, char out[static 256])
{
	attempt_get_text(json, key, out, 256);
	if (!strstr(out, "/dlrun-"))
		out[0] = '\0';
}

int attempt_state_write(const char *dir, const struct attempt_state *state, struct err *err)
{
	AUTO_JSON struct json *json = json_object();

	json_set_str(json, "schema", "dlrun/state/v1");
	json_set_str(json, "state", run_state_name(state->state));
	set_process(json, "supervisor", &state->supervisor);
	set_process(json, "program", &state->program);
	if (state->setup.pid)
		set_process(json, "setup", &state->setup);
	json_set_bytes(json, "text", state->text, strlen(state->text));
	json_set_str(json, "boot_id", state->boot_id);
	json_set_str(json, "machine_id", state->machine_id);
	json_set_str(json, "family", state->family.path);
	json_set_str(json, "family_memory", state->family.memory);
	json_set_str(json, "family_cpu", state->family.cpu);
	json_set_int(json, "family_enforced", state->family.enforced);
	json_set_str(json, "warning", state->warning);
	json_set_int(json, "started_ms", state->started_ms);
	set_ranks(json, state);
	return write_json(dir, ATTEMPT_STATE, json, STATE_MAX, FS_SYNC_NONE, err);
}

bool attempt_state_read(const char *dir, struct attempt_state *ret)
{
	AUTO_JSON struct json *json = NULL;

	if (attempt_read_json(dir, ATTEMPT_STATE, STATE_MAX, &json, NULL) < 0)
		return false;
	*ret = (struct attempt_state){0};
	ret->state = run_state_find(json_get_str(json, "state"));
	if (ret->state != RUN_RUNNING && ret->state != RUN_QUEUED)
		ret->state = RUN_STARTING;
	get_process(json, "supervisor", &ret->supervisor);
	get_process(json, "program", &ret->program);
	get_process(json, "setup", &ret->setup);
	attempt_get_text(json, "text", ret->text, sizeof(ret->text));
	attempt_get_text(json, "boot_id", ret->boot_id, sizeof(ret->boot_id));
	attempt_get_text(json, "machine_id", ret->machine_id, sizeof(ret->machine_id));
	get_family(json, "family", ret->family.path);
	get_family(json, "family_memory", ret->family.memory);
	get_family(json, "family_cpu", ret->family.cpu);
	ret->family.enforced = (unsigned)not_negative(json, "family_enforced");
	attempt_get_text(json, "warning", ret->warning, sizeof(ret->warning));
	ret->started_ms = json_get_int(json, "started_ms", 0);
	get_ranks(json, ret);
	return true;
}

/*
 * The end
 */

void attempt_set_end(struct target_status *status, enum run_state state, int code, int sig,
	const char *origin, const char *reason, const char *text)
{
	status->state = state;
	status->exit = (struct run_exit){
		.known = true, .code = code, .signal = sig, .origin = origin, .reason = reason};
	REPLACE(status->text, mem_strdup(text));
}

int attempt_end_write(
	const char *dir, const struct target_status *status, int next, struct err *err)
{
	AUTO_JSON struct json *json = json_object();
	const struct json *usage = json_get(status->observed, "usage");

	json_set_str(json, "schema", "dlrun/exit/v1");
	json_set_str(json, "state", run_state_name(status->state));
	json_set(json, "exit", run_exit_to_json(&status->exit));
	json_set_str(json, "text", status->text);
	json_set_int(json, "started_ms", status->started_ms);
	json_set_int(json, "ended_ms", status->ended_ms);
	json_set(json, "usage", usage ? json_clone(usage) : json_null());
	if (status->ranks)
		json_set(json, "ranks", json_clone(status->ranks));
	if (next)
		json_set_int(json, "next", next);
	return write_json(dir, ATTEMPT_EXIT, json, STATE_MAX, FS_SYNC_FILE, err);
}

bool attempt_end_read(const char *dir, struct target_status *ret)
{
	AUTO_JSON struct json *json = NULL;
	enum run_state state;

	if (attempt_read_json(dir, ATTEMPT_EXIT, STATE_MAX, &json, NULL) < 0)
		return false;
	state = run_state_find(json_get_str(json, "state"));
	if (!run_state_is_final(state))
		return false;
	*ret = (struct target_status){.state = state};
	run_exit_from_json(json_get(json, "exit"), &ret->exit);
	ret->text = mem_strdup(json_get_str(json, "text"));
	ret->started_ms = json_get_int(json, "started_ms", 0);
	ret->ended_ms = json_get_int(json, "ended_ms", 0);
	/* The last sample may be missing, or older than the kernel's accounting at the end. */
	const struct json *usage = json_get(json, "usage");
	ret->observed = attempt_observed(dir);
	const struct json *item =
		usage && json_kind(usage) == JSON_OBJECT ? json_first(usage) : NULL;

	if (item && !ret->observed)
		ret->observed = json_object();
	for (; item; item = json_next(item))
		if (json_kind(item) != JSON_NULL)
			json_set(
				json_sub(ret->observed, "usage"), json_key(item), json_clone(item));
	const struct json *ranks = json_get(json, "ranks");
	ret->ranks = ranks ? json_clone(ranks) : NULL;
	return true;
}

int attempt_next(const char *dir)
{
	AUTO_JSON struct json *json = NULL;

	if (attempt_read_json(dir, ATTEMPT_EXIT, STATE_MAX, &json, NULL) < 0)
		return 0;
	return (int)not_negative(json, "next");
}

void attempt_gpus(const char *dir, struct gpu_list *ret)
{
	AUTO_JSON struct json *json = NULL;

	*ret = (struct gpu_list){0};
	if (attempt_read_json(dir, ATTEMPT_GPUS, STATE_MAX, &json, NULL) == 0)
		gpu_list_from_json(json_get(json, "list"), ret, NULL);
}

static void add_state_warning(const char *dir, struct json **observed)
{
	struct attempt_state state;

	if (!attempt_state_read(dir, &state) || !state.warning[0])
		return;
	if (!*observed)
		*observed = json_object();
	const struct json *before = json_get(*observed, "warnings");
	struct json *warnings = before ? json_clone(before) : json_array();
	json_add_str(warnings, state.warning);
	json_set(*observed, "warnings", warnings);
}

struct json *attempt_observed(const char *dir)
{
	AUTO_JSON struct json *observed = observed_read(dir), *gpus = NULL;
	AUTO_JSON struct json *collected = collect_read_report(dir);
	const struct json *resources, *warning, *warnings = json_get(collected, "warnings");

	if (warnings && !observed)
		observed = json_object();
	if (warnings)
		json_set(observed, "warnings", json_clone(warnings));
	add_state_warning(dir, &observed);
	if (attempt_read_json(dir, ATTEMPT_GPUS, STATE_MAX, &gpus, NULL) < 0)
		return TAKE(observed);
	if (!observed)
		observed = json_object();
	resources = json_get(gpus, "resources");
	json_set(observed, "resources", resources ? json_clone(resources) : json_null());
	warning = json_get(gpus, "warning");
	if (warning)
		json_set(observed, "warning", json_clone(warning));
	return TAKE(observed);
}

/*
 * The status
 */

static bool is_other(const char *ours, const char *theirs)
{
	return *ours && *theirs && !str_eq(ours, theirs);
}

/* Ranks that have not ended are running, or ended as left. */
static void attempt_set_ranks(const char *dir, const struct attempt_state *state,
	enum run_state left, struct target_status *ret)
{
	const char *slash = strrchr(dir, '/');
	struct attempt_state now = *state;

	for (int i = 0; i < now.n_ranks; i++)
		if (now.ranks[i].state == RUN_RUNNING) {
			now.ranks[i].state = left;
			now.ranks[i].exit = ret->exit;
		}
	ret->ranks = attempt_ranks_json(&now, slash ? (int)strtol(slash + 1, NULL, 10) : 0);
}

static void attempt_set_lost(const char *dir, const struct attempt_state *state, const char *text,
	struct target_status *ret)
{
	struct os_family family = state->family;
	AUTO_FREE char *log = fs_join(dir, ATTEMPT_LOG);
	struct stat st;

	attempt_set_end(ret, RUN_LOST, 125, 0, "dlrun", "Lost", text);
	attempt_set_ranks(dir, state, RUN_LOST, ret);
	/* Do this in place of the supervisor. */
	os_family_remove(&family);
	ret->started_ms = state->started_ms;
	/* The last sign of life of a program whose end was not observed. */
	ret->ended_ms = stat(log, &st) == 0 ? (int64_t)st.st_mtime * 1000 : 0;
	/* Collect the results likewise; errors go to their report. */
	collect_finish(dir, NULL);
}

/* Set the status of an attempt that has no supervisor. */
static void attempt_evaluate(
	const char *dir, const struct attempt_state *state, struct target_status *ret)
{
	struct attempt_state here;

	attempt_state_init(&here);
	if (is_other(here.machine_id, state->machine_id)) {
		ret->state = RUN_UNKNOWN;
		ret->text = mem_strdup("it belongs to another machine");
	} else if (is_other(here.boot_id, state->boot_id)) {
		attempt_set_lost(dir, state, "the machine restarted", ret);
	} else if (attempt_program_alive(state)) {
		ret->state = RUN_RUNNING;
		ret->started_ms = state->started_ms;
		attempt_set_ranks(dir, state, RUN_RUNNING, ret);
		ret->cancelling = attempt_has_file(dir, ATTEMPT_CANCEL);
		ret->text = mem_strdup("its supervisor was killed: how it ends will not be known");
	} else {
		/* End the setup in place of the supervisor. */
		if (attempt_process_alive(&state->setup))
			kill(-state->setup.pid, SIGKILL);
		attempt_set_lost(dir, state, "its supervisor was killed", ret);
	}
}

static void set_never_began(const char *dir, struct target_status *ret)
{
	const char *name = strrchr(dir, '/');
	bool first = !name || str_eq(name, "/1");
	AUTO_FREE char *text = mem_printf("dlrun was stopped before %s%s had begun",
		first ? "the run" : "attempt ", first ? "" : name + 1);

	if (attempt_has_file(dir, ATTEMPT_CANCEL))
		attempt_set_end(ret, RUN_CANCELLED, 143, 0, "dlrun", "Cancelled",
			"it was cancelled before it had begun");
	else
		attempt_set_end(ret, RUN_FAILED, 125, 0, "dlrun", "Interrupted", text);
	ret->ended_ms = clock_wall_ms();
}

/* End an attempt whose submitting process died before a supervisor had it. A supervisor may still
 * be about to check: under its lock it finds the end that is written here, or it was faster. */
static int attempt_give_up(const char *dir, struct target_status *ret, struct err *err)
{
	AUTO_FREE char *lock = fs_join(dir, ATTEMPT_LOCK);
	AUTO_ERR struct err held = {0};
	AUTO_FD int fd = -1;
	struct attempt_state state;

	if (access(dir, F_OK) < 0) {
		set_never_began(dir, ret);
		return 0;
	}
	int r = fs_lock(lock, true, LOCK_WAIT_MS, &fd, &held);
	if (r < 0 && held.id == E_IO_LOCK) {
		ret->state = RUN_STARTING;
		return 0;
	}
	if (r < 0)
		return err_move(err, &held);
	if (attempt_end_read(dir, ret))
		return 0;
	if (attempt_state_read(dir, &state)) {
		attempt_evaluate(dir, &state, ret);
		return 0;
	}
	set_never_began(dir, ret);
	return attempt_end_write(dir, ret, 0, err);
}

int attempt_poll(
	const char *dir, const char *submit_lock, struct target_status *ret, struct err *err)
{
	AUTO_FREE char *lock = fs_join(dir, ATTEMPT_LOCK);
	/* Asked first: it is released only when the supervisor has the attempt. */
	bool submitting = fs_is_locked(submit_lock);
	struct attempt_state state;

	*ret = (struct target_status){0};
	if (attempt_end_read(dir, ret))
		return 0;
	if (fs_is_locked(lock)) {
		ret->state = RUN_STARTING;
		if (attempt_state_read(dir, &state)) {
			ret->state = state.state;
			ret->started_ms = state.started_ms;
			ret->text = *state.text ? mem_strdup(state.text) : NULL;
			attempt_set_ranks(dir, &state, RUN_RUNNING, ret);
		}
		ret->cancelling = attempt_has_file(dir, ATTEMPT_CANCEL);
		return 0;
	}
	/* The attempt may have ended between the two checks. */
	if (attempt_end_read(dir, ret))
		return 0;
	if (attempt_state_read(dir, &state)) {
		attempt_evaluate(dir, &state, ret);
		return 0;
	}
	if (!submitting)
		return attempt_give_up(dir, ret, err);
	ret->state = RUN_PREPARING;
	ret->cancelling = attempt_has_file(dir, ATTEMPT_CANCEL);
	return 0;
}

/*
 * Requesting the end
 */

/* A child that the supervisor was forking when it died holds its lock for a moment longer. */
static bool has_supervisor(const char *dir, const struct attempt_state *state)
{
	AUTO_FREE char *lock = fs_join(dir, ATTEMPT_LOCK);

	for (int ms = 0; fs_is_locked(lock); ms += POLL_MS) {
		if (attempt_process_alive(&state->supervisor) || ms > LOCK_WAIT_MS)
			return true;
		poll(NULL, 0, POLL_MS);
	}
	return false;
}

/* Request the end, even on a full disk. */
static int make_cancel(const char *dir, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, ATTEMPT_CANCEL);
	AUTO_FREE char *reserve = fs_join(dir, ATTEMPT_CANCEL_RESERVE);
	AUTO_ERR struct err error = {0};

	if (access(path, F_OK) == 0 || fs_replace(path, "", 0, 0600, FS_SYNC_FULL, &error) == 0)
		return 0;
	if (error.id == E_IO_FULL && rename(reserve, path) == 0)
		return 0;
	return err_move(err, &error);
}

int attempt_cancel(const char *dir, struct err *err)
{
	struct attempt_state state = {0};

	if (access(dir, F_OK) < 0 || attempt_has_file(dir, ATTEMPT_EXIT))
		return 0;
	int r = make_cancel(dir, err);
	/* The supervisor watches the directory anyway; a signal is faster. */
	if (r == 0 && attempt_state_read(dir, &state) && has_supervisor(dir, &state) &&
		attempt_process_alive(&state.supervisor))
		kill(state.supervisor.pid, SIGTERM);
	return r;
}

bool attempt_is_orphan(const char *dir)
{
	struct attempt_state state = {0};

	return attempt_has_file(dir, ATTEMPT_CANCEL) && attempt_state_read(dir, &state) &&
	       !has_supervisor(dir, &state) && !attempt_has_file(dir, ATTEMPT_EXIT) &&
	       attempt_program_alive(&state);
}

/*
 * Taking back
 */

bool attempt_never_began(const struct target_status *status)
{
	return status->state == RUN_FAILED && str_eq(status->exit.reason, "Interrupted");
}

/* The supervisor decides, which knows whether it has begun the program. */
static int attempt_ask_back(const char *dir, bool *ret_taken, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, ATTEMPT_WITHDRAW);
	struct attempt_state state = {0};

	*ret_taken = false;
	if (attempt_state_read(dir, &state) && state.program.pid)
		return 1;
	if (access(path, F_OK) < 0) {
		int r = fs_replace(path, "", 0, 0600, FS_SYNC_NONE, err);
		if (r < 0)
			return r;
	}
	if (attempt_process_alive(&state.supervisor))
		kill(state.supervisor.pid, SIGTERM);
	return 0;
}

/* Under the lock. A state that a dead supervisor has left may be older than its program. */
static int attempt_end_unbegun(const char *dir, struct target_status *ret, struct err *err)
{
	struct attempt_state state;

	if (attempt_end_read(dir, ret))
		return 0;
	if (attempt_state_read(dir, &state)) {
		ret->state = RUN_UNKNOWN;
		return 0;
	}
	set_never_began(dir, ret);
	if (attempt_never_began(ret))
		attempt_set_end(ret, RUN_FAILED, 125, 0, "dlrun", "Interrupted", ATTEMPT_WITHDRAWN);
	return attempt_end_write(dir, ret, 0, err);
}

int attempt_withdraw(const char *dir, bool *ret_taken, struct err *err)
{
	AUTO(target_status_done) struct target_status end = {0};
	AUTO_FREE char *lock = fs_join(dir, ATTEMPT_LOCK);
	AUTO_ERR struct err held = {0};
	AUTO_FD int fd = -1;

	if (!attempt_end_read(dir, &end)) {
		/* A supervisor that is still on its way finds the end. */
		int r = fs_mkdirs(dir, 0700, err);
		if (r < 0)
			return r;
		r = fs_lock(lock, true, 0, &fd, &held);
		if (r < 0 && held.id == E_IO_LOCK)
			return attempt_ask_back(dir, ret_taken, err);
		if (r < 0)
			return err_move(err, &held);
		r = attempt_end_unbegun(dir, &end, err);
		if (r < 0)
			return r;
	}
	*ret_taken = attempt_never_began(&end);
	return 1;
}

/*
 * The environment of a setup: words that are new or changed.
 */

void attempt_setup_env_write(const struct strv *before, const struct strv *with)
{
	AUTO_STRV struct strv changed = {0};
	AUTO_JSON struct json *json = json_object();

	for (size_t i = 0; i < with->n; i++)
		if (strv_find(before, with->v[i]) < 0)
			strv_add(&changed, with->v[i]);
	words_set(json, "env", &changed);
	write_json(".", ATTEMPT_SETUP, json, STATE_MAX, FS_SYNC_NONE, NULL);
}

void attempt_setup_env_read(const char *dir, struct strv *env)
{
	AUTO_STRV struct strv changed = {0};
	AUTO_JSON struct json *json = NULL;

	if (attempt_read_json(dir, ATTEMPT_SETUP, STATE_MAX, &json, NULL) < 0 ||
		words_get(json, "env", &changed, NULL) < 0)
		return;
	for (size_t i = 0; i < changed.n; i++)
		env_set(env, changed.v[i], false);
	if (changed.n)
		env_unset(env, "PYTHONHOME");
}

void attempt_place_done(struct attempt_place *place)
{
	if (!place)
		return;
	free(place->dir);
	free(place->submit_lock);
	*place = (struct attempt_place){0};
}

/*
 * The directories of attempts: attempts/1, attempts/2, …
 */

#define HOSTFILE "hostfile"

enum { NEXT_LOCK_WAIT_MS = 2000 }; /* others only check for a moment */

char *attempt_sibling(const char *dir, int number)
{
	const char *slash = strrchr(dir, '/');
	int len = slash ? (int)(slash - dir) + 1 : 0;

	return mem_printf("%.*s%d", len, dir, number);
}

int attempt_write_hosts(const char *path, int nodes, struct err *err)
{
	AUTO_BUF struct buf lines = buf_with(JOB_MAX);

	for (int i = 0; i < nodes || i == 0; i++)
		buf_adds(&lines, ATTEMPT_ADDRESS "\n");
	return fs_replace(path, lines.data, lines.len, 0600, FS_SYNC_NONE, err);
}

int attempt_make_dirs(const char *dir, const char *outputs, int nodes, struct err *err)
{
	AUTO_FREE char *files = fs_join(dir, ATTEMPT_FILES), *hosts = fs_join(dir, HOSTFILE);

	int r = fs_mkdirs(files, 0700, err);
	if (r == 0 && outputs)
		r = fs_mkdirs(outputs, 0700, err);
	for (int i = 1; r == 0 && i < nodes; i++) {
		AUTO_FREE char *rank = mem_printf("%s/" ATTEMPT_RANKS "/%d", dir, i);
		r = fs_mkdirs(rank, 0700, err);
	}
	return r < 0 ? r : attempt_write_hosts(hosts, nodes, err);
}

char *attempt_mark(const char *dir)
{
	return mem_printf("DLRUN_ATTEMPT_DIR=%s/" ATTEMPT_FILES, dir);
}

void attempt_job_place(struct attempt_job *job, const char *dir)
{
	AUTO_FREE char *number = mem_printf("DLRUN_ATTEMPT=%d", job->attempt);
	AUTO_FREE char *files = attempt_mark(dir);
	AUTO_FREE char *hosts = mem_printf("DLRUN_HOSTFILE=%s/" HOSTFILE, dir);

	env_set(&job->spec.env, number, false);
	env_set(&job->spec.env, files, false);
	env_set(&job->spec.env, hosts, false);
}

void attempt_next_done(struct attempt_next *next)
{
	if (next->dir)
		auto_fd(&next->lock_fd);
	for (int i = 0; next->has_slot && i < ATTEMPT_SLOT_FDS; i++)
		auto_fd(&next->slot_fds[i]);
	free(next->dir);
	*next = (struct attempt_next){0};
}

int attempt_next_make(const char *dir, struct attempt_next *ret, struct err *err)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	AUTO(attempt_next_done) struct attempt_next next = {0};
	AUTO_FREE char *lock = NULL;

	int r = attempt_job_read(dir, &job, err);
	if (r < 0)
		return r;
	job.attempt++;
	job.spec.runtime.retries--;
	/* Waiting is over. */
	after_done(&job.spec.after);
	AUTO_FREE char *at = attempt_sibling(dir, job.attempt);
	attempt_job_place(&job, at);
	r = attempt_make_dirs(at, job.outputs, job.spec.resources.nodes, err);
	lock = fs_join(at, ATTEMPT_LOCK);
	if (r == 0)
		r = fs_lock(lock, true, NEXT_LOCK_WAIT_MS, &next.lock_fd, err);
	if (r < 0)
		return r;
	next.number = job.attempt;
	next.dir = TAKE(at);
	AUTO_FREE char *exit_path = fs_join(next.dir, ATTEMPT_EXIT);

	/* The attempt was given up before it was locked: it can never begin. */
	if (access(exit_path, F_OK) == 0)
		return err_set(err, E_RUN_ENDED, "attempt %d has ended already", job.attempt);
	r = attempt_job_write(next.dir, &job, err);
	if (r < 0)
		return r;
	*ret = next;
	next = (struct attempt_next){0};
	return 0;
}

/*
 * The results of a run on this machine, offered to a sink. The program may be at work meanwhile: a
 * file is read up to the size that it had when it was opened, and what goes away is not missed.
 */

enum {
	CHUNK = 1 << 20,
	TURN_MS = 50,          /* then the loop has its turn */
	ENTRIES_MAX = 1 << 20, /* of one directory, and of directories to be read */
	TICK_MS = 20,          /* two changes within it may have one time */
};

struct fetching {
	struct target_work work;
	struct target_call *call;
	struct loop *loop;
	struct loop_timer *timer;
	struct fetch_sink *sink;
	char *root;
	bool ended;          /* the attempt has: nothing changes any more */
	const char *without; /* a name in root; or NULL */
	int root_fd;
	struct strv dirs; /* to be read, relative to root */
	int fd;           /* the directory that is read; -1: none */
	char *dir;
	struct strv names; /* in it */
	size_t at;
	int in_fd; /* the file that is copied; -1: none */
	struct fetch_item item;
	char *path; /* of item */
	uint64_t left;
	char *chunk;
};

static void attempt_drop_fetching(struct target_work *work)
{
	struct fetching *fetching = (struct fetching *)work;

	loop_remove_timer(fetching->loop, fetching->timer);
	auto_fd(&fetching->in_fd);
	auto_fd(&fetching->fd);
	auto_fd(&fetching->root_fd);
	strv_done(&fetching->dirs);
	strv_done(&fetching->names);
	free(fetching->dir);
	free(fetching->path);
	free(fetching->chunk);
	free(fetching->root);
	free(fetching);
}

static bool attempt_is_gone(int errnum)
{
	return errnum == ENOENT || errnum == ENOTDIR || errnum == ELOOP || errnum == ESTALE;
}

static int64_t attempt_mtime_of(const struct stat *st)
{
	return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

/*
 * Copying
 */

static void end_copy(struct fetching *fetching)
{
	auto_fd(&fetching->in_fd);
	fetching->in_fd = -1;
}

/* If the file ends early, it has been truncated since. */
static int copy_chunk(struct fetching *fetching, struct err *err)
{
	size_t want = fetching->left < CHUNK ? (size_t)fetching->left : CHUNK;
	ssize_t n;

	do
		n = want ? read(fetching->in_fd, fetching->chunk, want) : 0;
	while (n < 0 && errno == EINTR);
	if (n < 0) {
		fetch_sink_unread(fetching->sink, fetching->path, errno);
		end_copy(fetching);
		return 0;
	}
	if (n > 0) {
		fetching->left -= (uint64_t)n;
		return fetch_sink_write(fetching->sink, fetching->chunk, (size_t)n, err);
	}
	fetching->item.changing |= fetching->left > 0;
	end_copy(fetching);
	return fetch_sink_end(fetching->sink, &fetching->item, err);
}

static bool may_change(const struct fetching *fetching, const struct stat *st)
{
	return !fetching->ended && clock_wall_ms() - attempt_mtime_of(st) / 1000000 < TICK_MS;
}

/* fetching->path is its path. */
static int start_copy(struct fetching *fetching, const char *name, struct err *err)
{
	enum { FLAGS = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC };
	AUTO_FD int fd = openat(fetching->fd, name, FLAGS);
	struct fetch_range range = {0};
	struct stat st;

	if (fd < 0 && attempt_is_gone(errno))
		return 0;
	if (fd < 0 || fstat(fd, &st) < 0) {
		fetch_sink_unread(fetching->sink, fetching->path, errno);
		return 0;
	}
	if (!S_ISREG(st.st_mode))
		return 0;
	fetching->item = (struct fetch_item){.path = fetching->path,
		.mode = st.st_mode,
		.size = (uint64_t)st.st_size,
		.mtime_ns = attempt_mtime_of(&st),
		.changing = may_change(fetching, &st)};
	int r = fetch_sink_wants(fetching->sink, &fetching->item, &range, err);
	if (r > 0)
		r = fetch_sink_begin(fetching->sink, &fetching->item, &range, err);
	if (r <= 0)
		return r;
	if (range.offset && lseek(fd, (off_t)range.offset, SEEK_SET) < 0)
		return fs_error(err, errno, "%s/%s", fetching->root, fetching->path);
	fetching->in_fd = TAKE_FD(fd);
	fetching->left = range.len;
	return 0;
}

static int attempt_copy_link(
	struct fetching *fetching, const char *name, const struct stat *st, struct err *err)
{
	AUTO_FREE char *target = mem_alloc(ENTRY_PATH_MAX + 2, 1);
	ssize_t n = readlinkat(fetching->fd, name, target, ENTRY_PATH_MAX + 1);

	if (n < 0 || n > ENTRY_PATH_MAX) {
		if (n >= 0 || !attempt_is_gone(errno))
			fetch_sink_unread(
				fetching->sink, fetching->path, n < 0 ? errno : ENAMETOOLONG);
		return 0;
	}
	target[n] = '\0';
	const struct fetch_item item = {.path = fetching->path,
		.mode = st->st_mode,
		.size = (uint64_t)n,
		.mtime_ns = attempt_mtime_of(st),
		.target = target};
	return fetch_sink_link(fetching->sink, &item, err);
}

/*
 * Walking
 */

static int push_dir(struct fetching *fetching, const char *path, struct err *err)
{
	if (fetching->dirs.n == ENTRIES_MAX)
		return err_set(err, E_DATA_LIMIT, "%s has more than %d directories", fetching->root,
			ENTRIES_MAX);
	strv_add(&fetching->dirs, path);
	return 0;
}

static int attempt_fetch_dir(
	struct fetching *fetching, const struct stat *st, bool wanted, struct err *err)
{
	int r = 0;

	if (fetch_sink_is_in(fetching->sink, st))
		return 0;
	if (wanted)
		r = fetch_sink_dir(fetching->sink, fetching->path, st->st_mode, err);
	if (r < 0)
		return r;
	if (!wanted && !fetch_sink_leads_into(fetching->sink, fetching->path))
		return 0;
	return push_dir(fetching, fetching->path, err);
}

/* Sockets, pipes and devices stay where they are. */
static int attempt_fetch_entry(struct fetching *fetching, const char *name, struct err *err)
{
	struct stat st;
	bool wanted;

	free(fetching->path);
	fetching->path =
		*fetching->dir ? mem_printf("%s/%s", fetching->dir, name) : mem_strdup(name);
	wanted = fetch_sink_names(fetching->sink, fetching->path);
	if (strlen(fetching->path) > ENTRY_PATH_MAX) {
		fetch_sink_unread(fetching->sink, fetching->path, ENAMETOOLONG);
		return 0;
	}
	if (fstatat(fetching->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		if (!attempt_is_gone(errno))
			fetch_sink_unread(fetching->sink, fetching->path, errno);
		return 0;
	}
	if (S_ISDIR(st.st_mode))
		return attempt_fetch_dir(fetching, &st, wanted, err);
	if (wanted && S_ISREG(st.st_mode))
		return start_copy(fetching, name, err);
	return wanted && S_ISLNK(st.st_mode) ? attempt_copy_link(fetching, name, &st, err) : 0;
}

/* Skip entries whose d_type rules them out: neither a directory nor a file that may be wanted. */
static bool attempt_is_passed_over(const struct fetching *fetching, const struct dirent *entry)
{
	if (str_eq(entry->d_name, ".") || str_eq(entry->d_name, "..") ||
		(!*fetching->dir && str_eq(entry->d_name, fetching->without)))
		return true;
	if (!fetch_sink_is_narrow(fetching->sink) || entry->d_type == DT_UNKNOWN ||
		entry->d_type == DT_DIR)
		return false;
	return entry->d_type != DT_REG ||
	       !fetch_sink_is_like(fetching->sink, fetching->dir, entry->d_name);
}

static int attempt_read_names(struct fetching *fetching, struct err *err)
{
	int copy = fcntl(fetching->fd, F_DUPFD_CLOEXEC, 0);
	AUTO_DIR DIR *dir = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;

	if (!dir) {
		auto_fd(&copy);
		return fs_error(err, errno, "%s/%s", fetching->root, fetching->dir);
	}
	while ((entry = readdir(dir))) {
		if (attempt_is_passed_over(fetching, entry))
			continue;
		if (fetching->names.n == ENTRIES_MAX)
			return err_set(err, E_DATA_LIMIT, "%s/%s has more than %d entries",
				fetching->root, fetching->dir, ENTRIES_MAX);
		strv_add(&fetching->names, entry->d_name);
	}
	strv_sort(&fetching->names);
	return 0;
}

/* The directory that was put on the list last. */
static int attempt_enter(struct fetching *fetching, struct err *err)
{
	enum { FLAGS = O_RDONLY | O_DIRECTORY | O_CLOEXEC };

	auto_fd(&fetching->fd);
	strv_done(&fetching->names);
	free(fetching->dir);
	fetching->at = 0;
	fetching->dir = fetching->dirs.v[--fetching->dirs.n];
	fetching->dirs.v[fetching->dirs.n] = NULL;
	if (*fetching->dir)
		fetching->fd = fs_open_beneath(fetching->root_fd, fetching->dir, FLAGS, 0);
	else
		fetching->fd = openat(fetching->root_fd, ".", FLAGS);
	if (fetching->fd >= 0)
		return attempt_read_names(fetching, err);
	if (!attempt_is_gone(*fetching->dir ? -fetching->fd : errno))
		fetch_sink_unread(fetching->sink, fetching->dir, EACCES);
	return 0;
}

/* 1: there is more to do. */
static int attempt_step(struct fetching *fetching, struct err *err)
{
	int r;

	if (fetching->in_fd >= 0)
		r = copy_chunk(fetching, err);
	else if (fetching->at < fetching->names.n)
		r = attempt_fetch_entry(fetching, fetching->names.v[fetching->at++], err);
	else if (fetching->dirs.n)
		r = attempt_enter(fetching, err);
	else
		return 0;
	return r < 0 ? r : 1;
}

static int attempt_on_turn(void *ctx, struct err *err UNUSED)
{
	struct fetching *fetching = ctx;
	int64_t end_ms = clock_ms() + TURN_MS;
	AUTO_ERR struct err failure = {0};
	int r = 1;

	fetching->timer = NULL;
	while (r > 0 && clock_ms() < end_ms)
		r = attempt_step(fetching, &failure);
	if (r > 0)
		fetching->timer =
			loop_add_timer(fetching->loop, clock_ms(), attempt_on_turn, fetching);
	else
		target_call_end(fetching->call, r, &failure);
	return 0;
}

/* Collect results that are only in the tree. If the disk is full, the rest is fetched all the
 * same. */
static void bring_results(struct fetching *fetching, const char *dir)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	AUTO_ERR struct err err = {0};
	int r = 0;

	if (fetching->sink->from_tree)
		return;
	if (fetching->ended)
		r = collect_finish(dir, &err);
	else if (attempt_job_read(dir, &job, NULL) == 0)
		r = collect_results(dir, &job, COLLECT_RUNNING, &err);
	if (r < 0)
		fetch_sink_unread(fetching->sink, ATTEMPT_TREE, EIO);
}

/* If nothing was ever written there, there is nothing to do. */
static int open_root(struct fetching *fetching, struct err *err)
{
	struct stat st;

	fetching->root_fd = open(fetching->root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fetching->root_fd < 0 && errno == ENOENT && fetching->sink->from_tree)
		return err_set(err, E_FETCH_PATH, "the tree of the run is no longer here");
	if (fetching->root_fd < 0 && errno == ENOENT)
		return 0;
	if (fetching->root_fd < 0 || fstat(fetching->root_fd, &st) < 0)
		return fs_error(err, errno, "%s", fetching->root);
	if (fetch_sink_is_in(fetching->sink, &st)) {
		err_set(err, E_USAGE, "%s holds the results themselves", fetching->root);
		return err_hint(err, "dlrun fetch -o results …");
	}
	return push_dir(fetching, "", err);
}

/* Takes over fetching. */
static int attempt_begin(struct fetching *fetching, struct err *err)
{
	struct target_call *call = fetching->call;

	fetching->work = (struct target_work){attempt_drop_fetching};
	fetching->root_fd = fetching->fd = fetching->in_fd = -1;
	fetching->chunk = mem_alloc(CHUNK, 1);
	target_call_begin(call, &fetching->work);
	int r = open_root(fetching, err);
	if (r < 0) {
		target_call_cancel(call);
		return r;
	}
	fetching->timer = loop_add_timer(fetching->loop, 0, attempt_on_turn, fetching);
	return 0;
}

int attempt_files_fetch(struct loop *loop, const char *root, const char *dir,
	struct fetch_sink *sink, struct target_call *call, struct err *err)
{
	struct target_status status = {0};
	struct fetching *fetching = mem_alloc(1, sizeof(*fetching));

	*fetching = (struct fetching){
		.call = call,
		.loop = loop,
		.sink = sink,
		.root = mem_strdup(root),
		.ended = !dir || attempt_end_read(dir, &status),
		.without = dir ? NULL : FETCH_OWN,
	};
	target_status_done(&status);
	if (dir)
		bring_results(fetching, dir);
	return attempt_begin(fetching, err);
}
