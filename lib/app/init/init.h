/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first dlrun.yaml of a project: its text from the project's files, and putting
 * it in place.
 */
#ifndef DLRUN_APP_INIT_INIT_H
#define DLRUN_APP_INIT_INIT_H

#include <stdbool.h>

#include "app/init/init_cluster.h"
#include "app/init/init_project.h"
#include "base/util/buf.h"
#include "base/util/err.h"

enum { INIT_TEXT_MAX = 256 << 10 };

/* Answers of the user to the questions; zero is what is taken without them. */
struct init_answers {
	const char *command; /* a line for the shell; NULL: the first of the project's */
	bool limit_paths;    /* send the project's directory alone, not the whole tree */
	bool no_data;
	bool no_more;                             /* of questions: the input has ended */
	const struct init_cluster_list *clusters; /* targets to be written; NULL: none */
	const char *registry; /* HOST/REPO for images of runs; NULL: none is known */
};

/* Every line has a comment. The first cluster is the default target. Keys that this version does
 * not have, what it cannot do yet (nodes) and what nobody has chosen stand there as comments. */
void init_text(
	const struct init_project *project, const struct init_answers *answers, struct buf *out);

/* The project's image as a registry takes it: with a host, "python" is docker.io/library/python.
 * NULL: none that could be. The caller frees. */
char *init_image(const struct init_project *project);

/* For a cluster: the project's image gets a base with the interpreter of the command where it has
 * none, or has one that lacks it by its configuration, which is asked for, for limit_ms (0: not at
 * all). *ret_said, which the caller frees: what was found, one line; or NULL. */
void init_choose_base(struct session *session, struct init_project *project,
	const struct init_answers *answers, int64_t limit_ms, char **ret_said);

/* The words of a command as a person reads and types them; the caller frees. */
char *init_command_text(const struct init_command *command);

/* Write text to dlrun.yaml in dir, after it was loaded as a configuration. One that is there is
 * E_INIT_EXISTS, or with force kept as dlrun.yaml~. At every moment dlrun.yaml is the old one or
 * the new one, and never a half; of two at once without force one fails. *ret_kept: there was
 * one. */
int init_put(const char *dir, const char *text, bool force, bool *ret_kept, struct err *err);
/* Whether init_put without force would be refused: E_INIT_EXISTS then. */
int init_check_free(const char *dir, struct err *err);

#endif
