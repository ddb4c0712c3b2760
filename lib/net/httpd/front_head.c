/* SPDX-License-Identifier: Apache-2.0 */
#include "net/httpd/front_head.h"

#include <string.h>

#include "base/util/str.h"
#include "net/httpd/front.h"
#include "net/stream/field.h"

enum { METHOD_MAX = 32, LENGTH_DIGITS_MAX = 18 };

static const char token_chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
				  "!#$%&'*+-.^_`|~";

/* Where a head is read from, and what of it. */
struct reading {
	struct front_head *head;
	bool is_request;
	int *status;
	struct err *err;
};

static int refuse(const struct reading *reading, int status, const char *what)
{
	*reading->status = status;
	return err_set(reading->err, E_FRONT_HEAD, "%s", what);
}

void front_head_done(struct front_head *head)
{
	free(head->method);
	free(head->target);
	strv_done(&head->headers);
	*head = (struct front_head){0};
}

/*
 * The first line
 */

static bool is_token(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (text[i] == '\0' || !strchr(token_chars, text[i]))
			return false;
	return len > 0;
}

/* "HTTP/1.0" or "HTTP/1.1". */
static int parse_version(const struct reading *reading, const char *text, size_t len)
{
	if (len != 8 || memcmp(text, "HTTP/", 5) != 0 || !str_is_digit(text[5]) || text[6] != '.' ||
		!str_is_digit(text[7]))
		return refuse(reading, 400, "the first line has no version of HTTP");
	if (text[5] != '1' || text[7] > '1')
		return refuse(reading, 505, "the version of HTTP is neither 1.0 nor 1.1");
	reading->head->is_http_1_0 = text[7] == '0';
	return 0;
}

static int parse_method(const struct reading *reading, const char *text, size_t len)
{
	if (!is_token(text, len))
		return refuse(reading, 400, "the first line has no method");
	if (len > METHOD_MAX)
		return refuse(reading, 501, "the method is not known");
	reading->head->method = mem_strndup(text, len);
	/* TRACE and TRACK would show a page what the browser keeps from it. */
	if (str_eq(reading->head->method, "TRACE") || str_eq(reading->head->method, "TRACK"))
		return refuse(reading, 405, "the method is not allowed");
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
	struct front_head *head = reading->head;
	bool is_connect = str_eq(head->method, "CONNECT");

	if (!is_visible(text, len))
		return refuse(reading, 400, "the target of the request has bytes that are none");
	head->target = mem_strndup(text, len);
	if (is_connect ? text[0] == '/' || !memchr(text, ':', len)
		       : text[0] != '/' && !str_starts(head->target, "http://"))
		return refuse(reading, 400, "the target of the request is neither path nor URL");
	return 0;
}

static int parse_request_line(const struct reading *reading, const char *line, size_t len)
{
	const char *first = memchr(line, ' ', len);
	const char *target = first ? first + 1 : NULL;
	size_t left = target ? len - (size_t)(target - line) : 0;
	const char *second = target ? memchr(target, ' ', left) : NULL;

	if (!second)
		return refuse(reading, 400, "the first line is none of HTTP");
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
		return refuse(reading, 502, "the first line is none of HTTP");
	int status = (digits[0] - '0') * 100 + (digits[1] - '0') * 10 + (digits[2] - '0');
	if (status < 100)
		return refuse(reading, 502, "the first line is none of HTTP");
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

static bool has_control(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)text[i];

		if ((c < 0x20 && c != '\t') || c == 0x7f)
			return true;
	}
	return false;
}

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

	if (!colon || !is_token(line, (size_t)(colon - line)))
		return refuse(reading, 400, "a line of the head is not a field");
	const char *value = colon + 1, *end = line + len;
	while (value < end && (*value == ' ' || *value == '\t'))
		value++;
	while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
		end--;
	/* Not every program takes a tab for a blank. */
	if (reading->is_request && (memchr(colon, '\t', (size_t)(value - colon)) ||
					   memchr(end, '\t', (size_t)(line + len - end))))
		return refuse(reading, 400, "a field has a tab around its value");
	AUTO_FREE char *name = str_lower(line, (size_t)(colon - line));
	if (reading->is_request && is_framing_in_disguise(name))
		return refuse(reading, 400, "a field is called nearly as one that gives a length");
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

