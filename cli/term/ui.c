/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/term/ui.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/term.h"
#include "cli/term/app.h"

/*
 * Text
 */

/* Characters beyond ASCII in dlrun's own messages, and their replacements elsewhere. */
static const struct {
	const char *utf8, *ascii;
} plain_forms[] = {
	{"·", "-"},
	{"…", "..."},
	{"→", "->"},
	{"—", "-"},
	{"×", "x"},
};

static size_t add_plain_form(const struct app *app, const char *s, struct buf *out)
{
	size_t n = app->utf8 ? str_utf8_len(s, strlen(s)) : 0;

	for (size_t i = 0; i < ARRAY_LEN(plain_forms); i++) {
		if (!str_starts(s, plain_forms[i].utf8))
			continue;
		buf_adds(out, plain_forms[i].ascii);
		return strlen(plain_forms[i].utf8);
	}
	if (n)
		buf_add(out, s, n);
	else
		buf_addf(out, "\\x%02x", (unsigned)(unsigned char)*s);
	return n ? n : 1;
}

static void ui_add_plain(const struct app *app, const char *s, struct buf *out)
{
	while (*s) {
		if ((unsigned char)*s >= 0x80) {
			s += add_plain_form(app, s, out);
		} else {
			buf_addc(out, *s++);
		}
	}
}

void ui_text(
	const struct app *app, enum ui_stream stream, const char *s, size_t len, struct buf *out)
{
	struct term_filter filter;
	AUTO_BUF struct buf filtered = buf_with(UI_TEXT_MAX);

	term_filter_init(&filter, TERM_CR_SHOW, stream == UI_OUT ? app->out_color : app->err_color);
	term_filter_add(&filter, s, len, &filtered);
	term_filter_end(&filter, &filtered);
	if (app->plain)
		ui_add_plain(app, filtered.data, out);
	else
		buf_add(out, filtered.data, filtered.len);
}

char *ui_clean(const char *s)
{
	AUTO_BUF struct buf out = buf_with(UI_TEXT_MAX);

	term_clean(s, strlen(s), true, &out);
	return buf_take(&out);
}

void ui_cut(const struct app *app, const char *s, size_t columns, struct buf *out)
{
	const char *ellipsis = app->plain ? "..." : "…";
	size_t keep = str_columns(ellipsis), used = 0, at = 0;
	size_t len = strlen(s);

	if (str_columns(s) <= columns) {
		buf_adds(out, s);
		return;
	}
	keep = columns > keep ? columns - keep : 0;
	while (at < len) {
		size_t n = str_utf8_len(s + at, len - at);
		char one[5] = {0};

		n = n ? n : 1;
		memcpy(one, s + at, n);
		if (used + str_columns(one) > keep)
			break;
		used += str_columns(one);
		at += n;
	}
	buf_add(out, s, at);
	buf_adds(out, ellipsis);
}

/* The length of the next piece that stays together. */
static size_t piece_len(const char *s)
{
	bool quoted = false;
	size_t n = 0;

	for (; s[n] && (quoted || s[n] != ' '); n++)
		if (s[n] == '`')
			quoted = !quoted;
	return n;
}

static void wrap(
	const char *s, size_t columns, size_t indent, const char *line_end, struct buf *out)
{
	size_t used = 0;
	bool first = true;

	for (s += strspn(s, " "); *s; s += strspn(s, " ")) {
		size_t n = piece_len(s);
		AUTO_FREE char *piece = mem_strndup(s, n);
		size_t wide = str_columns(piece);

		if (!first && used + 1 + wide > columns) {
			buf_addf(out, "%s\n%*s", line_end, (int)indent, "");
			used = 0;
		} else if (!first) {
			buf_addc(out, ' ');
			used++;
		}
		buf_adds(out, piece);
		used += wide;
		first = false;
		s += n;
	}
}

void ui_wrap(const char *s, size_t columns, size_t indent, struct buf *out)
{
	wrap(s, columns, indent, "", out);
}

