/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/study/axes_impl.h"

void cases_done(struct cases *cases)
{
	strv_done(&cases->keys);
	strv_done(&cases->values);
	cases->n = 0;
}

const char *cases_get(const struct cases *cases, size_t row, size_t key)
{
	BUG_ON(row >= cases->n || key >= cases->keys.n);
	return cases->values.v[row * cases->keys.n + key];
}

/*
 * Both forms of a file
 */

struct cases_reader {
	const char *path;
	const char *name; /* the path for messages */
	const char *at, *end;
	unsigned line;
	struct cases *to;
	/* Of CSV */
	struct buf field;
	bool is_quoted, is_last; /* the field, in its record */
};

static int cases_error(const struct cases_reader *in, struct err *err, const char *fmt, ...)
	ERR_PRINTF(3, 4);
static int cases_error(const struct cases_reader *in, struct err *err, const char *fmt, ...)
{
	AUTO_FREE char *text = NULL;
	va_list args;

	va_start(args, fmt);
	text = mem_vprintf(fmt, args);
	va_end(args);
	return err_set(err, E_DATA, "%s:%u: %s", in->name, in->line, text);
}

static int cases_add_key(struct cases_reader *in, const char *key, struct err *err)
{
	AUTO_FREE char *shown = str_shown(key);

	if (!*key)
		return cases_error(in, err, "a column has no name");
	if (!axis_name_is_valid(key, strlen(key)))
		return cases_error(in, err,
			"\"%s\" is not a name: a letter or \"_\", followed by letters, digits and "
			"_ . - /, %d at most",
			shown, AXES_NAME_MAX);
	if (axis_name_is_reserved(key))
		return cases_error(
			in, err, "{%s} has a meaning of its own: another name is needed", key);
	if (strv_find(&in->to->keys, key) >= 0)
		return cases_error(in, err, "the name %s stands twice", key);
	if (in->to->keys.n == AXES_MAX)
		return cases_error(in, err, "more than %d names", AXES_MAX);
	strv_add(&in->to->keys, key);
	return 0;
}

static int cases_check_text(const struct cases_reader *in, const char *text, struct err *err)
{
	struct axis_source source = {
		.id = E_DATA, .where = mem_printf("%s:%u", in->name, in->line)};
	int r = axis_check_text(text, &source, err);

	axis_source_done(&source);
	return r;
}

static int cases_begin_row(const struct cases_reader *in, struct err *err)
{
	if (in->to->n < CASES_MAX)
		return 0;
	return err_set(err, E_DATA_LIMIT, "%s:%u: a study has at most %d members", in->name,
		in->line, CASES_MAX);
}

/* Skip lines of blanks. False at the end of the file. */
static bool cases_skip_empty(struct cases_reader *in)
{
	const char *at = in->at;

	for (; at < in->end && strchr(" \t\r\n", *at); at++)
		if (*at == '\n') {
			in->line++;
			in->at = at + 1;
		}
	return at < in->end;
}

/*
 * CSV
 */

static void cases_skip_blanks(struct cases_reader *in)
{
	while (in->at < in->end && (*in->at == ' ' || *in->at == '\t'))
		in->at++;
}

/* The end of a line at the place, in bytes; 0: none. */
static size_t cases_line_end(const struct cases_reader *in)
{
	if (in->at < in->end && *in->at == '\n')
		return 1;
	if (in->at < in->end && *in->at == '\r' && (in->at + 1 == in->end || in->at[1] == '\n'))
		return in->at + 1 == in->end ? 1 : 2;
	return 0;
}

static int cases_read_quoted(struct cases_reader *in, struct err *err)
{
	in->is_quoted = true;
	for (in->at++; in->at < in->end && *in->at != '\n'; in->at++) {
		bool is_doubled = in->at + 1 < in->end && in->at[1] == '"';

		if (*in->at == '"' && !is_doubled)
			break;
		in->at += *in->at == '"';
		buf_addc(&in->field, *in->at);
	}
	if (in->at == in->end)
		return cases_error(in, err, "a quote is not closed");
	if (*in->at == '\n')
		return cases_error(
			in, err, "a line ends within quotes: a value is one line of text");
	in->at++;
	cases_skip_blanks(in);
	if (in->at < in->end && *in->at != ',' && !cases_line_end(in))
		return cases_error(in, err, "there is text behind a closing quote");
	return 0;
}

