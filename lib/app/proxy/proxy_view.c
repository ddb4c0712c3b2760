/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/proxy_view.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/url.h"

/*
 * Names
 */

enum view_kind { VIEW_TEXT, VIEW_LIST, VIEW_COMMAS };
static const struct view_name {
	const char *name;
	enum view_kind kind;
	size_t offset;
	size_t max; /* of a list */
} view_names[] = {
	{"q", VIEW_TEXT, offsetof(struct proxy_view, query), 0},
	{"group", VIEW_TEXT, offsetof(struct proxy_view, group), 0},
	{"sort", VIEW_TEXT, offsetof(struct proxy_view, sort), 0},
	{"columns", VIEW_COMMAS, offsetof(struct proxy_view, columns), PROXY_VIEW_COLUMNS_MAX},
	{"x", VIEW_TEXT, offsetof(struct proxy_view, x), 0},
	{"y", VIEW_TEXT, offsetof(struct proxy_view, y), 0},
	{"run", VIEW_LIST, offsetof(struct proxy_view, runs), PROXY_VIEW_RUNS_MAX},
};

static void *view_member(const struct proxy_view *view, const struct view_name *name)
{
	return (char *)(uintptr_t)view + name->offset;
}

static const struct view_name *view_find_name(const char *text, size_t len)
{
	for (size_t i = 0; i < ARRAY_LEN(view_names); i++)
		if (strlen(view_names[i].name) == len && memcmp(view_names[i].name, text, len) == 0)
			return &view_names[i];
	return NULL;
}

/*
 * Reading
 */

/* A value as forms write it ("+" is a blank); NULL: it is empty, or no text. The caller frees. */
static char *view_decode(const char *text, size_t len)
{
	AUTO_BUF struct buf out = buf_with(PROXY_VIEW_VALUE_MAX);

	for (size_t i = 0; i < len; i++) {
		uint8_t byte;

		if (text[i] != '%') {
			buf_addc(&out, text[i] == '+' ? ' ' : text[i]);
			continue;
		}
		if (len - i < 3 || !hex_decode(text + i + 1, 1, &byte))
			return NULL;
		buf_addc(&out, (char)byte);
		i += 2;
	}
	if (out.full || !out.len || strlen(out.data) != out.len || !str_is_plain(out.data))
		return NULL;
	return buf_take(&out);
}

static void view_add_item(struct strv *list, const char *item, size_t max)
{
	for (size_t i = 0; i < list->n; i++)
		if (str_eq(list->v[i], item))
			return;
	if (*item && list->n < max)
		strv_add(list, item);
}

static void view_set(struct proxy_view *view, const struct view_name *name, char *value)
{
	char **text = view_member(view, name);

	if (name->kind == VIEW_LIST) {
		view_add_item(view_member(view, name), value, name->max);
	} else if (name->kind == VIEW_COMMAS) {
		for (char *rest = value, *item; (item = strsep(&rest, ","));)
			view_add_item(view_member(view, name), item, name->max);
	} else if (!*text) {
		*text = mem_strdup(value);
	}
}

void proxy_view_parse(const char *target, struct proxy_view *ret)
{
	size_t path = strcspn(target, "?#");
	const char *at = target + path + (target[path] == '?');

	*ret = (struct proxy_view){.path = mem_strndup(target, path)};
	while (*at && *at != '#') {
		size_t len = strcspn(at, "&#"), equals = strcspn(at, "=&#");
		const struct view_name *name = view_find_name(at, equals);

		if (name && equals < len) {
			AUTO_FREE char *value = view_decode(at + equals + 1, len - equals - 1);
			if (value)
				view_set(ret, name, value);
		}
		at += len + (at[len] == '&');
	}
}

void proxy_view_done(struct proxy_view *view)
{
	if (!view)
		return;
	for (size_t i = 0; i < ARRAY_LEN(view_names); i++) {
		if (view_names[i].kind == VIEW_TEXT)
			free(*(char **)view_member(view, &view_names[i]));
		else
			strv_done(view_member(view, &view_names[i]));
	}
	free(view->path);
	*view = (struct proxy_view){0};
}

/*
 * Writing
 */

static void view_encode(struct buf *out, const char *text)
{
	for (; *text; text++) {
		if (*text == ' ')
			buf_addc(out, '+');
		else
			url_add_escaped(out, text, 1, "");
	}
}

static void view_add_name(struct buf *out, const struct view_name *name, bool *is_first)
{
	buf_addf(out, "%c%s=", *is_first ? '?' : '&', name->name);
	*is_first = false;
}

static void view_add_list(
	struct buf *out, const struct view_name *name, const struct strv *list, bool *is_first)
{
	for (size_t i = 0; i < list->n; i++) {
		if (i == 0 || name->kind == VIEW_LIST)
			view_add_name(out, name, is_first);
		else
			buf_addc(out, ',');
		view_encode(out, list->v[i]);
	}
}

void proxy_view_add(const struct proxy_view *view, struct buf *out)
{
	bool is_first = true;

	buf_adds(out, view->path);
	for (size_t i = 0; i < ARRAY_LEN(view_names); i++) {
		const struct view_name *name = &view_names[i];

		if (name->kind != VIEW_TEXT) {
			view_add_list(out, name, view_member(view, name), &is_first);
			continue;
		}
		const char *text = *(char **)view_member(view, name);
		if (text) {
			view_add_name(out, name, &is_first);
			view_encode(out, text);
		}
	}
}

void proxy_view_add_sorted(const struct proxy_view *view, const char *sort, struct buf *out)
{
	struct proxy_view other = *view;
	AUTO_FREE char *copy = sort ? mem_strdup(sort) : NULL;

	other.sort = copy;
	proxy_view_add(&other, out);
}
