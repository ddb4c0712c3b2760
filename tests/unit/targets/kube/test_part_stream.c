/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/str.h"
#include "core/target/listing.h"
#include "targets/kube/pod_copy.h"
#include "tests/unit/piecefix.h"
#include "tests/unit/tmpfix.h"

/* "(5+3)abc=9;" for a part, "gone;" */
static int on_begin(void *ctx, uint64_t offset, uint64_t len, struct err *err)
{
	buf_addf(ctx, "(%llu+%llu)", (unsigned long long)offset, (unsigned long long)len);
	return 0;
}

static int on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	buf_add(ctx, data, len);
	return 0;
}

static int on_end(void *ctx, uint64_t size, struct err *err)
{
	buf_addf(ctx, "=%llu;", (unsigned long long)size);
	return 0;
}

static int on_unread(void *ctx, struct err *err)
{
	buf_adds(ctx, "=unread;");
	return 0;
}

static int on_gone(void *ctx, struct err *err)
{
	buf_adds(ctx, "gone;");
	return 0;
}

static int read_in(const char *text, size_t len, size_t piece, struct buf *out, struct err *err)
{
	const struct part_events events = {on_begin, on_data, on_end, on_unread, on_gone, out};
	AUTO(part_stream_free_auto) struct part_stream *stream = part_stream_new(&events);
	int r = 0;

	buf_reset(out);
	for (size_t at = 0; r == 0 && at < len; at += piece)
		r = part_stream_add(stream, text + at, len - at < piece ? len - at : piece, err);
	return r < 0 ? r : part_stream_finish(stream, err);
}

#define CHECK(text, want) pieces_check(read_in, text, sizeof(text) - 1, want)

static void test_parts(void **state)
{
	CHECK("", "");
	CHECK("gone\npart 5 3\nabcsize 9\ngone\n", "gone;(5+3)abc=9;gone;");
	CHECK("part 5 3\nabcunread\npart 5 0\nunread\ngone\n",
		"(5+3)abc=unread;(5+0)=unread;gone;");
	CHECK("part 0 6\ngone\nxsize 6\npart 9223372036854775806 0\nsize 0\n",
		"(0+6)gone\nx=6;(9223372036854775806+0)=0;");
}

static void test_other_bytes(void **state)
{
	CHECK("\n", NULL);
	CHECK("gone", NULL);
	CHECK("gone \n", NULL);
	CHECK("part 1\n", NULL);
	CHECK("part -1 3\n", NULL);
	CHECK("part 1  3\n", NULL);
	CHECK("part 1 3 \n", NULL);
	CHECK("part 1 99999999999999999999\n", NULL);
	CHECK("part 1 3\nab", NULL);
	CHECK("part 1 3\nabc", NULL);
	CHECK("part 1 3\nabcsize\n", NULL);
	CHECK("part 1 3\nabcsize x\n", NULL);
	CHECK("part 1 3\nabcunread 3\n", NULL);
	CHECK("unread\n", NULL);
	CHECK("part 1 3\nabcdsize 4\n", NULL);
	CHECK("part 1 3\nabcsize 4", NULL);
	CHECK("part 1 3\0\nabc", NULL);
	CHECK("sh: a line that is far longer than any that could be one of these parts, and goes on",
		NULL);
}

/*
 * The commands, as a container would run them
 */

/* The directory of those that a container may have; NULL: the machine's. */
static const char *programs;

static void run_words(struct strv *words, const char *input, size_t len, struct buf *out)
{
	AUTO_FREE char *in = mem_printf("%s/in", tmp);
	AUTO_FREE char *to = mem_printf("%s/to", tmp);

	assert_int_equal(fs_replace(in, input, len, 0600, FS_SYNC_NONE, NULL), 0);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(open(in, O_RDONLY), 0);
		dup2(open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
		if (programs)
			setenv("PATH", programs, 1);
		execvp(words->v[0], words->v);
		_exit(127);
	}
	int status = 0;
	waitpid(pid, &status, 0);
	assert_int_equal(status, 0);
	assert_int_equal(fs_read(to, 1 << 20, out, NULL, NULL), 0);
}

static void add_words(const char *verb, const char *dir, struct strv *ret)
{
	const char *const words[] = {"sh", "-c", pod_files_script, "dlrun", verb, dir};

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		strv_add(ret, words[i]);
}

static void read_parts(const char *dir, const char *input, size_t len, struct buf *out)
{
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf text = {0};

	buf_init(out, 1 << 20);
	add_words("parts", dir, &words);
	strv_addf(&words, "%zu", len);
	run_words(&words, input, len, &text);
	assert_int_equal(read_in(text.data, text.len, 1000, out, NULL), 0);
}

static void parts_are(const char *input, size_t len, const char *want)
{
	AUTO_BUF struct buf out = {0};
	AUTO_FREE char *dir = mem_printf("%s/outputs", tmp);

	read_parts(dir, input, len, &out);
	assert_string_equal(out.data, want);
}

static void put(const char *name, const char *text)
{
	AUTO_FREE char *path = mem_printf("%s/outputs/%s", tmp, name);
	AUTO_FREE char *dir = mem_strndup(path, (size_t)(strrchr(path, '/') - path));

	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
}

static void make_outputs(void)
{
	AUTO_FREE char *link = mem_printf("%s/outputs/link", tmp);
	AUTO_FREE char *pipe = mem_printf("%s/outputs/pipe", tmp);

	programs = NULL;
	put("a b/x.tfevents", "0123456789");
	put("-lead\n'\"$(x)", "abc");
	put("a b/tfevents.d/y", "y");
	put("z", "zz");
	assert_int_equal(symlink("z", link), 0);
	assert_int_equal(mkfifo(pipe, 0600), 0);
}

