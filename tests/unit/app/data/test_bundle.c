/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/data/bundle.h"
#include "base/util/mem.h"
#include "base/util/str.h"

#define SHA "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
#define ID  "d-0123456789abcdef"

static bool parse(const char *text, size_t len, struct bundle_part *ret)
{
	*ret = (struct bundle_part){0};
	return bundle_part_parse(text, len, ret);
}

#define PARSE(text, ret) parse(text, sizeof(text) - 1, ret)

static void test_what_has_come(void **state)
{
	AUTO(bundle_part_done) struct bundle_part part;
	const struct bundle_file *file;

	assert_true(PARSE("part " ID "\ngone 8\n./x\0y z\0dirs 6\n.\0./d\0other 4\n./l\0"
			  "5 444\n7 555\nsums\n" SHA "  ./a b\n\\" SHA "  ./b\\\\\\nc\\r\n",
		&part));
	assert_string_equal(part.base, ID);
	assert_non_null(map_get(&part.gone, "x"));
	assert_non_null(map_get(&part.gone, "y z"));
	assert_non_null(map_get(&part.dirs, "d"));
	assert_non_null(map_get(&part.others, "l"));
	file = map_get(&part.files, "a b");
	assert_non_null(file);
	assert_int_equal(file->size, 5);
	file = map_get(&part.files, "b\\\nc\r");
	assert_non_null(file);
	assert_int_equal(file->mode, 0555);
}

/* Nothing is taken for granted that is not whole. */
static void test_half_of_it(void **state)
{
	static const char text[] = "part " ID "\ngone 3\n./x\0dirs 0\nother 0\nlinks 6\n./l\0x\0"
				   "5 444\nsums\n" SHA "  ./a\n";

	for (size_t len = 0; len < sizeof(text) - 1; len++) {
		AUTO(bundle_part_done) struct bundle_part part;
		assert_true(parse(text, len, &part) == !len);
	}
	AUTO(bundle_part_done) struct bundle_part other;
	assert_false(PARSE("part ../x\ngone 0\ndirs 0\nother 0\nsums\n", &other));
	AUTO(bundle_part_done) struct bundle_part more;
	assert_false(PARSE("part -\ngone 99\ndirs 0\nother 0\nsums\n", &more));
	AUTO(bundle_part_done) struct bundle_part twice;
	assert_false(PARSE("part -\ngone 0\ndirs 0\nother 0\n5 444\n5 444\nsums\n" SHA "  ./a\n" SHA
			   "  ./a\n",
		&twice));
}

static void take(const char *text, struct version *ret)
{
	AUTO_FREE char *all = mem_printf("dlrun-data 1 0 0 0 h\n%send\n", text);

	*ret = (struct version){0};
	assert_int_equal(version_parse(all, strlen(all), ret, NULL), 0);
}

static char kind_of(const struct bundle *bundle, const char *path)
{
	static const char kinds[] = {[BUNDLE_DIR] = 'd',
		[BUNDLE_LINK] = 'l',
		[BUNDLE_HARD] = 'h',
		[BUNDLE_FILE] = 'f',
		[BUNDLE_PIECES] = 'p',
		[BUNDLE_REST] = 'r'};

	for (size_t i = 0; i < bundle->steps.n; i++)
		if (str_eq(bundle->steps.v[i].entry->path, path))
			return kinds[bundle->steps.v[i].kind];
	return '-';
}

#define A "1111111111111111111111111111111111111111111111111111111111111111"
#define B "2222222222222222222222222222222222222222222222222222222222222222"
#define C "3333333333333333333333333333333333333333333333333333333333333333"

/* By what the earlier version has. */
static void test_plan(void **state)
{
	AUTO_VERSION struct version base, now;
	AUTO(bundle_part_done) struct bundle_part part = {0};
	AUTO(bundle_done)
	struct bundle bundle = {
		.base = &base, .base_id = ID, .now = &now, .part = &part, .dir = "/nonexistent"};

	take("d 755 d\nf 444 4000000 " A " d/large\nc 2000000 0000000000000001 2000000 "
	     "0000000000000002\nf 444 5 " B " gone\nl x link\nf 444 5 " C " same\nd 755 was-dir\n",
		&base);
	take("d 755 d\nf 444 4000001 " B " d/large\nc 2000000 0000000000000001 2000001 "
	     "0000000000000003\nl y link\nf 444 5 " B " named\nf 444 6 " C " new\nf 444 5 " C
	     " same\nf 444 1 " A " was-dir\n",
		&now);
	assert_int_equal(bundle_plan(&bundle, NULL), 0);
	assert_int_equal(kind_of(&bundle, "d"), '-');
	assert_int_equal(kind_of(&bundle, "d/large"), 'p');
	assert_int_equal(kind_of(&bundle, "link"), 'l');
	assert_int_equal(kind_of(&bundle, "named"), 'h');
	assert_int_equal(kind_of(&bundle, "new"), 'f');
	assert_int_equal(kind_of(&bundle, "same"), '-');
	assert_int_equal(kind_of(&bundle, "was-dir"), 'f');
	assert_int_equal(bundle.bytes, 2000001 + 6 + 1);
	static const char removed[] = "./d/large\0./gone\0./link\0./was-dir";
	assert_int_equal(bundle.removed.len, sizeof(removed));
	assert_memory_equal(bundle.removed.data, removed, sizeof(removed));
}

