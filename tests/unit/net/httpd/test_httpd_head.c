/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/httpd/httpd.h"
#include "net/httpd/httpd_head.h"

/* 0: more is needed; 200: taken. */
static int parse_status(const char *data, size_t len, struct httpd_head *ret)
{
	AUTO_ERR struct err err = {0};
	size_t used = 0;
	int status = 0;

	int r = httpd_request_parse(data, len, ret, &used, &status, &err);
	if (r < 0) {
		assert_int_equal(err.id, E_HTTPD_HEAD);
		return status;
	}
	assert_true(r == 0 || used == len);
	return r ? 200 : 0;
}

#define H    "Host: localhost:8000\r\n"
#define GET  "GET / HTTP/1.1\r\n" H
#define POST "POST / HTTP/1.1\r\n" H

static const struct {
	const char *name, *text;
	int status;
} requests[] = {
	{"plain", GET "\r\n", 200},
	{"values", GET "A:b\r\nC:  d e \r\nF:\r\n\r\n", 200},
	{"not ASCII", GET "A: \xc3\xa4\r\n\r\n", 200},
	{"HTTP/1.0", "GET / HTTP/1.0\r\n" H "\r\n", 200},
	{"absolute", "GET http://localhost:8000/a?b HTTP/1.1\r\n" H "\r\n", 200},
	{"absolute without path", "GET http://localhost:8000 HTTP/1.1\r\n" H "\r\n", 200},
	{"length", POST "Content-Length: 5\r\n\r\n", 200},
	{"chunked", POST "Transfer-Encoding: Chunked\r\n\r\n", 200},
	{"CONNECT", "CONNECT a.localhost:1 HTTP/1.1\r\nHost: a.localhost:1\r\n\r\n", 200},
	{"CONNECT of HTTP/1.0", "CONNECT a.localhost:1 HTTP/1.0\r\n\r\n", 200},
	{"Expect", POST "Expect: 100-Continue\r\nContent-Length: 1\r\n\r\n", 200},
	/* Not whole. */
	{"nothing", "", 0},
	{"a part", "GET / HT", 0},
	{"half a line end", GET "\r", 0},
	/* Lengths. */
	{"CL and TE", POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
	{"TE and CL", POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400},
	{"two CL", POST "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
	{"the same CL twice", POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400},
	{"a list of CL", POST "Content-Length: 5, 5\r\n\r\n", 400},
	{"CL with a sign", POST "Content-Length: +5\r\n\r\n", 400},
	{"negative CL", POST "Content-Length: -5\r\n\r\n", 400},
	{"CL with a blank", POST "Content-Length: 5 5\r\n\r\n", 400},
	{"empty CL", POST "Content-Length: \r\n\r\n", 400},
	{"hexadecimal CL", POST "Content-Length: 0x5\r\n\r\n", 400},
	{"CL with a zero", POST "Content-Length: 05\r\n\r\n", 400},
	{"CL with a point", POST "Content-Length: 5.0\r\n\r\n", 400},
	{"huge CL", POST "Content-Length: 18446744073709551621\r\n\r\n", 400},
	{"CL, too", POST "Content_Length: 5\r\n\r\n", 400},
	{"TE, too", POST "Transfer_Encoding: chunked\r\n\r\n", 400},
	{"two TE", POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
	{"chunked twice", POST "Transfer-Encoding: chunked, chunked\r\n\r\n", 501},
	{"chunked and another", POST "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
	{"chunked and identity", POST "Transfer-Encoding: chunked, identity\r\n\r\n", 501},
	{"xchunked", POST "Transfer-Encoding: xchunked\r\n\r\n", 501},
	{"quoted", POST "Transfer-Encoding: \"chunked\"\r\n\r\n", 501},
	{"empty TE", POST "Transfer-Encoding:\r\n\r\n", 501},
	{"chunked and a parameter", POST "Transfer-Encoding: chunked;a=b\r\n\r\n", 501},
	{"tab before", POST "Transfer-Encoding:\tchunked\r\n\r\n", 400},
	{"tab behind", POST "Transfer-Encoding: chunked\t\r\n\r\n", 400},
	{"vertical tab", POST "Transfer-Encoding: \vchunked\r\n\r\n", 400},
	{"blank in the name", POST "Transfer-Encoding : chunked\r\n\r\n", 400},
	{"blank before the name", POST " Transfer-Encoding: chunked\r\n\r\n", 400},
	{"TE of HTTP/1.0", "POST / HTTP/1.0\r\n" H "Transfer-Encoding: chunked\r\n\r\n", 400},
	{"CL removed", POST "Content-Length: 5\r\nConnection: content-length\r\n\r\n", 400},
	{"upgrade with body", POST "Connection: Upgrade\r\nUpgrade: x\r\nContent-Length: 1\r\n\r\n",
		400},
	/* Lines. */
	{"folded", GET "A: b\r\n c\r\n\r\n", 400},
	{"folded by a tab", GET "A: b\r\n\tc\r\n\r\n", 400},
	{"bare LF", "GET / HTTP/1.1\nHost: localhost:8000\r\n\r\n", 400},
	{"bare LF at the end", GET "\n", 400},
	{"bare LF in a value", GET "A: b\nC: d\r\n\r\n", 400},
	{"bare CR", GET "A: b\rC: d\r\n\r\n", 400},
	{"two CR", GET "A: b\r\r\n\r\n", 400},
	{"escape", GET "A: \x1b[m\r\n\r\n", 400},
	{"delete", GET "A: \x7f\r\n\r\n", 400},
	{"no colon", GET "A\r\n\r\n", 400},
	{"no name", GET ": a\r\n\r\n", 400},
	{"odd name", GET "A(b): a\r\n\r\n", 400},
	{"not ASCII name", GET "\xc3\xa4: a\r\n\r\n", 400},
	{"empty line first", "\r\n" GET "\r\n", 400},
	/* Hosts. */
	{"no Host", "GET / HTTP/1.1\r\n\r\n", 400},
	{"no Host of HTTP/1.0", "GET / HTTP/1.0\r\n\r\n", 400},
	{"two Hosts", GET H "\r\n", 400},
	{"another Host", "GET http://evil.example/ HTTP/1.1\r\n" H "\r\n", 400},
	{"another port", "GET http://localhost/ HTTP/1.1\r\n" H "\r\n", 400},
	{"user", "GET http://a@localhost:8000/ HTTP/1.1\r\n" H "\r\n", 400},
	{"Host removed", GET "Connection: close, Host\r\n\r\n", 400},
	/* First lines. */
	{"HTTP/0.9", "GET /\r\n", 400},
	{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
	{"HTTP/1.2", "GET / HTTP/1.2\r\n" H "\r\n", 505},
	{"no version", "GET / HTTP\r\n" H "\r\n", 400},
	{"version in small letters", "GET / http/1.1\r\n" H "\r\n", 400},
	{"version with more", "GET / HTTP/1.10\r\n" H "\r\n", 400},
	{"two blanks", "GET  / HTTP/1.1\r\n" H "\r\n", 400},
	{"two blanks later", "GET /  HTTP/1.1\r\n" H "\r\n", 400},
	{"blank behind", "GET / HTTP/1.1 \r\n" H "\r\n", 400},
	{"blank before", " GET / HTTP/1.1\r\n" H "\r\n", 400},
	{"tab", "GET\t/\tHTTP/1.1\r\n" H "\r\n", 400},
	{"no method", " / HTTP/1.1\r\n" H "\r\n", 400},
	{"odd method", "GE(T / HTTP/1.1\r\n" H "\r\n", 400},
	{"long method", "GETGETGETGETGETGETGETGETGETGETGET / HTTP/1.1\r\n" H "\r\n", 501},
	{"TRACE", "TRACE / HTTP/1.1\r\n" H "\r\n", 405},
	{"asterisk", "OPTIONS * HTTP/1.1\r\n" H "\r\n", 400},
	{"https", "GET https://localhost:8000/ HTTP/1.1\r\n" H "\r\n", 400},
	{"no path", "GET a HTTP/1.1\r\n" H "\r\n", 400},
	{"fragment", "GET /#a HTTP/1.1\r\n" H "\r\n", 400},
	{"not ASCII path", "GET /\xc3\xa4 HTTP/1.1\r\n" H "\r\n", 400},
	{"TLS", "\x16\x03\x01", 400},
	{"CONNECT to a path", "CONNECT / HTTP/1.1\r\n" H "\r\n", 400},
	{"CONNECT without port", "CONNECT a.localhost HTTP/1.1\r\n" H "\r\n", 400},
	{"CONNECT with body", "CONNECT a:1 HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n", 400},
	{"another Expect", POST "Expect: 200-ok\r\n\r\n", 417},
};

static void test_requests(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(requests); i++) {
		AUTO_HTTPD_HEAD struct httpd_head head = {0};
		int status = parse_status(requests[i].text, strlen(requests[i].text), &head);
		if (status != requests[i].status)
			fail_msg("%s: %d", requests[i].name, status);
	}
}

static void test_nul(void **state)
{
	static const char *const places[] = {"GET /@ HTTP/1.1\r\n" H "\r\n", GET "A@: b\r\n\r\n",
		GET "A: @b\r\n\r\n", GET "@", "@", GET "A: b\r@\n\r\n"};

	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		AUTO_HTTPD_HEAD struct httpd_head head = {0};
		AUTO_FREE char *text = mem_strdup(places[i]);
		*strchr(text, '@') = '\0';
		assert_int_equal(parse_status(text, strlen(places[i]), &head), 400);
	}
}

/* Each part of a head is either not enough yet, or refused as the whole is. */
static void test_cut(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(requests); i++) {
		size_t len = strlen(requests[i].text);
		for (size_t n = 0; n < len; n++) {
			AUTO_HTTPD_HEAD struct httpd_head head = {0};
			int status = parse_status(requests[i].text, n, &head);
			if (status != 0 && (status != requests[i].status || status == 200))
				fail_msg("%s cut at %zu: %d", requests[i].name, n, status);
		}
	}
}

static void test_large(void **state)
{
	AUTO_BUF struct buf buf = {0};
	AUTO_HTTPD_HEAD struct httpd_head head = {0};

	buf_init(&buf, 1 << 20);
	buf_adds(&buf, "GET /");
	while (buf.len < HTTPD_HEAD_MAX - 1)
		buf_addc(&buf, 'a');
	assert_int_equal(parse_status(buf.data, buf.len, &head), 0);
	buf_addc(&buf, 'a');
	assert_int_equal(parse_status(buf.data, buf.len, &head), 414);
	buf_reset(&buf);
	buf_adds(&buf, GET "A: ");
	while (buf.len < HTTPD_HEAD_MAX - 4)
		buf_addc(&buf, 'a');
	buf_adds(&buf, "\r\n\r\n");
	assert_int_equal(parse_status(buf.data, buf.len, &head), 200);
	buf_truncate(&buf, buf.len - 4);
	buf_adds(&buf, "a\r\n\r\n");
	httpd_head_done(&head);
	assert_int_equal(parse_status(buf.data, buf.len, &head), 431);
}

static void takes(const char *text, struct httpd_head *ret)
{
	assert_int_equal(parse_status(text, strlen(text), ret), 200);
}

static void test_what_is_read(void **state)
{
	AUTO_HTTPD_HEAD struct httpd_head a = {0}, b = {0}, c = {0}, d = {0}, e = {0};

	takes(GET "Connection: foo, Upgrade\r\nUpgrade: websocket\r\n\r\n", &a);
	assert_true(a.is_upgrade && a.keeps_open && a.body == HTTPD_BODY_NONE && !a.is_http_1_0);
	assert_string_equal(a.method, "GET");
	assert_string_equal(a.target, "/");
	assert_string_equal(a.headers.v[0], "host: localhost:8000");
	takes(GET "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", &b);
	assert_false(b.is_upgrade);
	takes("POST /a?b HTTP/1.0\r\n" H "Content-Length: 7\r\nConnection: Keep-Alive\r\n\r\n", &c);
	assert_true(c.keeps_open && c.is_http_1_0 && c.body == HTTPD_BODY_LENGTH && c.length == 7);
	takes("GET http://LocalHost:8000?a HTTP/1.1\r\n" H "Connection: close\r\n\r\n", &d);
	assert_false(d.keeps_open);
	assert_string_equal(d.target, "/?a");
	takes(POST "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n", &e);
	assert_true(e.expects && e.body == HTTPD_BODY_CHUNKED);
}

/*
 * Answers
 */

static const struct {
	const char *text, *method;
	int status; /* -1: refused */
	enum httpd_body body;
	bool keeps_open;
} responses[] = {
	{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", "GET", 200, HTTPD_BODY_LENGTH, true},
	{"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "GET", 200, HTTPD_BODY_NONE, true},
	{"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n", "GET", 200, HTTPD_BODY_CHUNKED,
		true},
	{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\n", "GET", 200,
		HTTPD_BODY_LENGTH, false},
	{"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", "GET", 200, HTTPD_BODY_LENGTH, false},
	{"HTTP/1.1 200 OK\r\n\r\n", "GET", 200, HTTPD_BODY_TO_END, false},
	{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", "HEAD", 200, HTTPD_BODY_NONE, true},
	{"HTTP/1.1 204 No\r\n\r\n", "GET", 204, HTTPD_BODY_NONE, true},
	{"HTTP/1.1 304 No\r\nContent-Length: 3\r\n\r\n", "GET", 304, HTTPD_BODY_NONE, true},
	{"HTTP/1.1 100 Continue\r\n\r\n", "GET", 100, HTTPD_BODY_NONE, true},
	{"HTTP/1.1 200 OK\r\nA:\tb\r\nContent-Length: 0\r\n\r\n", "GET", 200, HTTPD_BODY_NONE,
		true},
	{"HTTP/1.1 20 OK\r\n\r\n", "GET", -1, 0, false},
	{"HTTP/1.1 099 OK\r\n\r\n", "GET", -1, 0, false},
	{"HTTP/1.1 2000 OK\r\n\r\n", "GET", -1, 0, false},
	{"HTTP/2.0 200 OK\r\n\r\n", "GET", -1, 0, false},
	{"SSH-2.0-OpenSSH_9.2\r\n", "GET", -1, 0, false},
	{"HTTP/1.1 200 OK\n\n", "GET", -1, 0, false},
	{"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "GET", -1, 0, false},
	{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", "GET", -1, 0, false},
	{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", -1, 0,
		false},
	{"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", -1, 0, false},
};

static void test_responses(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(responses); i++) {
		AUTO_HTTPD_HEAD struct httpd_head head = {0};
		size_t used = 0;
		int r = httpd_response_parse(responses[i].text, strlen(responses[i].text),
			responses[i].method, &head, &used, NULL);
		if ((r < 0) != (responses[i].status < 0) || r == 0)
			fail_msg("%s: %d", responses[i].text, r);
		if (r < 0)
			continue;
		assert_int_equal(used, strlen(responses[i].text));
		assert_int_equal(head.status, responses[i].status);
		assert_int_equal(head.body, responses[i].body);
		assert_int_equal(head.keeps_open, responses[i].keeps_open);
	}
}

/*
 * Chunks
 */

static const struct {
	const char *text;
	int r;
	size_t used;
} bodies[] = {
	{"0\r\n\r\nrest", 1, 5},
	{"5\r\nhello\r\n00\r\n\r\n", 1, 16},
	{"A\r\n0123456789\r\n0\r\n\r\n", 1, 20},
	{"5\r\nhel", 0, 6},
	{"", 0, 0},
	{"5;a=b\r\nhello\r\n0\r\n\r\n", -1, 0},
	{"5 \r\nhello\r\n0\r\n\r\n", -1, 0},
	{" 5\r\nhello\r\n0\r\n\r\n", -1, 0},
	{"5\nhello\r\n0\r\n\r\n", -1, 0},
	{"5\r\nhello0\r\n\r\n", -1, 0},
	{"5\r\nhello\n0\r\n\r\n", -1, 0},
	{"-5\r\nhello\r\n0\r\n\r\n", -1, 0},
	{"+5\r\nhello\r\n0\r\n\r\n", -1, 0},
	{"0x5\r\nhello\r\n0\r\n\r\n", -1, 0},
	{"\r\nhello\r\n0\r\n\r\n", -1, 0},
	{"ffffffffffffffff\r\n", -1, 0},
	{"0000000000000005\r\n", -1, 0},
	{"10000000000000005\r\nhello\r\n0\r\n\r\n", -1, 0},
	{"0\r\nA: b\r\n\r\n", -1, 0},
	{"0\r\n\n", -1, 0},
	{"0\n", -1, 0},
};

static void test_chunks(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
		struct httpd_chunks whole = {0}, pieces = {0};
		size_t len = strlen(bodies[i].text), used = 0, total = 0;
		int r = httpd_chunks_feed(&whole, bodies[i].text, len, &used, NULL);
		if ((r < 0 ? -1 : r) != bodies[i].r)
			fail_msg("%s: %d", bodies[i].text, r);
		assert_int_equal(used, bodies[i].used);
		int r2 = 0;
		for (size_t n = 0; n < len && r2 == 0; n++, total += r2 < 0 ? 0 : used)
			r2 = httpd_chunks_feed(&pieces, bodies[i].text + n, 1, &used, NULL);
		assert_int_equal(r2, r);
		assert_true(r < 0 || total == bodies[i].used);
		/* What is broken stays so. */
		if (r < 0)
			assert_true(httpd_chunks_feed(&whole, "0\r\n\r\n", 5, &used, NULL) < 0);
	}
}

/*
 * Heads that go on
 */

static void test_write(void **state)
{
	AUTO_HTTPD_HEAD struct httpd_head plain = {0}, upgrade = {0}, response = {0};
	AUTO_BUF struct buf out = {0};
	size_t used;
	static const char said[] =
		"HTTP/1.1 204 Nothing\r\nContent-Length: 0\r\nX: y\r\nConnection: close\r\n\r\n";

	buf_init(&out, 1 << 16);
	takes("POST /pre/a?b HTTP/1.1\r\n" H "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
	      "Keep-Alive: 5\r\nTE: trailers\r\nTrailer: a\r\nProxy-Authorization: b\r\n"
	      "Upgrade: h2c\r\nCookie: c=d\r\nOrigin: http://localhost:8000\r\n"
	      "Content-Length: 3\r\n\r\n",
		&plain);
	httpd_head_write(&plain, "/pre", true, &out);
	assert_string_equal(out.data,
		"POST /a?b HTTP/1.1\r\nhost: localhost:8000\r\ncookie: c=d\r\n"
		"origin: http://localhost:8000\r\ncontent-length: 3\r\nconnection: keep-alive\r\n\r\n");
	buf_reset(&out);
	takes("GET /pre HTTP/1.1\r\n" H "Connection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n",
		&upgrade);
	httpd_head_write(&upgrade, "/pre", true, &out);
	assert_string_equal(out.data,
		"GET / HTTP/1.1\r\nhost: localhost:8000\r\nupgrade: WebSocket\r\n"
		"connection: Upgrade\r\n\r\n");
	buf_reset(&out);
	httpd_head_write(&upgrade, "/pr", true, &out);
	assert_true(str_starts(out.data, "GET /pre HTTP/1.1\r\n"));
	buf_reset(&out);
	assert_int_equal(
		httpd_response_parse(said, strlen(said), "GET", &response, &used, NULL), 1);
	httpd_head_write(&response, NULL, true, &out);
	assert_string_equal(
		out.data, "HTTP/1.1 204 No Content\r\nx: y\r\nconnection: keep-alive\r\n\r\n");
}

static void test_rename(void **state)
{
	static const char requested[] = "8888.run.localhost:8000", own[] = "localhost:8888";
	AUTO_HTTPD_HEAD struct httpd_head request = {0}, response = {0};
	AUTO_BUF struct buf out = {0};
	size_t used;
	static const char said[] = "HTTP/1.1 302 Found\r\nLocation: http://LOCALHOST:8888/a?b\r\n"
				   "Content-Location: http://localhost:8888/c\r\n"
				   "Access-Control-Allow-Origin: http://localhost:8888\r\n"
				   "X-Forwarded-Host: d\r\nContent-Length: 0\r\n\r\n";

	buf_init(&out, 1 << 16);
	takes("GET /a HTTP/1.1\r\nHost: 8888.run.localhost:8000\r\nHosts: x\r\n"
	      "Origin: http://8888.RUN.localhost:8000\r\nX-Forwarded-Host: evil\r\n"
	      "Referer: http://8888.run.localhost:80001/\r\nX-Forwarded-Proto: https\r\n\r\n",
		&request);
	httpd_head_rename(&request, requested, own);
	httpd_head_write(&request, NULL, true, &out);
	assert_string_equal(out.data,
		"GET /a HTTP/1.1\r\nhost: localhost:8888\r\nhosts: x\r\n"
		"origin: http://localhost:8888\r\nreferer: http://8888.run.localhost:80001/\r\n"
		"x-forwarded-host: 8888.run.localhost:8000\r\nx-forwarded-proto: http\r\n"
		"connection: keep-alive\r\n\r\n");
	buf_reset(&out);
	assert_int_equal(
		httpd_response_parse(said, strlen(said), "GET", &response, &used, NULL), 1);
	httpd_head_rename(&response, own, requested);
	httpd_head_write(&response, NULL, true, &out);
	assert_string_equal(out.data,
		"HTTP/1.1 302 Found\r\nlocation: http://8888.run.localhost:8000/a?b\r\n"
		"content-location: http://localhost:8888/c\r\n"
		"access-control-allow-origin: http://8888.run.localhost:8000\r\n"
		"x-forwarded-host: d\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n");
}

/*
 * Hosts and origins
 */

static void test_hosts(void **state)
{
	static const struct {
		const char *value, *name;
	} rows[] = {
		{"localhost:8000", "localhost"},
		{"LOCALHOST:8000", "localhost"},
		{"127.0.0.1:8000", "127.0.0.1"},
		{"[::1]:8000", "::1"},
		{"6006.Run-1.localhost:8000", "6006.run-1.localhost"},
		{"a_b.localhost:8000", "a_b.localhost"},
		{"localhost", NULL},
		{"localhost:8001", NULL},
		{"localhost:08000", "localhost"},
		{"localhost:+8000", NULL},
		{"localhost:73536", NULL},
		{"localhost:", NULL},
		{"localhost.:8000", NULL},
		{".localhost:8000", NULL},
		{"a..localhost:8000", NULL},
		{"a b.localhost:8000", NULL},
		{"localhost.evil.example:8000", NULL},
		{"evil.example:8000", NULL},
		{"notlocalhost:8000", NULL},
		{"a@localhost:8000", NULL},
		{"127.0.0.2:8000", NULL},
		{"127.1:8000", NULL},
		{"0.0.0.0:8000", NULL},
		{"192.168.0.1:8000", NULL},
		{"[::2]:8000", NULL},
		{"[::1:8000", NULL},
		{"::1:8000", NULL},
		{"[::ffff:127.0.0.1]:8000", NULL},
		{"", NULL},
		{":8000", NULL},
	};
	char name[HTTPD_HOST_MAX];

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		bool is_here = httpd_host_is_here(rows[i].value, 8000, name);
		if (is_here != (rows[i].name != NULL))
			fail_msg("%s", rows[i].value);
		if (is_here)
			assert_string_equal(name, rows[i].name);
	}
	assert_true(httpd_host_is_here("localhost", 80, name));
	AUTO_FREE char *longest = mem_printf("%0245d.localhost:8000", 0);
	AUTO_FREE char *longer = mem_printf("%0246d.localhost:8000", 0);
	assert_true(httpd_host_is_here(longest, 8000, name));
	assert_false(httpd_host_is_here(longer, 8000, name));
}

#define WS "Connection: Upgrade\r\nUpgrade: websocket\r\n"

static void test_origins(void **state)
{
	static const struct {
		const char *text;
		bool is_right, any_is_right;
	} rows[] = {
		{GET "\r\n", true, true},
		{POST "\r\n", true, true},
		{GET "Origin: http://localhost:8000\r\n\r\n", true, true},
		{POST "Origin: http://LOCALHOST:8000\r\n\r\n", true, true},
		{GET "Origin: http://evil.example\r\n\r\n", false, true},
		{GET "Origin: null\r\n\r\n", false, true},
		{POST "Origin: null\r\n\r\n", false, false},
		{POST "Origin: http://evil.example:8000\r\n\r\n", false, false},
		{POST "Origin: http://localhost\r\n\r\n", false, false},
		{POST "Origin: http://localhost:8001\r\n\r\n", false, false},
		{POST "Origin: https://localhost:8000\r\n\r\n", false, false},
		{POST "Origin: http://a.localhost:8000\r\n\r\n", false, false},
		{POST "Origin: http://localhost:8000.evil.example\r\n\r\n", false, false},
		{POST "Origin: \r\n\r\n", false, false},
		{POST "Origin: http://localhost:8000\r\nOrigin: http://evil.example\r\n\r\n", false,
			false},
		{GET WS "Origin: http://localhost:8000\r\n\r\n", true, true},
		{GET WS "Origin: http://evil.example\r\n\r\n", false, false},
		{"OPTIONS / HTTP/1.1\r\n" H "Origin: http://evil.example\r\n\r\n", false, false},
		{GET "Sec-Fetch-Site: same-origin\r\n\r\n", true, true},
		{GET "Sec-Fetch-Site: none\r\n\r\n", true, true},
		{GET "Sec-Fetch-Site: cross-site\r\n\r\n", false, false},
		{POST "Sec-Fetch-Site: cross-site\r\n\r\n", false, false},
		{GET "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n\r\n", false,
			false},
		{GET "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"
		     "Sec-Fetch-Dest: document\r\n"
		     "Referer: http://evil.example:8000/\r\n\r\n",
			false, false},
		{GET "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n"
		     "Referer: http://a.localhost:8000/\r\n\r\n",
			false, false},
		{GET "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"
		     "Sec-Fetch-Dest: document\r\n"
		     "Referer: http://a.localhost:8001/\r\n\r\n",
			false, false},
		{GET "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"
		     "Sec-Fetch-Dest: document\r\n"
		     "Referer: http://a.localhost:8000/b\r\n\r\n",
			true, true},
		{GET "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"
		     "Sec-Fetch-Dest: iframe\r\nReferer: http://a.localhost:8000/b\r\n\r\n",
			false, false},
		{POST "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"
		      "Sec-Fetch-Dest: document\r\n"
		      "Referer: http://a.localhost:8000/b\r\n\r\n",
			false, false},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_HTTPD_HEAD struct httpd_head head = {0};
		takes(rows[i].text, &head);
		if (httpd_origin_is_right(&head, false) != rows[i].is_right ||
			httpd_origin_is_right(&head, true) != rows[i].any_is_right)
			fail_msg("%s", rows[i].text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_requests),
		cmocka_unit_test(test_nul),
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_large),
		cmocka_unit_test(test_what_is_read),
		cmocka_unit_test(test_responses),
		cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_write),
		cmocka_unit_test(test_rename),
		cmocka_unit_test(test_hosts),
		cmocka_unit_test(test_origins),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
