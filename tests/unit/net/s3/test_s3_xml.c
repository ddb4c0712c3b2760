/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/util/auto.h"
#include "net/s3/s3_xml.h"

static void test_error(void **state)
{
	static const char text[] =
		"<?xml version=\"1.0\"?>\n<!-- <Code>no</Code> --><Error a='>'><Empty/><Code>NoSuchKey"
		"</Code><Message>a &lt;b&gt; &amp; &#x41;&#66;</Message><In><Code>x</Code></In></Error>";
	AUTO_FREE char *code = s3_xml_find(text, sizeof(text) - 1, "Error/Code");
	AUTO_FREE char *message = s3_xml_find(text, sizeof(text) - 1, "Error/Message");
	AUTO_FREE char *empty = s3_xml_find(text, sizeof(text) - 1, "Error/Empty");

	assert_string_equal(code, "NoSuchKey");
	assert_string_equal(message, "a <b> & AB");
	assert_string_equal(empty, "");
	assert_null(s3_xml_find(text, sizeof(text) - 1, "Error/Region"));
	assert_null(s3_xml_find(text, sizeof(text) - 1, "*"));
	AUTO_FREE char *same = s3_xml_find(text, sizeof(text) - 1, "*/Code");
	assert_string_equal(same, code);
}

static const char page[] =
	"<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
	"<Name>b</Name><Prefix>p</Prefix><KeyCount>2</KeyCount><IsTruncated>true</IsTruncated>"
	"<Contents><Key>a%2Bb/%C3%BC+x%0A</Key><LastModified>2026-08-01T12:00:00.000Z</LastModified>"
	"<ETag>&quot;e1&quot;</ETag><Size>5</Size><Owner><ID>o</ID></Owner></Contents>"
	"<Contents><Key>c</Key><Size>18446744073709551</Size></Contents>"
	"<EncodingType>url</EncodingType><NextContinuationToken>t+/=</NextContinuationToken>"
	"</ListBucketResult>";

static void test_page(void **state)
{
	AUTO_S3_OBJECTS struct s3_objects objects = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *token = NULL;

	assert_int_equal(s3_xml_page(page, sizeof(page) - 1, &objects, &token, &err), 0);
	assert_int_equal(objects.n, 2);
	assert_string_equal(objects.v[0].key, "a+b/ü x\n");
	assert_string_equal(objects.v[0].etag, "\"e1\"");
	assert_int_equal(objects.v[0].size, 5);
	assert_int_equal(objects.v[0].mtime_ms, INT64_C(1785585600000));
	assert_string_equal(objects.v[1].key, "c");
	assert_int_equal(objects.v[1].size, UINT64_C(18446744073709551));
	assert_int_equal(objects.v[1].mtime_ms, -1);
	assert_string_equal(token, "t+/=");
}

static void assert_refused(const char *text, size_t len)
{
	AUTO_S3_OBJECTS struct s3_objects objects = {0};
	AUTO_ERR struct err err = {0};
	char *token = NULL;

	assert_true(s3_xml_page(text, len, &objects, &token, &err) < 0);
	assert_int_equal(err.id, E_S3_RESPONSE);
	assert_null(token);
}

static void test_refused(void **state)
{
	static const char coded[] =
		"<ListBucketResult><Contents><Key>a%00</Key></Contents><EncodingType>url</EncodingType>"
		"</ListBucketResult>";
	static const char *const bad[] = {"", "<html></html>", "no",
		"<!DOCTYPE a><ListBucketResult/>", "<ListBucketResult>&evil;</ListBucketResult>",
		"<ListBucketResult></Other>", "<", "<a", "</a>",
		"<ListBucketResult>&#0;</ListBucketResult>", coded,
		"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
		"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken/>"
		"</ListBucketResult>",
		"<a><a><a><a><a><a><a><a><a><a><a><a><a>"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_refused(bad[i], strlen(bad[i]));
	/* Cut anywhere it is no page. */
	for (size_t len = 0; len < sizeof(page) - 1; len++)
		assert_refused(page, len);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_error),
		cmocka_unit_test(test_page),
		cmocka_unit_test(test_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
