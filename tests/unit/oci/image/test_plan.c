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
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/image/plan.h"

static char root[256], plan_path[300], recent_path[320];

static int make_root(void **state)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(root, sizeof(root), "%s/dlrun-test-XXXXXX", str_empty(tmp) ? "/tmp" : tmp);
	if (!mkdtemp(root))
		return -1;
	snprintf(plan_path, sizeof(plan_path), "%s/plan", root);
	snprintf(recent_path, sizeof(recent_path), "%s/plan.recent", root);
	return 0;
}

static int remove_root(void **state)
{
	return fs_remove_tree(AT_FDCWD, root, NULL);
}

static struct plan_layer layer_of(unsigned char n)
{
	struct plan_layer layer = {.size = 1000u + n};

	memset(layer.key, n, sizeof(layer.key));
	memset(layer.diff_id, n + 1, sizeof(layer.diff_id));
	memset(layer.digest, n + 2, sizeof(layer.digest));
	return layer;
}

static const struct entry sample[] = {
	{.path = "a", .kind = ENTRY_FILE, .size = 0, .sha256 = {1}},
	{.path = "a-b/c d\n\xff", .kind = ENTRY_FILE, .exec = true, .size = 7, .sha256 = {2}},
	{.path = "a/..b", .kind = ENTRY_LINK, .size = 3, .sha256 = {3}, .target = "../"},
	{.path = "b", .kind = ENTRY_LINK, .size = 0, .sha256 = {4}, .target = ""},
};
enum { N_SAMPLE = sizeof(sample) / sizeof(sample[0]) };

static const uint8_t spec[SHA256_SIZE] = {9, 8, 7};

static void save_sample(void)
{
	const struct entry *refs[N_SAMPLE];
	struct plan_layer full = layer_of(50);
	AUTO_ERR struct err err = {0};

	for (size_t i = 0; i < N_SAMPLE; i++)
		refs[i] = &sample[i];
	if (plan_save_full(plan_path, spec, &full, refs, N_SAMPLE, &err) < 0)
		fail_msg("%s", err.message);
}

static void test_round_trip(void **state)
{
	AUTO_PLAN struct plan plan;
	struct plan_layer full = layer_of(50);

	save_sample();
	plan_load(plan_path, &plan);
	assert_true(plan.has_full);
	assert_memory_equal(plan.spec, spec, SHA256_SIZE);
	assert_memory_equal(&plan.full, &full, sizeof(full));
	assert_int_equal(plan.n_entries, N_SAMPLE);
	for (size_t i = 0; i < N_SAMPLE; i++) {
		assert_string_equal(plan.entries[i].path, sample[i].path);
		assert_true(entry_same(&plan.entries[i], &sample[i]));
		assert_true(str_eq(plan.entries[i].target, sample[i].target));
	}
	assert_ptr_equal(plan_find(&plan, full.key), &plan.full);
	assert_null(plan_find(&plan, layer_of(51).key));
}

static void test_missing(void **state)
{
	AUTO_PLAN struct plan plan;

	plan_load(plan_path, &plan);
	assert_false(plan.has_full);
	assert_int_equal(plan.n_entries, 0);
	assert_int_equal(plan.n_recent, 0);
	plan_done(NULL);
}

static void test_recent(void **state)
{
	struct plan plan;
	AUTO_ERR struct err err = {0};

	plan_load(plan_path, &plan);
	for (unsigned char n = 0; n < PLAN_RECENT_MAX + 3; n++) {
		struct plan_layer layer = layer_of(n);
		plan_remember(&plan, &layer);
	}
	assert_int_equal(plan.n_recent, PLAN_RECENT_MAX);
	assert_int_equal(plan_save_recent(plan_path, &plan, &err), 0);
	plan_done(&plan);

	plan_load(plan_path, &plan);
	assert_int_equal(plan.n_recent, PLAN_RECENT_MAX);
	assert_int_equal(plan.recent[0].key[0], PLAN_RECENT_MAX + 2);
	assert_null(plan_find(&plan, layer_of(2).key));
	assert_non_null(plan_find(&plan, layer_of(3).key));
	/* one that is used comes to the front, and nothing is doubled */
	struct plan_layer oldest = layer_of(3), middle = layer_of(10);
	plan_remember(&plan, &oldest);
	plan_remember(&plan, &middle);
	plan_remember(&plan, &oldest);
	assert_int_equal(plan.n_recent, PLAN_RECENT_MAX);
	assert_int_equal(plan.recent[0].key[0], 3);
	assert_int_equal(plan.recent[1].key[0], 10);
	for (size_t i = 0; i < plan.n_recent; i++)
		for (size_t k = 0; k < i; k++)
			assert_int_not_equal(plan.recent[i].key[0], plan.recent[k].key[0]);
	plan_done(&plan);
}

