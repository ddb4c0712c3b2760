/* SPDX-License-Identifier: Apache-2.0 */
/* A head of a request, in which TOKEN stands for the right token. What is taken out of it leaves
 * none, leaves all that has to do with none, and leaves a head that is read as the same one. */
#include "base/util/str.h"
#include "net/httpd/httpd.h"
#include "net/httpd/httpd_token.h"
#include "net/stream/field.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TOKEN "0123456789abcdef0123456789abcdef"
#define HOST  "a.localhost"

enum { PORT = 8000, WRITTEN_MAX = HTTPD_HEAD_MAX - 64 };

static int parse(const struct buf *text, struct httpd_head *ret)
{
	size_t used = 0;
	int status = 0;

	return httpd_request_parse(text->data, text->len, ret, &used, &status, NULL);
}

static void fill(const char *text, size_t len, struct buf *out)
{
	static const char word[] = "TOKEN";

	for (size_t i = 0; i < len;) {
		if (len - i >= strlen(word) && memcmp(text + i, word, strlen(word)) == 0) {
			buf_adds(out, TOKEN);
			i += strlen(word);
		} else {
			buf_addc(out, text[i++]);
		}
	}
}

static size_t count_rest(const struct httpd_head *head)
{
	size_t n = 0;

	vec_foreach (char *, header, &head->headers)
		n += !str_starts(*header, "cookie: ") &&
		     !str_starts(*header, "proxy-authorization: ");
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_HTTPD_HEAD struct httpd_head head = {0}, again = {0};
	struct httpd_proof proof = {0}, none = {0};
	AUTO_BUF struct buf text = {0}, out = {0};

	buf_init(&text, HTTPD_HEAD_MAX);
	buf_init(&out, HTTPD_HEAD_MAX);
	fill((const char *)data, size, &text);
	if (parse(&text, &head) != 1)
		return 0;
	size_t rest = count_rest(&head), len = strlen(head.target);
	httpd_token_take(TOKEN, HOST, PORT, &head, &proof);
	BUG_ON(proof.url_is_right && !proof.was_in_url);
	BUG_ON(count_rest(&head) != rest || head.headers.n < rest);
	BUG_ON(field_find(&head.headers, "proxy-authorization"));
	BUG_ON(proof.was_in_url ? strlen(head.target) >= len : strlen(head.target) != len);
	/* All of it is gone. */
	httpd_head_write(&head, NULL, true, &out);
	if (out.len > WRITTEN_MAX)
		return 0;
	BUG_ON(parse(&out, &again) != 1);
	BUG_ON(!str_eq(again.target, head.target));
	httpd_token_take(TOKEN, HOST, PORT, &again, &none);
	BUG_ON(none.was_in_url || none.url_is_right || none.field_is_right);
	BUG_ON(!str_eq(again.target, head.target));
	return 0;
}
