/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "app/lifecycle/hint_excluded.h"
#include "app/lifecycle/why.h"
#include "app/transfer/outputs.h"
#include "core/config/words.h"
#include "tests/unit/runfix.h"

#define RUN_ID "a-22222"
#define TREE   "/home/me/.local/state/dlrun/runs/" RUN_ID "/attempts/3/tree"

static const char *const excluded[] = {
	"data/",
	".cache/",
	"exp/a/local.yaml",
	"config.yaml",
	"deep/er/data.bin",
	"link",
	"pkg/_version.py",
	"src/lib/gen/",
	"models/tiny.pt",
	"raw files/it's.csv",
};

/* What the program said, and what is found; NULL: nothing. */
static const char *find_in(const char *cwd, const char *text, size_t len)
{
	AUTO_EXCLUDED struct excluded_paths paths = {0};
	const struct excluded_place place = {.run_id = RUN_ID, .tree = "/t/tree", .cwd = cwd};
	const struct excluded *found;

	for (size_t i = 0; i < ARRAY_LEN(excluded); i++)
		excluded_add(&paths, excluded[i], EXCLUDED_IGNORED);
	excluded_sort(&paths);
	found = excluded_find(&paths, &place, text, len);
	for (size_t i = 0; found && i < ARRAY_LEN(excluded); i++)
		if (str_eq(excluded[i], found->path))
			return excluded[i];
	assert_null(found);
	return NULL;
}

static void finds(const char *text, const char *want)
{
	const char *found = find_in(".", text, strlen(text));

	if (!str_eq(found, want))
		fail_msg("%s: %s instead of %s", text, found ? found : "nothing",
			want ? want : "nothing");
}

static void test_what_programs_print(void **state)
{
	finds("Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n"
	      "    open('data/train.bin')\nFileNotFoundError: [Errno 2] No such file or directory: "
	      "'data/train.bin'\n",
		"data/");
	finds("python3: can't open file '" TREE
	      "/config.yaml': [Errno 2] No such file or directory\n",
		"config.yaml");
	finds("cat: data/x/y.txt: No such file or directory\n", "data/");
	finds("fopen data/x: No such file or directory", "data/");
	finds("ls: cannot access 'data': No such file or directory\n", "data/");
	finds("sh: 1: cannot open ./config.yaml: No such file\n", "config.yaml");
	finds("OSError: data/x.npy not found.\n", "data/");
	finds("Unable to open file (unable to open file: name = 'data/x.h5', errno = 2)", "data/");
	finds("java.io.FileNotFoundException: data/x (No such file or directory)", "data/");
	finds("make: *** No rule to make target 'models/tiny.pt', needed by 'all'.  Stop.\n",
		"models/tiny.pt");
	finds("ModuleNotFoundError: No module named 'pkg._version'\n", "pkg/_version.py");
	finds("ModuleNotFoundError: No module named 'lib.gen.schema'\n", "src/lib/gen/");
	finds("\033[31mError:\033[0m \033[1mdata/x\033[0m does not exist\n", "data/");
	finds("Error: ENOENT: no such file or directory, open 'data/a b.json'\r\n", "data/");
	finds("epoch 1\rmodels/tiny.pt: No such file\rbye", "models/tiny.pt");
	finds("FileNotFoundError: [Errno 2] No such file or directory: \"raw files/it's.csv\"\n",
		"raw files/it's.csv");
	finds("FileNotFoundError: [Errno 2] No such file or directory: b'raw files'\n",
		"raw files/it's.csv");
	finds("head: can't open 'raw files': No such file or directory\n", "raw files/it's.csv");
	finds("ModuleNotFoundError: No module named 'torch'; see data/README\n", NULL);
}

/* Messages of programs that name no path: data that they miss, or could not fetch instead. */
static void test_data(void **state)
{
	finds("RuntimeError: Dataset not found or corrupted. You can use download=True to "
	      "download it\n",
		"data/");
	finds("urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name "
	      "resolution>\n",
		"data/");
	finds("urlopen error\ncat: models/tiny.pt: No such file or directory\n", "models/tiny.pt");
	finds("loss is not found in the log\n", NULL);
}

