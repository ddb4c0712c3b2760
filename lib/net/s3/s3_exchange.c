/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/env.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/str.h"
#include "net/s3/s3_impl.h"
#include "net/stream/field.h"

enum {
	S3_BACKOFF_FIRST_MS = 200,
	S3_BACKOFF_MAX_MS = 10 * 1000,
	S3_RETRY_AFTER_MAX_MS = 60 * 1000,
	S3_HASH_CHUNK = 256 << 10,
};

static int s3_exchange_send(struct s3_exchange *x, struct err *err);

void s3_exchange_init(struct s3_exchange *x, struct s3 *s3, const char *bucket, const char *key)
{
	*x = (struct s3_exchange){.s3 = s3, .bucket = mem_strdup(bucket), .key = mem_strdup(key)};
	s3_payload("", 0, x->payload);
}

static void s3_exchange_stop(struct s3_exchange *x)
{
	loop_remove_timer(x->s3->loop, x->timer);
	x->timer = NULL;
	http_cancel(x->call);
	x->call = NULL;
	s3_login_cancel(x->s3->login, x);
}

void s3_exchange_done(struct s3_exchange *x)
{
	if (!x->s3)
		return;
	s3_exchange_stop(x);
	free(x->bucket);
	free(x->key);
	strv_done(&x->params);
	strv_done(&x->headers);
	err_done(&x->early);
	*x = (struct s3_exchange){0};
}

static int s3_exchange_due(void *ctx, struct err *err)
{
	struct s3_exchange *x = ctx;

	x->timer = NULL;
	return s3_exchange_send(x, err);
}

static void s3_exchange_later(struct s3_exchange *x, int64_t ms)
{
	x->timer = loop_add_timer(x->s3->loop, clock_ms() + ms, s3_exchange_due, x);
}

void s3_exchange_start(struct s3_exchange *x, const char *method, s3_ended_fn *ended, void *ctx)
{
	x->method = method;
	x->ended = ended;
	x->ctx = ctx;
	x->tries = 0;
	x->is_renewed = x->is_skewed = x->is_moved = x->is_explained = false;
	x->may_repeat = true;
	s3_exchange_later(x, 0);
}

static int s3_exchange_fail(struct s3_exchange *x, struct err *error, struct err *err)
{
	return x->ended(x, NULL, error, err);
}

/*
 * Sending
 */

int s3_exchange_set_body(struct s3_exchange *x, const struct s3_put *put, uint64_t offset,
	uint64_t size, struct err *err)
{
	AUTO_DIGEST struct digest digest = {0};
	uint8_t hash[SHA256_SIZE];

	x->body = (struct http_body){.size = size};
	digest_begin(&digest, DIGEST_SHA256);
	if (put->data) {
		x->body.data = (const char *)put->data + offset;
		digest_add(&digest, x->body.data, size);
	} else {
		AUTO_FREE char *chunk = mem_alloc(1, S3_HASH_CHUNK);

		x->body.fd = put->fd;
		x->body.has_fd = size > 0;
		x->body.offset = put->offset + offset;
		for (uint64_t at = 0; at < size;) {
			size_t want =
				size - at < S3_HASH_CHUNK ? (size_t)(size - at) : S3_HASH_CHUNK;
			ssize_t n = pread(put->fd, chunk, want, (off_t)(x->body.offset + at));

			if (n < 0 && errno == EINTR)
				continue;
			if (n < 0)
				return err_set_errno(err, E_IO, errno, "reading what goes to S3");
			if (n == 0)
				return err_set(err, E_IO_CHANGED,
					"the file has become shorter while it was sent to S3");
			digest_add(&digest, chunk, (size_t)n);
			at += (uint64_t)n;
		}
	}
	digest_end(&digest, hash);
	hex_encode(hash, sizeof(hash), x->payload);
	return 0;
}

static const char *s3_region(const struct s3_exchange *x)
{
	const struct strv *regions = &x->s3->regions;
	const char *known = regions->n ? env_get((const char *const *)regions->v, x->bucket) : NULL;

	return known ? known : x->s3->profile.region;
}

