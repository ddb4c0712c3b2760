/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config/target_names.h"

#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

static bool target_names_is_single(const struct config *config, const char *text)
{
	return !strchr(text, ',') || str_starts(text, TARGET_NAMES_SSH) ||
	       (config && config_target(config, text));
}

/* The length of the item that text begins with. */
static size_t target_names_item(const char *text)
{
	return str_starts(text, TARGET_NAMES_SSH) ? strlen(text) : strcspn(text, ",");
}

static int target_names_add(const char *text, const char *item, struct strv *ret, struct err *err)
{
	AUTO_FREE char *shown = str_shown(text), *name = str_shown(item);

	if (!*item) {
		err_set(err, E_USAGE, "'%s' names no target before or after a comma", shown);
		return err_hint(err, "-t lab,eu");
	}
	if (strv_find(ret, item) >= 0)
		return err_set(err, E_USAGE, "'%s' names target %s twice", shown, name);
	if (ret->n == TARGET_NAMES_MAX)
		return err_set(
			err, E_USAGE, "'%s' names more than %d targets", shown, TARGET_NAMES_MAX);
	strv_add(ret, item);
	return 0;
}

int target_names_split(
	const struct config *config, const char *text, struct strv *ret, struct err *err)
{
	int r = 0;

	if (target_names_is_single(config, text)) {
		strv_add(ret, text);
		return 0;
	}
	for (const char *at = text; r == 0 && at;) {
		at += strspn(at, " ");
		size_t len = target_names_item(at), end = len;
		while (end > 0 && at[end - 1] == ' ')
			end--;
		AUTO_FREE char *item = mem_strndup(at, end);
		r = target_names_add(text, item, ret, err);
		at = at[len] ? at + len + 1 : NULL;
	}
	return r;
}

char *target_names_first(const struct config *config, const char *text)
{
	if (!text || target_names_is_single(config, text))
		return mem_strdup(text);
	return mem_strndup(text, target_names_item(text));
}
