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
#include <unistd.h>

#include "app/transfer/mirror.h"
#include "app/transfer/mirror_files.h"
#include "tests/unit/runfix.h"

#define RUN_ID  "a-22222"
#define OUTPUTS "state/dlrun/runs/" RUN_ID "/outputs/"
#define EVENTS  "x/events.out.tfevents.1"

/*
 * The sink: what a target elsewhere would do
 */

static struct mirror_files *files;
static uint64_t requested; /* bytes, of the last look */

/* A file there, in the look that is open. */
static void offer_at(
	const char *path, const char *content, size_t size, int64_t mtime_ns, bool changing)
{
	struct fetch_sink *sink = mirror_files_sink(files);
	const struct fetch_item item = {.path = path,
		.mode = S_IFREG | 0644,
		.size = size,
		.mtime_ns = mtime_ns,
		.changing = changing};
	struct fetch_range range = {0};
	int r = fetch_sink_wants(sink, &item, &range, NULL);

	assert_true(r >= 0);
	if (r == 0)
		return;
	assert_true(range.len > 0 && range.offset + range.len == size);
	requested += range.len;
	r = fetch_sink_begin(sink, &item, &range, NULL);
	assert_true(r >= 0);
	for (uint64_t i = range.offset; r > 0 && i < size; i += 7) {
		size_t n = size - i < 7 ? (size_t)(size - i) : 7;
		ok(fetch_sink_write(sink, content + i, n, error));
	}
	if (r > 0)
		ok(fetch_sink_end(sink, &item, error));
}

static void begin(void)
{
	requested = 0;
	ok(mirror_files_begin(files, error));
}

static struct mirror_counts end(const char *whole)
{
	struct mirror_counts counts;

	ok(mirror_files_end(files, whole, error));
	mirror_files_count(files, &counts);
	return counts;
}

/* A look that finds one file. */
static struct mirror_counts observe(const char *content, size_t size, int64_t mtime_ns)
{
	begin();
	offer_at(EVENTS, content, size, mtime_ns, false);
	return end(NULL);
}

static char content_of_file[200000];

static int make_files(void **state)
{
	for (size_t i = 0; i < sizeof(content_of_file); i++)
		content_of_file[i] = (char)((i * 2654435761U) >> 13);
	if (make_session(state))
		return -1;
	files = mirror_files_new(in_root("m/" RUN_ID), NULL, false);
	return 0;
}

static int remove_files(void **state)
{
	mirror_files_free(files);
	files = NULL;
	return remove_session(state);
}

/* As another process would. */
static void open_anew(void)
{
	mirror_files_free(files);
	files = mirror_files_new(in_root("m/" RUN_ID), NULL, false);
}

static void is_here(const char *path, const char *content, size_t size)
{
	AUTO_BUF struct buf text = {0};
	AUTO_FREE char *name = mem_printf("m/" RUN_ID "/%s", path);

	ok(fs_read(in_root(name), 1 << 20, &text, NULL, error));
	assert_int_equal(text.len, size);
	assert_memory_equal(text.data, content, size);
}

static ino_t inode_of(const char *path)
{
	AUTO_FREE char *name = mem_printf("m/" RUN_ID "/%s", path);
	struct stat st;

	assert_int_equal(lstat(in_root(name), &st), 0);
	return st.st_ino;
}

