/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/store.h"

#include <sqlite3.h>

#include "base/data/json.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "core/store/store_db.h"

enum { DOC_MAX = 8 << 20 };

/*
 * Rows
 */

static int parse_column(
	struct sqlite3_stmt *stmt, int column, const char *what, struct json **ret, struct err *err)
{
	const char *text = (const char *)sqlite3_column_text(stmt, column);
	int len = sqlite3_column_bytes(stmt, column);

	if (!text) {
		*ret = NULL;
		return 0;
	}
	return json_parse(text, (size_t)len, DOC_MAX, what, ret, err);
}

int store_row(struct store *store, struct sqlite3_stmt *stmt, struct run **ret, struct err *err)
{
	AUTO_JSON struct json *doc = NULL;
	AUTO_JSON struct json *spec = NULL;
	struct run *run;

	int r = parse_column(stmt, 0, "the record of a run", &doc, err);
	if (r == 0 && !doc)
		r = err_set(err, E_DATA, "the record of a run is empty");
	if (r == 0)
		r = parse_column(stmt, 1, "the specification of a run", &spec, err);
	if (r == 0)
		r = run_from_json(TAKE(doc), TAKE(spec), &run, err);
	if (r < 0) {
		AUTO_ERR struct err cause = {0};
		err_move(&cause, err);
		return err_set(err, E_STORE, "%s holds a damaged row: %s", store->path,
			cause.message ? cause.message : "unreadable");
	}
	run->revision = sqlite3_column_int64(stmt, 2);
	trace_note(TRACE_STORE, "record of %s read, revision %lld", run_id(run),
		(long long)run->revision);
	*ret = run;
	return 0;
}

/* The texts of a row; they live as long as this struct. */
struct row {
	struct buf doc, spec;
};

static void row_done(struct row *row)
{
	buf_done(&row->doc);
	buf_done(&row->spec);
}

static int row_init(struct row *row, const struct run *run, struct err *err)
{
	buf_init(&row->doc, DOC_MAX);
	buf_init(&row->spec, DOC_MAX);
	json_print(run->doc, &row->doc);
	if (run->spec)
		json_print(run->spec, &row->spec);
	int r = buf_check(&row->doc, "the record of the run", err);
	return r < 0 ? r : buf_check(&row->spec, "the specification of the run", err);
}

/* Parameters 1 to 7 of both statements that write a row. */
static void bind_row(
	struct sqlite3_stmt *stmt, const struct row *row, const struct run *run, int64_t revision)
{
	store_bind_text(stmt, 1, run_id(run));
	store_bind_text(stmt, 2, run_state_name(run_state(run)));
	store_bind_text(stmt, 3, run_target(run));
	store_bind_text(stmt, 4, json_get_str(json_get(run->doc, "origin"), "root"));
	sqlite3_bind_int64(stmt, 5, revision);
	store_bind_text(stmt, 6, row->doc.data);
	store_bind_text(stmt, 7, run->spec ? row->spec.data : NULL);
}

static int write_new(struct store *store, const struct run *run, struct err *err)
{
	static const char sql[] =
		"INSERT INTO runs (id, state, target, root, revision, doc, spec, submitted_ms, user)"
		" VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
	AUTO_STMT struct sqlite3_stmt *stmt = NULL;
	AUTO(row_done) struct row row = {0};

	int r = row_init(&row, run, err);
	if (r == 0)
		r = store_prepare(store, sql, &stmt, err);
	if (r < 0)
		return r;
	bind_row(stmt, &row, run, 1);
	sqlite3_bind_int64(stmt, 8, run_submitted_ms(run));
	store_bind_text(stmt, 9, json_get_str(run->doc, "user"));
	trace_note(TRACE_STORE, "record of %s is new", run_id(run));
	r = sqlite3_step(stmt);
	if (r == SQLITE_DONE)
		return 0;
	if ((r & 0xff) == SQLITE_CONSTRAINT)
		return err_set(err, E_RUN_NAME, "there is a run %s already", run_id(run));
	return store_fail(store, err);
}

