/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Secrets: variables whose values only the program gets. Their names stand in the specification of
 * a run, their values nowhere: they go from this shell or a file to the program's environment.
 */
#ifndef DLRUN_CORE_CONTEXT_SECRETS_H
#define DLRUN_CORE_CONTEXT_SECRETS_H

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "core/record/run.h"

enum { SECRET_MAX = 64 * 1024 }; /* bytes of a value; the kernel takes 128 KiB for a variable */

/* The sources of values. */
struct secrets_source {
	const char *const *env; /* this shell's, NULL-ended */
	const char *dir;        /* what a relative FILE is seen from */
	const char *home;       /* for "~/FILE"; may be NULL */
};

/* item: "NAME" (of this shell) or "NAME=@FILE" (without its last newline). Adds NAME=VALUE to ret.
 * E_SECRET when there is no value, or one that cannot be a variable; the message never shows it.
 * Of a FILE that others may read *ret_open (may be NULL) is set. */
int secrets_read(const struct secrets_source *source, const char *item, struct strv *ret,
	bool *ret_open, struct err *err);

/* The values of the secrets of run for another attempt or beside it: from the files that the
 * configuration names, its `env:`, else from this shell. An invalid name has no value, and a record
 * from elsewhere (foreign.h) gets nothing of this shell that the configuration does not name. Names
 * without a value are added to ret_missing. */
int secrets_again(struct session *session, const struct run *run, const struct strv *names,
	struct strv *ret, struct strv *ret_missing, struct err *err);

/* The sources of what the configuration names, and of what options name. The caller frees *ret_dir,
 * which the source borrows. */
struct secrets_source secrets_of_config(struct session *session, char **ret_dir);
struct secrets_source secrets_of_shell(const struct session *session);

#endif
