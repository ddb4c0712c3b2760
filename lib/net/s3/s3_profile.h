/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings for S3 from the environment and the files of AWS tools (~/.aws/config,
 * ~/.aws/credentials): region, endpoint, and where keys come from. The files are an engine's
 * (s3_section_read).
 */
#ifndef DLRUN_NET_S3_S3_PROFILE_H
#define DLRUN_NET_S3_S3_PROFILE_H

#include <stddef.h>

#include "base/util/err.h"
#include "base/util/vec.h"
#include "net/http/http.h"

enum { S3_FILE_MAX = 1 << 20, S3_PROFILE_KEYS_MAX = 200 };

/* Settings of section NAME ("profile lab", "lab") of text as "KEY=VALUE", added to settings: first
 * ones stay. Those of a nested block ("s3 =" and lines below it that are indented) are
 * "s3.KEY=VALUE". Lines of another form say nothing. */
void s3_section_read(const char *text, size_t len, const char *name, struct strv *settings);

struct s3_profile {
	char *name; /* "default" */
	char *region;
	char *endpoint; /* an URL, or NULL: of AWS */
	char *sts;      /* the same for web identities */
	/* With the issuers that AWS_CA_BUNDLE or ca_bundle names, for all these; or all zero. */
	struct http_tls tls;
	/* Of the profile, secrets among them; of ~/.aws/credentials, then of ~/.aws/config. */
	struct strv settings;
	struct strv files; /* that were read, for messages */
};
/* env: the whole environment, NULL-ended. E_S3_CONFIG: a profile that was named is not there, or a
 * file cannot be read. */
int s3_profile_read(const char *const *env, struct s3_profile *ret, struct err *err);
void s3_profile_done(struct s3_profile *profile);
/* A setting, or NULL. */
const char *s3_profile_get(const struct s3_profile *profile, const char *key);
/* The endpoint of one service: of a variable ("AWS_ENDPOINT_URL_EC2"), of AWS_ENDPOINT_URL, or of a
 * setting ("ec2.endpoint_url"); NULL: AWS's. The caller frees. */
char *s3_profile_endpoint(const char *const *env, const struct s3_profile *profile,
	const char *variable, const char *setting);

#endif
