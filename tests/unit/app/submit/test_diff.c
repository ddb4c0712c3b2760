/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>

#include "app/submit/diff.h"
#include "core/config/words.h"
#include "tests/unit/runfix.h"

static struct fake_tree *sample(void)
{
	struct fake_tree *tree = tree_new();

	tree_put(tree, "README", 'f', 1, 100);
	tree_put(tree, "src/main.py", 'x', 2, 300);
	tree_put(tree, "src/util.py", 'f', 3, 200);
	tree_put(tree, "link", 'l', 5, 10);
	return tree;
}

/* The fake tree as files in the session's tree. */
static void write_tree(const struct fake_tree *tree)
{
	for (size_t i = 0; i < tree->n; i++) {
		const struct fake_file *file = &tree->v[i];
		AUTO_FREE char *name = mem_printf("tree/%s", file->path);
		AUTO_FREE char *content = mem_alloc(file->size + 1, 1);
		fake_content(file->seed, file->size, content);
		if (file->kind == 'l') {
			assert_int_equal(symlink(content, in_root(name)), 0);
			continue;
		}
		put(name, content);
		if (file->kind == 'x')
			assert_int_equal(chmod(in_root(name), 0755), 0);
	}
}

/* "A path" and so on, one line each. */
static void assert_files(const struct diff_report *report, const char *want)
{
	static const char letters[] = {
		[DIFF_ADDED] = 'A', [DIFF_REMOVED] = 'D', [DIFF_CHANGED] = 'M', [DIFF_MODE] = 'm'};
	AUTO_BUF struct buf got;

	buf_init(&got, 4096);
	vec_foreach (const struct diff_file, file, &report->files)
		buf_addf(&got, "%c %s\n", letters[file->kind], file->path);
	assert_string_equal(got.data, want);
}

static void assert_facts(const struct diff_report *report, const char *want)
{
	AUTO_BUF struct buf got;

	buf_init(&got, 4096);
	json_print(report->facts, &got);
	assert_string_equal(got.data, want);
}

