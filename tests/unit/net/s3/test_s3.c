/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "tests/unit/net/s3/s3fix.h"

static atomic_int n_seen;

static void test_address(void **state)
{
	static const char *const bad[] = {"", "s3:/b", "s3://", "s3://b", "s3://bucket//x",
		"http://bucket/x", "s3://buc ket/x", "s3://.bucket", "s3://bucket/\xff"};
	AUTO_S3_ADDRESS struct s3_address address = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(s3_address_parse("s3://bucket/a/b c//", &address, &err), 0);
	assert_string_equal(address.bucket, "bucket");
	assert_string_equal(address.key, "a/b c");
	s3_address_done(&address);
	assert_int_equal(s3_address_parse("s3://bucket", &address, &err), 0);
	assert_string_equal(address.key, "");
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct s3_address none = {0};

		assert_true(s3_address_parse(bad[i], &none, &err) < 0);
		assert_int_equal(err.id, E_S3_CONFIG);
	}
}

/*
 * Refusals
 */

static bool respond_busy(struct fix_conn *conn)
{
	switch (atomic_fetch_add(&n_seen, 1)) {
	case 0:
		return s3_fix_refuse(conn, "503 Slow Down", "SlowDown");
	case 1:
		return s3_fix_refuse(conn, "500 Internal", "InternalError");
	case 2:
		fix_reset(conn);
		return false;
	default:
		return s3_fix_respond(conn, "200 OK", "12345");
	}
}

static void test_busy(void **state)
{
	struct s3_fix fix;
	const struct s3_get get = {.bucket = "bucket",
		.key = "a/b",
		.data = s3_fix_data,
		.done = s3_fix_done,
		.ctx = &fix};

	atomic_store(&n_seen, 0);
	s3_fix_start(&fix, respond_busy);
	s3_get(fix.s3, &get);
	s3_fix_run(&fix, E_NONE);
	assert_int_equal(fix.data.len, 5);
	assert_int_equal(atomic_load(&n_seen), 4);
	s3_fix_stop(&fix);
}

static bool respond_always_busy(struct fix_conn *conn)
{
	atomic_fetch_add(&n_seen, 1);
	return s3_fix_refuse(conn, "429 Too Many", "Throttling");
}

static void test_always_busy(void **state)
{
	struct s3_fix fix;

	atomic_store(&n_seen, 0);
	s3_fix_start(&fix, respond_always_busy);
	s3_delete(fix.s3, "bucket", "k", s3_fix_done, &fix);
	s3_fix_run(&fix, E_S3_BUSY);
	assert_int_equal(atomic_load(&n_seen), S3_TRIES);
	s3_fix_stop(&fix);
}

static bool respond_skewed(struct fix_conn *conn)
{
	/* The second one has the year of the server. */
	if (strstr(conn->head, "x-amz-date: 2031"))
		return s3_fix_respond(conn, "200 OK", "");
	return s3_fix_refuse(conn, "403 Forbidden\r\ndate: Thu, 02 Jan 2031 03:04:05 GMT",
		"RequestTimeTooSkewed");
}

static void test_skewed(void **state)
{
	struct s3_fix fix;
	struct s3_put put = {.bucket = "bucket",
		.key = "k",
		.data = "x",
		.size = 1,
		.done = s3_fix_done,
		.ctx = &fix};

	s3_fix_start(&fix, respond_skewed);
	s3_put(fix.s3, &put);
	s3_fix_run(&fix, E_NONE);
	/* The correction stays. */
	s3_put(fix.s3, &put);
	s3_fix_run(&fix, E_NONE);
	assert_int_equal(atomic_load(&fix.server->n_requests), 3);
	s3_fix_stop(&fix);
}

static bool respond_elsewhere(struct fix_conn *conn)
{
	if (strstr(conn->head, "/eu-north-1/s3/aws4_request"))
		return s3_fix_respond(conn, "200 OK", "");
	if (strstr(conn->path, "other"))
		return s3_fix_respond(conn, "400 Bad",
			"<Error><Code>AuthorizationHeaderMalformed</Code>"
			"<Region>eu-north-1</Region></Error>");
	return s3_fix_refuse(
		conn, "301 Moved\r\nx-amz-bucket-region: eu-north-1", "PermanentRedirect");
}

