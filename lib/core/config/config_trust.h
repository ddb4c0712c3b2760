/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trust in configuration files: project files of other users are not read, and keys of a project's
 * file that name programs, files outside of its tree or where credentials go, or that weaken
 * transport, are ignored unless the user has confirmed the file (`dlrun config trust`).
 *
 * Confirmations are kept as one JSON object for each file in a directory of the user's, named by
 * the SHA-256 of the file's path: {"schema", "files": {PATH: SHA-256 of its content}}, for the file
 * itself and the files that such keys name, so that none of them changes unseen.
 */
#ifndef DLRUN_CORE_CONFIG_CONFIG_TRUST_H
#define DLRUN_CORE_CONFIG_CONFIG_TRUST_H

#include "core/config/config.h"

/* A setting of a project's file that needs confirming. Strings are owned. */
struct config_claim {
	char *where; /* "FILE:LINE" */
	char *key;   /* "registry.ca", "targets.lab.overlay" */
	char *value; /* as written */
	char *file;  /* whose content is confirmed as well; or NULL */
};

/* The state of the project's file; valid as long as config. */
struct config_project {
	char *path;        /* NULL: there is none */
	char *hash;        /* SHA-256 of its text */
	bool is_foreign;   /* another user's and not called safe: not read, unless confirmed */
	bool is_confirmed; /* what claims holds counts */
	struct config_claims VEC_OF(struct config_claim) claims;
};
const struct config_project *config_project(const struct config *config);
/* Describe the settings that are ignored in one sentence for the user; NULL: none is. The caller
 * frees. */
char *config_not_counting(const struct config *config);
/* The same as E_CONFIG_TRUST, for commands that would otherwise start something else than the file
 * says. */
int config_check_counting(const struct config *config, struct err *err);
/* Record in the directory dir that the user has confirmed the project's file with all files that it
 * names. */
int config_confirm(const struct config *config, const char *dir, struct err *err);
/* Whether the file at path would be read: it is the user's own, called safe or confirmed. */
bool config_project_counts(const struct config_files *files, const char *path);

#endif
