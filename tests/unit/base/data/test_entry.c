/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/data/entry.h"
#include "base/util/auto.h"

static struct entry *add(struct entry_list *list, const char *path, bool exec, const char *content)
{
	struct entry e = {.path = path, .exec = exec, .size = strlen(content)};

	digest_sha256(content, strlen(content), e.sha256);
	return entry_add(list, &e);
}

static struct entry *add_link(struct entry_list *list, const char *path, const char *target)
{
	struct entry *e = add(list, path, false, target);

	e->kind = ENTRY_LINK;
	e->target = arena_strdup(&list->arena, target);
	return e;
}

static char *repeated(char c, size_t n)
{
	char *s = mem_alloc(n + 1, 1);

	memset(s, c, n);
	return s;
}

/* Computed once with Python's hashlib from the text of the header. */
static void test_id(void **state)
{
	AUTO_ENTRIES struct entry_list list = {0};
	AUTO_FREE char *large = repeated('x', 100000);
	char id[DIGEST_TEXT_SIZE];

	entry_list_id(&list, id);
	assert_string_equal(
		id, "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	add(&list, ".gitignore", false, "*.pyc\n");
	add(&list, "a b/\xff\xfe.txt", false, "");
	add_link(&list, "link", "../elsewhere");
	add(&list, "run.sh", true, "#!/bin/sh\nexit 0\n");
	add(&list, "ü/ß.py", false, large);
	entry_list_id(&list, id);
	assert_string_equal(
		id, "sha256:2e9e02f60d193c235aa4bdedfc986b6a5b91e80185f84b67dde12c21e123a275");
}

/* Each property that a run can notice changes the id. */
static void test_id_notifies_apart(void **state)
{
	char ids[7][DIGEST_TEXT_SIZE];

	for (int i = 0; i < 7; i++) {
		AUTO_ENTRIES struct entry_list list = {0};
		struct entry *e = add(&list, i == 1 ? "b" : "a", i == 2, i == 3 ? "y" : "x");
		if (i == 4)
			e->kind = ENTRY_LINK;
		if (i == 5)
			e->size = 11;
		if (i == 6)
			add(&list, "b", false, "x");
		entry_list_id(&list, ids[i]);
		for (int k = 0; k < i; k++)
			assert_string_not_equal(ids[i], ids[k]);
	}
}

static void test_find(void **state)
{
	static const char *const paths[] = {"a", "a!", "a/b", "ab", "b", "\xc3\xa9"};
	AUTO_ENTRIES struct entry_list list = {0};

	assert_null(entry_find(&list, "a"));
	for (int i = 5; i >= 0; i--)
		add(&list, paths[i], false, "");
	vec_sort(&list, entry_compare);
	for (size_t i = 0; i < 6; i++) {
		assert_string_equal(list.v[i].path, paths[i]);
		assert_ptr_equal(entry_find(&list, paths[i]), &list.v[i]);
	}
	assert_null(entry_find(&list, ""));
	assert_null(entry_find(&list, "a/"));
	assert_null(entry_find(&list, "z"));
	assert_null(entry_find(&list, "\xff"));
}

static void test_same(void **state)
{
	AUTO_ENTRIES struct entry_list list = {0};
	const struct entry a = *add(&list, "a", false, "x");
	struct entry b = *add(&list, "b", false, "x");

	assert_true(entry_same(&a, &b));
	b.exec = true;
	assert_false(entry_same(&a, &b));
	b = a;
	b.kind = ENTRY_LINK;
	assert_false(entry_same(&a, &b));
	b = a;
	b.size++;
	assert_false(entry_same(&a, &b));
	b = a;
	b.sha256[31] ^= 1;
	assert_false(entry_same(&a, &b));
}

/* Of strings that go away, and of an entry of the list itself while the list moves. */
static void test_add_copies(void **state)
{
	AUTO_ENTRIES struct entry_list list = {0};
	char path[] = "path", target[] = "target";
	struct entry e = {.path = path, .kind = ENTRY_LINK, .target = target, .size = 6};

	entry_add(&list, &e);
	path[0] = target[0] = 'X';
	for (int i = 0; i < 1000; i++)
		entry_add(&list, &list.v[0]);
	assert_int_equal(list.n, 1001);
	for (size_t i = 0; i < list.n; i++) {
		assert_string_equal(list.v[i].path, "path");
		assert_string_equal(list.v[i].target, "target");
		assert_int_equal(list.v[i].size, 6);
	}
	entry_list_done(&list);
	entry_list_done(&list);
	entry_list_done(NULL);
	assert_int_equal(list.n, 0);
}

static void test_git_names(void **state)
{
	static const char *const yes[] = {".git", ".git/hooks/post-commit", "a/.git", "a/.GiT/b",
		".git ", ".git. .", ".git::$INDEX_ALLOCATION/x", "GIT~1", "a/git~12/b", "git~1 ",
		".g\xe2\x80\x8cit", "\xef\xbb\xbf.git", ".git\xe2\x81\xaf", "a\\.git\\hooks",
		"/abs/.git"};
	static const char *const no[] = {"", ".", ".gitignore", ".github/x", ".gitmodules", "git",
		"x.git", "foo.git/hooks", ".git-x", "git~", "git~x", ".gi", ".g", "\x0egit",
		".git\xe2\x80\x8a", "a/b", "\xe2", ".git0"};

	for (size_t i = 0; i < sizeof(yes) / sizeof(*yes); i++)
		assert_true(entry_path_has_git(yes[i]));
	for (size_t i = 0; i < sizeof(no) / sizeof(*no); i++)
		assert_false(entry_path_has_git(no[i]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_id),
		cmocka_unit_test(test_id_notifies_apart),
		cmocka_unit_test(test_find),
		cmocka_unit_test(test_same),
		cmocka_unit_test(test_add_copies),
		cmocka_unit_test(test_git_names),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