static void test_elsewhere(void **state)
{
	struct s3_fix fix;

	s3_fix_start(&fix, respond_elsewhere);
	s3_delete(fix.s3, "bucket", "k", s3_fix_done, &fix);
	s3_fix_run(&fix, E_NONE);
	s3_delete(fix.s3, "other", "k", s3_fix_done, &fix);
	s3_fix_run(&fix, E_NONE);
	s3_delete(fix.s3, "bucket", "k", s3_fix_done, &fix);
	s3_fix_run(&fix, E_NONE);
	assert_int_equal(atomic_load(&fix.server->n_requests), 5);
	s3_fix_stop(&fix);
}

static bool respond_lost_region(struct fix_conn *conn)
{
	return s3_fix_refuse(
		conn, "301 Moved\r\nx-amz-bucket-region: evil.example/", "PermanentRedirect");
}

static void test_bad_region(void **state)
{
	struct s3_fix fix;

	s3_fix_start(&fix, respond_lost_region);
	s3_delete(fix.s3, "bucket", "k", s3_fix_done, &fix);
	s3_fix_run(&fix, E_S3_RESPONSE);
	assert_int_equal(atomic_load(&fix.server->n_requests), 1);
	s3_fix_stop(&fix);
}

static bool respond_refused(struct fix_conn *conn)
{
	if (strstr(conn->path, "gone"))
		return s3_fix_refuse(conn, "404 Not Found", "NoSuchBucket");
	return s3_fix_refuse(conn, "403 Forbidden",
		strstr(conn->path, "denied") ? "AccessDenied" : "SignatureDoesNotMatch");
}

static void test_refused(void **state)
{
	struct s3_fix fix;

	s3_fix_start(&fix, respond_refused);
	s3_delete(fix.s3, "bucket", "k", s3_fix_done, &fix);
	s3_fix_run(&fix, E_S3_AUTH);
	assert_non_null(strstr(fix.error.message, "SignatureDoesNotMatch: why"));
	s3_delete(fix.s3, "bucket", "denied", s3_fix_done, &fix);
	s3_fix_run(&fix, E_S3_DENIED);
	s3_list(fix.s3, "gone", "", 10, &fix.objects, s3_fix_done, &fix);
	s3_fix_run(&fix, E_S3_NOT_FOUND);
	assert_string_equal(fix.error.hint, "aws s3 mb s3://gone");
	s3_delete(fix.s3, "gone", "k", s3_fix_done, &fix);
	s3_fix_run(&fix, E_S3_NOT_FOUND);
	s3_fix_stop(&fix);
}

/*
 * Lists and gets
 */

static bool respond_pages(struct fix_conn *conn)
{
	bool is_second = strstr(conn->path, "continuation-token=t%2B") != NULL;

	return s3_fix_respond(conn, "200 OK",
		is_second
			? "<ListBucketResult><Contents><Key>p q/b</Key></Contents></ListBucketResult>"
			: "<ListBucketResult><Contents><Key>p q/a</Key></Contents>"
			  "<NextContinuationToken>t+</NextContinuationToken></ListBucketResult>");
}

static void test_pages(void **state)
{
	struct s3_fix fix;

	s3_fix_start(&fix, respond_pages);
	s3_list(fix.s3, "bucket", "p q/", 10, &fix.objects, s3_fix_done, &fix);
	s3_fix_run(&fix, E_NONE);
	assert_int_equal(fix.objects.n, 2);
	assert_non_null(strstr(fix.server->heads.v[1], "prefix=p%20q%2F"));
	s3_objects_done(&fix.objects);
	s3_list(fix.s3, "bucket", "", 1, &fix.objects, s3_fix_done, &fix);
	s3_fix_run(&fix, E_DATA_LIMIT);
	assert_int_equal(fix.objects.n, 1);
	s3_fix_stop(&fix);
}

