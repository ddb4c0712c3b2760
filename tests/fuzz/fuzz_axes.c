/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same bytes as axes (one in each line), as sweep.over, as a file of cases and as words of a
 * command: what is accepted is within the limits, what is kept gives the same cases again, and a
 * member's words have its values.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/str.h"
#include "core/study/axes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_cases(const struct cases *cases)
{
	BUG_ON(!cases->n || cases->n > CASES_MAX || !cases->keys.n || cases->keys.n > AXES_MAX);
	BUG_ON(cases->values.n != cases->n * cases->keys.n);
	for (size_t i = 0; i < cases->values.n; i++)
		BUG_ON(!str_is_plain(cases->values.v[i]) ||
			strlen(cases->values.v[i]) > AXES_VALUE_MAX);
}

static void check_same(const struct cases *a, const struct cases *b)
{
	BUG_ON(a->n != b->n || a->keys.n != b->keys.n || a->values.n != b->values.n);
	for (size_t i = 0; i < a->keys.n; i++)
		BUG_ON(!str_eq(a->keys.v[i], b->keys.v[i]));
	for (size_t i = 0; i < a->values.n; i++)
		BUG_ON(!str_eq(a->values.v[i], b->values.v[i]));
}

/* The words of a member, where all of the text is one and is many. */
static void check_template(const struct cases *cases, const char *text)
{
	const struct cases_member member = {cases->n - 1, "tiger-4k2x9"};
	AUTO_STRV struct strv command = {0}, words = {0}, env = {0}, unused = {0}, unknown = {0};
	AUTO_FREE char *word = NULL;
	struct cases_template template = {&command, text[0] == '!', &command, text};

	strv_add(&command, text);
	for (const char *at = text; *at && command.n < 20;) {
		size_t n = strcspn(at, " \n");
		strv_add_take(&command, mem_strndup(at, n));
		at += n + (at[n] != '\0');
	}
	if (cases_expand(cases, &member, text, &word, NULL) == 0) {
		BUG_ON(strlen(word) >= CASES_WORD_MAX);
		BUG_ON(!strchr(text, '{') && !str_eq(text, word));
	}
	cases_expand_env(cases, &member, &template, &env, NULL);
	cases_unused(cases, &template, &unused);
	cases_unknown(cases, &template, &unknown);
	if (cases_check(cases, &template, NULL) == 0)
		BUG_ON(unused.n || cases_expand_command(cases, &member, &template, &words, NULL));
}

static void check_axes(const struct axes *axes, const char *text)
{
	AUTO_JSON struct json *kept = axes_to_json(axes);
	AUTO_AXES struct axes *again = axes_new();
	char *shown = axes_describe(axes);

	BUG_ON(!shown);
	free(shown);
	for (const struct json *m = json_first(kept); m; m = json_next(m))
		BUG_ON(axes_add_json(again, json_key(m), m, NULL) < 0);
	for (unsigned way = 0; way < 4; way++) {
		AUTO_CASES struct cases cases = {0}, same = {0};
		struct cases_options options = {way & 1, way & 2 ? 20 : 0, way};
		int r = cases_make(axes, &options, &cases, NULL);

		BUG_ON(cases_make(again, &options, &same, NULL) != r);
		if (r < 0)
			continue;
		check_cases(&cases);
		check_same(&cases, &same);
		check_template(&cases, text);
	}
}

static void as_axes(const char *text)
{
	AUTO_AXES struct axes *axes = axes_new();

	for (const char *at = text; *at;) {
		size_t n = strcspn(at, "\n");
		AUTO_FREE char *line = mem_strndup(at, n);
		size_t before = axes_count(axes);
		int r = axes_add(axes, line, NULL);

		BUG_ON(axes_count(axes) != before + (r == 0));
		at += n + (at[n] != '\0');
	}
	if (axes_count(axes))
		check_axes(axes, text);
}

static void as_json(const char *text)
{
	AUTO_AXES struct axes *axes = axes_new();
	AUTO_JSON struct json *json = NULL;

	if (json_parse(text, strlen(text), 1 << 16, "", &json, NULL) < 0 ||
		json_kind(json) != JSON_OBJECT)
		return;
	for (const struct json *m = json_first(json); m; m = json_next(m))
		axes_add_json(axes, json_key(m), m, NULL);
	if (axes_count(axes))
		check_axes(axes, text);
}

static void as_file(const char *data, size_t size, const char *text)
{
	AUTO_CASES struct cases cases = {0};

	if (cases_read(data, size, "cases", &cases, NULL) < 0) {
		BUG_ON(cases.n || cases.keys.n || cases.values.n);
		return;
	}
	check_cases(&cases);
	check_template(&cases, text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	static const char one[] = "lr,opt\n0.1,adam\n";
	AUTO_CASES struct cases cases = {0};

	BUG_ON(cases_read(one, sizeof(one) - 1, "one", &cases, NULL) < 0);
	check_template(&cases, text);
	as_axes(text);
	as_json(text);
	as_file((const char *)data, size, text);
	return 0;
}
