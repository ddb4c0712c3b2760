/* SPDX-License-Identifier: Apache-2.0 */
#include "net/httpd/httpd_head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/httpd/httpd.h"
#include "net/stream/field.h"

enum {
	SIZE,     /* digits of a size */
	SIZE_END, /* the LF behind them */
	DATA,
	DATA_CR,
	DATA_LF,
	LAST_CR, /* behind the size 0: no trailers, so an empty line */
	LAST_LF,
	OVER,
	BROKEN, /* for good */
};

enum { DIGITS_MAX = 15 };

static int httpd_chunks_refuse(struct err *err)
{
	return err_set(err, E_HTTPD_HEAD, "a chunked body is broken or has extensions");
}

static int feed_size(struct httpd_chunks *chunks, char c, struct err *err)
{
	int digit = hex_digit(c);

	if (digit >= 0) {
		if (chunks->digits++ >= DIGITS_MAX)
			return httpd_chunks_refuse(err);
		chunks->left = chunks->left << 4 | (unsigned)digit;
		return 0;
	}
	if (c != '\r' || chunks->digits == 0)
		return httpd_chunks_refuse(err);
	chunks->digits = 0;
	chunks->state = SIZE_END;
	return 0;
}

/* Check a character of the end of a line or chunk, and go on to the next state. */
static int feed_end(struct httpd_chunks *chunks, char c, struct err *err)
{
	static const struct {
		char c;
		int next;
	} ends[] = {
		[DATA_CR] = {'\r', DATA_LF},
		[DATA_LF] = {'\n', SIZE},
		[LAST_CR] = {'\r', LAST_LF},
		[LAST_LF] = {'\n', OVER},
	};

	if (chunks->state == SIZE_END) {
		chunks->state = chunks->left > 0 ? DATA : LAST_CR;
		return c == '\n' ? 0 : httpd_chunks_refuse(err);
	}
	if (c != ends[chunks->state].c)
		return httpd_chunks_refuse(err);
	chunks->state = ends[chunks->state].next;
	return 0;
}

static size_t feed_data(struct httpd_chunks *chunks, size_t len)
{
	size_t n = chunks->left < len ? (size_t)chunks->left : len;

	chunks->left -= n;
	if (chunks->left == 0)
		chunks->state = DATA_CR;
	return n;
}

int httpd_chunks_feed(struct httpd_chunks *chunks, const char *data, size_t len, size_t *ret_used,
	struct err *err)
{
	size_t used = 0;
	int r = 0;

	if (chunks->state == BROKEN)
		return httpd_chunks_refuse(err);
	while (used < len && chunks->state != OVER && r == 0) {
		if (chunks->state == DATA)
			used += feed_data(chunks, len - used);
		else if (chunks->state == SIZE)
			r = feed_size(chunks, data[used++], err);
		else
			r = feed_end(chunks, data[used++], err);
	}
	if (r < 0) {
		chunks->state = BROKEN;
		return r;
	}
	*ret_used = used;
	return chunks->state == OVER;
}

/* Fields whose value is a URL or an origin. */
static const char *const urls[] = {"origin", "referer", "location", "access-control-allow-origin"};
/* Fields that tell the program the original name. */
static const char *const forwarded[] = {"x-forwarded-host", "x-forwarded-proto"};

/* The value behind "name: ", if the field is called so. */
static const char *httpd_head_value_of(const char *header, const char *name)
{
	size_t len = strlen(name);

	return strncmp(header, name, len) == 0 && header[len] == ':' ? header + len + 2 : NULL;
}

/* "http://from/a" is "http://to/a" now; NULL: it is another one. */
static char *renamed_url(const char *name, const char *value, const char *from, const char *to)
{
	static const char scheme[] = "http://";
	size_t len = strlen(from);

	if (!str_starts(value, scheme))
		return NULL;
	const char *host = value + strlen(scheme), *rest = host + len;
	if (strncasecmp(host, from, len) != 0 || (*rest && !strchr("/?", *rest)))
		return NULL;
	return mem_printf("%s: %s%s%s", name, scheme, to, rest);
}