static void test_new_bytes_only(void **state)
{
	const char *c = content_of_file;
	struct mirror_counts counts;
	char boot[OS_ID_SIZE];

	counts = observe(c, 100000, 1);
	assert_int_equal(requested, 100000);
	assert_int_equal(counts.files, 1);
	assert_int_equal(counts.bytes, 100000);
	assert_true(counts.is_new);
	is_here(EVENTS, c, 100000);
	ino_t inode = inode_of(EVENTS);
	counts = observe(c, 100000, 1);
	assert_int_equal(requested, 0);
	assert_false(counts.is_new);
	counts = observe(c, 100010, 2);
	assert_int_equal(requested, 64 + 10);
	assert_int_equal(counts.bytes_new, 100010);
	is_here(EVENTS, c, 100010);
	/* It is the same file: whoever reads it goes on. */
	assert_int_equal(inode_of(EVENTS), inode);
	/* Another process knows what is here; where boots cannot be told apart, it has a look. */
	open_anew();
	counts = observe(c, 100010, 2);
	assert_int_equal(requested, os_boot_id(boot) ? 0 : 64);
	assert_int_equal(counts.files, 1);
	assert_int_equal(counts.bytes, 100010);
	observe(c, 200000, 3);
	assert_int_equal(requested, 64 + 99990);
	is_here(EVENTS, c, 200000);
}

static void test_small_steps(void **state)
{
	for (size_t size = 0; size < 300; size++)
		observe(content_of_file, size, (int64_t)size);
	is_here(EVENTS, content_of_file, 299);
}

/* Stopped at any byte, it goes on there. */
static void test_stopped(void **state)
{
	const struct fetch_item item = {.path = EVENTS, .size = 5000, .mtime_ns = 1};

	for (size_t n = 1; n <= 5000; n += 613) {
		struct fetch_sink *sink = mirror_files_sink(files);
		struct fetch_range range = {0};

		begin();
		assert_int_equal(fetch_sink_wants(sink, &item, &range, NULL), 1);
		assert_true(range.offset + 64 + 613 >= n);
		assert_int_equal(fetch_sink_begin(sink, &item, &range, NULL), 1);
		ok(fetch_sink_write(
			sink, content_of_file + range.offset, n - (size_t)range.offset, error));
		open_anew();
		is_here(EVENTS, content_of_file, n);
	}
	observe(content_of_file, 5000, 1);
	is_here(EVENTS, content_of_file, 5000);
}

static void test_shorter_and_replaced(void **state)
{
	const char *c = content_of_file;
	struct mirror_counts counts;

	observe(c, 5000, 1);
	ino_t inode = inode_of(EVENTS);
	observe(c + 1, 3000, 2);
	is_here(EVENTS, c + 1, 3000);
	assert_int_not_equal(inode_of(EVENTS), inode);
	/* Another one of the same size or more: its last bytes tell, the next look copies it. */
	counts = observe(c + 2, 3000, 3);
	assert_true(counts.wants_more);
	assert_int_equal(requested, 64);
	counts = observe(c + 2, 3000, 3);
	assert_false(counts.wants_more);
	is_here(EVENTS, c + 2, 3000);
	counts = observe(c + 3, 9000, 4);
	assert_true(counts.wants_more);
	is_here(EVENTS, c + 2, 3000);
	observe(c + 3, 9000, 4);
	is_here(EVENTS, c + 3, 9000);
	observe(c, 0, 5);
	is_here(EVENTS, c, 0);
	observe(c, 70, 6);
	is_here(EVENTS, c, 70);
}

/* A time that may not move yet is not relied on. */
static void test_changing(void **state)
{
	const char *c = content_of_file;

	begin();
	offer_at(EVENTS, c, 1000, 7, true);
	end(NULL);
	begin();
	offer_at(EVENTS, c, 1000, 7, true);
	end(NULL);
	assert_int_equal(requested, 0);
	observe(c, 1000, 7);
	assert_int_equal(requested, 64);
	observe(c, 1000, 7);
	assert_int_equal(requested, 0);
}

static void test_hostile_names(void **state)
{
	AUTO_ERR struct err err = {0};
	const char *c = content_of_file;

	static const char *const names[] = {"../tfevents", "/tfevents", "a//tfevents",
		"a/./tfevents", "", MIRROR_OWN "/tfevents", MIRROR_OWN, "a/../../tfevents"};
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		begin();
		offer_at(names[i], c, 10, 1, false);
		assert_int_equal(requested, 0);
		assert_int_equal(mirror_files_end(files, "h", &err), -ERR_IO);
		assert_int_equal(err.id, E_IO_READ);
		err_clear(&err);
	}
	assert_false(exists("m/tfevents"));
	assert_false(exists("tfevents"));
	/* Nor was it whole. */
	begin();
	assert_false(mirror_files_is_whole(files, "h"));
	end(NULL);
}