/* Buckets are part of the name at AWS, but for names that no certificate covers. */
static int s3_exchange_url(const struct s3_exchange *x, struct url *ret, struct err *err)
{
	const struct s3 *s3 = x->s3;
	bool in_host = !s3->has_endpoint && !strchr(x->bucket, '.');
	AUTO_FREE char *query = s3_query(&x->params);
	AUTO_FREE char *host = NULL;
	AUTO_BUF struct buf path = buf_with(URL_MAX);

	if (s3->has_endpoint) {
		host = url_authority(&s3->endpoint);
		buf_adds(&path, s3->endpoint.path);
		while (path.len > 0 && path.data[path.len - 1] == '/')
			buf_truncate(&path, path.len - 1);
	} else {
		const char *region = s3_region(x);

		host = mem_printf("%s%ss3.%s.amazonaws.com%s", in_host ? x->bucket : "",
			in_host ? "." : "", region, str_starts(region, "cn-") ? ".cn" : "");
	}
	if (!in_host) {
		buf_addc(&path, '/');
		buf_adds(&path, x->bucket);
	}
	if (*x->key || in_host)
		buf_addc(&path, '/');
	url_add_escaped(&path, x->key, strlen(x->key), "/");
	if (*query)
		buf_addf(&path, "?%s", query);
	int r = buf_check(&path, "the address of an object in S3", err);
	if (r == 0)
		r = url_make(!s3->has_endpoint || s3->endpoint.tls, host, path.data, ret, err);
	return r;
}

static int s3_exchange_on_response(void *ctx, struct http_response *response, struct err *err);

static int s3_exchange_on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct s3_exchange *x = ctx;

	return x->data(x->ctx, data, len, err);
}

static int s3_exchange_with_keys(void *ctx, const struct s3_keys *keys, unsigned generation,
	struct err *error, struct err *err)
{
	struct s3_exchange *x = ctx;
	AUTO_URL struct url url = {0};
	AUTO_STRV struct strv headers = {0};

	if (err_is_set(error))
		return s3_exchange_fail(x, error, err);
	if (s3_exchange_url(x, &url, error) < 0)
		return s3_exchange_fail(x, error, err);
	AUTO_FREE char *host = url_authority(&url);
	AUTO_FREE char *path = mem_strndup(url.path, strcspn(url.path, "?"));
	AUTO_FREE char *query = s3_query(&x->params);
	AUTO_FREE char *authorization = NULL;
	struct s3_sign sign = {
		.method = x->method,
		.host = host,
		.path = path,
		.query = query,
		.headers = &x->headers,
		.region = s3_region(x),
		.service = "s3",
		.payload = x->payload,
		.wall_ms = clock_wall_ms() + x->s3->skew_ms,
		.keys = keys,
	};
	x->generation = generation;
	s3_sign(&sign, &headers, &authorization);
	struct http_request request = {
		.method = x->method,
		.url = &url,
		.headers = &headers,
		.authorization = authorization,
		.body = x->body,
		.tls = &x->s3->profile.tls,
		.max_body = S3_BODY_MAX,
		.data = x->data ? s3_exchange_on_data : NULL,
		.done = s3_exchange_on_response,
		.ctx = x,
	};
	x->call = http_start(x->s3->http, &request);
	return 0;
}

static int s3_exchange_send(struct s3_exchange *x, struct err *err)
{
	x->tries++;
	if (err_is_set(&x->early))
		return s3_exchange_fail(x, &x->early, err);
	if (x->prepare)
		x->prepare(x);
	return s3_login_want(x->s3->login, s3_exchange_with_keys, x, err);
}

/*
 * Responses
 */

enum s3_verdict { S3_FINAL, S3_BUSY, S3_EXPIRED, S3_SKEWED, S3_MOVED };

/* Codes of the document "Error" (S3 API reference, "Error Responses"). */
static const struct {
	const char *code;
	enum s3_verdict verdict;
	enum err_id id;
} s3_codes[] = {
	{"AccessDenied", S3_FINAL, E_S3_DENIED},
	{"AllAccessDisabled", S3_FINAL, E_S3_DENIED},
	{"AuthorizationHeaderMalformed", S3_MOVED, E_S3_AUTH},
	{"ExpiredToken", S3_EXPIRED, E_S3_AUTH},
	{"InternalError", S3_BUSY, E_S3_BUSY},
	{"InvalidAccessKeyId", S3_EXPIRED, E_S3_AUTH},
	{"InvalidToken", S3_EXPIRED, E_S3_AUTH},
	{"NoSuchBucket", S3_FINAL, E_S3_NOT_FOUND},
	{"NoSuchKey", S3_FINAL, E_S3_NOT_FOUND},
	{"NoSuchUpload", S3_FINAL, E_S3_NOT_FOUND},
	{"PermanentRedirect", S3_MOVED, E_S3_RESPONSE},
	{"PreconditionFailed", S3_FINAL, E_S3_CHANGED},
	{"RequestTimeTooSkewed", S3_SKEWED, E_S3_AUTH},
	{"RequestTimeout", S3_BUSY, E_S3_BUSY},
	{"ServiceUnavailable", S3_BUSY, E_S3_BUSY},
	{"SignatureDoesNotMatch", S3_FINAL, E_S3_AUTH},
	{"SlowDown", S3_BUSY, E_S3_BUSY},
	{"TemporaryRedirect", S3_MOVED, E_S3_RESPONSE},
	{"Throttling", S3_BUSY, E_S3_BUSY},
	{"TokenRefreshRequired", S3_EXPIRED, E_S3_AUTH},
	{"XAmzContentSHA256Mismatch", S3_FINAL, E_IO_CHANGED},
};

