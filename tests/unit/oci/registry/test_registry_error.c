/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/registry/registry.h"
#include "oci/registry/registry_error.h"

#define JSON    "content-type: application/json; charset=utf-8"
#define HTML    "content-type: text/html"
#define TEXT    "content-type: text/plain; charset=utf-8"
#define ERRORS  "{\"errors\":["
#define END     "]}"
#define DIGEST  "sha256:0123456789012345678901234567890123456789012345678901234567890123"
#define DIGEST2 "sha256:abcdefabcdefabcdefabcdefabcdefabcdefabcdefabcdefabcdefabcdefabcd"

static void make(struct http_response *response, int status, const char *header, const void *body,
	size_t len)
{
	*response = (struct http_response){.status = status};
	if (header)
		strv_add(&response->headers, header);
	if (len == 0)
		return;
	buf_init(&response->body, 1 << 20);
	buf_add(&response->body, body, len);
}

static void drop(struct http_response *response)
{
	strv_done(&response->headers);
	buf_done(&response->body);
	url_done(&response->url);
}

static const struct registry_requested push = {.host = "reg.example.com:5000",
	.repo = "me/x",
	.doing = "uploading a layer",
	.method = "PUT"};
static const struct registry_requested pull = {.host = "reg.example.com:5000",
	.repo = "me/x",
	.doing = "looking for the base image",
	.method = "GET"};

/* The error of an answer with a text. */
static void evaluate(const struct registry_requested *requested, int status, const char *header,
	const char *body, struct err *err)
{
	struct http_response response;

	make(&response, status, header, body, strlen(body));
	int r = registry_refusal(requested, &response, err);
	assert_int_equal(r, -(int)err_info(err->id)->code);
	assert_true(err->n_evidence >= 1 && err->n_evidence <= ERR_EVIDENCE_MAX);
	drop(&response);
}

struct row {
	const struct registry_requested *requested;
	int status;
	const char *header, *body;
	enum err_id id;
	const char *message, *evidence, *hint;
};

