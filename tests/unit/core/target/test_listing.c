/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/util/buf.h"
#include "base/util/mem.h"
#include "core/target/listing.h"
#include "tests/unit/piecefix.h"

/* "f a 644 5 1000000000!;": ! for changing */
static int on_entry(void *ctx, const struct listing_entry *e, struct err *err)
{
	buf_addf(ctx, "%c %s %o %llu %lld%s;", e->kind, e->path, (unsigned)e->mode,
		(unsigned long long)e->size, (long long)e->mtime_ns, e->changing ? "!" : "");
	return 0;
}

static int read_in(const char *text, size_t len, size_t piece, struct buf *out, struct err *err)
{
	AUTO(listing_free_auto) struct listing *listing = listing_new("MARK", on_entry, out);
	int r = 0;

	buf_reset(out);
	for (size_t at = 0; r == 0 && at < len; at += piece)
		r = listing_add(listing, text + at, len - at < piece ? len - at : piece, err);
	return r < 0 ? r : listing_finish(listing, err);
}

#define CHECK(text, want) pieces_check(read_in, text, sizeof(text) - 1, want)

/* HEX SIZE SECONDS, and the same time with its fraction. */
#define ENTRY(stat, fraction) "MARK " stat " 2026-01-31 12:00:00" fraction " +0000 "

static void test_entries(void **state)
{
	CHECK("MARK begin 100\n" ENTRY("41ed 4096 1", ".5") ".\n" ENTRY(
		      "41ed 4096 2", ".000000001") "./d\n" ENTRY("89a4 7 99",
		      ".25") "./d/a\nb\nMARK\nend\n" ENTRY("a1ff 1 -3",
		      "") "./l\n" ENTRY("11a4 0 1", ".0000000019") "./pipe\nMARK end\n",
		"d d 755 4096 2000000001;f d/a\nb\nMARK\nend 4644 7 99250000000!;"
		"l l 777 1 -3000000000;o pipe 644 0 1000000001;");
	CHECK("MARK begin 0\nMARK end\n", "");
	CHECK("MARK begin 100\nMARK 81a4 7 50 2026-01-31 12:00:00.000000000 ./a b +0 \n"
	      "MARK 41ed 0 50 2026-01-31 12:00:00.25 .\n"
	      "MARK 81a4 1 50 2026-01-31 12:00:00 ./.x\nMARK end\n",
		"f a b +0  644 7 50000000000;f .x 644 1 50000000000;");
}

static void test_what_is_refused(void **state)
{
	CHECK("", NULL);
	CHECK("MARK begin 100\n", NULL);
	CHECK("other\n", NULL);
	CHECK("MARK end\n", NULL);
	CHECK("MARK begin x\nMARK end\n", NULL);
	CHECK("MARK begin 1\n" ENTRY("81a4 1 1", ".0") "./a\n", NULL);
	CHECK("MARK begin 1\nMARK end\n" ENTRY("81a4 1 1", ".0") "./a\n", NULL);
	CHECK("MARK begin 1\n" ENTRY("81a4 -1 1", ".0") "./a\nMARK end\n", NULL);
	CHECK("MARK begin 1\n" ENTRY("100000 1 1", ".0") "./a\nMARK end\n", NULL);
	CHECK("MARK begin 1\n" ENTRY("81a4 1 99999999999999", ".0") "./a\nMARK end\n", NULL);
	CHECK("MARK begin 1\n" ENTRY("81a4 99999999999999999999 1", ".0") "./a\nMARK end\n", NULL);
	CHECK("MARK begin 1\nMARK 81a4 1 1 ./a\nMARK end\n", NULL);
	CHECK("MARK begin 1\n\nMARK end\n", NULL);
	CHECK("MARK begin 1\nMARK no entry\nMARK end\n", NULL);
	CHECK("MARK begin 1\n" ENTRY("81a4 1 1", ".0") "/etc/passwd\nMARK end\n", NULL);
	CHECK("MARK begin 1\n" ENTRY("81a4 1 1", ".0") "./a\0b\nMARK end\n", NULL);
	CHECK("MARK begin 1\n" ENTRY("81a4 1 1", ".0") "./a\nMARK en", NULL);
}

static void test_ceilings(void **state)
{
	AUTO_BUF struct buf text = {0}, out = {0};
	AUTO_ERR struct err err = {0};

	buf_init(&text, 1 << 20);
	buf_init(&out, 1 << 20);
	buf_adds(&text, "MARK begin 1\n" ENTRY("81a4 1 1", ".0") "./");
	for (int i = 0; i < LISTING_RECORD_MAX; i++)
		buf_addc(&text, 'a');
	assert_int_equal(read_in(text.data, text.len, 1000, &out, &err), -ERR_LIMIT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_entries),
		cmocka_unit_test(test_what_is_refused),
		cmocka_unit_test(test_ceilings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
