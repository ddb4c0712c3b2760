/*
 * The process: what was asked for on the command line as a whole, the session, and the two streams.
 * stdout carries data only; everything else goes to stderr (cli.md, "Rules for every command").
 */
#ifndef DLRUN_CLI_APP_H
#define DLRUN_CLI_APP_H

#include <stdbool.h>

#include "base/err.h"
#include "base/json.h"
#include "run/session.h"

enum app_progress { PROGRESS_AUTO, PROGRESS_TTY, PROGRESS_PLAIN, PROGRESS_NONE };

/* The options of every command. */
struct app_options {
	const char *dir; /* -C */
	bool quiet, verbose, json, help, version;
	const char *color;    /* auto always never */
	const char *progress; /* auto tty plain none */
};
extern const struct opt app_opts[];

struct app {
	struct app_options options;
	struct session session;
	bool session_open;
	const struct cmd *cmd;
	bool out_tty, err_tty;     /* the streams are terminals */
	bool out_color, err_color; /* colours may be used */
	bool utf8;                 /* the locale's character set */
	unsigned columns;          /* of the terminal, 80 if there is none */
	bool json_done;            /* the JSON of this command has been printed */
	bool accepted;             /* a run was accepted: dlrun's own failures are 125 now */
};

/* Opens the session on first use. */
int app_session(struct app *app, struct session **ret, struct err *err);

/* Show the error once, in the stated form (and as JSON with --json); returns the exit status. */
int app_fail(struct app *app, struct err *err);

/* Print the command's JSON object or one line of a stream. Takes json. Returns 0, or 1 when stdout
 * cannot be written (EPIPE is quiet). */
int app_print_json(struct app *app, struct json *json, const char *schema);

/* One sentence to stderr: "warning: …", filtered; not with -q. */
void app_warn(struct app *app, const char *fmt, ...) ERR_PRINTF(2, 3);
/* A line to stderr for people, not with -q or --json. */
void app_note(struct app *app, const char *fmt, ...) ERR_PRINTF(2, 3);
/* A line "label     text" to stderr: the phases of a submit. */
void app_phase(struct app *app, const char *label, const char *fmt, ...) ERR_PRINTF(3, 4);

/* Set when SIGINT or SIGTERM came; checked by waits. */
extern volatile int app_interrupted;

#endif
