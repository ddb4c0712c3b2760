/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of everything that dlrun needs on this machine. Each is a row of one table; a new one is a
 * function and its row.
 *
 * A check may hang (a dead file server, a driver that does not answer) or crash (a library on
 * damaged data), so each is run by a process of its own, all at once, with one deadline: what does
 * not answer is a warning and keeps nobody.
 */
#ifndef DLRUN_APP_DOCTOR_DOCTOR_H
#define DLRUN_APP_DOCTOR_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"

enum doctor_status { DOCTOR_OK, DOCTOR_WARNING, DOCTOR_PROBLEM };
/* "ok", "warning", "problem". */
const char *doctor_status_name(enum doctor_status status);

/* Result of a check. Strings are owned and may hold anything that was read: filter them before
 * display. */
struct doctor_row {
	const char *id; /* of the table, stays the same in all versions */
	enum doctor_status status;
	char *found;                           /* one line, never NULL in a finished row */
	char *cause;                           /* why that is bad; NULL with DOCTOR_OK */
	char *fix;                             /* one command or edit that can be pasted, or NULL */
	struct VEC_OF(struct doctor_row) more; /* further rows of the same check; they have none */
};
void doctor_row_done(struct doctor_row *row);
#define AUTO_DOCTOR_ROW AUTO(doctor_row_done)

/* Input of the checks. */
struct doctor {
	struct session *session;
	const struct err *error; /* why the session has no directories; NULL: it has them */
};

struct doctor_check {
	const char *id;
	const char *title; /* what it looks at, for people: "free space" */
	bool needs_dirs;   /* it cannot be run without dlrun's directories */
	/* Fills row, which is DOCTOR_OK and empty before. A failure becomes a warning. */
	int (*run)(const struct doctor *doctor, struct doctor_row *row, struct err *err);
};
extern const struct doctor_check doctor_checks[];
extern const size_t doctor_checks_n;
const struct doctor_check *doctor_find(const char *id); /* NULL: there is none */
/* Of a row, also of one that is no check of its own. */
const char *doctor_title(const char *id);

/* Run one check in this process; row is always filled. Blocks as long as it takes. */
void doctor_run_check(
	const struct doctor *doctor, const struct doctor_check *check, struct doctor_row *row);
/* {id, status, found, cause, fix}, and more (a list of such) if there are any. */
struct json *doctor_row_to_json(const struct doctor_row *row);

enum { DOCTOR_TIMEOUT_MS = 8000, DOCTOR_REPLY_MAX = 64 << 10 };

/* Run every check of the table by the command words… ID, which prints the row as JSON. rows has
 * room for doctor_checks_n; all of them are filled, in the table's order, after timeout_ms at
 * the latest; processes that are left are killed. interrupted: looked at while waiting.
 * E_CANCELED. */
int doctor_run_all(const char *const *words, int64_t timeout_ms, const volatile int *interrupted,
	struct doctor_row *rows, struct err *err);

/*
 * The text that is attached to a bug report: version, system, libraries, configuration and its
 * origin, targets, findings, the last runs. It holds no environment, no login and no secret that
 * doctor_redact knows; a person reads it before it is sent.
 */

enum { DOCTOR_REPORT_MAX = 4 << 20 };

/* rows: of doctor_run_all. Asks no server. What cannot be read is named in the text. */
void doctor_report(const struct doctor *doctor, const char *version, const struct doctor_row *rows,
	struct buf *out);

/* text as one line that may be published; the caller frees. home (or NULL) becomes ~, control
 * characters are escaped, and these become "(hidden)": the values of env (K=V, …, NULL) whose names
 * say that they are secrets, values behind such names in the text itself (NAME=…, NAME: …,
 * --NAME …), user and password of URLs and in front of hosts, queries of URLs, what follows
 * "Bearer" and "Basic", and words in the forms of well-known tokens. When in doubt too much is
 * hidden. Time grows with the length of text. An engine. */
char *doctor_redact(const char *text, const char *home, const char *const *env);

#endif
