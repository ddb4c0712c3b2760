/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/tensorboard/tensorboard_words.h"
#include "app/tensorboard/tensorboard_local.h"
#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/*
 * Words
 */

static void test_the_line_that_names_the_port(void **state)
{
	static const struct {
		const char *line, *version;
		unsigned port;
	} cases[] = {
		{"TensorBoard 2.21.0 at http://127.0.0.1:34567/k3v9/ (Press CTRL+C to quit)",
			"2.21.0", 34567},
		{"TensorBoard 2.4.1a0 at http://localhost:6006/ (Press CTRL+C to quit)", "2.4.1a0",
			6006},
		{"TensorBoard 2.21.0 at http://[::1]:1/", "2.21.0", 1},
		{"TensorBoard 2.21.0 at http://h:65535", "2.21.0", 65535},
		{"TensorBoard 2.21.0 at http://h:65536/", NULL, 0},
		{"TensorBoard 2.21.0 at http://h:0/", NULL, 0},
		{"TensorBoard 2.21.0 at http://h:99999999999999999999/", NULL, 0},
		{"TensorBoard 2.21.0 at http://h:12x/", NULL, 0},
		{"TensorBoard 2.21.0 at http://h:/", NULL, 0},
		{"TensorBoard 2.21.0 at http://h/", NULL, 0},
		{"TensorBoard 2.21.0 at http://[::1", NULL, 0},
		{"TensorBoard  at http://h:80/", NULL, 0},
		{"TensorBoard 2.21.0 at https://h:80/", NULL, 0},
		{" TensorBoard 2.21.0 at http://h:80/", NULL, 0},
		{"TensorBoard", NULL, 0},
		{"", NULL, 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct tensorboard_line line = {0};
		bool is = tensorboard_line_read(cases[i].line, &line);

		if (is != (cases[i].version != NULL) || line.port != cases[i].port ||
			(is && !str_eq(line.version, cases[i].version)))
			fail_msg("%s: %d %u %s", cases[i].line, is, line.port, line.version);
	}
}

static void test_the_interpreter_of_a_script(void **state)
{
	static const struct {
		const char *head, *words;
	} cases[] = {
		{"#!/home/me/venv/bin/python\nimport re\n", "/home/me/venv/bin/python"},
		{"#! /usr/bin/python3 -s -E\n", "/usr/bin/python3|-s|-E"},
		{"#!/usr/bin/env python3\n", "/usr/bin/env|python3"},
		{"#!/opt/pypy/bin/pypy3\n", "/opt/pypy/bin/pypy3"},
		{"#!/bin/sh\n'''exec' \"/home/a b/bin/python\" \"$0\" \"$@\"\n' '''\n",
			"/home/a b/bin/python"},
		{"#!/bin/sh\n'''exec' /very/long/python3 \"$0\" \"$@\"\n' '''\n",
			"/very/long/python3"},
		{"#!/bin/sh\n'''exec' '/q/python3' \"$0\" \"$@\"", "/q/python3"},
		{"#!/bin/sh\nexec python3 -m tensorboard.main\n", NULL},
		{"#!/bin/bash\n", NULL},
		{"#!/usr/bin/env bash\n", NULL},
		{"#!python\n", NULL},
		{"#!/usr/bin/python3", NULL},
		{"#!/usr/bin/py\033thon\n", NULL},
		{"#!\n", NULL},
		{"#!/bin/sh\n'''exec' \"/unended/python\n", NULL},
		{"\177ELF", NULL},
		{"", NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_STRV struct strv words = {0};
		bool is = tensorboard_python_read(cases[i].head, strlen(cases[i].head), &words);
		AUTO_FREE char *joined = is ? strv_join(&words, "|") : NULL;

		if (!str_eq(joined, cases[i].words))
			fail_msg("%s: %s", cases[i].head, joined ? joined : "none");
	}
	AUTO_STRV struct strv words = {0};
	assert_false(tensorboard_python_read("#!/usr/bin/python3\0\n", 20, &words));
}

static void test_its_own_response(void **state)
{
	static const struct {
		const char *response, *version;
	} cases[] = {
		{"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
		 "{\"version\": \"2.21.0\", \"data_location\": \"/x\"}",
			"2.21.0"},
		{"HTTP/1.0 200 OK\r\n\r\n{\"data_location\": \"/x\"}", ""},
		{"HTTP/1.0 200 OK\r\n\r\n{\"data_location\": \"/x\", \"version\": \"\033[2J\"}",
			NULL},
		{"HTTP/1.0 200 OK\r\n\r\n{\"version\": \"2\"}", NULL},
		{"HTTP/1.0 404 Not Found\r\n\r\n{\"data_location\": \"/x\"}", NULL},
		{"HTTP/1.0 200 OK\r\n{\"data_location\": \"/x\"}", NULL},
		{"HTTP/1.0 200", NULL},
		{"SSH-2.0-x\r\n", NULL},
		{"", NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		char version[TENSORBOARD_VERSION_SIZE];
		bool is = tensorboard_response_read(
			cases[i].response, strlen(cases[i].response), version);

		if (is != (cases[i].version != NULL) || (is && !str_eq(version, cases[i].version)))
			fail_msg("%zu: %s", i, cases[i].response);
	}
}

static void expect(const char *said, enum err_id id, const char *message, const char *hint)
{
	const struct tensorboard_who who = {.path = "/v/bin/tensorboard",
		.version = "2.20.0",
		.install = "/v/bin/python -m pip install",
		.plot = "demo-23456"};
	AUTO_ERR struct err err = {0};

	assert_true(tensorboard_explain(said, strlen(said), &who, &err) < 0);
	if (err.id != id || !strstr(err.message, message) || !strstr(err.hint, hint))
		fail_msg("%s\n%s\n%s", said, err.message, err.hint);
	assert_non_null(strstr(err.message, "TensorBoard 2.20.0 here cannot start"));
	assert_non_null(strstr(err.hint, "dlrun plot demo-23456"));
	assert_string_equal(err.evidence[0], "from /v/bin/tensorboard");
}

static void test_why_it_does_not_start(void **state)
{
	expect("  import pkg_resources\nModuleNotFoundError: No module named 'pkg_resources'\n",
		E_TENSORBOARD_PKG_RESOURCES, "setuptools 82 removed pkg_resources",
		"/v/bin/python -m pip install 'tensorboard>=2.21'");
	expect("ModuleNotFoundError: No module named 'tensorboard'\n", E_TENSORBOARD_MISSING,
		"not in its Python", "install tensorboard");
	expect("ImportError: numpy.core.multiarray failed to import\n", E_TENSORBOARD_START,
		"NumPy", "-U tensorboard numpy");
	expect("TypeError: Descriptors cannot be created directly.\n", E_TENSORBOARD_START,
		"protobuf", "-U tensorboard protobuf");
	expect("ModuleNotFoundError: No module named 'markdown'\n", E_TENSORBOARD_START,
		"a package that it needs is missing", "--force-reinstall");
	expect("Killed\n", E_TENSORBOARD_START, "ended before it answered", "-U tensorboard");
	expect("", E_TENSORBOARD_START, "ended before it answered", "-U tensorboard");
}

static void test_the_last_line(void **state)
{
	AUTO_FREE char *plain = tensorboard_last_line("one\ntwo\r\n \n", 11);
	AUTO_FREE char *hostile = tensorboard_last_line("a\033[2Jb", 6);
	AUTO_FREE char *none = tensorboard_last_line("\n\n", 2);
	char flood[10000];

	assert_string_equal(plain, "two");
	assert_null(strchr(hostile, '\033'));
	assert_null(none);
	memset(flood, '\001', sizeof(flood));
	AUTO_FREE char *cut = tensorboard_last_line(flood, sizeof(flood));
	assert_true(strlen(cut) <= 800);
}

/*
 * Secrets and words of the child
 */

static void test_secrets(void **state)
{
	char a[TENSORBOARD_SECRET_SIZE], b[TENSORBOARD_SECRET_SIZE];

	tensorboard_secret_make(a);
	tensorboard_secret_make(b);
	assert_string_not_equal(a, b);
	assert_int_equal(strlen(a), TENSORBOARD_SECRET_SIZE - 1);
	AUTO_FREE char *below = mem_printf("%s/data/runs?x=1", a), *query = mem_printf("%s?x", a);
	AUTO_FREE char *longer = mem_printf("%sx", a), *inside = mem_printf("/x%s/", a);
	assert_true(tensorboard_secret_fits(a, a));
	assert_true(tensorboard_secret_fits(a, below));
	assert_true(tensorboard_secret_fits(a, query));
	assert_false(tensorboard_secret_fits(a, b));
	assert_false(tensorboard_secret_fits(a, longer));
	assert_false(tensorboard_secret_fits(a, inside));
	assert_false(tensorboard_secret_fits(a, "/"));
	assert_false(tensorboard_secret_fits(a, ""));
	a[TENSORBOARD_SECRET_SIZE - 2] = '\0';
	assert_false(tensorboard_secret_fits(b, a));
}

/* Two lines of JSON, the first of which is the whole program. */
static void test_the_words_of_the_child(void **state)
{
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf text;
	AUTO_JSON struct json *wanted = NULL;
	const struct tensorboard_child child = {
		.logdir = "/a \"b\"\n", .words = &words, .has_link = true};

	tensorboard_child_argv("/secret", &words);
	buf_init(&text, TENSORBOARD_CHILD_MAX);
	tensorboard_child_text(&child, &text);
	assert_false(text.full);
	assert_true(text.len < TENSORBOARD_CHILD_MAX / 2);
	char *second = strchr(text.data, '\n') + 1;
	assert_non_null(strstr(text.data, "run_main"));
	assert_int_equal(json_parse(second, strlen(second), JSON_SIZE_MAX, "x", &wanted, NULL), 0);
	assert_string_equal(json_get_str(wanted, "logdir"), "/a \"b\"\n");
	assert_null(strstr(tensorboard_child_loader, "secret"));
}

/*
 * Finding
 */

struct place {
	char *dir;
	struct strv env;
};

static void place_init(struct place *place)
{
	const char *tmp = getenv("TMPDIR");
	char *dir = mem_printf("%s/dlrun-tensorboard-XXXXXX", tmp ? tmp : "/tmp");

	assert_non_null(mkdtemp(dir));
	*place = (struct place){.dir = dir};
}

static void place_done(struct place *place)
{
	assert_int_equal(fs_remove_tree(AT_FDCWD, place->dir, NULL), 0);
	strv_done(&place->env);
	free(place->dir);
}

static void put(const struct place *place, const char *path, const char *content)
{
	AUTO_FREE char *full = fs_join(place->dir, path);
	AUTO_FREE char *parent = mem_strndup(full, (size_t)(strrchr(full, '/') - full));

	assert_int_equal(fs_mkdirs(parent, 0700, NULL), 0);
	assert_int_equal(fs_replace(full, content, strlen(content), 0700, FS_SYNC_NONE, NULL), 0);
}

static int find(const struct place *place, struct tensorboard_program *ret, struct err *err)
{
	AUTO_FREE char *tree = fs_join(place->dir, "tree"), *home = fs_join(place->dir, "home");
	const struct tensorboard_search places = {
		.env = (const char *const *)place->env.v, .tree = tree, .home = home};

	return tensorboard_find(&places, ret, err);
}

static void expect_found(const struct place *place, const char *path)
{
	AUTO_TENSORBOARD_PROGRAM struct tensorboard_program program = {0};
	AUTO_FREE char *wanted = fs_join(place->dir, path);

	assert_int_equal(find(place, &program, NULL), 0);
	assert_string_equal(program.path, wanted);
}

static void test_which_one_is_found(void **state)
{
	AUTO(place_done) struct place place;

	place_init(&place);
	strv_addf(&place.env, "PATH=%s/path", place.dir);
	put(&place, "home/.local/bin/tensorboard", "#!/usr/bin/env python3\n");
	expect_found(&place, "home/.local/bin/tensorboard");
	put(&place, "path/tensorboard", "#!/usr/bin/env python3\n");
	expect_found(&place, "path/tensorboard");
	strv_addf(&place.env, "CONDA_PREFIX=%s/conda", place.dir);
	put(&place, "conda/bin/tensorboard", "#!/usr/bin/env python3\n");
	expect_found(&place, "conda/bin/tensorboard");
	put(&place, "tree/.venv/bin/tensorboard", "#!/usr/bin/env python3\n");
	expect_found(&place, "tree/.venv/bin/tensorboard");
	strv_addf(&place.env, "VIRTUAL_ENV=%s/venv", place.dir);
	expect_found(&place, "tree/.venv/bin/tensorboard");
	put(&place, "venv/bin/tensorboard", "#!/usr/bin/env python3\n");
	expect_found(&place, "venv/bin/tensorboard");
}

static void expect_missing(const struct place *place, const char *hint)
{
	AUTO_TENSORBOARD_PROGRAM struct tensorboard_program program = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(find(place, &program, &err), -ERR_NOTFOUND);
	assert_int_equal(err.id, E_TENSORBOARD_MISSING);
	if (!strstr(err.hint, hint))
		fail_msg("%s", err.hint);
	assert_non_null(strstr(err.hint, "dlrun plot @"));
}

static void test_what_would_bring_it(void **state)
{
	AUTO(place_done) struct place place;

	place_init(&place);
	strv_addf(&place.env, "PATH=%s/path", place.dir);
	expect_missing(&place, "python3 -m venv");
	put(&place, "path/pipx", "#!/bin/sh\n");
	expect_missing(&place, "pipx install tensorboard");
	put(&place, "path/uv", "#!/bin/sh\n");
	expect_missing(&place, "uv tool install tensorboard");
	strv_addf(&place.env, "VIRTUAL_ENV=%s/venv", place.dir);
	expect_missing(&place, "uv tool install tensorboard");
	put(&place, "venv/bin/python", "#!/bin/sh\n");
	expect_missing(&place, "venv/bin/python -m pip install tensorboard");
}

static void test_how_packages_come(void **state)
{
	AUTO(place_done) struct place place;
	AUTO_TENSORBOARD_PROGRAM struct tensorboard_program by_pip = {0}, by_uv = {0}, plain = {0};

	place_init(&place);
	strv_addf(&place.env, "PATH=%s/path", place.dir);
	AUTO_FREE char *script = mem_printf("#!%s/path/python3\n", place.dir);
	put(&place, "path/tensorboard", script);
	assert_int_equal(find(&place, &by_pip, NULL), 0);
	assert_non_null(strstr(by_pip.install, "/path/python3 -m pip install"));
	put(&place, "path/uv", "#!/bin/sh\n");
	assert_int_equal(find(&place, &by_uv, NULL), 0);
	assert_true(str_starts(by_uv.install, "uv pip install -p /"));
	put(&place, "path/tensorboard", "#!/bin/sh\nexec something\n");
	assert_int_equal(find(&place, &plain, NULL), 0);
	assert_int_equal(plain.python.n, 0);
	assert_string_equal(plain.install, "pip install");
}

/*
 * Its directory
 */

static size_t count_entries(const char *path)
{
	AUTO_DIR DIR *dir = opendir(path);
	size_t n = 0;

	assert_non_null(dir);
	for (const struct dirent *entry; (entry = readdir(dir));)
		n += entry->d_name[0] != '.';
	return n;
}

static void test_its_directory_goes(void **state)
{
	AUTO(place_done) struct place place;
	struct tensorboard_dir first = {0}, second = {0};
	struct stat st;

	place_init(&place);
	AUTO_FREE char *runtime = fs_join(place.dir, "runtime");
	assert_int_equal(tensorboard_dir_make(runtime, &first, NULL), 0);
	assert_int_equal(stat(first.path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	AUTO_FREE char *deep = mem_printf("%s/from/a/b", place.dir);
	AUTO_FREE char *own = mem_printf("%s/from/.dlrun-mirror", place.dir);
	AUTO_FREE char *from = mem_printf("%s/from", place.dir);
	AUTO_FREE char *file = mem_printf("%s/x", deep);
	AUTO_FREE char *link = mem_printf("%s/demo-23456/a/b/x", first.runs);
	assert_int_equal(fs_mkdirs(deep, 0700, NULL), 0);
	assert_int_equal(fs_mkdirs(own, 0700, NULL), 0);
	assert_int_equal(tensorboard_dir_link(&first, "demo-23456", from, place.dir, NULL), 0);
	assert_int_equal(stat(link, &st), -1);
	assert_int_equal(fs_replace(file, "1", 1, 0600, FS_SYNC_NONE, NULL), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(
			tensorboard_dir_link(&first, "demo-23456", from, place.dir, NULL), 0);
	/* Directories of its own, links to files. */
	assert_int_equal(lstat(link, &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	assert_int_equal(stat(link, &st), 0);
	*strrchr(link, '/') = '\0';
	assert_int_equal(lstat(link, &st), 0);
	assert_true(S_ISDIR(st.st_mode));
	AUTO_FREE char *shown = mem_printf("%s/demo-23456", first.runs);
	assert_int_equal(count_entries(shown), 1);
	/* With a configuration of the projector it is the directory itself. */
	AUTO_FREE char *config = mem_printf("%s/projector_config.pbtxt", deep);
	assert_int_equal(fs_replace(config, "", 0, 0600, FS_SYNC_NONE, NULL), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(tensorboard_dir_link(&first, "demo-23456", from, from, NULL), 0);
	assert_int_equal(lstat(link, &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	assert_int_equal(stat(file, &st), 0);
	/* That of another command that goes on stays. */
	assert_int_equal(tensorboard_dir_make(runtime, &second, NULL), 0);
	assert_int_equal(stat(first.path, &st), 0);
	tensorboard_dir_done(&second);
	/* What a killed one has left goes, but nothing that its links lead to. */
	AUTO_FREE char *left = mem_strdup(first.path);
	close(first.lock_fd);
	first.lock_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_int_equal(tensorboard_dir_make(runtime, &second, NULL), 0);
	assert_int_equal(stat(left, &st), -1);
	assert_int_equal(stat(place.dir, &st), 0);
	tensorboard_dir_done(&second);
	tensorboard_dir_done(&first);
	assert_int_equal(count_entries(runtime), 1);
}

/*
 * The process, with a TensorBoard of a few lines: a module on PYTHONPATH.
 */

static const char fake_main[] =
	"import http.server, json, os, sys\n"
	"def run_main():\n"
	"    words = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
	"    prefix = words['--path_prefix']\n"
	"    class Answer(http.server.BaseHTTPRequestHandler):\n"
	"        def do_GET(self):\n"
	"            self.send_response(200 if self.path.startswith(prefix + '/') else 404)\n"
	"            self.end_headers()\n"
	"            self.wfile.write(json.dumps({'version': '9.9',\n"
	"                'data_location': words['--logdir']}).encode())\n"
	"    with http.server.HTTPServer(('127.0.0.1', 0), Answer) as s:\n"
	"        print('TensorBoard 9.9 at http://127.0.0.1:%d%s/ (x)'\n"
	"            % (s.server_address[1], prefix), file=sys.stderr, flush=True)\n"
	"        s.serve_forever()\n";

struct running {
	struct place place;
	struct loop *loop;
	struct loop_timer *timer;
	struct tensorboard_program program;
	struct tensorboard_server *server;
	char *path, *logdir;
};

static int stop_loop(void *ctx, struct err *err)
{
	struct running *running = ctx;

	running->timer = NULL;
	loop_stop(running->loop);
	return 0;
}

static void turn(struct running *running)
{
	running->timer = loop_add_timer(running->loop, clock_ms() + 20, stop_loop, running);
	assert_int_equal(loop_run(running->loop, NULL), 0);
	loop_remove_timer(running->loop, TAKE(running->timer));
}

static void start(struct running *running, const char *script, const char *module)
{
	AUTO_ERR struct err err = {0};

	*running = (struct running){.loop = loop_new()};
	place_init(&running->place);
	strv_addf(&running->place.env, "PATH=%s/path:/usr/local/bin:/usr/bin:/bin",
		running->place.dir);
	strv_addf(&running->place.env, "PYTHONPATH=%s/modules", running->place.dir);
	put(&running->place, "path/tensorboard", script);
	put(&running->place, "modules/tensorboard/__init__.py", "");
	put(&running->place, "modules/tensorboard/main.py", module);
	put(&running->place, "scratch/x", "");
	assert_int_equal(find(&running->place, &running->program, NULL), 0);
	running->path = fs_join(running->place.dir, "scratch");
	running->logdir = mem_strdup("/somewhere");
	const struct tensorboard_local_options options = {.loop = running->loop,
		.program = &running->program,
		.env = (const char *const *)running->place.env.v,
		.logdir = running->logdir,
		.prefix = "/secret",
		.scratch = running->path};
	if (tensorboard_local_start(&options, &running->server, &err) < 0)
		fail_msg("%s", err.message);
}

static int wait_for_response(struct running *running, struct err *err)
{
	int64_t end_ms = clock_ms() + 60000;
	int r;

	while ((r = tensorboard_server_poll(running->server, err)) == 0 && clock_ms() < end_ms)
		turn(running);
	return r;
}

static void end(struct running *running)
{
	tensorboard_server_free(running->server);
	tensorboard_program_done(&running->program);
	loop_free(running->loop);
	place_done(&running->place);
	free(running->path);
	free(running->logdir);
}

static void test_it_responses_below_its_prefix(void **state)
{
	struct running running;
	AUTO_ERR struct err err = {0};

	start(&running, "#!/usr/bin/env python3\n", fake_main);
	if (wait_for_response(&running, &err) != 1)
		fail_msg("%s", err.message ? err.message : "no answer");
	assert_string_equal(running.server->version, "9.9");
	assert_false(running.server->is_plain);
	end(&running);
}

/* A script that is no Python is started as it is. */
static void test_a_wrapper_is_started_as_it_is(void **state)
{
	static const char wrapper[] = "#!/bin/sh\n"
				      "shift 2\n" /* two words with "=" are no pairs */
				      "exec python3 -c 'from tensorboard.main import run_main; "
				      "run_main()' \"$@\"\n";
	struct running running;
	AUTO_ERR struct err err = {0};

	start(&running, wrapper, fake_main);
	if (wait_for_response(&running, &err) != 1)
		fail_msg("%s", err.message ? err.message : "no answer");
	assert_true(running.server->is_plain);
	assert_false(running.server->is_alone);
	end(&running);
}

static void test_one_that_does_not_start(void **state)
{
	struct running running;
	AUTO_ERR struct err err = {0};

	start(&running, "#!/usr/bin/env python3\n",
		"raise ModuleNotFoundError(\"No module named 'pkg_resources'\")\n");
	assert_true(wait_for_response(&running, &err) < 0);
	assert_int_equal(err.id, E_TENSORBOARD_PKG_RESOURCES);
	end(&running);
}

static void test_one_that_ends(void **state)
{
	static const char module[] = "import os, threading\n"
				     "threading.Timer(0.5, os._exit, [3]).start()\n";
	struct running running;
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *both = mem_printf("%s%s", module, fake_main);
	int r;

	start(&running, "#!/usr/bin/env python3\n", both);
	while ((r = tensorboard_server_poll(running.server, &err)) >= 0)
		turn(&running);
	assert_true(err.id == E_TENSORBOARD_ENDED || err.id == E_TENSORBOARD_START);
	end(&running);
}

static void test_no_interpreter(void **state)
{
	AUTO(place_done) struct place place;
	AUTO_TENSORBOARD_PROGRAM struct tensorboard_program program = {0};
	AUTO_ERR struct err err = {0};
	struct tensorboard_server *server = NULL;

	place_init(&place);
	strv_addf(&place.env, "PATH=%s/v/bin", place.dir);
	put(&place, "v/bin/tensorboard", "#!/proc/nonexistent/python3\n");
	assert_int_equal(find(&place, &program, NULL), 0);
	struct loop *loop = loop_new();
	const struct tensorboard_local_options options = {.loop = loop,
		.program = &program,
		.env = (const char *const *)place.env.v,
		.logdir = "/x",
		.prefix = "/secret",
		.scratch = place.dir};
	assert_true(tensorboard_local_start(&options, &server, &err) < 0);
	assert_int_equal(err.id, E_TENSORBOARD_START);
	assert_non_null(strstr(err.message, "/proc/nonexistent/python3"));
	assert_non_null(strstr(err.hint, "bin/pip install tensorboard"));
	loop_free(loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_line_that_names_the_port),
		cmocka_unit_test(test_the_interpreter_of_a_script),
		cmocka_unit_test(test_its_own_response),
		cmocka_unit_test(test_why_it_does_not_start),
		cmocka_unit_test(test_the_last_line),
		cmocka_unit_test(test_secrets),
		cmocka_unit_test(test_the_words_of_the_child),
		cmocka_unit_test(test_which_one_is_found),
		cmocka_unit_test(test_what_would_bring_it),
		cmocka_unit_test(test_how_packages_come),
		cmocka_unit_test(test_its_directory_goes),
		cmocka_unit_test(test_it_responses_below_its_prefix),
		cmocka_unit_test(test_a_wrapper_is_started_as_it_is),
		cmocka_unit_test(test_one_that_does_not_start),
		cmocka_unit_test(test_one_that_ends),
		cmocka_unit_test(test_no_interpreter),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