/* 1 if the row was as run was read, 0 if another process was faster or the row is gone. */
static int write_over(struct store *store, const struct run *run, struct err *err)
{
	static const char sql[] = "UPDATE runs SET state = ?2, target = ?3, root = ?4,"
				  " revision = ?5 + 1, doc = ?6, spec = ?7"
				  " WHERE id = ?1 AND revision = ?5";
	AUTO_STMT struct sqlite3_stmt *stmt = NULL;
	AUTO(row_done) struct row row = {0};

	int r = row_init(&row, run, err);
	if (r == 0)
		r = store_prepare(store, sql, &stmt, err);
	if (r < 0)
		return r;
	bind_row(stmt, &row, run, run->revision);
	r = store_step(store, stmt, err);
	trace_note(TRACE_STORE, "record of %s written over revision %lld", run_id(run),
		(long long)run->revision);
	return r < 0 ? r : sqlite3_changes(store->db);
}

static int fail_changed(struct store *store, const char *id, struct err *err)
{
	(void)store;
	return err_set(err, E_STORE_CHANGED, "the record of %s was changed meanwhile", id);
}

/*
 * Writing
 */

int store_insert(struct store *store, struct run *run, struct err *err)
{
	int r = store_begin(store, STORE_ORDERED, err);

	if (r < 0)
		return r;
	r = store_end(store, write_new(store, run, err), err);
	if (r == 0)
		run->revision = 1;
	return r;
}

int store_insert_new(struct store *store, const struct run_list *runs, struct err *err)
{
	AUTO_ERR struct err fault = {0};
	int r = runs->n ? store_begin(store, STORE_DURABLE, err) : 0;

	if (r < 0 || runs->n == 0)
		return r;
	for (size_t i = 0; r == 0 && i < runs->n; i++) {
		err_clear(&fault);
		r = write_new(store, runs->v[i], &fault);
		if (r < 0 && fault.id == E_RUN_NAME)
			r = 0;
	}
	if (r < 0)
		err_move(err, &fault);
	return store_end(store, r, err);
}

int store_update_known(struct store *store, struct run *run, struct err *err)
{
	int r = store_begin(store, STORE_KNOWN, err);

	if (r < 0)
		return r;
	r = write_over(store, run, err);
	if (r == 0)
		r = fail_changed(store, run_id(run), err);
	r = store_end(store, r, err);
	if (r < 0)
		return r;
	run->revision++;
	return 0;
}

int store_update_all(struct store *store, const struct run_list *runs, struct err *err)
{
	AUTO_FREE bool *written = mem_alloc(runs->n + 1, sizeof(*written));
	int r = runs->n ? store_begin(store, STORE_DURABLE, err) : 0;

	if (r < 0 || runs->n == 0)
		return r;
	for (size_t i = 0; r >= 0 && i < runs->n; i++) {
		r = write_over(store, runs->v[i], err);
		written[i] = r > 0;
	}
	r = store_end(store, r, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < runs->n; i++)
		runs->v[i]->revision += written[i];
	return 0;
}

static int read_one(struct store *store, const char *id, struct run **ret, struct err *err)
{
	AUTO_STMT struct sqlite3_stmt *stmt = NULL;
	int r = store_prepare(
		store, "SELECT doc, spec, revision FROM runs WHERE id = ?1", &stmt, err);

	if (r < 0)
		return r;
	store_bind_text(stmt, 1, id);
	r = store_step(store, stmt, err);
	if (r == 0)
		return err_set(err, E_RUN_NOT_FOUND, "there is no run %s", id);
	return r < 0 ? r : store_row(store, stmt, ret, err);
}

static int change_row(struct store *store, const char *id, store_change_fn *fn, void *ctx,
	struct run **ret, struct err *err)
{
	AUTO_RUN struct run *run = NULL;