static void check_anew(const char *const *made, size_t n, const char *wanted)
{
	AUTO_EXCLUDED struct excluded_paths paths = {0};
	struct outputs_files files = {0};
	AUTO_BUF struct buf text;

	excluded_add(&paths, "exp/data/x.bin", EXCLUDED_IGNORED);
	excluded_add(&paths, "data/", EXCLUDED_IGNORED);
	excluded_add(&paths, "runs/", EXCLUDED_IGNORED);
	excluded_sort(&paths);
	for (size_t i = 0; i < n; i++)
		*vec_push(&files) = (struct outputs_file){mem_strdup(made[i]), 1, 1};
	const struct excluded *found = excluded_made_anew(&paths, &files);
	assert_string_equal(found ? found->path : "", wanted);
	buf_init(&text, 1000);
	if (found)
		excluded_warn_anew(found, &text);
	if (str_eq(wanted, "data/"))
		assert_non_null(strstr(text.data, "made data/ anew"));
	if (str_eq(wanted, "data/"))
		assert_non_null(strstr(text.data, "`data: [data]`"));
	outputs_files_done(&files);
}

/* What programs write each time (runs/) is none, nor what only begins like it. */
static void test_made_anew(void **state)
{
	check_anew(NULL, 0, "");
	check_anew((const char *const[]){"a", "data/MNIST/raw/t", "model.pt"}, 3, "data/");
	check_anew((const char *const[]){"data.txt", "data2/x", "runs/events"}, 3, "");
	check_anew((const char *const[]){"exp/data/x.bin"}, 1, "exp/data/x.bin");
	check_anew((const char *const[]){"exp/data/x.bin2"}, 1, "");
}

static void test_paths(void **state)
{
	finds("not found: /t/tree/data/x", "data/");
	finds("not found: /elsewhere/runs/" RUN_ID "/attempts/12/tree/data/x", "data/");
	finds("not found: /elsewhere/runs/b-22222/attempts/12/tree/data/x", NULL);
	finds("not found: /t/treedata/x", NULL);
	finds("not found: /data/x", NULL);
	finds("not found: 'x/../data/./y//z'", "data/");
	finds("not found: '../data/x'", NULL);
	finds("not found: 'database/x'", NULL);
	finds("not found: 'mydata/x'", NULL);
	finds("not found: 'x/data/y'", NULL);
	finds("not found: 'link/x'", "link");
	finds("not found: link", "link");
	/* Above what was left out: only where it is surely a path. */
	finds("not found: 'deep/er'", "deep/er/data.bin");
	finds("not found: deep/er", "deep/er/data.bin");
	finds("deep: something was not found", NULL);
	finds("not found: ''", NULL);
	finds("not found: '.'", NULL);
	finds("not found: '/'", NULL);
}

static void test_working_directory(void **state)
{
	static const char text[] = "No such file or directory: 'local.yaml'";
	static const char up[] = "No such file or directory: '../../data/x'";

	assert_string_equal(find_in("exp/a", text, strlen(text)), "exp/a/local.yaml");
	assert_null(find_in(".", text, strlen(text)));
	assert_string_equal(find_in("exp/a", up, strlen(up)), "data/");
}

static void test_only_complaints_count(void **state)
{
	finds("reading data/x\nRuntimeError: out of memory\n", NULL);
	finds("data/x\n", NULL);
	finds("OSError: [Errno 28] No space left on device: 'data/x'\n", NULL);
	finds("", NULL);
	/* The last one is what ended the program. */
	finds("data/x not found, skipped\nconfig.yaml: No such file or directory\n", "config.yaml");
	finds("data/x not found\nvalue error\n", "data/");
}

static void test_only_the_end_counts(void **state)
{
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 20);
	buf_adds(&text, "data/x not found\n");
	for (int i = 0; i < EXCLUDED_TAIL; i++)
		buf_addc(&text, i % 80 ? 'x' : '\n');
	assert_null(find_in(".", text.data, text.len));
	buf_adds(&text, "\ndata/x not found");
	assert_non_null(find_in(".", text.data, text.len));
}

/* Quotes, slashes and escapes without end, and bytes of any kind. */
static void test_hostile(void **state)
{
	static const char *const pieces[] = {"'", "\"'", "a/", "../", "\033[", ".", "\xff", "'a/"};
	char zeros[] = "not found \0 'data/x'";

	for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
		AUTO_BUF struct buf text;
		buf_init(&text, 1 << 20);
		buf_adds(&text, "not found ");
		while (text.len < 2 * EXCLUDED_TAIL)
			buf_adds(&text, pieces[i]);
		buf_adds(&text, " not found");
		assert_null(find_in(".", text.data, text.len));
	}
	assert_non_null(find_in(".", zeros, sizeof(zeros) - 1));
}

static void test_empty_list(void **state)
{
	const struct excluded_paths none = {0};
	const struct excluded_place place = {.cwd = "."};

	assert_null(excluded_find(&none, &place, "data not found", 14));
}

