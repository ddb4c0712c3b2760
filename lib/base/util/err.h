/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors as values.
 *
 * A function that can fail returns 0 (an iterator: 1 for an item, 0 at its end) or a negative
 * `enum err_code`, and fills the caller's `struct err`. The cause is written once, where it is
 * known (err_set); callers add what they were doing (err_prefix); cli/ prints once. A caller that
 * recovers calls err_clear. Nothing in lib/ prints or exits, except mem.c and err_bug.
 *
 * The id picks the code, the exit status and the page of dlrun-errors(7): all of them stand in
 * the tables err_ids.h and errlist.h.
 */
#ifndef DLRUN_BASE_UTIL_ERR_H
#define DLRUN_BASE_UTIL_ERR_H

#include <stdarg.h>
#include <stddef.h>

#include "base/util/err_ids.h"

/* Classes of errors, by what the caller can do about them. */
enum err_code {
	ERR_NONE = 0,
	ERR_USAGE,    /* invalid command line */
	ERR_CONFIG,   /* invalid configuration */
	ERR_AUTH,     /* login or permission */
	ERR_NOTFOUND, /* the named thing does not exist */
	ERR_CONFLICT, /* it exists already, or is held by another process or user */
	ERR_NET,      /* cannot be reached */
	ERR_REMOTE,   /* reached, and it failed there */
	ERR_LIMIT,    /* a limit was exceeded */
	ERR_IO,       /* local files, processes, memory of the system */
	ERR_CANCELED, /* stopped on request */
	ERR_NOCMD,    /* a command is not there, as a shell's 127 */
	ERR_NOEXEC,   /* it is there and cannot be executed, as a shell's 126 */
	ERR_BUG,      /* dlrun itself is wrong */
};

#define ERR_ID_ENUM(name, code, id) name,
enum err_id { E_NONE = 0, ERR_IDS(ERR_ID_ENUM) E_COUNT };
#undef ERR_ID_ENUM

enum { ERR_EVIDENCE_MAX = 4 };

/* Zero is the empty error; err_done accepts it. Strings are owned. */
struct err {
	enum err_id id;
	enum err_code code;
	char *message;                    /* one sentence, no full stop, prefixes included */
	char *evidence[ERR_EVIDENCE_MAX]; /* file, host, status, count; one line each */
	size_t n_evidence;
	char *hint; /* one command or one edit, or NULL */
};

/* A row of err_ids.h and errlist.h. */
struct err_info {
	const char *name; /* "snapshot.secret" */
	enum err_code code;
	const char *title; /* one line */
	const char *text;  /* what happened and what to do, plain paragraphs */
};

#define ERR_PRINTF(fmt_at, args_at) __attribute__((format(printf, fmt_at, args_at)))

/* Each returns -code of the error, so that a failure is one line: return err_set(err, …).
 * `err` may be NULL: then only the code is returned. An error that is already set is replaced. */
int err_set(struct err *err, enum err_id id, const char *fmt, ...) ERR_PRINTF(3, 4);
/* Like err_set, with ": " and strerror(errnum) appended. */
int err_set_errno(struct err *err, enum err_id id, int errnum, const char *fmt, ...)
	ERR_PRINTF(4, 5);

/* Functions that add to an error. Where there is none (NULL or not set) they only return
 * -ERR_BUG. */
/* Put "text: " before the message; returns -code, for: return err_prefix(err, "reading %s", p). */
int err_prefix(struct err *err, const char *fmt, ...) ERR_PRINTF(2, 3);
/* Add a line of evidence; the fifth and later ones are dropped. Returns -code. */
int err_evidence(struct err *err, const char *fmt, ...) ERR_PRINTF(2, 3);
/* Set the hint (an existing one stays: the innermost knows best). Returns -code. */
int err_hint(struct err *err, const char *fmt, ...) ERR_PRINTF(2, 3);

/* Back to the empty error; frees the strings. */
void err_clear(struct err *err);
/* For cleanup: the same as err_clear, NULL accepted. */
void err_done(struct err *err);
/* *to (cleared first) takes over the content of *from, which becomes empty. Returns -code. */
int err_move(struct err *to, struct err *from);
/* *to (cleared first) becomes equal to *from. Returns -code. */
int err_copy(struct err *to, const struct err *from);

/* Return what call returned if that is negative, for functions that have nothing to undo. */
#define ERR_TRY(call)                                                                              \
	do {                                                                                       \
		int r_ = (call);                                                                   \
		if (r_ < 0)                                                                        \
			return r_;                                                                 \
	} while (0)

/* A command that cannot be executed, in either way. */
static inline int err_cannot_exec(const struct err *err)
{
	return err->code == ERR_NOCMD || err->code == ERR_NOEXEC;
}

static inline int err_is_set(const struct err *err)
{
	return err && err->id != E_NONE;
}

/* The row of an id; never NULL for a valid id. */
const struct err_info *err_info(enum err_id id);
/* The id that is called name ("snapshot.secret"), or E_NONE. */
enum err_id err_find(const char *name);
/* The exit status of a command that fails with this code before a run is accepted (cli.md). */
int err_exit_status(enum err_code code);

/* An invariant of dlrun does not hold: say where on stderr and abort. */
_Noreturn void err_bug(const char *file, int line, const char *what);
#define BUG_ON(cond)                                                                               \
	do {                                                                                       \
		if (__builtin_expect(!!(cond), 0))                                                 \
			err_bug(__FILE__, __LINE__, #cond);                                        \
	} while (0)

#endif