static char *renamed(const char *header, const char *from, const char *to)
{
	const char *host = httpd_head_value_of(header, "host");

	if (host)
		return mem_printf("host: %s", to);
	for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
		const char *value = httpd_head_value_of(header, urls[i]);

		if (value)
			return renamed_url(urls[i], value, from, to);
	}
	return NULL;
}

static bool is_forwarded(const char *header)
{
	for (size_t i = 0; i < ARRAY_LEN(forwarded); i++)
		if (httpd_head_value_of(header, forwarded[i]))
			return true;
	return false;
}

void httpd_head_rename(struct httpd_head *head, const char *from, const char *to)
{
	bool is_request = head->method != NULL;
	AUTO_STRV struct strv headers = {0};

	vec_foreach (char *, header, &head->headers) {
		AUTO_FREE char *other = renamed(*header, from, to);

		if (!is_request || !is_forwarded(*header))
			strv_add(&headers, other ? other : *header);
	}
	if (is_request) {
		strv_addf(&headers, "x-forwarded-host: %s", from);
		strv_add(&headers, "x-forwarded-proto: http");
	}
	strv_done(&head->headers);
	head->headers = headers;
	headers = (struct strv){0};
}

enum { HTTP_PORT = 80, PORT_DIGITS_MAX = 5 };

/*
 * Names
 */

static bool httpd_head_parse_port(const char *text, uint16_t *ret)
{
	uint64_t port;

	if (strlen(text) > PORT_DIGITS_MAX || !field_number(text, &port) || port == 0 ||
		port > UINT16_MAX)
		return false;
	*ret = (uint16_t)port;
	return true;
}

static bool httpd_head_is_name(const char *name)
{
	return *name && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == strlen(name) &&
	       !strstr(name, "..") && name[0] != '.';
}

static bool is_of_this_machine(const char *name)
{
	return str_eq(name, "127.0.0.1") || str_eq(name, "localhost") ||
	       (httpd_head_is_name(name) && str_ends(name, ".localhost"));
}

bool httpd_host_split(const char *value, char ret[static HTTPD_HOST_MAX], uint16_t *ret_port)
{
	bool is_ip6 = str_starts(value, "[::1]");
	size_t len = is_ip6 ? strlen("[::1]") : strcspn(value, ":");
	const char *rest = value + len;
	uint16_t port = HTTP_PORT;

	if (len >= HTTPD_HOST_MAX ||
		(*rest && (*rest != ':' || !httpd_head_parse_port(rest + 1, &port))))
		return false;
	AUTO_FREE char *name = is_ip6 ? mem_strdup("::1") : str_lower(value, len);
	if (!is_ip6 && !is_of_this_machine(name))
		return false;
	memcpy(ret, name, strlen(name) + 1);
	*ret_port = port;
	return true;
}

bool httpd_host_is_here(const char *value, uint16_t port, char ret[static HTTPD_HOST_MAX])
{
	char name[HTTPD_HOST_MAX];
	uint16_t named;

	if (!httpd_host_split(value, name, &named) || named != port)
		return false;
	memcpy(ret, name, sizeof(name));
	return true;
}

/*
 * Pages
 */

/* Scheme, name and port of a URL are those of host; only_port: the name may be another one of this
 * machine. */
static bool httpd_head_is_of(const char *url, const char *host, bool only_port)
{
	static const char scheme[] = "http://";
	char name[HTTPD_HOST_MAX], own_name[HTTPD_HOST_MAX];
	uint16_t port, own_port;

	if (!str_starts(url, scheme))
		return false;
	const char *authority = url + strlen(scheme);
	AUTO_FREE char *from = mem_strndup(authority, strcspn(authority, "/?#"));
	if (!httpd_host_split(from, name, &port) || !httpd_host_split(host, own_name, &own_port))
		return false;
	return port == own_port && (only_port || str_eq(name, own_name));
}