static void hint_is(enum excluded_why why, const char *path, const char *want)
{
	const struct excluded row = {.path = path, .why = why};
	AUTO_BUF struct buf hint;

	buf_init(&hint, 1 << 16);
	excluded_hint(&row, NULL, &hint);
	assert_non_null(strstr(hint.data, want));
}

static void test_hints(void **state)
{
	hint_is(EXCLUDED_IGNORED, "data/",
		"`data/` is ignored by git and was excluded; add it to `data:` (data that stays "
		"where it is) or `include:` (part of the code) in dlrun.yaml");
	hint_is(EXCLUDED_DLRUNIGNORE, "x", "`x` is named in .dlrunignore");
	hint_is(EXCLUDED_SPECIAL, "p", "`p` is a socket, pipe or device");
	hint_is(EXCLUDED_IGNORED, "a\nb\033", "`a\\nb\\x1b` is");
}

/*
 * The list beside a run
 */

static struct snapshot snapshot_of(struct excluded *rows, size_t n)
{
	return (struct snapshot){.paths.excluded = {rows, n, n}};
}

static void test_list_is_kept(void **state)
{
	struct excluded rows[] = {
		{"data/", EXCLUDED_IGNORED, 0},
		{"n\xff.bin", EXCLUDED_DLRUNIGNORE, 3},
		{"out/", EXCLUDED_IGNORED, 0},
		{"pipe", EXCLUDED_SPECIAL, 0},
		{"sets/a/", EXCLUDED_IGNORED, 0},
		{"sets/b/", EXCLUDED_IGNORED, 0},
	};
	struct snapshot snapshot = snapshot_of(rows, ARRAY_LEN(rows));
	AUTO_EXCLUDED struct excluded_paths paths = {0}, copied = {0};
	AUTO_RUN struct run *run = new_run(RUN_ID), *child = new_run("b-22222");
	AUTO_STRV struct strv outputs = {0};
	struct json *data = json_array(), *item = json_object();

	put("state/dlrun/runs/" RUN_ID "/x", "");
	put("state/dlrun/runs/b-22222/x", "");
	ok(excluded_write(&session.dirs, run, &snapshot, error));
	ok(excluded_read(&session.dirs, run, &paths, error));
	assert_int_equal(paths.n, 6);
	assert_string_equal(paths.v[1].path, "n\xff.bin");
	assert_int_equal(paths.v[1].why, EXCLUDED_DLRUNIGNORE);
	/* What data: and outputs: bring back is not missing. */
	run->spec = json_object();
	json_set_str(item, "path", "sets/a");
	json_set_str(item, "from", "/srv/a");
	json_add(data, item);
	json_set(run->spec, "data", data);
	strv_add(&outputs, "out");
	words_set(run->spec, "outputs", &outputs);
	excluded_paths_done(&paths);
	ok(excluded_read(&session.dirs, run, &paths, error));
	assert_int_equal(paths.n, 4);
	assert_string_equal(paths.v[3].path, "sets/b/");
	/* --from: the same code. */
	json_set_str(child->doc, "parent", RUN_ID);
	ok(excluded_write(&session.dirs, child, NULL, error));
	ok(excluded_read(&session.dirs, child, &copied, error));
	assert_int_equal(copied.n, 6);
}

static void test_list_is_bounded(void **state)
{
	enum { N = 2000, LEN = 1000 };
	AUTO_EXCLUDED struct excluded_paths paths = {0};
	AUTO_RUN struct run *run = new_run(RUN_ID);
	struct excluded *rows = mem_alloc(N, sizeof(*rows));
	char *names = mem_alloc(N, LEN);

	for (int i = 0; i < N; i++) {
		char *name = names + i * LEN;
		memset(name, 'x', LEN - 1);
		name[snprintf(name, LEN, "%05d", i)] = 'x';
		rows[i] = (struct excluded){.path = name};
	}
	struct snapshot snapshot = snapshot_of(rows, N);
	put("state/dlrun/runs/" RUN_ID "/x", "");
	ok(excluded_write(&session.dirs, run, &snapshot, error));
	ok(excluded_read(&session.dirs, run, &paths, error));
	assert_int_equal(paths.n, EXCLUDED_BYTES_MAX / (LEN - 1));
	free(rows);
	free(names);
}

static void test_no_list_or_a_bad_one(void **state)
{
	static const char *const bad[] = {"", "{", "[]", "{\"ignored\":3}", "{\"ignored\":[1]}"};
	AUTO_RUN struct run *run = new_run(RUN_ID);
	struct snapshot snapshot = {0};

	AUTO_EXCLUDED struct excluded_paths paths = {0};
	ok(excluded_write(&session.dirs, run, &snapshot, error));
	ok(excluded_write(&session.dirs, run, NULL, error));
	ok(excluded_read(&session.dirs, run, &paths, error));
	assert_int_equal(paths.n, 0);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		put("state/dlrun/runs/" RUN_ID "/" RUN_EXCLUDED, bad[i]);
		excluded_read(&session.dirs, run, &paths, NULL);
		assert_int_equal(paths.n, 0);
	}
}

