/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "base/os/fs.h"
#include "base/util/buf.h"
#include "base/util/digest.h"
#include "base/util/mem.h"
#include "oci/codec/codec.h"

enum { MAX = 256 << 20 };

static const enum codec codecs[] = {CODEC_GZIP, CODEC_ZSTD, CODEC_NONE};

/* A file with this content, at its start and without a name. */
static int file_of(const void *data, size_t len)
{
	char path[] = "/tmp/dlrun-codec-XXXXXX";
	AUTO_ERR struct err err = {0};
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	unlink(path);
	assert_int_equal(fs_write_fd(fd, path, data, len, &err), 0);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	return fd;
}

static uint64_t noise_state;

/* xorshift64* */
static uint32_t noise(void)
{
	noise_state ^= noise_state >> 12;
	noise_state ^= noise_state << 25;
	noise_state ^= noise_state >> 27;
	return (uint32_t)(noise_state * 0x2545f4914f6cdd1d >> 32);
}

enum kind { TEXT, ZEROS, RANDOM, MIXED, N_KINDS };

static char *make(enum kind kind, size_t len)
{
	static const char *const words[] = {"loss", "step", " = ", "\n\t", "grad", "(x, y)"};
	char *data = mem_alloc(len + 1, 1);

	noise_state = 1;
	for (size_t i = 0; i < len && kind != ZEROS;) {
		bool random = kind == RANDOM || (kind == MIXED && i / 300000 % 2);
		const char *word = words[noise() % ARRAY_LEN(words)];
		if (random)
			data[i++] = (char)noise();
		while (!random && *word && i < len)
			data[i++] = *word++;
	}
	return data;
}

static int to_buf(void *ctx, const void *data, size_t len, struct err *err)
{
	buf_add(ctx, data, len);
	return 0;
}

/* step: how much is written at a time. */
static void encode(enum codec codec, unsigned width, const char *data, size_t len, size_t step,
	struct buf *out)
{
	AUTO_ERR struct err err = {0};
	AUTO_ENCODER struct encoder *encoder = encoder_new_width(codec, width, to_buf, out);

	buf_init(out, MAX);
	for (size_t i = 0; i < len; i += step)
		assert_int_equal(
			encoder_write(encoder, data + i, len - i < step ? len - i : step, &err), 0);
	assert_int_equal(encoder_end(encoder, &err), 0);
	assert_false(out->full);
}

/* The whole stream; negative on failure, with the id in *ret_id. */
static int decode(const void *data, size_t len, uint64_t max, struct buf *out, enum err_id *ret_id)
{
	AUTO_ERR struct err err = {0};
	AUTO_FD int fd = file_of(data, len);
	AUTO_DECODER struct decoder *decoder = decoder_new(fd, max);
	AUTO_FREE char *chunk = mem_alloc(1, 100000);
	size_t n;
	int r;

	buf_init(out, MAX);
	do {
		r = decoder_read(decoder, chunk, 100000, &n, &err);
		if (r == 0)
			buf_add(out, chunk, n);
	} while (r == 0 && n);
	*ret_id = err.id;
	return r;
}

static void assert_decodes(const struct buf *in, const char *data, size_t len)
{
	AUTO_BUF struct buf out;
	enum err_id id;

	assert_int_equal(decode(in->data, in->len, MAX, &out, &id), 0);
	assert_int_equal(out.len, len);
	assert_memory_equal(out.data, data, len);
}

static void assert_fails(const void *data, size_t len, uint64_t max, enum err_id want)
{
	AUTO_BUF struct buf out;
	enum err_id id;

	assert_true(decode(data, len, max, &out, &id) < 0);
	assert_int_equal(id, want);
	assert_true(out.len <= max);
}

static void test_names(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(codecs); i++)
		assert_int_equal(codec_find(codec_name(codecs[i])), codecs[i]);
	assert_int_equal(codec_find("gzip"), CODEC_GZIP);
	assert_int_equal(codec_find("GZIP"), -1);
	assert_int_equal(codec_find(""), -1);
	assert_int_equal(codec_find(NULL), -1);
}

