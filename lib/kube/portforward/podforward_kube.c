/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/portforward/podforward.h"
#include "net/websocket/ws.h"

enum { DIAL_MS = 15 * 1000, HTTP_UNAUTHORIZED = 401, HTTP_NOT_FOUND = 404 };

static const char *const protocols[] = {"SPDY/3.1+portforward.k8s.io", NULL};

struct podforward_kube {
	struct kube_client *client;
	bool is_plain; /* this server wants no WebSocket */
};

struct dial {
	struct podforward_kube *kube;
	char *path;
	char key[WS_KEY_SIZE];
	struct kube_call *call;
	bool is_plain; /* not in a WebSocket */
	void (*done)(void *ctx, struct stream *stream, bool is_websocket, struct err *error);
	void *ctx;
};

static void dial_free(struct dial *dial)
{
	free(dial->path);
	free(dial);
}

static void dial_start(struct dial *dial, bool is_plain);

/* The server understands the request, but not in this form (before 1.30), or allows only the other
 * verb (get, create). */
static bool dial_may_be_plain(const struct kube_response *response)
{
	return response->status >= 400 && response->status < 500 &&
	       response->status != HTTP_UNAUTHORIZED && response->status != HTTP_NOT_FOUND;
}

static int dial_on_response(
	void *ctx, struct stream *stream, struct kube_response *response, struct err *err UNUSED)
{
	struct dial *dial = ctx;
	AUTO_ERR struct err error = {0};
	const char *protocol;

	if (stream && dial->is_plain)
		dial->kube->is_plain = true;
	/* A proxy in between may have lost the protocol. */
	if (!dial->is_plain && (stream ? ws_handshake_check(&response->http->headers, dial->key,
						 protocols, &protocol, &error) < 0 ||
						       !str_eq(protocol, protocols[0])
				       : dial_may_be_plain(response))) {
		stream_free(stream);
		dial_start(dial, true);
		return 0;
	}
	dial->done(dial->ctx, stream, !dial->is_plain, &response->error);
	dial_free(dial);
	return 0;
}

/* SPDY in a WebSocket, or by a plain upgrade. */
static void dial_start(struct dial *dial, bool is_plain)
{
	AUTO_STRV struct strv headers = {0};

	if (is_plain)
		strv_add(&headers, "X-Stream-Protocol-Version: portforward.k8s.io");
	else
		ws_handshake_headers(protocols, dial->key, &headers);
	const struct kube_upgrade_request request = {
		.method = is_plain ? "POST" : "GET",
		.path = dial->path,
		.protocol = is_plain ? "SPDY/3.1" : "websocket",
		.headers = &headers,
		.deadline_ms = clock_ms() + DIAL_MS,
		.done = dial_on_response,
		.ctx = dial,
	};
	dial->is_plain = is_plain;
	dial->call = kube_upgrade(dial->kube->client, &request);
}

/*
 * The transport
 */

static void *dial_begin(void *ctx, const char *kube_namespace, const char *pod,
	void (*done)(void *done_ctx, struct stream *stream, bool is_websocket, struct err *error),
	void *done_ctx)
{
	struct dial *dial = mem_alloc(1, sizeof(*dial));

	dial->kube = ctx;
	dial->path = kube_path("/api/v1/namespaces/%s/pods/%s/portforward", kube_namespace, pod);
	dial->done = done;
	dial->ctx = done_ctx;
	dial_start(dial, dial->kube->is_plain);
	return dial;
}

static void dial_cancel(void *ptr)
{
	struct dial *dial = ptr;

	kube_cancel(dial->call);
	dial_free(dial);
}

struct podforward_kube *podforward_kube_new(
	struct kube_client *client, struct podforward_transport *ret)
{
	struct podforward_kube *kube = mem_alloc(1, sizeof(*kube));

	kube->client = client;
	*ret = (struct podforward_transport){
		.dial = dial_begin, .cancel = dial_cancel, .ctx = kube};
	return kube;
}

void podforward_kube_free(struct podforward_kube *kube)
{
	free(kube);
}
