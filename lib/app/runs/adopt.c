/* SPDX-License-Identifier: Apache-2.0 */
#include "app/runs/adopt.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/store/store.h"
#include "core/target/target.h"
#include "targets/targets.h"

enum { ASK_MS = 15000 };

/* Names of targets may have colons: "kube:CONTEXT/NAMESPACE". */
bool adopt_is_place(const char *text)
{
	const char *colon = strrchr(text, ':');

	return colon && colon > text && run_id_is_valid(colon + 1);
}

static int open_target(
	struct session *session, const char *name, struct target **ret, struct err *err)
{
	int r = target_open(session, name, ret, err);

	if (r == 0 && !(*ret)->ops->adopt) {
		r = err_set(err, E_TARGET_UNSUPPORTED,
			"targets of kind %s only have runs of this machine", (*ret)->ops->kind);
		target_free(TAKE(*ret));
	}
	return r;
}

int adopt_find(struct session *session, const char *text, struct run **ret, struct err *err)
{
	const char *id = strrchr(text, ':') + 1;
	AUTO_FREE char *name = mem_strndup(text, (size_t)(id - 1 - text));
	AUTO(target_free_auto) struct target *target = NULL;
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_RUN struct run *own = NULL;
	struct store *store;

	int r = session_store(session, &store, err);
	if (r < 0)
		return r;
	if (store_get(store, id, &own, NULL) == 0 && str_eq(run_target(own), name)) {
		*ret = TAKE(own);
		return 0;
	}
	r = open_target(session, name, &target, err);
	if (r == 0)
		r = target_adopt(target, id, ASK_MS, &runs, err);
	if (r == 0)
		*ret = TAKE(runs.v[0]);
	return r;
}

static int insert(struct store *store, struct run *run, struct err *err)
{
	AUTO_ERR struct err fault = {0};

	json_remove(run->doc, "adopted");
	int r = store_insert(store, run, &fault);
	/* Another process has inserted it meanwhile. */
	if (r < 0 && fault.id != E_RUN_NAME)
		return err_move(err, &fault);
	return 0;
}

int adopt_own(struct session *session, struct run *run, struct err *err)
{
	const struct json *adopted = json_get(run->doc, "adopted");
	const char *user = json_get_str(adopted, "user");
	struct store *store;

	if (!adopted)
		return 0;
	if (!json_get_bool(adopted, "own", false)) {
		AUTO_FREE char *shown = str_shown(user ? user : "somebody else");
		err_set(err, E_RUN_OTHER, "%s is a run of %s", run_id(run), shown);
		return err_hint(err, "dlrun show %s:%s", run_target(run), run_id(run));
	}
	int r = session_store(session, &store, err);
	return r < 0 ? r : insert(store, run, err);
}

static int by_age(const void *a, const void *b)
{
	int64_t first = run_submitted_ms(*(struct run *const *)a);
	int64_t second = run_submitted_ms(*(struct run *const *)b);

	return (first > second) - (first < second);
}

int adopt_all(struct session *session, const char *name, struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;
	AUTO(run_list_done) struct run_list runs = {0};
	struct store *store;

	int r = session_store(session, &store, err);
	if (r == 0)
		r = open_target(session, name, &target, err);
	if (r == 0)
		r = target_adopt(target, NULL, ASK_MS, &runs, err);
	if (r < 0 || runs.n == 0)
		return r;
	for (size_t i = 0; i < runs.n; i++)
		json_remove(runs.v[i]->doc, "adopted");
	/* The order of records is that of submission. */
	qsort(runs.v, runs.n, sizeof(*runs.v), by_age);
	return store_insert_new(store, &runs, err);
}
