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
#include "base/util/str.h"
#include "oci/layer/tar_stream.h"

/* What came: "f a 644 5 1000 hello|" */
static int on_member(void *ctx, const struct tar_member *m, struct err *err)
{
	static const char kinds[] = "fdlho";

	buf_addf(ctx, "%c %s%s%s %o %lld ", kinds[m->kind], m->path, *m->target ? ">" : "",
		m->target, m->mode, (long long)(m->mtime_ns / 1000000));
	return 0;
}

static int on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	buf_add(ctx, data, len);
	return 0;
}

static int on_end(void *ctx, struct err *err)
{
	buf_addc(ctx, '|');
	return 0;
}

struct header {
	const char *name, *size, *mtime, *target, *prefix;
	char type;
};

static void add_header(struct buf *tar, const struct header *h)
{
	char block[512] = {0};
	unsigned sum = 0;

	snprintf(block, 100, "%s", h->name);
	snprintf(block + 100, 8, "0000644");
	memcpy(block + 124, h->size ? h->size : "00000000000", 11);
	memcpy(block + 136, h->mtime ? h->mtime : "00000000001", 11);
	block[156] = h->type ? h->type : '0';
	if (h->target)
		snprintf(block + 157, 100, "%s", h->target);
	memcpy(block + 257,
		"ustar\0"
		"00",
		8);
	if (h->prefix)
		snprintf(block + 345, 155, "%s", h->prefix);
	memset(block + 148, ' ', 8);
	for (size_t i = 0; i < sizeof(block); i++)
		sum += (unsigned char)block[i];
	snprintf(block + 148, 8, "%06o", sum);
	buf_add(tar, block, sizeof(block));
}

static void add_content(struct buf *tar, const char *data, size_t len)
{
	static const char zeros[512];

	buf_add(tar, data, len);
	buf_add(tar, zeros, (512 - len % 512) % 512);
}

static void add_end(struct buf *tar)
{
	static const char zeros[1024];

	buf_add(tar, zeros, sizeof(zeros));
}

/* In pieces of n bytes. */
static int read_in(const struct buf *tar, size_t n, struct buf *out)
{
	const struct tar_events events = {on_member, on_data, on_end, out};
	AUTO(tar_stream_free_auto) struct tar_stream *stream = tar_stream_new(&events);
	AUTO_ERR struct err err = {0};
	int r = 0;

	buf_reset(out);
	for (size_t at = 0; r == 0 && at < tar->len; at += n)
		r = tar_stream_add(
			stream, tar->data + at, tar->len - at < n ? tar->len - at : n, &err);
	if (r == 0)
		r = tar_stream_finish(stream, &err);
	assert_int_equal(r < 0, err.id == E_DATA);
	return r;
}

static void check(const struct buf *tar, const char *want)
{
	static const size_t pieces[] = {1, 7, 511, 512, 513, 100000};
	AUTO_BUF struct buf out = {0};

	buf_init(&out, 1 << 20);
	for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
		int r = read_in(tar, pieces[i], &out);
		assert_int_equal(r < 0, want == NULL);
		if (want)
			assert_string_equal(out.data, want);
	}
}

static void test_members(void **state)
{
	AUTO_BUF struct buf tar = {0};

	buf_init(&tar, 1 << 20);
	check(&tar, "");
	add_header(&tar, &(struct header){.name = "./a", .size = "00000000005"});
	add_content(&tar, "hello", 5);
	add_header(&tar, &(struct header){.name = "d", .type = '5'});
	add_header(&tar, &(struct header){.name = "l", .type = '2', .target = "../x"});
	add_header(&tar, &(struct header){.name = "h", .type = '1', .target = "a"});
	add_header(&tar, &(struct header){.name = "p", .type = '6'});
	add_header(&tar, &(struct header){.name = "n", .prefix = "in/it"});
	add_end(&tar);
	/* xargs makes a second one. */
	add_header(&tar, &(struct header){.name = "z"});
	add_end(&tar);
	check(&tar, "f ./a 644 1000 hello|d d 644 1000 l l>../x 644 1000 h h>a 644 1000 "
		    "o p 644 1000 f in/it/n 644 1000 |f z 644 1000 |");
}

static void test_long_names_and_numbers(void **state)
{
	AUTO_BUF struct buf tar = {0};

	buf_init(&tar, 1 << 20);
	add_header(&tar,
		&(struct header){.name = "././@LongLink", .type = 'L', .size = "00000000006"});
	add_content(&tar, "long\nx", 6);
	add_header(&tar,
		&(struct header){.name = "././@LongLink", .type = 'K', .size = "00000000004"});
	add_content(&tar, "to\0", 4);
	add_header(&tar, &(struct header){.name = "cut", .type = '2', .target = "cut"});
	add_header(&tar, &(struct header){.name = "x", .type = 'x', .size = "00000000047"});
	add_content(&tar,
		"10 path=b\n"
		"9 size=3\n"
		"20 mtime=7.25000001\n",
		39);
	add_header(&tar, &(struct header){.name = "c", .size = "00000000000"});
	add_content(&tar, "abc", 3);
	add_header(&tar, &(struct header){.name = "big", .size = "\x80\0\0\0\0\0\0\0\0\0\0"});
	add_end(&tar);
	check(&tar, "l long\nx>to 644 1000 f b 644 7250 abc|f big 644 1000 |");
}

static void test_what_is_refused(void **state)
{
	AUTO_BUF struct buf tar = {0};
	static const struct header bad[] = {
		{.name = "a", .type = 'S'},
		{.name = "a", .type = 'V'},
		{.name = "a", .type = 'L', .size = "77777777777"},
		{.name = "a", .size = "0000000000x"},
		{.name = "a", .size = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"},
		{.name = "a", .size = "\x80\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff"},
	};

	buf_init(&tar, 1 << 20);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		buf_reset(&tar);
		add_header(&tar, &bad[i]);
		add_end(&tar);
		check(&tar, NULL);
	}
	static const char *const pax[] = {"x", "5 a=b\n", "0 a=b\n", "9 a=b\n", "6 abc\n",
		"999999999999 a=b\n", "24 GNU.sparse.major=1000\n", "10 size=-1\n"};
	for (size_t i = 0; i < ARRAY_LEN(pax); i++) {
		char size[32];
		buf_reset(&tar);
		snprintf(size, sizeof(size), "%011zo", strlen(pax[i]));
		add_header(&tar, &(struct header){.name = "x", .type = 'x', .size = size});
		add_content(&tar, pax[i], strlen(pax[i]));
		add_header(&tar, &(struct header){.name = "a"});
		add_end(&tar);
		check(&tar, NULL);
	}
}

static void test_cuts_are_seen(void **state)
{
	AUTO_BUF struct buf tar = {0}, part = {0}, out = {0};

	buf_init(&tar, 1 << 20);
	buf_init(&part, 1 << 20);
	buf_init(&out, 1 << 20);
	add_header(&tar, &(struct header){.name = "a", .size = "00000001000"});
	add_content(&tar, "0123456789abcdef0123456789abcdef", 32);
	add_end(&tar);
	for (size_t len = 1; len < 1024; len++) {
		buf_reset(&part);
		buf_add(&part, tar.data, len);
		assert_true(read_in(&part, 1000, &out) < 0);
	}
	tar.data[0] ^= 1;
	assert_true(read_in(&tar, 1000, &out) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_members),
		cmocka_unit_test(test_long_names_and_numbers),
		cmocka_unit_test(test_what_is_refused),
		cmocka_unit_test(test_cuts_are_seen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
