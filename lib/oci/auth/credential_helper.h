/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A single run of a credential helper on the loop (docker-credential-helpers, "get").
 */
#ifndef DLRUN_OCI_AUTH_CREDENTIAL_HELPER_H
#define DLRUN_OCI_AUTH_CREDENTIAL_HELPER_H

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "oci/auth/credentials.h"

enum { CREDENTIAL_HELPER_OUT_MAX = 64 << 10 };

struct helper;
/* r is what credential_helper_parse says of its answer; login may be taken over. Called from the
 * loop, once, as the last thing. */
typedef int helper_end_fn(
	void *ctx, int r, struct credential *login, struct err *fault, struct err *err);
struct helper_spec {
	const char *program;    /* its path */
	const char *name;       /* NAME of docker-credential-NAME */
	const char *key;        /* whose login: a line on its stdin */
	const char *const *env; /* NULL-ended */
	int64_t limit_ms;       /* how long it may take */
};
/* The helper's stderr is discarded, because it may hold anything. E_REGISTRY_HELPER if it cannot be
 * started. */
int helper_start(struct loop *loop, const struct helper_spec *spec, helper_end_fn *end, void *ctx,
	struct helper **ret, struct err *err);
/* Kills its process group if it still runs. NULL is accepted. */
void helper_free(struct helper *helper);

#endif
