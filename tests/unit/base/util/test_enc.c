/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"

static void test_hex_digit(void **state)
{
	static const char digits[] = "0123456789abcdef0123456789ABCDEF";

	for (int c = -1; c < 256; c++) {
		const char *at = c > 0 ? strchr(digits, c) : NULL;
		assert_int_equal(hex_digit(c), at ? (at - digits) % 16 : -1);
	}
}

static void test_hex(void **state)
{
	const uint8_t in[] = {0x00, 0x01, 0x9a, 0xff};
	uint8_t out[4] = {0};
	char hex[9];

	hex_encode(in, 4, hex);
	assert_string_equal(hex, "00019aff");
	assert_true(hex_decode(hex, 4, out));
	assert_memory_equal(in, out, 4);
	assert_true(hex_decode("00019AfF tail", 4, out));
	assert_memory_equal(in, out, 4);
	hex_encode(in, 0, hex);
	assert_string_equal(hex, "");
	assert_true(hex_decode("", 0, out));
	assert_false(hex_decode("", 1, out));
	assert_false(hex_decode("0", 1, out));
	assert_false(hex_decode("000", 2, out));
	assert_false(hex_decode("0g", 1, out));
	assert_false(hex_decode("g0", 1, out));
	assert_false(hex_decode(" 0", 1, out));
	assert_false(hex_decode("/:", 1, out));
	assert_false(hex_decode("@`", 1, out));
	assert_false(hex_decode("\xff\xff", 1, out));
}

/* RFC 4648 section 10. */
static const struct {
	const char *plain, *coded;
} vectors[] = {
	{"", ""},
	{"f", "Zg=="},
	{"fo", "Zm8="},
	{"foo", "Zm9v"},
	{"foob", "Zm9vYg=="},
	{"fooba", "Zm9vYmE="},
	{"foobar", "Zm9vYmFy"},
	{"\xfb\xff\xbf", "+/+/"},
};

static void test_base64(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(vectors); i++) {
		AUTO_BUF struct buf out;
		buf_init(&out, 100);
		base64_encode(vectors[i].plain, strlen(vectors[i].plain), &out);
		assert_string_equal(out.data, vectors[i].coded);
		buf_reset(&out);
		buf_adds(&out, "x");
		assert_true(base64_decode(vectors[i].coded, strlen(vectors[i].coded), &out));
		assert_string_equal(out.data + 1, vectors[i].plain);
	}
}

static void test_base64_refuses(void **state)
{
	static const char *const bad[] = {"A", "AA", "AAA", "AAAAA", "=", "====", "A===", "AA=A",
		"=AAA", "Zg==Zg==", "Zm8=Zm8=", "Zg= =", "Zm9v\n", "Zm9\n", " Zm9v", "Zm-_",
		"Zm9v====", "Zh==", "Zm9=", "Zm\xff\xff", "AAAAAA=A"};
	AUTO_BUF struct buf out;

	buf_init(&out, 100);
	buf_adds(&out, "kept");
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_false(base64_decode(bad[i], strlen(bad[i]), &out));
		assert_string_equal(out.data, "kept");
	}
	assert_false(base64_decode("AA\0A", 4, &out));
}

static void test_base64_all_bytes(void **state)
{
	AUTO_BUF struct buf coded;
	AUTO_BUF struct buf plain;
	uint8_t in[256];

	for (int i = 0; i < 256; i++)
		in[i] = (uint8_t)i;
	buf_init(&coded, 400);
	buf_init(&plain, 400);
	for (size_t len = 0; len <= sizeof(in); len++) {
		buf_reset(&coded);
		buf_reset(&plain);
		base64_encode(in, len, &coded);
		assert_int_equal(coded.len, (len + 2) / 3 * 4);
		assert_true(base64_decode(coded.data, coded.len, &plain));
		assert_int_equal(plain.len, len);
		assert_memory_equal(plain.data, in, len);
	}
}

static void test_base64_limit(void **state)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 7);
	base64_encode("foobar", 6, &out);
	assert_true(out.full);
	buf_reset(&out);
	assert_true(base64_decode("Zm9vYmFyZm9vYmFy", 16, &out));
	assert_true(out.full);
	assert_string_equal(out.data, "foobarf");
	/* What is refused leaves no trace, even if it was too long as well. */
	buf_truncate(&out, 6);
	out.full = false;
	assert_false(base64_decode("Zm9vYmFyZm9!", 12, &out));
	assert_false(out.full);
	assert_string_equal(out.data, "foobar");
}

static void test_numbers(void **state)
{
	uint8_t out[8];

	put_le32(out, 0xfedcba98);
	assert_memory_equal(out, "\x98\xba\xdc\xfe", 4);
	assert_true(get_le32(out) == 0xfedcba98);
	put_le64(out, 0xfedcba9876543210);
	assert_memory_equal(out, "\x10\x32\x54\x76\x98\xba\xdc\xfe", 8);
	assert_true(get_le64(out) == 0xfedcba9876543210);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hex_digit),
		cmocka_unit_test(test_hex),
		cmocka_unit_test(test_base64),
		cmocka_unit_test(test_base64_refuses),
		cmocka_unit_test(test_base64_all_bytes),
		cmocka_unit_test(test_base64_limit),
		cmocka_unit_test(test_numbers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