/* The same by the status, for a response without such a document. */
static const struct {
	int status;
	enum s3_verdict verdict;
	enum err_id id;
} s3_statuses[] = {
	{301, S3_MOVED, E_S3_RESPONSE},
	{307, S3_MOVED, E_S3_RESPONSE},
	{401, S3_FINAL, E_S3_AUTH},
	{403, S3_FINAL, E_S3_DENIED},
	{404, S3_FINAL, E_S3_NOT_FOUND},
	{412, S3_FINAL, E_S3_CHANGED},
	{429, S3_BUSY, E_S3_BUSY},
	{500, S3_BUSY, E_S3_BUSY},
	{502, S3_BUSY, E_S3_BUSY},
	{503, S3_BUSY, E_S3_BUSY},
	{504, S3_BUSY, E_S3_BUSY},
};

struct s3_refusal {
	char *code, *message, *region; /* or NULL */
	enum s3_verdict verdict;
	enum err_id id;
};

static void s3_refusal_done(struct s3_refusal *refusal)
{
	free(refusal->code);
	free(refusal->message);
	free(refusal->region);
}

static void s3_refusal_read(const struct http_response *response, struct s3_refusal *ret)
{
	const char *text = response->body.data;
	size_t len = response->body.len;

	*ret = (struct s3_refusal){.code = s3_xml_find(text, len, "Error/Code"),
		.message = s3_xml_find(text, len, "Error/Message"),
		.region = s3_xml_find(text, len, "Error/Region"),
		.id = E_S3_RESPONSE};
	for (size_t i = 0; i < ARRAY_LEN(s3_statuses); i++) {
		if (s3_statuses[i].status != response->status)
			continue;
		ret->verdict = s3_statuses[i].verdict;
		ret->id = s3_statuses[i].id;
	}
	for (size_t i = 0; ret->code && i < ARRAY_LEN(s3_codes); i++) {
		if (!str_eq(s3_codes[i].code, ret->code))
			continue;
		ret->verdict = s3_codes[i].verdict;
		ret->id = s3_codes[i].id;
	}
	if (!ret->region)
		ret->region = mem_strdup(field_find(&response->headers, "x-amz-bucket-region"));
	if (ret->region && !str_eq(ret->code, "AuthorizationHeaderMalformed") &&
		response->status == 400)
		ret->verdict = S3_MOVED;
}

/* A region becomes part of a host's name. */
static bool s3_is_region(const char *text)
{
	return text && *text && strlen(text) < 64 &&
	       text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-")] == '\0';
}

/* Whether the exchange goes on as the refusal makes possible; then it has been sent again. */
static bool s3_exchange_heal(struct s3_exchange *x, const struct http_response *response,
	const struct s3_refusal *refusal)
{
	bool *is_done = refusal->verdict == S3_EXPIRED  ? &x->is_renewed
			: refusal->verdict == S3_SKEWED ? &x->is_skewed
							: &x->is_moved;
	const char *date = field_find(&response->headers, "date");

	if (*is_done)
		return false;
	*is_done = true;
	if (refusal->verdict == S3_EXPIRED) {
		if (!s3_login_refuse(x->s3->login, x->generation))
			return false;
	} else if (refusal->verdict == S3_SKEWED) {
		int64_t server_ms = date ? field_date(date) : -1;

		if (server_ms < 0)
			return false;
		x->s3->skew_ms = server_ms - clock_wall_ms();
	} else {
		if (!s3_is_region(refusal->region) || str_eq(refusal->region, s3_region(x)))
			return false;
		AUTO_FREE char *pair = mem_printf("%s=%s", x->bucket, refusal->region);
		env_set(&x->s3->regions, pair, false);
	}
	s3_exchange_later(x, 0);
	return true;
}

