/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of store.c: the database itself. A store is one connection; statements live only as long
 * as one call.
 */
#ifndef DLRUN_CORE_STORE_STORE_DB_H
#define DLRUN_CORE_STORE_STORE_DB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/store/store.h"

struct sqlite3;
struct sqlite3_stmt;

struct store {
	struct sqlite3 *db;
	char *path;
	char *user; /* whose runs @ means; NULL: everybody's */
	bool read_only;
	const char *network; /* the file system's name if it is a network one */
};

/* Set err to SQLite's newest error, in dlrun's words; returns the negative code. */
int store_fail(struct store *store, struct err *err);

int store_prepare(struct store *store, const char *sql, struct sqlite3_stmt **ret, struct err *err);
void store_finalize(struct sqlite3_stmt *stmt);
AUTO_POINTER(struct sqlite3_stmt, store_finalize)
#define AUTO_STMT AUTO(store_finalize_auto)
/* NULL binds NULL. The text must live as long as the statement. */
void store_bind_text(struct sqlite3_stmt *stmt, int at, const char *text);
/* 1: a row, 0: done. */
int store_step(struct store *store, struct sqlite3_stmt *stmt, struct err *err);

enum store_durability {
	STORE_ORDERED, /* survives the death of the process; a power cut may undo it */
	STORE_KNOWN,   /* the same, but every transaction before it survives a power cut */
	STORE_DURABLE, /* survives a power cut */
};
int store_begin(struct store *store, enum store_durability durability, struct err *err);
/* Commits if r is 0 or more, else rolls back; returns r or the failure of the commit. */
int store_end(struct store *store, int r, struct err *err);

/* The run of a row whose columns are doc, spec, revision. E_STORE naming id if it is damaged. */
int store_row(struct store *store, struct sqlite3_stmt *stmt, struct run **ret, struct err *err);

#endif
