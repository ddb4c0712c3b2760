/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "base/util/str.h"
#include "host/editable.h"
#include "tests/unit/tree.h"

#define SITE "env/lib/python3.12/site-packages"

/*
 * Texts
 */

static void expect_words(struct strv *words, const char *expected)
{
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 20);
	for (size_t i = 0; i < words->n; i++) {
		if (i)
			buf_addc(&text, '|');
		buf_adds(&text, words->v[i]);
	}
	assert_string_equal(text.data, expected);
	strv_done(words);
}

static void expect_parsed(const char *text, bool is_finder, const char *names, const char *paths)
{
	struct strv found = {0}, at = {0};

	editable_parse(text, is_finder, &found, &at);
	expect_words(&found, names);
	expect_words(&at, paths);
}

static void test_pth(void **state)
{
	AUTO_STRV struct strv names = {0}, paths = {0};
	AUTO_BUF struct buf many;

	expect_parsed("# c\n/a\n\n  /b c \r\nimport x; x.y()\nimport\tz\nimportant\nlast", false,
		"|||", "/a|/b c|important|last");
	buf_init(&many, 1 << 20);
	for (int i = 0; i < 2 * EDITABLE_PATHS_MAX; i++)
		buf_adds(&many, "/x\n");
	editable_parse(many.data, false, &names, &paths);
	assert_int_equal(paths.n, EDITABLE_PATHS_MAX);
}

static void expect_map(const char *text, const char *names, const char *paths)
{
	expect_parsed(text, true, names, paths);
}

static void test_finder(void **state)
{
	expect_map("import sys\nMAPPING: dict[str, str] = {'a': '/p/a', \"b\": \"/p/it's\"}\n",
		"a|b", "/p/a|/p/it's");
	expect_map("NAMESPACES: dict[str, list[str]] = {'n': ['/p/n', '/q/n'], 'm': []}\n", "n|n",
		"/p/n|/q/n");
	expect_map("MAPPING = {'a': '/\xc3\xa4\\'\\\\'}", "a", "/\xc3\xa4'\\");
	expect_map("F.map_module('x', '/p/x/__init__.py')\n", "x", "/p/x/__init__.py");
}

static void test_finder_hostile(void **state)
{
	AUTO_STRV struct strv names = {0}, paths = {0};
	AUTO_BUF struct buf many;

	expect_map("", "", "");
	expect_map("MAPPING", "", "");
	expect_map("X = {'a': '/p'}", "", "");
	expect_map("MAPPING = {'a': '/p", "", "");
	expect_map("MAPPING = {'a': '/p\n'}", "", "");
	expect_map("MAPPING = {'a': '\\x00'}", "", "");
	expect_map("MAPPING = {'a': '\\", "", "");
	buf_init(&many, 1 << 20);
	buf_adds(&many, "MAPPING = {");
	for (int i = 0; i < 2 * EDITABLE_PATHS_MAX; i++)
		buf_adds(&many, "'a': '/p', ");
	editable_parse(many.data, true, &names, &paths);
	assert_int_equal(names.n, EDITABLE_PATHS_MAX);
	assert_int_equal(paths.n, EDITABLE_PATHS_MAX);
}

/*
 * Environments: an interpreter on PATH, a tree
 */

struct place {
	struct tree tree;
	char *root, *path, *home;
	const char *env[8];
};

static void make_executable(const struct tree *tree, const char *path, const char *text)
{
	tree_write(tree, path, text);
	assert_int_equal(fchmodat(tree->fd, path, 0755, 0), 0);
}

static int setup(void **state)
{
	struct place *place = mem_alloc(1, sizeof(*place));

	place->tree = tree_new();
	make_executable(&place->tree, "env/bin/python3.12",
		"\x7f"
		"ELF");
	tree_link(&place->tree, "env/bin/python", "python3.12");
	tree_dir(&place->tree, SITE);
	tree_dir(&place->tree, "proj/src/pkg");
	place->root = fs_join(place->tree.root, "proj");
	place->path = mem_printf("PATH=%s/env/bin", place->tree.root);
	place->home = mem_printf("HOME=%s/home", place->tree.root);
	place->env[0] = place->path;
	place->env[1] = place->home;
	*state = place;
	return 0;
}