/* What lies in the way is no place to write through. */
static void test_links_in_the_way(void **state)
{
	AUTO_FREE char *outside = mem_strdup(in_root("outside"));
	AUTO_ERR struct err err = {0};
	struct fetch_range range;

	put("outside/tfevents", "precious");
	put("m/" RUN_ID "/y/z", "");
	assert_int_equal(symlink(outside, in_root("m/" RUN_ID "/x")), 0);
	AUTO_FREE char *precious = mem_strdup(in_root("outside/tfevents"));
	assert_int_equal(symlink(precious, in_root("m/" RUN_ID "/y/tfevents")), 0);
	begin();
	offer_at("y/tfevents", content_of_file, 100, 1, false);
	const struct fetch_item item = {.path = "x/tfevents", .size = 10, .mtime_ns = 1};
	assert_int_equal(fetch_sink_wants(mirror_files_sink(files), &item, &range, NULL), 1);
	assert_true(fetch_sink_begin(mirror_files_sink(files), &item, &range, &err) < 0);
	mirror_files_drop(files);
	is_here("y/tfevents", content_of_file, 100);
	AUTO_BUF struct buf text = {0};
	ok(fs_read(precious, 100, &text, NULL, error));
	assert_string_equal(text.data, "precious");
}

static void test_limits(void **state)
{
	AUTO_ERR struct err err = {0};

	begin();
	offer_at("a.tfevents", content_of_file, 10, 1, false);
	offer_at("bomb.tfevents", content_of_file, (size_t)MIRROR_BYTES_MAX - 9, 1, false);
	offer_at("c.tfevents", content_of_file, 10, 1, false);
	assert_int_equal(mirror_files_end(files, NULL, &err), -ERR_LIMIT);
	is_here("c.tfevents", content_of_file, 10);
	assert_int_equal(requested, 20);
	begin();
	for (int i = 0; i <= MIRROR_FILES_MAX; i++) {
		AUTO_FREE char *name = mem_printf("%d.tfevents", i);
		const struct fetch_item item = {.path = name, .size = 10, .mtime_ns = 1};
		struct fetch_range range = {0};

		assert_int_equal(fetch_sink_wants(mirror_files_sink(files), &item, &range, NULL),
			i < MIRROR_FILES_MAX - 2);
	}
	assert_int_equal(mirror_files_end(files, NULL, NULL), -ERR_LIMIT);
}

#define CONFIG  "x/projector_config.pbtxt"
#define PROFILE "x/plugins/profile/1/host.xplane.pb"

/* What a configuration names is asked for by the next look; what nobody names does not come. */
static void test_plugins(void **state)
{
	static const char config[] = "embeddings { tensor_path: \"0/t.tsv\" }";
	const char *c = content_of_file;
	struct mirror_counts counts;

	for (int i = 0; i < 2; i++) {
		begin();
		offer_at(CONFIG, config, strlen(config), 1, false);
		offer_at(PROFILE, c, 9000, 1, false);
		offer_at(EVENTS, c, 100, 1, false);
		offer_at("x/0/t.tsv", c, 700, 1, false);
		offer_at("0/t.tsv", c, 700, 1, false);
		offer_at("x/model.pt", c, 700, 1, false);
		counts = end(NULL);
		assert_int_equal(counts.wants_more, i == 0);
		assert_int_equal(exists("m/" RUN_ID "/x/0/t.tsv"), i == 1);
	}
	assert_int_equal(counts.files, 1);
	assert_int_equal(counts.bytes, 100);
	assert_int_equal(counts.plugin_files, 3);
	assert_int_equal(counts.plugin_bytes, 9000 + 700 + strlen(config));
	is_here(PROFILE, c, 9000);
	is_here("x/0/t.tsv", c, 700);
	assert_false(exists("m/" RUN_ID "/0"));
	assert_false(exists("m/" RUN_ID "/x/model.pt"));
	/* Another process knows what is named. */
	open_anew();
	begin();
	offer_at("x/0/t.tsv", c + 1, 800, 2, false);
	counts = end(NULL);
	assert_int_equal(requested, 800);
	is_here("x/0/t.tsv", c + 1, 800);
	begin();
	offer_at("x/0/t.tsv", c + 1, 800, 2, false);
	end("h/1");
	assert_int_equal(requested, 0);
	begin();
	assert_true(mirror_files_is_whole(files, "h/1"));
	counts = end(NULL);
	assert_int_equal(counts.plugin_files, 3);
}

