/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/entry.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "oci/layer/layer.h"

/* "a/b=1 c=2": paths with contents of one character; upper case: executable, @: a link. */
static void make_tree(const char *text, struct entry_list *ret)
{
	AUTO_FREE char *copy = mem_strdup(text);
	char *rest = copy;

	*ret = (struct entry_list){0};
	for (char *word; (word = strsep(&rest, " "));) {
		char *equals = strchr(word, '=');
		if (!equals)
			continue;
		*equals = '\0';
		struct entry e = {.path = word, .size = 1};
		e.kind = equals[1] == '@' ? ENTRY_LINK : ENTRY_FILE;
		e.target = e.kind == ENTRY_LINK ? "t" : NULL;
		e.exec = equals[1] >= 'A' && equals[1] <= 'Z';
		e.sha256[0] = (uint8_t)equals[1];
		entry_add(ret, &e);
	}
	vec_sort(ret, entry_compare);
}

static void make_refs(const struct entry_list *list, struct entry_refs *ret)
{
	*ret = (struct entry_refs){0};
	vec_foreach (const struct entry, e, list)
		*vec_push(ret) = e;
}

static void print_refs(const struct entry_refs *refs, char *out, size_t size)
{
	size_t len = 0;

	out[0] = '\0';
	for (size_t i = 0; i < refs->n; i++)
		len += (size_t)snprintf(out + len, size - len, "%s%s=%c", i ? " " : "",
			refs->v[i]->path, refs->v[i]->sha256[0]);
}

static void assert_diff(
	const char *from, const char *to, const char *entries, const char *whiteouts)
{
	AUTO_ENTRIES struct entry_list from_list, to_list;
	struct entry_refs from_refs, to_refs;
	AUTO_LAYER_DIFF struct layer_diff diff = {0};
	char got[1000];
	size_t len = 0;

	make_tree(from, &from_list);
	make_tree(to, &to_list);
	make_refs(&from_list, &from_refs);
	make_refs(&to_list, &to_refs);
	assert_true(layer_diff_make(&from_refs, &to_refs, 100, &diff));
	print_refs(&diff.entries, got, sizeof(got));
	assert_string_equal(got, entries);
	got[0] = '\0';
	for (size_t i = 0; i < diff.whiteouts.n; i++)
		len += (size_t)snprintf(
			got + len, sizeof(got) - len, "%s%s", i ? " " : "", diff.whiteouts.v[i]);
	assert_string_equal(got, whiteouts);
	vec_done(&from_refs);
	vec_done(&to_refs);
}

static void test_rows(void **state)
{
	assert_diff("", "", "", "");
	assert_diff("a=1 b=2", "a=1 b=2", "", "");
	assert_diff("a=1", "a=2 b=1", "a=2 b=1", "");
	assert_diff("a=1 b=1", "a=1", "", "b");
	assert_diff("a=x", "a=X", "a=X", "");
	/* whole directories, as high as nothing is left */
	assert_diff("d/a=1 d/e/b=1 f=1", "f=1", "", "d");
	assert_diff("d/a=1 d/e/b=1 d/e/c=1", "d/a=1", "", "d/e");
	assert_diff("d/a=1 d/b=1", "d/a=1", "", "d/b");
	assert_diff("d/e/f/g=1 x=1", "d-e=1 x=1", "d-e=1", "d");
	/* changes of kind */
	assert_diff("a=1", "a/b=1", "a/b=1", "");
	assert_diff("a=@", "a/b=1", "a/b=1", "");
	assert_diff("a/b=1 a/c/d=1", "a=1", "a=1", "");
	assert_diff("a/b=1", "a=@", "a=@", "");
	assert_diff("a=1", "a=@", "a=@", "");
	assert_diff("d/a/b=1 d/c=1", "d/a=2", "d/a=2", "d/c");
	/* neighbours in byte order: - and . stand before / */
	assert_diff("a-b=1 a.c=1 a/x=1 a0=1", "a0=1", "", "a a-b a.c");
	assert_diff("a-b=1 a/x=1", "a-b/c=1", "a-b/c=1", "a");
	assert_diff("a/x=1 ab/x=1", "ab/x=1", "", "a");
}

