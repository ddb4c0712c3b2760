/* SPDX-License-Identifier: Apache-2.0 */
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/store/store_db.h"

/*
 * RUN as users write it (cli.md, "Rules for every command").
 */

enum { BACK_MAX = 1000000, NEAR_MAX = ERR_EVIDENCE_MAX, NEAR_LOOK = 1000 };

/* @ is 0, @-3 is 3; -1: not of that form. */
static int64_t parse_back(const char *text)
{
	int64_t back = 0;

	if (text[0] != '@')
		return -1;
	if (!text[1])
		return 0;
	if (text[1] != '-' || str_to_int(text + 2, 0, BACK_MAX, "@-N", &back, NULL) < 0)
		return -1;
	return back;
}

static int find_back(struct store *store, int64_t back, struct run **ret, struct err *err)
{
	struct store_filter filter = {.user = store->user, .limit = 1, .skip = (size_t)back};
	AUTO(run_list_done) struct run_list runs = {0};

	int r = store_list(store, &filter, &runs, err);
	if (r < 0)
		return r;
	if (runs.n == 0 && back == 0) {
		err_set(err, E_RUN_NOT_FOUND, "no runs yet");
		return err_hint(err, "dlrun submit -- python3 train.py");
	}
	if (runs.n == 0) {
		size_t all;

		filter.skip = 0;
		filter.limit = (size_t)back;
		r = store_list(store, &filter, &runs, err);
		if (r < 0)
			return r;
		all = runs.n;
		err_set(err, E_RUN_NOT_FOUND, "no run @-%lld: only %zu %s recorded",
			(long long)back, all, all == 1 ? "is" : "are");
		return err_hint(err, "dlrun ps -a");
	}
	*ret = TAKE(runs.v[0]);
	return 0;
}

/* Nearest first; an id may be misspelt as a whole or only in its name. */
struct near {
	unsigned distance;
	char *id;
};

static unsigned distance_to(const char *text, const char *id)
{
	AUTO_FREE char *name = mem_strndup(id, strlen(id) - RUN_SUFFIX - 1);
	unsigned whole = str_distance(text, id), part = str_distance(text, name);

	return whole < part ? whole : part;
}

static void keep_near(struct near near[NEAR_MAX], unsigned distance, const char *id)
{
	int at = NEAR_MAX;

	while (at > 0 && (!near[at - 1].id || near[at - 1].distance > distance))
		at--;
	if (at == NEAR_MAX)
		return;
	free(near[NEAR_MAX - 1].id);
	memmove(&near[at + 1], &near[at], (size_t)(NEAR_MAX - 1 - at) * sizeof(*near));
	near[at] = (struct near){distance, mem_strdup(id)};
}

static void add_nearest(struct store *store, const char *text, struct err *err)
{
	struct near near[NEAR_MAX] = {0};
	unsigned most = (unsigned)strlen(text) / 3 + 1;
	AUTO_STMT struct sqlite3_stmt *stmt = NULL;

	if (store_prepare(store, "SELECT id FROM runs ORDER BY seq DESC LIMIT ?1", &stmt, NULL) < 0)
		return;
	sqlite3_bind_int(stmt, 1, NEAR_LOOK);
	while (sqlite3_step(stmt) == SQLITE_ROW) {
		const char *id = (const char *)sqlite3_column_text(stmt, 0);
		unsigned distance = run_id_is_valid(id) ? distance_to(text, id) : UINT32_MAX;
		if (distance <= most)
			keep_near(near, distance, id);
	}
	for (int i = 0; i < NEAR_MAX; i++) {
		if (near[i].id)
			err_evidence(err, "there is %s", near[i].id);
		free(near[i].id);
	}
}

static int fail_missing(struct store *store, const char *text, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(text);

	err_set(err, E_RUN_NOT_FOUND, "there is no run '%s'", shown);
	if (strlen(text) < RUN_ID_SIZE + RUN_NAME_MAX)
		add_nearest(store, text, err);
	return err_hint(err, "dlrun ps -a");
}

static int fail_ambiguous(const char *text, const struct run_list *runs, struct err *err)
{
	err_set(err, E_USAGE, "'%s' is ambiguous, several runs match", text);
	for (size_t i = 0; i < runs->n; i++)
		err_evidence(
			err, "%s, %s", run_id(runs->v[i]), run_state_name(run_state(runs->v[i])));
	return err_hint(err, "dlrun show %s", run_id(runs->v[0]));
}

int store_resolve(struct store *store, const char *text, struct run **ret, struct err *err)
{
	struct store_filter filter = {.id_prefix = text, .limit = ERR_EVIDENCE_MAX};
	AUTO(run_list_done) struct run_list runs = {0};
	int64_t back = parse_back(text);

	if (back >= 0)
		return find_back(store, back, ret, err);
	if (run_id_is_valid(text) && store_get(store, text, ret, NULL) == 0)
		return 0;
	if (!*text || text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-")])
		return fail_missing(store, text, err);
	int r = store_list(store, &filter, &runs, err);
	if (r < 0)
		return r;
	if (runs.n == 0)
		return fail_missing(store, text, err);
	if (runs.n > 1)
		return fail_ambiguous(text, &runs, err);
	*ret = TAKE(runs.v[0]);
	return 0;
}
