/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/httpd/httpd.h"
#include "net/httpd/httpd_token.h"

#define TOKEN "0123456789abcdef0123456789abcdef"
#define HOST  "6006.a-22222.localhost"
#define MINE  "dlrun-token-8470"

enum { PORT = 8470 };

/* OWN stands for the token of HOST, OFF for that of another host. */
static char *filled(const char *text)
{
	static const char *const hosts[] = {HOST, "localhost"};
	static const char *const words[] = {"OWN", "OFF"};
	AUTO_BUF struct buf out;

	buf_init(&out, HTTPD_HEAD_MAX);
	while (*text) {
		size_t i = 0;

		while (i < ARRAY_LEN(words) && !str_starts(text, words[i]))
			i++;
		if (i < ARRAY_LEN(words)) {
			char token[HTTPD_TOKEN_SIZE];

			httpd_token_of(TOKEN, hosts[i], token);
			buf_adds(&out, token);
			text += strlen(words[i]);
		} else {
			buf_addc(&out, *text++);
		}
	}
	return buf_take(&out);
}

static void head_of(const char *target, const char *const *fields, struct httpd_head *ret)
{
	*ret = (struct httpd_head){.method = mem_strdup("GET"), .target = filled(target)};
	for (; fields && *fields; fields++)
		strv_add_take(&ret->headers, filled(*fields));
}

static void take(struct httpd_head *head, struct httpd_proof *ret)
{
	httpd_token_take(TOKEN, HOST, PORT, head, ret);
}

/*
 * Tokens
 */

static void test_tokens(void **state)
{
	char one[HTTPD_TOKEN_SIZE], other[HTTPD_TOKEN_SIZE], of[HTTPD_TOKEN_SIZE];
	uint8_t bytes[16];

	httpd_token_make(one);
	httpd_token_make(other);
	assert_int_equal(strlen(one), 32);
	assert_true(hex_decode(one, sizeof(bytes), bytes));
	assert_string_not_equal(one, other);
	httpd_token_of(one, HOST, of);
	assert_int_equal(strlen(of), 32);
	assert_string_not_equal(of, one);
	httpd_token_of(one, "localhost", other);
	assert_string_not_equal(of, other);
	/* The first half of HMAC-SHA1 (RFC 2104), as others compute it. */
	httpd_token_of(TOKEN, "localhost", of);
	assert_string_equal(of, "5c69959eb657f18ad2c84a900dc1e695");
	AUTO_FREE char *cookie = httpd_token_cookie(TOKEN, "localhost", 65535);
	AUTO_FREE char *wanted =
		mem_printf("dlrun-token-65535=%s; Path=/; HttpOnly; SameSite=Lax", of);
	assert_string_equal(cookie, wanted);
}

/*
 * Queries
 */