static bool respond_bad_pages(struct fix_conn *conn)
{
	if (strstr(conn->path, "/empty"))
		return s3_fix_respond(conn, "200 OK",
			"<ListBucketResult><NextContinuationToken>t</NextContinuationToken>"
			"</ListBucketResult>");
	return s3_fix_respond(conn, "200 OK",
		"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>");
}

/* Objects that were not requested, and pages without end. */
static void test_bad_pages(void **state)
{
	struct s3_fix fix;

	s3_fix_start(&fix, respond_bad_pages);
	s3_list(fix.s3, "bucket", "a long prefix/", 10, &fix.objects, s3_fix_done, &fix);
	s3_fix_run(&fix, E_S3_RESPONSE);
	assert_non_null(strstr(fix.error.message, "lists a, which was not requested"));
	s3_objects_done(&fix.objects);
	s3_list(fix.s3, "empty", "", 10, &fix.objects, s3_fix_done, &fix);
	s3_fix_run(&fix, E_S3_RESPONSE);
	s3_fix_stop(&fix);
}

enum { WHOLE = 100000, CUT = 7000 };

/* The bytes from the range on, cut behind some of them. */
static bool respond_cut(struct fix_conn *conn)
{
	const char *range = fix_header(conn, "\r\nrange: bytes=");
	size_t from = range ? strtoul(range, NULL, 10) : 0;
	AUTO_FREE char *body = mem_alloc(1, WHOLE);

	for (size_t i = 0; i < WHOLE; i++)
		body[i] = (char)(i * 31 / 7);
	if (from >= WHOLE)
		return s3_fix_refuse(conn, "416 Range", "InvalidRange");
	AUTO_FREE char *head = mem_printf("HTTP/1.1 %s\r\netag: \"e\"\r\ncontent-range: bytes "
					  "%zu-%u/%u\r\ncontent-length: %zu\r\n\r\n",
		range ? "206 Partial" : "200 OK", from, WHOLE - 1, WHOLE, WHOLE - from);
	fix_print(conn, head);
	size_t n = WHOLE - from < CUT ? WHOLE - from : CUT;
	return fix_send(conn, body + from, n) && n == WHOLE - from;
}

static void assert_whole(const struct s3_fix *fix, size_t from)
{
	assert_int_equal(fix->data.len, WHOLE - from);
	for (size_t i = from; i < WHOLE; i++)
		assert_int_equal(fix->data.data[i - from], (char)(i * 31 / 7));
}

static void test_cut(void **state)
{
	struct s3_fix fix;
	struct s3_get get = {.bucket = "bucket",
		.key = "k",
		.etag = "\"e\"",
		.data = s3_fix_data,
		.done = s3_fix_done,
		.ctx = &fix};

	s3_fix_start(&fix, respond_cut);
	s3_get(fix.s3, &get);
	s3_fix_run(&fix, E_NONE);
	assert_whole(&fix, 0);
	buf_reset(&fix.data);
	get.offset = 95000;
	s3_get(fix.s3, &get);
	s3_fix_run(&fix, E_NONE);
	assert_whole(&fix, 95000);
	/* Behind the end there is nothing, and without an ETag nothing to go on with. */
	buf_reset(&fix.data);
	get.offset = WHOLE;
	s3_get(fix.s3, &get);
	s3_fix_run(&fix, E_NONE);
	assert_int_equal(fix.data.len, 0);
	get.offset = 0;
	get.etag = NULL;
	s3_get(fix.s3, &get);
	s3_fix_run(&fix, E_HTTP_CLOSED);
	s3_fix_stop(&fix);
}

static struct s3_call *cancelled;

static int cancel_on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	s3_cancel(cancelled);
	return 0;
}

static void test_cancel(void **state)
{
	struct s3_fix fix;
	struct s3_get get = {.bucket = "bucket",
		.key = "k",
		.data = cancel_on_data,
		.done = s3_fix_done,
		.ctx = &fix};
	AUTO_ERR struct err err = {0};

	s3_fix_start(&fix, respond_cut);
	cancelled = s3_get(fix.s3, &get);
	assert_int_equal(loop_run(fix.loop, &err), 0);
	assert_int_equal(fix.n_done, 0);
	s3_cancel(s3_delete(fix.s3, "bucket", "k", s3_fix_done, &fix));
	s3_delete(fix.s3, "bucket", "k", s3_fix_done, &fix);
	s3_fix_stop(&fix);
	assert_int_equal(fix.n_done, 0);
}