static void test_limit(void **state)
{
	AUTO_ENTRIES struct entry_list from_list, to_list;
	struct entry_refs from, to;
	struct layer_diff diff = {0};

	make_tree("a=1 b=1 d/a=1 d/b=1 d/c=1 z=1", &from_list);
	make_tree("a=2 c=1 z=1", &to_list);
	make_refs(&from_list, &from);
	make_refs(&to_list, &to);
	/* a, c, and whiteouts of b and d */
	assert_false(layer_diff_make(&from, &to, 3, &diff));
	assert_null(diff.entries.v);
	assert_true(layer_diff_make(&from, &to, 4, &diff));
	layer_diff_done(&diff);
	vec_done(&from);
	vec_done(&to);
	layer_diff_done(NULL);
}

static void assert_cover(const char *lower, const char *upper, const char *want)
{
	AUTO_ENTRIES struct entry_list lower_list, upper_list;
	struct entry_refs lower_refs, upper_refs, merged;
	char got[1000];

	make_tree(lower, &lower_list);
	make_tree(upper, &upper_list);
	make_refs(&lower_list, &lower_refs);
	make_refs(&upper_list, &upper_refs);
	entry_refs_cover(&lower_refs, &upper_refs, &merged);
	print_refs(&merged, got, sizeof(got));
	assert_string_equal(got, want);
	vec_done(&lower_refs);
	vec_done(&upper_refs);
	vec_done(&merged);
}

static void test_cover(void **state)
{
	assert_cover("", "", "");
	assert_cover("a=1 c=1", "", "a=1 c=1");
	assert_cover("", "a=1", "a=1");
	assert_cover("a=1 c=1", "b=2", "a=1 b=2 c=1");
	assert_cover("a=1", "a=2", "a=2");
	assert_cover("a/b=1 a/c/d=1 b=1", "a=2", "a=2 b=1");
	assert_cover("a=1 b=1", "a/b/c=2", "a/b/c=2 b=1");
	assert_cover("a/b=1", "a/b/c=2", "a/b/c=2");
	assert_cover("a-b=1 a/x=1 ab=1", "a=2", "a=2 a-b=1 ab=1");
	assert_cover("a/b=1", "a/c=2", "a/b=1 a/c=2");
}

/*
 * Random trees: what the layer says, applied by the letter of layer.md, must give the tree.
 */

static unsigned seed;

static unsigned below(unsigned n)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 16) % n;
}

static bool contradicts(const struct entry_list *list, const char *path)
{
	size_t len = strlen(path);

	vec_foreach (const struct entry, e, list) {
		size_t n = strlen(e->path);
		size_t shorter = n < len ? n : len;
		if (strncmp(e->path, path, shorter) == 0 &&
			(n == len || (n < len ? path[n] : e->path[len]) == '/'))
			return true;
	}
	return false;
}

static void random_tree(struct entry_list *ret)
{
	static const char *const names[] = {"a", "a-", "a.b", "b", "c"};
	static const char contents[] = "12X@";

	*ret = (struct entry_list){0};
	for (unsigned n = below(12); n > 0; n--) {
		char path[64] = "";
		for (unsigned depth = 1 + below(4); depth > 0; depth--)
			snprintf(path + strlen(path), sizeof(path) - strlen(path), "%s%s",
				*path ? "/" : "", names[below(5)]);
		if (contradicts(ret, path))
			continue;
		char content = contents[below(4)];
		struct entry e = {.path = path, .size = 1};
		e.kind = content == '@' ? ENTRY_LINK : ENTRY_FILE;
		e.target = content == '@' ? "t" : NULL;
		e.exec = content == 'X';
		e.sha256[0] = (uint8_t)content;
		entry_add(ret, &e);
	}
	vec_sort(ret, entry_compare);
}

