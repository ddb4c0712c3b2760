/* SPDX-License-Identifier: Apache-2.0 */
/* What a registry may answer: "STATUS HEADER\nHEADER\n\nBODY". Whatever it is, it is a failure with
 * lines that can be shown, or a manifest that is what it says. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/digest.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/model/manifest.h"
#include "oci/registry/registry.h"
#include "oci/registry/registry_error.h"

enum { LINE_MAX_COLUMNS = 2 * REGISTRY_WORDS_MAX + 200 };

static void check(bool holds)
{
	if (!holds)
		abort();
}

/* Headers as http.c hands them out: one line of text each, the name in lower case. */
static const char *take_headers(const char *text, struct http_response *response)
{
	while (*text && *text != '\n') {
		size_t len = strcspn(text, "\n");
		AUTO_FREE char *line = mem_strndup(text, len);

		for (char *c = line; *c && *c != ':'; c++)
			if (*c >= 'A' && *c <= 'Z')
				*c = (char)(*c + 'a' - 'A');
		if (strstr(line, ": "))
			strv_add(&response->headers, line);
		text += len + (text[len] == '\n');
	}
	return text + (*text == '\n');
}

static void check_line(const char *line)
{
	check(str_is_plain(line) && str_columns(line) <= LINE_MAX_COLUMNS);
}

static void check_error(const struct err *err)
{
	check(err_is_set(err) && err->n_evidence <= ERR_EVIDENCE_MAX);
	check_line(err->message);
	for (size_t i = 0; i < err->n_evidence; i++)
		check_line(err->evidence[i]);
	if (err->hint)
		check_line(err->hint);
}

static void check_refusal(const struct http_response *response, const char *method)
{
	const struct registry_requested requested = {
		.host = "reg", .repo = "a/b", .doing = "trying it", .method = method};
	AUTO_ERR struct err err = {0};

	check(registry_refusal(&requested, response, &err) == -(int)err.code);
	check_error(&err);
	check(err.n_evidence > 0);
}

static void check_digests(const struct http_response *response)
{
	AUTO_STRV struct strv digests = {0};
	uint8_t sha256[SHA256_SIZE];

	bool has = registry_response_has(response, "MANIFEST_BLOB_UNKNOWN", &digests);
	check(has || digests.n == 0);
	check(digests.n <= REGISTRY_DIGESTS_MAX);
	vec_foreach (char *, digest, &digests)
		check(digest_parse(*digest, sha256));
}

static void check_manifest(const struct http_response *response)
{
	const struct registry_part part = {.host = "reg", .name = "reg/a/b:1"};
	AUTO_ERR struct err err = {0};
	struct descriptor got = {0}, made;

	if (registry_check_manifest(&part, response, &got, &err) < 0) {
		check_error(&err);
		return;
	}
	check(media_is_index(got.media_type) != media_is_manifest(got.media_type));
	descriptor_of(response->body.data, response->body.len, got.media_type, &made);
	check(str_eq(made.digest, got.digest));
	check(got.size == response->body.len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	struct http_response response = {.status = 100};
	size_t len = strlen(text);

	if (len < 3)
		return 0;
	for (int i = 0; i < 3; i++)
		response.status = i == 0 ? text[i] % 10 : response.status * 10 + text[i] % 10;
	const char *body = take_headers(text + 3, &response);
	/* What is behind a NUL belongs to the body, too. */
	size_t at = (size_t)(body - text);
	buf_init(&response.body, size + 1);
	buf_add(&response.body, (const char *)data + at, size - at);
	check_refusal(&response, "GET");
	check_refusal(&response, NULL);
	check_digests(&response);
	check_manifest(&response);
	strv_done(&response.headers);
	buf_done(&response.body);
	return 0;
}