static void round_trip(enum codec codec, enum kind kind, size_t len)
{
	AUTO_FREE char *data = make(kind, len);
	AUTO_BUF struct buf alone, few, many;

	encode(codec, 1, data, len, 1 << 20, &alone);
	encode(codec, 2, data, len, 65537, &few);
	encode(codec, 16, data, len, 1000003, &many);
	assert_int_equal(alone.len, few.len);
	assert_memory_equal(alone.data, few.data, few.len);
	assert_int_equal(alone.len, many.len);
	assert_memory_equal(alone.data, many.data, many.len);
	assert_decodes(&alone, data, len);
	if (codec != CODEC_NONE && len > 1000 && (kind == TEXT || kind == ZEROS))
		assert_true(alone.len < len / 2);
	assert_true(alone.len <= len + len / 1000 + 100);
}

static void test_round_trips(void **state)
{
	for (size_t c = 0; c < ARRAY_LEN(codecs); c++) {
		size_t capacity = chunk_capacity(codecs[c]);
		size_t sizes[] = {0, 1, 5, 1000, 16384, capacity - 1, capacity, capacity + 1,
			2 * capacity, 12 * capacity + 17};
		for (enum kind kind = 0; kind < N_KINDS; kind++)
			for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
				round_trip(codecs[c], kind, sizes[i]);
	}
}

/* What other programs see: members in a row, each without a time, nothing between or behind
 * them. */
static void test_gzip_members(void **state)
{
	static const uint8_t head[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0};
	size_t len = 3 << 20, out_len = 0, members = 0;
	AUTO_FREE char *data = make(MIXED, len), *out = mem_alloc(len + 1, 1);
	AUTO_BUF struct buf packed;
	z_stream z = {0};

	encode(CODEC_GZIP, 3, data, len, 4096, &packed);
	z.next_in = (uint8_t *)packed.data;
	z.avail_in = (unsigned)packed.len;
	assert_int_equal(inflateInit2(&z, 16 + MAX_WBITS), Z_OK);
	for (; z.avail_in; members++) {
		assert_memory_equal(z.next_in, head, sizeof(head));
		assert_int_equal(z.next_in[9], 255);
		z.next_out = (uint8_t *)out + out_len;
		z.avail_out = (unsigned)(len + 1 - out_len);
		assert_int_equal(inflate(&z, Z_FINISH), Z_STREAM_END);
		out_len += z.total_out;
		assert_int_equal(inflateReset(&z), Z_OK);
	}
	assert_int_equal(members, len / chunk_capacity(CODEC_GZIP));
	assert_int_equal(out_len, len);
	assert_memory_equal(out, data, len);
	inflateEnd(&z);
}

static void stored(enum codec codec, const char *data, struct buf *out)
{
	AUTO_ERR struct err err = {0};
	AUTO_ENCODER struct encoder *encoder = encoder_new(codec, to_buf, out);

	buf_init(out, MAX);
	encoder_set_incompressible(encoder, true);
	assert_int_equal(encoder_write(encoder, data, strlen(data), &err), 0);
	assert_int_equal(encoder_end(encoder, &err), 0);
}

/* Bytes that no version of a library changes. */
static void test_stored_bytes(void **state)
{
	static const uint8_t gzip[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255, 1, 3, 0, 0xfc, 0xff,
		'a', 'b', 'c', 0xc2, 0x41, 0x24, 0x35, 3, 0, 0, 0};
	static const uint8_t zstd[] = {
		0x28, 0xb5, 0x2f, 0xfd, 0xa0, 3, 0, 0, 0, 0x19, 0, 0, 'a', 'b', 'c'};
	AUTO_BUF struct buf a, b;

	stored(CODEC_GZIP, "abc", &a);
	assert_int_equal(a.len, sizeof(gzip));
	assert_memory_equal(a.data, gzip, sizeof(gzip));
	assert_decodes(&a, "abc", 3);
	stored(CODEC_ZSTD, "abc", &b);
	assert_int_equal(b.len, sizeof(zstd));
	assert_memory_equal(b.data, zstd, sizeof(zstd));
	assert_decodes(&b, "abc", 3);
}

