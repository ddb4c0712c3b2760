/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "core/record/group.h"

struct store {
	struct sqlite3 *db;
	char *path;
	char *user; /* whose runs @ means; NULL: everybody's */
	bool read_only;
	const char *network; /* the file system's name if it is a network one */
};

enum store_durability {
	STORE_ORDERED, /* survives the death of the process; a power cut may undo it */
	STORE_KNOWN,   /* the same, but every transaction before it survives a power cut */
	STORE_DURABLE, /* survives a power cut */
};
enum {
	BUSY_TIMEOUT_MS = 30 * 1000,
	VALUE_MAX = 16 << 20,        /* bytes of one column */
	APPLICATION_ID = 0x646c7275, /* "dlru", for file(1) */
};

/* Statements that migrate to each version of the schema; rows are only added. Statements that a
 * newer dlrun must not change, because an older one may still use the file, stay as they are. */
static const char *const migrations[] = {
	"CREATE TABLE runs ("
	" seq INTEGER PRIMARY KEY," /* the order of submission, which no clock decides */
	" id TEXT NOT NULL UNIQUE,"
	" submitted_ms INTEGER NOT NULL,"
	" state TEXT NOT NULL,"
	" target TEXT,"
	" root TEXT,"
	" user TEXT,"
	" revision INTEGER NOT NULL,"
	" doc TEXT NOT NULL,"
	" spec TEXT"
	") STRICT;"
	"CREATE INDEX runs_unfinished ON runs (seq)"
	" WHERE state NOT IN ('succeeded', 'failed', 'cancelled', 'lost');",
};

enum { VERSION = ARRAY_LEN(migrations) };

/*
 * Failures
 */

static int store_fail_damaged(struct store *store, struct err *err)
{
	AUTO_BUF struct buf quoted = buf_with(64 * 1024);

	err_set(err, E_STORE, "%s is damaged: %s", store->path, sqlite3_errmsg(store->db));
	err_evidence(err, "logs and results lie beside it in runs/ and are not touched");
	str_shell_quote(&quoted, store->path);
	return err_hint(err, "mv %s %s.damaged", quoted.data, quoted.data);
}

static int fail_system(struct store *store, struct err *err)
{
	int errnum = sqlite3_system_errno(store->db);

	if (errnum == ENOLCK || errnum == EOPNOTSUPP)
		err_set_errno(err, E_STORE, errnum, "%s cannot be locked", store->path);
	else if (errnum)
		fs_error(err, errnum, "%s", store->path);
	else
		err_set(err, E_STORE, "%s: %s", store->path, sqlite3_errmsg(store->db));
	if (store->network)
		err_evidence(err, "it lies on a network file system (%s)", store->network);
	return err_hint(err, "export XDG_STATE_HOME=/var/tmp/$USER");
}

/* Where locks are not supported the lock is a directory, which a killed process leaves behind.
 * Whether its owner lives on another machine cannot be known here. */
static int fail_busy(const struct store *store, struct err *err)
{
	AUTO_FREE char *lock = mem_printf("%s.lock", store->path);
	AUTO_BUF struct buf quoted = buf_with(2 * PATH_MAX);

	int r = err_set(err, E_IO_LOCK, "another dlrun holds %s", store->path);
	if (!store->network || access(lock, F_OK))
		return r;
	str_shell_quote(&quoted, lock);
	err_evidence(err, "or one that was killed has left %s", lock);
	err_evidence(err, "if no dlrun runs on any machine with this home, remove it");
	return err_hint(err, "rmdir %s", quoted.data);
}

static int store_fail(struct store *store, struct err *err)
{
	switch (sqlite3_errcode(store->db)) {
	case SQLITE_NOMEM:
		mem_out(0);
	case SQLITE_FULL:
		return err_set(err, E_IO_FULL, "no space is left to write %s", store->path);
	case SQLITE_READONLY:
		return err_set(err, E_IO_PERMISSION, "%s cannot be written", store->path);
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
		return fail_busy(store, err);
	case SQLITE_CANTOPEN:
	case SQLITE_IOERR:
	case SQLITE_PERM:
		return fail_system(store, err);
	case SQLITE_CORRUPT:
	case SQLITE_NOTADB:
	case SQLITE_FORMAT:
		return store_fail_damaged(store, err);
	default:
		return err_set(err, E_STORE, "%s: %s", store->path, sqlite3_errmsg(store->db));
	}
}