static bool is_reading(const struct httpd_head *head)
{
	return !head->is_upgrade && (str_eq(head->method, "GET") || str_eq(head->method, "HEAD"));
}

/* A link from one name of this machine to another one: to browsers these are different sites. No
 * frame: what is in it could be covered. */
static bool is_link_from_here(const struct httpd_head *head, const char *host)
{
	const char *referer = field_find(&head->headers, "referer");

	return is_reading(head) && referer && httpd_head_is_of(referer, host, true) &&
	       str_eq(field_find(&head->headers, "sec-fetch-mode"), "navigate") &&
	       str_eq(field_find(&head->headers, "sec-fetch-dest"), "document");
}

static bool is_from_elsewhere(const struct httpd_head *head, const char *host)
{
	vec_foreach (char *, header, &head->headers)
		if (str_eq(*header, "sec-fetch-site: cross-site"))
			return !is_link_from_here(head, host);
	return false;
}

bool httpd_origin_is_right(const struct httpd_head *head, bool any_origin)
{
	const char *host = field_find(&head->headers, "host");
	bool may_be_any = any_origin && is_reading(head);
	static const char name[] = "origin: ";

	if (is_from_elsewhere(head, host ? host : ""))
		return false;
	vec_foreach (char *, header, &head->headers) {
		if (str_starts(*header, name) && !may_be_any &&
			!httpd_head_is_of(*header + strlen(name), host ? host : "", false))
			return false;
	}
	return true;
}

enum { METHOD_MAX = 32, LENGTH_DIGITS_MAX = 18 };

/* Where a head is read from, and what of it. */
struct reading {
	struct httpd_head *head;
	bool is_request;
	int *status;
	struct err *err;
};

static int httpd_head_refuse(const struct reading *reading, int status, const char *what)
{
	*reading->status = status;
	return err_set(reading->err, E_HTTPD_HEAD, "%s", what);
}

void httpd_head_done(struct httpd_head *head)
{
	free(head->method);
	free(head->target);
	strv_done(&head->headers);
	*head = (struct httpd_head){0};
}

/*
 * The first line
 */

/* "HTTP/1.0" or "HTTP/1.1". */
static int parse_version(const struct reading *reading, const char *text, size_t len)
{
	if (len != 8 || memcmp(text, "HTTP/", 5) != 0 || !str_is_digit(text[5]) || text[6] != '.' ||
		!str_is_digit(text[7]))
		return httpd_head_refuse(reading, 400, "the first line has no version of HTTP");
	if (text[5] != '1' || text[7] > '1')
		return httpd_head_refuse(
			reading, 505, "the version of HTTP is neither 1.0 nor 1.1");
	reading->head->is_http_1_0 = text[7] == '0';
	return 0;
}

static int parse_method(const struct reading *reading, const char *text, size_t len)
{
	if (!field_is_token(text, len))
		return httpd_head_refuse(reading, 400, "the first line has no method");
	if (len > METHOD_MAX)
		return httpd_head_refuse(reading, 501, "the method is not known");
	reading->head->method = mem_strndup(text, len);
	/* TRACE and TRACK would show a page what the browser keeps from it. */
	if (str_eq(reading->head->method, "TRACE") || str_eq(reading->head->method, "TRACK"))
		return httpd_head_refuse(reading, 405, "the method is not allowed");
	return 0;
}

static bool is_visible(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (text[i] <= 0x20 || text[i] >= 0x7f || text[i] == '#')
			return false;
	return len > 0;
}

static int parse_target(const struct reading *reading, const char *text, size_t len)
{
	struct httpd_head *head = reading->head;
	bool is_connect = str_eq(head->method, "CONNECT");

	if (!is_visible(text, len))
		return httpd_head_refuse(
			reading, 400, "the target of the request has bytes that are none");
	head->target = mem_strndup(text, len);
	if (is_connect ? text[0] == '/' || !memchr(text, ':', len)
		       : text[0] != '/' && !str_starts(head->target, "http://"))
		return httpd_head_refuse(
			reading, 400, "the target of the request is neither path nor URL");
	return 0;
}

