/* SPDX-License-Identifier: Apache-2.0 */
/* An answer of a server: its status, then its headers as lines, an empty line, its body. */
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/response.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t *take_headers(const uint8_t *at, const uint8_t *end, struct strv *headers)
{
	while (at < end) {
		const uint8_t *stop = memchr(at, '\n', (size_t)(end - at));
		size_t len = (size_t)((stop ? stop : end) - at);
		AUTO_FREE char *line = mem_strndup((const char *)at, len);

		at += len + (stop != NULL);
		if (len == 0 || headers->n > 100)
			break;
		strv_add(headers, line);
	}
	return at;
}

static void check_text(const char *text, size_t max)
{
	BUG_ON(strlen(text) > max || !str_is_plain(text));
}

static void check(const struct kube_response *response, bool is_good)
{
	BUG_ON(!response->reason || response->warnings.n > KUBE_WARNINGS_MAX);
	BUG_ON(!is_good && !err_is_set(&response->error));
	if (err_is_set(&response->error) && response->error.id != E_DATA_LIMIT)
		check_text(response->error.message, 2048);
	for (size_t i = 0; i < response->error.n_evidence; i++)
		check_text(response->error.evidence[i], 2048);
	for (size_t i = 0; i < response->warnings.n; i++)
		check_text(response->warnings.v[i], 2048);
	BUG_ON(kube_response_retry_after(response) > KUBE_RETRY_AFTER_MAX_MS);
	kube_response_is_transient(response);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const int statuses[] = {200, 201, 204, 302, 400, 401, 403, 404, 405, 409, 410, 413,
		415, 418, 422, 429, 500, 502, 503, 504, 599, 999};
	const struct kube_requested requested = {.method = "POST",
		.path = "/apis/batch/v1/namespaces/j/jobs",
		.host = "h:6443",
		.user = "me"};
	struct http_response http = {0};
	AUTO_KUBE_RESPONSE struct kube_response response = {0};

	if (size < 1)
		return 0;
	http.status = statuses[data[0] % ARRAY_LEN(statuses)];
	const uint8_t *body = take_headers(data + 1, data + size, &http.headers);
	buf_init(&http.body, size);
	buf_add(&http.body, body, (size_t)(data + size - body));
	kube_response_read(&requested, &http, false, &response);
	check(&response, http.status < 300);
	strv_done(&http.headers);
	buf_done(&http.body);
	return 0;
}
