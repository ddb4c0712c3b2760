/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of Amazon EC2 Auto Scaling and Amazon EC2 on the loop, for several regions. Requests are
 * signed (s3_sign.h) with keys from where AWS's tools take them (s3_login.h); the pages of a list
 * are requested one after the other; what is throttled or fails for a moment is repeated with full
 * jitter until the deadline.
 */
#ifndef DLRUN_NET_AWS_AWS_H
#define DLRUN_NET_AWS_AWS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "net/aws/aws_xml.h"
#include "net/http/http.h"

enum {
	AWS_BODY_MAX = 32 << 20,
	AWS_PAGES_MAX = 500,
	AWS_TRIES = 10, /* of one page */
	AWS_BACKOFF_FIRST_MS = 200,
	AWS_BACKOFF_MAX_MS = 8 * 1000,
};

struct aws;
/* loop, http and env (NULL-ended) are borrowed. AWS_ENDPOINT_URL_AUTO_SCALING,
 * AWS_ENDPOINT_URL_EC2, AWS_ENDPOINT_URL and the settings of the profile name other endpoints, by
 * https, or by http on this machine. E_SCALE_SETTINGS: they are none; E_S3_CONFIG: the files of
 * AWS's tools. */
int aws_open(struct loop *loop, struct http *http, const char *const *env, struct aws **ret,
	struct err *err);
/* Calls that are left are given up. NULL is accepted. */
void aws_free(struct aws *aws);
AUTO_POINTER(struct aws, aws_free)
#define AUTO_AWS AUTO(aws_free_auto)

/* A region becomes part of a host's name. */
bool aws_is_region(const char *text);

/* Zero is success; else error is set: E_SCALE_PROVIDER, or those of keys. */
struct aws_result {
	enum aws_class class;
	bool is_unknown; /* the request may have had its effect */
	struct err error;
};
/* result is the client's. */
typedef int aws_done_fn(void *ctx, struct aws_result *result, struct err *err);

/* All but into and ctx is copied. */
struct aws_request {
	enum aws_service service;
	const char *region, *action;
	const struct strv *params; /* of aws_form; NULL: none */
	bool is_once;              /* not repeated where it may have had its effect */
	int64_t deadline_ms;       /* of clock_ms() */
	aws_read_fn *read;         /* of each page; of one that fails the page is requested again */
	void *into;
	aws_done_fn *done;
	void *ctx;
};
/* done is called once, from the loop, at the deadline at the latest. */
struct aws_call *aws_start(struct aws *aws, const struct aws_request *request);
/* No done any more. NULL is accepted. */
void aws_cancel(struct aws_call *call);

#endif
