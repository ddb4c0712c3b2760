/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "targets/kube/kube_archive.h"
#include "tests/unit/tmpfix.h"

/*
 * What is kept of the log of an attempt in a cluster: its ceiling, its places, its gaps.
 */

enum { MAX = 10 };

static struct kube_archive *open_archive(const char *dir)
{
	struct kube_archive *archive = NULL;

	assert_int_equal(kube_archive_open(dir, MAX, &archive, NULL), 0);
	return archive;
}

static int add(struct kube_archive *archive, int rank, const char *text)
{
	return kube_archive_add(archive, rank, text, strlen(text), 1000, NULL);
}

static void check_file(const char *dir, const char *name, const char *expected)
{
	AUTO_FREE char *path = fs_join(dir, name);
	AUTO_BUF struct buf text = {0};

	assert_int_equal(fs_read(path, 1 << 20, &text, NULL, NULL), 0);
	assert_string_equal(text.data, expected);
}

static void test_goes_on_at_its_places(void **state)
{
	const char *dir = tmp;
	struct kube_archive *archive = open_archive(dir);

	assert_int_equal(add(archive, 0, "one\n"), 0);
	assert_int_equal(add(archive, 2, "two\n"), 0);
	kube_archive_free(archive);
	archive = open_archive(dir);
	assert_int_equal(kube_archive_places(archive)->n, 2);
	assert_int_equal(kube_archive_places(archive)->v[1].offset, 4);
	assert_int_equal(add(archive, 0, "1\n"), 0);
	assert_int_equal(kube_archive_finish(archive, NULL), 0);
	kube_archive_free(archive);
	check_file(dir, ATTEMPT_RANKS "/0/" ATTEMPT_LOG, "one\n1\n");
	check_file(dir, ATTEMPT_RANKS "/2/" ATTEMPT_LOG, "two\n");
	assert_int_equal(kube_archive_open(dir, MAX, &archive, NULL), 1);
}

/* Whoever was killed has written more than its places say. */
static void test_after_a_kill(void **state)
{
	static const struct {
		const char *gap, *next, *expected;
	} rows[] = {{NULL, "two\n", "one\ntwo\n"}, {NULL, "twox\n", "one\ntwox\n"},
		{"g", "3\n", "one\ntw3\n"}, {"g", "", "one\ntw"}};
	const char *dir = tmp;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_FREE char *own = mem_printf("%s/%zu", dir, i);
		AUTO_FREE char *places = fs_join(own, ATTEMPT_RANKS ".tmp/places");
		struct kube_archive *archive = open_archive(own);

		add(archive, 0, "one\ntw");
		kube_archive_free(archive);
		assert_int_equal(fs_replace(places, "0 4 0 x\n", 8, 0600, FS_SYNC_NONE, NULL), 0);
		archive = open_archive(own);
		if (rows[i].gap)
			assert_int_equal(kube_archive_gap(archive, 0, rows[i].gap, NULL), 0);
		add(archive, 0, rows[i].next);
		kube_archive_free(archive);
		check_file(own, ATTEMPT_RANKS ".tmp/0/" ATTEMPT_LOG, rows[i].expected);
		if (rows[i].gap)
			check_file(own, ATTEMPT_RANKS ".tmp/0/" KUBE_ARCHIVE_GAPS, "6 g\n");
	}
}

static void test_its_limit(void **state)
{
	const char *dir = tmp;
	struct kube_archive *archive = open_archive(dir);

	assert_int_equal(add(archive, 0, "12345678\n"), 0);
	assert_int_equal(add(archive, 1, "ab\n"), 1);
	assert_int_equal(add(archive, 1, "c\n"), 0);
	assert_int_equal(add(archive, 0, "\n"), 0);
	kube_archive_free(archive);
	archive = open_archive(dir);
	const struct kept_places *places = kube_archive_places(archive);
	assert_int_equal(places->n, 2);
	assert_int_equal(places->v[0].excluded, 1);
	assert_int_equal(places->v[1].excluded, 5);
	assert_int_equal(places->v[1].offset, 0);
	assert_int_equal(add(archive, 0, "\n"), 0);
	kube_archive_free(archive);
	check_file(dir, ATTEMPT_RANKS ".tmp/0/" ATTEMPT_LOG, "12345678\n");
}

static void test_one_at_a_time(void **state)
{
	const char *dir = tmp;
	struct kube_archive *archive = open_archive(dir), *other = NULL;

	assert_int_equal(kube_archive_open(dir, MAX, &other, NULL), 1);
	kube_archive_free(archive);
	kube_archive_free(open_archive(dir));
}

/* An end that nobody has seen is told, and one of which nothing was seen. */
static void test_what_is_missing_at_the_end(void **state)
{
	static const struct {
		const char *places, *file, *gaps;
	} rows[] = {
		{"0 0 0 1:a:10:0:1:1:1\n", "0/" KUBE_ARCHIVE_GAPS,
			"0 rank 0: lines after 1970-01-01T00:00:00.000Z may be missing: its pod is "
			"gone\n"},
		{"0 0 0 1:a:10:0:1:1:1.\n", NULL, NULL},
		{"0 0 0 \n", NULL, NULL},
		{"", KUBE_ARCHIVE_GAPS,
			"0 nothing of its output was seen here, and the cluster has no pod of it\n"},
	};
	const char *dir = tmp;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_FREE char *own = mem_printf("%s/%zu", dir, i);
		AUTO_FREE char *unfinished = fs_join(own, ATTEMPT_RANKS ".tmp");
		AUTO_FREE char *ranks = fs_join(own, ATTEMPT_RANKS);
		AUTO_FREE char *places = fs_join(unfinished, "places");
		assert_int_equal(fs_mkdirs(unfinished, 0700, NULL), 0);
		assert_int_equal(fs_replace(places, rows[i].places, strlen(rows[i].places), 0600,
					 FS_SYNC_NONE, NULL),
			0);
		struct kube_archive *archive = open_archive(own);
		assert_int_equal(kube_archive_finish(archive, NULL), 0);
		kube_archive_free(archive);
		if (rows[i].file)
			check_file(ranks, rows[i].file, rows[i].gaps);
		else
			check_file(ranks, "places", rows[i].places);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_goes_on_at_its_places, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_after_a_kill, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_its_limit, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_one_at_a_time, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(
			test_what_is_missing_at_the_end, make_tmp, remove_tmp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
