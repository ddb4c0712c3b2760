/* SPDX-License-Identifier: Apache-2.0 */
#include "core/attempt/attempt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/collect.h"
#include "core/config/words.h"
#include "core/record/observed.h"

enum {
	JOB_MAX = 8 << 20,
	STATE_MAX = 64 << 10,
	LOCK_WAIT_MS = 200, /* others only look for a moment */
	LOOK_MS = 5,
};

/*
 * Files
 */

static int read_json(
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
	AUTO_BUF struct buf text;
	int r;

	buf_init(&text, max);
	json_print(json, &text);
	buf_addc(&text, '\n');
	r = buf_check(&text, path, err);
	return r < 0 ? r : fs_replace(path, text.data, text.len, 0600, sync, err);
}

static bool has_file(const char *dir, const char *name)
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
	words_set(json, "command", &job->command);
	json_set_bool(json, "shell", job->shell);
	set_path(json, "cwd", job->cwd);
	words_set(json, "env", &job->env);
	words_set(json, "defaults", &job->defaults);
	set_path(json, "layout", job->layout);
	json_set_str(json, "image", job->image);
	set_path(json, "spares", job->spares);
	set_path(json, "outputs_dir", job->outputs);
	set_path(json, "setups", job->setups);
	json_set_int(json, "tree_bytes", (int64_t)job->tree_bytes);
	json_set_int(json, "timeout_ms", job->timeout_ms);
	json_set_int(json, "grace_ms", job->grace_ms);
	json_set_bool(json, "cgroup", job->cgroup);
	json_set_int(json, "limit_memory_bytes", (int64_t)job->limits.memory_bytes);
	json_set_int(json, "limit_cpus_milli", job->limits.cpus_milli);
	world_to_json(&job->world, json);
	return write_json(dir, ATTEMPT_JOB, json, JOB_MAX, FS_SYNC_NONE, err);
}

static int64_t not_negative(const struct json *json, const char *key, int64_t fallback)
{
	int64_t value = json_get_int(json, key, fallback);

	return value < 0 ? 0 : value;
}

static int job_from_json(const struct json *json, struct attempt_job *job, struct err *err)
{
	int r = words_get(json, "command", &job->command, err);

	if (r == 0)
		r = words_get(json, "env", &job->env, err);
	if (r == 0)
		r = words_get(json, "defaults", &job->defaults, err);
	if (r == 0)
		r = world_from_json(json, &job->world, err);
	if (r < 0)
		return r;
	job->run_id = mem_strdup(json_get_str(json, "run"));
	job->attempt = (int)json_get_int(json, "attempt", 1);
	job->shell = json_get_bool(json, "shell", false);
	job->cwd = words_get_one(json, "cwd");
	job->layout = words_get_one(json, "layout");
	job->image = mem_strdup(json_get_str(json, "image"));
	job->spares = words_get_one(json, "spares");
	job->outputs = words_get_one(json, "outputs_dir");
	job->setups = words_get_one(json, "setups");
	job->tree_bytes = (uint64_t)not_negative(json, "tree_bytes", 0);
	job->timeout_ms = not_negative(json, "timeout_ms", 0);
	job->grace_ms = not_negative(json, "grace_ms", 10000);
	job->cgroup = json_get_bool(json, "cgroup", true);
	job->limits.memory_bytes = (uint64_t)not_negative(json, "limit_memory_bytes", 0);
	job->limits.cpus_milli = not_negative(json, "limit_cpus_milli", 0);
	if (!job->run_id || job->command.n == 0 || !job->cwd)
		return err_set(err, E_DATA, "a job needs run, command and cwd");
	return 0;
}

int attempt_job_read(const char *dir, struct attempt_job *ret, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	AUTO(attempt_job_done) struct attempt_job job = {0};

	int r = read_json(dir, ATTEMPT_JOB, JOB_MAX, &json, err);
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
	strv_done(&job->command);
	free(job->cwd);
	strv_done(&job->env);
	strv_done(&job->defaults);
	free(job->layout);
	free(job->image);
	free(job->spares);
	free(job->outputs);
	free(job->setups);
	world_done(&job->world);
	*job = (struct attempt_job){0};
}

/*
 * The state
 */

