/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "core/image/dirty.h"
#include "snap/tree/content.h"
#include "tests/unit/tmpfix.h"

static void write_file(const char *root, const char *name, const char *text)
{
	AUTO_FREE char *path = fs_join(root, name);

	assert_int_equal(fs_replace(path, text, strlen(text), 0644, FS_SYNC_NONE, NULL), 0);
}

/* What a snapshot would say of the file. */
static struct path path_of(const char *root, const char *name)
{
	AUTO_FD int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct path path = {.path = name};
	struct stat st;

	assert_int_equal(content_lstat(fd, name, &st), 0);
	assert_true(content_set_stat(&path, &st));
	return path;
}

/* A push of a tree in which these files are not in the stat cache. */
static bool push(const char *root, const char *state_path, const char *const *names, size_t n)
{
	AUTO_DIRTY struct dirty dirty;
	struct path paths[DIRTY_MAX + 1];
	const struct path *list[DIRTY_MAX + 1];

	for (size_t i = 0; i < n; i++) {
		paths[i] = path_of(root, names[i]);
		list[i] = &paths[i];
	}
	dirty_load(state_path, &dirty);
	bool changed = dirty_add(&dirty, list, n);
	assert_int_equal(dirty_save(state_path, &dirty, NULL), 0);
	return changed;
}

static bool changed_since(const char *root, const char *state_path)
{
	AUTO_DIRTY struct dirty dirty;

	dirty_load(state_path, &dirty);
	return dirty_has_changed(&dirty, root);
}

static void test_an_edit_is_seen_before_the_walk(void **state)
{
	static const char *const names[] = {"a.py", "b.py"};
	const char *root = tmp;

	AUTO_FREE char *path = mem_printf("%s/edited", root);

	write_file(root, "a.py", "1");
	write_file(root, "b.py", "1");
	assert_false(changed_since(root, path));
	assert_true(push(root, path, names, 2)); /* the first one */
	assert_false(changed_since(root, path));
	assert_false(push(root, path, names, 2));
	write_file(root, "b.py", "22");
	assert_true(changed_since(root, path));
	assert_true(push(root, path, names, 2));
	assert_false(changed_since(root, path));
}

static void test_another_file(void **state)
{
	static const char *const names[] = {"a.py", "b.py"};
	const char *root = tmp;

	AUTO_FREE char *path = mem_printf("%s/edited", root), *b = mem_printf("%s/b.py", root);

	write_file(root, "a.py", "1");
	write_file(root, "b.py", "1");
	push(root, path, names, 1);
	assert_false(changed_since(root, path));
	assert_true(push(root, path, names, 2));
	assert_int_equal(unlink(b), 0);
	assert_true(changed_since(root, path));
}

static void test_none_is_known_too(void **state)
{
	const char *root = tmp;

	AUTO_FREE char *path = mem_printf("%s/edited", root);

	assert_true(push(root, path, NULL, 0));
	assert_false(push(root, path, NULL, 0));
}

static void test_odd_names_and_damage(void **state)
{
	static const char *const names[] = {"a\nb", "c d\xff"};
	const char *root = tmp;

	AUTO_FREE char *path = mem_printf("%s/edited", root);
	AUTO_DIRTY struct dirty dirty;

	write_file(root, names[0], "1");
	write_file(root, names[1], "1");
	push(root, path, names, 2);
	dirty_load(path, &dirty);
	assert_int_equal(dirty.before.n, 1);
	assert_string_equal(dirty.before.v[0].path, names[1]);
	dirty_done(&dirty);
	write_file(root, "edited", "garbage\n");
	dirty_load(path, &dirty);
	assert_false(dirty.known);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_an_edit_is_seen_before_the_walk, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_another_file, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_none_is_known_too, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_odd_names_and_damage, make_tmp, remove_tmp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