void ui_wrap_command(const char *s, size_t columns, size_t indent, struct buf *out)
{
	wrap(s, columns - 2, indent, " \\", out);
}

/* Blanks, and the piece behind them. */
static size_t blanks_and_piece(const char *s, size_t len)
{
	size_t n = 0;
	bool quoted = false;

	while (n < len && s[n] == ' ')
		n++;
	for (; n < len && (quoted || s[n] != ' '); n++)
		if (s[n] == '`')
			quoted = !quoted;
	return n;
}

/* Without the colours. */
static size_t seen_columns(const char *s, size_t len)
{
	AUTO_FREE char *plain = term_plain(s, len);

	return str_columns(plain);
}

/* Where a line is broken rather than within the words that follow: a part in brackets or behind a
 * dot. Returns the columns up to the next such place, or 0. */
static size_t part_columns(const char *s, size_t len)
{
	size_t n = strspn(s, " ");

	if (n >= len || (s[n] != '(' && !str_starts(s + n, "·")))
		return 0;
	for (size_t at = n + 1; at < len; at++)
		if (str_starts(s + at, " ·"))
			return seen_columns(s + n, at - n);
	return seen_columns(s + n, len - n);
}

/* A path is copied: it stays in one piece where it is, whatever the terminal makes of it. */
static void fit_line(const char *s, size_t len, size_t columns, size_t indent, struct buf *out)
{
	size_t used = 0;

	for (size_t at = 0, n; at < len; at += n) {
		n = blanks_and_piece(s + at, len - at);
		size_t wide = seen_columns(s + at, n), blanks = strspn(s + at, " ");
		size_t part = part_columns(s + at, len - at);
		bool gains = used && used + blanks > indent && blanks < n && s[at + blanks] != '/';
		bool is_part = part && used + blanks + part > columns && indent + part <= columns;

		if (gains && (is_part || used + wide > columns)) {
			buf_addf(out, "\n%*s", (int)indent, "");
			buf_add(out, s + at + blanks, n - blanks);
			used = indent + wide - blanks;
		} else {
			buf_add(out, s + at, n);
			used += wide;
		}
	}
}

void ui_fit(
	const struct app *app, enum ui_stream stream, const char *s, size_t indent, struct buf *out)
{
	bool tty = stream == UI_OUT ? app->out_tty : app->err_tty;

	for (size_t len; *s; s += len) {
		len = strcspn(s, "\n");
		if (tty)
			fit_line(s, len, app->columns, indent, out);
		else
			buf_add(out, s, len);
		if (s[len] == '\n') {
			buf_addc(out, '\n');
			len++;
		}
	}
}

/*
 * Streams
 */

/* 0 or errno. */
static int write_all(int fd, const char *data, size_t len)
{
	while (len) {
		ssize_t n = write(fd, data, len);

		if (n >= 0) {
			data += n;
			len -= (size_t)n;
		} else if (errno == EAGAIN) {
			poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
		} else if (errno != EINTR) {
			return errno;
		}
	}
	return 0;
}

void ui_erase_line(struct app *app)
{
	static const char erase[] = "\r\033[K";

	if (app->progress == PROGRESS_TTY)
		write_all(STDERR_FILENO, erase, sizeof(erase) - 1);
}

/* Colours alone neither begin nor end a line. */
static void note_line(struct app *app, const char *data, size_t len)
{
	while (len && data[len - 1] == 'm') {
		size_t n = len - 1;

		while (n && strchr("0123456789;", data[n - 1]))
			n--;
		if (n < 2 || data[n - 1] != '[' || data[n - 2] != '\033')
			break;
		len = n - 2;
	}
	if (len)
		app->out_in_line = data[len - 1] != '\n';
}

/* A program need not end its last line: where both streams go to one place, what is printed next
 * begins a line of its own. */