static void set_command(struct run *run, bool shell, const char *const *words)
{
	AUTO_STRV struct strv list = {0};

	for (; *words; words++)
		strv_add(&list, *words);
	words_set(run->doc, "command", &list);
	json_set_bool(run->doc, "shell", shell);
	json_set(run->doc, "params", run_params(&list, NULL));
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void set_env(struct run *run, const char *const *pairs, const char *const *secrets)
{
	AUTO_STRV struct strv list = {0}, names = {0};

	for (; *pairs; pairs++)
		strv_add(&list, *pairs);
	for (; *secrets; secrets++)
		strv_add(&names, *secrets);
	run->spec = json_object();
	words_set(run->spec, "env", &list);
	words_set(run->spec, "secrets", &names);
}

static void set_base(struct run *run, const char *name, const char *const *diff_ids)
{
	struct json *layers = json_array(), *own = json_object();

	for (; *diff_ids; diff_ids++) {
		struct json *layer = json_object();
		json_set_str(layer, "role", "base");
		json_set_str(layer, "diff_id", *diff_ids);
		json_add(layers, layer);
	}
	json_set_str(own, "role", "full");
	json_set_str(own, "diff_id", "sha256:own");
	json_add(layers, own);
	json_set_str(json_sub(run->doc, "image"), "base", name);
	json_set(json_sub(run->doc, "image"), "layers", layers);
}

/*
 * Files
 */

static void test_files(void **state)
{
	struct fake_tree *tree = sample();
	AUTO_RUN struct run *a = run_with("a-22222", tree);
	AUTO(diff_report_done) struct diff_report report = {0}, back = {0};

	tree_put(tree, "README", 'f', 9, 100);      /* content */
	tree_put(tree, "src/util.py", 'x', 3, 200); /* mode */
	tree_put(tree, "src/main.py", 'f', 2, 301); /* both */
	tree_remove(tree, "link");
	tree_put(tree, "link/now/a/dir", 'f', 1, 1);
	tree_put(tree, "zz", 'l', 1, 3);
	AUTO_RUN struct run *b = run_with("b-22222", tree);
	ok(runs_diff(&session, a, b, &report, error));
	assert_files(&report,
		"M README\nD link\nA link/now/a/dir\nM src/main.py\nm src/util.py\nA zz\n");
	assert_facts(&report, "{}");
	assert_int_equal(report.a.n, 4);
	assert_int_equal(report.b.n, 5);
	ok(runs_diff(&session, b, a, &back, error));
	assert_files(
		&back, "M README\nA link\nD link/now/a/dir\nM src/main.py\nm src/util.py\nD zz\n");
	diff_report_done(NULL);
	tree_done(tree);
}

/* A link in the place of a file with the same bytes, and the other way round. */
static void test_kinds(void **state)
{
	struct fake_tree *tree = tree_new();
	AUTO(diff_report_done) struct diff_report report = {0};

	tree_put(tree, "x", 'f', 7, 10);
	AUTO_RUN struct run *a = run_with("a-22222", tree);
	tree_put(tree, "x", 'l', 7, 10);
	AUTO_RUN struct run *b = run_with("b-22222", tree);
	ok(runs_diff(&session, a, b, &report, error));
	assert_files(&report, "M x\n");
	tree_done(tree);
}

/* The same snapshot: nobody reads layers, which may be gone. */
static void test_same_snapshot(void **state)
{
	AUTO_RUN struct run *a = new_run("a-22222"), *b = new_run("b-22222");
	AUTO(diff_report_done) struct diff_report report = {0};
	AUTO_ERR struct err err = {0};

	json_set_str(json_sub(a->doc, "snapshot"), "id", "sha256:1");
	json_set_str(json_sub(b->doc, "snapshot"), "id", "sha256:1");
	ok(runs_diff(&session, a, b, &report, error));
	assert_files(&report, "");
	json_set_str(json_sub(b->doc, "snapshot"), "id", NULL);
	assert_int_equal(runs_diff(&session, a, b, &report, &err), -ERR_NOTFOUND);
	assert_int_equal(err.id, E_IMAGE_BASE);
	json_set_str(json_sub(a->doc, "snapshot"), "id", NULL);
	assert_int_equal(runs_diff(&session, a, b, &report, &err), -ERR_NOTFOUND);
}

/*
 * Facts
 */

static struct run *run_same(const char *id)
{
	struct run *run = new_run(id);

	set_command(run, false, WORDS("true"));
	json_set_str(json_sub(run->doc, "snapshot"), "id", "sha256:1");
	return run;
}

static void assert_differ(const struct run *a, const struct run *b, const char *facts)
{
	AUTO(diff_report_done) struct diff_report report = {0};

	ok(runs_diff(&session, a, b, &report, error));
	assert_facts(&report, facts);
}

static void test_command(void **state)
{
	AUTO_RUN struct run *a = run_same("a-22222"), *b = run_same("b-22222");

	set_command(a, false, WORDS("python", "t.py", "--lr", "0.1", "--same", "1"));
	set_command(b, false, WORDS("python", "t.py", "--lr", "0.1", "--same", "1"));
	assert_differ(a, b, "{}");
	set_command(b, false, WORDS("python", "t.py", "--lr", "0.2", "--same", "1", "n=3"));
	assert_differ(a, b,
		"{\"command\":{\"a\":[\"python\",\"t.py\",\"--lr\",\"0.1\",\"--same\",\"1\"],"
		"\"b\":[\"python\",\"t.py\",\"--lr\",\"0.2\",\"--same\",\"1\",\"n=3\"]},"
		"\"params\":{\"a\":{\"lr\":\"0.1\"},\"b\":{\"lr\":\"0.2\",\"n\":\"3\"}}}");
	set_command(a, true, WORDS("make test"));
	set_command(b, false, WORDS("make test"));
	assert_differ(a, b, "{\"command\":{\"a\":\"make test\",\"b\":[\"make test\"]}}");
	/* U+FFFD stands for both in the record */
	set_command(a, false, WORDS("\xff"));
	set_command(b, false, WORDS("\xfe"));
	assert_differ(a, b, "{\"command\":{\"a\":[\"\xef\xbf\xbd\"],\"b\":[\"\xef\xbf\xbd\"]}}");
}

static void test_env(void **state)
{
	AUTO_RUN struct run *a = run_same("a-22222"), *b = run_same("b-22222");

	set_env(a, WORDS("SAME=1", "X=a=b", "GONE="), WORDS("TOKEN", "OLD"));
	set_env(b, WORDS("X=2", "SAME=1"), WORDS("TOKEN", "NEW"));
	assert_differ(a, b,
		"{\"env\":{\"a\":{\"X\":\"a=b\",\"GONE\":\"\",\"OLD\":\"(secret)\"},"
		"\"b\":{\"X\":\"2\",\"NEW\":\"(secret)\"}}}");
}

static void test_base(void **state)
{
	AUTO_RUN struct run *a = run_same("a-22222"), *b = run_same("b-22222");

	set_base(a, "scratch", (const char *const[]){NULL});
	set_base(b, "oci:x", WORDS("sha256:1", "sha256:2"));
	assert_differ(a, b, "{\"base\":{\"a\":\"scratch\",\"b\":\"oci:x\"}}");
	/* another name for the same image */
	set_base(a, "oci:../x", WORDS("sha256:1", "sha256:2"));
	assert_differ(a, b, "{}");
	/* another image of the same name */
	set_base(a, "oci:x", WORDS("sha256:1", "sha256:abcdefabcdefabcdef"));
	assert_differ(a, b,
		"{\"base\":{\"a\":\"oci:x (sha256:abcdefabcdef…)\",\"b\":\"oci:x (sha256:2…)\"}}");
	/* never made: the name is what there is */
	json_set(json_sub(a->doc, "image"), "layers", json_array());
	assert_differ(a, b, "{}");
}

/* An image in the place of a run has code and nothing else that could differ. */
static void test_image(void **state)
{
	struct fake_tree *tree = sample();
	AUTO_RUN struct run *a = run_with("a-22222", tree);
	AUTO_RUN struct run *image = run_new("oci:x@sha256:0", "image");
	AUTO(diff_report_done) struct diff_report report = {0};

	set_command(a, false, WORDS("train", "--lr", "1"));
	set_env(a, WORDS("X=1"), (const char *const[]){NULL});
	set_base(a, "oci:base", WORDS("sha256:1"));
	json_set_str(json_sub(image->doc, "image"), "ref",
		json_get_str(json_get(a->doc, "image"), "ref"));
	ok(runs_diff(&session, a, image, &report, error));
	assert_files(&report, "");
	assert_facts(&report, "{}");
	assert_int_equal(report.b.n, 4);
	tree_done(tree);
}

/*
 * The tree
 */

static void test_tree(void **state)
{
	struct fake_tree *tree = sample();
	AUTO_RUN struct run *run = run_with("a-22222", tree);
	AUTO(diff_report_done) struct diff_report same = {0}, changed = {0};

	write_tree(tree);
	ok(runs_diff(&session, run, NULL, &same, error));
	assert_files(&same, "");
	assert_facts(&same, "{}");

	put("tree/README", "other");
	put("tree/new", "");
	assert_int_equal(chmod(in_root("tree/src/util.py"), 0755), 0);
	assert_int_equal(unlink(in_root("tree/link")), 0);
	ok(runs_diff(&session, run, NULL, &changed, error));
	assert_files(&changed, "M README\nD link\nA new\nm src/util.py\n");
	assert_int_equal(changed.b.n, 4);
	assert_int_equal(entry_find(&changed.b, "README")->size, 5);
	tree_done(tree);
}

/* What a submit would refuse is compared all the same: nothing leaves the machine. */
static void test_tree_over_limits(void **state)
{
	struct fake_tree *tree = sample();
	AUTO_RUN struct run *run = run_with("a-22222", tree);
	AUTO(diff_report_done) struct diff_report report = {0};

	write_tree(tree);
	set_base(run, "scratch", (const char *const[]){NULL});
	put("tree/.env", "TOKEN=1\n");
	put("tree/dlrun.yaml", "limits: {size: 10, files: 2, file: 5}\nimage: oci:nowhere\n");
	ok(runs_diff(&session, run, NULL, &report, error));
	assert_files(&report, "A .env\nA dlrun.yaml\n");
	assert_facts(&report, "{\"base\":{\"a\":\"scratch\",\"b\":\"oci:nowhere\"}}");
	tree_done(tree);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, make_session, remove_session)
		T(test_files),
		T(test_kinds),
		T(test_same_snapshot),
		T(test_command),
		T(test_env),
		T(test_base),
		T(test_image),
		T(test_tree),
		T(test_tree_over_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
