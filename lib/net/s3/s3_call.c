/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "net/s3/s3_impl.h"
#include "net/stream/field.h"

void s3_call_free(struct s3_call *call)
{
	struct s3 *s3 = call->s3;

	if (call->prev)
		call->prev->next = call->next;
	else
		s3->calls = call->next;
	if (call->next)
		call->next->prev = call->prev;
	s3_exchange_done(&call->x);
	if (call->upload)
		call->free_upload(call->upload);
	s3_object_done(&call->object);
	free(call->etag);
	free(call->prefix);
	free(call);
}

struct s3_call *s3_call_new(
	struct s3 *s3, const char *bucket, const char *key, s3_done_fn *done, void *ctx)
{
	struct s3_call *call = mem_alloc(1, sizeof(*call));

	call->s3 = s3;
	call->done = done;
	call->ctx = ctx;
	call->object.mtime_ms = -1;
	s3_exchange_init(&call->x, s3, bucket, key);
	call->next = s3->calls;
	if (call->next)
		call->next->prev = call;
	s3->calls = call;
	return call;
}

int s3_call_end(
	struct s3_call *call, const struct s3_object *object, struct err *error, struct err *err)
{
	AUTO_ERR struct err own = {0};
	struct s3_object last = {0};
	s3_done_fn *done = call->done;
	void *ctx = call->ctx;

	/* done may start another call, so this one is gone by then. */
	if (err_is_set(error))
		err_copy(&own, error);
	if (object) {
		last = *object;
		last.etag = mem_strdup(object->etag);
		last.key = NULL;
	}
	s3_call_free(call);
	int r = done(ctx, object ? &last : NULL, &own, err);
	s3_object_done(&last);
	return r;
}

void s3_cancel(struct s3_call *call)
{
	if (!call)
		return;
	if (call->is_in_data)
		call->is_cancelled = true;
	else
		s3_call_free(call);
}

void s3_object_read(const struct http_response *response, struct s3_object *ret)
{
	const struct strv *headers = &response->headers;
	const char *range = field_find(headers, "content-range");
	const char *etag = field_find(headers, "etag"),
		   *date = field_find(headers, "last-modified");
	const char *size = range && strchr(range, '/') ? strchr(range, '/') + 1
						       : field_find(headers, "content-length");

	REPLACE(ret->etag, mem_strdup(etag));
	ret->size = 0;
	if (size)
		field_number(size, &ret->size);
	ret->mtime_ms = date ? field_date(date) : -1;
}

void s3_add_source(struct strv *headers, const char *bucket, const char *key)
{
	AUTO_BUF struct buf path = buf_with(URL_MAX);

	/* Some servers leave %40 as it is there. */
	url_add_escaped(&path, key, strlen(key), "/@");
	strv_addf(headers, "x-amz-copy-source: /%s/%s", bucket, path.data);
}
