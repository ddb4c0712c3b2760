/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions on the terminal. Each takes one line; SIGINT ends it with E_CANCELED.
 */
#ifndef DLRUN_CLI_TERM_ASK_H
#define DLRUN_CLI_TERM_ASK_H

#include <stdbool.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "cli/term/app.h"

enum { ASK_ANSWER_MAX = 4096, ASK_TRIES_MAX = 3 };

/* 1: answer is a line without its LF; 0: the end of the input, there will be none. */
int ask_line(struct app *app, const char *question, struct buf *answer, struct err *err);
/* The same for yes or no; *ret is fallback without an answer that is one. */
int ask_yes(struct app *app, const char *question, bool fallback, bool *ret, struct err *err);
/* 1: yes, answer is "yes"; 0: no, or the end of the input. */
int ask_trust(struct app *app, const char *question, struct buf *answer, struct err *err);
/* As ask_line, without the terminal showing it. */
int ask_secret(struct app *app, const char *question, struct buf *answer, struct err *err);

#endif