bool attempt_process_alive(const struct attempt_process *process)
{
	return process->pid > 0 && os_process_alive(process->pid, process->start);
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

static void get_text(const struct json *json, const char *key, char *out, size_t size)
{
	const char *text = json_get_str(json, key);

	snprintf(out, size, "%s", text ? text : "");
}

/* Only what dlrun has made: it is removed when all is over. */
static void get_family(const struct json *json, const char *key, char out[static 256])
{
	get_text(json, key, out, 256);
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
	return write_json(dir, ATTEMPT_STATE, json, STATE_MAX, FS_SYNC_NONE, err);
}

bool attempt_state_read(const char *dir, struct attempt_state *ret)
{
	AUTO_JSON struct json *json = NULL;

	if (read_json(dir, ATTEMPT_STATE, STATE_MAX, &json, NULL) < 0)
		return false;
	*ret = (struct attempt_state){0};
	ret->state = run_state_find(json_get_str(json, "state"));
	if (ret->state != RUN_RUNNING && ret->state != RUN_QUEUED)
		ret->state = RUN_STARTING;
	get_process(json, "supervisor", &ret->supervisor);
	get_process(json, "program", &ret->program);
	get_process(json, "setup", &ret->setup);
	get_text(json, "text", ret->text, sizeof(ret->text));
	get_text(json, "boot_id", ret->boot_id, sizeof(ret->boot_id));
	get_text(json, "machine_id", ret->machine_id, sizeof(ret->machine_id));
	get_family(json, "family", ret->family.path);
	get_family(json, "family_memory", ret->family.memory);
	get_family(json, "family_cpu", ret->family.cpu);
	ret->family.enforced = (unsigned)not_negative(json, "family_enforced", 0);
	get_text(json, "warning", ret->warning, sizeof(ret->warning));
	ret->started_ms = json_get_int(json, "started_ms", 0);
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
	free(status->text);
	status->text = mem_strdup(text);
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
	if (next)
		json_set_int(json, "next", next);
	return write_json(dir, ATTEMPT_EXIT, json, STATE_MAX, FS_SYNC_FILE, err);
}

/* The last sample may be missing, or older than the kernel's accounting at the end. */
static struct json *observed_at_end(const char *dir, const struct json *usage)
{
	struct json *observed = attempt_observed(dir);
	const struct json *item =
		usage && json_kind(usage) == JSON_OBJECT ? json_first(usage) : NULL;

	if (item && !observed)
		observed = json_object();
	for (; item; item = json_next(item))
		if (json_kind(item) != JSON_NULL)
			json_set(json_sub(observed, "usage"), json_key(item), json_clone(item));
	return observed;
}

bool attempt_end_read(const char *dir, struct target_status *ret)
{
	AUTO_JSON struct json *json = NULL;
	enum run_state state;

	if (read_json(dir, ATTEMPT_EXIT, STATE_MAX, &json, NULL) < 0)
		return false;
	state = run_state_find(json_get_str(json, "state"));
	if (!run_state_is_final(state))
		return false;
	*ret = (struct target_status){.state = state};
	run_exit_from_json(json_get(json, "exit"), &ret->exit);
	ret->text = mem_strdup(json_get_str(json, "text"));
	ret->started_ms = json_get_int(json, "started_ms", 0);
	ret->ended_ms = json_get_int(json, "ended_ms", 0);
	ret->observed = observed_at_end(dir, json_get(json, "usage"));
	return true;
}

int attempt_next(const char *dir)
{
	AUTO_JSON struct json *json = NULL;

	if (read_json(dir, ATTEMPT_EXIT, STATE_MAX, &json, NULL) < 0)
		return 0;
	return (int)not_negative(json, "next", 0);
}

void attempt_gpus(const char *dir, struct gpu_list *ret)
{
	AUTO_JSON struct json *json = NULL;

	*ret = (struct gpu_list){0};
	if (read_json(dir, ATTEMPT_GPUS, STATE_MAX, &json, NULL) == 0)
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
	if (read_json(dir, ATTEMPT_GPUS, STATE_MAX, &gpus, NULL) < 0)
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
 * Looking
 */

static bool is_other(const char *ours, const char *theirs)
{
	return *ours && *theirs && !str_eq(ours, theirs);
}

/* The last sign of life of a program whose end was not observed. */
static int64_t log_time_ms(const char *dir)
{
	AUTO_FREE char *path = fs_join(dir, ATTEMPT_LOG);
	struct stat st;

	return stat(path, &st) == 0 ? (int64_t)st.st_mtime * 1000 : 0;
}

static void set_lost(const char *dir, const struct attempt_state *state, const char *text,
	struct target_status *ret)
{
	struct os_family family = state->family;

	attempt_set_end(ret, RUN_LOST, 125, 0, "dlrun", "Lost", text);
	/* Do this in place of the supervisor. */
	os_family_remove(&family);
	ret->started_ms = state->started_ms;
	ret->ended_ms = log_time_ms(dir);
	/* Collect the results likewise; errors go to their report. */
	collect_finish(dir, NULL);
}

/* Set the status of an attempt that has no supervisor. */
static void judge(const char *dir, const struct attempt_state *state, struct target_status *ret)
{
	struct attempt_state here;

	attempt_state_init(&here);
	if (is_other(here.machine_id, state->machine_id)) {
		ret->state = RUN_UNKNOWN;
		ret->text = mem_strdup("it belongs to another machine");
	} else if (is_other(here.boot_id, state->boot_id)) {
		set_lost(dir, state, "the machine restarted", ret);
	} else if (attempt_process_alive(&state->program)) {
		ret->state = RUN_RUNNING;
		ret->started_ms = state->started_ms;
		ret->cancelling = has_file(dir, ATTEMPT_CANCEL);
		ret->text = mem_strdup("its supervisor was killed: how it ends will not be known");
	} else {
		/* End the setup in place of the supervisor. */
		if (attempt_process_alive(&state->setup))
			kill(-state->setup.pid, SIGKILL);
		set_lost(dir, state, "its supervisor was killed", ret);
	}
}

static void set_never_began(const char *dir, struct target_status *ret)
{
	const char *name = strrchr(dir, '/');
	bool first = !name || str_eq(name, "/1");
	AUTO_FREE char *text = mem_printf("dlrun was stopped before %s%s had begun",
		first ? "the run" : "attempt ", first ? "" : name + 1);

	if (has_file(dir, ATTEMPT_CANCEL))
		attempt_set_end(ret, RUN_CANCELLED, 143, 0, "dlrun", "Cancelled",
			"it was cancelled before it had begun");
	else
		attempt_set_end(ret, RUN_FAILED, 125, 0, "dlrun", "Interrupted", text);
	ret->ended_ms = clock_wall_ms();
}

/* End an attempt whose submitting process died before a supervisor had it. A supervisor may still
 * be about to check: under its lock it finds the end that is written here, or it was faster. */
static int give_up(const char *dir, struct target_status *ret, struct err *err)
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
		judge(dir, &state, ret);
		return 0;
	}
	set_never_began(dir, ret);
	return attempt_end_write(dir, ret, 0, err);
}