/* By what a transfer that was cut has brought, with files that it has removed of the version. */
static void test_plan_goes_on(void **state)
{
	AUTO_VERSION struct version base, now;
	AUTO(bundle_part_done) struct bundle_part part;
	AUTO(bundle_done)
	struct bundle bundle = {
		.base = &base, .base_id = ID, .now = &now, .part = &part, .dir = "/nonexistent"};

	size_t n_removed = 0;

	take("f 444 5 " A " back\nf 444 5 " B " kept\nf 444 5 " B " late\nl x link\n", &base);
	take("f 444 5 " A " back\nf 444 5 " C " came\nf 444 5 " C " half\nf 444 5 " B
	     " kept\nl x link\nd 755 was-link\nf 444 5 " C " was-link/came\n",
		&now);
	/* `late` is about to be removed, and may be there yet. */
	assert_true(
		PARSE("part " ID "\ngone 14\n./back\0./late\0dirs 9\n.\0./left\0"
		      "other 18\n./link\0./was-link\0"
		      "5 444\n3 444\n5 600\nsums\n" C "  ./came\n" C "  ./half\n" C "  ./stray\n",
			&part));
	assert_int_equal(bundle_plan(&bundle, NULL), 0);
	assert_int_equal(kind_of(&bundle, "back"), 'h');
	assert_int_equal(kind_of(&bundle, "came"), '-');
	assert_int_equal(kind_of(&bundle, "half"), 'f');
	assert_int_equal(kind_of(&bundle, "kept"), '-');
	assert_int_equal(bundle_blocks(&bundle), 1);
	for (const char *at = bundle.removed.data; at < bundle.removed.data + bundle.removed.len;
		at += strlen(at) + 1)
		n_removed += str_eq(at, "./half") || str_eq(at, "./left") ||
			     str_eq(at, "./stray") || str_eq(at, "./late") ||
			     str_eq(at, "./back") || str_eq(at, "./was-link");
	assert_int_equal(n_removed, 6);
	assert_int_equal(
		bundle.removed.len, strlen("./back ./half ./late ./left ./stray ./was-link "));
}

/* A name in a directory that was changed counts by its content, whatever its time. */
static void test_compare(void **state)
{
	AUTO(bundle_part_done) struct bundle_part changed, part = {0};
	AUTO(map_done) struct map lost = {0};
	AUTO_VERSION struct version version;

	take("d 755 a\nf 444 5 " SHA " a/f\nl f a/kept\nl f a/link\nf 444 5 " SHA " a/removed\n"
	     "d 755 b\nf 444 5 " SHA " b/other\nf 444 5 " SHA " b/written\n",
		&version);
	assert_true(PARSE("part " ID
			  "\ngone 4\n./a\0dirs 13\n./a/cachedir\0other 18\n./a/kept\0./a/link\0"
			  "links 22\n./a/kept\0f\0./a/link\0g\0"
			  "5 444\n7 644\n6 444\nsums\n" SHA "  ./a/f\n" SHA "  ./a/cache\n" SHA
			  "  ./b/written\n",
		&changed));
	assert_int_equal(bundle_compare(&version, &changed, &lost, &part), 5);
	assert_int_equal(lost.n, 3);
	assert_non_null(map_get(&lost, "a/link"));
	assert_non_null(map_get(&lost, "a/removed"));
	assert_non_null(map_get(&lost, "b/written"));
	assert_int_equal(part.others.n, 2);
	assert_non_null(map_get(&part.others, "a/cache"));
	assert_non_null(map_get(&part.others, "a/cachedir"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_has_come),
		cmocka_unit_test(test_half_of_it),
		cmocka_unit_test(test_plan),
		cmocka_unit_test(test_plan_goes_on),
		cmocka_unit_test(test_compare),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