static void ui_end_line(struct app *app)
{
	struct stat out, err;

	if (!app->out_in_line)
		return;
	app->out_in_line = false;
	if (fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
		out.st_dev == err.st_dev && out.st_ino == err.st_ino)
		write_all(STDERR_FILENO, "\n", 1);
}

static int ui_write_out(struct app *app, const char *data, size_t len)
{
	AUTO_ERR struct err err = {0};
	int errnum;

	if (app->out_lost)
		return -1;
	errnum = write_all(STDOUT_FILENO, data, len);
	if (errnum == 0) {
		note_line(app, data, len);
		return 0;
	}
	app->out_lost = true;
	if (errnum != EPIPE) {
		err_set_errno(&err, errnum == ENOSPC ? E_IO_FULL : E_IO, errnum,
			"the output cannot be written");
		app_fail(app, &err);
	}
	return -1;
}

int ui_write(struct app *app, const char *data, size_t len)
{
	return ui_write_out(app, data, len);
}

int ui_print(struct app *app, enum ui_stream stream, const char *s, size_t len)
{
	AUTO_BUF struct buf out = buf_with(UI_TEXT_MAX);

	ui_text(app, stream, s, len, &out);
	if (stream == UI_OUT)
		return ui_write_out(app, out.data, out.len);
	ui_end_line(app);
	return write_all(STDERR_FILENO, out.data, out.len) ? -1 : 0;
}

int ui_printf(struct app *app, enum ui_stream stream, const char *fmt, ...)
{
	AUTO_BUF struct buf text = buf_with(UI_TEXT_MAX);
	va_list args;

	va_start(args, fmt);
	buf_addv(&text, fmt, args);
	va_end(args);
	return ui_print(app, stream, text.data, text.len);
}

int ui_printf_fit(struct app *app, enum ui_stream stream, size_t indent, const char *fmt, ...)
{
	AUTO_BUF struct buf text = buf_with(UI_TEXT_MAX), fitted = buf_with(UI_TEXT_MAX);
	va_list args;

	va_start(args, fmt);
	buf_addv(&text, fmt, args);
	va_end(args);
	ui_fit(app, stream, text.data, indent, &fitted);
	return ui_print(app, stream, fitted.data, fitted.len);
}

/*
 * Tables
 */

enum { TABLE_GAP = 2, TABLE_CUT_MIN = 8 };

void ui_table_init(struct ui_table *table, const struct ui_column *columns, size_t n_columns)
{
	*table = (struct ui_table){.columns = columns, .n_columns = n_columns};
	for (size_t i = 0; i < n_columns; i++)
		ui_table_add(table, UI_BOLD, columns[i].title);
}

void ui_table_done(struct ui_table *table)
{
	vec_foreach (struct ui_cell, cell, &table->cells)
		free(cell->text);
	vec_done(&table->cells);
}

void ui_table_add(struct ui_table *table, const char *style, const char *text)
{
	*vec_push(&table->cells) = (struct ui_cell){ui_clean(text), style};
}

void ui_table_addf(struct ui_table *table, const char *style, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *text = mem_vprintf(fmt, args);
	va_end(args);
	ui_table_add(table, style, text);
}

static bool may_cut(const struct ui_table *table, size_t column)
{
	return table->columns[column].cut || column + 1 == table->n_columns;
}

/* The widest column that is wider than min and may be cut (any: of all), or n_columns. */
static size_t find_widest(const struct ui_table *table, const size_t *widths, size_t min, bool any)
{
	size_t widest = table->n_columns;

	for (size_t i = 0; i < table->n_columns; i++)
		if ((any || may_cut(table, i)) && widths[i] > min &&
			(widest == table->n_columns || widths[i] > widths[widest]))
			widest = i;
	return widest;
}

/* The least important that is there still, of equal ones the last; never the first column. */
static size_t find_least(const struct ui_table *table, const size_t *widths)
{
	size_t least = 0;

	for (size_t i = 1; i < table->n_columns; i++)
		if (widths[i] && (!least || table->columns[i].drop >= table->columns[least].drop))
			least = i;
	return least;
}

