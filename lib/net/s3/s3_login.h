/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys for AWS, from where AWS's tools take them, in their order: the environment; a web identity
 * (a token file and a role); the files of the profile (keys, credential_process, and logins that
 * only `aws configure export-credentials` can make: sso, a role by another profile); the endpoint
 * of the container; the instance's metadata (IMDSv2). Keys that expire are renewed ahead. On the
 * loop, but for the small files, and for programs, which a thread waits for.
 */
#ifndef DLRUN_NET_S3_S3_LOGIN_H
#define DLRUN_NET_S3_S3_LOGIN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/data/json.h"
#include "base/loop/loop.h"
#include "base/util/err.h"
#include "net/http/http.h"
#include "net/s3/s3_profile.h"
#include "net/s3/s3_sign.h"

enum {
	S3_LOGIN_BODY_MAX = 256 << 10,
	S3_LOGIN_MS = 10 * 1000,
	S3_LOGIN_PROGRAM_MS = 60 * 1000,
	S3_LOGIN_METADATA_MS = 2000,       /* where there is none nobody responds */
	S3_LOGIN_AHEAD_MS = 5 * 60 * 1000, /* renewed so long before their end */
};

struct s3_login;
/* All of it is borrowed. env: NULL-ended. */
struct s3_login *s3_login_new(struct loop *loop, struct http *http, const char *const *env,
	const struct s3_profile *profile);
void s3_login_free(struct s3_login *login);

/* error is set: E_S3_CREDENTIALS (none are there, or their source failed), E_S3_CONFIG. Else keys,
 * until the next turn of the loop; generation numbers them. */
typedef int s3_login_fn(void *ctx, const struct s3_keys *keys, unsigned generation,
	struct err *error, struct err *err);
/* ready is called once, at once or later. */
int s3_login_want(struct s3_login *login, s3_login_fn *ready, void *ctx, struct err *err);
/* No ready any more for this ctx. */
void s3_login_cancel(struct s3_login *login, const void *ctx);
/* The server refused keys of this generation: whether others can be had, as the next s3_login_want
 * does. */
bool s3_login_refuse(struct s3_login *login, unsigned generation);
/* For people: "the environment", "profile lab", …; NULL: not known yet. */
const char *s3_login_source(const struct s3_login *login);

/* Engines, for tests: what credential_process, containers and instances respond with, and what STS
 * does. E_S3_CREDENTIALS. */
int s3_login_parse_json(const char *text, size_t len, struct s3_keys *ret, struct err *err);
int s3_login_parse_sts(const char *text, size_t len, struct s3_keys *ret, struct err *err);

#endif
