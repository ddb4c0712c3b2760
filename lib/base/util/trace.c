/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/term.h"

static const char *const trace_names[] = {
	[TRACE_HTTP] = "http",
	[TRACE_KUBE] = "kube",
	[TRACE_SSH] = "ssh",
	[TRACE_OCI] = "oci",
	[TRACE_LOOP] = "loop",
	[TRACE_STORE] = "store",
};

unsigned trace_mask;
static int64_t trace_start_ms;
static char *trace_path; /* NULL: stderr */

static int trace_open(void)
{
	return open(trace_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);
}

/*
 * The setting
 */

static int trace_unknown(const char *name, struct err *err)
{
	AUTO_FREE char *shown = str_shown(name);
	AUTO_BUF struct buf known = buf_with(TRACE_LINE_MAX);

	for (size_t i = 0; i < ARRAY_LEN(trace_names); i++)
		buf_addf(&known, "%s, ", trace_names[i]);
	return err_set(err, E_USAGE, "DLRUN_TRACE: unknown category '%s'; known: %sall", shown,
		known.data);
}

static int trace_parse(const char *names, unsigned *ret_mask, struct err *err)
{
	unsigned mask = 0;

	for (const char *at = names;; at++) {
		size_t len = strcspn(at, ","), i = 0;
		AUTO_FREE char *name = mem_strndup(at, len);

		while (i < ARRAY_LEN(trace_names) && !str_eq(name, trace_names[i]))
			i++;
		if (i < ARRAY_LEN(trace_names))
			mask |= 1U << i;
		else if (str_eq(name, "all"))
			mask |= ~0U;
		else
			return trace_unknown(name, err);
		at += len;
		if (!*at)
			break;
	}
	*ret_mask = mask;
	return 0;
}

int trace_start(const char *setting, struct err *err)
{
	AUTO_FREE char *names = NULL;
	unsigned mask = 0;

	if (str_empty(setting))
		return 0;
	size_t len = strcspn(setting, ":");
	names = mem_strndup(setting, len);
	int r = trace_parse(names, &mask, err);
	if (r < 0)
		return r;
	trace_stop();
	if (setting[len] == ':') {
		const char *file = setting + len + 1;
		AUTO_FREE char *dir = *file == '/' ? mem_strdup("") : getcwd(NULL, 0);

		if (!dir)
			return err_set_errno(err, E_IO, errno,
				"DLRUN_TRACE: the current directory cannot be found");
		/* The directory may change: -C. */
		trace_path = mem_printf("%s%s%s", dir, *file == '/' ? "" : "/", file);
		AUTO_FD int fd = trace_open();
		if (fd < 0) {
			AUTO_FREE char *shown = str_shown(file);
			r = err_set_errno(
				err, E_IO, errno, "DLRUN_TRACE: cannot write to %s", shown);
			trace_stop();
			return r;
		}
	}
	trace_start_ms = clock_ms();
	trace_mask = mask;
	return 0;
}

void trace_stop(void)
{
	trace_mask = 0;
	free(TAKE(trace_path));
}

/*
 * Lines
 */

static bool trace_ends_value(char c)
{
	return (unsigned char)c <= ' ' || c == '"' || c == '\'' || c == ',' || c == ')' ||
	       c == '<' || c == '>';
}

/* The end of a secret: of its quotes, or where it meets a blank. Marks that may be of the sentence
 * do not end it, unless they are its last. */
static const char *trace_secret_end(const char *s)
{
	static const char ends[] = " \t\r\n\"<>", marks[] = ":,)'";
	const char *end = s + strcspn(s, ends);

	if (*s == '"' || *s == '\'') {
		const char *quote = strchr(s + 1, *s);
		return quote ? quote + 1 : s + strlen(s);
	}
	while (end > s && strchr(marks, end[-1]))
		end--;
	return end;
}

/* At "://": append it and what follows up to the end of the URL, without what may be secret.
 * Returns what is behind it. */
static const char *trace_url(const char *s, struct buf *out)
{
	const char *host = s + 3, *path = host + strcspn(host, "/?# \t\r\n\"<>"), *end;

	for (const char *at = host; at < path; at++)
		if (*at == '@')
			host = at + 1;
	for (end = host; *end != '?' && !trace_ends_value(*end);)
		end++;
	buf_adds(out, host > s + 3 ? "://…@" : "://");
	if (*end == '?') {
		buf_add(out, host, (size_t)(end - host));
		buf_adds(out, "?…");
		return trace_secret_end(end + 1);
	}
	if (end > host && end[-1] == ':') /* of the sentence */
		end--;
	buf_add(out, host, (size_t)(end - host));
	return end;
}

/* Whether what begins at s introduces a secret: its length. The rest of the line of a header is
 * secret, of a scheme the next word. */
static size_t trace_introduces(const char *s, bool *ret_is_line)
{
	static const struct {
		const char *text;
		bool is_line;
	} table[] = {{"authorization:", true}, {"authorization=", true}, {"cookie:", true},
		{"bearer ", false}, {"basic ", false}, {"password=", false}, {"token=", false}};

	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		size_t len = strlen(table[i].text);

		if (strncasecmp(s, table[i].text, len) != 0)
			continue;
		*ret_is_line = table[i].is_line;
		return len;
	}
	return 0;
}

static void trace_redact(const char *s, struct buf *out)
{
	while (*s) {
		bool is_line;
		size_t len = trace_introduces(s, &is_line);

		if (len) {
			buf_add(out, s, len);
			buf_adds(out, is_line ? " …" : "…");
			s += len;
			s = is_line ? s + strcspn(s, "\n") : trace_secret_end(s);
		} else if (str_starts(s, "://")) {
			s = trace_url(s, out);
		} else {
			buf_addc(out, *s++);
		}
	}
}

/* Cut at a character. */
static void trace_cut(struct buf *line)
{
	static const char more[] = "…\n";
	if (line->len < TRACE_LINE_MAX) {
		buf_addc(line, '\n');
		return;
	}
	buf_truncate(line, str_fit(line->data, TRACE_LINE_MAX - strlen(more)));
	buf_adds(line, more);
}

/* FILE is opened for each line: a supervisor closes what it inherits, and the number of a
 * descriptor may then be that of another file. One write: lines of several processes do not mix. */
void trace_write(enum trace_category category, const char *fmt, ...)
{
	int saved = errno;
	AUTO_BUF struct buf text = buf_with(4 * TRACE_LINE_MAX),
			    redacted = buf_with(8 * TRACE_LINE_MAX),
			    line = buf_with(64 * TRACE_LINE_MAX);
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *message = mem_vprintf(fmt, args);
	va_end(args);
	buf_add(&text, message, strnlen(message, 4 * TRACE_LINE_MAX));
	trace_redact(text.data, &redacted);
	buf_addf(&line, "%6lld %-5s ", (long long)(clock_ms() - trace_start_ms),
		trace_names[category]);
	term_clean(redacted.data, redacted.len, true, &line);
	trace_cut(&line);
	AUTO_FD int file = trace_path ? trace_open() : -1;
	int fd = trace_path ? file : STDERR_FILENO;
	if (fd >= 0 && write(fd, line.data, line.len) < 0)
		errno = saved; /* nobody can be told */
	errno = saved;
}
