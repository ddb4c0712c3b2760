/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "targets/ssh/node_machine.h"
#include "targets/ssh/target_gang.h"

/*
 * Status of a run from the node's report of an attempt.
 */

enum { EXIT_CANCELLED = 143, EXIT_OURS = 125, EXIT_SIGNAL = 128, NUMBERS_MAX = 64 };

/*
 * The engine
 */

static bool get_number(const struct node_attempt *attempt, const char *key, double *ret)
{
	const char *text = node_attempt_get(attempt, key);
	char *end;

	if (str_empty(text))
		return false;
	*ret = strtod(text, &end);
	return *end == '\0' && *ret >= 0;
}

static void set_number(const struct node_attempt *attempt, const char *key, const char *member,
	struct json *object)
{
	double value;

	if (get_number(attempt, key, &value))
		json_set_num(object, member, value);
}

static int count_words(const char *list)
{
	int n = !str_empty(list);

	for (const char *s = list; s && *s; s++)
		n += *s == ',';
	return n;
}

/* Adds a warning that the node has reported about the attempt. */
static void add_warning(const struct node_attempt *attempt, const char *key, struct json *observed)
{
	const char *text = node_attempt_get(attempt, key);
	const struct json *before = json_get(observed, "warnings");
	struct json *warnings;

	if (str_empty(text))
		return;
	warnings = before ? json_clone(before) : json_array();
	json_add_str(warnings, text);
	json_set(observed, "warnings", warnings);
}

static void set_observed(const struct node_attempt *attempt, struct target_status *ret)
{
	static const char *const totals[] = {
		"cpu_s", "memory_peak_bytes", "gpu_busy", "gpu_memory_peak_bytes", "energy_j"};
	static const char *const rates[][2] = {{"cpu", "cpu"}, {"memory_bytes", "memory_bytes"},
		{"gpu_busy_now", "gpu_busy"}, {"gpu_memory_bytes", "gpu_memory_bytes"},
		{"power_w", "power_w"}};
	const char *gpus = node_attempt_get(attempt, "gpus");
	const char *model = node_attempt_get(attempt, "gpu_model");
	const char *collect = node_attempt_get(attempt, "collect");
	int64_t time_ms = node_attempt_int(attempt, "time", 0);
	struct json *observed = json_object(), *object;

	object = json_sub(observed, "usage");
	for (size_t i = 0; i < ARRAY_LEN(totals); i++)
		set_number(attempt, totals[i], totals[i], object);
	object = json_sub(observed, "now");
	for (size_t i = 0; i < ARRAY_LEN(rates) && ret->state == RUN_RUNNING; i++)
		set_number(attempt, rates[i][0], rates[i][1], object);
	run_set_time(observed, "time", time_ms);
	object = json_sub(observed, "resources");
	if (gpus)
		json_set_int(object, "gpus", count_words(gpus));
	if (!str_empty(model))
		json_set_str(object, "gpu_model", model);
	/* While it runs, what could not be collected yet may be later. */
	if (!str_empty(collect) && run_state_is_final(ret->state))
		json_set_str(observed, "warning", collect);
	add_warning(attempt, "warning", observed);
	add_warning(attempt, "limits", observed);
	ret->observed = observed;
}

/* Where the reason alone tells who was at fault. */
static const char *origin_of(const char *reason)
{
	static const char *const programs[] = {"Completed", "Error", "Signal"};

	for (size_t i = 0; i < ARRAY_LEN(programs); i++)
		if (str_eq(reason, programs[i]))
			return "job";
	return str_eq(reason, "SetupFailed") ? "setup" : "dlrun";
}

/* A name or a number, or nothing. */
static int signal_of(const struct node_attempt *attempt)
{
	const char *text = node_attempt_get(attempt, "signal");
	int64_t number;

	if (str_empty(text) || str_eq(text, "0"))
		return 0;
	if (str_to_int(text, 1, NUMBERS_MAX, "signal", &number, NULL) == 0)
		return (int)number;
	return proc_signal_number(text);
}

static const char *default_reason(enum run_state state, int sig)
{
	if (state == RUN_SUCCEEDED)
		return "Completed";
	if (state == RUN_CANCELLED)
		return "Cancelled";
	if (state == RUN_LOST)
		return "Lost";
	return sig ? "Signal" : "Error";
}

static int default_code(enum run_state state, int sig)
{
	if (state == RUN_SUCCEEDED)
		return 0;
	if (state == RUN_CANCELLED)
		return EXIT_CANCELLED;
	return sig ? EXIT_SIGNAL + sig : state == RUN_FAILED ? 1 : EXIT_OURS;
}

static void set_exit(
	const struct node *node, const struct node_attempt *attempt, struct target_status *ret)
{
	AUTO_JSON struct json *json = json_object();
	const char *reason = node_attempt_get(attempt, "reason");
	const char *origin = node_attempt_get(attempt, "origin");
	int sig = signal_of(attempt);

	if (str_empty(reason))
		reason = default_reason(ret->state, sig);
	json_set_int(
		json, "code", node_attempt_int(attempt, "code", default_code(ret->state, sig)));
	json_set_int(json, "signal", sig);
	json_set_str(json, "origin", str_empty(origin) ? origin_of(reason) : origin);
	json_set_str(json, "reason", reason);
	run_exit_from_json(json, &ret->exit);
	/* A program killed by a signal has not succeeded. */
	if (sig && ret->exit.code == 0)
		ret->exit.code = EXIT_SIGNAL + sig;
	ret->ended_ms = node_time_here(node, node_attempt_int(attempt, "ended", 0));
}

