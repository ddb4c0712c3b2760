/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the client: a signed request with its repetitions (s3_exchange.c), and calls, which are
 * made of them.
 */
#ifndef DLRUN_NET_S3_S3_IMPL_H
#define DLRUN_NET_S3_S3_IMPL_H

#include "net/s3/s3.h"
#include "net/s3/s3_login.h"
#include "net/s3/s3_profile.h"

struct s3 {
	struct loop *loop;
	struct http *http;
	struct s3_profile profile;
	struct s3_login *login;
	struct url endpoint; /* has_endpoint */
	bool has_endpoint;
	char *host;          /* for people: "s3.eu-central-1.amazonaws.com", "127.0.0.1:9000" */
	struct strv regions; /* "BUCKET=REGION" of those that are elsewhere */
	int64_t skew_ms;     /* of the server's clock against ours */
	struct s3_call *calls;
};

struct s3_exchange;
/* response is NULL with an error. The exchange may be started again. */
typedef int s3_ended_fn(
	struct s3_exchange *x, struct http_response *response, struct err *error, struct err *err);

struct s3_exchange {
	struct s3 *s3;
	/* The request; owned but for method and the body's bytes. */
	const char *method;
	char *bucket, *key;
	struct strv params, headers;
	struct http_body body;
	char payload[SHA256_HEX_SIZE];
	http_data_fn *data;
	void (*prepare)(struct s3_exchange *x); /* headers of the next sending; or NULL */
	struct err early;                       /* it fails with this before it is sent */
	s3_ended_fn *ended;
	void *ctx;
	bool checks_body; /* a success may be an error all the same */
	bool may_repeat;  /* false: bytes were taken that would come again */
	/* Of the present sending. */
	struct http_call *call;
	struct loop_timer *timer;
	unsigned tries, generation;
	bool is_renewed, is_skewed, is_moved, is_explained;
	bool is_beyond; /* the response was 416 */
};

void s3_exchange_init(struct s3_exchange *x, struct s3 *s3, const char *bucket, const char *key);
/* Sends it some time later; never ends from within. */
void s3_exchange_start(struct s3_exchange *x, const char *method, s3_ended_fn *ended, void *ctx);
/* Gives it up. */
void s3_exchange_done(struct s3_exchange *x);

struct s3_upload;
struct s3_call {
	struct s3 *s3;
	struct s3_call *next, *prev;
	struct s3_exchange x;
	s3_done_fn *done;
	void *ctx;
	/* of a list */
	struct s3_objects *list;
	bool is_flat;
	size_t list_max, n_empty; /* n_empty: pages without objects, one after the other */
	char *prefix;
	/* of a get */
	http_data_fn *data;
	uint64_t offset, max, taken;
	char *etag;
	/* of a put in parts */
	struct s3_upload *upload;
	void (*free_upload)(struct s3_upload *upload);
	bool is_in_data, is_cancelled;
};
struct s3_call *s3_call_new(
	struct s3 *s3, const char *bucket, const char *key, s3_done_fn *done, void *ctx);
void s3_call_free(struct s3_call *call);
/* Ends the call: done, then it is freed. */
int s3_call_end(struct s3_call *call, struct err *error, struct err *err);

struct s3_call *s3_upload_start(struct s3 *s3, const struct s3_put *put);
/* Body and payload of an exchange from a part of what is put. E_IO, E_IO_CHANGED: it ends early. */
int s3_exchange_set_body(struct s3_exchange *x, const struct s3_put *put, uint64_t offset,
	uint64_t size, struct err *err);
/* The header that names an object to be copied. */
void s3_add_source(struct strv *headers, const char *bucket, const char *key);

#endif
