/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to registries beside a push, which the caller waits for.
 */
#ifndef DLRUN_CORE_IMAGE_REGISTRY_ASK_H
#define DLRUN_CORE_IMAGE_REGISTRY_ASK_H

#include "base/util/err.h"
#include "core/image/registry_open.h"
#include "oci/registry/registry.h"

/* A client for the session; its requests end limit_ms from now on. */
int registry_ask_init(
	struct registry_client *client, struct session *session, int64_t limit_ms, struct err *err);
/* text: HOST/REPO, as the configuration has it. Neither uses nor updates the registry cache. */
int registry_ask_open(struct registry_client *client, const char *text, bool push,
	struct registry **ret, struct err *err);

/* Describe for people what the certificate of host is checked against, and the certificate that the
 * host presents. The caller frees. */
char *registry_ask_certificates(const struct registry_client *client, const char *host);

/* A response that is kept. */
struct registry_reply {
	int status;
	struct strv headers;
	struct buf body;
	struct url url;
};
void registry_reply_done(struct registry_reply *reply);
#define AUTO_REGISTRY_REPLY AUTO(registry_reply_done)
/* Blocks. done and ctx of the request are not used. A failed request returns its error, as does a
 * response 401 or 403 that the request accepts. */
int registry_ask(struct registry_client *client, struct registry *registry,
	const struct registry_request *request, struct registry_reply *ret, struct err *err);

#endif
