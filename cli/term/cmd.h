/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A command: one const struct in one file; cmds.c lists them all, sorted.
 */
#ifndef DLRUN_CLI_TERM_CMD_H
#define DLRUN_CLI_TERM_CMD_H

#include "cli/term/opt.h"

struct app;

enum {
	CMD_HIDDEN = 1,   /* not in help and completion: dlrun's own use */
	CMD_PROGRAM = 2,  /* takes a program's words: options end at the first word */
	CMD_OWN_ARGS = 4, /* words holds argv as it is */
	CMD_STUDIES = 16, /* a word that names a run may name a study */
	CMD_STARTS = 8,   /* makes what the configuration says: all of that must count */
};

enum { CMD_EXAMPLES = 3, CMD_WORDS_ANY = -1 };

struct cmd {
	const char *name;
	const char *summary;                /* one line for `dlrun help`, no full stop */
	const char *synopsis;               /* what follows "dlrun NAME "; may be empty */
	const char *examples[CMD_EXAMPLES]; /* "command line # what it does", or none */
	const struct opt *opts;             /* NULL: none */
	size_t values_size;                 /* of the struct that opts are bound to */
	int min_words, max_words;           /* CMD_WORDS_ANY: any */
	enum opt_values words;              /* what the words are, for the completion */
	unsigned flags;
	/* values is a struct of values_size bytes, the options set. Returns the exit status;
	 * errors are shown by app_fail (app.h). */
	int (*run)(struct app *app, void *values, struct strv *words);
};

/* All of them, sorted: set by cmds_use (cmds.h), which stands above. */
extern const struct cmd *const *cmds;
extern size_t cmds_n;
/* By its whole name, or NULL. */
const struct cmd *cmd_find(const char *name);
/* The words after "dlrun " for a command that other tools call by this word, or NULL. */
const char *cmd_of_others(const char *word);

#endif
