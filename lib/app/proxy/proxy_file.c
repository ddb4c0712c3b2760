/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/proxy_file.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"

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

static bool is_part(const char *part, size_t len)
{
	return len && !(len == 1 && part[0] == '.') && !(len == 2 && memcmp(part, "..", 2) == 0);
}

static bool is_path(const char *path)
{
	for (;;) {
		size_t len = strcspn(path, "/");

		if (!is_part(path, len))
			return false;
		if (!path[len])
			return true;
		path += len + 1;
	}
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
	return is_path(path) ? TAKE(path) : NULL;
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