static const struct {
	const char *target, *left;
	bool was_in_url, is_right;
} targets[] = {
	{"/", "/", false, false},
	{"/?", "/?", false, false},
	{"/a?b=c", "/a?b=c", false, false},
	{"/?dlrun_token=" TOKEN, "/", true, true},
	{"/?dlrun_token=OWN", "/", true, true},
	{"/?dlrun_token=OFF", "/", true, false},
	{"/a/?dlrun_token=" TOKEN "&b=c", "/a/?b=c", true, true},
	{"/a?b=c&dlrun_token=" TOKEN, "/a?b=c", true, true},
	{"/a?b=c&dlrun_token=" TOKEN "&d", "/a?b=c&d", true, true},
	/* What else there is stays as it is. */
	{"/?&&b=%20+&dlrun_token=" TOKEN "&&?=/", "/?&&b=%20+&&?=/", true, true},
	{"//evil.example/?dlrun_token=" TOKEN, "//evil.example/", true, true},
	{"/?dlrun_token=" TOKEN "&", "/", true, true},
	/* Twice. */
	{"/?dlrun_token=" TOKEN "&dlrun_token=" TOKEN, "/", true, true},
	{"/?dlrun_token=x&a&dlrun_token=" TOKEN, "/?a", true, true},
	{"/?dlrun_token=" TOKEN "&dlrun_token=", "/", true, true},
	{"/?dlrun_token=x&dlrun_token=y", "/", true, false},
	/* Encoded. */
	{"/?%64lrun%5Ftoken=%30123456789abcdef0123456789abcde%66", "/", true, true},
	{"/?%64lrun%5ftoken=x", "/", true, false},
	{"/?dlrun%255ftoken=" TOKEN, "/?dlrun%255ftoken=" TOKEN, false, false},
	{"/?dlrun_token=%", "/", true, false},
	{"/?dlrun_token=%3", "/", true, false},
	{"/?dlrun_token=%zz" TOKEN, "/", true, false},
	{"/?dlrun_token%", "/?dlrun_token%", false, false},
	{"/?dlrun_token%3d" TOKEN, "/?dlrun_token%3d" TOKEN, false, false},
	{"/?a%26dlrun_token=" TOKEN, "/?a%26dlrun_token=" TOKEN, false, false},
	/* Empty, too short, too long, of other letters. */
	{"/?dlrun_token", "/", true, false},
	{"/?dlrun_token=", "/", true, false},
	{"/?dlrun_token==" TOKEN, "/", true, false},
	{"/?dlrun_token=0123456789abcdef0123456789abcde", "/", true, false},
	{"/?dlrun_token=" TOKEN "0", "/", true, false},
	{"/?dlrun_token=" TOKEN "%00", "/", true, false},
	{"/?dlrun_token=%00" TOKEN, "/", true, false},
	{"/?dlrun_token=0123456789ABCDEF0123456789ABCDEF", "/", true, false},
	{"/?dlrun_token=" TOKEN TOKEN TOKEN, "/", true, false},
	/* Other names, and what is no query. */
	{"/?dlrun_tokens=" TOKEN, "/?dlrun_tokens=" TOKEN, false, false},
	{"/?xdlrun_token=" TOKEN, "/?xdlrun_token=" TOKEN, false, false},
	{"/?dlrun_toke=" TOKEN, "/?dlrun_toke=" TOKEN, false, false},
	{"/?DLRUN_TOKEN=" TOKEN, "/?DLRUN_TOKEN=" TOKEN, false, false},
	{"/dlrun_token=" TOKEN, "/dlrun_token=" TOKEN, false, false},
	{"/&dlrun_token=" TOKEN, "/&dlrun_token=" TOKEN, false, false},
	{"a.localhost:80", "a.localhost:80", false, false},
};

static void test_targets(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(targets); i++) {
		AUTO_HTTPD_HEAD struct httpd_head head;
		struct httpd_proof proof;

		head_of(targets[i].target, NULL, &head);
		take(&head, &proof);
		if (!str_eq(head.target, targets[i].left) ||
			proof.was_in_url != targets[i].was_in_url ||
			proof.url_is_right != targets[i].is_right || proof.field_is_right)
			fail_msg("%s: %s %d %d", targets[i].target, head.target, proof.was_in_url,
				proof.url_is_right);
	}
}

/*
 * Fields
 */

/* Of a field; left NULL: it goes. */
static const struct {
	const char *field, *left;
	bool is_right;
} fields[] = {
	{"cookie: a=b", "cookie: a=b", false},
	{"cookie: a=b;c;  d=;;", "cookie: a=b;c;  d=;;", false},
	{"cookie: ", "cookie: ", false},
	{"cookie: " MINE "=OWN", NULL, true},
	{"cookie: a=b; " MINE "=OWN; c=d", "cookie: a=b; c=d", true},
	{"cookie: " MINE "=OWN;a=\"b c\";;c", "cookie: a=\"b c\"; c", true},
	{"cookie:  ; " MINE " = OWN ;", NULL, true},
	/* Not the token itself, nor that of another name. */
	{"cookie: " MINE "=" TOKEN, NULL, false},
	{"cookie: " MINE "=OFF", NULL, false},
	/* A page of the program may have set others of the name: one of them is right. */
	{"cookie: " MINE "=x; a=b; " MINE "=OWN; " MINE "=", "cookie: a=b", true},
	{"cookie: " MINE "=x; " MINE "=y", NULL, false},
	{"cookie: " MINE, NULL, false},
	{"cookie: " MINE "=", NULL, false},
	{"cookie: " MINE "=OWN0", NULL, false},
	{"cookie: " MINE "=\"OWN\"", NULL, false},
	{"cookie: " MINE "==OWN", NULL, false},
	/* Of proxies at other ports, which browsers send, too. */
	{"cookie: dlrun-token-8471=OWN; a", "cookie: a", false},
	{"cookie: dlrun-token-847=OWN", NULL, false},
	{"cookie: dlrun-token-84700=OWN", NULL, false},
	{"cookie: dlrun-token-=OWN", NULL, false},
	/* Other names. */
	{"cookie: dlrun-token=OWN", "cookie: dlrun-token=OWN", false},
	{"cookie: x" MINE "=OWN", "cookie: x" MINE "=OWN", false},
	{"cookie: DLRUN-token-8470=OWN", "cookie: DLRUN-token-8470=OWN", false},
	{"cookie: a=" MINE "=OWN", "cookie: a=" MINE "=OWN", false},
	{"cookies: " MINE "=OWN", "cookies: " MINE "=OWN", false},
	{"x: cookie: " MINE "=OWN", "x: cookie: " MINE "=OWN", false},
};