static bool is_word(const char *text, size_t len, const char *word)
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

static void read_options(const struct strv *headers, struct options *ret)
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
	struct front_head *head = reading->head;
	const char *upgrade = field_find(&head->headers, "upgrade");
	struct options options;

	read_options(&head->headers, &options);
	if (options.is_wrong)
		return refuse(reading, 400, "Connection names a field that must stay");
	head->keeps_open = !options.close && (!head->is_http_1_0 || options.keep_alive);
	/* HTTP/2 would hide all later requests from the access checks. */
	head->is_upgrade = options.upgrade && !str_empty(upgrade) && !head->is_http_1_0 &&
			   !is_word(upgrade, 3 < strlen(upgrade) ? 3 : strlen(upgrade), "h2c");
	return 0;
}

/*
 * Framing
 */

static int read_framing(const struct reading *reading)
{
	struct front_head *head = reading->head;
	const char *length = field_find(&head->headers, "content-length");
	const char *coding = field_find(&head->headers, "transfer-encoding");

	if (count_fields(&head->headers, "content-length") +
			count_fields(&head->headers, "transfer-encoding") >
		1)
		return refuse(reading, 400, "the length of the body is given more than once");
	if (length) {
		if (!parse_length(length, &head->length))
			return refuse(reading, 400, "Content-Length is not a number");
		head->body = head->length > 0 ? FRONT_BODY_LENGTH : FRONT_BODY_NONE;
	} else if (coding) {
		if (!is_word(coding, strlen(coding), "chunked"))
			return refuse(
				reading, 501, "Transfer-Encoding is another one than chunked");
		if (head->is_http_1_0)
			return refuse(reading, 400, "HTTP/1.0 has no Transfer-Encoding");
		head->body = FRONT_BODY_CHUNKED;
	}
	return 0;
}

/*
 * Requests
 */

/* The name in the URL and the one in Host are the same; what is left is the path. */
static int take_authority(const struct reading *reading, const char *host)
{
	struct front_head *head = reading->head;
	const char *authority = head->target + strlen("http://");
	size_t len = strcspn(authority, "/?");
	AUTO_FREE char *named = str_lower(authority, len);
	AUTO_FREE char *meant = str_lower(host, strlen(host));

	if (!str_eq(named, meant))
		return refuse(reading, 400, "the URL and Host name different servers");
	char *path = mem_printf("%s%s", authority[len] == '/' ? "" : "/", authority + len);
	free(head->target);
	head->target = path;
	head->is_absolute = true;
	return 0;
}

static int check_host(const struct reading *reading)
{
	struct front_head *head = reading->head;
	const char *host = field_find(&head->headers, "host");
	bool is_connect = str_eq(head->method, "CONNECT");

	if (count_fields(&head->headers, "host") > 1)
		return refuse(reading, 400, "the request has several Hosts");
	if (!host && is_connect && head->is_http_1_0)
		return 0;
	if (!host)
		return refuse(reading, 400, "the request has no Host");
	if (head->target[0] != '/' && !is_connect)
		return take_authority(reading, host);
	return 0;
}

static int check_expect(const struct reading *reading)
{
	struct front_head *head = reading->head;
	const char *expect = field_find(&head->headers, "expect");

	if (!expect)
		return 0;
	if (!is_word(expect, strlen(expect), "100-continue"))
		return refuse(reading, 417, "Expect is another one than 100-continue");
	head->expects = !head->is_http_1_0;
	return 0;
}

