/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/proxy_name.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/target/fetch_sink.h"
#include "net/httpd/httpd_token.h"
#include "net/stream/url.h"

enum { PORT_MAX = 65535, LABELS_MAX = 4, HOST_MAX = 253 };

#define RUN_LETTERS "abcdefghijklmnopqrstuvwxyz0123456789-"

/* The parts of a name, the last one ("localhost") first. */
struct labels {
	char text[HOST_MAX + 1];
	const char *v[LABELS_MAX];
	size_t n;
};

static bool proxy_name_split(const char *host, struct labels *ret)
{
	size_t len = strlen(host);
	char *dot;

	if (len > HOST_MAX)
		return false;
	memcpy(ret->text, host, len + 1);
	ret->n = 0;
	while ((dot = strrchr(ret->text, '.')) && ret->n < LABELS_MAX - 1) {
		ret->v[ret->n++] = dot + 1;
		*dot = '\0';
	}
	ret->v[ret->n++] = ret->text;
	return true;
}

static bool proxy_name_parse_number(const char *text, int64_t min, int64_t max, int64_t *ret)
{
	return str_is_digit(*text) && (text[0] != '0' || !text[1]) &&
	       str_to_int(text, min, max, "number", ret, NULL) == 0;
}

/* ret: of that size. */
static bool copy_label(const char *label, char *ret, size_t size)
{
	size_t len = strlen(label);

	if (len == 0 || len >= size || label[strspn(label, RUN_LETTERS)])
		return false;
	memcpy(ret, label, len + 1);
	return true;
}

static bool proxy_name_parse_rank(const char *label, struct proxy_name *ret)
{
	int64_t rank;

	if (label[0] != 'r' || !proxy_name_parse_number(label + 1, 0, PROXY_RANK_MAX, &rank))
		return false;
	ret->rank = (int)rank;
	return true;
}

static bool proxy_name_parse_port(const char *label, struct proxy_name *ret)
{
	int64_t port;

	if (!proxy_name_parse_number(label, 1, PORT_MAX, &port))
		return false;
	ret->kind = PROXY_PORT;
	ret->port = (uint16_t)port;
	return true;
}

/* Parse the labels in front of RUN.localhost: files, or nothing, rN, ROLE, with or without PORT. */
static bool parse_prefix(const struct labels *labels, struct proxy_name *ret)
{
	if (labels->n == 2)
		return true;
	bool is_part = proxy_name_parse_rank(labels->v[2], ret);
	if (labels->n == 3 && str_eq(labels->v[2], "files"))
		ret->kind = PROXY_FILES;
	else if (!is_part)
		is_part = str_is_lower(labels->v[2][0]) &&
			  copy_label(labels->v[2], ret->role, sizeof(ret->role));
	if (labels->n == 4)
		return is_part && proxy_name_parse_port(labels->v[3], ret);
	return ret->kind == PROXY_FILES || is_part || proxy_name_parse_port(labels->v[2], ret);
}

int proxy_name_parse(const char *host, struct proxy_name *ret, struct err *err)
{
	struct proxy_name name = {.kind = PROXY_INDEX};
	struct labels labels;

	if (str_is_word_of(host, "localhost 127.0.0.1 ::1")) {
		*ret = name;
		return 0;
	}
	name.kind = PROXY_RUN;
	if (proxy_name_split(host, &labels) && labels.n >= 2 && str_eq(labels.v[0], "localhost") &&
		copy_label(labels.v[1], name.run, sizeof(name.run)) &&
		parse_prefix(&labels, &name)) {
		*ret = name;
		return 0;
	}
	AUTO_FREE char *shown = str_shown(host);
	err_set(err, E_USAGE, "'%s' is not a valid address of a run's port", shown);
	return err_hint(err, "http://6006.demo-3k2f9.localhost/ is port 6006 of demo-3k2f9, "
			     "6006.r1.demo-3k2f9.localhost that of its rank 1");
}

void proxy_name_add(const struct proxy_name *name, struct buf *out)
{
	if (name->kind == PROXY_FILES)
		buf_adds(out, "files.");
	if (name->kind == PROXY_PORT)
		buf_addf(out, "%u.", name->port);
	if (*name->role)
		buf_addf(out, "%s.", name->role);
	else if (name->rank)
		buf_addf(out, "r%d.", name->rank);
	if (name->kind != PROXY_INDEX)
		buf_addf(out, "%s.", name->run);
	buf_adds(out, "localhost");
}

void proxy_origin_add(const struct proxy_name *name, const struct proxy_here *here, struct buf *out)
{
	buf_adds(out, "http://");
	proxy_name_add(name, out);
	buf_addf(out, ":%u", here->port);
}

void proxy_url_add(const struct proxy_name *name, const struct proxy_here *here, const char *target,
	struct buf *out)
{
	char token[HTTPD_TOKEN_SIZE];
	AUTO_BUF struct buf host = buf_with(HOST_MAX);

	proxy_origin_add(name, here, out);
	if (!here->token) {
		buf_adds(out, target);
		return;
	}
	proxy_name_add(name, &host);
	httpd_token_of(here->token, host.data, token);
	AUTO_FREE char *whole = url_add_param(target, HTTPD_TOKEN_PARAM, token);
	buf_adds(out, whole);
}

