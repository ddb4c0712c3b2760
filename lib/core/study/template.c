/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/study/axes_impl.h"

/*
 * Names in braces
 */

static const char *const template_names[] = {AXIS_RESERVED};

/* A name in braces within a text. */
struct template_hole {
	const char *from, *to; /* that are replaced */
	const char *name;
	size_t len;
	bool is_escaped; /* {{name}} */
};

/* Find the next one at or behind `at`. */
static bool template_next(const char *text, const char *at, struct template_hole *ret)
{
	while ((at = strchr(at, '{'))) {
		size_t open = strspn(at, "{");
		const char *name = at + open;
		size_t len = strcspn(name, "{}"), close = strspn(name + len, "}");
		bool is_variable = at > text && at[-1] == '$';

		if (!is_variable && close && axis_name_is_valid(name, len)) {
			bool is_escaped = open > 1 && close > 1;
			*ret = (struct template_hole){
				is_escaped ? at : name - 1, name + len + 1, name, len, is_escaped};
			return true;
		}
		at = name;
	}
	return false;
}

/* Whether a text could be code, in which braces mean something else. */
static bool template_is_code(const char *text)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
				    "{}_-./:=,+@%^~";

	return text[strspn(text, plain)] != '\0';
}

static bool template_is(const struct template_hole *hole, const char *name)
{
	return strlen(name) == hole->len && memcmp(name, hole->name, hole->len) == 0;
}

static bool template_is_list(const struct template_hole *hole)
{
	return template_is(hole, "args") || template_is(hole, "overrides");
}

/* The axis of that name; keys.n: none. */
static size_t template_axis(const struct cases *cases, const struct template_hole *hole)
{
	size_t k = 0;

	while (k < cases->keys.n && !template_is(hole, cases->keys.v[k]))
		k++;
	return k;
}

/*
 * Axes that are used
 */

static void template_mark(const struct cases *cases, const char *text, bool *used)
{
	struct template_hole hole;

	for (const char *at = text; template_next(text, at, &hole); at = hole.to) {
		size_t k = template_axis(cases, &hole);

		if (!hole.is_escaped && k < cases->keys.n)
			used[k] = true;
	}
}

static bool template_has_list(const struct cases_template *template)
{
	struct template_hole hole;

	for (size_t i = 0; i < template->command->n; i++) {
		const char *text = template->command->v[i];
		for (const char *at = text; template_next(text, at, &hole); at = hole.to)
			if (!hole.is_escaped && template_is_list(&hole))
				return true;
	}
	return false;
}

static void template_mark_command(
	const struct cases *cases, const struct cases_template *template, bool *used)
{
	for (size_t i = 0; i < template->command->n; i++)
		template_mark(cases, template->command->v[i], used);
}

void cases_unused(
	const struct cases *cases, const struct cases_template *template, struct strv *ret)
{
	bool used[AXES_MAX] = {0};

	if (template_has_list(template))
		return;
	template_mark_command(cases, template, used);
	for (size_t i = 0; template->env && i < template->env->n; i++) {
		const char *value = strchr(template->env->v[i], '=');
		if (value)
			template_mark(cases, value + 1, used);
	}
	if (template->name)
		template_mark(cases, template->name, used);
	for (size_t k = 0; k < cases->keys.n; k++)
		if (!used[k])
			strv_add(ret, cases->keys.v[k]);
}

/*
 * Expanding
 */

/* The words of one member. */
struct template_row {
	const struct cases *cases;
	const struct cases_member *member;
	const struct cases_template *template; /* NULL: {args} has no meaning */
	bool is_shell;                         /* values are quoted */
	bool is_code;                          /* the word that is expanded */
};

/* The words of {args} or {overrides}. */
static void template_list(
	const struct template_row *row, const struct template_hole *hole, struct strv *ret)
{
	const char *dashes = template_is(hole, "args") ? "--" : "";
	bool used[AXES_MAX] = {0};

	template_mark_command(row->cases, row->template, used);
	for (size_t k = 0; k < row->cases->keys.n; k++)
		if (!used[k])
			strv_addf(ret, "%s%s=%s", dashes, row->cases->keys.v[k],
				cases_get(row->cases, row->member->index, k));
}

/* Whether the name means something there. */
static bool template_is_known(const struct template_row *row, const struct template_hole *hole)
{
	return template_axis(row->cases, hole) < row->cases->keys.n || template_is(hole, "index") ||
	       template_is(hole, "study") || (row->template && template_is_list(hole));
}

/* Append what a name that is known stands for. */
static void template_add(
	const struct template_row *row, const struct template_hole *hole, struct buf *out)
{
	size_t k = template_axis(row->cases, hole);
	AUTO_FREE char *index = mem_printf("%zu", row->member->index);
	AUTO_STRV struct strv words = {0};
	const char *value = index;

	if (row->template && template_is_list(hole)) {
		template_list(row, hole, &words);
		if (words.n)
			str_shell_join(out, words.v);
		return;
	}
	if (k < row->cases->keys.n)
		value = cases_get(row->cases, row->member->index, k);
	else if (template_is(hole, "study"))
		value = row->member->study;
	if (row->is_shell)
		str_shell_quote(out, value);
	else
		buf_adds(out, value);
}

static int template_unknown(const struct template_row *row, const struct template_hole *hole,
	const char *text, struct err *err)
{
	AUTO_FREE char *name = mem_strndup(hole->name, hole->len), *shown = str_shown(text);
	const char *known[AXES_MAX + ARRAY_LEN(template_names)], *near;
	size_t n = 0;

	for (; n < row->cases->keys.n; n++)
		known[n] = row->cases->keys.v[n];
	for (size_t i = 0; i < ARRAY_LEN(template_names); i++)
		if (row->template || i < 2)
			known[n++] = template_names[i];
	near = str_suggest(name, known, n);
	err_set(err, E_USAGE, "%s: there is no axis %s", shown, name);
	if (near)
		return err_hint(err, "did you mean {%s}? braces themselves are {{%s}}", near, name);
	return err_hint(err, "--over %s=1..5; braces themselves are {{%s}}", name, name);
}