static void test_unchanged_is_not_written(void **state)
{
	AUTO_PLAN struct plan plan;
	struct plan_layer a = layer_of(1), b = layer_of(2);

	plan_load(plan_path, &plan);
	assert_int_equal(plan_save_recent(plan_path, &plan, NULL), 0);
	assert_int_equal(access(recent_path, F_OK), -1);
	plan_remember(&plan, &a);
	plan_remember(&plan, &b);
	assert_int_equal(plan_save_recent(plan_path, &plan, NULL), 0);
	assert_int_equal(unlink(recent_path), 0);
	plan_remember(&plan, &a);
	plan_remember(&plan, &b);
	assert_int_equal(plan_save_recent(plan_path, &plan, NULL), 0);
	assert_int_equal(access(recent_path, F_OK), -1);
}

static void flip(const char *path, off_t at, off_t cut)
{
	AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC);
	char c;

	assert_true(fd >= 0);
	if (cut >= 0) {
		assert_int_equal(ftruncate(fd, cut), 0);
		return;
	}
	assert_int_equal(pread(fd, &c, 1, at), 1);
	c ^= 1;
	assert_int_equal(pwrite(fd, &c, 1, at), 1);
}

static off_t size_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return st.st_size;
}

/* Any damaged byte and any shorter file counts as no plan. */
static void test_damage(void **state)
{
	AUTO_PLAN struct plan good;

	save_sample();
	off_t size = size_of(plan_path);
	for (off_t at = 0; at < 2 * size; at++) {
		AUTO_PLAN struct plan plan;
		if (at < size)
			flip(plan_path, at, -1);
		else
			flip(plan_path, 0, at - size);
		plan_load(plan_path, &plan);
		assert_false(plan.has_full);
		assert_null(plan.entries);
		save_sample();
	}
	plan_load(plan_path, &good);
	assert_true(good.has_full);
}

static void test_damaged_recent(void **state)
{
	struct plan plan;
	struct plan_layer layer = layer_of(1);

	save_sample();
	plan_load(plan_path, &plan);
	plan_remember(&plan, &layer);
	assert_int_equal(plan_save_recent(plan_path, &plan, NULL), 0);
	plan_done(&plan);
	flip(recent_path, size_of(recent_path) - 1, -1);
	plan_load(plan_path, &plan);
	assert_true(plan.has_full);
	assert_int_equal(plan.n_recent, 0);
	plan_done(&plan);
}

/* Paths that no writer of ours makes, behind a right checksum. */
static void test_odd_paths(void **state)
{
	static const char *const bad[] = {"", "/", "/a", "a/", "a//b", ".", "..", "a/.", "a/..",
		"./a", "../a", "a/../b", "a/./b"};
	struct plan_layer full = layer_of(1);

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		AUTO_PLAN struct plan plan;
		struct entry e = {.path = bad[i]};
		const struct entry *refs[] = {&e};
		assert_int_equal(plan_save_full(plan_path, spec, &full, refs, 1, NULL), 0);
		plan_load(plan_path, &plan);
		if (plan.has_full)
			fail_msg("\"%s\" was taken", bad[i]);
	}
	/* out of order, and twice */
	for (size_t i = 0; i < 2; i++) {
		AUTO_PLAN struct plan plan;
		const struct entry *refs[] = {&sample[3], &sample[i ? 3 : 0]};
		assert_int_equal(plan_save_full(plan_path, spec, &full, refs, 2, NULL), 0);
		plan_load(plan_path, &plan);
		assert_false(plan.has_full);
	}
}

static void test_not_a_file(void **state)
{
	AUTO_PLAN struct plan plan;

	assert_int_equal(mkfifo(plan_path, 0600), 0);
	assert_int_equal(mkfifo(recent_path, 0600), 0);
	plan_load(plan_path, &plan);
	assert_false(plan.has_full);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_round_trip, make_root, remove_root),
		cmocka_unit_test_setup_teardown(test_missing, make_root, remove_root),
		cmocka_unit_test_setup_teardown(test_recent, make_root, remove_root),
		cmocka_unit_test_setup_teardown(
			test_unchanged_is_not_written, make_root, remove_root),
		cmocka_unit_test_setup_teardown(test_damage, make_root, remove_root),
		cmocka_unit_test_setup_teardown(test_damaged_recent, make_root, remove_root),
		cmocka_unit_test_setup_teardown(test_odd_paths, make_root, remove_root),
		cmocka_unit_test_setup_teardown(test_not_a_file, make_root, remove_root),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
