/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config/words.h"

#include <stdlib.h>
#include <string.h>

#include "base/os/env.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { CLOCKS_APART_MS = 60000 }; /* of a host and this machine */

static char *b64_key(const char *key)
{
	return mem_printf("%s_b64", key);
}

static bool all_utf8(const struct strv *words)
{
	for (size_t i = 0; i < words->n; i++)
		if (!str_is_utf8(words->v[i], strlen(words->v[i])))
			return false;
	return true;
}

void words_set(struct json *object, const char *key, const struct strv *words)
{
	struct json *list = json_array();

	json_add_strv(list, words);
	json_set(object, key, list);
	if (all_utf8(words))
		return;
	AUTO_FREE char *exact_key = b64_key(key);
	struct json *exact = json_array();
	for (size_t i = 0; i < words->n; i++) {
		AUTO_BUF struct buf text;
		size_t len = strlen(words->v[i]);
		buf_init(&text, 2 * len + 8);
		base64_encode(words->v[i], len, &text);
		json_add_str(exact, text.data);
	}
	json_set(object, exact_key, exact);
}

/* A string that is written in base64; NULL if it is not, or has a NUL inside. */
static char *words_decode(const char *text)
{
	AUTO_BUF struct buf bytes = buf_with(strlen(text) + 8);

	if (!base64_decode(text, strlen(text), &bytes) || memchr(bytes.data, '\0', bytes.len))
		return NULL;
	return buf_take(&bytes);
}

int words_get(const struct json *object, const char *key, struct strv *ret, struct err *err)
{
	AUTO_FREE char *exact_key = b64_key(key);
	const struct json *exact = json_get(object, exact_key);
	const struct json *list = exact ? exact : json_get(object, key);

	if (list && json_kind(list) != JSON_ARRAY && json_kind(list) != JSON_NULL)
		return err_set(err, E_DATA, "%s is not a list", key);
	for (const struct json *each = json_first(list); each; each = json_next(each)) {
		const char *text = json_str(each);
		char *word = !text ? NULL : exact ? words_decode(text) : mem_strdup(text);
		if (!word)
			return err_set(err, E_DATA, "%s is not a list of strings", key);
		strv_add_take(ret, word);
	}
	return 0;
}

char *words_get_one(const struct json *object, const char *key)
{
	AUTO_FREE char *exact_key = b64_key(key);
	const char *exact = json_get_str(object, exact_key);

	return exact ? words_decode(exact) : mem_strdup(json_get_str(object, key));
}

/*
 * Environments
 */

/* The value is not shown: it may be a secret. */
int words_check_name(const char *pair, const char *option, struct err *err)
{
	size_t len = strcspn(pair, "=");
	AUTO_FREE char *name = mem_strndup(pair, len), *shown = str_escaped(name);

	if (env_name_is_valid(pair, len) && !str_starts(pair, "DLRUN_"))
		return 0;
	if (env_name_is_valid(pair, len))
		return err_set(err, E_USAGE, "%s %s: names that begin with DLRUN_ are reserved",
			option + 2, shown);
	err_set(err, E_USAGE, "%s: '%s' is not a valid variable name", option + 2, shown);
	return err_hint(err, "%s EPOCHS=10   # letters, digits and _", option);
}

char *words_in_tree(const char *text, const char *tree)
{
	const char *at = strstr(text, WORDS_TREE);

	if (!at)
		return mem_strdup(text);
	AUTO_FREE char *rest = words_in_tree(at + strlen(WORDS_TREE), tree);
	return mem_printf("%.*s%s%s", (int)(at - text), text, tree, rest);
}

char *words_reason_now(const char *text)
{
	static const char since[] = " since ";
	enum { TIME = 20 };
	int64_t now_ms = clock_wall_ms(), at_ms;
	AUTO_BUF struct buf out = buf_with(2 * strlen(text) + 64);
	const char *next;
	char duration[32];

	for (; (next = strstr(text, since)); text = next) {
		AUTO_FREE char *time = mem_strndup(next + strlen(since), TIME);

		buf_add(&out, text, (size_t)(next - text));
		next += strlen(since);
		if (clock_parse(time, &at_ms, NULL) < 0 || at_ms > now_ms + CLOCKS_APART_MS) {
			buf_adds(&out, since);
			continue;
		}
		buf_addf(&out, ", running for %s", duration_text(now_ms - at_ms, duration));
		next += TIME;
	}
	buf_adds(&out, text);
	return buf_take(&out);
}