static int parse_request_line(const struct reading *reading, const char *line, size_t len)
{
	const char *first = memchr(line, ' ', len);
	const char *target = first ? first + 1 : NULL;
	size_t left = target ? len - (size_t)(target - line) : 0;
	const char *second = target ? memchr(target, ' ', left) : NULL;

	if (!second)
		return httpd_head_refuse(reading, 400, "the first line is none of HTTP");
	int r = parse_method(reading, line, (size_t)(first - line));
	if (r == 0)
		r = parse_version(reading, second + 1, left - (size_t)(second + 1 - target));
	return r == 0 ? parse_target(reading, target, (size_t)(second - target)) : r;
}

/* The reason may be missing, the blank before it too. */
static int parse_status_line(const struct reading *reading, const char *line, size_t len)
{
	const char *digits = line + 9;

	if (len < 12 || line[8] != ' ' || !str_is_digit(digits[0]) || !str_is_digit(digits[1]) ||
		!str_is_digit(digits[2]) || (len > 12 && line[12] != ' '))
		return httpd_head_refuse(reading, 502, "the first line is none of HTTP");
	int status = (digits[0] - '0') * 100 + (digits[1] - '0') * 10 + (digits[2] - '0');
	if (status < 100)
		return httpd_head_refuse(reading, 502, "the first line is none of HTTP");
	reading->head->status = status;
	return parse_version(reading, line, 8);
}

static int parse_first_line(const struct reading *reading, const char *line, size_t len)
{
	return reading->is_request ? parse_request_line(reading, line, len)
				   : parse_status_line(reading, line, len);
}

/*
 * Fields
 */

/* Programs that make variables of fields cannot tell "_" from "-". */
static bool is_framing_in_disguise(const char *name)
{
	AUTO_FREE char *same = mem_strdup(name);

	if (!strchr(name, '_'))
		return false;
	for (char *at = same; *at; at++)
		*at = *at == '_' ? '-' : *at;
	return str_eq(same, "content-length") || str_eq(same, "transfer-encoding") ||
	       str_eq(same, "host");
}

static int parse_field(const struct reading *reading, const char *line, size_t len)
{
	const char *colon = memchr(line, ':', len);

	if (!colon || !field_is_token(line, (size_t)(colon - line)))
		return httpd_head_refuse(reading, 400, "a line of the head is not a field");
	const char *value = colon + 1, *end = line + len;
	while (value < end && (*value == ' ' || *value == '\t'))
		value++;
	while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
		end--;
	/* Not every program takes a tab for a blank. */
	if (reading->is_request && (memchr(colon, '\t', (size_t)(value - colon)) ||
					   memchr(end, '\t', (size_t)(line + len - end))))
		return httpd_head_refuse(reading, 400, "a field has a tab around its value");
	AUTO_FREE char *name = str_lower(line, (size_t)(colon - line));
	if (reading->is_request && is_framing_in_disguise(name))
		return httpd_head_refuse(
			reading, 400, "a field is called nearly as one that gives a length");
	strv_addf(&reading->head->headers, "%s: %.*s", name, (int)(end - value), value);
	return 0;
}

static size_t count_fields(const struct strv *headers, const char *name)
{
	size_t n = 0, len = strlen(name);

	vec_foreach (char *, header, headers)
		n += strncmp(*header, name, len) == 0 && (*header)[len] == ':';
	return n;
}

/* Digits only, and none before them that changes nothing. */
static bool parse_length(const char *text, uint64_t *ret)
{
	size_t len = strlen(text);

	return len <= LENGTH_DIGITS_MAX && (text[0] != '0' || len == 1) && field_number(text, ret);
}

static bool httpd_head_is_word(const char *text, size_t len, const char *word)
{
	AUTO_FREE char *lower = str_lower(text, len);

	return str_eq(lower, word);
}

/*
 * Connection
 */

/* Without these a request is another one. */
static const char *const end_to_end[] = {"host", "content-length", "transfer-encoding", "origin"};

