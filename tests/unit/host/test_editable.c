/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "base/util/str.h"
#include "host/editable.h"
#include "host/editable_parse.h"
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

static void test_pth(void **state)
{
	static const char text[] =
		"# c\n/a\n\n  /b c \r\nimport x; x.y()\nimport\tz\nimportant\nlast";
	struct strv dirs = {0};

	(void)state;
	parse_pth(text, strlen(text), &dirs);
	expect_words(&dirs, "/a|/b c|important|last");
	parse_pth("a\0b\nok\n", 7, &dirs);
	expect_words(&dirs, "ok");
	AUTO_BUF struct buf many;
	buf_init(&many, 1 << 20);
	for (int i = 0; i < 2 * PARSE_LINES_MAX; i++)
		buf_adds(&many, "/x\n");
	parse_pth(many.data, many.len, &dirs);
	assert_int_equal(dirs.n, PARSE_LINES_MAX);
	strv_done(&dirs);
}

static void expect_map(const char *text, const char *names, const char *paths)
{
	struct module_map map = {0};

	parse_finder(text, strlen(text), &map);
	expect_words(&map.names, names);
	expect_words(&map.paths, paths);
}

static void test_finder(void **state)
{
	(void)state;
	expect_map("import sys\nMAPPING: dict[str, str] = {'a': '/p/a', \"b\": \"/p/it's\"}\n",
		"a|b", "/p/a|/p/it's");
	expect_map("NAMESPACES: dict[str, list[str]] = {'n': ['/p/n', '/q/n'], 'm': []}\n", "n|n",
		"/p/n|/q/n");
	expect_map("MAPPING = {'a': '/\\xe4\\u20ac\\U0001f600\\'\\\\\\udcff'}", "a",
		"/\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80'\\\xff");
	expect_map("F.map_module('x', '/p/x/__init__.py')\n", "x", "/p/x/__init__.py");
	expect_map("MAPPING = {\n 'a':\n '/p/a',\n}\n", "a", "/p/a");
}

static void test_finder_hostile(void **state)
{
	(void)state;
	expect_map("", "", "");
	expect_map("MAPPING", "", "");
	expect_map("MAPPING = {'a': open('/etc/x')}", "", "");
	expect_map("MAPPING = {'a': '/p' + 'x', 'b': '/q'}", "a", "/p");
	expect_map("MAPPING = {'a': f'/p'}", "", "");
	expect_map("MAPPING = {'a': '/p", "", "");
	expect_map("MAPPING = {'a': '/p\n'}", "", "");
	expect_map("MAPPING = {'a': '\\x0'}", "", "");
	expect_map("MAPPING = {'a': '\\x00'}", "", "");
	expect_map("MAPPING = {'a': '\\ud800'}", "", "");
	expect_map("MAPPING = {'a': '\\U00110000'}", "", "");
	expect_map("MAPPING = {'a': ['/p' '/q']}", "a", "/p");
	AUTO_FREE char *path = mem_alloc(1, PARSE_PATH_MAX + 100);
	memset(path, 'x', PARSE_PATH_MAX + 50);
	AUTO_FREE char *text = mem_printf("MAPPING = {'a': '%s'}", path);
	expect_map(text, "", "");
	AUTO_BUF struct buf many;
	buf_init(&many, 1 << 20);
	buf_adds(&many, "MAPPING = {");
	for (int i = 0; i < 2 * PARSE_PAIRS_MAX; i++)
		buf_adds(&many, "'a': '/p', ");
	struct module_map map = {0};
	parse_finder(many.data, many.len, &map);
	assert_int_equal(map.names.n, PARSE_PAIRS_MAX);
	assert_int_equal(map.paths.n, PARSE_PAIRS_MAX);
	module_map_done(&map);
}

