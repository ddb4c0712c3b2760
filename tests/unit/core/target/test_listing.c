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
	(void)err;
	buf_addf(ctx, "%c %s %o %llu %lld%s;", e->kind, e->path, (unsigned)e->mode,
		(unsigned long long)e->size, (long long)e->mtime_ns, e->changing ? "!" : "");
	return 0;
}

static int read_in(const char *text, size_t len, size_t piece, struct buf *out, struct err *err)
{
	AUTO(listing_free_auto) struct listing *listing = listing_new(on_entry, out);
	int r = 0;

	buf_reset(out);
	for (size_t at = 0; r == 0 && at < len; at += piece)
		r = listing_add(listing, text + at, len - at < piece ? len - at : piece, err);
	return r < 0 ? r : listing_finish(listing, err);
}

#define CHECK(text, want) pieces_check(read_in, text, sizeof(text) - 1, want)

static void test_both_forms(void **state)
{
	(void)state;
	CHECK("nul 100\nd 755 4096 1.5 \0d 755 4096 2.0000000019 d\0f 4644 7 99.25 d/a\nb\0"
	      "l 777 1 -3 l\0s 0 0 1 s\0end\0",
		"d d 755 4096 2000000001;f d/a\nb 4644 7 99250000000!;l l 777 1 -3000000000;"
		"s s 0 0 1000000000;");
	CHECK("lines 100\n41ed 4096 1 .\n41ed 4096 2 ./d\n81a4 7 98 ./d/a\nb\nend\nc\n"
	      "a1ff 1 3 ./l\n11a4 0 1 ./pipe\nend\n",
		"d d 755 4096 2000000000;f d/a\nb\nend\nc 644 7 98000000000;l l 777 1 3000000000;"
		"o pipe 644 0 1000000000;");
	CHECK("lines 0\n81a4 1 1 ./x\nend\nend\n", "f x\nend 644 1 1000000000!;");
	CHECK("nul 0\nend\0", "");
	CHECK("lines 0\nend\n", "");
}

static void test_what_is_refused(void **state)
{
	(void)state;
	CHECK("", NULL);
	CHECK("nul 100\n", NULL);
	CHECK("other 1\nend\n", NULL);
	CHECK("nul x\nend\0", NULL);
	CHECK("nul 1\nf 644 1 1 a\0", NULL);
	CHECK("nul 1\nend\0f 644 1 1 a\0", NULL);
	CHECK("nul 1\nf 644 -1 1 a\0end\0", NULL);
	CHECK("nul 1\nf 10000 1 1 a\0end\0", NULL);
	CHECK("nul 1\nf 644 1 99999999999999 a\0end\0", NULL);
	CHECK("nul 1\nf 644 99999999999999999999 1 a\0end\0", NULL);
	CHECK("nul 1\nf 644 1 1\0end\0", NULL);
	CHECK("nul 1\n\0end\0", NULL);
	CHECK("lines 1\nno entry\nend\n", NULL);
	CHECK("lines 1\n81a4 1 1 /etc/passwd\nend\n", NULL);
	CHECK("lines 1\n81a4 1 1 ./a\0b\nend\n", NULL);
	CHECK("lines 1\n81a4 1 1 ./a\nen", NULL);
}

static void test_ceilings(void **state)
{
	AUTO_BUF struct buf text = {0}, out = {0};
	AUTO_ERR struct err err = {0};

	(void)state;
	buf_init(&text, 1 << 20);
	buf_init(&out, 1 << 20);
	buf_adds(&text, "nul 1\nf 644 1 1 ");
	for (int i = 0; i < LISTING_RECORD_MAX; i++)
		buf_addc(&text, 'a');
	assert_int_equal(read_in(text.data, text.len, 1000, &out, &err), -ERR_LIMIT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_both_forms),
		cmocka_unit_test(test_what_is_refused),
		cmocka_unit_test(test_ceilings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
