/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/store_db.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"

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

enum { VERSION = sizeof(migrations) / sizeof(*migrations) };

/*
 * Failures
 */

static int fail_damaged(struct store *store, struct err *err)
{
	AUTO_BUF struct buf quoted;

	err_set(err, E_STORE, "%s is damaged: %s", store->path, sqlite3_errmsg(store->db));
	err_evidence(err, "logs and results lie beside it in runs/ and are not touched");
	buf_init(&quoted, 64 * 1024);
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
	AUTO_BUF struct buf quoted;

	buf_init(&quoted, 2 * PATH_MAX);
	int r = err_set(err, E_IO_LOCK, "another dlrun holds %s", store->path);
	if (!store->network || access(lock, F_OK))
		return r;
	str_shell_quote(&quoted, lock);
	err_evidence(err, "or one that was killed has left %s", lock);
	err_evidence(err, "if no dlrun runs on any machine with this home, remove it");
	return err_hint(err, "rmdir %s", quoted.data);
}

int store_fail(struct store *store, struct err *err)
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
		return fail_damaged(store, err);
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

int store_prepare(struct store *store, const char *sql, struct sqlite3_stmt **ret, struct err *err)
{
	if (sqlite3_prepare_v2(store->db, sql, -1, ret, NULL) != SQLITE_OK)
		return store_fail(store, err);
	return 0;
}

void store_finalize(struct sqlite3_stmt *stmt)
{
	sqlite3_finalize(stmt);
}

void store_bind_text(struct sqlite3_stmt *stmt, int at, const char *text)
{
	BUG_ON(sqlite3_bind_text(stmt, at, text, -1, SQLITE_STATIC) == SQLITE_RANGE);
}

int store_step(struct store *store, struct sqlite3_stmt *stmt, struct err *err)
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
int store_begin(struct store *store, enum store_durability durability, struct err *err)
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

int store_end(struct store *store, int r, struct err *err)
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

static int check_version(struct store *store, int *ret, struct err *err)
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

static int apply(struct store *store, int from, struct err *err)
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
	int version, r = check_version(store, &version, err);

	if (r < 0 || version == VERSION)
		return r;
	if (store->read_only)
		return err_set(err, E_IO_PERMISSION, "%s cannot be written", store->path);
	r = store_begin(store, STORE_DURABLE, err);
	if (r < 0)
		return r;
	/* Another process may have migrated the database meanwhile. */
	r = check_version(store, &version, err);
	if (r == 0 && version < VERSION)
		r = apply(store, version, err);
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

	for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++)
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
static int make_file(struct store *store, bool *ret_lockable, struct err *err)
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

static int open_file(struct store *store, struct err *err)
{
	int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_NOFOLLOW;
	bool lockable = true;
	int r = make_file(store, &lockable, err);

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
	int r = open_file(store, err);
	if (r == 0)
		r = harden(store, err);
	if (r == 0)
		r = migrate(store, err);
	if (r < 0)
		return r;
	trace_note(TRACE_STORE, "%s: open", store->path);
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
	free(store->user);
	store->user = mem_strdup(user);
}

const char *store_network(const struct store *store)
{
	return store->network;
}
