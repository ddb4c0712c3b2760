/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process: what was asked for on the command line as a whole, the session, and the two streams.
 * stdout carries data only; everything else goes to stderr (cli.md, "Rules for every command").
 */
#ifndef DLRUN_CLI_TERM_APP_H
#define DLRUN_CLI_TERM_APP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "cli/term/opt.h"
#include "core/config/config.h"
#include "core/context/session.h"

/* The options of every command. */
struct app_options {
	const char *dir; /* -C */
	bool quiet, verbose, json, help, version;
	const char *color;    /* auto always never */
	const char *progress; /* auto tty plain none */
};
extern const struct opt app_opts[];

enum app_progress { PROGRESS_TTY, PROGRESS_PLAIN, PROGRESS_NONE };

struct app {
	struct app_options options;
	struct session session;
	bool session_open;
	char *cwd, *shell_dir, *self; /* for the session; shell_dir: NULL without -C */
	const struct cmd *cmd;
	char *const *typed;        /* the arguments of dlrun, NULL-ended */
	size_t n_before;           /* of them in front of the command's own */
	size_t words_ahead;        /* of `--` in the command's words; SIZE_MAX: there is none */
	bool out_tty, err_tty;     /* the streams are terminals */
	bool out_color, err_color; /* colours may be used */
	bool utf8;                 /* the locale's character set */
	bool plain;                /* dlrun's own signs are ASCII: there is no font for others */
	unsigned columns;          /* of the terminal, 80 if there is none */
	unsigned rows;             /* of the terminal that stdout is; 0: it is none */
	enum app_progress progress;
	int64_t started_ms; /* clock_ms() */
	bool json_done;     /* the JSON of this command has been printed */
	bool out_lost;      /* stdout cannot be written any more */
	bool out_in_line;   /* what was written to stdout last did not end its line */
	bool accepted;      /* a run was accepted: dlrun's own failures are 125 now */
};

/* The whole of dlrun: returns the exit status. argv[0] is the program. */
int app_main(int argc, char **argv);

/* How large the terminal is now. */
void app_measure(struct app *app);
/* Opens the session on first use. */
int app_session(struct app *app, struct session **ret, struct err *err);
/* The configuration with the options of the table that are keys of it set over it. */
int app_config(struct app *app, const struct opt *opts, const void *values, struct config **ret,
	struct err *err);

/* Show the error once, in the stated form (and as JSON with --json); returns the exit status. */
int app_fail(struct app *app, const struct err *err);
/* Text that app_fail writes to stderr: "error: …   [id]", evidence, hint; each part one line,
 * broken on a terminal where that is too narrow. */
void app_error_text(const struct app *app, const struct err *err, struct buf *out);

/* An object that starts with "schema": "dlrun/KIND/v1". */
struct json *app_json(const char *kind);
/* Print the command's JSON object: one line in a pipe, indented on a terminal. Takes json. Returns
 * 0, or 1 when stdout cannot be written. */
int app_print_json(struct app *app, struct json *json);
/* Print one line of a stream of objects. Takes json. */
int app_print_json_line(struct app *app, struct json *json);

/* Print a sentence to stderr: "warning: …"; not with -q. */
void app_warn(struct app *app, const char *fmt, ...) ERR_PRINTF(2, 3);
/* A line to stderr for people, not with -q or --json. */
void app_note(struct app *app, const char *fmt, ...) ERR_PRINTF(2, 3);
/* The same behind the ^C that a terminal shows. */
void app_note_interrupted(struct app *app, const char *fmt, ...) ERR_PRINTF(2, 3);
/* A line "label     text" to stderr: the phases of a submit. An empty label goes on with the one
 * before. */
void app_phase(struct app *app, const char *label, const char *fmt, ...) ERR_PRINTF(3, 4);

/* Set when SIGINT or SIGTERM came after app_catch_signals; looked at by waits. A second one ends
 * the process. */
extern volatile int app_interrupted;
void app_catch_signals(void);

/*
 * Questions on the terminal. Each takes one line; SIGINT ends it with E_CANCELED.
 */
enum { PROMPT_ANSWER_MAX = 4096, PROMPT_TRIES_MAX = 3 };

/* 1: answer is a line without its LF; 0: the end of the input, there will be none. */
int prompt_line(struct app *app, const char *question, struct buf *response, struct err *err);
/* The same for yes or no; *ret is fallback without a response that is one. */
int prompt_yes(struct app *app, const char *question, bool fallback, bool *ret, struct err *err);

#endif