#define HOST "reg.example.com:5000"
static const struct row rows[] = {
	{&push, 401, JSON,
		ERRORS "{\"code\":\"UNAUTHORIZED\",\"message\":\"authentication required\","
		       "\"detail\":null}" END,
		E_REGISTRY_AUTH, "registry " HOST " does not accept the login for me/x",
		"answer: 401 UNAUTHORIZED: authentication required", "docker login " HOST},
	{&push, 401, "www-authenticate: Bearer realm=\"x\",error=\"insufficient_scope\"", "",
		E_REGISTRY_DENIED, "may not push to " HOST "/me/x (uploading a layer)",
		"answer: 401, without a message", "docker login " HOST},
	{&push, 401, JSON, ERRORS "{\"code\":\"DENIED\",\"message\":\"no\"}" END, E_REGISTRY_DENIED,
		"may not push to " HOST "/me/x (uploading a layer)", "answer: 401 DENIED: no",
		"docker login " HOST},
	{&push, 403, JSON,
		ERRORS "{\"code\":\"DENIED\",\"message\":\"requested access to the resource is "
		       "denied\",\"detail\":[{\"Type\":\"repository\"}]}" END,
		E_REGISTRY_DENIED, "may not push to " HOST "/me/x (uploading a layer)",
		"answer: 403 DENIED: requested access to the resource is denied "
		"([{\"Type\":\"repository\"}])",
		"docker login " HOST},
	{&pull, 403, TEXT, "go away\n", E_REGISTRY_DENIED,
		"may not pull from " HOST "/me/x (looking for the base image)",
		"answer: 403 go away", "docker login " HOST},
	{&push, 404, JSON,
		ERRORS "{\"code\":\"NAME_UNKNOWN\",\"message\":\"repository name not known\"}" END,
		E_REGISTRY_NOT_FOUND,
		HOST "/me/x: the registry has no such repository (uploading a layer)",
		"answer: 404 NAME_UNKNOWN: repository name not known",
		"create the repository me/x at " HOST ", or name another one with --to"},
	{&pull, 404, JSON, ERRORS "{\"code\":\"MANIFEST_UNKNOWN\",\"message\":\"m\"}" END,
		E_REGISTRY_NOT_FOUND,
		HOST "/me/x: the registry has no such image (looking for the base image)",
		"answer: 404 MANIFEST_UNKNOWN: m", NULL},
	{&pull, 404, TEXT, "404 page not found\n", E_REGISTRY_NOT_FOUND,
		HOST "/me/x: the registry has nothing there (looking for the base image)",
		"answer: 404 404 page not found", NULL},
	{&push, 400, JSON, ERRORS "{\"code\":\"NAME_UNKNOWN\"}" END, E_REGISTRY_NOT_FOUND,
		HOST "/me/x: the registry has no such repository (uploading a layer)",
		"answer: 400 NAME_UNKNOWN",
		"create the repository me/x at " HOST ", or name another one with --to"},
	{&push, 413, HTML, "<html><head><title>413 Request Entity Too Large</title></head></html>",
		E_REGISTRY_FULL,
		"registry " HOST " refuses uploads of that size (uploading a layer)",
		"answer: 413, an HTML page \"413 Request Entity Too Large\"",
		"raise the limit of the proxy before it (nginx: client_max_body_size 0)"},
	{&push, 507, NULL, "", E_REGISTRY_FULL,
		"registry " HOST " has no room left in me/x (uploading a layer)",
		"answer: 507, without a message", "dlrun gc --registry"},
	{&push, 403, JSON,
		ERRORS "{\"code\":\"DENIED\",\"message\":\"adding 4 MiB exceeds the Quota\"}" END,
		E_REGISTRY_FULL, "registry " HOST " has no room left in me/x (uploading a layer)",
		"answer: 403 DENIED: adding 4 MiB exceeds the Quota", "dlrun gc --registry"},
	{&push, 500, JSON,
		ERRORS "{\"code\":\"UNKNOWN\",\"message\":\"unknown error\",\"detail\":"
		       "\"write /x: no space left on device\"}" END,
		E_REGISTRY_FULL, "registry " HOST " has no room left in me/x (uploading a layer)",
		"answer: 500 UNKNOWN: unknown error (write /x: no space left on device)",
		"dlrun gc --registry"},
	{&push, 429, JSON, ERRORS "{\"code\":\"X\",\"message\":\"quota of requests\"}" END,
		E_REGISTRY_RESPONSE, "registry " HOST " answers 429 to uploading a layer",
		"answer: 429 X: quota of requests", NULL},
	{&push, 502, HTML, "<!DOCTYPE html>\n<TITLE>Bad\n  <b>Gateway</TITLE>", E_REGISTRY_RESPONSE,
		"registry " HOST " answers 502 to uploading a layer",
		"answer: 502, an HTML page \"Bad <b>Gateway\"", NULL},
	{&push, 502, NULL, "<html>no title", E_REGISTRY_RESPONSE,
		"registry " HOST " answers 502 to uploading a layer", "answer: 502, an HTML page",
		NULL},
	{&push, 302, NULL, "", E_REGISTRY_RESPONSE,
		"registry " HOST " answers 302 to uploading a layer",
		"answer: 302, without a message", NULL},
	{&push, 418, JSON, "{\"message\":\"a teapot\"}", E_REGISTRY_RESPONSE,
		"registry " HOST " answers 418 to uploading a layer", "answer: 418 a teapot", NULL},
	{&push, 418, JSON, "{\"errors\":\"a teapot\"}", E_REGISTRY_RESPONSE,
		"registry " HOST " answers 418 to uploading a layer",
		"answer: 418 {\"errors\":\"a teapot\"}", NULL},
	{&push, 418, JSON, "{\"errors\":[1,null,[]]}", E_REGISTRY_RESPONSE,
		"registry " HOST " answers 418 to uploading a layer",
		"answer: 418 {\"errors\":[1,null,[]]}", NULL},
	{&push, 418, "content-type: application/octet-stream", "abc", E_REGISTRY_RESPONSE,
		"registry " HOST " answers 418 to uploading a layer",
		"answer: 418, nothing that can be shown", NULL},
	/* What is called HTML is never read as JSON, whatever it holds. */
	{&push, 418, HTML, ERRORS "{\"code\":\"DENIED\"}" END, E_REGISTRY_RESPONSE,
		"registry " HOST " answers 418 to uploading a layer", "answer: 418, an HTML page",
		NULL},
	/* Some registries call their JSON plain text. */
	{&push, 403, TEXT, ERRORS "{\"code\":\"DENIED\",\"message\":\"no\"}" END, E_REGISTRY_DENIED,
		"may not push to " HOST "/me/x (uploading a layer)", "answer: 403 DENIED: no",
		"docker login " HOST},
	{&push, 418, JSON,
		ERRORS "{\"code\":\"A\",\"message\":\"\\u001b[31mred\\u202e \\\\ \\n x\"}" END,
		E_REGISTRY_RESPONSE, "registry " HOST " answers 418 to uploading a layer",
		"answer: 418 A: \\x1b[31mred\\xe2\\x80\\xae \\\\ x", NULL},
};

