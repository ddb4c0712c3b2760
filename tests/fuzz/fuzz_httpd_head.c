/* SPDX-License-Identifier: Apache-2.0 */
/* The first byte says what it is (a request, an answer, a chunked body) and in which pieces it
 * comes. What is taken does not depend on them, is bounded, and is the same when it is written and
 * read again, so that whoever stands behind reads no other message. */
#include "base/util/str.h"
#include "net/httpd/httpd.h"
#include "net/httpd/httpd_head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WRITTEN_MAX = HTTPD_HEAD_MAX - 64 };

static int parse(const char *data, size_t size, bool is_request, struct httpd_head *head,
	size_t *ret_used, int *ret_status)
{
	AUTO_ERR struct err err = {0};

	int r = is_request ? httpd_request_parse(data, size, head, ret_used, ret_status, &err)
			   : httpd_response_parse(data, size, "GET", head, ret_used, &err);
	BUG_ON(r < 0 && err.id != E_HTTPD_HEAD);
	BUG_ON(r > 0 && (*ret_used > size || *ret_used > HTTPD_HEAD_MAX));
	return r;
}

static void check_same(const struct httpd_head *a, const struct httpd_head *b)
{
	BUG_ON(!str_eq(a->method, b->method) || !str_eq(a->target, b->target));
	BUG_ON(a->status != b->status || a->body != b->body || a->length != b->length);
	BUG_ON(a->expects != b->expects || a->is_upgrade != b->is_upgrade);
}

static void check_again(const struct httpd_head *head, bool is_request)
{
	AUTO_HTTPD_HEAD struct httpd_head again = {0};
	AUTO_BUF struct buf out = {0}, twice = {0};
	size_t used = 0;
	int status = 0;

	buf_init(&out, 1 << 20);
	buf_init(&twice, 1 << 20);
	httpd_head_write(head, NULL, head->keeps_open, &out);
	if (out.len > WRITTEN_MAX)
		return;
	BUG_ON(parse(out.data, out.len, is_request, &again, &used, &status) != 1);
	BUG_ON(used != out.len);
	check_same(head, &again);
	httpd_head_write(&again, NULL, again.keeps_open, &twice);
	BUG_ON(!str_eq(out.data, twice.data));
}

static void feed_head(const char *data, size_t size, size_t piece, bool is_request)
{
	AUTO_HTTPD_HEAD struct httpd_head whole = {0}, pieces = {0};
	size_t used = 0, used_pieces = 0, len = 0;
	int status = 0, status_pieces = 0, r_pieces = 0;

	int r = parse(data, size, is_request, &whole, &used, &status);
	while (r_pieces == 0 && len < size) {
		len = size - len < piece ? size : len + piece;
		r_pieces = parse(data, len, is_request, &pieces, &used_pieces, &status_pieces);
	}
	BUG_ON(r_pieces != r || status_pieces != status || used_pieces != used);
	if (r > 0)
		check_again(&whole, is_request);
}

static void feed_chunks(const char *data, size_t size, size_t piece)
{
	struct httpd_chunks whole = {0}, pieces = {0};
	size_t used = 0, total = 0;

	int r = httpd_chunks_feed(&whole, data, size, &used, NULL), r_pieces = 0;
	BUG_ON(r >= 0 && used > size);
	BUG_ON(r == 0 && used != size);
	while (r_pieces == 0 && total < size) {
		size_t len = size - total < piece ? size - total : piece, n = 0;

		r_pieces = httpd_chunks_feed(&pieces, data + total, len, &n, NULL);
		total += r_pieces < 0 ? 0 : n;
	}
	BUG_ON(r_pieces != r || (r >= 0 && total != used));
}

static void check_host(const char *data, size_t size)
{
	char name[HTTPD_HOST_MAX];
	AUTO_FREE char *value = mem_strndup(data, size);

	if (httpd_host_is_here(value, 8000, name))
		BUG_ON(strlen(name) >= sizeof(name) ||
			!(str_ends(name, "localhost") || str_eq(name, "127.0.0.1") ||
				str_eq(name, "::1")));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data + 1;

	if (size == 0)
		return 0;
	size_t piece = (size_t)(data[0] >> 2) + 1;
	if ((data[0] & 3) < 2)
		feed_head(text, size - 1, piece, data[0] & 1);
	else if ((data[0] & 3) == 2)
		feed_chunks(text, size - 1, piece);
	else
		check_host(text, size - 1);
	return 0;
}