/* They are not appended to: another time is another file. What is at work is left to rest. */
static void test_rewritten_plugins(void **state)
{
	const char *c = content_of_file;
	struct mirror_counts counts;

	begin();
	offer_at(PROFILE, c, 9000, 1, false);
	end(NULL);
	begin();
	offer_at(PROFILE, c, 9500, 2, true);
	counts = end("h/1");
	assert_true(counts.is_behind);
	assert_int_equal(requested, 0);
	is_here(PROFILE, c, 9000);
	begin();
	assert_false(mirror_files_is_whole(files, "h/1"));
	offer_at(PROFILE, c + 3, 9600, 3, false);
	end(NULL);
	is_here(PROFILE, c + 3, 9600);
	begin();
	offer_at(PROFILE, c + 4, 9600, 4, false);
	end(NULL);
	is_here(PROFILE, c + 4, 9600);
	/* A clock of tomorrow does not keep it for ever. */
	for (int i = 0; i < 2; i++) {
		begin();
		offer_at(PROFILE, c, 77, 5, true);
		end(NULL);
	}
	is_here(PROFILE, c, 77);
	begin();
	offer_at(PROFILE, c, 0, 6, false);
	end(NULL);
	is_here(PROFILE, c, 0);
}

static void test_limits_of_plugins(void **state)
{
	const char *c = content_of_file;
	struct mirror_counts counts;

	begin();
	offer_at("plugins/profile/1/large", c, (size_t)MIRROR_PLUGIN_BYTES_MAX + 1, 1, false);
	offer_at(PROFILE, c, 10, 1, false);
	offer_at("plugins/profile/1/rest", c, (size_t)MIRROR_PLUGIN_BYTES_MAX - 9, 1, false);
	counts = end("h/1");
	assert_int_equal(counts.excluded, 2);
	assert_string_equal(mirror_files_excluded(files), "plugins/profile/1/large");
	assert_int_equal(requested, 10);
	is_here(PROFILE, c, 10);
	begin();
	assert_false(mirror_files_is_whole(files, "h/1"));
	for (int i = 0; i < MIRROR_PLUGIN_FILES_MAX + 4; i++) {
		AUTO_FREE char *name = mem_printf("plugins/profile/1/%d", i);
		const struct fetch_item item = {.path = name, .size = 0, .mtime_ns = 1};
		struct fetch_range range = {0};

		fetch_sink_wants(mirror_files_sink(files), &item, &range, NULL);
	}
	counts = end(NULL);
	assert_int_equal(counts.plugin_files, MIRROR_PLUGIN_FILES_MAX);
	assert_int_equal(counts.excluded, 5);
}

static void test_whole(void **state)
{
	begin();
	offer_at(EVENTS, content_of_file, 10, 1, false);
	assert_false(mirror_files_is_whole(files, "h/1"));
	end("h/1");
	open_anew();
	begin();
	assert_true(mirror_files_is_whole(files, "h/1"));
	assert_false(mirror_files_is_whole(files, "h/2"));
	end(NULL);
	unlink(in_root("m/" RUN_ID "/" EVENTS));
	begin();
	assert_false(mirror_files_is_whole(files, "h/1"));
	offer_at(EVENTS, content_of_file, 10, 1, false);
	end(NULL);
	is_here(EVENTS, content_of_file, 10);
}