static void cases_read_bare(struct cases_reader *in)
{
	for (; in->at < in->end && *in->at != ',' && !cases_line_end(in); in->at++)
		buf_addc(&in->field, *in->at);
	while (in->field.len && strchr(" \t", in->field.data[in->field.len - 1]))
		buf_truncate(&in->field, in->field.len - 1);
}

/* Read a field, and the comma or the end of the line behind it. */
static int cases_read_field(struct cases_reader *in, struct err *err)
{
	int r = 0;

	buf_reset(&in->field);
	in->is_quoted = false;
	cases_skip_blanks(in);
	if (in->at < in->end && *in->at == '"')
		r = cases_read_quoted(in, err);
	else
		cases_read_bare(in);
	if (r < 0)
		return r;
	in->is_last = in->at == in->end || *in->at != ',';
	if (!in->is_last)
		in->at++;
	return 0;
}

static void cases_end_line(struct cases_reader *in)
{
	in->at += cases_line_end(in);
	in->line++;
}

static int cases_read_header(struct cases_reader *in, struct err *err)
{
	int r;

	do {
		r = cases_read_field(in, err);
		if (r == 0)
			r = cases_add_key(in, in->field.data, err);
	} while (r == 0 && !in->is_last);
	cases_end_line(in);
	return r;
}

static int cases_read_record(struct cases_reader *in, struct err *err)
{
	const struct strv *keys = &in->to->keys;
	size_t n = 0;
	int r = cases_begin_row(in, err);

	for (in->is_last = false; r == 0 && !in->is_last; n++) {
		r = cases_read_field(in, err);
		if (r < 0)
			return r;
		if (n == keys->n)
			return cases_error(in, err, "more values than the %zu names", keys->n);
		if (!in->field.len && !in->is_quoted) {
			cases_error(in, err, "there is no value for %s", keys->v[n]);
			return err_hint(err, "\"\" is an empty one");
		}
		r = cases_check_text(in, in->field.data, err);
		strv_add(&in->to->values, in->field.data);
	}
	if (r < 0)
		return r;
	if (n < keys->n)
		return cases_error(in, err, "%zu values, but %zu names", n, keys->n);
	in->to->n++;
	cases_end_line(in);
	return 0;
}

static int cases_read_csv(struct cases_reader *in, struct err *err)
{
	int r;

	buf_init(&in->field, CASES_FILE_MAX);
	r = cases_read_header(in, err);
	while (r == 0 && cases_skip_empty(in))
		r = cases_read_record(in, err);
	buf_done(&in->field);
	return r;
}

/*
 * JSON lines. Numbers are taken from the text, which is valid then, so that they stay as they are
 * written.
 */

static const char *cases_json_string_end(const char *at)
{
	for (at++; *at != '"'; at++)
		at += *at == '\\';
	return at + 1;
}

/* The end of the value at that place. */
static const char *cases_json_end(const char *at)
{
	unsigned depth = 0;

	do {
		if (*at == '"') {
			at = cases_json_string_end(at);
			continue;
		}
		depth += *at == '{' || *at == '[';
		depth -= *at == '}' || *at == ']';
		at++;
	} while (depth || !strchr(",}] \t\r", *at));
	return at;
}

/* The text of a member, and its value in the text of the line. */
static char *cases_json_value(const struct json *member, const char *at, const char *end)
{
	struct buf out;

	if (json_kind(member) == JSON_NUMBER)
		return mem_strndup(at, (size_t)(end - at));
	buf_init(&out, JSON_SIZE_MAX);
	axis_json_text(member, &out);
	return out.data;
}

