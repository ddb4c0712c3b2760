/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/data/version.h"
#include "base/util/mem.h"
#include "base/util/str.h"

#define FIRST "dlrun-data 1 1 5 1700000000000 host\n"
#define SHA   "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
#define OTHER "0000000000000000000000000000000000000000000000000000000000000000"

static int parse(const char *text, struct version *ret)
{
	return version_parse(text, strlen(text), ret, NULL);
}

static const char full[] = FIRST "d 755 a%20b\n"
				 "f 555 6000000 " SHA " a%20b/%25%0a\n"
				 "s 6000000 -5 7 99\n"
				 "c 2000000 0123456789abcdef 2000000 fedcba9876543210\n"
				 "c 2000000 0000000000000001\n"
				 "l ../%ff link\n"
				 "end\n";

static void test_there_and_back(void **state)
{
	AUTO_VERSION struct version version = {0};
	AUTO_BUF struct buf out = {0};
	const struct version_entry *file;

	assert_int_equal(parse(full, &version), 0);
	assert_int_equal(version.entries.n, 3);
	file = version_find(&version, "a b/%\n");
	assert_non_null(file);
	assert_int_equal(file->n_chunks, 3);
	assert_int_equal(file->chunks[1].hash, 0xfedcba9876543210ULL);
	assert_int_equal(file->mtime_ns, -5);
	assert_int_equal(file->inode, 99);
	assert_string_equal(version_find(&version, "link")->target, "../\xff");
	assert_int_equal(version_files(&version), 1);
	assert_int_equal(version_bytes(&version), 6000000);
	buf_init(&out, 4096);
	version_print(&version, 1700000000000, "host", true, &out);
	assert_true(str_starts(out.data, "dlrun-data 1 1 6000000 1700000000000 host\n"));
	/* The second line of chunks is not needed. */
	assert_non_null(strstr(out.data,
		"c 2000000 0123456789abcdef 2000000 fedcba9876543210 2000000 0000000000000001\n"
		"l ../%ff link\nend\n"));
}

static void id_of(const char *text, char out[static VERSION_ID_SIZE])
{
	AUTO_VERSION struct version version = {0};

	assert_int_equal(parse(text, &version), 0);
	version_id(&version, out);
	assert_true(version_id_is(out));
}

/* The name follows from what programs see, not from chunks and times. */
static void test_names(void **state)
{
	static const char *const others[] = {
		FIRST "f 555 5 " SHA " a\nend\n",
		FIRST "f 444 5 " OTHER " a\nend\n",
		FIRST "f 444 5 " SHA " b\nend\n",
		FIRST "f 444 5 " SHA " a\nd 755 b\nend\n",
		FIRST "l x a\nend\n",
		FIRST "l y a\nend\n",
		FIRST "d 755 a\nend\n",
		FIRST "end\n",
	};
	char ids[ARRAY_LEN(others) + 1][VERSION_ID_SIZE], same[VERSION_ID_SIZE];

	id_of(FIRST "f 444 5 " SHA " a\nend\n", ids[0]);
	id_of("dlrun-data 1 9 9 9 else\nf 440 5 " SHA " a\ns 5 1 1 1\nend\n", same);
	assert_string_equal(ids[0], same);
	for (size_t i = 0; i < ARRAY_LEN(others); i++) {
		id_of(others[i], ids[i + 1]);
		for (size_t k = 0; k <= i; k++)
			assert_string_not_equal(ids[k], ids[i + 1]);
	}
}

static void test_lists_from_elsewhere(void **state)
{
	static const char *const bad[] = {
		"",
		"end\n",
		FIRST,
		FIRST "end",
		FIRST "d 755 ..\nend\n",
		FIRST "d 755 a/../b\nend\n",
		FIRST "d 755 /a\nend\n",
		FIRST "d 755 a//b\nend\n",
		FIRST "d 755 a/\nend\n",
		FIRST "d 755 %00\nend\n",
		FIRST "d 755 %2\nend\n",
		FIRST "d 755 %2e%2e/x\nend\n",
		FIRST "d 7777777777 a\nend\n",
		FIRST "d 755 b\nd 755 a\nend\n",
		FIRST "d 755 a\nd 755 a\nend\n",
		FIRST "f 444 5 00 a\nend\n",
		FIRST "f 444 -5 " SHA " a\nend\n",
		FIRST "f 444 99999999999999999999 " SHA " a\nend\n",
		FIRST "c 5 0123456789abcdef\nend\n",
		FIRST "f 444 5 " SHA " a\nc 5\nend\n",
		FIRST "f 444 5 " SHA " a\nc 5 0123\nend\n",
		FIRST "f 444 5 " SHA " a\nc 99999999 0123456789abcdef\nend\n",
		FIRST "f 444 5 " SHA " a\ns 6 1 1 1\nend\n",
		FIRST "x\nend\n",
		FIRST "\nend\n",
		FIRST "l  a\nend\n",
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct version version = {0};
		assert_int_equal(parse(bad[i], &version), -ERR_IO);
		assert_int_equal(version.entries.n, 0);
	}
}

/* A size that nothing has, and chunks that do not make it. */
static void test_chunks_that_do_not_add_up(void **state)
{
	AUTO_VERSION struct version version = {0};

	assert_int_equal(
		parse(FIRST "f 444 9000000000000000000 " SHA " a\nc 5 0123456789abcdef\nend\n",
			&version),
		0);
	assert_int_equal(version.entries.v[0].n_chunks, 0);
}

static void test_summaries(void **state)
{
	struct version_summary summary;

	assert_int_equal(version_summary_parse("dlrun-data 1 3 4 5 a%20b", &summary, NULL), 0);
	assert_int_equal(summary.n_files, 3);
	assert_int_equal(summary.bytes, 4);
	assert_int_equal(summary.time_ms, 5);
	assert_string_equal(summary.host, "a b");
	assert_int_equal(version_summary_parse("dlrun-data 2 3 4 5 a", &summary, NULL), -ERR_IO);
	assert_int_equal(version_summary_parse("dlrun-data 1 3 4 5", &summary, NULL), -ERR_IO);
	assert_int_equal(version_summary_parse("", &summary, NULL), -ERR_IO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_lists_from_elsewhere),
		cmocka_unit_test(test_chunks_that_do_not_add_up),
		cmocka_unit_test(test_summaries),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
