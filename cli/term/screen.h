/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A terminal that is drawn again and again, until the user presses q: the terminal's other screen,
 * without a cursor. Ctrl-C is app_interrupted (app.h).
 */
#ifndef DLRUN_CLI_TERM_SCREEN_H
#define DLRUN_CLI_TERM_SCREEN_H

#include <stdbool.h>
#include <stdint.h>
#include <termios.h>

#include "base/loop/loop.h"
#include "base/util/err.h"

struct app;

struct screen {
	struct app *app;
	struct termios before;
	bool has_keys, quit; /* stdin is a terminal, too; q was pressed */
	unsigned rows, columns;
};

void screen_begin(struct screen *screen, struct app *app);
void screen_end(struct screen *screen);
/* Before each drawing: the terminal may have got another size, or been another program's. */
void screen_measure(struct screen *screen);
/* As many lines of text, with the colours of ui.h, as there is room for. */
void screen_draw(struct screen *screen, const char *text);
/* Runs the loop for that time (-1: for ever), or until q is pressed or a signal comes. */
int screen_wait(struct screen *screen, struct loop *loop, int64_t wait_ms, struct err *err);

#endif