static int finish_request(const struct reading *reading)
{
	struct front_head *head = reading->head;

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
	if (head->body != FRONT_BODY_NONE && (head->is_upgrade || is_connect))
		return refuse(reading, 400, "a request for another protocol has a body");
	if (is_connect)
		head->is_upgrade = false;
	return 0;
}

/*
 * Answers
 */

/* RFC 9112, section 6.3. */
static int finish_answer(const struct reading *reading, const char *method)
{
	struct front_head *head = reading->head;

	int r = read_framing(reading);
	if (r == 0)
		r = read_connection(reading);
	if (r < 0)
		return r;
	bool has_length = field_find(&head->headers, "content-length") ||
			  field_find(&head->headers, "transfer-encoding");
	if (head->status < 200 || head->status == 204 || head->status == 304 ||
		str_eq(method, "HEAD"))
		head->body = FRONT_BODY_NONE;
	else if (!has_length)
		head->body = FRONT_BODY_TO_END;
	if (head->body == FRONT_BODY_TO_END)
		head->keeps_open = false;
	if (head->body != FRONT_BODY_LENGTH)
		head->length = 0;
	return 0;
}

/*
 * Lines
 */

/* Parse a line of the head; len is without the line break. */
static int parse_line(const struct reading *reading, const char *line, size_t len, bool is_first)
{
	if (has_control(line, len))
		return refuse(reading, 400, "the head has control characters");
	if (is_first)
		return parse_first_line(reading, line, len);
	if (line[0] == ' ' || line[0] == '\t')
		return refuse(reading, 400, "a line of the head goes on in the next one");
	return parse_field(reading, line, len);
}

/* Check the beginning of a line that has not ended yet. */
static int check_rest(const struct reading *reading, const char *rest, size_t len, bool is_first)
{
	size_t n = len > 0 && rest[len - 1] == '\r' ? len - 1 : len;

	if (has_control(rest, n))
		return refuse(reading, 400, "the head has control characters");
	return is_first && n > 0 && !strchr(token_chars, rest[0])
		       ? refuse(reading, 400, "the first line is none of HTTP")
		       : 0;
}

/* 1: the head is whole. */
static int parse_lines(
	const struct reading *reading, const char *data, size_t len, size_t *ret_used)
{
	size_t max = len < FRONT_HEAD_MAX ? len : FRONT_HEAD_MAX;
	const char *line = data, *end;

	while ((end = memchr(line, '\n', max - (size_t)(line - data)))) {
		size_t n = (size_t)(end - line);

		if (n == 0 || end[-1] != '\r')
			return refuse(reading, 400, "a line of the head does not end in CR LF");
		if (n == 1 && line > data) {
			*ret_used = (size_t)(end + 1 - data);
			return 1;
		}
		int r = parse_line(reading, line, n - 1, line == data);
		if (r < 0)
			return r;
		line = end + 1;
	}
	int r = check_rest(reading, line, max - (size_t)(line - data), line == data);
	if (r < 0 || len < FRONT_HEAD_MAX)
		return r;
	return refuse(reading, line == data ? 414 : 431, "the head is larger than 64 KiB");
}

int front_request_parse(const char *data, size_t len, struct front_head *ret, size_t *ret_used,
	int *ret_status, struct err *err)
{
	AUTO_FRONT_HEAD struct front_head head = {0};
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
	head = (struct front_head){0};
	return 1;
}

int front_answer_parse(const char *data, size_t len, const char *method, struct front_head *ret,
	size_t *ret_used, struct err *err)
{
	AUTO_FRONT_HEAD struct front_head head = {0};
	int status;
	const struct reading reading = {.head = &head, .status = &status, .err = err};
	size_t used = 0;

	int r = parse_lines(&reading, data, len, &used);
	if (r <= 0)
		return r;
	r = finish_answer(&reading, method);
	if (r < 0)
		return r;
	*ret = head;
	*ret_used = used;
	head = (struct front_head){0};
	return 1;
}