/*
 * Statements
 */

static int run_sql(struct store *store, const char *sql, struct err *err)
{
	if (sqlite3_exec(store->db, sql, NULL, NULL, NULL) != SQLITE_OK)
		return store_fail(store, err);
	return 0;
}

static int store_prepare(
	struct store *store, const char *sql, struct sqlite3_stmt **ret, struct err *err)
{
	if (sqlite3_prepare_v2(store->db, sql, -1, ret, NULL) != SQLITE_OK)
		return store_fail(store, err);
	return 0;
}

static void store_finalize(struct sqlite3_stmt *stmt)
{
	sqlite3_finalize(stmt);
}

AUTO_POINTER(struct sqlite3_stmt, store_finalize)
#define AUTO_STMT AUTO(store_finalize_auto)

static void store_bind_text(struct sqlite3_stmt *stmt, int at, const char *text)
{
	BUG_ON(sqlite3_bind_text(stmt, at, text, -1, SQLITE_STATIC) == SQLITE_RANGE);
}

static int store_step(struct store *store, struct sqlite3_stmt *stmt, struct err *err)
{
	switch (sqlite3_step(stmt)) {
	case SQLITE_ROW:
		return 1;
	case SQLITE_DONE:
		return 0;
	default:
		return store_fail(store, err);
	}
}

/* NORMAL and FULL leave the removal of the journal in the cache: if it comes back, it undoes the
 * last transaction. FULL also syncs the journal before its header says that it is complete. */
static int store_begin(struct store *store, enum store_durability durability, struct err *err)
{
	static const char *const synchronous[] = {
		[STORE_ORDERED] = "PRAGMA synchronous = NORMAL",
		[STORE_KNOWN] = "PRAGMA synchronous = FULL",
		[STORE_DURABLE] = "PRAGMA synchronous = EXTRA",
	};
	int r = run_sql(store, synchronous[durability], err);

	trace_note(TRACE_STORE, "%s: waits for the lock", store->path);
	if (r == 0)
		r = run_sql(store, "BEGIN IMMEDIATE", err);
	trace_note(TRACE_STORE, "%s: %s", store->path, r < 0 ? "not locked" : "locked");
	return r;
}

static int store_end(struct store *store, int r, struct err *err)
{
	if (r >= 0) {
		int failed = run_sql(store, "COMMIT", err);
		trace_note(
			TRACE_STORE, "%s: %s", store->path, failed ? "not committed" : "committed");
		if (failed == 0)
			return r;
		r = failed;
	}
	/* Some failures have ended the transaction already; then this one fails, which is fine. */
	sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
	return r;
}

/*
 * Opening
 */

static int pragma_number(struct store *store, const char *sql, int *ret, struct err *err)
{
	AUTO_STMT struct sqlite3_stmt *stmt = NULL;
	int r = store_prepare(store, sql, &stmt, err);

	if (r == 0)
		r = store_step(store, stmt, err);
	if (r > 0)
		*ret = sqlite3_column_int(stmt, 0);
	return r < 0 ? r : 0;
}

static int store_check_version(struct store *store, int *ret, struct err *err)
{
	int version = 0, r = pragma_number(store, "PRAGMA user_version", &version, err);

	if (r < 0)
		return r;
	if (version < 0 || version > VERSION) {
		err_set(err, E_STORE_VERSION,
			"%s was written by a newer dlrun (format %d, this one reads up to %d)",
			store->path, version, VERSION);
		err_evidence(err, "run that dlrun, or use another directory with this one");
		return err_hint(err, "export XDG_STATE_HOME=/var/tmp/$USER");
	}
	*ret = version;
	return 0;
}