/*
 * Puts in parts
 */

static atomic_int n_parts, n_begun, n_complete, fail_part;
static char nonce[64];

static bool respond_upload(struct fix_conn *conn)
{
	const char *part = strstr(conn->path, "partNumber="), *meta;
	AUTO_FREE char *body = fix_body(conn);

	if (!body)
		return false;
	if (strstr(conn->path, "uploads=")) {
		atomic_fetch_add(&n_begun, 1);
		meta = fix_header(conn, "\r\nx-amz-meta-dlrun-upload: ");
		memcpy(nonce, meta, 32);
		return s3_fix_respond(conn, "200 OK",
			"<InitiateMultipartUploadResult><UploadId>u&amp;1</UploadId>"
			"</InitiateMultipartUploadResult>");
	}
	if (part) {
		int n = (int)strtol(part + 11, NULL, 10);

		if (n == atomic_load(&fail_part))
			return s3_fix_refuse(conn, "403 Forbidden", "AccessDenied");
		if (!strstr(conn->path, "uploadId=u%261"))
			return s3_fix_refuse(conn, "404 Not Found", "NoSuchUpload");
		atomic_fetch_add(&n_parts, 1);
		return s3_fix_respond(conn, "200 OK\r\netag: \"p\"", "");
	}
	if (strcmp(conn->method, "HEAD") == 0) {
		AUTO_FREE char *head = mem_printf("200 OK\r\nx-amz-meta-dlrun-upload: %s", nonce);
		return s3_fix_respond(conn, head, "123");
	}
	/* The response to the first one is lost; it has been done. */
	if (atomic_fetch_add(&n_complete, 1) == 0) {
		fix_reset(conn);
		return false;
	}
	return s3_fix_refuse(conn, "404 Not Found", "NoSuchUpload");
}

static void test_upload(void **state)
{
	struct s3_fix fix;
	size_t size = 60 << 20;
	AUTO_FREE char *data = mem_alloc(1, size);
	struct s3_put put = {.bucket = "bucket",
		.key = "big",
		.data = data,
		.size = size,
		.noted = s3_fix_noted,
		.done = s3_fix_done,
		.ctx = &fix};

	memset(nonce, 0, sizeof(nonce));
	atomic_store(&fail_part, 6);
	s3_fix_start(&fix, respond_upload);
	s3_put(fix.s3, &put);
	s3_fix_run(&fix, E_S3_DENIED);
	assert_non_null(fix.notes);
	assert_null(strstr(fix.notes, "canary"));
	/* Gone on with; of the parts only the one that has changed goes again. */
	int there = atomic_load(&n_parts);
	AUTO_FREE char *notes = mem_strdup(fix.notes);
	put.resume = notes;
	atomic_store(&fail_part, 0);
	s3_put(fix.s3, &put);
	s3_fix_run(&fix, E_NONE);
	assert_int_equal(atomic_load(&n_begun), 1);
	assert_true(there >= 1 && atomic_load(&n_parts) >= 8);
	assert_true(atomic_load(&n_parts) <= 8 + 4);
	assert_int_equal(atomic_load(&n_complete), 2);
	/* The server has forgotten it: all of it goes. */
	char *id = strstr(notes, "u&1");
	id[0] = 'v';
	int before = atomic_load(&n_parts);
	data[size - 1] = 1;
	s3_put(fix.s3, &put);
	s3_fix_run(&fix, E_NONE);
	assert_int_equal(atomic_load(&n_begun), 2);
	assert_int_equal(atomic_load(&n_parts) - before, 8);
	/* The same where all of its parts had arrived, and another object is there by now. */
	AUTO_FREE char *all = mem_strdup(fix.notes);
	char *old = strstr(all, nonce);
	assert_non_null(old);
	old[0] = old[0] == '0' ? '1' : '0';
	put.resume = all;
	before = atomic_load(&n_parts);
	s3_put(fix.s3, &put);
	s3_fix_run(&fix, E_NONE);
	assert_int_equal(atomic_load(&n_begun), 3);
	assert_int_equal(atomic_load(&n_parts) - before, 8);
	s3_fix_stop(&fix);
}

