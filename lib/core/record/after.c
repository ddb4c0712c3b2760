/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/after.h"

#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/run.h"

enum { AFTER_NAMES_MAX = 64 << 10 };

struct json *after_to_json(const struct after_list *list)
{
	struct json *json = list->n ? json_array() : NULL;

	vec_foreach (struct after, after, list) {
		struct json *item = json_object();
		json_set_str(item, after->is_study ? "study" : "run", after->id);
		json_set_str(item, "when", after->any ? "any" : "ok");
		json_add(json, item);
	}
	return json;
}

static int after_read(const struct json *json, struct after_list *list, struct err *err)
{
	const char *run = json_get_str(json, "run"), *study = json_get_str(json, "study");
	const char *when = json_get_str(json, "when"), *id = run ? run : study;

	if (!id || !run_id_is_valid(id) || (!str_eq(when, "ok") && !str_eq(when, "any")) ||
		list->n == AFTER_MAX)
		return err_set(err, E_DATA, "the list of runs that it begins after is damaged");
	after_add(list, id, !run, str_eq(when, "any"));
	return 0;
}

int after_from_json(const struct json *json, struct after_list *ret, struct err *err)
{
	AUTO_AFTER struct after_list list = {0};
	int r = 0;

	for (const struct json *item = json ? json_first(json) : NULL; r == 0 && item;
		item = json_next(item))
		r = after_read(item, &list, err);
	if (r < 0)
		return r;
	*ret = list;
	list = (struct after_list){0};
	return 0;
}

void after_add(struct after_list *list, const char *id, bool is_study, bool any)
{
	vec_foreach (struct after, after, list) {
		if (after->is_study != is_study || !str_eq(after->id, id))
			continue;
		after->any &= any;
		return;
	}
	*vec_push(list) = (struct after){mem_strdup(id), is_study, any};
}

char *after_text(const struct after_list *list)
{
	if (list->n <= 1)
		return mem_printf("after %s", list->n ? list->v[0].id : "nothing");
	if (list->n == 2)
		return mem_printf("after %s and %s", list->v[0].id, list->v[1].id);
	return mem_printf("after %s and %zu others", list->v[0].id, list->n - 1);
}

char *after_names(const struct json *json)
{
	AUTO_AFTER struct after_list list = {0};
	AUTO_BUF struct buf out = buf_with(AFTER_NAMES_MAX);

	if (after_from_json(json, &list, NULL) < 0 || !list.n)
		return NULL;
	vec_foreach (struct after, after, &list)
		buf_addf(&out, "%s%s%s", out.len ? ", " : "", after->id,
			after->any ? " (any end)" : "");
	return buf_take(&out);
}

void after_done(struct after_list *list)
{
	if (!list)
		return;
	vec_foreach (struct after, after, list)
		free(after->id);
	vec_done(list);
}
