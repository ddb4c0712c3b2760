/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "net/stream/field.h"
#include "oci/registry/registry_impl.h"

struct registry_probe {
	struct registry *registry;
	struct http_call *call;
	struct err fault;
	registry_probed_fn *done;
	void *ctx;
};

/* A server with TLS answers 400 to this; a proxy on the way may say anything else. */
static bool is_registry(const struct http_answer *answer)
{
	return answer->status == 200 || answer->status == 401 ||
	       field_find(&answer->headers, "docker-distribution-api-version");
}

static int on_answer(void *ctx, struct http_answer *answer, struct err *err)
{
	struct registry_probe *probe = ctx;
	AUTO_ERR struct err fault = {0};

	probe->call = NULL;
	err_move(&fault, &probe->fault);
	if (is_registry(answer)) {
		err_set(&fault, E_REGISTRY_INSECURE, "registry %s speaks http only, without TLS",
			probe->registry->host);
		err_hint(&fault, "registry: {push: %s, insecure: true}", probe->registry->name);
	}
	return probe->done(probe->ctx, &fault, err);
}

struct registry_probe *registry_probe_start(
	struct registry *registry, struct err *fault, registry_probed_fn *done, void *ctx)
{
	struct registry_probe *probe = mem_alloc(1, sizeof(*probe));
	AUTO_URL struct url url = {0};
	int64_t end_ms = clock_deadline(REGISTRY_PROBE_MS);

	probe->registry = registry;
	probe->done = done;
	probe->ctx = ctx;
	err_move(&probe->fault, fault);
	/* The host was good for https. */
	BUG_ON(url_make(false, registry->server, "/v2/", &url, NULL) < 0);
	const struct http_request request = {
		.method = "GET",
		.url = &url,
		.max_body = HTTP_ERROR_BODY_MAX,
		.deadline_ms = end_ms < registry->deadline_ms ? end_ms : registry->deadline_ms,
		.done = on_answer,
		.ctx = probe,
	};
	probe->call = http_start(registry->http, &request);
	return probe;
}

void registry_probe_free(struct registry_probe *probe)
{
	if (!probe)
		return;
	http_cancel(probe->call);
	err_done(&probe->fault);
	free(probe);
}
