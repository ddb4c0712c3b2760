/* SPDX-License-Identifier: Apache-2.0 */
#include "net/httpd/httpd_token.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "net/httpd/httpd.h"

enum { TOKEN_LEN = HTTPD_TOKEN_SIZE - 1, TOKEN_BYTES = TOKEN_LEN / 2 };

#define COOKIE "dlrun-token-"

/* The values that a head is checked against while tokens are taken out, and the result. */
struct taking {
	const char *token;
	char of_host[HTTPD_TOKEN_SIZE];
	char cookie[sizeof(COOKIE) + 5]; /* the name of the server's own */
	struct httpd_proof proof;
};

/* A part of a value. */
struct span {
	const char *at;
	size_t len;
};

void httpd_token_make(char ret[static HTTPD_TOKEN_SIZE])
{
	uint8_t bytes[TOKEN_BYTES];

	random_bytes(bytes, sizeof(bytes));
	hex_encode(bytes, sizeof(bytes), ret);
}

void httpd_token_of(const char *token, const char *host, char ret[static HTTPD_TOKEN_SIZE])
{
	uint8_t mac[SHA1_SIZE];

	digest_hmac(DIGEST_SHA1, token, strlen(token), host, strlen(host), mac);
	hex_encode(mac, TOKEN_BYTES, ret);
}

static bool httpd_token_is_token(struct span text, const char *token)
{
	return text.len == TOKEN_LEN && str_is_secret(text.at, token, TOKEN_LEN);
}

static struct span httpd_token_trim(const char *at, size_t len)
{
	while (len > 0 && (*at == ' ' || *at == '\t')) {
		at++;
		len--;
	}
	while (len > 0 && (at[len - 1] == ' ' || at[len - 1] == '\t'))
		len--;
	return (struct span){at, len};
}

/* The text in front of the first `by`, which is skipped; *text is NULL at the end. */
static struct span httpd_token_next(const char **text, char by)
{
	const char *end = strchr(*text, by);
	struct span part = {*text, end ? (size_t)(end - *text) : strlen(*text)};

	*text = end ? end + 1 : NULL;
	return part;
}

/* Split a pair into the parts in front of and behind "=". */
static void httpd_token_split(struct span pair, struct span *ret_name, struct span *ret_value)
{
	const char *equals = memchr(pair.at, '=', pair.len);
	size_t len = equals ? (size_t)(equals - pair.at) : pair.len;
	size_t passed = equals ? len + 1 : len;

	*ret_name = (struct span){pair.at, len};
	*ret_value = (struct span){pair.at + passed, pair.len - passed};
}

/*
 * The query
 */

/* Without percent-encoding, as far as it fits into out. */
static struct span httpd_token_decode(struct span text, char *out, size_t size)
{
	size_t n = 0;

	for (size_t i = 0; i < text.len && n < size; i++) {
		uint8_t byte = (uint8_t)text.at[i];

		if (byte == '%' && text.len - i > 2 && hex_decode(text.at + i + 1, 1, &byte))
			i += 2;
		out[n++] = (char)byte;
	}
	return (struct span){out, n};
}

static bool httpd_token_take_param(struct taking *taking, struct span pair)
{
	char names[sizeof(HTTPD_TOKEN_PARAM)], values[HTTPD_TOKEN_SIZE];
	struct span name, value;

	httpd_token_split(pair, &name, &value);
	name = httpd_token_decode(name, names, sizeof(names));
	if (name.len != strlen(HTTPD_TOKEN_PARAM) ||
		memcmp(name.at, HTTPD_TOKEN_PARAM, name.len) != 0)
		return false;
	value = httpd_token_decode(value, values, sizeof(values));
	taking->proof.was_in_url = true;
	if (httpd_token_is_token(value, taking->token) ||
		httpd_token_is_token(value, taking->of_host))
		taking->proof.url_is_right = true;
	return true;
}