static int cases_json_members(struct cases_reader *in, const struct json *object, const char *text,
	char **row, struct err *err)
{
	bool is_first = in->to->keys.n == 0;

	for (const struct json *m = json_first(object); m; m = json_next(m)) {
		const char *at = cases_json_string_end(strchr(text, '"'));
		int r = is_first ? cases_add_key(in, json_key(m), err) : 0;
		ptrdiff_t k = strv_find(&in->to->keys, json_key(m));

		at += strspn(at, " \t\r:");
		if (r < 0)
			return r;
		if (k < 0) {
			AUTO_FREE char *shown = str_shown(json_key(m));
			return cases_error(
				in, err, "the first line does not have the key %s", shown);
		}
		text = cases_json_end(at);
		row[k] = cases_json_value(m, at, text);
		r = cases_check_text(in, row[k], err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int cases_read_line(struct cases_reader *in, struct err *err)
{
	const char *newline = memchr(in->at, '\n', (size_t)(in->end - in->at));
	size_t len = (size_t)((newline ? newline : in->end) - in->at);
	AUTO_FREE char *text = mem_strndup(in->at, len);
	AUTO_FREE char *what = mem_printf("%s:%u", in->name, in->line);
	AUTO_JSON struct json *object = NULL;
	int r = json_parse(text, len, JSON_SIZE_MAX, what, &object, err);

	if (r < 0)
		return r;
	if (json_kind(object) != JSON_OBJECT || !json_count(object))
		return cases_error(in, err, "each line must be an object with members");
	char *row[AXES_MAX] = {0};
	r = cases_begin_row(in, err);

	if (r == 0)
		r = cases_json_members(in, object, text, row, err);
	for (size_t k = 0; r == 0 && k < in->to->keys.n; k++)
		if (!row[k])
			r = cases_error(in, err, "the key %s is missing", in->to->keys.v[k]);
	for (size_t k = 0; k < AXES_MAX; k++) {
		if (r == 0 && row[k])
			strv_add_take(&in->to->values, row[k]);
		else
			free(row[k]);
	}
	in->to->n += r == 0;
	in->at += len + (newline != NULL);
	in->line++;
	return r;
}

static int cases_read_lines(struct cases_reader *in, struct err *err)
{
	int r = 0;

	while (r == 0 && cases_skip_empty(in))
		r = cases_read_line(in, err);
	return r;
}

int cases_read(const char *text, size_t len, const char *name, struct cases *ret, struct err *err)
{
	AUTO_CASES struct cases cases = {0};
	AUTO_FREE char *copy = NULL, *shown = str_escaped(name);
	struct cases_reader in = {.path = name, .name = shown, .line = 1, .to = &cases};
	int r;

	if (len > CASES_FILE_MAX)
		return err_set(err, E_DATA_LIMIT, "%s: a file of cases has at most %d MiB", shown,
			CASES_FILE_MAX >> 20);
	if (len && memchr(text, '\0', len))
		return err_set(err, E_DATA, "%s is not a text: it has NUL bytes", shown);
	copy = mem_strndup(text, len);
	in.at = copy + (str_starts(copy, "\xef\xbb\xbf") ? 3 : 0);
	in.end = copy + len;
	if (!cases_skip_empty(&in))
		return cases_error(&in, err, "the file is empty");
	const char *at = in.at + strspn(in.at, " \t");
	if (*at == '[') {
		cases_error(&in, err, "each line must be an object; this is a list");
		AUTO_BUF struct buf quoted = buf_with(1 << 16);

		str_shell_quote(&quoted, in.path);
		return err_hint(err, "jq -c '.[]' %s", quoted.data);
	}
	r = *at == '{' ? cases_read_lines(&in, err) : cases_read_csv(&in, err);
	if (r == 0 && !in.to->n)
		return cases_error(&in, err, "there are names, but no cases");
	if (r < 0)
		return r;
	*ret = cases;
	cases = (struct cases){0};
	return 0;
}
