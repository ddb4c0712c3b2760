/*
 * Options: one typed table for each command, bound to the members of the command's own struct. The
 * parser, `-h`, the manual page (@OPTIONS@) and the completion all read the same table.
 *
 * Parsing is as in GNU getopt_long without permutation of what stands behind `--`: long options may
 * be cut short where that is unique, `--name=value` and `--name value`, `-n value`, `-nvalue`,
 * clusters of flags.
 */
#ifndef DLRUN_CLI_OPT_H
#define DLRUN_CLI_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/vec.h"

enum opt_type {
	OPT_END = 0,
	OPT_FLAG,     /* bool: set to true */
	OPT_STRING,   /* const char *, borrowed from argv */
	OPT_INT,      /* int64_t within min…max */
	OPT_SIZE,     /* uint64_t bytes */
	OPT_DURATION, /* int64_t milliseconds */
	OPT_LIST,     /* struct strv: may be repeated */
	OPT_CHOICE,   /* const char *: one of choices */
};

/* What a value stands for, for the completion. */
enum opt_values { VALUE_NONE, VALUE_FILE, VALUE_DIR, VALUE_RUN, VALUE_TARGET, VALUE_COMMAND };

struct opt {
	enum opt_type type;
	char letter;        /* 0: none */
	const char *name;   /* without -- */
	size_t offset;      /* of the member in the command's struct */
	const char *arg;    /* how help calls the value: "N"; NULL for a flag */
	const char *help;   /* one line, no full stop */
	const char *choices; /* OPT_CHOICE: "auto tty plain" */
	int64_t min, max;   /* OPT_INT; both 0: any */
	enum opt_values values;
	const char *key;    /* the configuration key that it overrides, or NULL */
	bool hidden;
};

#define OPT_MEMBER(kind, ch, nm, st, member) .type = (kind), .letter = (ch), .name = (nm), .offset = offsetof(st, member)

/* Parse argv[0…argc) into values. Words that are no options go to ret_words; `--` ends the options.
 * stop_at_word: so does the first word (submit: the command's own options are not ours). E_USAGE…
 * with the near match as hint. given (may be NULL) has one bool per option of the table. */
struct opt_request {
	const struct opt *opts;        /* the command's, ended by OPT_END */
	const struct opt *common;      /* those of every command, bound to common_values */
	void *values, *common_values;
	bool stop_at_word;
	const char *command;           /* for messages */
};
int opt_parse(const struct opt_request *request, char *const *argv, struct strv *ret_words,
	struct err *err);

/* Free the lists in values. */
void opt_values_done(const struct opt *opts, void *values);

#endif