/* Whether the completion was done cannot be seen. HEAD says only 403: the reason is fetched. */
static bool respond_hidden(struct fix_conn *conn)
{
	AUTO_FREE char *body = fix_body(conn);

	if (!body)
		return false;
	if (strstr(conn->path, "uploads="))
		return s3_fix_respond(conn, "200 OK",
			"<InitiateMultipartUploadResult><UploadId>u</UploadId>"
			"</InitiateMultipartUploadResult>");
	if (strstr(conn->path, "partNumber="))
		return s3_fix_respond(conn, "200 OK\r\netag: \"p\"", "");
	if (strcmp(conn->method, "POST") == 0)
		return s3_fix_refuse(conn, "404 Not Found", "NoSuchUpload");
	return s3_fix_refuse(conn, "403 Forbidden", "AccessDenied");
}

static void test_hidden(void **state)
{
	struct s3_fix fix;
	AUTO_FREE char *data = mem_alloc(1, S3_SINGLE_MAX + 1);
	const struct s3_put put = {.bucket = "bucket",
		.key = "big",
		.data = data,
		.size = S3_SINGLE_MAX + 1,
		.done = s3_fix_done,
		.ctx = &fix};

	s3_fix_start(&fix, respond_hidden);
	s3_put(fix.s3, &put);
	s3_fix_run(&fix, E_S3_DENIED);
	assert_non_null(strstr(fix.error.message, "AccessDenied: why"));
	s3_fix_stop(&fix);
}

/* Of parts of other objects; the response to one that failed on the way is a 200, too. */
static bool respond_copy(struct fix_conn *conn)
{
	const char *source = fix_header(conn, "\r\nx-amz-copy-source: ");
	const char *range = fix_header(conn, "\r\nx-amz-copy-source-range: ");
	AUTO_FREE char *body = fix_body(conn);

	if (!body)
		return false;
	if (strstr(conn->path, "uploads="))
		return s3_fix_respond(conn, "200 OK",
			"<InitiateMultipartUploadResult><UploadId>u</UploadId>"
			"</InitiateMultipartUploadResult>");
	if (strstr(conn->path, "partNumber=1&")) {
		assert_true(source && str_starts(source, "/bucket/a%20b/c\r\n"));
		assert_true(range && str_starts(range, "bytes=100-5242979\r\n"));
		return s3_fix_respond(
			conn, "200 OK", "<CopyPartResult><ETag>\"c\"</ETag></CopyPartResult>");
	}
	if (strstr(conn->path, "partNumber=2&")) {
		assert_null(source);
		return s3_fix_respond(conn, "200 OK\r\netag: \"s\"", "");
	}
	if (strstr(conn->path, "uploadId="))
		return s3_fix_respond(conn, "200 OK",
			"<CompleteMultipartUploadResult><ETag>w</ETag></CompleteMultipartUploadResult>");
	assert_true(source && str_starts(source, "/bucket/a%20b/c\r\n"));
	return strstr(conn->path, "/bad") ? s3_fix_refuse(conn, "200 OK", "AccessDenied")
					  : s3_fix_respond(conn, "200 OK", "<CopyObjectResult/>");
}

static void test_copies(void **state)
{
	struct s3_fix fix;
	const struct s3_piece pieces[] = {{"a b/c", 100, 5 << 20}, {NULL, 0, 3}};
	AUTO_FREE char *data = mem_alloc(1, (5 << 20) + 3);
	const struct s3_put put = {.bucket = "bucket",
		.key = "k",
		.data = data,
		.size = (5 << 20) + 3,
		.pieces = pieces,
		.n_pieces = ARRAY_LEN(pieces),
		.done = s3_fix_done,
		.ctx = &fix};

	s3_fix_start(&fix, respond_copy);
	s3_copy(fix.s3, "bucket", "k", "a b/c", s3_fix_done, &fix);
	s3_fix_run(&fix, E_NONE);
	s3_copy(fix.s3, "bucket", "bad", "a b/c", s3_fix_done, &fix);
	s3_fix_run(&fix, E_S3_DENIED);
	s3_put(fix.s3, &put);
	s3_fix_run(&fix, E_NONE);
	s3_fix_stop(&fix);
}

