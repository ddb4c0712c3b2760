/* SPDX-License-Identifier: Apache-2.0 */
#include "net/s3/s3.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/s3/s3_impl.h"

enum { S3_EMPTY_PAGES_MAX = 100 };

static const char s3_scheme[] = "s3://";

void s3_address_done(struct s3_address *address)
{
	free(address->bucket);
	free(address->key);
	*address = (struct s3_address){0};
}

/* Amazon's rule, and upper case and underscores, which other servers and old buckets have. */
static bool s3_is_bucket(const char *name, size_t len)
{
	static const char may[] =
		"abcdefghijklmnopqrstuvwxyz0123456789.-_ABCDEFGHIJKLMNOPQRSTUVWXYZ";

	return len >= 3 && len <= 255 && strspn(name, may) >= len && *name != '.' && *name != '-';
}

int s3_address_parse(const char *text, struct s3_address *ret, struct err *err)
{
	const char *bucket = text + sizeof(s3_scheme) - 1;
	AUTO_FREE char *shown = str_shown(text);

	if (!str_starts(text, s3_scheme))
		return err_set(err, E_S3_CONFIG, "%s is not of the form s3://BUCKET/PATH", shown);
	size_t len = strcspn(bucket, "/");
	const char *key = bucket + len + (bucket[len] == '/');
	size_t key_len = strlen(key);
	while (key_len > 0 && key[key_len - 1] == '/')
		key_len--;
	if (!s3_is_bucket(bucket, len))
		return err_set(err, E_S3_CONFIG,
			"%s names no bucket: a bucket has a name of at least 3 letters, digits, . _ or -",
			shown);
	if (key_len > S3_KEY_MAX || !str_is_utf8(key, key_len) || *key == '/')
		return err_set(err, E_S3_CONFIG, "%s does not name a path in a bucket", shown);
	ret->bucket = mem_strndup(bucket, len);
	ret->key = mem_strndup(key, key_len);
	return 0;
}

/*
 * The client
 */

int s3_open(struct loop *loop, struct http *http, const char *const *env, struct s3 **ret,
	struct err *err)
{
	AUTO_S3 struct s3 *s3 = mem_alloc(1, sizeof(*s3));
	int r = s3_profile_read(env, &s3->profile, err);

	s3->loop = loop;
	s3->http = http;
	if (r == 0 && s3->profile.endpoint) {
		r = url_parse(s3->profile.endpoint, "the endpoint of S3", &s3->endpoint, err);
		s3->has_endpoint = r == 0;
	}
	if (r < 0)
		return r;
	s3->host = s3->has_endpoint ? url_authority(&s3->endpoint)
				    : mem_printf("s3.%s.amazonaws.com", s3->profile.region);
	s3->login = s3_login_new(loop, http, env, &s3->profile);
	*ret = TAKE(s3);
	return 0;
}

void s3_free(struct s3 *s3)
{
	if (!s3)
		return;
	while (s3->calls)
		s3_call_free(s3->calls);
	s3_login_free(s3->login);
	s3_profile_done(&s3->profile);
	url_done(&s3->endpoint);
	strv_done(&s3->regions);
	free(s3->host);
	free(s3);
}

/* A call of one exchange. */
static int s3_call_ended(struct s3_exchange *x, struct http_response *response UNUSED,
	struct err *error, struct err *err)
{
	return s3_call_end(x->ctx, error, err);
}

static int s3_delete_ended(struct s3_exchange *x, struct http_response *response UNUSED,
	struct err *error, struct err *err)
{
	if (error->id == E_S3_NOT_FOUND && !strstr(error->message, "NoSuchBucket"))
		err_clear(error);
	return s3_call_end(x->ctx, error, err);
}

struct s3_call *s3_delete(
	struct s3 *s3, const char *bucket, const char *key, s3_done_fn *done, void *ctx)
{
	struct s3_call *call = s3_call_new(s3, bucket, key, done, ctx);

	s3_exchange_start(&call->x, "DELETE", s3_delete_ended, call);
	return call;
}

/*
 * Lists
 */

static void s3_list_start(struct s3_call *call, const char *token);

/* Callers take the prefix off. */
static int s3_list_check(const struct s3_call *call, size_t from, struct err *err)
{
	for (size_t i = from; i < call->list->n; i++) {
		AUTO_FREE char *shown = str_shown(call->list->v[i].key);

		if (!str_starts(call->list->v[i].key, call->prefix))
			return err_set(err, E_S3_RESPONSE, "%s lists %s, which was not requested",
				call->x.s3->host, shown);
	}
	return 0;
}

static int s3_list_ended(
	struct s3_exchange *x, struct http_response *response, struct err *error, struct err *err)
{
	struct s3_call *call = x->ctx;
	AUTO_FREE char *token = NULL;

