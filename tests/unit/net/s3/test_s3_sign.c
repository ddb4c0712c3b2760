/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/util/auto.h"
#include "net/s3/s3_sign.h"

/* The examples of the S3 API reference, "Signature Calculations for the Authorization Header". */
static const int64_t may_24_2013_ms = INT64_C(1369353600000);

static void assert_signature(const char *method, const char *path, const char *query,
	const char *header, const char *more, const char *body, const char *names, const char *want)
{
	struct s3_keys keys = {.id = (char *)"AKIAIOSFODNN7EXAMPLE",
		.secret = (char *)"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
	AUTO_STRV struct strv in = {0}, params = {0}, out = {0};
	AUTO_FREE char *authorization = NULL;
	char payload[SHA256_HEX_SIZE];

	if (header)
		strv_add(&in, header);
	if (more)
		strv_add(&in, more);
	for (const char *at = query; *at;) {
		size_t len = strcspn(at, "&");
		strv_addf(&params, "%.*s", (int)len, at);
		at += len + (at[len] == '&');
	}
	AUTO_FREE char *text = s3_query(&params);
	s3_payload(body, strlen(body), payload);
	struct s3_sign sign = {.method = method,
		.host = "examplebucket.s3.amazonaws.com",
		.path = path,
		.query = text,
		.headers = &in,
		.region = "us-east-1",
		.service = "s3",
		.payload = payload,
		.wall_ms = may_24_2013_ms,
		.keys = &keys};
	s3_sign(&sign, &out, &authorization);
	AUTO_FREE char *whole = mem_printf("AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/"
					   "20130524/us-east-1/s3/aws4_request,SignedHeaders=%s,"
					   "Signature=%s",
		names, want);
	assert_string_equal(authorization, whole);
	assert_int_equal(strv_find(&out, "x-amz-date: 20130524T000000Z") >= 0, 1);
}

static void test_published(void **state)
{
	assert_signature("GET", "/test.txt", "", "range: bytes=0-9", NULL, "",
		"host;range;x-amz-content-sha256;x-amz-date",
		"f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
	assert_signature("PUT", "/test%24file.text", "", "x-amz-storage-class: REDUCED_REDUNDANCY",
		"date: Fri, 24 May 2013 00:00:00 GMT", "Welcome to Amazon S3.",
		"date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
		"98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
	assert_signature("GET", "/", "lifecycle", NULL, NULL, "",
		"host;x-amz-content-sha256;x-amz-date",
		"fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
	assert_signature("GET", "/", "prefix=J&max-keys=2", NULL, NULL, "",
		"host;x-amz-content-sha256;x-amz-date",
		"34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

static void test_query(void **state)
{
	AUTO_STRV struct strv params = {0};

	AUTO_FREE char *empty = s3_query(&params);
	assert_string_equal(empty, "");
	strv_add(&params, "prefix=a b/ü+=&");
	strv_add(&params, "list-type=2");
	strv_add(&params, "list=1");
	strv_add(&params, "uploads");
	AUTO_FREE char *query = s3_query(&params);
	assert_string_equal(query, "list=1&list-type=2&prefix=a%20b%2F%C3%BC%2B%3D%26&uploads=");
}

static void test_token(void **state)
{
	struct s3_keys keys = {
		.id = (char *)"ID", .secret = (char *)"SECRET", .token = (char *)"SESSION"};
	AUTO_STRV struct strv out = {0};
	AUTO_FREE char *authorization = NULL;
	struct s3_sign sign = {.method = "GET",
		.host = "h",
		.path = "/",
		.query = "",
		.region = "r",
		.service = "s3",
		.payload = "",
		.keys = &keys};

	s3_sign(&sign, &out, &authorization);
	assert_true(strv_find(&out, "x-amz-security-token: SESSION") >= 0);
	assert_non_null(strstr(authorization, ";x-amz-security-token,"));
	assert_null(strstr(authorization, "SECRET"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_published),
		cmocka_unit_test(test_query),
		cmocka_unit_test(test_token),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
