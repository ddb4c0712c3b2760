/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/transfer/mirror.h"
#include "app/transfer/mirror_files.h"
#include "tests/unit/runfix.h"
#include "tests/unit/tfeventsfix.h"

#define RUN_ID "a-22222"
#define EVENTS "x/events.out.tfevents.1"
#define HERE   "m/" RUN_ID "/" EVENTS
#define SEEN   "m/" RUN_ID "/" MIRROR_OWN "/seen"

enum { IMAGE = 2 << 20, POLLS_MAX = 200 };

static struct mirror_files *files;
static struct buf source, wanted; /* the file there, and what is to be here */
static uint64_t requested;        /* bytes, of the last row of looks */
static int n_polls;               /* of it */
static int64_t mtime_ns;

static int make_files(void **state)
{
	if (make_session(state))
		return -1;
	files = mirror_files_new(in_root("m/" RUN_ID), NULL, true);
	buf_init(&source, FIX_MAX);
	buf_init(&wanted, FIX_MAX);
	mtime_ns = 1;
	return 0;
}

static int remove_files(void **state)
{
	mirror_files_free(files);
	files = NULL;
	buf_done(&source);
	buf_done(&wanted);
	return remove_session(state);
}

/* As another process would. */
static void open_anew(bool scalars_only)
{
	mirror_files_free(files);
	files = mirror_files_new(in_root("m/" RUN_ID), NULL, scalars_only);
}

static void put_both(int64_t step)
{
	put_simple(&source, 1e9, step, "loss", (float)step);
	put_simple(&wanted, 1e9, step, "loss", (float)step);
	mtime_ns++;
}

static void put_image(size_t len)
{
	AUTO_FREE char *content = mem_alloc(len, 1);
	AUTO_BUF struct buf value;

	buf_init(&value, FIX_MAX);
	put_string(&value, 1, "image");
	put_data(&value, 4, content, len);
	put_value(&source, 1e9, 1, &value);
	mtime_ns++;
}

static struct fetch_item item_now(size_t size)
{
	return (struct fetch_item){
		.path = EVENTS, .mode = S_IFREG | 0644, .size = size, .mtime_ns = mtime_ns};
}

/* What a target elsewhere would do with the file as far as it is size long; stop: so many bytes
 * come, and then nothing more. */
static void offer(size_t size, size_t stop)
{
	struct fetch_sink *sink = mirror_files_sink(files);
	const struct fetch_item item = item_now(size);
	struct fetch_range range = {0};

	if (fetch_sink_wants(sink, &item, &range, NULL) <= 0)
		return;
	assert_true(range.len > 0 && range.offset + range.len <= size);
	requested += range.len;
	if (fetch_sink_begin(sink, &item, &range, NULL) <= 0)
		return;
	for (uint64_t i = 0; i < range.len && i < stop; i += 1000) {
		size_t n = range.len - i < 1000 ? (size_t)(range.len - i) : 1000;
		ok(fetch_sink_write(sink, source.data + range.offset + i, n, error));
	}
	if (stop >= range.len)
		ok(fetch_sink_end(sink, &item, error));
}

/* Looks as long as one is asked for. */
static void visit(size_t size)
{
	struct mirror_counts counts;

	requested = 0;
	n_polls = 0;
	do {
		assert_true(n_polls++ < POLLS_MAX);
		ok(mirror_files_begin(files, error));
		offer(size, SIZE_MAX);
		ok(mirror_files_end(files, NULL, error));
		mirror_files_count(files, &counts);
	} while (counts.wants_more);
	assert_false(counts.is_behind);
}

static void observe(void)
{
	visit(source.len);
}

static void is_here(void)
{
	AUTO_BUF struct buf text = {0};

	ok(fs_read(in_root(HERE), FIX_MAX, &text, NULL, error));
	assert_int_equal(text.len, wanted.len);
	assert_memory_equal(text.data, wanted.data, wanted.len);
}

static ino_t inode_here(void)
{
	struct stat st;

	assert_int_equal(lstat(in_root(HERE), &st), 0);
	return st.st_ino;
}