static int64_t s3_exchange_wait_ms(
	const struct s3_exchange *x, const struct http_response *response)
{
	const char *text = field_find(&response->headers, "retry-after");
	int64_t asked_ms = text ? field_retry_after(text, clock_wall_ms()) : -1;
	int64_t ms = backoff_jitter_ms(x->tries, S3_BACKOFF_FIRST_MS, S3_BACKOFF_MAX_MS);

	if (asked_ms > S3_RETRY_AFTER_MAX_MS)
		asked_ms = S3_RETRY_AFTER_MAX_MS;
	return asked_ms > ms ? asked_ms : ms;
}

static char *s3_exchange_shown(const struct s3_exchange *x)
{
	AUTO_FREE char *whole = mem_printf("s3://%s%s%s", x->bucket, *x->key ? "/" : "", x->key);

	return str_escaped(whole);
}

static void s3_refusal_hint(
	const struct s3_exchange *x, const struct s3_refusal *refusal, struct err *error)
{
	if (str_eq(refusal->code, "NoSuchBucket"))
		err_hint(error, "aws s3 mb s3://%s", x->bucket);
	else if (str_eq(refusal->code, "RequestTimeTooSkewed"))
		err_hint(error, "date -u   # the clock of this machine differs from that of S3");
	else if (refusal->id == E_S3_AUTH || refusal->id == E_S3_DENIED)
		err_hint(error, "aws sts get-caller-identity");
	if (refusal->id == E_S3_AUTH || refusal->id == E_S3_DENIED)
		err_evidence(error, "keys from %s", s3_login_source(x->s3->login));
	err_evidence(error, "at %s", x->s3->host);
}

static int s3_exchange_refused(struct s3_exchange *x, const struct http_response *response,
	const struct s3_refusal *refusal, struct err *err)
{
	AUTO_ERR struct err error = {0};
	AUTO_FREE char *shown = s3_exchange_shown(x);
	AUTO_FREE char *code = refusal->code ? str_shown(refusal->code) : NULL;
	AUTO_FREE char *message = refusal->message ? str_escaped(refusal->message) : NULL;

	if (message && strlen(message) > 300)
		message[300] = '\0';
	err_set(&error, refusal->id, "%s: %s%s%s (status %d)", shown,
		code ? code : "no reason given", message ? ": " : "", message ? message : "",
		response->status);
	s3_refusal_hint(x, refusal, &error);
	return s3_exchange_fail(x, &error, err);
}

/* HEAD says no more than a status: the same is asked so that a document comes. */
static bool s3_exchange_explain(struct s3_exchange *x, const struct http_response *response)
{
	if (!str_eq(x->method, "HEAD") || x->is_explained ||
		(response->status != 400 && response->status != 403))
		return false;
	x->is_explained = true;
	x->method = "GET";
	strv_add(&x->headers, "range: bytes=0-0");
	s3_exchange_later(x, 0);
	return true;
}

static int s3_exchange_on_response(void *ctx, struct http_response *response, struct err *err)
{
	struct s3_exchange *x = ctx;
	AUTO(s3_refusal_done) struct s3_refusal refusal = {0};
	bool is_good = response->status >= 200 && response->status < 300;
	bool may_repeat = x->tries < S3_TRIES && x->may_repeat;
	AUTO_ERR struct err none = {0};

	x->call = NULL;
	x->is_beyond = response->status == 416;
	if (response->status == 0) {
		if (!may_repeat || !response->is_transient)
			return s3_exchange_fail(x, &response->error, err);
		s3_exchange_later(x, s3_exchange_wait_ms(x, response));
		return 0;
	}
	if (!is_good || x->checks_body)
		s3_refusal_read(response, &refusal);
	if (is_good && !refusal.code)
		return x->ended(x, response, &none, err);
	if (refusal.verdict == S3_BUSY && may_repeat) {
		s3_exchange_later(x, s3_exchange_wait_ms(x, response));
		return 0;
	}
	if (refusal.verdict > S3_BUSY && s3_exchange_heal(x, response, &refusal))
		return 0;
	if (s3_exchange_explain(x, response))
		return 0;
	return s3_exchange_refused(x, response, &refusal, err);
}