struct options {
	bool close, keep_alive, upgrade;
	bool is_wrong; /* it names what must not be removed */
};

static void note_option(struct options *options, const char *text, size_t len)
{
	AUTO_FREE char *word = str_lower(text, len);

	options->close = options->close || str_eq(word, "close");
	options->keep_alive = options->keep_alive || str_eq(word, "keep-alive");
	options->upgrade = options->upgrade || str_eq(word, "upgrade");
	for (size_t i = 0; i < ARRAY_LEN(end_to_end); i++)
		options->is_wrong = options->is_wrong || str_eq(word, end_to_end[i]);
}

static void httpd_head_read_options(const struct strv *headers, struct options *ret)
{
	static const char name[] = "connection: ";

	*ret = (struct options){0};
	vec_foreach (char *, header, headers) {
		if (!str_starts(*header, name))
			continue;
		for (const char *at = *header + strlen(name); *at;) {
			size_t len = strcspn(at, ", \t");

			if (len > 0)
				note_option(ret, at, len);
			at += len;
			at += strspn(at, ", \t");
		}
	}
}

static int read_connection(const struct reading *reading)
{
	struct httpd_head *head = reading->head;
	const char *upgrade = field_find(&head->headers, "upgrade");
	struct options options;

	httpd_head_read_options(&head->headers, &options);
	if (options.is_wrong)
		return httpd_head_refuse(reading, 400, "Connection names a field that must stay");
	head->keeps_open = !options.close && (!head->is_http_1_0 || options.keep_alive);
	/* HTTP/2 would hide all later requests from the access checks. */
	head->is_upgrade =
		options.upgrade && !str_empty(upgrade) && !head->is_http_1_0 &&
		!httpd_head_is_word(upgrade, 3 < strlen(upgrade) ? 3 : strlen(upgrade), "h2c");
	return 0;
}

/*
 * Framing
 */

static int read_framing(const struct reading *reading)
{
	struct httpd_head *head = reading->head;
	const char *length = field_find(&head->headers, "content-length");
	const char *coding = field_find(&head->headers, "transfer-encoding");

	if (count_fields(&head->headers, "content-length") +
			count_fields(&head->headers, "transfer-encoding") >
		1)
		return httpd_head_refuse(
			reading, 400, "the length of the body is given more than once");
	if (length) {
		if (!parse_length(length, &head->length))
			return httpd_head_refuse(reading, 400, "Content-Length is not a number");
		head->body = head->length > 0 ? HTTPD_BODY_LENGTH : HTTPD_BODY_NONE;
	} else if (coding) {
		if (!httpd_head_is_word(coding, strlen(coding), "chunked"))
			return httpd_head_refuse(
				reading, 501, "Transfer-Encoding is another one than chunked");
		if (head->is_http_1_0)
			return httpd_head_refuse(reading, 400, "HTTP/1.0 has no Transfer-Encoding");
		head->body = HTTPD_BODY_CHUNKED;
	}
	return 0;
}

/*
 * Requests
 */

/* The name in the URL and the one in Host are the same; what is left is the path. */
static int take_authority(const struct reading *reading, const char *host)
{
	struct httpd_head *head = reading->head;
	const char *authority = head->target + strlen("http://");
	size_t len = strcspn(authority, "/?");
	AUTO_FREE char *named = str_lower(authority, len);
	AUTO_FREE char *meant = str_lower(host, strlen(host));

	if (!str_eq(named, meant))
		return httpd_head_refuse(reading, 400, "the URL and Host name different servers");
	char *path = mem_printf("%s%s", authority[len] == '/' ? "" : "/", authority + len);
	REPLACE(head->target, path);
	head->is_absolute = true;
	return 0;
}

static int check_host(const struct reading *reading)
{
	struct httpd_head *head = reading->head;
	const char *host = field_find(&head->headers, "host");
	bool is_connect = str_eq(head->method, "CONNECT");

	if (count_fields(&head->headers, "host") > 1)
		return httpd_head_refuse(reading, 400, "the request has several Hosts");
	if (!host && is_connect && head->is_http_1_0)
		return 0;
	if (!host)
		return httpd_head_refuse(reading, 400, "the request has no Host");
	if (head->target[0] != '/' && !is_connect)
		return take_authority(reading, host);
	return 0;
}