static void take_query(struct taking *taking, struct httpd_head *head)
{
	const char *query = strchr(head->target, '?');
	AUTO_BUF struct buf left = buf_with(HTTPD_HEAD_MAX);

	if (!query)
		return;
	for (const char *at = query + 1; at;) {
		struct span pair = httpd_token_next(&at, '&');

		if (httpd_token_take_param(taking, pair))
			continue;
		buf_addc(&left, '&');
		buf_add(&left, pair.at, pair.len);
	}
	if (!taking->proof.was_in_url)
		return;
	char *target = mem_printf("%.*s%s%s", (int)(query - head->target), head->target,
		left.len > 1 ? "?" : "", left.len > 1 ? left.data + 1 : "");
	REPLACE(head->target, target);
}

/*
 * Fields
 */

static bool take_cookie(struct taking *taking, struct span pair)
{
	struct span name, value;

	httpd_token_split(pair, &name, &value);
	name = httpd_token_trim(name.at, name.len);
	value = httpd_token_trim(value.at, value.len);
	if (name.len < strlen(COOKIE) || memcmp(name.at, COOKIE, strlen(COOKIE)) != 0)
		return false;
	if (name.len == strlen(taking->cookie) && memcmp(name.at, taking->cookie, name.len) == 0 &&
		httpd_token_is_token(value, taking->of_host))
		taking->proof.field_is_right = true;
	return true;
}

/* Remove token cookies from the field; NULL: nothing is left of it. */
static char *take_cookies(struct taking *taking, const char *header, const char *value)
{
	AUTO_BUF struct buf left = buf_with(HTTPD_HEAD_MAX);
	bool was_taken = false;

	for (const char *at = value; at;) {
		struct span pair = httpd_token_next(&at, ';');

		pair = httpd_token_trim(pair.at, pair.len);
		if (take_cookie(taking, pair)) {
			was_taken = true;
		} else if (pair.len > 0) {
			buf_adds(&left, left.len ? "; " : "");
			buf_add(&left, pair.at, pair.len);
		}
	}
	if (!was_taken)
		return mem_strdup(header);
	return left.len ? mem_printf("cookie: %s", left.data) : NULL;
}

static void take_password(struct taking *taking, const char *value)
{
	static const char scheme[] = "basic ";
	AUTO_BUF struct buf pair = buf_with(HTTPD_HEAD_MAX);

	if (strncasecmp(value, scheme, strlen(scheme)) != 0)
		return;
	struct span text = httpd_token_trim(value + strlen(scheme), strlen(value + strlen(scheme)));
	if (!base64_decode(text.at, text.len, &pair))
		return;
	const char *colon = memchr(pair.data, ':', pair.len);
	if (!colon)
		return;
	struct span password = {colon + 1, pair.len - (size_t)(colon + 1 - pair.data)};
	if (httpd_token_is_token(password, taking->token))
		taking->proof.field_is_right = true;
}

static void httpd_token_take_fields(struct taking *taking, struct httpd_head *head)
{
	static const char cookie[] = "cookie: ", password[] = "proxy-authorization: ";
	struct strv left = {0};

	vec_foreach (char *, header, &head->headers) {
		char *kept = NULL;

		if (str_starts(*header, cookie))
			kept = take_cookies(taking, *header, *header + strlen(cookie));
		else if (str_starts(*header, password))
			take_password(taking, *header + strlen(password));
		else
			kept = TAKE(*header);
		if (kept)
			strv_add_take(&left, kept);
	}
	strv_done(&head->headers);
	head->headers = left;
}

static void name_cookie(uint16_t port, char ret[static sizeof(COOKIE) + 5])
{
	snprintf(ret, sizeof(COOKIE) + 5, COOKIE "%u", port);
}

void httpd_token_take(const char *token, const char *host, uint16_t port, struct httpd_head *head,
	struct httpd_proof *ret)
{
	struct taking taking = {.token = token};

	httpd_token_of(token, host, taking.of_host);
	name_cookie(port, taking.cookie);
	take_query(&taking, head);
	httpd_token_take_fields(&taking, head);
	*ret = taking.proof;
}

char *httpd_token_cookie(const char *token, const char *host, uint16_t port)
{
	char name[sizeof(COOKIE) + 5], value[HTTPD_TOKEN_SIZE];

	name_cookie(port, name);
	httpd_token_of(token, host, value);
	return mem_printf("%s=%s; Path=/; HttpOnly; SameSite=Lax", name, value);
}