static void watched(const char *dir, struct target_status *ret)
{
	struct attempt_state state;

	ret->state = RUN_STARTING;
	if (attempt_state_read(dir, &state)) {
		ret->state = state.state;
		ret->started_ms = state.started_ms;
		ret->text = *state.text ? mem_strdup(state.text) : NULL;
	}
	ret->cancelling = has_file(dir, ATTEMPT_CANCEL);
}

int attempt_look(
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
		watched(dir, ret);
		return 0;
	}
	/* The attempt may have ended between the two checks. */
	if (attempt_end_read(dir, ret))
		return 0;
	if (attempt_state_read(dir, &state)) {
		judge(dir, &state, ret);
		return 0;
	}
	if (!submitting)
		return give_up(dir, ret, err);
	ret->state = RUN_PREPARING;
	ret->cancelling = has_file(dir, ATTEMPT_CANCEL);
	return 0;
}

/*
 * Requesting the end
 */

/* A child that the supervisor was forking when it died holds its lock for a moment longer. */
static bool has_supervisor(const char *dir, const struct attempt_state *state)
{
	AUTO_FREE char *lock = fs_join(dir, ATTEMPT_LOCK);

	for (int ms = 0; fs_is_locked(lock); ms += LOOK_MS) {
		if (attempt_process_alive(&state->supervisor) || ms > LOCK_WAIT_MS)
			return true;
		poll(NULL, 0, LOOK_MS);
	}
	return false;
}

/* Request the end, even on a full disk. */
static int make_cancel(const char *dir, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, ATTEMPT_CANCEL);
	AUTO_FREE char *reserve = fs_join(dir, ATTEMPT_CANCEL_RESERVE);
	AUTO_ERR struct err fault = {0};

	if (access(path, F_OK) == 0 || fs_replace(path, "", 0, 0600, FS_SYNC_FULL, &fault) == 0)
		return 0;
	if (fault.id == E_IO_FULL && rename(reserve, path) == 0)
		return 0;
	return err_move(err, &fault);
}

int attempt_cancel(const char *dir, bool *ret_orphan, struct err *err)
{
	struct attempt_state state = {0};

	if (ret_orphan)
		*ret_orphan = false;
	if (access(dir, F_OK) < 0 || has_file(dir, ATTEMPT_EXIT))
		return 0;
	int r = make_cancel(dir, err);
	if (r < 0 || !attempt_state_read(dir, &state))
		return r;
	if (!has_supervisor(dir, &state)) {
		if (ret_orphan)
			*ret_orphan = !has_file(dir, ATTEMPT_EXIT) &&
				      attempt_process_alive(&state.program);
		return 0;
	}
	/* The supervisor watches the directory anyway; a signal is faster. */
	if (attempt_process_alive(&state.supervisor))
		kill(state.supervisor.pid, SIGTERM);
	return 0;
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

	if (read_json(dir, ATTEMPT_SETUP, STATE_MAX, &json, NULL) < 0 ||
		words_get(json, "env", &changed, NULL) < 0)
		return;
	for (size_t i = 0; i < changed.n; i++)
		env_set(env, changed.v[i], false);
	if (changed.n && env_get((const char *const *)changed.v, "VIRTUAL_ENV"))
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