static void test_large_ones_do_not_come(void **state)
{
	for (int step = 0; step < 10; step++) {
		put_both(step);
		put_image(IMAGE);
	}
	observe();
	is_here();
	assert_in_range(requested, 1, 11 * (64 << 10));
	assert_in_range(n_polls, 1, 12);
	ino_t inode = inode_here();
	/* Nothing is new, for another process either where boots can be told apart. */
	observe();
	assert_int_equal(requested, 0);
	put_both(10);
	observe();
	assert_in_range(requested, 1, 200);
	is_here();
	assert_int_equal(inode_here(), inode);
	open_anew(true);
	observe();
	assert_in_range(requested, 0, 4);
	is_here();
}

/* Where nothing large is, few looks are enough; small things are dropped here. */
static void test_windows_grow(void **state)
{
	for (int step = 0; step < 3000; step++) {
		put_both(step);
		put_image(10000);
	}
	observe();
	is_here();
	assert_in_range(n_polls, 3, 6);
	assert_in_range(requested, source.len, source.len + 6 * 10100);
}

/* And begin small again, because an image may be what is written next. */
static void test_windows_shrink(void **state)
{
	for (int step = 0; step < 20000; step++)
		put_both(step);
	observe();
	for (int i = 0; i < 10; i++) {
		put_both(20000 + i);
		observe();
		assert_in_range(requested, 1, 200);
	}
	put_image(IMAGE);
	put_both(30000);
	observe();
	is_here();
	assert_in_range(requested, 1, (64 << 10) + 200);
}

static void test_torn_image_is_waited_for(void **state)
{
	put_both(1);
	put_image(IMAGE);
	put_both(2);
	size_t end = source.len, begin = wanted.len / 2;
	struct buf both = wanted;

	wanted.len = begin;
	for (size_t size = begin + 5000; size < end - begin; size += 500000) {
		mtime_ns++;
		visit(size);
		assert_in_range(requested, 0, size < begin + 10000 ? 10000 : 0);
		is_here();
	}
	wanted = both;
	mtime_ns++;
	observe();
	assert_in_range(requested, 1, 200);
	is_here();
}

static void test_small_steps(void **state)
{
	put_both(1);
	put_image(100);
	put_both(2);
	size_t both = wanted.len;
	for (size_t size = 0; size <= source.len; size++) {
		mtime_ns++;
		wanted.len = size < both / 2 ? 0 : size < source.len ? both / 2 : both;
		visit(size);
		is_here();
	}
}

static void test_shorter_and_replaced(void **state)
{
	put_both(1);
	put_image(IMAGE);
	observe();
	ino_t inode = inode_here();
	/* Longer, and other bytes before the place. */
	size_t old = source.len;
	buf_reset(&source);
	buf_reset(&wanted);
	put_both(7);
	put_image(IMAGE + 100);
	put_both(8);
	assert_true(source.len > old);
	observe();
	is_here();
	assert_int_not_equal(inode_here(), inode);
	/* The same size. */
	buf_reset(&source);
	buf_reset(&wanted);
	put_both(9);
	put_image(IMAGE + 100);
	put_both(3);
	observe();
	is_here();
	/* Shorter, and nothing. */
	buf_reset(&source);
	buf_reset(&wanted);
	put_both(4);
	observe();
	is_here();
	buf_reset(&source);
	buf_reset(&wanted);
	mtime_ns++;
	observe();
	is_here();
	put_both(5);
	observe();
	is_here();
}

/* While an image is waited for, the file becomes another one. */
static void test_replaced_behind_an_image(void **state)
{
	put_both(1);
	size_t begin = source.len;
	put_image(IMAGE);
	visit(begin + 5000);
	buf_reset(&source);
	buf_reset(&wanted);
	while (source.len < begin + IMAGE + 5000)
		put_both(2);
	mtime_ns++;
	observe();
	is_here();
}

/* Died at any byte, with what is here longer than `seen` knows: neither twice nor lost. */
static void test_killed(void **state)
{
	for (int step = 0; step < 200; step++) {
		put_both(step);
		put_image(step % 20 == 0 ? IMAGE : 300);
	}
	visit(5000);
	for (size_t stop = 1000; stop < 70000; stop += 7000) {
		ok(mirror_files_begin(files, error));
		offer(source.len, stop);
		open_anew(true);
		AUTO_BUF struct buf text = {0};
		ok(fs_read(in_root(HERE), FIX_MAX, &text, NULL, error));
		assert_true(text.len <= wanted.len);
		assert_memory_equal(text.data, wanted.data, text.len);
	}
	observe();
	is_here();
}

