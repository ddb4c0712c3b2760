/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options: one typed table for each command, bound to the members of the command's own struct. The
 * parser, `-h`, the manual page (@OPTIONS@) and the completion all read the same table.
 *
 * Parsing is as in GNU getopt_long, words and options in any order: long options may be cut short
 * where that is unique, `--name=value` and `--name value`, `-n value`, `-nvalue`, clusters of
 * flags.
 */
#ifndef DLRUN_CLI_TERM_OPT_H
#define DLRUN_CLI_TERM_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum opt_type {
	OPT_END = 0,
	OPT_FLAG,     /* bool: set to true */
	OPT_STRING,   /* const char *, borrowed from argv; not given: NULL */
	OPT_INT,      /* int64_t within min…max; not given: OPT_UNSET */
	OPT_SIZE,     /* int64_t bytes; not given: OPT_UNSET */
	OPT_DURATION, /* int64_t milliseconds; not given: OPT_UNSET */
	OPT_LIST,     /* struct strv: may be repeated */
	OPT_CHOICE,   /* const char *: one of choices; not given: NULL */
};

#define OPT_UNSET INT64_MIN

/* Kinds of values, for completion. */
enum opt_values {
	VALUE_NONE,
	VALUE_FILE,
	VALUE_DIR,
	VALUE_RUN,
	VALUE_LIVE,      /* runs that have not ended */
	VALUE_RUN_DIR,   /* one run, then a directory */
	VALUE_RUN_PATH,  /* one run, then paths in its results */
	VALUE_RUNS_DIRS, /* runs, and directories: words with a slash or a dot */
	VALUE_TARGET,
	VALUE_TARGETS,    /* with commas between */
	VALUE_RUN_TARGET, /* a run that has not ended, or a target */
	VALUE_RUN_HOST,   /* a run, or a host as ssh names it */
	VALUE_COMMAND,    /* a program and its words */
	VALUE_KEY,        /* of the configuration */
	VALUE_ERROR,      /* the id of an error */
	VALUE_TOPIC,      /* a command of dlrun */
	VALUE_SHELL,      /* bash, zsh, fish */
	VALUE_COLUMNS,    /* of ps, with commas */
	VALUE_GROUP,      /* of runs */
	VALUE_LAUNCHER,
	VALUE_DATA, /* push, ls or rm, then a path */
};

struct opt {
	enum opt_type type;
	char letter;      /* 0: none */
	const char *name; /* without -- */
	size_t offset;    /* of the member in the command's struct */
	/* How help calls the value: "N"; "[=FILE]": it may be left out, and is "" then (only of a
	 * long OPT_STRING); NULL for a flag. */
	const char *arg;
	const char *help;    /* one line, no full stop */
	const char *choices; /* OPT_CHOICE: "auto tty plain" */
	int64_t min, max;    /* OPT_INT; both 0: any */
	enum opt_values values;
	const char *key; /* the configuration key that it overrides, or NULL */
	bool hidden;
};

#define OPT_MEMBER(kind, ch, nm, st, member)                                                       \
	.type = (kind), .letter = (ch), .name = (nm), .offset = offsetof(st, member)

struct opt_request {
	const struct opt *opts;   /* the command's, ended by OPT_END; NULL: none */
	const struct opt *common; /* those of every command, bound to common_values; NULL: none */
	void *values, *common_values;
	bool stop_at_word;   /* the first word ends the options: what follows is a program's */
	const char *command; /* for messages: "dlrun submit" */
	/* How many words stand in front of `--`; SIZE_MAX: there is none. NULL: not wanted. */
	size_t *ret_ahead;
};

/* Parse argv (NULL-ended, without the command's own name) into values. Words that are no options go
 * to ret_words, emptied first; `--` ends the options. E_USAGE or E_USAGE_OPTION with the near match
 * as hint; the rest of argv is read even then, so that common_values tell of --json. */
int opt_parse(const struct opt_request *request, char *const *argv, struct strv *ret_words,
	struct err *err);

/* argv as it was typed, for a shell, with the options of `instead` ("-g 2 --queue ''") in place of
 * those of the same name. False: it is too long to be shown, or holds a value by the name of a
 * secret; out has nothing useful then. */
bool opt_retype(
	const struct opt_request *request, char *const *argv, const char *instead, struct buf *out);

/* Free the lists in values. */
void opt_values_done(const struct opt *opts, void *values);

/* The option of that long name (whole) or letter, or NULL. */
const struct opt *opt_find(const struct opt *opts, const char *name, size_t len);
const struct opt *opt_find_letter(const struct opt *opts, char letter);
/* The value as text as the configuration takes it, the caller frees; NULL: not given. Flags and
 * lists have none. */
char *opt_text(const struct opt *opt, const void *values);
/* Whether it was given. */
bool opt_is_given(const struct opt *opt, const void *values);

#endif