static void test_words_of_parts(void **state)
{
	static const char input[] = "0 10 ./a b/x.tfevents\0"
				    "3 4 ./a b/x.tfevents\0"
				    "1 2 ./-lead\n'\"$(x)\0"
				    "0 1 ./absent\0"
				    "0 1 ./link\0"
				    "0 1 ./pipe\0"
				    "0 1 ./a b\0"
				    "8 6 ./a b/x.tfevents\0";
	/* What is not there is zeros, at which this text ends. */
	static const char want[] = "(0+10)0123456789=10;(3+4)3456=10;(1+2)bc=3;"
				   "gone;gone;gone;gone;(8+6)89";

	make_outputs();
	parts_are(input, sizeof(input) - 1, want);
}

static bool use_busybox(void)
{
	static const char *const names[] = {
		"sh", "find", "stat", "tar", "xargs", "head", "tail", "dd", "cat", "wc", "date"};
	static const char busybox[] = "/bin/busybox";
	static char dir[4096];

	if (access(busybox, X_OK) < 0)
		return false;
	snprintf(dir, sizeof(dir), "%s/busybox", tmp);
	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		AUTO_FREE char *path = mem_printf("%s/%s", dir, names[i]);
		assert_int_equal(symlink(busybox, path), 0);
	}
	programs = dir;
	return true;
}

/* Behind 4 GiB, where busybox's tail is at its end. */
static void test_words_of_far_parts(void **state)
{
	static const char input[] = "4294967295 4 ./far\0"
				    "4294967297 2 ./far\0"
				    "5000000000 3 ./far\0";
	static const char want[] = "(4294967295+4)abcd=5000000003;(4294967297+2)cd=5000000003;"
				   "(5000000000+3)end=5000000003;";
	AUTO_FREE char *path = mem_printf("%s/outputs/far", tmp);

	make_outputs();
	AUTO_FD int fd = open(path, O_WRONLY | O_CREAT, 0600);
	assert_int_equal(pwrite(fd, "abcd", 4, 4294967295), 4);
	assert_int_equal(pwrite(fd, "end", 3, 5000000000), 3);
	parts_are(input, sizeof(input) - 1, want);
	if (use_busybox())
		parts_are(input, sizeof(input) - 1, want);
}

/* A regular file of the kernel's, whose first page nobody can read. */
static void parts_are_unread(void)
{
	static const char input[] = "0 4 ./mem\0"
				    "0 1 ./absent\0";
	static const char want[] = "(0+4)\0\0\0\0=unread;gone;";
	AUTO_BUF struct buf out = {0};

	read_parts("/proc/self", input, sizeof(input) - 1, &out);
	assert_int_equal(out.len, sizeof(want) - 1);
	assert_memory_equal(out.data, want, out.len);
}

static void test_words_of_unread_parts(void **state)
{
	make_outputs();
	parts_are_unread();
	if (use_busybox())
		parts_are_unread();
}

static bool tar_has(const char *input, size_t len, const char *content)
{
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf text = {0};
	AUTO_FREE char *dir = mem_printf("%s/outputs", tmp);

	add_words("tar", dir, &words);
	strv_addf(&words, "%zu", len);
	strv_add(&words, "1000");
	run_words(&words, input, len, &text);
	return memmem(text.data, text.len, content, strlen(content));
}

static void test_words_of_tar(void **state)
{
	static const char input[] = "./-lead\n'\"$(x)\0./back\\nslash\\101\0./a b/x.tfevents";

	make_outputs();
	put("back\\nslash\\101", "what is in it");
	assert_true(tar_has(input, sizeof(input), "what is in it"));
	assert_true(tar_has(input, sizeof(input), "0123456789"));
	assert_true(!use_busybox() || tar_has(input, sizeof(input), "what is in it"));
}

static int on_entry(void *ctx, const struct listing_entry *e, struct err *err)
{
	buf_addf(ctx, "%c%s %llu;", e->kind, e->path, (unsigned long long)e->size);
	return 0;
}

static void list_is(const char *only, const char *pattern, const char *want)
{
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf text = {0}, out = {0};
	AUTO_FREE char *dir = mem_printf("%s/outputs", tmp);
	AUTO(listing_free_auto) struct listing *listing = NULL;

	buf_init(&out, 1 << 20);
	listing = listing_new("MARK", on_entry, &out);
	add_words("list", dir, &words);
	strv_add(&words, "MARK");
	strv_add(&words, only ? only : "");
	if (pattern)
		strv_addf(&words, "%s\nnone", pattern);
	else
		strv_add(&words, "");
	run_words(&words, "", 0, &text);
	assert_int_equal(listing_add(listing, text.data, text.len, NULL), 0);
	assert_int_equal(listing_finish(listing, NULL), 0);
	assert_string_equal(out.data, want);
}

static void test_words_of_lists(void **state)
{
	make_outputs();
	list_is(NULL, "*tfevents*", "fa b/x.tfevents 10;");
	list_is(NULL, "./a ?/*s", "fa b/x.tfevents 10;");
	list_is(NULL, "*/x.*", "fa b/x.tfevents 10;");
	list_is("a b/x.tfevents", NULL, "fa b/x.tfevents 10;");
	list_is("-lead\n'\"$(x)", NULL, "f-lead\n'\"$(x) 3;");
	list_is("absent", NULL, "");
	list_is("a b", NULL, "");
	list_is("link", NULL, "");
	list_is("pipe", NULL, "");
	list_is("*", NULL, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts),
		cmocka_unit_test(test_other_bytes),
		cmocka_unit_test_setup_teardown(test_words_of_parts, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_words_of_far_parts, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_words_of_unread_parts, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_words_of_tar, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_words_of_lists, make_tmp, remove_tmp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
