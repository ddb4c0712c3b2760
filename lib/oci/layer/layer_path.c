/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layer/layer_path.h"

#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/str.h"

enum { WHITEOUT_LEN = sizeof(LAYER_WHITEOUT_PREFIX) - 1 };

const char *layer_prefix(const char *workdir)
{
	return workdir + strspn(workdir, "/");
}

static bool is_dots(const char *name, size_t len)
{
	return (len == 1 || len == 2) && memcmp(name, "..", len) == 0;
}

static bool is_whiteout(const char *name, size_t len)
{
	return len >= WHITEOUT_LEN && memcmp(name, LAYER_WHITEOUT_PREFIX, WHITEOUT_LEN) == 0;
}

bool layer_path_is_valid(const char *path)
{
	const char *at = path;

	if (entry_path_has_git(path))
		return false;
	for (;;) {
		size_t len = strcspn(at, "/");
		if (len == 0 || len > ENTRY_NAME_MAX || is_dots(at, len) || is_whiteout(at, len))
			return false;
		at += len;
		if (!*at)
			return at - path <= ENTRY_PATH_MAX;
		at++;
	}
}

static int refuse(struct err *err, const char *name, const char *why)
{
	AUTO_FREE char *shown = str_shown(name);

	return err_set(err, E_IMAGE, "a layer has the name \"%s\": %s", shown, why);
}

/* Check a component of a name; last: nothing but slashes and dots follows. NULL, or why not. */
static const char *check_component(const char *at, size_t len, bool last)
{
	if (len == 2 && is_dots(at, len))
		return "it leads out of the image";
	if (!is_whiteout(at, len))
		return len > ENTRY_NAME_MAX ? "a part of it is over 255 bytes" : NULL;
	if (!last)
		return "what is deleted holds nothing";
	if (len == sizeof(LAYER_OPAQUE_NAME) - 1 && memcmp(at, LAYER_OPAQUE_NAME, len) == 0)
		return NULL;
	at += WHITEOUT_LEN;
	len -= WHITEOUT_LEN;
	if (len == 0 || is_dots(at, len) || is_whiteout(at, len))
		return "it deletes nothing that can have a name";
	return len > ENTRY_NAME_MAX ? "a part of it is over 255 bytes" : NULL;
}

static const char *skip_blank_components(const char *at)
{
	for (;;) {
		if (*at == '/')
			at++;
		else if (at[0] == '.' && (at[1] == '/' || !at[1]))
			at++;
		else
			return at;
	}
}

/* name with single slashes between its components, in out. NULL, or why not. */
static const char *clean(const char *name, struct buf *out)
{
	const char *at = name;

	if (!*name)
		return "it is empty";
	if (*name == '/')
		return "it is absolute";
	while (*(at = skip_blank_components(at))) {
		size_t len = strcspn(at, "/");
		bool last = !*skip_blank_components(at + len);
		const char *why = check_component(at, len, last);
		if (why)
			return why;
		if (out->len)
			buf_addc(out, '/');
		buf_add(out, at, len);
		at += len;
	}
	return out->full ? "it is too long" : NULL;
}

/* Take the whiteout off the end of a clean name. */
static enum layer_mark take_mark(struct buf *name)
{
	char *slash = strrchr(name->data, '/');
	size_t dir_len = slash ? (size_t)(slash - name->data) : 0;
	const char *last = slash ? slash + 1 : name->data;

	if (!is_whiteout(last, strlen(last)))
		return LAYER_PLAIN;
	if (str_eq(last, LAYER_OPAQUE_NAME)) {
		buf_truncate(name, dir_len);
		return LAYER_EMPTIED;
	}
	size_t at = (size_t)(last - name->data), rest = strlen(last) - WHITEOUT_LEN;
	memmove(name->data + at, last + WHITEOUT_LEN, rest);
	buf_truncate(name, at + rest);
	return LAYER_REMOVED;
}

/* Where a clean name lies; *ret_rest: relative to the workdir. */
static enum layer_place place_of(const char *name, const char *prefix, const char **ret_rest)
{
	size_t name_len = strlen(name), prefix_len = strlen(prefix);

	*ret_rest = "";
	if (name_len == 0)
		return LAYER_ABOVE;
	if (prefix_len == 0) {
		*ret_rest = name;
		return LAYER_INSIDE;
	}
	if (name_len <= prefix_len) {
		bool above = memcmp(name, prefix, name_len) == 0 &&
			     (prefix[name_len] == '/' || !prefix[name_len]);
		return above ? LAYER_ABOVE : LAYER_OUTSIDE;
	}
	if (memcmp(name, prefix, prefix_len) != 0 || name[prefix_len] != '/')
		return LAYER_OUTSIDE;
	*ret_rest = name + prefix_len + 1;
	return LAYER_INSIDE;
}

int layer_path_parse(const char *name, const char *workdir, struct layer_path *ret, struct err *err)
{
	const char *prefix = layer_prefix(workdir), *rest;
	AUTO_BUF struct buf cleaned;

	buf_init(&cleaned, strlen(prefix) + 1 + ENTRY_PATH_MAX + WHITEOUT_LEN);
	const char *why = clean(name, &cleaned);
	if (why)
		return refuse(err, name, why);
	ret->mark = take_mark(&cleaned);
	ret->place = place_of(cleaned.data, prefix, &rest);
	size_t len = strlen(rest);
	if (ret->mark == LAYER_PLAIN && entry_path_has_git(rest))
		return refuse(err, name, "programs in a .git directory run by themselves");
	if (len > ENTRY_PATH_MAX)
		return refuse(err, name, "it is over 4,095 bytes");
	memcpy(ret->path, rest, len + 1);
	return 0;
}