static size_t total_of(const struct ui_table *table, const size_t *widths)
{
	size_t total = 0;

	for (size_t i = 0; i < table->n_columns; i++)
		total += widths[i] ? widths[i] + (total ? TABLE_GAP : 0) : 0;
	return total;
}

/* First texts are cut, then columns go until the rest would fit with texts cut, then all is cut. A
 * column without width is not shown. */
static void fit(const struct ui_table *table, size_t *widths, size_t width)
{
	size_t *least = mem_alloc(table->n_columns, sizeof(*least)), at;

	for (size_t i = 0; i < table->n_columns; i++)
		least[i] =
			may_cut(table, i) && widths[i] > TABLE_CUT_MIN ? TABLE_CUT_MIN : widths[i];
	while (total_of(table, least) > width && (at = find_least(table, widths)) > 0)
		widths[at] = least[at] = 0;
	free(least);
	for (size_t total = total_of(table, widths); total > width; total--) {
		at = find_widest(table, widths, TABLE_CUT_MIN, false);
		if (at == table->n_columns)
			at = find_widest(table, widths, 1, true);
		if (at == table->n_columns)
			return;
		widths[at]--;
	}
}

/* Blanks are kept back until something follows them. */
static void format_row(const struct app *app, const struct ui_table *table,
	const struct ui_cell *row, const size_t *widths, struct buf *out)
{
	size_t blanks = 0;

	for (size_t i = 0; i < table->n_columns; i++) {
		bool right = table->columns[i].right;
		AUTO_BUF struct buf text = buf_with(UI_TEXT_MAX);

		if (!widths[i])
			continue;
		ui_cut(app, row[i].text, widths[i], &text);
		size_t wide = str_columns(text.data);
		size_t pad = wide < widths[i] ? widths[i] - wide : 0;
		blanks += right ? pad : 0;
		if (wide) {
			buf_addf(out, "%*s%s%s%s", (int)blanks, "", row[i].style, text.data,
				*row[i].style ? UI_OFF : "");
			blanks = 0;
		}
		blanks += TABLE_GAP + (right ? 0 : pad);
	}
	buf_addc(out, '\n');
}

void ui_table_format(
	const struct app *app, const struct ui_table *table, size_t width, struct buf *out)
{
	size_t *widths = mem_alloc(table->n_columns, sizeof(*widths));

	for (size_t i = 0; i < table->cells.n; i++) {
		size_t wide = str_columns(table->cells.v[i].text);

		if (wide > widths[i % table->n_columns])
			widths[i % table->n_columns] = wide;
	}
	if (width)
		fit(table, widths, width);
	for (size_t i = 0; i + table->n_columns <= table->cells.n; i += table->n_columns)
		format_row(app, table, table->cells.v + i, widths, out);
	free(widths);
}

int ui_table_print(struct app *app, const struct ui_table *table)
{
	AUTO_BUF struct buf out = buf_with(UI_TEXT_MAX);

	ui_table_format(app, table, app->out_tty ? app->columns : 0, &out);
	return ui_print(app, UI_OUT, out.data, out.len);
}

/*
 * Time
 */

const char *ui_age(int64_t ms, char out[static 32])
{
	int64_t s = ms < 0 ? 0 : ms / 1000;

	if (s < 100)
		snprintf(out, 32, "%d s", (int)s);
	else if (s < 100 * 60)
		snprintf(out, 32, "%d min", (int)(s / 60));
	else if (s < 48 * 3600)
		snprintf(out, 32, "%d h", (int)(s / 3600));
	else
		snprintf(out, 32, "%lld d", (long long)(s / 86400));
	return out;
}

const char *ui_time(int64_t wall_ms, char out[static 32])
{
	char text[CLOCK_TEXT_SIZE];

	clock_format(wall_ms, text);
	snprintf(out, 32, "%.*sZ", (int)strcspn(text, "."), text);
	return out;
}
