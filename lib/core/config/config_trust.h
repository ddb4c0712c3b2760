/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is believed: project files of other users are not read, and keys of a project's file that
 * name programs, files outside of its tree or where credentials go, or that weaken transport, count
 * only while the file is what the user has confirmed (`dlrun config trust`).
 *
 * What is confirmed: one JSON object for each file in a directory of the user's, called by the
 * SHA-256 of the file's path: {"schema", "files": {PATH: SHA-256 of its content}}, the file itself
 * and those that such keys name, so that none of them changes unseen.
 */
#ifndef DLRUN_CORE_CONFIG_CONFIG_TRUST_H
#define DLRUN_CORE_CONFIG_CONFIG_TRUST_H

#include "core/config/config.h"

/* What a project's file says with a key that needs confirming. Strings are owned. */
struct config_claim {
	char *where; /* "FILE:LINE" */
	char *key;   /* "registry.ca", "targets.lab.overlay" */
	char *value; /* as written */
	char *file;  /* whose content is confirmed as well; or NULL */
};

/* How the project's file stands; valid as long as config. */
struct config_project {
	char *path;        /* NULL: there is none */
	char *hash;        /* SHA-256 of its text */
	bool is_foreign;   /* another user's and not called safe: not read, unless confirmed */
	bool is_confirmed; /* what claims holds counts */
	struct config_claims VEC_OF(struct config_claim) claims;
};
const struct config_project *config_project(const struct config *config);
/* One sentence for people on what does not count; NULL: all of it does. The caller frees. */
char *config_not_counting(const struct config *config);
/* The same as E_CONFIG_TRUST, for commands that would start something else than the file says. */
int config_check_counting(const struct config *config, struct err *err);
/* The user has confirmed the project's file with all that it names, in the directory dir. */
int config_confirm(const struct config *config, const char *dir, struct err *err);
/* Whether the file at path would be read: ours, called safe or confirmed. */
bool config_project_counts(const struct config_files *files, const char *path);

#endif