static const char *copy_refusal;

/* Copies nothing; part 2 of the whole fails once. */
static bool respond_no_copy(struct fix_conn *conn)
{
	const char *source = fix_header(conn, "\r\nx-amz-copy-source: ");
	const char *part = strstr(conn->path, "partNumber=");
	AUTO_FREE char *body = fix_body(conn);

	if (!body)
		return false;
	if (strstr(conn->path, "uploads=")) {
		atomic_fetch_add(&n_begun, 1);
		return s3_fix_respond(conn, "200 OK",
			"<InitiateMultipartUploadResult><UploadId>u</UploadId>"
			"</InitiateMultipartUploadResult>");
	}
	if (source && !copy_refusal)
		return s3_fix_respond(conn, "200 OK", "<CopyPartResult/>");
	if (source)
		return s3_fix_refuse(conn, "501 Not Implemented", copy_refusal);
	if (part && strtol(part + 11, NULL, 10) == atomic_load(&fail_part))
		return s3_fix_refuse(conn, "403 Forbidden", "AccessDenied");
	if (part) {
		atomic_fetch_add(&n_parts, 1);
		return s3_fix_respond(conn, "200 OK\r\netag: \"s\"", "");
	}
	return s3_fix_respond(conn, "200 OK",
		"<CompleteMultipartUploadResult><ETag>w</ETag></CompleteMultipartUploadResult>");
}

/* All is sent, in parts that a put which did not end goes on with. */
static void test_copies_refused(void **state)
{
	static const char *const refusals[] = {
		NULL, "NotImplemented", "NoSuchKey", "InvalidRequest"};
	struct s3_fix fix;
	const struct s3_piece pieces[] = {{"base", 0, 10 << 20}, {"base", 10 << 20, 10 << 20}};
	AUTO_FREE char *data = mem_alloc(1, 20 << 20);
	bool is_whole;
	struct s3_put put = {.bucket = "bucket",
		.key = "k",
		.data = data,
		.size = 20 << 20,
		.pieces = pieces,
		.n_pieces = ARRAY_LEN(pieces),
		.ret_is_whole = &is_whole,
		.noted = s3_fix_noted,
		.done = s3_fix_done,
		.ctx = &fix};

	s3_fix_start(&fix, respond_no_copy);
	atomic_store(&fail_part, 0);
	for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
		copy_refusal = refusals[i];
		is_whole = false;
		atomic_store(&n_begun, 0);
		atomic_store(&n_parts, 0);
		s3_put(fix.s3, &put);
		s3_fix_run(&fix, E_NONE);
		assert_true(is_whole);
		assert_int_equal(atomic_load(&n_begun), 2);
		assert_int_equal(atomic_load(&n_parts), 3);
	}
	atomic_store(&fail_part, 3);
	s3_put(fix.s3, &put);
	s3_fix_run(&fix, E_S3_DENIED);
	AUTO_FREE char *notes = mem_strdup(fix.notes);
	put.resume = notes;
	is_whole = false;
	atomic_store(&fail_part, 0);
	atomic_store(&n_begun, 0);
	s3_put(fix.s3, &put);
	s3_fix_run(&fix, E_NONE);
	assert_true(is_whole);
	assert_int_equal(atomic_load(&n_begun), 0);
	s3_fix_stop(&fix);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_address),
		cmocka_unit_test(test_busy),
		cmocka_unit_test(test_always_busy),
		cmocka_unit_test(test_skewed),
		cmocka_unit_test(test_elsewhere),
		cmocka_unit_test(test_bad_region),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_pages),
		cmocka_unit_test(test_bad_pages),
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_upload),
		cmocka_unit_test(test_hidden),
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_copies_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