static void test_table(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct row *row = &rows[i];
		AUTO_ERR struct err err = {0};

		evaluate(row->requested, row->status, row->header, row->body, &err);
		assert_string_equal(err.message, row->message);
		assert_int_equal(err.id, row->id);
		assert_string_equal(err.evidence[0], row->evidence);
		if (row->hint)
			assert_string_equal(err.hint, row->hint);
		else
			assert_null(err.hint);
	}
}

static void test_who(void **state)
{
	struct registry_requested requested = push;
	AUTO_ERR struct err err = {0};

	requested.identity = "anonymous";
	evaluate(&requested, 401, NULL, "", &err);
	assert_string_equal(err.message, "registry " HOST " wants a login for me/x");
	assert_string_equal(err.evidence[1], "login: anonymous");
	requested.identity = "me (from ~/.docker/config.json)";
	evaluate(&requested, 403, NULL, "", &err);
	assert_string_equal(err.evidence[1], "login: me (from ~/.docker/config.json)");
	requested.host = "1.dkr.ecr.eu-west-1.amazonaws.com";
	evaluate(&requested, 404, JSON, ERRORS "{\"code\":\"NAME_UNKNOWN\"}" END, &err);
	assert_string_equal(err.hint, "aws ecr create-repository --repository-name me/x");
}

static void test_elsewhere(void **state)
{
	struct registry_requested requested = pull;
	struct http_response response;
	AUTO_ERR struct err err = {0};

	make(&response, 403, "content-type: application/xml", "<Error/>", 8);
	assert_int_equal(
		url_parse("https://store.example.com/x?sig=1", "x", &response.url, NULL), 0);
	requested.elsewhere = true;
	registry_refusal(&requested, &response, &err);
	assert_string_equal(err.evidence[1],
		"the answer came from store.example.com, which the registry named");
	drop(&response);
}

static void test_quota_in_name(void **state)
{
	struct registry_requested requested = push;
	AUTO_ERR struct err err = {0};

	requested.repo = "me/quota";
	evaluate(&requested, 403, TEXT, "no access to me/quota", &err);
	assert_int_equal(err.id, E_REGISTRY_DENIED);
}

/* Characters of a line, the status and its words. */
static void check_len(const char *line, size_t max)
{
	assert_true(str_is_utf8(line, strlen(line)));
	assert_true(str_is_plain(line));
	assert_true(str_columns(line) <= max);
}

static void test_long(void **state)
{
	static const char *const bits[] = {"a", "\xc3\xa4", "\xe6\xbc\xa2", "\x01", "\xff", "\\"};
	static const char *const headers[] = {JSON, TEXT, HTML, NULL};

	for (size_t i = 0; i < ARRAY_LEN(bits) * ARRAY_LEN(headers); i++) {
		const char *bit = bits[i % ARRAY_LEN(bits)];
		AUTO_BUF struct buf body;
		AUTO_ERR struct err err = {0};
		buf_init(&body, 1 << 20);
		buf_adds(&body, i & 1 ? "<title>" : "");
		for (size_t n = 0; n < 5000; n++)
			buf_adds(&body, bit);
		buf_adds(&body, i & 1 ? "</title>" : "");
		evaluate(&push, 500, headers[i / ARRAY_LEN(bits)], body.data, &err);
		/* "answer: 500 ", a wide character or an escape over the end, "…" */
		check_len(err.evidence[0], 12 + 2 * REGISTRY_WORDS_MAX + 20);
	}
}