static int check_expect(const struct reading *reading)
{
	struct httpd_head *head = reading->head;
	const char *expect = field_find(&head->headers, "expect");

	if (!expect)
		return 0;
	if (!httpd_head_is_word(expect, strlen(expect), "100-continue"))
		return httpd_head_refuse(reading, 417, "Expect is another one than 100-continue");
	head->expects = !head->is_http_1_0;
	return 0;
}

static int finish_request(const struct reading *reading)
{
	struct httpd_head *head = reading->head;

	int r = check_host(reading);
	if (r == 0)
		r = check_expect(reading);
	if (r == 0)
		r = read_framing(reading);
	if (r == 0)
		r = read_connection(reading);
	if (r < 0)
		return r;
	bool is_connect = str_eq(head->method, "CONNECT");
	if (head->body != HTTPD_BODY_NONE && (head->is_upgrade || is_connect))
		return httpd_head_refuse(reading, 400, "a request for another protocol has a body");
	if (is_connect)
		head->is_upgrade = false;
	return 0;
}

/*
 * Responses
 */

/* RFC 9112, section 6.3. */
static int finish_response(const struct reading *reading, const char *method)
{
	struct httpd_head *head = reading->head;

	int r = read_framing(reading);
	if (r == 0)
		r = read_connection(reading);
	if (r < 0)
		return r;
	bool has_length = field_find(&head->headers, "content-length") ||
			  field_find(&head->headers, "transfer-encoding");
	if (head->status < 200 || head->status == 204 || head->status == 304 ||
		str_eq(method, "HEAD"))
		head->body = HTTPD_BODY_NONE;
	else if (!has_length)
		head->body = HTTPD_BODY_TO_END;
	if (head->body == HTTPD_BODY_TO_END)
		head->keeps_open = false;
	if (head->body != HTTPD_BODY_LENGTH)
		head->length = 0;
	return 0;
}

/*
 * Lines
 */

/* Parse a line of the head; len is without the line break. */
static int httpd_head_parse_line(
	const struct reading *reading, const char *line, size_t len, bool is_first)
{
	if (field_has_control(line, len))
		return httpd_head_refuse(reading, 400, "the head has control characters");
	if (is_first)
		return parse_first_line(reading, line, len);
	if (line[0] == ' ' || line[0] == '\t')
		return httpd_head_refuse(
			reading, 400, "a line of the head goes on in the next one");
	return parse_field(reading, line, len);
}

/* Check the beginning of a line that has not ended yet. */
static int check_rest(const struct reading *reading, const char *rest, size_t len, bool is_first)
{
	size_t n = len > 0 && rest[len - 1] == '\r' ? len - 1 : len;

	if (field_has_control(rest, n))
		return httpd_head_refuse(reading, 400, "the head has control characters");
	return is_first && n > 0 && rest[0] && !field_is_token(rest, 1)
		       ? httpd_head_refuse(reading, 400, "the first line is none of HTTP")
		       : 0;
}

/* 1: the head is whole. */
static int parse_lines(
	const struct reading *reading, const char *data, size_t len, size_t *ret_used)
{
	size_t max = len < HTTPD_HEAD_MAX ? len : HTTPD_HEAD_MAX;
	const char *line = data, *end;

	while ((end = memchr(line, '\n', max - (size_t)(line - data)))) {
		size_t n = (size_t)(end - line);

		if (n == 0 || end[-1] != '\r')
			return httpd_head_refuse(
				reading, 400, "a line of the head does not end in CR LF");
		if (n == 1 && line > data) {
			*ret_used = (size_t)(end + 1 - data);
			return 1;
		}
		int r = httpd_head_parse_line(reading, line, n - 1, line == data);
		if (r < 0)
			return r;
		line = end + 1;
	}
	int r = check_rest(reading, line, max - (size_t)(line - data), line == data);
	if (r < 0 || len < HTTPD_HEAD_MAX)
		return r;
	return httpd_head_refuse(
		reading, line == data ? 414 : 431, "the head is larger than 64 KiB");
}