static void set_text(const struct node_attempt *attempt, struct target_status *ret)
{
	const char *text = node_attempt_get(attempt, "text");
	char name[8];

	if (!str_empty(text)) {
		ret->text = mem_strdup(text);
	} else if (ret->state == RUN_FAILED && ret->exit.signal) {
		ret->text = mem_printf("the program was killed by SIG%s",
			proc_signal_name(ret->exit.signal, name));
	} else if (ret->state == RUN_FAILED && str_eq(ret->exit.origin, "job")) {
		ret->text = mem_printf("the program exited with %d", ret->exit.code);
	} else if (ret->state == RUN_CANCELLED) {
		ret->text = mem_strdup("it was cancelled");
	} else if (ret->state == RUN_LOST) {
		ret->text = mem_strdup("its supervisor on the node was killed");
	}
}

void target_node_status(
	const struct node *node, const struct node_attempt *attempt, struct target_status *ret)
{
	const char *cancel = node_attempt_get(attempt, "cancel");

	*ret = (struct target_status){.state = run_state_find(attempt->state)};
	ret->started_ms = node_time_here(node, node_attempt_int(attempt, "started", 0));
	ret->cancelling = cancel && !str_eq(cancel, "0");
	if (run_state_is_final(ret->state))
		set_exit(node, attempt, ret);
	set_text(attempt, ret);
	set_observed(attempt, ret);
}

/*
 * Asking
 */

struct asking {
	struct node_work base;
	struct strv names;
	struct node_attempts found;
	struct target_status *ret;
	bool was_accepted, is_here; /* as the record's files here say, before the node was asked */
};

static void release(struct node_work *work)
{
	struct asking *asking = (struct asking *)work;

	strv_done(&asking->names);
	node_attempts_done(&asking->found);
	free(asking);
}

/* Nothing there knows of it. */
static void judge_absent(const struct asking *asking, struct target_status *ret)
{
	const struct node_work *work = &asking->base;
	const struct dirs *dirs = &work->target->session->dirs;
	AUTO_FREE char *run_dir = dirs_run(dirs, work->handle.run_id);
	AUTO_FREE char *lock = fs_join(run_dir, RUN_SUBMIT_LOCK);

	*ret = (struct target_status){.state = RUN_PREPARING};
	if (fs_is_locked(lock))
		return;
	char *other = node_machine_other(
		dirs, work->handle.run_id, work->host->name, node_facts(work->host->node));
	if (other) {
		*ret = (struct target_status){.state = RUN_UNKNOWN, .text = other};
		return;
	}
	if (asking->was_accepted || !asking->is_here) {
		AUTO_FREE char *text = mem_printf("%s no longer knows of it", work->host->name);
		attempt_set_end(ret, RUN_LOST, EXIT_OURS, 0, "dlrun", "Lost", text);
	} else {
		attempt_set_end(ret, RUN_FAILED, EXIT_OURS, 0, "dlrun", "Interrupted",
			"dlrun was stopped before the run had begun");
	}
	ret->ended_ms = clock_wall_ms();
}

/* The attempt that its supervisor there began by itself. */
static void add_next(const struct asking *asking, const struct node_attempt *attempt)
{
	const struct node_handle *handle = &asking->base.handle;
	int64_t next = node_attempt_int(attempt, "next", 0);

	if (asking->ret->state == RUN_FAILED && next > handle->attempt && next < INT32_MAX)
		asking->ret->next_handle =
			node_handle_text(handle->host, handle->run_id, (int)next);
}

static int on_found(void *ctx, int status, struct err *fault, struct err *err)
{
	struct asking *asking = ctx;

	(void)err;
	if (status < 0)
		return node_work_end(&asking->base, status, fault);
	if (asking->found.n == 0 || str_eq(asking->found.v[0].state, "absent")) {
		judge_absent(asking, asking->ret);
	} else {
		node_machine_note(&asking->base.target->session->dirs, asking->base.handle.run_id,
			asking->base.host->name, node_facts(asking->base.host->node));
		target_node_status(asking->base.host->node, &asking->found.v[0], asking->ret);
		add_next(asking, &asking->found.v[0]);
	}
	return node_work_end(&asking->base, 0, fault);
}

static void look_here(struct asking *asking)
{
	const struct node_work *work = &asking->base;
	const struct dirs *dirs = &work->target->session->dirs;
	AUTO_FREE char *dir = dirs_attempt(dirs, work->handle.run_id, work->handle.attempt);
	AUTO_FREE char *run_dir = dirs_run(dirs, work->handle.run_id);
	AUTO_FREE char *accepted = fs_join(dir, ATTEMPT_ACCEPTED);

	asking->is_here = access(run_dir, F_OK) == 0;
	asking->was_accepted = access(accepted, F_OK) == 0;
}

int target_node_state(struct target *target, const char *handle, struct target_status *ret,
	struct target_call *call, struct err *err)
{
	struct asking *asking;

	if (node_handle_is_gang(handle))
		return target_gang_state(target, handle, ret, call, err);
	asking = mem_alloc(1, sizeof(*asking));
	*asking = (struct asking){.base = {.release = release}, .ret = ret};
	int r = node_work_begin(target, handle, &asking->base, call, err);
	if (r < 0)
		return r;
	look_here(asking);
	strv_addf(&asking->names, "%s/%d", asking->base.handle.run_id, asking->base.handle.attempt);
	asking->base.asked = node_state(
		asking->base.host->node, &asking->names, &asking->found, on_found, asking);
	return 0;
}