/* Text, then a file that the caller calls incompressible, then text again. */
static void test_incompressible_flag(void **state)
{
	size_t len = 900000;
	AUTO_FREE char *text = make(TEXT, len), *all = mem_alloc(3 * len, 1);

	for (int i = 0; i < 3; i++)
		memcpy(all + (size_t)i * len, text, len);
	for (size_t c = 0; c < ARRAY_LEN(codecs); c++) {
		struct buf out[2];
		for (unsigned width = 0; width < 2; width++) {
			AUTO_ERR struct err err = {0};
			AUTO_ENCODER struct encoder *encoder =
				encoder_new_width(codecs[c], 1 + 7 * width, to_buf, &out[width]);
			buf_init(&out[width], MAX);
			for (int i = 0; i < 3; i++) {
				encoder_set_incompressible(encoder, i == 1);
				assert_int_equal(encoder_write(encoder, text, len, &err), 0);
			}
			assert_int_equal(encoder_end(encoder, &err), 0);
		}
		assert_int_equal(out[0].len, out[1].len);
		assert_memory_equal(out[0].data, out[1].data, out[0].len);
		assert_decodes(&out[0], all, 3 * len);
		assert_true(out[0].len > len);
		if (codecs[c] != CODEC_NONE)
			assert_true(out[0].len < 2 * len);
		buf_done(&out[0]);
		buf_done(&out[1]);
	}
}

static int count_out(void *ctx, const void *data, size_t len, struct err *err)
{
	*(size_t *)ctx += len;
	return 0;
}

/* Random bytes are stored, not squeezed: a header for each 64 KiB and no more. */
static void test_incompressible_is_stored(void **state)
{
	size_t len = 64 << 20, size = 0;
	AUTO_FREE char *data = make(RANDOM, 1 << 20);
	AUTO_ERR struct err err = {0};
	AUTO_ENCODER struct encoder *encoder = encoder_new(CODEC_GZIP, count_out, &size);

	for (size_t i = 0; i < len; i += 1 << 20)
		assert_int_equal(encoder_write(encoder, data, 1 << 20, &err), 0);
	assert_int_equal(encoder_end(encoder, &err), 0);
	size_t members = len / chunk_capacity(CODEC_GZIP);
	size_t blocks = chunk_capacity(CODEC_GZIP) / 65535 + 1;
	assert_int_equal(size, len + members * (10 + 5 * blocks + 8));
}

static void test_members_and_frames(void **state)
{
	static const char skippable[] = "\x5f\x2a\x4d\x18\x03\0\0\0abc";
	AUTO_BUF struct buf a, b, all;

	for (enum codec codec = CODEC_GZIP; codec <= CODEC_ZSTD; codec++) {
		encode(codec, 2, "first,", 6, 6, &a);
		encode(codec, 2, "second", 6, 6, &b);
		buf_init(&all, MAX);
		if (codec == CODEC_ZSTD)
			buf_add(&all, skippable, sizeof(skippable) - 1);
		buf_add(&all, a.data, a.len);
		buf_add(&all, b.data, b.len);
		if (codec == CODEC_ZSTD)
			buf_add(&all, skippable, sizeof(skippable) - 1);
		assert_decodes(&all, "first,second", 12);
		buf_done(&a);
		buf_done(&b);
		buf_done(&all);
	}
	buf_init(&a, 0);
	buf_init(&b, 0);
	buf_init(&all, 0);
}

static void test_cut_and_longer(void **state)
{
	AUTO_FREE char *data = make(TEXT, 5000);

	for (enum codec codec = CODEC_GZIP; codec <= CODEC_ZSTD; codec++) {
		AUTO_BUF struct buf packed;
		encode(codec, 1, data, 5000, 5000, &packed);
		for (size_t len = 4; len < packed.len; len++)
			assert_fails(packed.data, len, MAX, E_IMAGE);
		for (size_t n = 1; n < 20; n++) {
			AUTO_BUF struct buf longer;
			buf_init(&longer, MAX);
			buf_add(&longer, packed.data, packed.len);
			for (size_t i = 0; i < n; i++)
				buf_addc(&longer, i % 2 ? 'x' : '\0');
			assert_fails(longer.data, longer.len, MAX, E_IMAGE);
		}
	}
}