void proxy_query_add(const struct proxy_here *here, struct buf *out)
{
	if (here->token)
		buf_addf(out, "?%s=%s", HTTPD_TOKEN_PARAM, here->token);
}

/*
 * Kinds
 */

#define PLAIN "text/plain; charset=utf-8"

static const struct {
	const char *names; /* what follows the dot, blanks between and around */
	struct proxy_type type;
} types[] = {
	{" png ", {PROXY_IMAGE, "image/png"}},
	{" jpg jpeg ", {PROXY_IMAGE, "image/jpeg"}},
	{" gif ", {PROXY_IMAGE, "image/gif"}},
	{" webp ", {PROXY_IMAGE, "image/webp"}},
	{" avif ", {PROXY_IMAGE, "image/avif"}},
	{" bmp ", {PROXY_IMAGE, "image/bmp"}},
	{" mp4 m4v ", {PROXY_VIDEO, "video/mp4"}},
	{" webm ", {PROXY_VIDEO, "video/webm"}},
	{" ogv ", {PROXY_VIDEO, "video/ogg"}},
	{" mov ", {PROXY_VIDEO, "video/quicktime"}},
	{" wav ", {PROXY_AUDIO, "audio/wav"}},
	{" mp3 ", {PROXY_AUDIO, "audio/mpeg"}},
	{" ogg oga opus ", {PROXY_AUDIO, "audio/ogg"}},
	{" flac ", {PROXY_AUDIO, "audio/flac"}},
	{" m4a ", {PROXY_AUDIO, "audio/mp4"}},
	{" txt log out err json jsonl ndjson csv tsv yaml yml toml ini cfg conf md rst tex bib py "
	 "pyi ipynb sh c h cc cpp cu cuh rs go js ts css java jl r lua sql html htm xhtml xml svg "
	 "diff patch vtt srt ",
		{PROXY_TEXT, PLAIN}},
};

static const struct proxy_type saved = {PROXY_SAVED, "application/octet-stream"};

const struct proxy_type *proxy_type_of(const char *path)
{
	const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
	const char *dot = strrchr(name, '.');

	if (!dot || dot == name || !dot[1] || strchr(dot, ' '))
		return &saved;
	AUTO_FREE char *lower = str_lower(dot + 1, strlen(dot + 1));
	AUTO_FREE char *word = mem_printf(" %s ", lower);
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		if (strstr(types[i].names, word))
			return &types[i].type;
	return &saved;
}

/*
 * Paths
 */

/* Decode one byte of the request target; 0: there is none. */
static char next_byte(const char **at)
{
	const char *s = *at;
	uint8_t byte;

	if (*s != '%') {
		*at = s + 1;
		return *s;
	}
	if (!hex_decode(s + 1, 1, &byte))
		return 0;
	*at = s + 3;
	return (char)byte;
}

char *proxy_path_decode(const char *target)
{
	size_t len = strcspn(target, "?#"), n = 0;
	const char *at = target + 1, *end = target + len;

	if (target[0] != '/')
		return NULL;
	AUTO_FREE char *path = mem_alloc(len + 1, 1);
	while (at < end) {
		char byte = next_byte(&at);

		if (!byte || at > end)
			return NULL;
		path[n++] = byte;
	}
	return fetch_path_is_proper(path) ? TAKE(path) : NULL;
}

/*
 * Ranges
 */

/* As it is written: either may be missing. */
struct positions {
	bool has_first, has_last;
	uint64_t first, last;
};

/* Digits up to end, or nothing at all: *ret_given is false. */
static bool parse_position(const char *s, const char *end, bool *ret_given, uint64_t *ret)
{
	*ret = 0;
	*ret_given = s < end;
	for (; s < end; s++) {
		if (!str_is_digit(*s) || *ret > (UINT64_MAX - 9) / 10)
			return false;
		*ret = *ret * 10 + (uint64_t)(*s - '0');
	}
	return true;
}

static bool parse_positions(const char *text, struct positions *ret)
{
	const char *dash = strchr(text, '-');

	if (!dash || !parse_position(text, dash, &ret->has_first, &ret->first) ||
		!parse_position(dash + 1, dash + strlen(dash), &ret->has_last, &ret->last))
		return false;
	return ret->has_first ? !ret->has_last || ret->first <= ret->last : ret->has_last;
}

int proxy_range_parse(const char *value, uint64_t size, struct proxy_range *ret)
{
	static const char unit[] = "bytes=";
	struct positions at;

	*ret = (struct proxy_range){0, size};
	if (!value || strncasecmp(value, unit, sizeof(unit) - 1) != 0 ||
		!parse_positions(value + sizeof(unit) - 1, &at))
		return 200;
	if (!at.has_first) {
		if (at.last == 0 || size == 0)
			return 416;
		at.first = at.last < size ? size - at.last : 0;
		at.has_last = false;
	}
	if (at.first >= size)
		return 416;
	if (!at.has_last || at.last >= size)
		at.last = size - 1;
	*ret = (struct proxy_range){at.first, at.last - at.first + 1};
	return 206;
}
