/* SPDX-License-Identifier: Apache-2.0 */
/* An API server that answers by a list of steps, and a client of it. */
#ifndef DLRUN_TESTS_UNIT_KUBEFIX_H
#define DLRUN_TESTS_UNIT_KUBEFIX_H

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/loop/loop.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/client.h"
#include "net/http/http.h"
#include "tests/unit/httpfix.h"

struct step {
	int status;          /* 0: the connection is closed; -1: it falls silent */
	const char *body;    /* of a success that is_chunked: pieces end at "|" */
	const char *headers; /* each with its \r\n */
	bool is_stream;      /* until the end of the connection, without a length */
	bool is_cut;         /* the stream ends in a reset */
	bool is_silent;      /* the stream goes on without a byte */
	bool is_switch;      /* headers are all there are, but for the body behind them */
};

static struct {
	const struct step *steps;
	int n;
	atomic_int at; /* requests that came; the last step answers all later ones */
	struct strv bodies;
} script;

static inline bool kube_response_step(struct fix_conn *conn)
{
	int at = atomic_fetch_add(&script.at, 1);
	const struct step *step = &script.steps[at < script.n ? at : script.n - 1];
	char *sent = fix_body(conn);

	pthread_mutex_lock(&conn->server->lock);
	strv_add_take(&script.bodies, sent);
	pthread_mutex_unlock(&conn->server->lock);
	if (step->status < 0)
		fix_wait_end(conn);
	if (step->status <= 0) {
		fix_reset(conn);
		return false;
	}
	const char *body = step->body ? step->body : "";
	AUTO_FREE char *length = step->is_stream
					 ? mem_strdup("Connection: close\r\n")
					 : mem_printf("Content-Length: %zu\r\n", strlen(body));
	AUTO_FREE char *head = mem_printf("HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%s%s"
					  "\r\n",
		step->status, step->headers ? step->headers : "", length);
	if (!fix_print(conn, head) || !fix_print(conn, body))
		return false;
	if (step->is_silent)
		fix_wait_end(conn);
	if (step->is_cut)
		fix_reset(conn);
	return !step->is_stream;
}

struct kube {
	struct fix_server *server;
	struct loop *loop;
	struct http *http;
	struct kube_access access;
	struct kube_client *client;
	struct strv notes;
};

static inline void kube_annotation(void *ctx, const char *text)
{
	struct kube *kube = ctx;

	strv_add(&kube->notes, text);
}

/* Before kube_connect a test may change the access. */
static inline void kube_init(struct kube *kube, const struct step *steps, size_t n)
{
	script.steps = steps;
	script.n = (int)n;
	atomic_store(&script.at, 0);
	*kube = (struct kube){.server = fix_start(kube_response_step), .loop = loop_new()};
	kube->access.server = (struct url){.host = mem_strdup("localhost"),
		.port = kube->server->port,
		.path = mem_strdup("/base")};
	kube->access.user = mem_strdup("me");
	kube->access.cluster = mem_strdup("lab");
	kube->access.kube_namespace = mem_strdup("jobs");
	const struct http_options options = {.loop = kube->loop, .user_agent = "dlrun/test"};
	kube->http = http_new(&options);
}

static inline void kube_connect_with(struct kube *kube, const struct kube_plugin_options *plugin)
{
	struct kube_client_options options = {.loop = kube->loop,
		.http = kube->http,
		.access = &kube->access,
		.plugin = {.tty_fd = -1},
		.note = kube_annotation,
		.ctx = kube};

	if (plugin)
		options.plugin = *plugin;
	kube->client = kube_client_new(&options);
}

static inline void kube_connect(struct kube *kube)
{
	kube_connect_with(kube, NULL);
}

static inline void kube_done(struct kube *kube)
{
	kube_client_free(kube->client);
	http_free(kube->http);
	loop_free(kube->loop);
	fix_stop(kube->server);
	kube_access_done(&kube->access);
	strv_done(&kube->notes);
	strv_done(&script.bodies);
}

#define AUTO_KUBE AUTO(kube_done)

#endif
