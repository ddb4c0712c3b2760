/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/image/lock_inputs.h"
#include "tests/unit/tmpfix.h"

typedef void parse_fn(const char *text, size_t len, struct lock_mentions *ret);

/* "FILES|COPIED|LINKED|FINDS", each with commas. */
static void expect(parse_fn *parse, const char *text, const char *expected)
{
	AUTO_LOCK_MENTIONS struct lock_mentions mentions = {0};

	parse(text, strlen(text), &mentions);
	AUTO_FREE char *files = strv_join(&mentions.files, ",");
	AUTO_FREE char *copied = strv_join(&mentions.copied, ",");
	AUTO_FREE char *linked = strv_join(&mentions.linked, ",");
	AUTO_FREE char *finds = strv_join(&mentions.finds, ",");
	AUTO_FREE char *found = mem_printf("%s|%s|%s|%s", files, copied, linked, finds);
	assert_string_equal(found, expected);
	assert_int_equal(mentions.lines.n, mentions.copied.n);
}

static void test_requirements(void **state)
{
	static const char *const cases[][2] = {
		{"", "|||"},
		{"numpy==2\ntorch>=2 ; sys_platform == 'linux'\n", "|||"},
		{"-r base.txt\n--requirement ../b.txt\n-cc.txt\n--constraint=d.txt",
			"base.txt,../b.txt,c.txt,d.txt|||"},
		{"-r \"with blank.txt\"  # why\n#-r no.txt\n", "with blank.txt|||"},
		{"-e .\n--editable ./own[extra]\n-e file:libs/a#egg=a\n", "||.,./own,libs/a|"},
		{"./foo\nlibs/bar[x]; python_version > '3'\nbaz @ file:libs/baz\nx-1-py3-none-any.whl --hash=sha256:0\n",
			"|./foo,libs/bar,libs/baz,x-1-py3-none-any.whl||"},
		{"pkg @ https://host/x.whl\ngit+https://host/x\n-e git+ssh://host/x@main\n-r https://host/r.txt\n",
			"|||"},
		{"./one \\\n  --hash=sha256:00 \\\n  --hash=sha256:01\r\n./two\r\n",
			"|./one,./two||"},
		{"/abs/olute\n~/home\n-r ${HOME}/x.txt\n--index-url https://user:secret@host/simple\n--find-links ./wheels\n-f https://host/x\n-f wheels\n--find-links=\"w 2\"\n",
			"|||./wheels,wheels,w 2"},
		{"--no-index --find-links wheels --pre\n-i https://x/ -f near -r more.txt\n./own -f no\n",
			"more.txt|./own||wheels,near"},
		{"-requirements.txt\n--requirements x.txt\n", "equirements.txt|||"},
		{".", "|.||"},
		{"\xef\xbb\xbf-r base.txt\n# why \\\n./x\n", "base.txt|./x||"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		expect(lock_mentions_of_requirements, cases[i][0], cases[i][1]);
}

static void test_conda(void **state)
{
	(void)state;
	expect(lock_mentions_of_conda,
		"channels:\n  - conda-forge\ndependencies:\n  - python=3.12\n  - pip:\n"
		"      - -r more.txt\n      - \"-c limits.txt\"\n      - -e .\n      - ./libs/foo\n",
		"more.txt,limits.txt|./libs/foo|.|");
}

static void test_uv(void **state)
{
	(void)state;
	expect(lock_mentions_of_uv,
		"version = 1\nsource = { registry = \"https://pypi.org/simple\" }\n"
		"source = { virtual = \".\" }\nsource = { editable = \"packages/a\" }\n"
		"source = { directory = \"libs/foo\" }\nsource = { path = \"w/x.whl\" }\n"
		"source = { directory = \"odd\\\"name\" }\nsource = { git = \"https://x\" }",
		"|libs/foo,w/x.whl|.,packages/a|");
}

static void test_paths(void **state)
{
	static const char *const cases[][3] = {
		{".", "a.txt", "a.txt"},
		{"sub", "../a//b/./c/", "a/b/c"},
		{"sub", "..", ""},
		{"sub", "../../x", NULL},
		{".", "/etc/passwd", NULL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *path = lock_path(cases[i][0], cases[i][1]);
		assert_true(str_eq(path, cases[i][2]));
	}
}

static void put(const char *root, const char *name, const char *text)
{
	AUTO_FREE char *path = fs_join(root, name);
	AUTO_FREE char *dir = fs_dirname(path);

	assert_int_equal(fs_mkdirs(dir, 0755, NULL), 0);
	assert_int_equal(fs_replace(path, text, strlen(text), 0644, FS_SYNC_NONE, NULL), 0);
}

static void expect_found(const char *root, const char *dir, const char *lock, const char *expected,
	const char *expected_optional, const char *expected_copied)
{
	AUTO_LOCK_INPUTS struct lock_inputs inputs = {0};

	lock_inputs_find(root, dir, lock, &inputs);
	AUTO_FREE char *names = strv_join(&inputs.paths, ",");
	AUTO_FREE char *optional = strv_join(&inputs.optional, ",");
	assert_string_equal(names, expected);
	assert_string_equal(optional, expected_optional);
	assert_true(str_eq(inputs.copied, expected_copied));
}

static void test_files(void **state)
{
	const char *root = tmp;
	AUTO_FREE char *link = fs_join(root, "link");

	(void)state;

	put(root, "requirements.txt", "-r req/a\n-r gone.txt\n-e own\n./libs/foo\n./link/foo\n");
	/* Files include one another; what they install lies where the command runs. */
	put(root, "req/a", "-r ../requirements.txt\n-c limits.txt\n./libs/foo\n../outside\n");
	put(root, "req/limits.txt", "numpy<3\n");
	put(root, "own/pyproject.toml", "");
	put(root, "own/code.py", "");
	put(root, "libs/foo/setup.py", "");
	assert_int_equal(symlink("libs", link), 0);
	expect_found(root, ".", "requirements.txt",
		"req/a,own/pyproject.toml,libs/foo,req/limits.txt", "own/pyproject.toml", NULL);

	put(root, "sub/uv.lock",
		"source = { virtual = \".\" }\nsource = { directory = \"../libs/foo\" }\n");
	put(root, "sub/pyproject.toml", "");
	expect_found(
		root, "sub", "uv.lock", "sub/pyproject.toml,libs/foo", "sub/pyproject.toml", NULL);
	expect_found(root, "sub", "requirements.txt", "", "", NULL);
	put(root, "sub/up.txt", "..\n");
	expect_found(root, "sub", "up.txt", "", "", "sub/up.txt:1");

	/* Archives beside the file or the command; none in the directory of the project. */
	put(root, "finds.txt", "-r req/finds.txt\n-f wheels\n-f .\n-f gone\n");
	put(root, "req/finds.txt", "-f near\n-f wheels\n-f ..\n");
	put(root, "wheels/x.whl", "");
	put(root, "req/near/y.whl", "");
	expect_found(
		root, ".", "finds.txt", "req/finds.txt,wheels,req/near", "wheels,req/near", NULL);

	put(root, "copy.txt", "numpy\n\n-r more.txt\n");
	put(root, "more.txt", "# all\n./libs/../\n");
	expect_found(root, ".", "copy.txt", "more.txt", "", "more.txt:2");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_requirements),
		cmocka_unit_test(test_conda),
		cmocka_unit_test(test_uv),
		cmocka_unit_test(test_paths),
		cmocka_unit_test_setup_teardown(test_files, make_tmp, remove_tmp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
