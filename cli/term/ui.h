/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output for people. All of it goes through one function, ui_print: it lets no control of foreign
 * text reach a terminal, drops colours where none are wanted, and writes ASCII where the locale has
 * no UTF-8. Text may hold the colours below; ui_print knows what the stream supports.
 */
#ifndef DLRUN_CLI_TERM_UI_H
#define DLRUN_CLI_TERM_UI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"

struct app;

#define UI_BOLD   "\033[1m"
#define UI_DIM    "\033[2m"
#define UI_RED    "\033[31m"
#define UI_GREEN  "\033[32m"
#define UI_YELLOW "\033[33m"
#define UI_CYAN   "\033[36m"
#define UI_OFF    "\033[0m"

enum ui_stream { UI_OUT = 1, UI_ERR = 2 };

enum { UI_TEXT_MAX = 256 << 20, UI_COLUMNS = 80, UI_ROWS = 24, UI_LABEL = 10 };

/* s as the stream takes it; appended to out. */
void ui_text(
	const struct app *app, enum ui_stream stream, const char *s, size_t len, struct buf *out);

/* Write to the stream. Returns 0, or -1 when it takes nothing any more (a closed pipe is quiet,
 * anything else is reported once on stderr): what was to come is lost, and app->out_lost is set. */
int ui_print(struct app *app, enum ui_stream stream, const char *s, size_t len);
int ui_printf(struct app *app, enum ui_stream stream, const char *fmt, ...) ERR_PRINTF(3, 4);
/* The same by ui_fit. */
int ui_printf_fit(struct app *app, enum ui_stream stream, size_t indent, const char *fmt, ...)
	ERR_PRINTF(4, 5);
/* Back to an empty line, where progress is drawn. */
void ui_erase_line(struct app *app);
/* The same to stdout for bytes that are not ours to change: logs, patches and JSON in a pipe. */
int ui_write(struct app *app, const char *data, size_t len);

/* A name or another word from elsewhere in the form of a single line without colours; the caller
 * frees. */
char *ui_clean(const char *s);
/* At most columns wide, the rest replaced by "…". */
void ui_cut(const struct app *app, const char *s, size_t columns, struct buf *out);
/* Words broken into lines of at most columns, each later line behind indent more blanks. What
 * stands between backquotes or has no blanks is never broken. No LF at the end. */
void ui_wrap(const char *s, size_t columns, size_t indent, struct buf *out);
/* The same for a command: a line that goes on ends in a backslash. */
void ui_wrap_command(const char *s, size_t columns, size_t indent, struct buf *out);
/* Lines as they are, with colours; on a terminal those that are too wide are broken at blanks, each
 * later part behind indent blanks. */
void ui_fit(const struct app *app, enum ui_stream stream, const char *s, size_t indent,
	struct buf *out);

/* Tables: cells come row by row. Columns are as wide as their cells, numbers at the right. On a
 * terminal that is too narrow the last column is cut and those that may be, the widest first; where
 * that is not enough, columns are left out. In a pipe nothing is. */
struct ui_column {
	const char *title;
	bool right;
	bool cut; /* may be cut */
	unsigned
		drop; /* the higher, the sooner it is left out; of equal ones the last goes first */
};
struct ui_cell {
	char *text;
	const char *style; /* UI_… or "" */
};
struct ui_table {
	const struct ui_column *columns;
	size_t n_columns;
	struct VEC_OF(struct ui_cell) cells;
};
void ui_table_init(struct ui_table *table, const struct ui_column *columns, size_t n_columns);
void ui_table_done(struct ui_table *table);
#define AUTO_TABLE AUTO(ui_table_done)
/* text is cleaned; style as above. */
void ui_table_add(struct ui_table *table, const char *style, const char *text);
void ui_table_addf(struct ui_table *table, const char *style, const char *fmt, ...)
	ERR_PRINTF(3, 4);
/* width: columns of the terminal; 0: any. */
void ui_table_format(
	const struct app *app, const struct ui_table *table, size_t width, struct buf *out);
/* To stdout. */
int ui_table_print(struct app *app, const struct ui_table *table);

/* How long ago, in one short unit: "12 s", "4 min", "2 h", "3 d". */
const char *ui_age(int64_t ms, char out[static 32]);
/* Wall-clock time as logs have it, to the second: "2026-08-01T12:00:00Z". */
const char *ui_time(int64_t wall_ms, char out[static 32]);

#endif
