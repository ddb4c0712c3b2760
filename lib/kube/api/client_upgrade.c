/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/client_impl.h"
#include "net/websocket/upgrade.h"

struct upgrade_ctx {
	char *protocol;
	struct strv headers;
	int (*done)(void *ctx, struct stream *stream, struct kube_answer *answer, struct err *err);
	struct stream *stream; /* that came */
};

static int on_upgrade(void *ctx, struct stream *stream, struct http_answer *http, struct err *err)
{
	struct kube_call *call = ctx;
	struct upgrade_ctx *upgrade = call->more_ctx;
	AUTO_KUBE_ANSWER struct kube_answer answer = {.reason = ""};

	if (!stream)
		return kube_call_answered(call, http, err);
	call->exchange = NULL;
	call->client->answered = true;
	upgrade->stream = stream;
	answer.status = http ? http->status : 101;
	answer.http = http;
	return kube_call_finish(call, &answer, err);
}

static void send_upgrade(struct kube_call *call, const struct url *url, const struct strv *headers,
	const struct http_tls *tls)
{
	const struct upgrade_ctx *upgrade = call->more_ctx;
	AUTO_STRV struct strv all = {0};

	strv_copy(&all, &upgrade->headers);
	for (size_t i = 0; i < headers->n; i++)
		if (!str_starts(headers->v[i], "Accept:"))
			strv_add(&all, headers->v[i]);
	const struct upgrade_request request = {
		.method = call->method,
		.url = url,
		.protocol = upgrade->protocol,
		.headers = &all,
		.authorization = call->login.authorization,
		.tls = tls,
		.proxy = call->client->options.access->proxy,
		.deadline_ms = call->deadline_ms,
		.done = on_upgrade,
		.ctx = call,
	};
	call->exchange = upgrade_start(call->client->options.http, &request);
}

static void cancel_upgrade(struct kube_call *call)
{
	upgrade_cancel(call->exchange);
}

static int done_upgrade(struct kube_call *call, struct kube_answer *answer, struct err *err)
{
	struct upgrade_ctx *upgrade = call->more_ctx;

	/* 200 is no success here. */
	if (!upgrade->stream && !err_is_set(&answer->fault)) {
		AUTO_FREE char *what = kube_path_shown(call->path);
		err_set(&answer->fault, E_KUBE_ANSWER,
			"%s answers %d instead of opening a stream to %s", call->client->host,
			answer->status, what);
	}
	return upgrade->done(call->ctx, TAKE(upgrade->stream), answer, err);
}

static void free_upgrade(struct kube_call *call)
{
	struct upgrade_ctx *upgrade = call->more_ctx;

	free(upgrade->protocol);
	strv_done(&upgrade->headers);
	stream_free(upgrade->stream);
	free(upgrade);
}

static const struct kube_call_ops upgrade_ops = {.send = send_upgrade,
	.cancel = cancel_upgrade,
	.done = done_upgrade,
	.is_once = true,
	.free = free_upgrade};

struct kube_call *kube_upgrade(
	struct kube_client *client, const struct kube_upgrade_request *request)
{
	const struct kube_request plain = {.method = request->method,
		.path = request->path,
		.query = request->query,
		.deadline_ms = request->deadline_ms,
		.ctx = request->ctx};
	struct upgrade_ctx *upgrade = mem_alloc(1, sizeof(*upgrade));
	struct kube_call *call = kube_call_new(client, &plain, &upgrade_ops);

	upgrade->protocol = mem_strdup(request->protocol);
	upgrade->done = request->done;
	if (request->headers)
		strv_copy(&upgrade->headers, request->headers);
	call->more_ctx = upgrade;
	kube_call_begin(call);
	return call;
}