static int template_fill(const struct template_row *row, const struct template_hole *hole,
	const char *text, struct buf *out, struct err *err)
{
	bool is_known = template_is_known(row, hole);

	if (hole->is_escaped && (is_known || !row->is_code))
		buf_add(out, hole->from + 1, (size_t)(hole->to - hole->from - 2));
	else if (is_known)
		template_add(row, hole, out);
	else if (row->is_code)
		buf_add(out, hole->from, (size_t)(hole->to - hole->from));
	else
		return template_unknown(row, hole, text, err);
	return 0;
}

static int template_expand(struct template_row *row, const char *text, char **ret, struct err *err)
{
	AUTO_BUF struct buf out = buf_with(CASES_WORD_MAX - 1);
	struct template_hole hole;
	const char *at = text;
	int r = 0;

	row->is_code = template_is_code(text);
	for (; r == 0 && template_next(text, at, &hole); at = hole.to) {
		buf_add(&out, at, (size_t)(hole.from - at));
		r = template_fill(row, &hole, text, &out, err);
	}
	buf_adds(&out, at);
	if (r == 0)
		r = buf_check(&out, "a word of the command", err);
	if (r == 0)
		*ret = buf_take(&out);
	return r;
}

int cases_expand(const struct cases *cases, const struct cases_member *member, const char *text,
	char **ret, struct err *err)
{
	struct template_row row = {.cases = cases, .member = member};

	return template_expand(&row, text, ret, err);
}

/* A word that is {args} or {overrides} becomes words. */
static bool template_is_words(
	const struct template_row *row, const char *word, struct template_hole *ret)
{
	return !row->is_shell && template_next(word, word, ret) && ret->from == word && !*ret->to &&
	       !ret->is_escaped && template_is_list(ret);
}

int cases_expand_command(const struct cases *cases, const struct cases_member *member,
	const struct cases_template *template, struct strv *ret, struct err *err)
{
	struct template_row row = {cases, member, template, template->shell, false};
	AUTO_STRV struct strv words = {0};

	for (size_t i = 0; i < template->command->n; i++) {
		const char *word = template->command->v[i];
		struct template_hole hole;
		char *expanded;
		int r;

		if (template_is_words(&row, word, &hole)) {
			template_list(&row, &hole, &words);
			continue;
		}
		r = template_expand(&row, word, &expanded, err);
		if (r < 0)
			return r;
		strv_add_take(&words, expanded);
	}
	*ret = words;
	words = (struct strv){0};
	return 0;
}

int cases_expand_env(const struct cases *cases, const struct cases_member *member,
	const struct cases_template *template, struct strv *ret, struct err *err)
{
	AUTO_STRV struct strv env = {0};

	for (size_t i = 0; template->env && i < template->env->n; i++) {
		const char *item = template->env->v[i], *equals = strchr(item, '=');
		AUTO_FREE char *value = NULL;
		int r;

		if (!equals) {
			strv_add(&env, item);
			continue;
		}
		r = cases_expand(cases, member, equals + 1, &value, err);
		if (r < 0)
			return err_prefix(err, "variable %.*s", (int)(equals - item), item);
		strv_addf(&env, "%.*s=%s", (int)(equals - item), item, value);
	}
	*ret = env;
	env = (struct strv){0};
	return 0;
}

/*
 * Checking
 */

static void template_add_unknown(const struct template_row *row, const char *text, struct strv *ret)
{
	struct template_hole hole;

	for (const char *at = text; template_next(text, at, &hole); at = hole.to) {
		AUTO_FREE char *name = mem_strndup(hole.name, hole.len);
		if (!hole.is_escaped && !template_is_known(row, &hole) && strv_find(ret, name) < 0)
			strv_add(ret, name);
	}
}

void cases_unknown(
	const struct cases *cases, const struct cases_template *template, struct strv *ret)
{
	struct template_row row = {.cases = cases, .template = template};

	for (size_t i = 0; i < template->command->n; i++)
		template_add_unknown(&row, template->command->v[i], ret);
	row.template = NULL;
	for (size_t i = 0; template->env && i < template->env->n; i++) {
		const char *value = strchr(template->env->v[i], '=');
		if (value)
			template_add_unknown(&row, value + 1, ret);
	}
	if (template->name)
		template_add_unknown(&row, template->name, ret);
}

int cases_check(const struct cases *cases, const struct cases_template *template, struct err *err)
{
	const struct cases_member member = {0, ""};
	AUTO_STRV struct strv command = {0}, env = {0};
	AUTO_FREE char *name = NULL;
	int r = cases_expand_command(cases, &member, template, &command, err);

	if (r == 0)
		r = cases_expand_env(cases, &member, template, &env, err);
	if (r == 0 && template->name)
		r = cases_expand(cases, &member, template->name, &name, err);
	if (r < 0)
		return r;
	AUTO_STRV struct strv unused = {0};

	cases_unused(cases, template, &unused);
	if (!unused.n)
		return 0;
	err_set(err, E_USAGE, "the axis %s is not used: no word of the command has {%s}",
		unused.v[0], unused.v[0]);
	return err_hint(err, "write {%s} into the command, or {args} for --%s={%s}", unused.v[0],
		unused.v[0], unused.v[0]);
}