static int teardown(void **state)
{
	struct place *place = *state;

	tree_free(&place->tree);
	free(place->root);
	free(place->path);
	free(place->home);
	free(place);
	return 0;
}

/* A file of the place with %s for the root of the tree. */
static void write_root(const struct place *place, const char *path, const char *format)
{
	const char *at = strstr(format, "%s");
	AUTO_FREE char *text =
		mem_printf("%.*s%s%s", (int)(at - format), format, place->root, at + 2);

	tree_write(&place->tree, path, text);
}

static void find(struct place *place, const char *line, struct editable *ret)
{
	AUTO_STRV struct strv words = {0};

	strv_add(&words, line);
	editable_find(&(struct editable_query){.command = &words,
			      .env = place->env,
			      .cwd = place->root,
			      .root = place->root},
		ret);
}

static void expect_paths(struct place *place, const char *line, const char *paths)
{
	AUTO_EDITABLE struct editable found;

	find(place, line, &found);
	if (*paths && !found.sentence)
		fail_msg("%s: nothing is said", line);
	expect_words(&found.paths, paths);
}

static void add_dist(struct place *place, const char *site, const char *name)
{
	AUTO_FREE char *path = mem_printf("%s/%s-0.1.dist-info/direct_url.json", site, name);

	write_root(place, path, "{\"url\": \"file://%s\", \"dir_info\": {\"editable\": true}}");
}

static void test_path_line(void **state)
{
	struct place *place = *state;
	AUTO_EDITABLE struct editable found;

	write_root(place, SITE "/pkg.pth", "%s/src\n/usr\n../../../bin\n");
	add_dist(place, SITE, "pkg");
	tree_dir(&place->tree, SITE "/numpy-2.0.dist-info");
	find(place, "python train.py", &found);
	assert_string_equal(found.sentence,
		"package pkg is installed from this tree (editable): the run imports its own copy "
		"(src)");
	assert_int_equal(found.warnings.n, 0);
	expect_words(&found.paths, "src");
}

/* The package is named where its direct_url.json says that it is editable, and where it is. */
static void test_direct_url(void **state)
{
	static const struct {
		const char *text;
		bool is_named;
	} cases[] = {
		{"{\"url\": \"file://%s/a%20b\", \"dir_info\": {\"editable\": true}}", true},
		{"{\"url\": \"file://localhost%s/a b\", \"dir_info\": {\"editable\": true}}", true},
		{"{\"url\": \"file://%s/a%2\", \"dir_info\": {\"editable\": true}}", false},
		{"{\"url\": \"file://%s/a b\", \"dir_info\": {}}", false},
		{"{\"url\": \"file://%s/a b\", \"dir_info\": {\"editable\": 1}}", false},
		{"{\"url\": \"https://x%s/a b\", \"dir_info\": {\"editable\": true}}", false},
		{"{\"url\": 3, \"dir_info\": {\"editable\": true}, \"x\": \"%s\"}", false},
		{"[\"%s\"]", false},
	};
	struct place *place = *state;

	tree_dir(&place->tree, "proj/a b");
	write_root(place, SITE "/pkg.pth", "%s/a b\n");
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_EDITABLE struct editable found;
		write_root(place, SITE "/pkg-0.1.dist-info/direct_url.json", cases[i].text);
		find(place, "python x.py", &found);
		if (!str_starts(found.sentence,
			    cases[i].is_named ? "package pkg is" : "python imports"))
			fail_msg("%s: %s", cases[i].text, found.sentence);
	}
}

