/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "core/context/secrets.h"

#include "tests/unit/tree.h"

static const char *const env[] = {"HF_TOKEN=abc", "EMPTY=", NULL};

struct fixture {
	struct tree tree;
	struct secrets_source source;
};

static int set_up(void **state)
{
	struct fixture *f = mem_alloc(1, sizeof(*f));

	f->tree = tree_new();
	f->source = (struct secrets_source){.env = env, .dir = f->tree.root, .home = f->tree.root};
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	tree_free(&f->tree);
	free(f);
	return 0;
}

static void write_file(
	const struct fixture *f, const char *name, const char *data, size_t len, mode_t mode)
{
	AUTO_FREE char *path = fs_join(f->tree.root, name);
	AUTO_ERR struct err err = {0};

	assert_int_equal(fs_replace(path, data, len, mode, FS_SYNC_NONE, &err), 0);
	chmod(path, mode);
}

static void test_from_shell(void **state)
{
	const struct fixture *f = *state;
	AUTO_STRV struct strv values = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(secrets_read(&f->source, "HF_TOKEN", &values, NULL, &err), 0);
	assert_int_equal(secrets_read(&f->source, "EMPTY", &values, NULL, &err), 0);
	assert_string_equal(values.v[0], "HF_TOKEN=abc");
	assert_string_equal(values.v[1], "EMPTY=");
	assert_true(secrets_read(&f->source, "ABSENT", &values, NULL, &err) < 0);
	assert_int_equal(err.id, E_SECRET);
	assert_int_equal(values.n, 2);
}

static void test_from_file(void **state)
{
	const struct fixture *f = *state;
	AUTO_STRV struct strv values = {0};
	AUTO_ERR struct err err = {0};
	bool open = true;

	write_file(f, "token", "line 1\nline 2\n", 14, 0600);
	assert_int_equal(secrets_read(&f->source, "T=@token", &values, &open, &err), 0);
	assert_string_equal(values.v[0], "T=line 1\nline 2");
	assert_false(open);
	write_file(f, "token", "x", 1, 0644);
	assert_int_equal(secrets_read(&f->source, "T=@~/token", &values, &open, &err), 0);
	assert_string_equal(values.v[0], "T=x");
	assert_true(open);
}

/* No message repeats what may be a secret. */
static void test_refused(void **state)
{
	const struct fixture *f = *state;
	AUTO_FREE char *large = mem_alloc(1, SECRET_MAX + 1);
	static const char *const items[] = {
		"T=hunter2", "T=", "T=@", "T=@missing", "T=@empty", "T=@nul", "T=@large"};

	memset(large, 'a', SECRET_MAX + 1);
	write_file(f, "empty", "\n", 1, 0600);
	write_file(f, "nul", "hunter2\0x", 9, 0600);
	write_file(f, "large", large, SECRET_MAX + 1, 0600);
	for (size_t i = 0; i < ARRAY_LEN(items); i++) {
		AUTO_STRV struct strv values = {0};
		AUTO_ERR struct err err = {0};
		assert_true(secrets_read(&f->source, items[i], &values, NULL, &err) < 0);
		assert_int_equal(values.n, 0);
		assert_null(strstr(err.message, "hunter2"));
		assert_true(!err.hint || !strstr(err.hint, "hunter2"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_from_shell, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_from_file, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
