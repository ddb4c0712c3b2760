/* SPDX-License-Identifier: Apache-2.0 */
#include "events/plugin_files.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

#define CHECKPOINT "checkpoint"
#define DEBUGGER   "tfdbg_events."

enum { WORD_MAX = 40, NAME_MAX_BYTES = 4096 };

static const char *const names[] = {
	PLUGIN_FILES_PROJECTOR, "*.pt.trace.json", "*.pt.trace.json.gz", DEBUGGER "*"};
static const char profiles[] = "*/plugins/profile/*";

void plugin_files_patterns(struct strv *ret)
{
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		strv_add(ret, names[i]);
	strv_add(ret, profiles);
}

bool plugin_files_is_one(const char *path)
{
	static const char dir[] = "plugins/profile/";

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (fnmatch(names[i], fs_basename(path), 0) == 0)
			return true;
	for (const char *at = path; (at = strstr(at, dir)); at++)
		if (at == path || at[-1] == '/')
			return true;
	return false;
}

bool plugin_files_is_appended(const char *path)
{
	return str_starts(fs_basename(path), DEBUGGER);
}

bool plugin_files_names_others(const char *path)
{
	return str_eq(fs_basename(path), PLUGIN_FILES_PROJECTOR) ||
	       str_eq(fs_basename(path), CHECKPOINT);
}

/*
 * Files named by others
 */

/* "./", the directory of config and path, made plain; false: it leads elsewhere. */
static bool plugin_files_resolve(const char *config, const char *path, struct buf *out)
{
	AUTO_FREE char *dir = mem_strndup(config, (size_t)(fs_basename(config) - config));
	AUTO_FREE char *all = mem_printf("%s%s", dir, path);

	buf_adds(out, ".");
	for (const char *at = all; *at; at += strspn(at, "/")) {
		size_t len = strcspn(at, "/");

		if (len == 2 && memcmp(at, "..", 2) == 0) {
			while (out->len > 1 && out->data[out->len - 1] != '/')
				out->len--;
			if (out->len <= 1)
				return false;
			out->len--;
		} else if (len != 1 || *at != '.') {
			buf_adds(out, "/");
			buf_add(out, at, len);
		}
		at += len;
	}
	return out->len > 1 && !out->full;
}

static void plugin_files_name(
	const char *config, const char *path, const char *suffix, struct strv *ret)
{
	AUTO_BUF struct buf out;

	buf_init(&out, NAME_MAX_BYTES);
	if (!*path || *path == '/' || !plugin_files_resolve(config, path, &out))
		return;
	for (size_t i = 0; i < out.len; i++)
		if (strchr("*?[\\\n", out.data[i]))
			out.data[i] = '?';
	strv_addf(ret, "%.*s%s", (int)out.len, out.data, suffix);
}

static bool plugin_files_add_field(
	const char *config, const char *field, const char *value, struct strv *ret)
{
	static const char *const fields[] = {
		"tensor_path", "metadata_path", "image_path", "bookmarks_path"};

	for (size_t i = 0; i < ARRAY_LEN(fields); i++)
		if (str_eq(field, fields[i]))
			plugin_files_name(config, value, "", ret);
	if (str_eq(field, "model_checkpoint_path")) {
		plugin_files_name(config, value, ".index", ret);
		plugin_files_name(config, value, ".data-*", ret);
	}
	return str_eq(field, "tensor_path");
}

/* Up to the quote that it began with; returns what is behind it. */
static const char *plugin_files_read_string(const char *at, const char *end, struct buf *out)
{
	static const char from[] = "ntrabfv", to[] = "\n\t\r\a\b\f\v";
	char quote = *at++;

	for (; at < end && *at != quote && *at != '\n'; at++) {
		char c = *at;

		if (c == '\\' && at + 1 < end) {
			const char *known = strchr(from, *++at);

			c = known && *at ? to[known - from] : *at;
			if (*at >= '0' && *at <= '7') {
				int value = 0;

				for (int i = 0; i < 3 && at < end && *at >= '0' && *at <= '7'; i++)
					value = value * 8 + (*at++ - '0');
				at--;
				c = (char)value;
			}
		}
		buf_add(out, &c, 1);
	}
	return at < end ? at + 1 : end;
}

static bool plugin_files_is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

static const char *plugin_files_read_word(
	const char *at, const char *end, char out[static WORD_MAX])
{
	size_t n = 0;

	for (; at < end && plugin_files_is_word(*at); at++)
		if (n < WORD_MAX - 1)
			out[n++] = *at;
	out[n] = '\0';
	return at;
}

struct naming {
	const char *path;
	char word[WORD_MAX]; /* that a value belongs to */
	bool has_tensors;
	struct strv *ret;
};

static const char *plugin_files_read_value(struct naming *naming, const char *at, const char *end)
{
	AUTO_BUF struct buf value;

	buf_init(&value, NAME_MAX_BYTES);
	at = plugin_files_read_string(at, end, &value);
	if (!value.full && value.len && !memchr(value.data, '\0', value.len))
		naming->has_tensors |=
			plugin_files_add_field(naming->path, naming->word, value.data, naming->ret);
	naming->word[0] = '\0';
	return at;
}

static const char *plugin_files_read_token(struct naming *naming, const char *at, const char *end)
{
	if (*at == '#') {
		const char *line = memchr(at, '\n', (size_t)(end - at));
		return line ? line : end;
	}
	if (*at == '"' || *at == '\'')
		return plugin_files_read_value(naming, at, end);
	if (plugin_files_is_word(*at))
		return plugin_files_read_word(at, end, naming->word);
	if (*at != ':' && !isspace((unsigned char)*at))
		naming->word[0] = '\0';
	return at + 1;
}

void plugin_files_named(const char *path, const char *text, size_t len, struct strv *ret)
{
	struct naming naming = {
		.path = path, .has_tensors = str_eq(fs_basename(path), CHECKPOINT), .ret = ret};

	for (const char *at = text, *end = text + len; at < end;)
		at = plugin_files_read_token(&naming, at, end);
	/* Then they are variables of the newest checkpoint beside it. */
	if (!naming.has_tensors)
		plugin_files_name(path, CHECKPOINT, "", ret);
}