static void test_cut(void **state)
{
	AUTO_BUF struct buf body;
	AUTO_ERR struct err err = {0};

	buf_init(&body, 1 << 20);
	buf_adds(&body, ERRORS "{\"code\":\"A\",\"message\":\"");
	for (size_t n = 0; n < 300; n++)
		buf_adds(&body, "b");
	buf_adds(&body, "\",\"detail\":\"never\"}" END);
	evaluate(&push, 418, JSON, body.data, &err);
	assert_int_equal(strlen(err.evidence[0]), strlen("answer: 418 ") + 200 + strlen("…"));
	assert_true(str_ends(err.evidence[0], "bbb…"));
	assert_null(strstr(err.evidence[0], "never"));
}

static void test_two_lines(void **state)
{
	AUTO_ERR struct err err = {0};

	evaluate(&push, 400, JSON, ERRORS "{\"code\":\"A\"},{\"code\":\"B\"},{\"code\":\"C\"}" END,
		&err);
	assert_int_equal(err.n_evidence, 2);
	assert_string_equal(err.evidence[1], "answer: 400 B");
}

static void test_too_large(void **state)
{
	AUTO_FREE char *body = mem_alloc(1, HTTP_ERROR_BODY_MAX + 2);
	struct http_response response;

	memset(body, ' ', HTTP_ERROR_BODY_MAX + 1);
	memcpy(body, ERRORS "{\"code\":\"A\"}" END, strlen(ERRORS "{\"code\":\"A\"}" END));
	make(&response, 400, JSON, body, HTTP_ERROR_BODY_MAX + 1);
	assert_false(registry_response_has(&response, "A", NULL));
	drop(&response);
	make(&response, 400, JSON, body, HTTP_ERROR_BODY_MAX);
	assert_true(registry_response_has(&response, "A", NULL));
	drop(&response);
}

static bool has(const char *header, const char *body, const char *code, struct strv *digests)
{
	struct http_response response;

	make(&response, 404, header, body, strlen(body));
	bool found = registry_response_has(&response, code, digests);
	drop(&response);
	return found;
}

static void test_has(void **state)
{
	AUTO_STRV struct strv digests = {0};

	assert_false(has(JSON, "", "A", NULL));
	assert_false(has(JSON, "{}", "A", NULL));
	assert_false(has(JSON, "[\"A\"]", "A", NULL));
	assert_false(has(JSON, "{\"errors\":{\"code\":\"A\"}}", "A", NULL));
	assert_false(has(JSON, ERRORS "{\"code\":\"B\"}" END, "A", &digests));
	assert_false(has(HTML, ERRORS "{\"code\":\"A\"}" END, "A", &digests));
	assert_true(has(JSON, ERRORS "{\"code\":\"B\"},{\"code\":\"A\"}" END, "A", &digests));
	assert_true(has("content-type: application/vnd.x+json", ERRORS "{\"code\":\"A\"}" END, "A",
		&digests));
	assert_int_equal(digests.n, 0);
	/* distribution names it by itself, others in an object or in words. */
	assert_true(has(JSON,
		ERRORS "{\"code\":\"M\",\"detail\":\"" DIGEST "\"},{\"code\":\"M\",\"message\":"
		       "\"lacks " DIGEST2 "!\",\"detail\":{\"digest\":\"" DIGEST
		       "\",\"x\":[[\"sha256:no\"]]}},{\"code\":\"N\",\"detail\":\"sha256:"
		       "1111111111111111111111111111111111111111111111111111111111111111\"}" END,
		"M", &digests));
	assert_int_equal(digests.n, 2);
	assert_string_equal(digests.v[0], DIGEST);
	assert_string_equal(digests.v[1], DIGEST2);
}

static void test_many_digests(void **state)
{
	AUTO_BUF struct buf body;
	AUTO_STRV struct strv digests = {0};

	buf_init(&body, HTTP_ERROR_BODY_MAX);
	buf_adds(&body, ERRORS "{\"code\":\"M\",\"detail\":\"");
	for (int i = 0; i < 800; i++)
		buf_addf(&body, "sha256:%064x,", (unsigned)i);
	buf_adds(&body, "\"}" END);
	assert_false(body.full);
	assert_true(has(JSON, body.data, "M", &digests));
	assert_int_equal(digests.n, REGISTRY_DIGESTS_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_who),
		cmocka_unit_test(test_elsewhere),
		cmocka_unit_test(test_quota_in_name),
		cmocka_unit_test(test_long),
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_two_lines),
		cmocka_unit_test(test_too_large),
		cmocka_unit_test(test_has),
		cmocka_unit_test(test_many_digests),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
