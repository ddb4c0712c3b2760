/* SPDX-License-Identifier: Apache-2.0 */
#include "net/s3/s3_sign.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/str.h"
#include "net/stream/url.h"

static void s3_wipe(char *secret)
{
	if (secret)
		explicit_bzero(secret, strlen(secret));
	free(secret);
}

void s3_keys_done(struct s3_keys *keys)
{
	if (!keys)
		return;
	free(keys->id);
	s3_wipe(keys->secret);
	s3_wipe(keys->token);
	*keys = (struct s3_keys){0};
}

void s3_payload(const void *data, size_t len, char out[static SHA256_HEX_SIZE])
{
	uint8_t hash[SHA256_SIZE];

	digest_sha256(data, len, hash);
	hex_encode(hash, sizeof(hash), out);
}

/* By name, then by value: "=" stands behind characters that a name may have. */
static int s3_compare_params(const void *a, const void *b)
{
	const char *one = *(char *const *)a, *two = *(char *const *)b;
	size_t one_len = strcspn(one, "="), two_len = strcspn(two, "=");
	int r = memcmp(one, two, one_len < two_len ? one_len : two_len);

	if (r == 0 && one_len != two_len)
		return one_len < two_len ? -1 : 1;
	return r ? r : strcmp(one + one_len, two + two_len);
}

char *s3_query(const struct strv *params)
{
	AUTO_STRV struct strv encoded = {0};

	vec_foreach (char *, param, params) {
		size_t len = strcspn(*param, "=");
		const char *value = *param + len + ((*param)[len] == '=');
		AUTO_BUF struct buf out = buf_with(SIZE_MAX / 2);

		url_add_escaped(&out, *param, len, "");
		buf_addc(&out, '=');
		url_add_escaped(&out, value, strlen(value), "");
		strv_add_take(&encoded, buf_take(&out));
	}
	vec_sort(&encoded, s3_compare_params);
	return encoded.n ? strv_join(&encoded, "&") : mem_strdup("");
}

static int s3_compare_headers(const void *a, const void *b)
{
	const char *one = *(char *const *)a, *two = *(char *const *)b;
	size_t one_len = strcspn(one, ":"), two_len = strcspn(two, ":");
	int r = memcmp(one, two, one_len < two_len ? one_len : two_len);

	return r ? r : (one_len > two_len) - (one_len < two_len);
}

/* The canonical request but for its hash; *ret_names are those of its headers. */
static char *s3_canonical(const struct s3_sign *sign, const struct strv *headers, char **ret_names)
{
	AUTO_STRV struct strv sorted = {0}, names = {0};
	AUTO_BUF struct buf out = buf_with(SIZE_MAX / 2);

	strv_copy(&sorted, headers);
	strv_addf(&sorted, "host: %s", sign->host);
	vec_sort(&sorted, s3_compare_headers);
	buf_addf(&out, "%s\n%s\n%s\n", sign->method, sign->path, sign->query);
	vec_foreach (char *, header, &sorted) {
		size_t len = strcspn(*header, ":");
		const char *value = *header + len + 1;

		value += strspn(value, " ");
		buf_addf(&out, "%.*s:%s\n", (int)len, *header, value);
		strv_add_take(&names, mem_strndup(*header, len));
	}
	*ret_names = strv_join(&names, ";");
	buf_addf(&out, "\n%s\n%s", *ret_names, sign->payload);
	return buf_take(&out);
}

/* Each part of the scope is signed with what came of the one before. */
static void s3_signature(const struct s3_sign *sign, const char *date, const char *text,
	char out[static SHA256_HEX_SIZE])
{
	const char *parts[] = {date, sign->region, sign->service, "aws4_request", text};
	AUTO_FREE char *first = mem_printf("AWS4%s", sign->keys->secret);
	uint8_t key[SHA256_SIZE];

	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		digest_hmac(DIGEST_SHA256, i ? (const void *)key : first,
			i ? sizeof(key) : strlen(first), parts[i], strlen(parts[i]), key);
	hex_encode(key, sizeof(key), out);
	explicit_bzero(first, strlen(first));
	explicit_bzero(key, sizeof(key));
}

/* 2026-08-01T12:00:00.123Z as 20260801T120000Z. */
static void s3_date(int64_t wall_ms, char out[static CLOCK_TEXT_SIZE])
{
	char text[CLOCK_TEXT_SIZE];
	size_t n = 0;

	clock_format(wall_ms, text);
	for (const char *at = text; *at && *at != '.'; at++)
		if (*at != '-' && *at != ':')
			out[n++] = *at;
	out[n++] = 'Z';
	out[n] = '\0';
}

void s3_sign(const struct s3_sign *sign, struct strv *ret_headers, char **ret_authorization)
{
	char time[CLOCK_TEXT_SIZE], hash[SHA256_HEX_SIZE], signature[SHA256_HEX_SIZE];
	AUTO_STRV struct strv headers = {0};
	AUTO_FREE char *names = NULL;

	s3_date(sign->wall_ms, time);
	if (sign->headers)
		strv_copy(&headers, sign->headers);
	strv_addf(&headers, "x-amz-content-sha256: %s", sign->payload);
	strv_addf(&headers, "x-amz-date: %s", time);
	if (sign->keys->token)
		strv_addf(&headers, "x-amz-security-token: %s", sign->keys->token);
	AUTO_FREE char *canonical = s3_canonical(sign, &headers, &names);
	AUTO_FREE char *date = mem_strndup(time, strcspn(time, "T"));
	AUTO_FREE char *scope =
		mem_printf("%s/%s/%s/aws4_request", date, sign->region, sign->service);
	s3_payload(canonical, strlen(canonical), hash);
	AUTO_FREE char *text = mem_printf("AWS4-HMAC-SHA256\n%s\n%s\n%s", time, scope, hash);
	s3_signature(sign, date, text, signature);
	*ret_authorization =
		mem_printf("AWS4-HMAC-SHA256 Credential=%s/%s,SignedHeaders=%s,Signature=%s",
			sign->keys->id, scope, names, signature);
	*ret_headers = headers;
	headers = (struct strv){0};
}
