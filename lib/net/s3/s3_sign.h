/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AWS Signature Version 4 of requests to S3 (sig-v4-header-based-auth), in headers: an engine.
 * libcurl's own differs between its versions in what it signs of a path and a query, and signs
 * headers that it does not send; so the bytes that are signed here are those that are sent.
 */
#ifndef DLRUN_NET_S3_S3_SIGN_H
#define DLRUN_NET_S3_S3_SIGN_H

#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/digest.h"
#include "base/util/vec.h"

/* Owned; wiped when freed. */
struct s3_keys {
	char *id, *secret;
	char *token;        /* of a session, or NULL */
	int64_t expires_ms; /* wall clock; 0: they do not expire */
};
void s3_keys_done(struct s3_keys *keys);

struct s3_sign {
	const char *method, *host;  /* host: as the Host header has it */
	const char *path;           /* as it is sent, without its query */
	const char *query;          /* as it is sent: of s3_query */
	const struct strv *headers; /* "name: value", lower case, signed as well; NULL: none */
	const char *region, *service;
	const char *payload; /* SHA-256 of the body in hex */
	int64_t wall_ms;
	const struct s3_keys *keys;
};
/* *ret_headers: those of sign, and those that the signature needs; *ret_authorization: the value of
 * that field. The caller frees. */
void s3_sign(const struct s3_sign *sign, struct strv *ret_headers, char **ret_authorization);

/* Parameters "NAME=VALUE" (not encoded, the name without "=") as a query: encoded and sorted. The
 * caller frees. */
char *s3_query(const struct strv *params);
/* SHA-256 in hex. */
void s3_payload(const void *data, size_t len, char out[static SHA256_HEX_SIZE]);

#endif