static void test_base(void **state)
{
	static const struct {
		const char *name, *path, *base;
	} cases[] = {
		{"a", "/p/src/a", "/p/src"},
		{"a", "/p/a.py", "/p"},
		{"a", "/p/a/__init__.py", "/p"},
		{"a", "/p/a/", "/p"},
		{"a", "/a", "/"},
		{"n.a", "/p/n/a", "/p"},
		{"n.a", "/p/x/a", NULL},
		{"a", "/p/ba", NULL},
		{"a", "/p/lib", NULL},
		{"a", "a", NULL},
		{"", "/p", "/p"},
		{".a", "/p/a", NULL},
		{"a.", "/p/a", NULL},
		{"a", "", NULL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *base = module_base(cases[i].name, cases[i].path);
		if (!str_eq(base, cases[i].base))
			fail_msg(
				"%s at %s: %s", cases[i].name, cases[i].path, base ? base : "NULL");
	}
}

static void test_direct_url(void **state)
{
	static const struct {
		const char *text, *path;
	} cases[] = {
		{"{\"url\": \"file:///a%20b\", \"dir_info\": {\"editable\": true}}", "/a b"},
		{"{\"url\": \"file://localhost/a\", \"dir_info\": {\"editable\": true}}", "/a"},
		{"{\"url\": \"file:///a\", \"dir_info\": {}}", NULL},
		{"{\"url\": \"file:///a\", \"dir_info\": {\"editable\": 1}}", NULL},
		{"{\"url\": \"https://x/a\", \"dir_info\": {\"editable\": true}}", NULL},
		{"{\"url\": \"file://host/a\", \"dir_info\": {\"editable\": true}}", NULL},
		{"{\"url\": \"file:///a%00\", \"dir_info\": {\"editable\": true}}", NULL},
		{"{\"url\": \"file:///a%4\", \"dir_info\": {\"editable\": true}}", NULL},
		{"{\"url\": \"file:///a%\", \"dir_info\": {\"editable\": true}}", NULL},
		{"{\"url\": 3}", NULL},
		{"[]", NULL},
		{"", NULL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *path = parse_direct_url(cases[i].text, strlen(cases[i].text));
		if (!str_eq(path, cases[i].path))
			fail_msg("%s: %s", cases[i].text, path ? path : "NULL");
	}
}

static void test_venv_cfg(void **state)
{
	static const char text[] =
		"home = /usr/bin\nInclude-System-Site-Packages=true\r\nx\nhome2 = 3\n";
	AUTO_FREE char *home = parse_venv_cfg(text, strlen(text), "home");
	AUTO_FREE char *system = parse_venv_cfg(text, strlen(text), "include-system-site-packages");

	(void)state;
	assert_string_equal(home, "/usr/bin");
	assert_string_equal(system, "true");
	assert_null(parse_venv_cfg(text, strlen(text), "hom"));
	assert_null(parse_venv_cfg("home =", 6, "home"));
}

static void expect_shebang(const char *text, const char *expected)
{
	struct strv words = {0};

	parse_shebang(text, strlen(text), &words);
	expect_words(&words, expected);
}

static void test_shebang(void **state)
{
	(void)state;
	expect_shebang("#!/opt/x/bin/python3 -sE\nimport x\n", "/opt/x/bin/python3|-sE");
	expect_shebang("#! /usr/bin/env -S A=1 python3 -u\n", "python3|-u");
	expect_shebang("#!/usr/bin/env python", "python");
	expect_shebang(
		"#!/bin/sh\n'''exec' \"/a b/python\" \"$0\" \"$@\"\n' '''\n", "/a b/python|$0|$@");
	expect_shebang("#!/bin/sh\necho\n", "/bin/sh");
	expect_shebang(" #!/bin/sh\n", "");
	expect_shebang("#!", "");
	expect_shebang("#!/usr/bin/env", "");
	expect_shebang("\x7f"
		       "ELF",
		"");
	expect_shebang("", "");
}

static void expect_line(const char *line, const char *expected)
{
	struct strv words = {0};

	parse_shell_line(line, &words);
	expect_words(&words, expected);
}

static void test_shell_line(void **state)
{
	(void)state;
	expect_line("cd a && python 'x y' \"z\\\"w\" b\\ c", "cd|a|;|python|x y|z\"w|b c");
	expect_line("A=1 python -c 'a;b'; ls", "A=1|python|-c|a;b|;|ls");
	expect_line("a\\\nb ''", "ab|");
	expect_line("(x | y)", "x|;|y|;");
	expect_line("'open", "open");
	expect_line("\\", "\\");
	expect_line("", "");
}

static void test_options(void **state)
{
	static const struct {
		const char *words[4];
		bool env, user;
	} cases[] = {
		{{"-I", "x.py"}, true, true},
		{{"-uE", "-s", "x.py"}, true, true},
		{{"-W", "-I", "x.py"}, false, false},
		{{"-WI", "x.py"}, false, false},
		{{"x.py", "-I"}, false, false},
		{{"-m", "-I"}, false, false},
		{{"-c", "-I"}, false, false},
		{{"-", "-I"}, false, false},
		{{"--check-hash-based-pycs", "-I", "-s"}, false, true},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct python_options options = {0};
		size_t n = 0;
		while (n < 4 && cases[i].words[n])
			n++;
		parse_python_options((char *const *)cases[i].words, n, &options);
		if (options.ignores_env != cases[i].env || options.no_user != cases[i].user)
			fail_msg("case %zu", i);
	}
	assert_true(is_python_name("/x/python3.13t"));
	assert_true(is_python_name("pypy3"));
	assert_false(is_python_name("python-config"));
	assert_false(is_python_name("/python3/x"));
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

	parse_shell_line(line, &words);
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

static void test_egg_link(void **state)
{
	struct place *place = *state;

	write_root(place, SITE "/old.egg-link", "%s/src\n../");
	expect_paths(place, "python -m x", "src");
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
		"A=1 python x.py", "nice -n 5 python x.py", "tool --x", "long y", "uvtool",
		"sh -c 'cd x && python y'", "./run.sh", "make train", "nothing"};
	struct place *place = *state;
	AUTO_FREE char *script = mem_printf("#!%s/env/bin/python\n", place->tree.root);
	AUTO_FREE char *long_script = mem_printf(
		"#!/bin/sh\n'''exec' \"%s/env/bin/python\" \"$0\" \"$@\"\n", place->tree.root);

	write_root(place, SITE "/pkg.pth", "%s/src\n");
	make_executable(&place->tree, "env/bin/tool", script);
	make_executable(&place->tree, "env/bin/long", long_script);
	make_executable(&place->tree, "env/bin/uvtool",
		"#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\"\n");
	make_executable(&place->tree, "proj/run.sh", "#!/bin/sh\npython x\n");
	for (size_t i = 0; i < ARRAY_LEN(lines); i++)
		expect_paths(place, lines[i], "src");
}

static void test_shell_command(void **state)
{
	struct place *place = *state;
	AUTO_STRV struct strv line = {0};
	AUTO_EDITABLE struct editable found;

	write_root(place, SITE "/pkg.pth", "%s/src\n");
	strv_add(&line, "cd src; OMP=1 python x.py | tee log");
	editable_find(&(struct editable_query){.command = &line,
			      .shell = true,
			      .env = place->env,
			      .cwd = place->root,
			      .root = place->root},
		&found);
	expect_words(&found.paths, "src");
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

static void test_uv_run(void **state)
{
	struct place *place = *state;

	make_executable(&place->tree, "env/bin/uv",
		"\x7f"
		"ELF");
	write_root(place, SITE "/pkg.pth", "%s/src\n");
	expect_paths(place, "uv run python x.py", "src");
	tree_write(&place->tree, "proj/pyproject.toml", "");
	expect_paths(place, "uv run python x.py", "");
	expect_paths(place, "uv run --active python x.py", "src");
	AUTO_FREE char *other = mem_printf("UV_PROJECT_ENVIRONMENT=%s/env", place->tree.root);
	place->env[2] = other;
	expect_paths(place, "uv run x.py", "src");
	place->env[2] = NULL;
}

static void test_isolated(void **state)
{
	struct place *place = *state;
	AUTO_EDITABLE struct editable found;

	write_root(place, SITE "/pkg.pth", "%s/src\n");
	find(place, "python -I x.py", &found);
	assert_int_equal(found.paths.n, 0);
	assert_null(found.sentence);
	assert_int_equal(found.warnings.n, 1);
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
}

static void test_user_site(void **state)
{
	struct place *place = *state;

	write_root(place, "home/.local/lib/python3.12/site-packages/pkg.pth", "%s/src\n");
	write_root(place, "home/.local/lib/python3.11/site-packages/pkg.pth", "%s/\n");
	expect_paths(place, "python x.py", "src");
	expect_paths(place, "python -s x.py", "");
	place->env[2] = "PYTHONNOUSERSITE=1";
	expect_paths(place, "python x.py", "");
	place->env[2] = NULL;
}

static void test_pyenv(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *path = mem_printf("PATH=%s/pyenv/shims", place->tree.root);

	make_executable(&place->tree, "pyenv/shims/python", "#!/usr/bin/env bash\nexec pyenv\n");
	make_executable(&place->tree, "pyenv/versions/3.12.9/bin/python", "");
	make_executable(&place->tree, "pyenv/versions/3.12.10/bin/python", "");
	write_root(
		place, "pyenv/versions/3.12.10/lib/python3.12/site-packages/pkg.pth", "%s/src\n");
	place->env[0] = path;
	expect_paths(place, "python x.py", "");
	tree_write(&place->tree, "pyenv/version", "3.12\n");
	expect_paths(place, "python x.py", "src");
	tree_write(&place->tree, "proj/.python-version", "3.12.9\n");
	expect_paths(place, "python x.py", "");
	place->env[2] = "PYENV_VERSION=3.12.10:system";
	expect_paths(place, "python x.py", "src");
	place->env[2] = NULL;
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
		cmocka_unit_test(test_base),
		cmocka_unit_test(test_direct_url),
		cmocka_unit_test(test_venv_cfg),
		cmocka_unit_test(test_shebang),
		cmocka_unit_test(test_shell_line),
		cmocka_unit_test(test_options),
		cmocka_unit_test_setup_teardown(test_path_line, setup, teardown),
		cmocka_unit_test_setup_teardown(test_finders, setup, teardown),
		cmocka_unit_test_setup_teardown(test_egg_link, setup, teardown),
		cmocka_unit_test_setup_teardown(test_hook, setup, teardown),
		cmocka_unit_test_setup_teardown(test_commands, setup, teardown),
		cmocka_unit_test_setup_teardown(test_shell_command, setup, teardown),
		cmocka_unit_test_setup_teardown(test_activation, setup, teardown),
		cmocka_unit_test_setup_teardown(test_uv_run, setup, teardown),
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
