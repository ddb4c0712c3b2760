/* SPDX-License-Identifier: Apache-2.0 */
#include "app/runs/after_check.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "app/runs/refresh.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/record/group.h"
#include "core/store/store.h"
#include "core/study/study.h"

void after_check_done(struct after_check *check)
{
	if (!check)
		return;
	run_list_done(&check->pending);
	free(check->id);
	free(check->named);
	free(check->text);
	*check = (struct after_check){0};
}

int after_of(const struct run *run, struct after_list *ret, struct err *err)
{
	return after_from_json(json_get(run->spec, AFTER_RECORD), ret, err);
}

bool after_waits_for(const struct run *run, const struct run *other)
{
	const char *study = run_study(other);
	AUTO_AFTER struct after_list list = {0};
	enum run_state state = run_state(run);

	if ((state != RUN_QUEUED && state != RUN_PREPARING) || run_started_ms(run) ||
		after_of(run, &list, NULL) < 0)
		return false;
	vec_foreach (struct after, after, &list)
		if (str_eq(after->id, after->is_study ? study : run_id(other)))
			return true;
	return false;
}

int after_submit_dir(const struct run *run, char **ret, struct err *err)
{
	const struct json *origin = json_get(run->doc, "origin");
	AUTO_FREE char *root = words_get_one(origin, "root"), *cwd = words_get_one(origin, "cwd");
	AUTO_FREE char *dir = root ? fs_join(root, cwd ? cwd : ".") : NULL;

	if (dir && access(dir, X_OK) == 0)
		*ret = TAKE(dir);
	else if (!root || access(root, X_OK) == 0)
		*ret = TAKE(root);
	else {
		AUTO_FREE char *shown = str_shown(root);
		return err_set_errno(
			err, E_IO_READ, errno, "%s, whose dlrun.yaml says how to send it", shown);
	}
	return 0;
}

/* "failed with exit 3"; the caller frees. */
static char *after_how(const struct run *run)
{
	struct run_exit exit;

	run_get_exit(run, &exit);
	if (run_state(run) == RUN_FAILED && str_eq(exit.origin, "job") && !exit.signal)
		return mem_printf("failed with exit %d", exit.code);
	return mem_printf(
		"%s%s", run_state(run) == RUN_FAILED ? "" : "was ", run_state_name(run_state(run)));
}

static void after_never(
	struct after_check *check, const struct after *after, const char *id, const char *how)
{
	if (check->state == AFTER_NEVER)
		return;
	check->state = AFTER_NEVER;
	check->id = mem_strdup(id);
	check->named = mem_strdup(after->id);
	check->text = mem_printf("%s %s, and it was to succeed", id, how);
}

/* Takes run. */
static void after_add_run(struct after_check *check, const struct after *after, struct run *run)
{
	AUTO_RUN struct run *own = run;

	if (!run_state_is_final(run_state(run))) {
		*vec_push(&check->pending) = TAKE(own);
	} else if (!after->any && run_state(run) != RUN_SUCCEEDED) {
		AUTO_FREE char *how = after_how(run);
		after_never(check, after, run_id(run), how);
	}
}

static int after_check_run(
	struct store *store, const struct after *after, struct after_check *check, struct err *err)
{
	AUTO_ERR struct err error = {0};
	struct run *run;
	int r = store_get(store, after->id, &run, &error);

	if (r == 0)
		after_add_run(check, after, run);
	else if (error.id != E_RUN_NOT_FOUND)
		return err_move(err, &error);
	else if (!after->any)
		after_never(check, after, after->id, "was removed");
	return 0;
}

/* Members that have not ended come in their order. */
static int after_check_study(struct session *session, struct store *store,
	const struct after *after, struct after_check *check, struct err *err)
{
	const struct store_filter filter = {.group = after->id};
	/* Asked first: members that it makes are in the list. */
	bool is_made = study_is_held(&session->dirs, after->id);
	AUTO(run_list_done) struct run_list members = {0};
	AUTO_SPEC struct spec spec = {0};
	size_t n;

	int r = store_list(store, &filter, &members, err);
	if (r == 0 && members.n)
		r = spec_from_json(members.v[0]->spec, &spec, err);
	if (r < 0)
		return r;
	n = members.n;
	for (size_t i = n; i-- > 0;)
		after_add_run(check, after, TAKE(members.v[i]));
	if (n > 0 && n >= (size_t)spec.study.size)
		return 0;
	if (is_made && check->state == AFTER_MET)
		check->state = AFTER_WAITS;
	if (is_made || after->any)
		return 0;
	AUTO_FREE char *how = n ? mem_printf("has only %zu of its %d runs", n, spec.study.size)
				: mem_strdup("was removed");
	after_never(check, after, after->id, how);
	return 0;
}

int after_check(struct session *session, const struct after_list *list, struct after_check *ret,
	struct err *err)
{
	AUTO_AFTER_CHECK struct after_check check = {.state = AFTER_MET};
	struct store *store;
	int r = list->n ? session_store(session, &store, err) : 0;

	for (size_t i = 0; r == 0 && i < list->n; i++)
		r = list->v[i].is_study
			    ? after_check_study(session, store, &list->v[i], &check, err)
			    : after_check_run(store, &list->v[i], &check, err);
	if (r < 0)
		return r;
	if (check.state == AFTER_MET && check.pending.n)
		check.state = AFTER_WAITS;
	*ret = check;
	check = (struct after_check){0};
	return 0;
}

int after_refresh(struct session *session, const struct run_list *waiting, int64_t timeout_ms,
	struct err *err)
{
	AUTO_AFTER_CHECK struct after_check check = {0};
	AUTO_AFTER struct after_list all = {0};

	vec_foreach (struct run *, run, waiting) {
		AUTO_AFTER struct after_list list = {0};
		if (after_of(*run, &list, NULL) < 0)
			continue;
		vec_foreach (struct after, after, &list)
			after_add(&all, after->id, after->is_study, true);
	}
	int r = after_check(session, &all, &check, err);
	return r < 0 || !check.pending.n ? r
					 : runs_refresh(session, &check.pending, timeout_ms, err);
}