static void test_one_at_a_time(void **state)
{
	AUTO(mirror_files_free_auto)
	struct mirror_files *other = mirror_files_new(in_root("m/" RUN_ID), NULL, false);
	AUTO_ERR struct err err = {0};

	begin();
	assert_true(mirror_files_begin(other, &err) < 0);
	assert_int_equal(err.id, E_IO_LOCK);
	offer_at(EVENTS, content_of_file, 10, 1, false);
	end(NULL);
	ok(mirror_files_begin(other, error));
	mirror_files_drop(other);
}

/* What another program has written over it is no reason to fail. */
static void test_damaged_memory(void **state)
{
	observe(content_of_file, 100, 1);
	put("m/" RUN_ID "/" MIRROR_OWN "/seen", "boot\n-1 x\n99999999999999999999 1 ../y");
	open_anew();
	observe(content_of_file, 100, 1);
	is_here(EVENTS, content_of_file, 100);
}

/*
 * The mirror, of runs of this machine
 */

static struct mirror *mirror;

static struct mirror_state state_of(size_t i)
{
	struct mirror_state now;

	mirror_get(mirror, i, &now);
	return now;
}

static int make_mirror(void **state)
{
	static const struct mirror_options options = {.poll_ms = 20};

	if (make_session(state))
		return -1;
	return mirror_open(&session, &options, &mirror, NULL);
}

static int remove_mirror(void **state)
{
	mirror_free(mirror);
	mirror = NULL;
	return remove_session(state);
}

static size_t add(const struct run *run)
{
	size_t i = SIZE_MAX;

	ok(mirror_add(mirror, run, &i, error));
	return i;
}

