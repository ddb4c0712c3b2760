/* SPDX-License-Identifier: Apache-2.0 */
#include <sqlite3.h>

#include "base/util/str.h"
#include "core/store/store_db.h"

/* Ask for one problem only: it is enough to know that the database is damaged. */
int store_check(struct store *store, struct err *err)
{
	AUTO_STMT struct sqlite3_stmt *stmt = NULL;

	int r = store_prepare(store, "PRAGMA quick_check(1)", &stmt, err);
	if (r == 0)
		r = store_step(store, stmt, err);
	if (r <= 0)
		return r;
	const char *verdict = (const char *)sqlite3_column_text(stmt, 0);
	if (str_eq(verdict, "ok"))
		return 0;
	AUTO_FREE char *shown = str_shown(verdict ? verdict : "");
	return err_set(err, E_STORE, "%s is damaged: %s", store->path, shown);
}
