/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/util/str.h"
#include "net/httpd/front_head.h"

static const struct {
	int status;
	const char *reason;
} reasons[] = {
	{100, "Continue"},
	{101, "Switching Protocols"},
	{103, "Early Hints"},
	{200, "OK"},
	{201, "Created"},
	{202, "Accepted"},
	{204, "No Content"},
	{206, "Partial Content"},
	{301, "Moved Permanently"},
	{302, "Found"},
	{303, "See Other"},
	{304, "Not Modified"},
	{307, "Temporary Redirect"},
	{308, "Permanent Redirect"},
	{400, "Bad Request"},
	{401, "Unauthorized"},
	{403, "Forbidden"},
	{404, "Not Found"},
	{405, "Method Not Allowed"},
	{407, "Proxy Authentication Required"},
	{408, "Request Timeout"},
	{409, "Conflict"},
	{410, "Gone"},
	{413, "Content Too Large"},
	{414, "URI Too Long"},
	{416, "Range Not Satisfiable"},
	{417, "Expectation Failed"},
	{421, "Misdirected Request"},
	{429, "Too Many Requests"},
	{431, "Request Header Fields Too Large"},
	{500, "Internal Server Error"},
	{501, "Not Implemented"},
	{502, "Bad Gateway"},
	{503, "Service Unavailable"},
	{504, "Gateway Timeout"},
	{505, "HTTP Version Not Supported"},
};

const char *front_reason(int status)
{
	for (size_t i = 0; i < ARRAY_LEN(reasons); i++)
		if (reasons[i].status == status)
			return reasons[i].reason;
	return "";
}

/*
 * Fields of one hop (RFC 9110, section 7.6.1)
 */

static const char *const of_one_hop[] = {
	"connection", "keep-alive", "te", "trailer", "http2-settings", "upgrade"};

static bool is_called(const char *header, size_t len, const char *name)
{
	return strlen(name) == len && strncmp(header, name, len) == 0;
}

/* Whether a field Connection names it. */
static bool is_named(const struct front_head *head, const char *field, size_t len)
{
	static const char connection[] = "connection: ";

	vec_foreach (char *, header, &head->headers) {
		if (!str_starts(*header, connection))
			continue;
		for (const char *at = *header + strlen(connection); *at;) {
			size_t n = strcspn(at, ", \t");

			if (n == len && strncasecmp(at, field, n) == 0)
				return true;
			at += n;
			at += strspn(at, ", \t");
		}
	}
	return false;
}

/* An answer without a body has no framing; of HEAD and 304 the length is that of GET. */
static bool is_vain_framing(const struct front_head *head, const char *header, size_t len)
{
	bool is_length = is_called(header, len, "content-length");
	bool is_coding = is_called(header, len, "transfer-encoding");

	if (head->method || head->status >= 205)
		return is_coding && head->status == 304;
	return (is_length || is_coding) && (head->status < 200 || head->status == 204);
}

static bool goes_on(const struct front_head *head, const char *header)
{
	size_t len = strcspn(header, ":");

	if (head->is_upgrade && is_called(header, len, "upgrade"))
		return true;
	for (size_t i = 0; i < ARRAY_LEN(of_one_hop); i++)
		if (is_called(header, len, of_one_hop[i]))
			return false;
	return !str_starts(header, "proxy-") && !is_vain_framing(head, header, len) &&
	       !is_named(head, header, len);
}

/*
 * The head
 */

static const char *skip_prefix(const char *target, const char *prefix)
{
	size_t len = prefix ? strlen(prefix) : 0;

	if (len == 0 || strncmp(target, prefix, len) != 0 || !strchr("/?", target[len]))
		return target;
	return target + len;
}

static void write_first_line(const struct front_head *head, const char *strip, struct buf *out)
{
	if (!head->method) {
		buf_addf(out, "HTTP/1.1 %d %s\r\n", head->status, front_reason(head->status));
		return;
	}
	const char *target = skip_prefix(head->target, strip);
	bool has_root = *target == '/' || str_eq(head->method, "CONNECT");
	buf_addf(out, "%s %s%s HTTP/1.%d\r\n", head->method, has_root ? "" : "/", target,
		!head->is_http_1_0);
}

static const char *connection_of(const struct front_head *head, bool keeps_open)
{
	if (head->is_upgrade)
		return "Upgrade";
	return keeps_open ? "keep-alive" : "close";
}

void front_head_write(
	const struct front_head *head, const char *strip, bool keeps_open, struct buf *out)
{
	write_first_line(head, strip, out);
	vec_foreach (char *, header, &head->headers) {
		if (!goes_on(head, *header))
			continue;
		buf_adds(out, *header);
		buf_adds(out, "\r\n");
	}
	buf_addf(out, "connection: %s\r\n\r\n", connection_of(head, keeps_open));
}