static int store_apply(struct store *store, int from, struct err *err)
{
	AUTO_FREE char *stamp = mem_printf(
		"PRAGMA user_version = %d; PRAGMA application_id = %d", VERSION, APPLICATION_ID);
	int r = 0;

	for (int i = from; r == 0 && i < VERSION; i++)
		r = run_sql(store, migrations[i], err);
	return r < 0 ? r : run_sql(store, stamp, err);
}

static int migrate(struct store *store, struct err *err)
{
	int version, r = store_check_version(store, &version, err);

	if (r < 0 || version == VERSION)
		return r;
	if (store->read_only)
		return err_set(err, E_IO_PERMISSION, "%s cannot be written", store->path);
	r = store_begin(store, STORE_DURABLE, err);
	if (r < 0)
		return r;
	/* Another process may have migrated the database meanwhile. */
	r = store_check_version(store, &version, err);
	if (r == 0 && version < VERSION)
		r = store_apply(store, version, err);
	return store_end(store, r, err);
}

/* A file that others wrote is only data: no code of its schema runs. */
static int harden(struct store *store, struct err *err)
{
	static const struct {
		int what, value;
	} settings[] = {
		{SQLITE_DBCONFIG_DEFENSIVE, 1},
		{SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0},
		{SQLITE_DBCONFIG_ENABLE_TRIGGER, 0},
		{SQLITE_DBCONFIG_ENABLE_VIEW, 0},
		{SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(settings); i++)
		sqlite3_db_config(store->db, settings[i].what, settings[i].value, NULL);
	sqlite3_limit(store->db, SQLITE_LIMIT_LENGTH, VALUE_MAX);
	sqlite3_limit(store->db, SQLITE_LIMIT_ATTACHED, 0);
	sqlite3_busy_timeout(store->db, BUSY_TIMEOUT_MS);
	return run_sql(store,
		"PRAGMA cell_size_check = ON; PRAGMA temp_store = MEMORY;"
		"PRAGMA journal_mode = DELETE",
		err);
}

/* SQLite would make it readable for the group. Closed again before SQLite opens it, because closing
 * any descriptor of a file drops the process's locks on it. */
static int store_make_file(struct store *store, bool *ret_lockable, struct err *err)
{
	struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
	AUTO_FD int fd = open(store->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

	if (fd < 0 && (errno == EACCES || errno == EROFS)) {
		int saved = errno;
		fd = open(store->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			return fs_error(err, saved, "%s", store->path);
		store->read_only = true;
	}
	if (fd < 0)
		return fs_error(err, errno, "%s", store->path);
	store->network = os_network_fs(fd);
	*ret_lockable = !store->network || fcntl(fd, F_SETLK, &lock) == 0 ||
			(errno != ENOLCK && errno != EOPNOTSUPP);
	return 0;
}

static int store_open_file(struct store *store, struct err *err)
{
	int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_NOFOLLOW;
	bool lockable = true;
	int r = store_make_file(store, &lockable, err);

	if (r < 0)
		return r;
	if (!lockable)
		log_note("%s: no locks on this %s, a lock directory is used", store->path,
			store->network);
	flags |= store->read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE;
	r = sqlite3_open_v2(store->path, &store->db, flags, lockable ? NULL : "unix-dotfile");
	if (r != SQLITE_OK && !store->db)
		mem_out(0);
	return r == SQLITE_OK ? 0 : store_fail(store, err);
}

int store_open(const char *dir, struct store **ret, struct err *err)
{
	AUTO_STORE struct store *store = mem_alloc(1, sizeof(*store));

	store->path = mem_printf("%s/runs.db", dir);
	int r = store_open_file(store, err);
	if (r == 0)
		r = harden(store, err);
	if (r == 0)
		r = migrate(store, err);
	if (r < 0)
		return r;
	*ret = TAKE(store);
	return 0;
}

void store_close(struct store *store)
{
	if (!store)
		return;
	sqlite3_close(store->db);
	free(store->path);
	free(store->user);
	free(store);
}

void store_set_user(struct store *store, const char *user)
{
	REPLACE(store->user, mem_strdup(user));
}

const char *store_network(const struct store *store)
{
	return store->network;
}

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

static int store_row(
	struct store *store, struct sqlite3_stmt *stmt, struct run **ret, struct err *err)
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

static int store_fail_changed(struct store *store UNUSED, const char *id, struct err *err)
{
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

/* Runs whose ids are taken stay as they are. */
static int store_write_new(struct store *store, const struct run_list *runs, struct err *err)
{
	AUTO_ERR struct err error = {0};
	int r = 0;

	for (size_t i = 0; r == 0 && i < runs->n; i++) {
		err_clear(&error);
		r = write_new(store, runs->v[i], &error);
		if (r < 0 && error.id == E_RUN_NAME)
			r = 0;
	}
	return r < 0 ? err_move(err, &error) : 0;
}

int store_insert_new(struct store *store, const struct run_list *runs, struct err *err)
{
	int r = runs->n ? store_begin(store, STORE_DURABLE, err) : 0;

	if (r < 0 || runs->n == 0)
		return r;
	return store_end(store, store_write_new(store, runs, err), err);
}

int store_update_known(struct store *store, struct run *run, struct err *err)
{
	int r = store_begin(store, STORE_KNOWN, err);

	if (r < 0)
		return r;
	r = write_over(store, run, err);
	if (r == 0)
		r = store_fail_changed(store, run_id(run), err);
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

static int store_read_one(struct store *store, const char *id, struct run **ret, struct err *err)
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

	int r = store_read_one(store, id, &run, err);
	if (r < 0)
		return r;
	BUG_ON(!run);
	r = fn(ctx, run, err);
	if (r > 0) {
		r = write_over(store, run, err);
		if (r == 0)
			r = store_fail_changed(store, id, err);
		run->revision++;
	}
	if (r < 0)
		return r;
	if (ret)
		*ret = TAKE(run);
	return 0;
}

int store_change_and_insert(struct store *store, const char *id, store_change_fn *fn, void *ctx,
	const struct run_list *others, struct run **ret, struct err *err)
{
	AUTO_RUN struct run *run = NULL;
	int r = store_begin(store, STORE_DURABLE, err);

	if (r < 0)
		return r;
	r = change_row(store, id, fn, ctx, &run, err);
	if (r == 0)
		r = store_write_new(store, others, err);
	r = store_end(store, r, err);
	if (r == 0 && ret)
		*ret = TAKE(run);
	return r;
}

int store_change(struct store *store, const char *id, store_change_fn *fn, void *ctx,
	struct run **ret, struct err *err)
{
	const struct run_list none = {0};

	return store_change_and_insert(store, id, fn, ctx, &none, ret, err);
}

int store_change_all(
	struct store *store, struct run_list *runs, store_change_fn *fn, void *ctx, struct err *err)
{
	struct run **changed = mem_alloc(runs->n + 1, sizeof(*changed));
	int r = store_begin(store, STORE_DURABLE, err);

	if (r == 0) {
		for (size_t i = 0; r == 0 && i < runs->n; i++)
			r = change_row(store, run_id(runs->v[i]), fn, ctx, &changed[i], err);
		r = store_end(store, r, err);
	}
	for (size_t i = 0; i < runs->n; i++) {
		run_free(r == 0 ? runs->v[i] : changed[i]);
		runs->v[i] = r == 0 ? changed[i] : runs->v[i];
	}
	free(changed);
	return r;
}

static int store_remove_row(struct store *store, const char *id, struct err *err)
{
	AUTO_STMT struct sqlite3_stmt *stmt = NULL;
	int r = store_prepare(store, "DELETE FROM runs WHERE id = ?1", &stmt, err);

	if (r < 0)
		return r;
	store_bind_text(stmt, 1, id);
	return store_step(store, stmt, err);
}

int store_remove(struct store *store, const char *id, struct err *err)
{
	int r = store_begin(store, STORE_DURABLE, err);

	if (r < 0)
		return r;
	r = store_remove_row(store, id, err);
	if (r == 0 && sqlite3_changes(store->db) == 0)
		r = err_set(err, E_RUN_NOT_FOUND, "there is no run %s", id);
	return store_end(store, r, err);
}

int store_remove_all(struct store *store, const struct strv *ids, struct err *err)
{
	int r = store_begin(store, STORE_DURABLE, err);

	if (r < 0)
		return r;
	for (size_t i = 0; r == 0 && i < ids->n; i++)
		r = store_remove_row(store, ids->v[i], err);
	return store_end(store, r, err);
}

/*
 * Reading
 */

int store_get(struct store *store, const char *id, struct run **ret, struct err *err)
{
	return store_read_one(store, id, ret, err);
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

/* ?4 || '{': the first text behind all that begin with ?4, because '{' follows 'z'. An id is its
 * name, '-' and the suffix; '.' follows '-'. ?8: how the text of a record has its group; other
 * programs put a blank behind a colon. */
#define LIST_SQL(condition)                                                                        \
	"SELECT doc, spec, revision FROM runs WHERE " condition                                    \
	" AND (?1 = 0 OR submitted_ms >= ?1) AND (?2 IS NULL OR target = ?2)"                      \
	" AND (?3 IS NULL OR user = ?3) AND (?4 IS NULL OR (id >= ?4 AND id < ?4 || '{'))"         \
	" AND (?7 IS NULL OR (id > ?7 || '-' AND id < ?7 || '.' AND length(id) = length(?7) + 6))" \
	" AND (?8 IS NULL OR instr(doc, '\"group\":' || ?8) > 0"                                   \
	" OR instr(doc, '\"group\": ' || ?8) > 0)"                                                 \
	" ORDER BY seq DESC LIMIT ?5 OFFSET ?6"

static const char list_all[] = LIST_SQL("1");
/* The condition of the index runs_unfinished, so that it is used. */
static const char list_unfinished[] =
	LIST_SQL("state NOT IN ('succeeded', 'failed', 'cancelled', 'lost')");

_Static_assert(RUN_SUFFIX + 1 == 6, "the statement has this number");

/* The name of a group as a record has it; !is_whole: the beginning of a name. The caller frees. */
static char *store_group_text(const char *group, bool is_whole)
{
	AUTO_JSON struct json *name = json_string(group);
	AUTO_BUF struct buf text = buf_with(DOC_MAX);

	json_print(name, &text);
	if (!is_whole)
		buf_truncate(&text, text.len - 1);
	return buf_take(&text);
}

/* group_text: of store_group_text, or NULL. The text may stand elsewhere in a record, too: the
 * caller compares. */
static int store_list_text(struct store *store, const struct store_filter *filter,
	const char *group_text, struct run_list *ret, struct err *err)
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
	store_bind_text(stmt, 7, filter->name);
	store_bind_text(stmt, 8, group_text);
	while ((r = store_step(store, stmt, err)) > 0) {
		AUTO_ERR struct err damaged = {0};
		struct run *run;
		/* Skip a damaged row: it must not hide the others. */
		if (store_row(store, stmt, &run, &damaged) < 0)
			log_note("%s", damaged.message);
		else if (filter->group && !str_eq(run_group(run), filter->group))
			run_free(run);
		else
			*vec_push(ret) = run;
	}
	return r;
}

int store_list(struct store *store, const struct store_filter *filter, struct run_list *ret,
	struct err *err)
{
	AUTO_FREE char *group = filter->group ? store_group_text(filter->group, true) : NULL;

	return store_list_text(store, filter, group, ret, err);
}

/*
 * RUN as users write it (cli.md, "Rules for every command").
 */

enum { BACK_MAX = 1000000, NEAR_MAX = ERR_EVIDENCE_MAX, NEAR_READ = 1000 };

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
	sqlite3_bind_int(stmt, 1, NEAR_READ);
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

static int store_fail_missing(struct store *store, const char *text, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(text);

	err_set(err, E_RUN_NOT_FOUND, "there is no run '%s'", shown);
	if (strlen(text) < RUN_ID_SIZE + RUN_NAME_MAX)
		add_nearest(store, text, err);
	return err_hint(err, "dlrun ps -a");
}

/* Candidates are shown, the newest first: runs, and groups that begin like text. */
static int fail_ambiguous(const char *text, const struct run_list *runs, struct err *err)
{
	AUTO_STRV struct strv groups = {0};

	err_set(err, E_USAGE, "'%s' is ambiguous, several runs match", text);
	for (size_t i = 0; i < runs->n && err && err->n_evidence < ERR_EVIDENCE_MAX; i++) {
		const struct run *run = runs->v[i];
		const char *group = run_group(run);
		bool is_member = group && str_starts(group, text);

		if (!is_member)
			err_evidence(err, "%s, %s", run_id(run), run_state_name(run_state(run)));
		else if (strv_find(&groups, group) < 0)
			err_evidence(err, "%s, a study", group);
		if (is_member)
			strv_add(&groups, group);
	}
	return err_hint(err, "dlrun show %s", groups.n ? groups.v[0] : run_id(runs->v[0]));
}

/* From the newest first to the order of members. */
static void store_sort_members(struct run_list *runs)
{
	for (size_t i = 0; i < runs->n / 2; i++) {
		struct run *run = runs->v[i];
		runs->v[i] = runs->v[runs->n - 1 - i];
		runs->v[runs->n - 1 - i] = run;
	}
	group_sort(runs);
}

/* Members in their order; *ret_group is set if there are any. */
static int store_find_group(struct store *store, const char *group, struct run_list *ret,
	char **ret_group, struct err *err)
{
	const struct store_filter filter = {.group = group};
	int r = store_list(store, &filter, ret, err);

	store_sort_members(ret);
	if (r == 0 && ret->n)
		*ret_group = mem_strdup(group);
	return r;
}

static bool store_are_of_group(const struct run_list *runs, const char *group)
{
	vec_foreach (struct run *, run, runs)
		if (!str_eq(run_group(*run), group))
			return false;
	return true;
}

/* No id begins so. */
static int store_find_group_prefix(struct store *store, const char *text, struct run_list *ret,
	char **ret_group, struct err *err)
{
	AUTO_FREE char *prefix = store_group_text(text, false);
	AUTO(run_list_done) struct run_list runs = {0}, members = {0};
	int r = store_list_text(store, &(struct store_filter){0}, prefix, &runs, err);

	vec_foreach (struct run *, run, &runs)
		if (run_group(*run) && str_starts(run_group(*run), text))
			*vec_push(&members) = TAKE(*run);
	if (r < 0)
		return r;
	if (members.n == 0)
		return store_fail_missing(store, text, err);
	if (!store_are_of_group(&members, run_group(members.v[0])))
		return fail_ambiguous(text, &members, err);
	store_sort_members(&members);
	*ret_group = mem_strdup(run_group(members.v[0]));
	*ret = members;
	members = (struct run_list){0};
	return 0;
}

static int store_count_prefix(struct store *store, const char *text, size_t *ret, struct err *err)
{
	static const char sql[] = "SELECT count(*) FROM runs WHERE id >= ?1 AND id < ?1 || '{'";
	AUTO_STMT struct sqlite3_stmt *stmt = NULL;
	int r = store_prepare(store, sql, &stmt, err);

	if (r < 0)
		return r;
	store_bind_text(stmt, 1, text);
	r = store_step(store, stmt, err);
	*ret = r > 0 ? (size_t)sqlite3_column_int64(stmt, 0) : 0;
	return r < 0 ? r : 0;
}

/* group: of the newest runs whose ids begin with text; it must be that of all. */
static int store_find_only_group(struct store *store, const char *text, const char *group,
	struct run_list *ret, char **ret_group, struct err *err)
{
	const struct store_filter filter = {.id_prefix = text};
	AUTO(run_list_done) struct run_list members = {0}, all = {0};
	AUTO_FREE char *found = NULL;
	size_t n = 0;
	int r = store_find_group(store, group, &members, &found, err);

	if (r == 0)
		r = store_count_prefix(store, text, &n, err);
	vec_foreach (struct run *, run, &members)
		n -= str_starts(run_id(*run), text);
	if (r == 0 && n)
		r = store_list(store, &filter, &all, err);
	if (r == 0 && !store_are_of_group(&all, group))
		r = fail_ambiguous(text, &all, err);
	if (r < 0)
		return r;
	*ret_group = TAKE(found);
	*ret = members;
	members = (struct run_list){0};
	return 0;
}

/* text has only letters of ids. */
static int store_find_prefix(struct store *store, const char *text, struct run_list *ret,
	char **ret_group, struct err *err)
{
	const struct store_filter filter = {.id_prefix = text, .limit = ERR_EVIDENCE_MAX};
	AUTO(run_list_done) struct run_list runs = {0};
	int r = store_list(store, &filter, &runs, err);

	if (r < 0)
		return r;
	if (runs.n == 0)
		return store_find_group_prefix(store, text, ret, ret_group, err);
	if (runs.n == 1) {
		*vec_push(ret) = TAKE(runs.v[0]);
		return 0;
	}
	const char *group = run_group(runs.v[0]);
	if (!group || !str_starts(group, text) || !store_are_of_group(&runs, group))
		return fail_ambiguous(text, &runs, err);
	return store_find_only_group(store, text, group, ret, ret_group, err);
}

int store_resolve_group(struct store *store, const char *text, struct run_list *ret,
	char **ret_group, struct err *err)
{
	int r = store_find_group(store, text, ret, ret_group, err);

	return r < 0 || ret->n ? r : store_find_group_prefix(store, text, ret, ret_group, err);
}

int store_resolve_all(struct store *store, const char *text, struct run_list *ret, char **ret_group,
	struct err *err)
{
	const struct store_filter named = {.name = text, .limit = 2};
	AUTO(run_list_done) struct run_list runs = {0};
	int64_t back = parse_back(text);
	struct run *run = NULL;
	int r;

	*ret_group = NULL;
	if (back >= 0) {
		r = find_back(store, back, &run, err);
		if (r == 0)
			*vec_push(ret) = run;
		return r;
	}
	if (run_id_is_valid(text) && store_get(store, text, &run, NULL) == 0) {
		*vec_push(ret) = run;
		return 0;
	}
	if (!*text)
		return store_fail_missing(store, text, err);
	r = store_find_group(store, text, ret, ret_group, err);
	if (r < 0 || ret->n)
		return r;
	if (text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-")])
		return store_fail_missing(store, text, err);
	r = store_list(store, &named, &runs, err);
	if (r < 0)
		return r;
	if (runs.n != 1)
		return store_find_prefix(store, text, ret, ret_group, err);
	*vec_push(ret) = TAKE(runs.v[0]);
	return 0;
}

int store_resolve(struct store *store, const char *text, struct run **ret, struct err *err)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FREE char *group = NULL;
	int r = store_resolve_all(store, text, &runs, &group, err);

	if (r == 0 && runs.n > 1) {
		err_set(err, E_RUN_STUDY, "%s is a study of %zu runs", group, runs.n);
		for (size_t i = 0; i < runs.n && i < ERR_EVIDENCE_MAX; i++)
			err_evidence(err, "%s, %s", run_id(runs.v[i]),
				run_state_name(run_state(runs.v[i])));
		r = err_hint(err, "dlrun show %s", run_id(runs.v[0]));
	}
	if (r == 0)
		*ret = TAKE(runs.v[0]);
	return r;
}

/* Ask for one problem only: it is enough to know that the database is damaged. */
int store_check(struct store *store, struct err *err)
{
	AUTO_STMT struct sqlite3_stmt *stmt = NULL;

	int r = store_prepare(store, "PRAGMA quick_check(1)", &stmt, err);
	if (r == 0)
		r = store_step(store, stmt, err);
	if (r <= 0)
		return r;
	const char *result = (const char *)sqlite3_column_text(stmt, 0);
	if (str_eq(result, "ok"))
		return 0;
	AUTO_FREE char *shown = str_shown(result ? result : "");
	return err_set(err, E_STORE, "%s is damaged: %s", store->path, shown);
}
