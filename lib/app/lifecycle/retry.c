/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/retry.h"

#include <stdlib.h>

#include "app/lifecycle/restart.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/spec.h"
#include "core/store/store.h"
#include "targets/kube/target_kube.h"
#include "targets/targets.h"

static bool is_gang(const struct run *run)
{
	return target_ops_recorded(run)->has_nodes &&
	       json_get_int(json_get(run->doc, "resources"), "nodes", 1) > 1;
}

bool run_restarts_by_itself(const struct run *run)
{
	const char *handle = run_handle(run);

	return handle && kube_handle_is_jobset(handle);
}

static bool is_failure(const struct run_exit *exit)
{
	return str_eq(exit->origin, "job");
}

static bool is_disruption(const struct run_exit *exit)
{
	const struct run_reason *reason = run_reason(exit->reason);

	return str_eq(exit->origin, "cluster") && reason && reason->is_disruption;
}

/* Of the program, since somebody has started it by hand. */
static int count_failures(const struct run *run)
{
	const struct json *attempts = json_get(run->doc, "attempts");
	int64_t skip = json_get_int(run->doc, RUN_RETRIES_FROM, 0);
	int n = 0;

	for (const struct json *item = json_first(attempts); item; item = json_next(item)) {
		struct run_exit exit;
		if (skip-- > 0)
			continue;
		run_exit_from_json(json_get(item, "exit"), &exit);
		n += exit.known && exit.code != 0 && is_failure(&exit);
	}
	return n;
}

static int retries_of(const struct run *run)
{
	AUTO_SPEC struct spec spec = {0};

	return spec_from_json(run->spec, &spec, NULL) == 0 ? spec.world.retries : 0;
}

bool run_wants_retry(const struct run *run)
{
	struct run_exit exit;

	if (run_state(run) != RUN_FAILED || !is_gang(run) || run_restarts_by_itself(run) ||
		json_get_bool(run->doc, RUN_RETRIES_STOPPED, false) ||
		run_attempts(run) >= RETRY_ATTEMPTS_MAX)
		return false;
	run_get_exit(run, &exit);
	return is_disruption(&exit) ||
	       (is_failure(&exit) && count_failures(run) <= retries_of(run));
}

static char *sentence(const struct run *ended)
{
	const char *text = json_get_str(ended->doc, "text");
	struct run_exit exit;

	run_get_exit(ended, &exit);
	AUTO_FREE char *how =
		is_disruption(&exit)
			? mem_strdup("which is not counted")
			: mem_printf("retry %d of %d", count_failures(ended), retries_of(ended));
	return mem_printf("%s: attempt %d failed%s%s; all nodes start again as attempt %d, %s",
		run_id(ended), run_attempts(ended), text ? ": " : "", text ? text : "",
		run_attempts(ended) + 1, how);
}

static void put(struct run *run, struct run *now)
{
	struct run old = *run;

	*run = *now;
	*now = old;
	run_free(now);
}

static int read_again(struct session *session, struct run *run, struct err *err)
{
	struct store *store;
	struct run *now;
	int r = session_store(session, &store, err);

	if (r == 0)
		r = store_get(store, run_id(run), &now, err);
	if (r == 0)
		put(run, now);
	return r;
}

int run_retry(struct session *session, struct run *run, char **ret_text, struct err *err)
{
	AUTO_FREE char *text = sentence(run);
	AUTO_STRV struct strv missing = {0}, notes = {0};
	AUTO_ERR struct err fault = {0};
	struct run *now = NULL;

	*ret_text = NULL;
	int r = run_restart_after(session, run, run_attempts(run), &missing, &notes, &now, &fault);
	if (now)
		put(run, now);
	if (r == 0) {
		*ret_text = notes.n ? mem_printf("%s; %s", text, notes.v[0]) : TAKE(text);
		return 0;
	}
	if (fault.id == E_RUN_RUNNING || fault.id == E_RUN_ENDED || fault.id == E_IO_LOCK)
		return read_again(session, run, err);
	return err_move(err, &fault);
}

static int stop(void *ctx, struct run *run, struct err *err)
{
	(void)ctx;
	(void)err;
	if (!run_wants_retry(run))
		return 0;
	json_set_bool(run->doc, RUN_RETRIES_STOPPED, true);
	return 1;
}

int run_stop_retries(struct session *session, struct run *run, struct err *err)
{
	struct run *now = NULL;
	struct store *store;
	int r = session_store(session, &store, err);

	if (r == 0)
		r = store_change(store, run_id(run), stop, NULL, &now, err);
	if (r == 0)
		put(run, now);
	return r;
}