static void test_finders(void **state)
{
	struct place *place = *state;
	AUTO_EDITABLE struct editable found;

	tree_dir(&place->tree, "proj/lib");
	write_root(
		place, SITE "/__editable___pkg_0_1_finder.py", "MAPPING = {'pkg': '%s/src/pkg'}\n");
	write_root(place, SITE "/__editable___odd_0_1_finder.py",
		"MAPPING = {'odd': '%s/lib'}\nNAMESPACES = {}\n");
	tree_write(&place->tree, "proj/two.py", "");
	write_root(
		place, SITE "/__editable___one_0_1_finder.py", "MAPPING = {'one': '%s/two.py'}\n");
	tree_write(&place->tree, "proj/flat/__init__.py", "");
	write_root(place, SITE "/_editable_impl_flat.py",
		"F.install()\nF.map_module('flat', '%s/flat/__init__.py')\n");
	find(place, "python train.py", &found);
	expect_words(&found.paths, "src|.");
	expect_words(&found.aliases, "odd=lib");
	assert_int_equal(found.warnings.n, 1);
	assert_true(str_starts(found.warnings.v[0], "module one is imported from the live tree"));
}

static void test_hook(void **state)
{
	struct place *place = *state;
	AUTO_EDITABLE struct editable found;

	add_dist(place, SITE, "pkg");
	write_root(place, SITE "/_editable_skbc_pkg.pth", "import _editable_skbc_pkg\n%s/src\n");
	tree_write(&place->tree, SITE "/_editable_skbc_pkg.py", "");
	find(place, "python train.py", &found);
	assert_null(found.sentence);
	assert_int_equal(found.warnings.n, 1);
	assert_non_null(strstr(found.warnings.v[0], "package pkg "));
	expect_words(&found.fixed, "pkg");
}

static void test_commands(void **state)
{
	static const char *const lines[] = {"python x.py", "python3.12 x.py", "env A=1 python x.py",
		"A=1 python x.py", "nice -n 5 python x.py", "sh -c 'cd x && python y'", "./run.sh",
		"cd src; OMP=1 python x.py | tee log", "make train", "nothing"};
	struct place *place = *state;

	write_root(place, SITE "/pkg.pth", "%s/src\n");
	make_executable(&place->tree, "proj/run.sh", "#!/bin/sh\npython x\n");
	for (size_t i = 0; i < ARRAY_LEN(lines); i++)
		expect_paths(place, lines[i], "src");
}

/* A console script of an environment that is not active, and a link to one. */
static void test_script(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *path = mem_printf("PATH=%s/tools:/usr/bin:/bin", place->tree.root);
	AUTO_FREE char *tool = mem_printf("%s/env/bin/tool x", place->tree.root);
	AUTO_FREE char *venv = mem_printf("VIRTUAL_ENV=%s/env", place->tree.root);

	write_root(place, SITE "/pkg.pth", "%s/src\n");
	tree_write(&place->tree, "env/pyvenv.cfg", "home = /usr/bin\n");
	make_executable(&place->tree, "env/bin/tool", "");
	tree_link(&place->tree, "tools/linked", "../env/bin/tool");
	place->env[0] = path;
	expect_paths(place, "linked x", "src");
	expect_paths(place, tool, "src");
	expect_paths(place, "make train", "");
	place->env[2] = venv;
	expect_paths(place, "make train", "src");
	place->env[2] = NULL;
	place->env[0] = place->path;
}

static void test_activation(void **state)
{
	struct place *place = *state;
	AUTO_STRV struct strv words = {0};
	AUTO_FREE char *line = mem_printf("source %s/env/bin/activate", place->tree.root);
	AUTO_FREE char *both = mem_printf("%s && exec python x", line);
	AUTO_EDITABLE struct editable none = {0}, found = {0}, last = {0};
	struct editable_query query = {
		.command = &words, .env = place->env, .cwd = place->root, .root = place->root};

	write_root(place, SITE "/pkg.pth", "%s/src\n");
	tree_dir(&place->tree, "home");
	tree_write(&place->tree, "env/pyvenv.cfg", "");
	tree_write(&place->tree, "env/bin/activate", "");
	place->env[0] = "PATH=/nowhere";
	strv_add(&words, "python");
	editable_find(&query, &none);
	assert_int_equal(none.paths.n, 0);
	query.before = "umask 077\n. ~/../env/bin/activate";
	editable_find(&query, &found);
	expect_words(&found.paths, "src");
	query.before = NULL;
	place->env[0] = "PATH=/usr/bin:/bin";
	strv_done(&words);
	strv_add(&words, "bash");
	strv_add(&words, "-c");
	strv_add(&words, both);
	editable_find(&query, &last);
	expect_words(&last.paths, "src");
	place->env[0] = place->path;
}