/* gzip has a checksum: what passes is the same content (the header's time, bits that only fill). */
static void test_flipped_bits(void **state)
{
	AUTO_FREE char *data = make(MIXED, 600);
	AUTO_BUF struct buf packed;
	size_t refused = 0;

	encode(CODEC_GZIP, 1, data, 600, 600, &packed);
	for (size_t i = 2 * 8; i < packed.len * 8; i++) {
		AUTO_BUF struct buf out;
		enum err_id id;
		packed.data[i / 8] = (char)(packed.data[i / 8] ^ 1 << i % 8);
		if (decode(packed.data, packed.len, MAX, &out, &id) < 0) {
			assert_int_equal(id, E_IMAGE);
			refused++;
		} else {
			assert_int_equal(out.len, 600);
			assert_memory_equal(out.data, data, 600);
		}
		packed.data[i / 8] = (char)(packed.data[i / 8] ^ 1 << i % 8);
	}
	assert_true(refused > packed.len * 8 - 100);
}

static void test_bombs(void **state)
{
	size_t len = 64 << 20;
	AUTO_FREE char *zeros = make(ZEROS, len);

	for (size_t c = 0; c < ARRAY_LEN(codecs); c++) {
		AUTO_BUF struct buf packed, out;
		enum err_id id;
		encode(codecs[c], 2, zeros, len, len, &packed);
		assert_fails(packed.data, packed.len, 1 << 20, E_DATA_LIMIT);
		assert_fails(packed.data, packed.len, len - 1, E_DATA_LIMIT);
		assert_fails(packed.data, packed.len, 0, E_DATA_LIMIT);
		assert_int_equal(decode(packed.data, packed.len, len, &out, &id), 0);
		assert_int_equal(out.len, len);
	}
}

/* A frame that asks for a window of 2^28 bytes, and the start of one of 2^27. */
static void test_zstd_window(void **state)
{
	static const uint8_t large[] = {
		0x28, 0xb5, 0x2f, 0xfd, 0, (28 - 10) << 3, 0x19, 0, 0, 'a', 'b', 'c'};
	static const uint8_t allowed[] = {
		0x28, 0xb5, 0x2f, 0xfd, 0, (27 - 10) << 3, 0x19, 0, 0, 'a', 'b', 'c'};
	AUTO_BUF struct buf out;
	enum err_id id;

	assert_fails(large, sizeof(large), MAX, E_IMAGE);
	assert_int_equal(decode(allowed, sizeof(allowed), MAX, &out, &id), 0);
	assert_string_equal(out.data, "abc");
}

static void test_plain_input(void **state)
{
	const char *const plain[] = {
		"", "a", "\x1f", "\x28\xb5\x2f", "\x28\xb5\x2f\xfe...", "hello"};

	for (size_t i = 0; i < ARRAY_LEN(plain); i++) {
		AUTO_BUF struct buf out;
		enum err_id id;
		assert_int_equal(decode(plain[i], strlen(plain[i]), MAX, &out, &id), 0);
		assert_string_equal(out.data, plain[i]);
	}
	assert_fails("\x1f\x8b", 2, MAX, E_IMAGE);
}

static void tap(void *ctx, const void *data, size_t len)
{
	digest_add(ctx, data, len);
}

static void assert_digest(struct digest *digest, const void *data, size_t len)
{
	uint8_t seen[SHA256_SIZE], want[SHA256_SIZE];

	digest_end(digest, seen);
	digest_sha256(data, len, want);
	assert_memory_equal(seen, want, SHA256_SIZE);
}

