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
	void (*done)(void *ctx, struct stream *stream, bool is_websocket, struct err *error);
	void *ctx;
};

static void dial_free(struct dial *dial)
{
	free(dial->path);
	free(dial);
}

static void dial_give(
	struct dial *dial, struct stream *stream, bool is_websocket, struct err *error)
{
	dial->done(dial->ctx, stream, is_websocket, error);
	dial_free(dial);
}

/*
 * A plain upgrade to SPDY
 */

static int dial_on_plain(
	void *ctx, struct stream *stream, struct kube_response *response, struct err *err UNUSED)
{
	struct dial *dial = ctx;

	if (stream)
		dial->kube->is_plain = true;
	dial_give(dial, stream, false, &response->error);
	return 0;
}

static void dial_plain(struct dial *dial)
{
	AUTO_STRV struct strv headers = {0};

	strv_add(&headers, "X-Stream-Protocol-Version: portforward.k8s.io");
	const struct kube_upgrade_request request = {
		.method = "POST",
		.path = dial->path,
		.protocol = "SPDY/3.1",
		.headers = &headers,
		.deadline_ms = clock_ms() + DIAL_MS,
		.done = dial_on_plain,
		.ctx = dial,
	};
	dial->call = kube_upgrade(dial->kube->client, &request);
}

/*
 * SPDY in a WebSocket
 */

/* The server understands the request, but not in this form (before 1.30), or allows only the other
 * verb (get, create). */
static bool dial_may_be_plain(const struct kube_response *response)
{
	return response->status >= 400 && response->status < 500 &&
	       response->status != HTTP_UNAUTHORIZED && response->status != HTTP_NOT_FOUND;
}

static int dial_on_websocket(
	void *ctx, struct stream *stream, struct kube_response *response, struct err *err UNUSED)
{
	struct dial *dial = ctx;
	AUTO_ERR struct err error = {0};
	const char *protocol;

	if (!stream && dial_may_be_plain(response)) {
		dial_plain(dial);
		return 0;
	}
	if (!stream) {
		dial_give(dial, NULL, false, &response->error);
		return 0;
	}
	if (ws_handshake_check(&response->http->headers, dial->key, protocols, &protocol, &error) ==
			0 &&
		str_eq(protocol, protocols[0])) {
		dial_give(dial, stream, true, NULL);
		return 0;
	}
	/* A proxy in between may have lost the protocol. */
	stream_free(stream);
	dial_plain(dial);
	return 0;
}

static void dial_websocket(struct dial *dial)
{
	AUTO_STRV struct strv headers = {0};

	ws_handshake_headers(protocols, dial->key, &headers);
	const struct kube_upgrade_request request = {
		.method = "GET",
		.path = dial->path,
		.protocol = "websocket",
		.headers = &headers,
		.deadline_ms = clock_ms() + DIAL_MS,
		.done = dial_on_websocket,
		.ctx = dial,
	};
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
	if (dial->kube->is_plain)
		dial_plain(dial);
	else
		dial_websocket(dial);
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
