/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "net/s3/s3_impl.h"

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
	s3_exchange_init(&call->x, s3, bucket, key);
	call->next = s3->calls;
	if (call->next)
		call->next->prev = call;
	s3->calls = call;
	return call;
}

int s3_call_end(struct s3_call *call, struct err *error, struct err *err)
{
	AUTO_ERR struct err own = {0};
	s3_done_fn *done = call->done;
	void *ctx = call->ctx;

	/* done may start another call, so this one is gone by then. */
	if (err_is_set(error))
		err_copy(&own, error);
	s3_call_free(call);
	return done(ctx, &own, err);
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

void s3_add_source(struct strv *headers, const char *bucket, const char *key)
{
	AUTO_BUF struct buf path = buf_with(URL_MAX);

	/* Some servers leave %40 as it is there. */
	url_add_escaped(&path, key, strlen(key), "/@");
	strv_addf(headers, "x-amz-copy-source: /%s/%s", bucket, path.data);
}
