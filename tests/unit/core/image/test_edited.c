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
#include "core/image/edited.h"
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
	AUTO_EDITED struct edited edited;
	struct path paths[EDITED_MAX + 1];
	const struct path *list[EDITED_MAX + 1];

	for (size_t i = 0; i < n; i++) {
		paths[i] = path_of(root, names[i]);
		list[i] = &paths[i];
	}
	edited_load(state_path, &edited);
	bool changed = edited_add(&edited, list, n);
	assert_int_equal(edited_save(state_path, &edited, NULL), 0);
	return changed;
}

static bool changed_since(const char *root, const char *state_path)
{
	AUTO_EDITED struct edited edited;

	edited_load(state_path, &edited);
	return edited_has_changed(&edited, root);
}

static void test_an_edit_is_seen_before_the_walk(void **state)
{
	static const char *const names[] = {"a.py", "b.py"};
	const char *root = tmp;

	(void)state;
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

	(void)state;
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

	(void)state;
	AUTO_FREE char *path = mem_printf("%s/edited", root);

	assert_true(push(root, path, NULL, 0));
	assert_false(push(root, path, NULL, 0));
}

static void test_odd_names_and_damage(void **state)
{
	static const char *const names[] = {"a\nb", "c d\xff"};
	const char *root = tmp;

	(void)state;
	AUTO_FREE char *path = mem_printf("%s/edited", root);
	AUTO_EDITED struct edited edited;

	write_file(root, names[0], "1");
	write_file(root, names[1], "1");
	push(root, path, names, 2);
	edited_load(path, &edited);
	assert_int_equal(edited.before.n, 1);
	assert_string_equal(edited.before.v[0].path, names[1]);
	edited_done(&edited);
	write_file(root, "edited", "garbage\n");
	edited_load(path, &edited);
	assert_false(edited.known);
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