static void write_other_boot(void)
{
	AUTO_BUF struct buf text = {0};

	ok(fs_read(in_root(SEEN), FIX_MAX, &text, NULL, error));
	assert_true(text.len > 6 && memcmp(text.data, "boot ", 5) == 0);
	text.data[5] ^= 1;
	ok(fs_replace(in_root(SEEN), text.data, text.len, 0600, FS_SYNC_NONE, error));
	open_anew(true);
}

/* Another boot: what is here is looked through, and begun anew if it is not what it was. */
static void test_power_cut(void **state)
{
	char boot[OS_ID_SIZE];

	if (!os_boot_id(boot))
		skip();
	for (int step = 0; step < 100; step++)
		put_both(step);
	observe();
	write_other_boot();
	observe();
	assert_int_equal(requested, 4);
	is_here();
	ino_t inode = inode_here();
	write_other_boot();
	AUTO_FREE char *zeros = mem_alloc(wanted.len, 1);
	memcpy(zeros, wanted.data, wanted.len - 50);
	FILE *out = fopen(in_root(HERE), "r+");
	assert_non_null(out);
	assert_int_equal(fwrite(zeros, 1, wanted.len, out), wanted.len);
	fclose(out);
	observe();
	is_here();
	assert_int_not_equal(inode_here(), inode);
}

/* Bytes that are there but not written yet come without a new time. */
static void test_unfilled(void **state)
{
	static const char zeros[100];

	put_both(1);
	size_t before = wanted.len;
	put_both(2);
	struct buf both = wanted;
	AUTO_FREE char *good = mem_alloc(source.len, 1);
	memcpy(good, source.data, source.len);
	memcpy(source.data + before, zeros, source.len - before);
	wanted.len = before;
	for (int i = 0; i < 3; i++) {
		observe();
		is_here();
		assert_int_equal(n_polls, 1);
		assert_in_range(requested, 1, source.len);
	}
	memcpy(source.data, good, source.len);
	wanted = both;
	observe();
	is_here();
}

static void test_damaged(void **state)
{
	put_both(1);
	buf_adds(&source, "no header, and never will be one");
	observe();
	is_here();
	assert_int_equal(n_polls, 1);
	observe();
	assert_int_equal(requested, 0);
	/* Behind an image it is looked at anew some times, and then no more. */
	buf_reset(&source);
	buf_reset(&wanted);
	put_both(2);
	put_image(IMAGE);
	buf_adds(&source, "no header, and never will be one");
	observe();
	is_here();
	observe();
	assert_int_equal(requested, 0);
	for (int i = 0; i < 5; i++) {
		buf_adds(&source, "nor here");
		mtime_ns++;
		observe();
		assert_int_equal(n_polls, 1);
		assert_in_range(requested, 1, 100000);
		is_here();
	}
}

/* A directory that was of the other kind is begun anew. */
static void test_kinds_do_not_mix(void **state)
{
	put_both(1);
	put_image(300000);
	put_both(2);
	observe();
	is_here();
	struct buf some = wanted;
	wanted = source;
	open_anew(false);
	observe();
	is_here();
	wanted = some;
	open_anew(true);
	observe();
	is_here();
}

static void test_whole(void **state)
{
	put_both(1);
	put_image(IMAGE);
	put_both(2);
	ok(mirror_files_begin(files, error));
	offer(source.len, SIZE_MAX);
	ok(mirror_files_end(files, "h/1", error));
	/* There is more: it was not whole. */
	ok(mirror_files_begin(files, error));
	assert_false(mirror_files_is_whole(files, "h/1"));
	offer(source.len, SIZE_MAX);
	ok(mirror_files_end(files, "h/1", error));
	is_here();
	open_anew(true);
	ok(mirror_files_begin(files, error));
	assert_true(mirror_files_is_whole(files, "h/1"));
	ok(mirror_files_end(files, NULL, error));
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, make_files, remove_files)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_large_ones_do_not_come),
		T(test_windows_grow),
		T(test_windows_shrink),
		T(test_torn_image_is_waited_for),
		T(test_small_steps),
		T(test_shorter_and_replaced),
		T(test_replaced_behind_an_image),
		T(test_killed),
		T(test_power_cut),
		T(test_unfilled),
		T(test_damaged),
		T(test_kinds_do_not_mix),
		T(test_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
