/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of S3 (Amazon's, and servers that speak its protocol) on the loop.
 *
 * Endpoint and region are those of AWS's tools (s3_profile.h), keys too (s3_login.h); with an
 * endpoint buckets are in the path, as other servers want it. Each call is repeated with growing
 * waits when the connection breaks or the server is too busy (SlowDown, 503, 429: Retry-After is
 * obeyed), S3_TRIES times at most; keys that have expired are renewed, a clock that is wrong is
 * corrected by the server's Date, a bucket of another region is asked for there, each once. All
 * calls of S3 that are made here may be repeated.
 *
 * done is called once, from the loop, never from within the starting call. The errors: E_S3_AUTH
 * (the keys are refused), E_S3_BUSY, E_S3_CHANGED (the object is another one by now),
 * E_S3_CREDENTIALS (there are no keys), E_S3_DENIED, E_S3_NOT_FOUND (key or bucket: see the
 * message), E_S3_RESPONSE (all else), and those of http.h.
 */
#ifndef DLRUN_NET_S3_S3_H
#define DLRUN_NET_S3_S3_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "net/http/http.h"
#include "net/s3/s3_xml.h"

enum {
	S3_TRIES = 6,
	S3_KEY_MAX = 1024,
	S3_BODY_MAX = 16 << 20,   /* of a response that is not an object */
	S3_SINGLE_MAX = 16 << 20, /* bytes of an object that is put by one request */
	S3_PARTS_MAX = 9000,
	S3_PIECE_MIN = 5 << 20,
};

/* s3://BUCKET[/KEY]; no slash at the end of the key, "" where there is none. Owned. */
struct s3_address {
	char *bucket, *key;
};
/* E_S3_CONFIG */
int s3_address_parse(const char *text, struct s3_address *ret, struct err *err);
void s3_address_done(struct s3_address *address);
#define AUTO_S3_ADDRESS AUTO(s3_address_done)

struct s3;
/* env: the whole environment, NULL-ended; all is borrowed. E_S3_CONFIG, E_HTTP_URL (the endpoint).
 * Nothing is asked yet. */
int s3_open(struct loop *loop, struct http *http, const char *const *env, struct s3 **ret,
	struct err *err);
/* Calls that are left are given up without their done. Not from within a done. */
void s3_free(struct s3 *s3);
AUTO_POINTER(struct s3, s3_free)
#define AUTO_S3 AUTO(s3_free_auto)

struct s3_call;
/* error is not set: it went well. A negative return ends loop_run. */
typedef int s3_done_fn(void *ctx, struct err *error, struct err *err);
/* Give up; no done. NULL is accepted. */
void s3_cancel(struct s3_call *call);

/* Objects whose keys begin with prefix are added to ret, in byte order of their keys; ERR_LIMIT
 * (E_DATA_LIMIT) with max of them when there are more. */
struct s3_call *s3_list(struct s3 *s3, const char *bucket, const char *prefix, size_t max,
	struct s3_objects *ret, s3_done_fn *done, void *ctx);
/* The same of those that have no slash behind the prefix. */
struct s3_call *s3_list_flat(struct s3 *s3, const char *bucket, const char *prefix, size_t max,
	struct s3_objects *ret, s3_done_fn *done, void *ctx);
/* A missing object is no error. */
struct s3_call *s3_delete(
	struct s3 *s3, const char *bucket, const char *key, s3_done_fn *done, void *ctx);

struct s3_get {
	const char *bucket, *key;
	uint64_t offset, max; /* max: 0: to the end. Nothing behind the end of the object */
	/* Of the object that is meant (E_S3_CHANGED: there is another one), with which a get that
	 * was cut goes on; NULL: any, and one that was cut after the first byte has failed. */
	const char *etag;
	http_data_fn *data; /* as of http_request; ctx is that below */
	s3_done_fn *done;
	void *ctx;
};
struct s3_call *s3_get(struct s3 *s3, const struct s3_get *get);

/* The server makes an object of another one of the bucket, of 5 GiB at most. */
struct s3_call *s3_copy(struct s3 *s3, const char *bucket, const char *key, const char *from,
	s3_done_fn *done, void *ctx);

/* A part of an object that is put: of the caller's bytes at the same place, or of another object of
 * the bucket at offset. */
struct s3_piece {
	const char *from; /* its key; NULL: the caller's bytes */
	uint64_t offset, len;
};

/* An object of size bytes: of data, or of fd (by pread; stays the caller's), both borrowed until
 * done. More than S3_SINGLE_MAX go in parts, several at once. An object appears as a whole. */
struct s3_put {
	const char *bucket, *key;
	const void *data;
	int fd;          /* where data is NULL */
	uint64_t offset; /* of fd */
	uint64_t size;
	/* Last text of `noted` of a put that did not end, to go on with: parts whose bytes are the
	 * same are not sent again. NULL, or of no use any more: all are sent. */
	const char *resume;
	/* A part has arrived. The text is borrowed. NULL: not wanted. */
	void (*noted)(void *ctx, const char *resume);
	/* Parts of it, in order, for a server that copies parts of objects: together size,
	 * S3_PIECE_MIN bytes each but for the last one, S3_PARTS_MAX of them at most. Borrowed.
	 * n_pieces 0: all is sent. */
	const struct s3_piece *pieces;
	size_t n_pieces;
	/* Set: the server could not copy one of the pieces, and all is sent. NULL: not wanted. */
	bool *ret_is_whole;
	/* All is read, and the object about to appear; negative: the put ends with that error.
	 * sha256: of all, in hex; NULL: it goes in parts. */
	int (*check)(void *ctx, const char *sha256, struct err *err);
	s3_done_fn *done; /* E_IO, E_IO_CHANGED (the file was changed meanwhile), too */
	void *ctx;
};
struct s3_call *s3_put(struct s3 *s3, const struct s3_put *put);

#endif