int httpd_request_parse(const char *data, size_t len, struct httpd_head *ret, size_t *ret_used,
	int *ret_status, struct err *err)
{
	AUTO_HTTPD_HEAD struct httpd_head head = {0};
	const struct reading reading = {
		.head = &head, .is_request = true, .status = ret_status, .err = err};
	size_t used = 0;

	int r = parse_lines(&reading, data, len, &used);
	if (r <= 0)
		return r;
	r = finish_request(&reading);
	if (r < 0)
		return r;
	*ret = head;
	*ret_used = used;
	head = (struct httpd_head){0};
	return 1;
}

int httpd_response_parse(const char *data, size_t len, const char *method, struct httpd_head *ret,
	size_t *ret_used, struct err *err)
{
	AUTO_HTTPD_HEAD struct httpd_head head = {0};
	int status;
	const struct reading reading = {.head = &head, .status = &status, .err = err};
	size_t used = 0;

	int r = parse_lines(&reading, data, len, &used);
	if (r <= 0)
		return r;
	r = finish_response(&reading, method);
	if (r < 0)
		return r;
	*ret = head;
	*ret_used = used;
	head = (struct httpd_head){0};
	return 1;
}

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

const char *httpd_reason(int status)
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

static bool httpd_head_is_called(const char *header, size_t len, const char *name)
{
	return strlen(name) == len && strncmp(header, name, len) == 0;
}

/* Whether a field Connection names it. */
static bool httpd_head_is_named(const struct httpd_head *head, const char *field, size_t len)
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

/* A response without a body has no framing; of HEAD and 304 the length is that of GET. */
static bool is_vain_framing(const struct httpd_head *head, const char *header, size_t len)
{
	bool is_length = httpd_head_is_called(header, len, "content-length");
	bool is_coding = httpd_head_is_called(header, len, "transfer-encoding");

	if (head->method || head->status >= 205)
		return is_coding && head->status == 304;
	return (is_length || is_coding) && (head->status < 200 || head->status == 204);
}

static bool httpd_head_goes_on(const struct httpd_head *head, const char *header)
{
	size_t len = strcspn(header, ":");

	if (head->is_upgrade && httpd_head_is_called(header, len, "upgrade"))
		return true;
	for (size_t i = 0; i < ARRAY_LEN(of_one_hop); i++)
		if (httpd_head_is_called(header, len, of_one_hop[i]))
			return false;
	return !str_starts(header, "proxy-") && !is_vain_framing(head, header, len) &&
	       !httpd_head_is_named(head, header, len);
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

static void write_first_line(const struct httpd_head *head, const char *strip, struct buf *out)
{
	if (!head->method) {
		buf_addf(out, "HTTP/1.1 %d %s\r\n", head->status, httpd_reason(head->status));
		return;
	}
	const char *target = skip_prefix(head->target, strip);
	bool has_root = *target == '/' || str_eq(head->method, "CONNECT");
	buf_addf(out, "%s %s%s HTTP/1.%d\r\n", head->method, has_root ? "" : "/", target,
		!head->is_http_1_0);
}

static const char *connection_of(const struct httpd_head *head, bool keeps_open)
{
	if (head->is_upgrade)
		return "Upgrade";
	return keeps_open ? "keep-alive" : "close";
}

void httpd_head_write(
	const struct httpd_head *head, const char *strip, bool keeps_open, struct buf *out)
{
	write_first_line(head, strip, out);
	vec_foreach (char *, header, &head->headers) {
		if (!httpd_head_goes_on(head, *header))
			continue;
		buf_adds(out, *header);
		buf_adds(out, "\r\n");
	}
	buf_addf(out, "connection: %s\r\n\r\n", connection_of(head, keeps_open));
}