/* A second environment beside that of the interpreter, on PATH behind it. */
static void test_nearest(void **state)
{
	static const struct {
		const char *before, *line;
	} cases[] = {
		{NULL, "mpirun -n 4 python x.py"},
		{"conda activate proj", "python x.py"},
		{"python -I make_config.py", "python x.py"},
		{NULL, "python prepare.py && python -I check.py"},
		{". ~/../env/bin/activate", "mpirun x"},
	};
	struct place *place = *state;
	AUTO_FREE char *path = mem_printf(
		"PATH=%s/env/bin:%s/conda/bin:/usr/bin:/bin", place->tree.root, place->tree.root);

	write_root(place, SITE "/pkg.pth", "%s/src\n");
	tree_dir(&place->tree, "home");
	tree_write(&place->tree, "env/pyvenv.cfg", "");
	tree_write(&place->tree, "env/bin/activate", "");
	tree_dir(&place->tree, "conda/conda-meta");
	make_executable(&place->tree, "conda/bin/mpirun", "");
	make_executable(&place->tree, "conda/bin/conda", "");
	place->env[0] = path;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_STRV struct strv words = {0};
		AUTO_EDITABLE struct editable found;

		strv_add(&words, cases[i].line);
		editable_find(&(struct editable_query){.command = &words,
				      .before = cases[i].before,
				      .env = place->env,
				      .cwd = place->root,
				      .root = place->root},
			&found);
		if (found.paths.n != 1 || found.warnings.n)
			fail_msg("%s; %s", cases[i].before ? cases[i].before : "", cases[i].line);
	}
	place->env[0] = place->path;
}

static void test_isolated(void **state)
{
	static const struct {
		const char *line;
		bool is_isolated;
	} cases[] = {
		{"python -I x.py", true},
		{"python -uE -s x.py", true},
		{"cd a && python3.12 -I -m x", true},
		{"python -W -I x.py", false},
		{"python -WI x.py", false},
		{"python x.py -I", false},
		{"python -m -I", false},
		{"python -c -I", false},
		{"python --check -I", false},
		{"echo -I", false},
	};
	struct place *place = *state;

	write_root(place, SITE "/pkg.pth", "%s/src\n");
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_EDITABLE struct editable found;
		find(place, cases[i].line, &found);
		if ((found.paths.n == 0) != cases[i].is_isolated ||
			(found.sentence == NULL) != cases[i].is_isolated ||
			found.warnings.n != cases[i].is_isolated)
			fail_msg("%s", cases[i].line);
	}
}

static void test_python_path(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *path = mem_printf("PYTHONPATH=rel::/nowhere:%s/src/:%s:%s/src", place->root,
		place->root, place->root);

	place->env[2] = path;
	expect_paths(place, "python x.py", "src|.");
	place->env[2] = NULL;
	expect_paths(place, "python x.py", "");
}

static void test_venv(void **state)
{
	struct place *place = *state;
	const char *cfg = "proj/.venv/pyvenv.cfg";
	AUTO_FREE char *with = mem_printf(
		"home = %s/env/bin\ninclude-system-site-packages = true\n", place->tree.root);
	AUTO_FREE char *spaced = mem_printf(
		"home = %s/my env/bin \r\nInclude-system-site-packages=true", place->tree.root);
	AUTO_FREE char *target = mem_printf("%s/env/bin/python3.12", place->tree.root);
	AUTO_FREE char *line = mem_printf("%s/.venv/bin/python x.py", place->root);

	tree_link(&place->tree, "proj/.venv/bin/python", target);
	tree_write(&place->tree, cfg, "home = /nowhere\n");
	tree_dir(&place->tree, "proj/.venv/lib/python3.12/site-packages");
	tree_link(&place->tree, "proj/.venv/lib64", "lib");
	tree_dir(&place->tree, "proj/.venv/lib/python3.12/site-packages/old.egg");
	tree_write(&place->tree, "proj/.venv/lib/python3.12/site-packages/e.pth", "old.egg\n");
	write_root(place, SITE "/pkg.pth", "%s/src\n");
	expect_paths(place, line, "");
	tree_write(&place->tree, cfg, with);
	expect_paths(place, line, "src");
	/* In a directory whose name has a blank. */
	tree_link(&place->tree, "my env", "env");
	tree_write(&place->tree, cfg, spaced);
	expect_paths(place, line, "src");
}

