/* SPDX-License-Identifier: Apache-2.0 */
#include "net/websocket/upgrade_reply.h"

#include <string.h>
#include <strings.h>

#include "base/util/str.h"
#include "net/http/http.h"
#include "net/stream/field.h"

enum { CHUNK_LINE_MAX = 4096 };

void upgrade_reply_init(struct upgrade_reply *reply, const char *host)
{
	*reply = (struct upgrade_reply){.host = host};
	buf_init(&reply->line, HTTP_HEADERS_MAX);
	buf_init(&reply->body, HTTP_ERROR_BODY_MAX);
}

void upgrade_reply_done(struct upgrade_reply *reply)
{
	strv_done(&reply->headers);
	buf_done(&reply->line);
	buf_done(&reply->body);
}

static int fail(const struct upgrade_reply *reply, struct err *err, const char *what)
{
	return err_set(err, E_HTTP_PROTOCOL, "%s %s", reply->host, what);
}

/*
 * Lines
 */

/* RFC 9110 section 5.6.2. */
static bool is_token(const char *text, size_t len)
{
	static const char marks[] = "!#$%&'*+-.^_`|~";

	for (size_t i = 0; i < len; i++) {
		char c = text[i], lower = (char)(c | 0x20);

		if (!str_is_digit(c) && (lower < 'a' || lower > 'z') && (!c || !strchr(marks, c)))
			return false;
	}
	return len > 0;
}

static bool has_control(const struct buf *line)
{
	for (size_t i = 0; i < line->len; i++) {
		unsigned char c = (unsigned char)line->data[i];

		if ((c < 0x20 && c != '\t') || c == 0x7f)
			return true;
	}
	return false;
}

static int parse_status(struct upgrade_reply *reply, struct err *err)
{
	const char *line = reply->line.data;
	int status = 0;

	if (!str_starts(line, "HTTP/1.") || !str_is_digit(line[7]) || line[8] != ' ')
		return fail(reply, err, "does not answer as HTTP/1 does");
	for (int i = 9; i < 12; i++) {
		if (!str_is_digit(line[i]))
			return fail(reply, err, "answers without a status");
		status = status * 10 + (line[i] - '0');
	}
	if (status < 100 || (line[12] && line[12] != ' '))
		return fail(reply, err, "answers with a status that makes no sense");
	reply->status = status;
	strv_done(&reply->headers);
	reply->state = REPLY_HEADER;
	return 0;
}

static int parse_header(struct upgrade_reply *reply, struct err *err)
{
	char *line = reply->line.data;
	size_t name_len = strcspn(line, ":");

	if (line[name_len] != ':' || !is_token(line, name_len))
		return fail(reply, err, "sends a header that is none");
	const char *value = line + name_len + 1;
	value += strspn(value, " \t");
	size_t len = strlen(value);
	while (len > 0 && (value[len - 1] == ' ' || value[len - 1] == '\t'))
		len--;
	for (size_t i = 0; i < name_len; i++)
		if (line[i] >= 'A' && line[i] <= 'Z')
			line[i] = (char)(line[i] | 0x20);
	strv_addf(&reply->headers, "%.*s: %.*s", (int)name_len, line, (int)len, value);
	return 0;
}

static int parse_chunk_size(struct upgrade_reply *reply, struct err *err)
{
	const char *line = reply->line.data;
	size_t digits = strspn(line, "0123456789abcdefABCDEF");
	size_t rest = digits + strspn(line + digits, " \t");

	if (digits == 0 || digits > 15 || (line[rest] && line[rest] != ';'))
		return fail(reply, err, "sends a broken chunk of an answer");
	reply->left = strtoull(line, NULL, 16);
	reply->state = reply->left > 0 ? REPLY_CHUNK : REPLY_OVER;
	return 0;
}

/*
 * The end of a head
 */

static int note_length(struct upgrade_reply *reply, const char *text, struct err *err)
{
	uint64_t length;

	if (!field_number(text, &length))
		return fail(reply, err, "gives a length that is not a number");
	if (reply->has_length && reply->left != length)
		return fail(reply, err, "gives two lengths of one answer");
	reply->has_length = true;
	reply->left = length;
	return 0;
}

static int find_framing(struct upgrade_reply *reply, struct err *err)
{
	static const char length[] = "content-length: ", encoding[] = "transfer-encoding: ";
	int r = 0;

	reply->has_length = reply->is_chunked = false;
	reply->left = 0;
	vec_foreach (char *, header, &reply->headers) {
		if (str_starts(*header, length)) {
			r = note_length(reply, *header + strlen(length), err);
		} else if (str_starts(*header, encoding)) {
			if (reply->is_chunked ||
				strcasecmp(*header + strlen(encoding), "chunked") != 0)
				r = fail(reply, err, "encodes an answer in a way that is unknown");
			reply->is_chunked = true;
		}
		if (r < 0)
			return r;
	}
	if (reply->has_length && reply->is_chunked)
		return fail(reply, err, "gives two lengths of one answer");
	return 0;
}