	int r = read_one(store, id, &run, err);
	if (r < 0)
		return r;
	BUG_ON(!run);
	r = fn(ctx, run, err);
	if (r > 0) {
		r = write_over(store, run, err);
		if (r == 0)
			r = fail_changed(store, id, err);
		run->revision++;
	}
	if (r < 0)
		return r;
	if (ret)
		*ret = TAKE(run);
	return 0;
}

int store_change(struct store *store, const char *id, store_change_fn *fn, void *ctx,
	struct run **ret, struct err *err)
{
	AUTO_RUN struct run *run = NULL;
	int r = store_begin(store, STORE_DURABLE, err);

	if (r < 0)
		return r;
	r = store_end(store, change_row(store, id, fn, ctx, &run, err), err);
	if (r == 0 && ret)
		*ret = TAKE(run);
	return r;
}

int store_remove(struct store *store, const char *id, struct err *err)
{
	AUTO_STMT struct sqlite3_stmt *stmt = NULL;
	int r = store_begin(store, STORE_DURABLE, err);

	if (r < 0)
		return r;
	r = store_prepare(store, "DELETE FROM runs WHERE id = ?1", &stmt, err);
	if (r == 0) {
		store_bind_text(stmt, 1, id);
		r = store_step(store, stmt, err);
	}
	if (r == 0 && sqlite3_changes(store->db) == 0)
		r = err_set(err, E_RUN_NOT_FOUND, "there is no run %s", id);
	store_finalize(TAKE(stmt));
	return store_end(store, r, err);
}

/*
 * Reading
 */

int store_get(struct store *store, const char *id, struct run **ret, struct err *err)
{
	return read_one(store, id, ret, err);
}

int store_count(struct store *store, size_t *ret, struct err *err)
{
	AUTO_STMT struct sqlite3_stmt *stmt = NULL;
	int r = store_prepare(store, "SELECT count(*) FROM runs", &stmt, err);

	if (r == 0)
		r = store_step(store, stmt, err);
	if (r > 0)
		*ret = (size_t)sqlite3_column_int64(stmt, 0);
	return r < 0 ? r : 0;
}

/* ?4 || '{': the first text behind all that begin with ?4, because '{' follows 'z'. */
#define LIST_SQL(condition)                                                                        \
	"SELECT doc, spec, revision FROM runs WHERE " condition                                    \
	" AND (?1 = 0 OR submitted_ms >= ?1) AND (?2 IS NULL OR target = ?2)"                      \
	" AND (?3 IS NULL OR user = ?3) AND (?4 IS NULL OR (id >= ?4 AND id < ?4 || '{'))"         \
	" ORDER BY seq DESC LIMIT ?5 OFFSET ?6"

static const char list_all[] = LIST_SQL("1");
/* The condition of the index runs_unfinished, so that it is used. */
static const char list_unfinished[] =
	LIST_SQL("state NOT IN ('succeeded', 'failed', 'cancelled', 'lost')");

int store_list(struct store *store, const struct store_filter *filter, struct run_list *ret,
	struct err *err)
{
	AUTO_STMT struct sqlite3_stmt *stmt = NULL;
	int r = store_prepare(
		store, filter->unfinished_only ? list_unfinished : list_all, &stmt, err);

	if (r < 0)
		return r;
	sqlite3_bind_int64(stmt, 1, filter->since_ms);
	store_bind_text(stmt, 2, filter->target);
	store_bind_text(stmt, 3, filter->user);
	store_bind_text(stmt, 4, filter->id_prefix);
	sqlite3_bind_int64(stmt, 5, filter->limit ? (int64_t)filter->limit : -1);
	sqlite3_bind_int64(stmt, 6, (int64_t)filter->skip);
	while ((r = store_step(store, stmt, err)) > 0) {
		AUTO_ERR struct err damaged = {0};
		struct run *run;
		/* Skip a damaged row: it must not hide the others. */
		if (store_row(store, stmt, &run, &damaged) < 0)
			log_note("%s", damaged.message);
		else
			*vec_push(ret) = run;
	}
	return r;
}