	if (!response)
		return s3_call_end(call, error, err);
	size_t before = call->list->n;
	int r = s3_xml_page(response->body.data, response->body.len, call->list, &token, error);
	if (r == 0)
		r = s3_list_check(call, before, error);
	call->n_empty = call->list->n > before ? 0 : call->n_empty + 1;
	if (r == 0 && token && call->n_empty > S3_EMPTY_PAGES_MAX)
		r = err_set(error, E_S3_RESPONSE, "%s lists nothing, again and again", x->s3->host);
	if (r == 0 &&
		(call->list->n > call->list_max || (token && call->list->n == call->list_max))) {
		while (call->list->n > call->list_max)
			s3_object_done(&call->list->v[--call->list->n]);
		r = err_set(error, E_DATA_LIMIT, "more than %zu objects in s3://%s", call->list_max,
			x->bucket);
	}
	if (r < 0 || !token)
		return s3_call_end(call, error, err);
	s3_list_start(call, token);
	return 0;
}

static void s3_list_start(struct s3_call *call, const char *token)
{
	struct strv *params = &call->x.params;

	strv_done(params);
	strv_add(params, "list-type=2");
	strv_add(params, "encoding-type=url");
	if (call->is_flat)
		strv_add(params, "delimiter=/");
	strv_addf(params, "prefix=%s", call->prefix);
	if (token)
		strv_addf(params, "continuation-token=%s", token);
	s3_exchange_start(&call->x, "GET", s3_list_ended, call);
}

static struct s3_call *s3_list_new(struct s3 *s3, const char *bucket, const char *prefix,
	size_t max, bool is_flat, struct s3_objects *ret, s3_done_fn *done, void *ctx)
{
	struct s3_call *call = s3_call_new(s3, bucket, "", done, ctx);

	call->list = ret;
	call->list_max = max;
	call->is_flat = is_flat;
	call->prefix = mem_strdup(prefix);
	s3_list_start(call, NULL);
	return call;
}

struct s3_call *s3_list(struct s3 *s3, const char *bucket, const char *prefix, size_t max,
	struct s3_objects *ret, s3_done_fn *done, void *ctx)
{
	return s3_list_new(s3, bucket, prefix, max, false, ret, done, ctx);
}

struct s3_call *s3_list_flat(struct s3 *s3, const char *bucket, const char *prefix, size_t max,
	struct s3_objects *ret, s3_done_fn *done, void *ctx)
{
	return s3_list_new(s3, bucket, prefix, max, true, ret, done, ctx);
}

/*
 * Gets
 */

static int s3_get_on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct s3_call *call = ctx;

	call->taken += len;
	/* As long as bytes come it goes on, however often it is cut. */
	call->x.tries = 1;
	call->x.may_repeat = call->etag && (!call->max || call->taken < call->max);
	call->is_in_data = true;
	int r = call->data(call->ctx, data, len, err);
	call->is_in_data = false;
	if (!call->is_cancelled)
		return r;
	s3_call_free(call);
	return 0;
}

static void s3_get_prepare(struct s3_exchange *x)
{
	struct s3_call *call = x->ctx;
	uint64_t from = call->offset + call->taken;

	strv_done(&x->headers);
	if (call->etag)
		strv_addf(&x->headers, "if-match: %s", call->etag);
	if (call->max)
		strv_addf(&x->headers, "range: bytes=%llu-%llu", (unsigned long long)from,
			(unsigned long long)(call->offset + call->max - 1));
	else if (from)
		strv_addf(&x->headers, "range: bytes=%llu-", (unsigned long long)from);
}

static int s3_get_ended(
	struct s3_exchange *x, struct http_response *response, struct err *error, struct err *err)
{
	struct s3_call *call = x->ctx;

	/* Behind the end is also where a get goes on that was cut behind the last byte. */
	if (!response && x->is_beyond)
		err_clear(error);
	if (response && response->status == 200 &&
		(call->offset || call->taken > response->bytes_down))
		err_set(error, E_S3_RESPONSE, "%s does not give parts of objects", x->s3->host);
	return s3_call_end(call, error, err);
}

struct s3_call *s3_get(struct s3 *s3, const struct s3_get *get)
{
	struct s3_call *call = s3_call_new(s3, get->bucket, get->key, get->done, get->ctx);

	call->data = get->data;
	call->offset = get->offset;
	call->max = get->max;
	call->etag = mem_strdup(get->etag);
	call->x.data = s3_get_on_data;
	call->x.prepare = s3_get_prepare;
	s3_exchange_start(&call->x, "GET", s3_get_ended, call);
	return call;
}

/*
 * Puts
 */

struct s3_call *s3_put(struct s3 *s3, const struct s3_put *put)
{
	if (put->size > S3_SINGLE_MAX || put->n_pieces)
		return s3_upload_start(s3, put);
	struct s3_call *call = s3_call_new(s3, put->bucket, put->key, put->done, put->ctx);
	if (s3_exchange_set_body(&call->x, put, 0, put->size, &call->x.early) == 0 && put->check)
		put->check(put->ctx, call->x.payload, &call->x.early);
	s3_exchange_start(&call->x, "PUT", s3_call_ended, call);
	return call;
}

/*
 * Copies
 */

struct s3_call *s3_copy(struct s3 *s3, const char *bucket, const char *key, const char *from,
	s3_done_fn *done, void *ctx)
{
	struct s3_call *call = s3_call_new(s3, bucket, key, done, ctx);

	s3_add_source(&call->x.headers, bucket, from);
	call->x.checks_body = true;
	s3_exchange_start(&call->x, "PUT", s3_call_ended, call);
	return call;
}