static void test_user_site(void **state)
{
	struct place *place = *state;

	write_root(place, "home/.local/lib/python3.12/site-packages/pkg.pth", "%s/src\n");
	expect_paths(place, "python x.py", "src");
	place->env[2] = "PYTHONNOUSERSITE=1";
	expect_paths(place, "python x.py", "");
	place->env[2] = NULL;
}

static void test_pyenv(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *path = mem_printf("PATH=%s/pyenv/shims", place->tree.root);

	make_executable(&place->tree, "pyenv/shims/python", "#!/usr/bin/env bash\nexec pyenv\n");
	place->env[0] = path;
	expect_paths(place, "python x.py", "");
	write_root(
		place, "pyenv/versions/3.12.10/lib/python3.12/site-packages/pkg.pth", "%s/src\n");
	expect_paths(place, "python x.py", "src");
	place->env[0] = place->path;
}

static void test_links(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *alias = mem_printf("%s/alias/src\n", place->tree.root);

	tree_link(&place->tree, "alias", "proj");
	tree_link(&place->tree, "proj/away", "/usr");
	tree_write(&place->tree, SITE "/a.pth", alias);
	write_root(place, SITE "/b.pth", "%s/away\n");
	write_root(place, SITE "/c.pth", "%s/gone\n");
	write_root(place, SITE "/d.pth", "%s-else\n");
	expect_paths(place, "python x.py", "src");
}

static void test_odd_files(void **state)
{
	struct place *place = *state;

	tree_dir(&place->tree, SITE "/dir.pth");
	assert_int_equal(mkfifoat(place->tree.fd, SITE "/pipe.pth", 0600), 0);
	tree_sparse(&place->tree, SITE "/huge.pth", (off_t)1 << 40);
	tree_link(&place->tree, SITE "/loop.pth", "loop.pth");
	tree_dir(&place->tree, SITE "/x-1.dist-info/direct_url.json");
	expect_paths(place, "python x.py", "");
	expect_paths(place, "", "");
	expect_paths(place, "/nowhere/python", "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pth),
		cmocka_unit_test(test_finder),
		cmocka_unit_test(test_finder_hostile),
		cmocka_unit_test_setup_teardown(test_path_line, setup, teardown),
		cmocka_unit_test_setup_teardown(test_direct_url, setup, teardown),
		cmocka_unit_test_setup_teardown(test_finders, setup, teardown),
		cmocka_unit_test_setup_teardown(test_hook, setup, teardown),
		cmocka_unit_test_setup_teardown(test_commands, setup, teardown),
		cmocka_unit_test_setup_teardown(test_script, setup, teardown),
		cmocka_unit_test_setup_teardown(test_activation, setup, teardown),
		cmocka_unit_test_setup_teardown(test_nearest, setup, teardown),
		cmocka_unit_test_setup_teardown(test_isolated, setup, teardown),
		cmocka_unit_test_setup_teardown(test_python_path, setup, teardown),
		cmocka_unit_test_setup_teardown(test_venv, setup, teardown),
		cmocka_unit_test_setup_teardown(test_user_site, setup, teardown),
		cmocka_unit_test_setup_teardown(test_pyenv, setup, teardown),
		cmocka_unit_test_setup_teardown(test_links, setup, teardown),
		cmocka_unit_test_setup_teardown(test_odd_files, setup, teardown),
	};

	return cmocka_run_group_tests_name("editable", tests, NULL, NULL);
}