static int end_head(struct upgrade_reply *reply, struct err *err)
{
	int status = reply->status;

	if (status == 101) {
		reply->state = REPLY_OVER;
		return 0;
	}
	if (status < 200) {
		reply->state = REPLY_STATUS;
		return 0;
	}
	int r = find_framing(reply, err);
	if (r < 0)
		return r;
	if (status == 204 || status == 304 || (reply->has_length && reply->left == 0))
		reply->state = REPLY_OVER;
	else if (reply->is_chunked)
		reply->state = REPLY_CHUNK_SIZE;
	else
		reply->state = reply->has_length ? REPLY_LENGTH : REPLY_CLOSE;
	return 0;
}

static int end_line(struct upgrade_reply *reply, struct err *err)
{
	if (has_control(&reply->line))
		return fail(reply, err, "sends a control character in a header");
	switch (reply->state) {
	case REPLY_STATUS:
		return parse_status(reply, err);
	case REPLY_HEADER:
		return reply->line.len == 0 ? end_head(reply, err) : parse_header(reply, err);
	case REPLY_CHUNK_SIZE:
		return parse_chunk_size(reply, err);
	default:
		if (reply->line.len > 0)
			return fail(reply, err, "sends a broken chunk of an answer");
		reply->state = REPLY_CHUNK_SIZE;
		return 0;
	}
}

/*
 * Bytes
 */

static bool is_head(const struct upgrade_reply *reply)
{
	return reply->state == REPLY_STATUS || reply->state == REPLY_HEADER;
}

static int check_line(struct upgrade_reply *reply, size_t len, struct err *err)
{
	if (is_head(reply)) {
		reply->head_bytes += len;
		if (reply->head_bytes > HTTP_HEADERS_MAX)
			return err_set(err, E_HTTP_LIMIT, "%s sends more than %d KiB of headers",
				reply->host, HTTP_HEADERS_MAX >> 10);
	} else if (reply->line.len + len > CHUNK_LINE_MAX) {
		return fail(reply, err, "sends a broken chunk of an answer");
	}
	return 0;
}

/* The bytes of data up to the end of a line. */
static ssize_t take_line(struct upgrade_reply *reply, const char *data, size_t len, struct err *err)
{
	struct buf *line = &reply->line;
	const char *end = memchr(data, '\n', len);

	if (end)
		len = (size_t)(end + 1 - data);
	int r = check_line(reply, len, err);
	if (r < 0)
		return r;
	buf_add(line, data, len);
	if (!end)
		return (ssize_t)len;
	if (line->len < 2 || line->data[line->len - 2] != '\r')
		return fail(reply, err, "ends a line of its headers as HTTP does not");
	buf_truncate(line, line->len - 2);
	r = end_line(reply, err);
	buf_reset(line);
	return r < 0 ? r : (ssize_t)len;
}

/* The rest of a body that is too large is not worth waiting for. */
static ssize_t take_body(struct upgrade_reply *reply, const char *data, size_t len)
{
	size_t room = reply->body.max - reply->body.len;

	if (reply->state != REPLY_CLOSE && len > reply->left)
		len = (size_t)reply->left;
	buf_add(&reply->body, data, len < room ? len : room);
	if (len >= room) {
		reply->state = REPLY_OVER;
	} else if (reply->state != REPLY_CLOSE) {
		reply->left -= len;
		if (reply->left == 0)
			reply->state = reply->state == REPLY_CHUNK ? REPLY_CHUNK_END : REPLY_OVER;
	}
	return (ssize_t)len;
}

int upgrade_reply_feed(struct upgrade_reply *reply, const char *data, size_t len, size_t *ret_used,
	struct err *err)
{
	size_t used = 0;

	while (used < len && reply->state != REPLY_OVER) {
		bool is_body = reply->state == REPLY_LENGTH || reply->state == REPLY_CLOSE ||
			       reply->state == REPLY_CHUNK;
		ssize_t n = is_body ? take_body(reply, data + used, len - used)
				    : take_line(reply, data + used, len - used, err);
		if (n < 0)
			return (int)n;
		used += (size_t)n;
	}
	*ret_used = used;
	return reply->state == REPLY_OVER;
}

bool upgrade_reply_ended(struct upgrade_reply *reply)
{
	if (reply->state == REPLY_CLOSE)
		reply->state = REPLY_OVER;
	return reply->state == REPLY_OVER;
}
