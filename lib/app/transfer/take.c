/* SPDX-License-Identifier: Apache-2.0 */
#include "app/transfer/take.h"

#include <stdlib.h>
#include <unistd.h>

#include "app/transfer/fetch.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/taken.h"
#include "core/store/store.h"
#include "core/target/target.h"
#include "targets/targets.h"

static int note_over(struct session *session, struct run *run, struct err *err)
{
	struct store *store;

	if (!json_get(run->doc, TAKEN_UNTIL))
		return 0;
	json_remove(run->doc, TAKEN_UNTIL);
	int r = session_store(session, &store, err);
	return r < 0 ? r : store_update_known(store, run, err);
}

static int note_taken(
	struct session *session, struct run *run, const struct buf *list, struct err *err)
{
	bool fits = buf_check(list, "the list of results", NULL) == 0;
	AUTO_FREE char *path = taken_path(&session->dirs, run_id(run), run_attempts(run));
	AUTO_FREE char *dir = dirs_attempt(&session->dirs, run_id(run), run_attempts(run));

	int r = fs_mkdirs(dir, 0700, err);
	if (r == 0)
		r = fs_replace(path, list->data, fits ? list->len : 0, 0600, FS_SYNC_NONE, err);
	return r < 0 ? r : note_over(session, run, err);
}

void take_undo(struct session *session, const struct run *run)
{
	AUTO_FREE char *path = taken_path(&session->dirs, run_id(run), run_attempts(run));

	unlink(path);
}

int take_give_up(struct session *session, struct run *run, int64_t timeout_ms, struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;

	if (!taken_wait_ms(run))
		return 0;
	int r = target_open_run(session, run, &target, err);
	if (r == 0)
		r = target_cancel(target, run_handle(run), timeout_ms, err);
	return r < 0 ? r : note_over(session, run, err);
}

static int take(struct session *session, struct run *run, bool ending,
	const volatile int *interrupted, struct err *err)
{
	AUTO_FREE char *outputs = dirs_outputs(&session->dirs, run_id(run)), *dir = NULL;
	const struct strv all = {0};
	AUTO_BUF struct buf list;
	const struct fetch_options options = {.paths = &all,
		.dir = outputs,
		.force = true,
		.takes = true,
		.ending = ending,
		.taken = &list,
		.interrupted = interrupted};
	struct fetch_report report;

	buf_init(&list, TAKEN_MAX);
	int r = run_fetch(session, run, &options, &dir, &report, err);
	if (r < 0)
		return r;
	return report.files + report.skipped ? note_taken(session, run, &list, err)
					     : note_over(session, run, err);
}

int take_run(
	struct session *session, struct run *run, const volatile int *interrupted, struct err *err)
{
	return take(session, run, false, interrupted, err);
}

int take_ending(
	struct session *session, struct run *run, const volatile int *interrupted, struct err *err)
{
	return take(session, run, true, interrupted, err);
}

void take_runs(struct session *session, const struct run_list *runs,
	const volatile int *interrupted, void (*notice)(void *ctx, const char *text), void *ctx)
{
	vec_foreach (struct run *, run, runs) {
		AUTO_ERR struct err fault = {0};
		if (!taken_wait_ms(*run) || take_run(session, *run, interrupted, &fault) == 0)
			continue;
		AUTO_FREE char *waits = taken_text(*run);
		AUTO_FREE char *text = mem_printf("the results of %s cannot be taken: %s%s%s",
			run_id(*run), fault.message, *waits ? "; " : "", waits);
		if (notice)
			notice(ctx, text);
		log_note("%s", text);
	}
}