/* A file system: paths with contents; '/' for directories. */
struct model {
	struct {
		char path[64];
		char content;
	} v[200];
	size_t n;
};

static void model_remove(struct model *model, const char *path)
{
	size_t len = strlen(path), kept = 0;

	for (size_t i = 0; i < model->n; i++)
		if (strncmp(model->v[i].path, path, len) != 0 ||
			(model->v[i].path[len] && model->v[i].path[len] != '/'))
			model->v[kept++] = model->v[i];
	model->n = kept;
}

static char model_get(const struct model *model, const char *path)
{
	for (size_t i = 0; i < model->n; i++)
		if (strcmp(model->v[i].path, path) == 0)
			return model->v[i].content;
	return 0;
}

static void model_put(struct model *model, const char *path, char content)
{
	if (content == '/' && model_get(model, path) == '/')
		return;
	model_remove(model, path);
	snprintf(model->v[model->n].path, sizeof(model->v[0].path), "%s", path);
	model->v[model->n++].content = content;
}

static void model_apply(
	struct model *model, const struct entry_refs *entries, const struct strv *whiteouts)
{
	for (size_t i = 0; whiteouts && i < whiteouts->n; i++) {
		assert_int_not_equal(model_get(model, whiteouts->v[i]), 0);
		model_remove(model, whiteouts->v[i]);
	}
	for (size_t i = 0; i < entries->n; i++) {
		const char *path = entries->v[i]->path;
		for (const char *s = path; (s = strchr(s, '/')); s++) {
			AUTO_FREE char *dir = mem_strndup(path, (size_t)(s - path));
			model_put(model, dir, '/');
		}
		model_put(model, path, (char)entries->v[i]->sha256[0]);
	}
}

static int compare_model(const void *a, const void *b)
{
	return strcmp(a, b);
}

static void assert_models(struct model *got, struct model *want)
{
	qsort(got->v, got->n, sizeof(got->v[0]), compare_model);
	qsort(want->v, want->n, sizeof(want->v[0]), compare_model);
	assert_int_equal(got->n, want->n);
	for (size_t i = 0; i < got->n; i++) {
		assert_string_equal(got->v[i].path, want->v[i].path);
		assert_int_equal(got->v[i].content, want->v[i].content);
	}
}

static void check_random(void)
{
	AUTO_ENTRIES struct entry_list from_list, to_list;
	struct entry_refs from, to;
	AUTO_LAYER_DIFF struct layer_diff diff = {0};
	struct model got = {0}, want = {0};

	random_tree(&from_list);
	random_tree(&to_list);
	make_refs(&from_list, &from);
	make_refs(&to_list, &to);
	assert_true(layer_diff_make(&from, &to, 1000, &diff));
	model_apply(&got, &from, NULL);
	model_apply(&got, &diff.entries, &diff.whiteouts);
	model_apply(&want, &to, NULL);
	assert_models(&got, &want);

	struct entry_refs merged = {0}, visible = {0};
	entry_refs_cover(&from, &to, &merged);
	memset(&got, 0, sizeof(got));
	model_apply(&got, &from, NULL);
	model_apply(&got, &to, NULL);
	for (size_t i = 0; i < from.n; i++)
		if (!entry_find(&to_list, from.v[i]->path) &&
			model_get(&got, from.v[i]->path) == (char)from.v[i]->sha256[0])
			*vec_push(&visible) = from.v[i];
	assert_int_equal(merged.n, visible.n + to.n);
	for (size_t i = 0; i < visible.n; i++) {
		bool found = false;
		for (size_t k = 0; k < merged.n; k++)
			found = found || merged.v[k] == visible.v[i];
		assert_true(found);
	}
	for (size_t i = 1; i < merged.n; i++)
		assert_true(strcmp(merged.v[i - 1]->path, merged.v[i]->path) < 0);
	vec_done(&visible);
	vec_done(&merged);
	vec_done(&from);
	vec_done(&to);
}

static void test_random(void **state)
{
	for (unsigned i = 0; i < 20000; i++) {
		seed = i;
		check_random();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_cover),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
