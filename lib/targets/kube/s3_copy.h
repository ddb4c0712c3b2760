/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of a run that its pods have sent to S3 (upload.py of kube/job), into a sink
 * (fetch_sink.h). On the loop: done is called once, never from within the start. Objects have no
 * modes and no links: files are 0644, with the time at which they were sent.
 */
#ifndef DLRUN_TARGETS_KUBE_S3_COPY_H
#define DLRUN_TARGETS_KUBE_S3_COPY_H

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "core/target/fetch_sink.h"
#include "net/http/http.h"

struct s3_copy;
/* error: not set: all of it has come. */
typedef void s3_copy_done_fn(void *ctx, struct err *error);
struct s3_copy_request {
	struct loop *loop;
	struct http *http;
	const char *const *env; /* for keys, region and endpoint (s3.h) */
	const char *address;    /* s3://BUCKET/PATH, below which they are */
	struct fetch_sink *sink;
	s3_copy_done_fn *done;
	void *ctx;
};
/* All but address is borrowed. E_S3_CONFIG, E_HTTP_URL. */
int s3_copy_start(const struct s3_copy_request *request, struct s3_copy **ret, struct err *err);
/* NULL is accepted. */
void s3_copy_cancel(struct s3_copy *copy);

#endif