static void test_local_runs_are_linked(void **state)
{
	AUTO_RUN struct run *run = new_run(RUN_ID);
	AUTO_BUF struct buf text = {0};

	put(OUTPUTS "a/events.out.tfevents.1", "one");
	put(OUTPUTS "a/b/c/my.tfevents", "three");
	put(OUTPUTS "a/model.pt", "no");
	assert_int_equal(symlink("my.tfevents", in_root(OUTPUTS "a/b/c/link.tfevents")), 0);
	assert_int_equal(mkfifo(in_root(OUTPUTS "pipe.tfevents"), 0600), 0);
	assert_int_equal(add(run), 0);
	ok(mirror_first(mirror, 10000, NULL, error));
	struct mirror_state now = state_of(0);
	assert_null(now.error);
	assert_true(now.is_over);
	assert_int_equal(now.files, 2);
	assert_int_equal(now.bytes, 8);
	assert_int_equal(now.bytes_new, 0);
	assert_string_equal(now.source, in_root("state/dlrun/runs/" RUN_ID "/outputs"));
	assert_string_equal(now.dir, in_root("cache/dlrun/mirror/" RUN_ID));
	const char *link = "cache/dlrun/mirror/" RUN_ID "/a/events.out.tfevents.1";
	struct stat st;
	assert_int_equal(lstat(in_root(link), &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	ok(fs_read(in_root(link), 100, &text, NULL, error));
	assert_string_equal(text.data, "one");
	assert_false(exists("cache/dlrun/mirror/" RUN_ID "/a/model.pt"));
	assert_false(exists("cache/dlrun/mirror/" RUN_ID "/pipe.tfevents"));
	assert_false(exists("cache/dlrun/mirror/" RUN_ID "/a/b/c/link.tfevents"));
}

/* Of one that has never come to a target nothing is known; the rest is not kept waiting. */
static void test_many_runs(void **state)
{
	AUTO_RUN struct run *run = new_run(RUN_ID);
	AUTO_RUN struct run *empty = new_run("b-22222");
	AUTO_RUN struct run *waits = run_new("c-22222", "c");

	json_set_str(json_sub(waits->doc, "target"), "kind", "local");
	json_set_str(json_sub(waits->doc, "target"), "name", "local");
	put(OUTPUTS "tfevents", "one");
	assert_int_equal(add(empty), 0);
	assert_int_equal(add(waits), 1);
	assert_int_equal(add(run), 2);
	ok(mirror_first(mirror, 10000, NULL, error));
	assert_true(state_of(0).is_over);
	assert_int_equal(state_of(0).files, 0);
	assert_false(state_of(1).is_over);
	assert_int_equal(state_of(2).files, 1);
}

/* Once it has ended and was copied, nobody is asked again. */
static void test_ended_before(void **state)
{
	AUTO_RUN struct run *run = new_run(RUN_ID);

	put(OUTPUTS "tfevents", "one");
	add(run);
	ok(mirror_first(mirror, 10000, NULL, error));
	mirror_free(mirror);
	ok(mirror_open(&session, &(struct mirror_options){0}, &mirror, error));
	put(OUTPUTS "late.tfevents", "two");
	add(run);
	ok(mirror_first(mirror, 10000, NULL, error));
	assert_true(state_of(0).is_over);
	assert_int_equal(state_of(0).files, 1);
	assert_int_equal(state_of(0).bytes, 3);
}

static void test_too_many_runs(void **state)
{
	AUTO_RUN struct run *run = new_run(RUN_ID);
	AUTO_ERR struct err err = {0};
	size_t i;

	for (int n = 0; n < MIRROR_RUNS_MAX; n++)
		add(run);
	assert_int_equal(mirror_add(mirror, run, &i, &err), -ERR_USAGE);
}

static void test_interrupted(void **state)
{
	AUTO_RUN struct run *run = new_run(RUN_ID);
	AUTO_ERR struct err err = {0};
	static const volatile int interrupted = 1;

	add(run);
	assert_int_equal(mirror_first(mirror, -1, &interrupted, &err), -ERR_CANCELED);
}

/* Of two on one directory one looks, and the other one waits for it. */
static void test_another_one_polls(void **state)
{
	AUTO_RUN struct run *run = new_run(RUN_ID);
	AUTO(mirror_files_free_auto)
	struct mirror_files *other =
		mirror_files_new(in_root("cache/dlrun/mirror/" RUN_ID), NULL, false);

	put(OUTPUTS "tfevents", "one");
	ok(mirror_files_begin(other, error));
	add(run);
	ok(mirror_first(mirror, 150, NULL, error));
	assert_int_equal(state_of(0).polls, 0);
	mirror_files_drop(other);
	ok(mirror_first(mirror, 10000, NULL, error));
	assert_int_equal(state_of(0).polls, 1);
	assert_int_equal(state_of(0).files, 1);
}

#define FILES(fn)  cmocka_unit_test_setup_teardown(fn, make_files, remove_files)
#define MIRROR(fn) cmocka_unit_test_setup_teardown(fn, make_mirror, remove_mirror)

int main(void)
{
	const struct CMUnitTest tests[] = {
		FILES(test_new_bytes_only),
		FILES(test_small_steps),
		FILES(test_stopped),
		FILES(test_shorter_and_replaced),
		FILES(test_changing),
		FILES(test_hostile_names),
		FILES(test_links_in_the_way),
		FILES(test_limits),
		FILES(test_plugins),
		FILES(test_rewritten_plugins),
		FILES(test_limits_of_plugins),
		FILES(test_whole),
		FILES(test_one_at_a_time),
		FILES(test_damaged_memory),
		MIRROR(test_local_runs_are_linked),
		MIRROR(test_many_runs),
		MIRROR(test_ended_before),
		MIRROR(test_too_many_runs),
		MIRROR(test_interrupted),
		MIRROR(test_another_one_polls),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