static void test_cookies(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
		const char *const all[] = {"host: x", fields[i].field, "accept: y", NULL};
		AUTO_FREE char *left = fields[i].left ? filled(fields[i].left) : NULL;
		AUTO_HTTPD_HEAD struct httpd_head head;
		struct httpd_proof proof;

		head_of("/", all, &head);
		take(&head, &proof);
		if (proof.field_is_right != fields[i].is_right || proof.was_in_url ||
			head.headers.n != (left ? 3 : 2))
			fail_msg("%s: %d, %zu fields", fields[i].field, proof.field_is_right,
				head.headers.n);
		if (left)
			assert_string_equal(head.headers.v[1], left);
		assert_string_equal(head.headers.v[0], "host: x");
		assert_string_equal(head.headers.v[head.headers.n - 1], "accept: y");
	}
}

static void test_many_cookies(void **state)
{
	AUTO_HTTPD_HEAD struct httpd_head head;
	struct httpd_proof proof;
	AUTO_BUF struct buf many, left;

	buf_init(&many, HTTPD_HEAD_MAX);
	buf_init(&left, HTTPD_HEAD_MAX);
	buf_adds(&many, "cookie: ");
	buf_adds(&left, "cookie: ");
	for (int i = 0; i < 1000; i++) {
		buf_addf(&many, "%sc%d=%d; " MINE "=%d", i ? "; " : "", i, i, i);
		buf_addf(&left, "%sc%d=%d", i ? "; " : "", i, i);
	}
	const char *const all[] = {many.data, "cookie: " MINE "=OWN", "cookie: z=1", NULL};
	head_of("/", all, &head);
	take(&head, &proof);
	assert_true(proof.field_is_right);
	assert_int_equal(head.headers.n, 2);
	assert_string_equal(head.headers.v[0], left.data);
	assert_string_equal(head.headers.v[1], "cookie: z=1");
}

static void expect_password(const char *scheme, const char *pair, size_t len, bool is_right)
{
	AUTO_HTTPD_HEAD struct httpd_head head;
	AUTO_BUF struct buf field;
	struct httpd_proof proof;

	buf_init(&field, HTTPD_HEAD_MAX);
	buf_addf(&field, "proxy-authorization: %s", scheme);
	base64_encode(pair, len, &field);
	const char *const all[] = {field.data, NULL};
	head_of("/", all, &head);
	take(&head, &proof);
	assert_int_equal(head.headers.n, 0);
	if (proof.field_is_right != is_right)
		fail_msg("%s%s: %d", scheme, pair, proof.field_is_right);
}

static void test_passwords(void **state)
{
	static const char *const wrong[] = {"", ":", TOKEN, "dlrun:", "dlrun:" TOKEN "0",
		"dlrun::" TOKEN, "dlrun: " TOKEN, TOKEN ":", "dlrun:0123456789abcdef"};
	static const char *const schemes[] = {"Bearer ", "Digest ", "Basic", "", "basic, "};
	static const char *const right[] = {"dlrun:" TOKEN, ":" TOKEN, "any body:" TOKEN};
	static const char nul[] = "dlrun:" TOKEN "\0x";

	for (size_t i = 0; i < ARRAY_LEN(right); i++) {
		expect_password("Basic ", right[i], strlen(right[i]), true);
		expect_password("BASIC   ", right[i], strlen(right[i]), true);
	}
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		expect_password("Basic ", wrong[i], strlen(wrong[i]), false);
	for (size_t i = 0; i < ARRAY_LEN(schemes); i++)
		expect_password(schemes[i], right[0], strlen(right[0]), false);
	expect_password("Basic ", nul, sizeof(nul) - 1, false);
	expect_password("Basic %%%", right[0], strlen(right[0]), false);
	/* A cookie opens one name, a proxy all of them. */
	AUTO_FREE char *own = filled("dlrun:OWN");
	expect_password("Basic ", own, strlen(own), false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tokens),
		cmocka_unit_test(test_targets),
		cmocka_unit_test(test_cookies),
		cmocka_unit_test(test_many_cookies),
		cmocka_unit_test(test_passwords),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