static struct run *failed_run(const char *reason)
{
	struct run *run = new_run(RUN_ID);
	struct run_exit exit = {.known = true, .code = 1, .origin = "job", .reason = reason};

	run_set_state(run, RUN_FAILED);
	run_set_exit(run, &exit);
	json_set_str(run->doc, "text", "the program exited with 1");
	put("state/dlrun/runs/" RUN_ID "/" RUN_EXCLUDED,
		"{\"schema\":\"dlrun/left-out/v1\",\"ignored\":[\"data/\",\"tool\"]}");
	return run;
}

static bool why(struct run *run, const char *want)
{
	AUTO_BUF struct buf sentence, hint;

	buf_init(&sentence, 1 << 16);
	buf_init(&hint, 1 << 16);
	bool named = run_why_all(&session, run, &sentence, &hint);
	if (!str_starts(hint.data, want))
		fail_msg("%s", hint.data);
	return named;
}

static void test_why(void **state)
{
	AUTO_RUN struct run *run = failed_run("Error");

	assert_false(why(run, "dlrun logs " RUN_ID));
	put("state/dlrun/runs/" RUN_ID "/attempts/1/log", "hello\ndata/x not found\n");
	put("state/dlrun/runs/" RUN_ID "/attempts/1/exit.json", "{}");
	assert_true(why(run, "`data/` is ignored by git"));
	run_set_state(run, RUN_SUCCEEDED);
	assert_false(why(run, "dlrun show " RUN_ID));
}

/* What the run has all the same is not said to have been left out, even where all around it was. */
static void test_why_of_data(void **state)
{
	static const char spec[] =
		"{\"data\":[{\"path\":\"data/set\",\"from\":\"/srv/set\"},"
		"{\"path\":\"data/sent\",\"from\":\"sync\"},{\"path\":\"tree\",\"from\":\"/home/me/p/tree\"}]}";
	AUTO_RUN struct run *run = failed_run("Error");

	ok(json_parse(spec, strlen(spec), sizeof(spec), "spec", &run->spec, error));
	json_set_str(json_sub(run->doc, "origin"), "root", "/home/me/p");
	put("state/dlrun/runs/" RUN_ID "/attempts/1/exit.json", "{}");
	put("state/dlrun/runs/" RUN_ID "/attempts/1/log", "data/set/x.bin not found\n");
	assert_true(
		why(run, "`data/set` is listed in `data:`, and /srv/set on local lacks what the "
			 "program looked for; `dlrun data push -t local data/set` sends it"));
	put("state/dlrun/runs/" RUN_ID "/attempts/1/log", "Dataset not found\n");
	assert_true(why(run, "`data/se"));
	put("state/dlrun/runs/" RUN_ID "/attempts/1/log", "data/sent/x.bin not found\n");
	assert_true(why(run, "`data/sent` is listed in `data:`, and /home/me/p/data/sent lacks"));
	put("state/dlrun/runs/" RUN_ID "/attempts/1/log", "tree/x.bin not found\n");
	assert_true(why(run, "`tree` is listed in `data:`, and /home/me/p/tree lacks"));
	put("state/dlrun/runs/" RUN_ID "/attempts/1/log", "data/other/x.bin not found\n");
	assert_true(why(run, "`data/` is ignored by git"));
}

static void test_why_not_found(void **state)
{
	AUTO_RUN struct run *run = failed_run("NotFound");
	AUTO_STRV struct strv words = {0};

	strv_add(&words, "./tool");
	words_set(run->doc, "command", &words);
	assert_true(why(run, "`tool` is ignored by git"));
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, make_session, remove_session)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_programs_print),
		cmocka_unit_test(test_paths),
		cmocka_unit_test(test_data),
		cmocka_unit_test(test_made_anew),
		cmocka_unit_test(test_working_directory),
		cmocka_unit_test(test_only_complaints_count),
		cmocka_unit_test(test_only_the_end_counts),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_empty_list),
		cmocka_unit_test(test_hints),
		TEST(test_list_is_kept),
		TEST(test_list_is_bounded),
		TEST(test_no_list_or_a_bad_one),
		TEST(test_why),
		TEST(test_why_of_data),
		TEST(test_why_not_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