static void test_taps(void **state)
{
	size_t len = 5 * chunk_capacity(CODEC_ZSTD) + 5;
	AUTO_FREE char *data = make(MIXED, len);
	AUTO_DIGEST struct digest digest = {0};

	for (size_t c = 0; c < ARRAY_LEN(codecs); c++) {
		for (unsigned width = 1; width < 5; width += 3) {
			AUTO_ERR struct err err = {0};
			AUTO_BUF struct buf out;
			AUTO_ENCODER struct encoder *encoder =
				encoder_new_width(codecs[c], width, to_buf, &out);
			buf_init(&out, MAX);
			digest_begin(&digest, DIGEST_SHA256);
			encoder_set_tap(encoder, tap, &digest);
			assert_int_equal(encoder_write(encoder, data, len, &err), 0);
			assert_int_equal(encoder_end(encoder, &err), 0);
			assert_digest(&digest, data, len);

			AUTO_FD int fd = file_of(out.data, out.len);
			AUTO_DECODER struct decoder *decoder = decoder_new(fd, len);
			AUTO_FREE char *back = mem_alloc(1, len + 1);
			size_t n;
			digest_begin(&digest, DIGEST_SHA256);
			decoder_set_tap(decoder, tap, &digest);
			assert_int_equal(decoder_read(decoder, back, len, &n, &err), 0);
			assert_int_equal(n, len);
			assert_int_equal(decoder_read(decoder, back, len, &n, &err), 0);
			assert_int_equal(n, 0);
			assert_digest(&digest, out.data, out.len);
		}
	}
}

static int refuse(void *ctx, const void *data, size_t len, struct err *err)
{
	size_t *left = ctx;

	if (len > *left)
		return err_set(err, E_IO_FULL, "full");
	*left -= len;
	return 0;
}

static void test_failing_output(void **state)
{
	size_t len = 3 << 20;
	AUTO_FREE char *data = make(RANDOM, len);

	for (size_t c = 0; c < ARRAY_LEN(codecs); c++) {
		for (size_t size = 0; size < len; size += 700000) {
			AUTO_ERR struct err err = {0};
			size_t left = size;
			AUTO_ENCODER struct encoder *encoder =
				encoder_new_width(codecs[c], 4, refuse, &left);
			int r = encoder_write(encoder, data, len, &err);
			if (r == 0)
				r = encoder_end(encoder, &err);
			assert_int_equal(r, -ERR_IO);
			assert_int_equal(err.id, E_IO_FULL);
		}
	}
}

static void test_unreadable(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_DECODER struct decoder *decoder = decoder_new(-1, MAX);
	char byte;
	size_t n;

	assert_int_equal(decoder_read(decoder, &byte, 1, &n, &err), -ERR_IO);
	assert_int_equal(err.id, E_IO);
	decoder_free(NULL);
	encoder_free(NULL);
}

/* Pages of the system change nothing: one byte at a time is the same stream. */
static void test_small_steps(void **state)
{
	AUTO_FREE char *data = make(TEXT, 3000);
	AUTO_ERR struct err err = {0};

	for (size_t c = 0; c < ARRAY_LEN(codecs); c++) {
		AUTO_BUF struct buf packed;
		encode(codecs[c], 2, data, 3000, 1, &packed);
		AUTO_FD int fd = file_of(packed.data, packed.len);
		AUTO_DECODER struct decoder *decoder = decoder_new(fd, MAX);
		size_t n = 1, at = 0;
		for (char byte; n; at += n) {
			assert_int_equal(decoder_read(decoder, &byte, 1, &n, &err), 0);
			if (n)
				assert_int_equal(byte, data[at]);
		}
		assert_int_equal(at, 3000);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_round_trips),
		cmocka_unit_test(test_gzip_members),
		cmocka_unit_test(test_stored_bytes),
		cmocka_unit_test(test_incompressible_flag),
		cmocka_unit_test(test_incompressible_is_stored),
		cmocka_unit_test(test_members_and_frames),
		cmocka_unit_test(test_cut_and_longer),
		cmocka_unit_test(test_flipped_bits),
		cmocka_unit_test(test_bombs),
		cmocka_unit_test(test_zstd_window),
		cmocka_unit_test(test_plain_input),
		cmocka_unit_test(test_taps),
		cmocka_unit_test(test_failing_output),
		cmocka_unit_test(test_unreadable),
		cmocka_unit_test(test_small_steps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
