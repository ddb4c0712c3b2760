/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "app/proxy/proxy_name.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "net/httpd/httpd_token.h"

static void expect_role(
	const char *host, enum proxy_kind kind, const char *run, const char *role, uint16_t port)
{
	struct proxy_name name = {0};
	AUTO_BUF struct buf out;

	assert_int_equal(proxy_name_parse(host, &name, NULL), 0);
	assert_int_equal(name.kind, kind);
	assert_string_equal(name.run, run);
	assert_string_equal(name.role, role);
	assert_int_equal(name.rank, 0);
	assert_int_equal(name.port, port);
	buf_init(&out, 1000);
	proxy_name_add(&name, &out);
	assert_string_equal(out.data, host);
}

static void expect(const char *host, enum proxy_kind kind, const char *run, int rank, uint16_t port)
{
	struct proxy_name name = {0};

	assert_int_equal(proxy_name_parse(host, &name, NULL), 0);
	assert_int_equal(name.kind, kind);
	assert_string_equal(name.run, run);
	assert_int_equal(name.rank, rank);
	assert_int_equal(name.port, port);
}

static void test_names(void **state)
{
	expect("localhost", PROXY_INDEX, "", 0, 0);
	expect("127.0.0.1", PROXY_INDEX, "", 0, 0);
	expect("::1", PROXY_INDEX, "", 0, 0);
	expect("a-22222.localhost", PROXY_RUN, "a-22222", 0, 0);
	expect("a-2.localhost", PROXY_RUN, "a-2", 0, 0);
	expect("6006.a-22222.localhost", PROXY_PORT, "a-22222", 0, 6006);
	expect("65535.r12.a-22222.localhost", PROXY_PORT, "a-22222", 12, 65535);
	expect("6006.r0.a-22222.localhost", PROXY_PORT, "a-22222", 0, 6006);
	expect("r1.a-22222.localhost", PROXY_RUN, "a-22222", 1, 0);
	expect("files.a-22222.localhost", PROXY_FILES, "a-22222", 0, 0);
	expect_role("6006.actors.a-22222.localhost", PROXY_PORT, "a-22222", "actors", 6006);
	expect_role("6006.actors-3.a-22222.localhost", PROXY_PORT, "a-22222", "actors-3", 6006);
	expect_role("learner.a-22222.localhost", PROXY_RUN, "a-22222", "learner", 0);
	expect_role("80.r01.a-22222.localhost", PROXY_PORT, "a-22222", "r01", 80);
	/* What looks like a rank or a port may be the beginning of an id. */
	expect("r1.localhost", PROXY_RUN, "r1", 0, 0);
	expect("80.r1.localhost", PROXY_PORT, "r1", 0, 80);
	expect("80.r1.files.localhost", PROXY_PORT, "files", 1, 80);
}

static void test_what_is_none(void **state)
{
	static const char *const bad[] = {"", ".", "example.com", "localhost.", ".localhost",
		"localhost.localhost.", "a_b.localhost", "A-22222.localhost", "0.a-22222.localhost",
		"65536.a-22222.localhost", "06.a-22222.localhost", "+6.a-22222.localhost",
		"-1.a-22222.localhost", " 6.a-22222.localhost", "6 .a-22222.localhost",
		"6006..a-22222.localhost", "6006.1r.a-22222.localhost", "6006.-x.a-22222.localhost",
		"6006.a_b.a-22222.localhost", "x.actors.a-22222.localhost",
		"6006.a2345678901234567890-1234567.a-22222.localhost", "files.r1.a-22222.localhost",
		"1.6006.r1.a-22222.localhost", "6006.a-22222", "6006.a-22222.localhost.example.com",
		"6006.a-22222.localhos",
		"::", "12345678901234567890123456789012345678901234567.localhost"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct proxy_name name = {.kind = PROXY_FILES};
		AUTO_ERR struct err err = {0};

		assert_int_equal(proxy_name_parse(bad[i], &name, &err), -ERR_USAGE);
		assert_string_equal(err.hint,
			"http://6006.demo-3k2f9.localhost/ is port 6006 of demo-3k2f9, 6006.r1.demo-3k2f9.localhost that of its rank 1");
		assert_int_equal(name.kind, PROXY_FILES);
	}
}

static void test_long_names(void **state)
{
	char host[300];
	struct proxy_name name;

	for (size_t len = 1; len < sizeof(host); len++) {
		memset(host, 'a', len);
		host[len] = '\0';
		assert_true(proxy_name_parse(host, &name, NULL) < 0);
	}
	memset(host, 'a', RUN_ID_SIZE - 1);
	memcpy(host + RUN_ID_SIZE - 1, ".localhost", sizeof(".localhost"));
	assert_int_equal(proxy_name_parse(host, &name, NULL), 0);
	assert_int_equal(strlen(name.run), RUN_ID_SIZE - 1);
}

static void expect_url(const struct proxy_name *name, const char *url)
{
	const struct proxy_here here = {.port = 8470};
	AUTO_BUF struct buf out;

	buf_init(&out, 1000);
	proxy_url_add(name, &here, "/", &out);
	assert_string_equal(out.data, url);
}

static void test_urls(void **state)
{
	expect_url(&(struct proxy_name){.kind = PROXY_INDEX}, "http://localhost:8470/");
	expect_url(&(struct proxy_name){.kind = PROXY_PORT, .run = "a-22222", .port = 6006},
		"http://6006.a-22222.localhost:8470/");
	expect_url(
		&(struct proxy_name){.kind = PROXY_PORT, .run = "a-22222", .port = 6006, .rank = 3},
		"http://6006.r3.a-22222.localhost:8470/");
	expect_url(&(struct proxy_name){.kind = PROXY_FILES, .run = "a-22222"},
		"http://files.a-22222.localhost:8470/");
	expect_url(&(struct proxy_name){.kind = PROXY_RUN, .run = "a-22222"},
		"http://a-22222.localhost:8470/");
}

static void test_urls_with_tokens(void **state)
{
	static const char token[] = "0123456789abcdef0123456789abcdef";
	const struct proxy_here here = {.port = 8470, .token = token};
	const struct proxy_name name = {.kind = PROXY_PORT, .run = "a-22222", .port = 6006};
	char own[HTTPD_TOKEN_SIZE];
	AUTO_BUF struct buf out;

	httpd_token_of(token, "6006.a-22222.localhost", own);
	AUTO_FREE char *url = mem_printf(
		"http://6006.a-22222.localhost:8470/a?b=c&dlrun_token=%s http://6006.a-22222."
		"localhost:8470/?dlrun_token=%s http://6006.a-22222.localhost:8470 "
		"?dlrun_token=%s",
		own, own, token);
	buf_init(&out, 1000);
	proxy_url_add(&name, &here, "/a?b=c", &out);
	buf_addc(&out, ' ');
	proxy_url_add(&name, &here, "/", &out);
	buf_addc(&out, ' ');
	proxy_origin_add(&name, &here, &out);
	buf_addc(&out, ' ');
	proxy_query_add(&here, &out);
	assert_string_equal(out.data, url);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_what_is_none),
		cmocka_unit_test(test_long_names),
		cmocka_unit_test(test_urls),
		cmocka_unit_test(test_urls_with_tokens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
