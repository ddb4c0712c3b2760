/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/api/expiry.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/str.h"

enum { CLAIMS_MAX = 64 << 10, CERTIFICATE_MAX = 64 << 10 };

/* The last second of the year 9999. */
#define SECONDS_MAX 253402300799

/*
 * JSON Web Tokens
 */

/* base64url without padding (RFC 4648, section 5). */
static bool decode_url(const char *text, size_t len, struct buf *out)
{
	AUTO_BUF struct buf plain;

	buf_init(&plain, CLAIMS_MAX);
	for (size_t i = 0; i < len; i++)
		buf_addc(&plain, text[i] == '-' ? '+' : text[i] == '_' ? '/' : text[i]);
	while (plain.len % 4 && !plain.full)
		buf_addc(&plain, '=');
	return !plain.full && base64_decode(plain.data, plain.len, out);
}

int64_t kube_expiry_token(const char *token)
{
	AUTO_BUF struct buf claims;
	AUTO_JSON struct json *json = NULL;
	const char *begin = strchr(token, '.'), *end = begin ? strchr(begin + 1, '.') : NULL;

	buf_init(&claims, CLAIMS_MAX);
	if (!end || !decode_url(begin + 1, (size_t)(end - begin - 1), &claims) ||
		json_parse(claims.data, claims.len, CLAIMS_MAX, "a token", &json, NULL) < 0)
		return 0;
	double seconds = json_get_num(json, "exp", 0);
	return seconds > 0 && seconds < SECONDS_MAX ? (int64_t)seconds * 1000 : 0;
}

/*
 * Certificates
 */

/* The unread rest of a DER encoding (X.690). */
struct der {
	const uint8_t *at, *end;
};

/* The next element: its tag, and its contents in ret. -1: there is none. */
static int next(struct der *der, struct der *ret)
{
	const uint8_t *at = der->at;
	size_t len, left = (size_t)(der->end - at);
	int tag;

	if (left < 2)
		return -1;
	tag = at[0];
	len = at[1];
	at += 2;
	if (len & 0x80) {
		size_t bytes = len & 0x7f;
		if (bytes == 0 || bytes > 3 || left < 2 + bytes)
			return -1;
		for (len = 0; bytes > 0; bytes--)
			len = len << 8 | *at++;
	}
	if (len > (size_t)(der->end - at))
		return -1;
	*ret = (struct der){at, at + len};
	der->at = at + len;
	return tag;
}

enum { DER_SEQUENCE = 0x30, DER_UTC_TIME = 0x17, DER_TIME = 0x18, DER_VERSION = 0xa0 };

/* YYMMDDHHMMSSZ of 1950 to 2049, or YYYYMMDDHHMMSSZ. */
static int64_t read_time(int tag, const struct der *der)
{
	char text[16], rfc[32];
	size_t len = (size_t)(der->end - der->at), year = tag == DER_UTC_TIME ? 2 : 4;
	int64_t ms = 0;

	if ((tag != DER_UTC_TIME && tag != DER_TIME) || len != year + 11 || der->at[len - 1] != 'Z')
		return 0;
	memcpy(text, der->at, len);
	text[len] = '\0';
	const char *rest = text + year;
	snprintf(rfc, sizeof(rfc), "%s%.*s-%.2s-%.2sT%.2s:%.2s:%.2sZ",
		year == 4       ? ""
		: text[0] < '5' ? "20"
				: "19",
		(int)year, text, rest, rest + 2, rest + 4, rest + 6, rest + 8);
	return clock_parse(rfc, &ms, NULL) < 0 ? 0 : ms;
}

/* Certificate { tbsCertificate { version [0], serialNumber, signature, issuer, validity … */
static int64_t not_after(const uint8_t *data, size_t len)
{
	struct der all = {data, data + len}, certificate, tbs, item, validity;
	int tag;

	if (next(&all, &certificate) != DER_SEQUENCE || next(&certificate, &tbs) != DER_SEQUENCE)
		return 0;
	tag = next(&tbs, &item);
	if (tag == DER_VERSION)
		tag = next(&tbs, &item);
	for (int i = 0; i < 2 && tag >= 0; i++)
		tag = next(&tbs, &item);
	if (tag < 0 || next(&tbs, &validity) != DER_SEQUENCE || next(&validity, &item) < 0)
		return 0;
	tag = next(&validity, &item);
	return tag < 0 ? 0 : read_time(tag, &item);
}

int64_t kube_expiry_certificate(const char *pem)
{
	static const char begin[] = "-----BEGIN CERTIFICATE-----", end[] = "-----END";
	const char *at = strstr(pem, begin), *stop = at ? strstr(at + 1, end) : NULL;
	AUTO_BUF struct buf text, data;

	buf_init(&text, CERTIFICATE_MAX);
	buf_init(&data, CERTIFICATE_MAX);
	if (!stop)
		return 0;
	for (at += strlen(begin); at < stop; at++)
		if (!strchr(" \t\r\n", *at))
			buf_addc(&text, *at);
	if (text.full || !base64_decode(text.data, text.len, &data))
		return 0;
	return not_after((const uint8_t *)data.data, data.len);
}
