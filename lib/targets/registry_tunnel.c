/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/registry_tunnel.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/service.h"
#include "kube/portforward/podforward.h"
#include "net/stream/listen.h"
#include "targets/kube/target_kube.h"
#include "targets/targets.h"

enum { QUERY_MS = 20000, PODS_MAX = 5000, PORT_MAX = 65535, EXPECTED_MAX = 64 };

struct tunnel {
	struct registry_tunnel way;
	struct kube_service_port where;
	struct kube_client *client;
	struct listener *listener;
	struct podforward_kube *kube;
	struct podforward_transport transport; /* of kube */
	struct podforward *forward;
	void (*note)(void *ctx, const char *text);
	void *ctx;
	struct kube_call *call; /* looks for the pod */
	struct json *service;
	struct kube_service_pod pod;
	bool is_known, is_fresh;   /* the pod; and no tunnel was dialled to it yet */
	bool is_requested;         /* by forward */
	bool has_opened, has_said; /* a tunnel; a byte came from the registry */
	struct err error;          /* it cannot be reached at all */
	/* Local ports of our own connections that have not come yet; who came before the pod was
	 * known. */
	struct VEC_OF(uint16_t) expected;
	struct VEC_OF(int) waiting;
};

/*
 * Unreachable registry
 */

static void drop_waiting(struct tunnel *tunnel)
{
	for (size_t i = 0; i < tunnel->waiting.n; i++)
		close(tunnel->waiting.v[i]);
	tunnel->waiting.n = 0;
}

/* From now on requests fail with it, those that are under way when they are tried again. */
static void registry_tunnel_give_up(struct tunnel *tunnel, const struct err *error)
{
	if (!err_is_set(&tunnel->error)) {
		err_copy(&tunnel->error, error);
		err_prefix(&tunnel->error, "registry %s through service %s/%s", tunnel->way.host,
			tunnel->where.kube_namespace, tunnel->where.service);
	}
	drop_waiting(tunnel);
	podforward_no_pod(tunnel->forward, &tunnel->error, true);
}

/* Errors that a retry would not change. */
static bool registry_tunnel_is_final(const struct err *error)
{
	return error->id == E_KUBE_DENIED || error->id == E_KUBE_NOT_FOUND ||
	       error->id == E_KUBE_AUTH || error->id == E_KUBE_PLUGIN;
}

static void registry_tunnel_add_hint(const struct tunnel *tunnel, struct err *error)
{
	if (error->id == E_KUBE_DENIED) {
		free(TAKE(error->hint));
		err_hint(error, "dlrun init --rbac exec   # the Role to ask for in namespace %s",
			tunnel->where.kube_namespace);
	} else if (!error->hint && error->id == E_KUBE_NOT_FOUND) {
		err_hint(error, "kubectl -n %s get services", tunnel->where.kube_namespace);
	}
}

/*
 * Finding the pod
 */

static void registry_tunnel_not_found(struct tunnel *tunnel, struct err *error)
{
	registry_tunnel_add_hint(tunnel, error);
	if (!tunnel->has_opened)
		registry_tunnel_give_up(tunnel, error);
	else if (tunnel->is_requested)
		podforward_no_pod(tunnel->forward, error, false);
	tunnel->is_requested = false;
}

static int registry_tunnel_on_forwarded(
	void *ctx, struct podforward_end *end, struct err *err UNUSED)
{
	struct tunnel *tunnel = ctx;

	tunnel->has_said |= end->bytes_down > 0;
	if (err_is_set(&end->error) && !tunnel->has_said)
		registry_tunnel_give_up(tunnel, &end->error);
	return 0;
}

static void registry_tunnel_forward(struct tunnel *tunnel, int fd)
{
	podforward_relay(
		tunnel->forward, fd, tunnel->pod.port, registry_tunnel_on_forwarded, tunnel);
}

static void found(struct tunnel *tunnel)
{
	tunnel->is_known = true;
	tunnel->is_fresh = !tunnel->is_requested;
	if (tunnel->is_requested)
		podforward_pod(tunnel->forward, tunnel->where.kube_namespace, tunnel->pod.name);
	tunnel->is_requested = false;
	for (size_t i = 0; i < tunnel->waiting.n; i++)
		registry_tunnel_forward(tunnel, tunnel->waiting.v[i]);
	tunnel->waiting.n = 0;
}

static int registry_tunnel_on_pods(
	void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct tunnel *tunnel = ctx;
	AUTO_ERR struct err error = {0};

	tunnel->call = NULL;
	if (err_is_set(&response->error))
		registry_tunnel_not_found(tunnel, &response->error);
	else if (kube_service_find(&tunnel->where, tunnel->service, response->object, &tunnel->pod,
			 &error) < 0)
		registry_tunnel_not_found(tunnel, &error);
	else
		found(tunnel);
	return 0;
}

static int on_service(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct tunnel *tunnel = ctx;
	const struct kube_service_port *where = &tunnel->where;

	tunnel->call = NULL;
	if (err_is_set(&response->error)) {
		registry_tunnel_not_found(tunnel, &response->error);
		return 0;
	}
	json_free(tunnel->service);
	tunnel->service = TAKE(response->object);
	AUTO_FREE char *selector = kube_service_selector(tunnel->service);
	if (!selector) {
		AUTO_ERR struct err error = {0};
		err_set(&error, E_KUBE_FORWARD, "it selects no pods");
		registry_tunnel_not_found(tunnel, &error);
		return 0;
	}
	AUTO_FREE char *path = kube_path("/api/v1/namespaces/%s/pods", where->kube_namespace);
	const char *const query[] = {"labelSelector", selector, NULL};
	tunnel->call = kube_list(tunnel->client, path, query, PODS_MAX, clock_ms() + QUERY_MS,
		registry_tunnel_on_pods, tunnel);
	return 0;
}

static void registry_tunnel_find_pod(struct tunnel *tunnel)
{
	const struct kube_service_port *where = &tunnel->where;
	AUTO_FREE char *path = kube_path(
		"/api/v1/namespaces/%s/services/%s", where->kube_namespace, where->service);
	const struct kube_request request = {
		.method = "GET",
		.path = path,
		.deadline_ms = clock_ms() + QUERY_MS,
		.done = on_service,
		.ctx = tunnel,
	};

	if (!tunnel->call)
		tunnel->call = kube_start(tunnel->client, &request);
}

static void registry_tunnel_resolve(void *ctx, struct podforward *forward)
{
	struct tunnel *tunnel = ctx;

	if (tunnel->is_fresh) {
		tunnel->is_fresh = false;
		podforward_pod(forward, tunnel->where.kube_namespace, tunnel->pod.name);
		return;
	}
	tunnel->is_requested = true;
	registry_tunnel_find_pod(tunnel);
}

/*
 * The connection to it: what will not get better is told at once, not after the last try
 */

struct dialling {
	struct tunnel *tunnel;
	void *inner;
	void (*done)(void *ctx, struct stream *stream, bool is_websocket, struct err *error);
	void *ctx;
};

static void on_dialled(void *ctx, struct stream *stream, bool is_websocket, struct err *error)
{
	struct dialling *dialling = ctx;
	struct tunnel *tunnel = dialling->tunnel;
	AUTO_ERR struct err kept = {0};
	bool is_over = !stream && !tunnel->has_opened && registry_tunnel_is_final(error);

	tunnel->has_opened |= stream != NULL;
	if (is_over) {
		err_copy(&kept, error);
		registry_tunnel_add_hint(tunnel, &kept);
	}
	dialling->done(dialling->ctx, stream, is_websocket, error);
	free(dialling);
	if (is_over)
		registry_tunnel_give_up(tunnel, &kept);
}

static void *dial(void *ctx, const char *kube_namespace, const char *pod,
	void (*done)(void *done_ctx, struct stream *stream, bool is_websocket, struct err *error),
	void *done_ctx)
{
	struct tunnel *tunnel = ctx;
	struct dialling *dialling = mem_alloc(1, sizeof(*dialling));

	*dialling = (struct dialling){tunnel, NULL, done, done_ctx};
	dialling->inner = tunnel->transport.dial(
		tunnel->transport.ctx, kube_namespace, pod, on_dialled, dialling);
	return dialling;
}

static void cancel_dial(void *ptr)
{
	struct dialling *dialling = ptr;

	dialling->tunnel->transport.cancel(dialling->inner);
	free(dialling);
}

static void registry_tunnel_notice(void *ctx, const char *text)
{
	const struct tunnel *tunnel = ctx;
	AUTO_FREE char *line = mem_printf("registry %s: %s", tunnel->way.host, text);

	/* The request that fails says it. */
	if (tunnel->note && !err_is_set(&tunnel->error))
		tunnel->note(tunnel->ctx, line);
}

/*
 * Listener
 */

static int registry_tunnel_on_open(void *ctx, uint16_t local_port, struct err *err)
{
	struct tunnel *tunnel = ctx;

	if (err_is_set(&tunnel->error))
		return err_copy(err, &tunnel->error);
	if (tunnel->expected.n == EXPECTED_MAX)
		memmove(tunnel->expected.v, tunnel->expected.v + 1,
			--tunnel->expected.n * sizeof(*tunnel->expected.v));
	*vec_push(&tunnel->expected) = local_port;
	return 0;
}

static bool take_expected(struct tunnel *tunnel, const char *peer)
{
	const char *colon = strrchr(peer, ':');
	int64_t port;

	if (!colon || str_to_int(colon + 1, 1, PORT_MAX, "port", &port, NULL) < 0)
		return false;
	for (size_t i = 0; i < tunnel->expected.n; i++) {
		if (tunnel->expected.v[i] != port)
			continue;
		tunnel->expected.v[i] = tunnel->expected.v[--tunnel->expected.n];
		return true;
	}
	return false;
}

static int registry_tunnel_on_accept(void *ctx, int fd, const char *peer, struct err *err UNUSED)
{
	struct tunnel *tunnel = ctx;

	if (!take_expected(tunnel, peer) || err_is_set(&tunnel->error))
		close(fd);
	else if (tunnel->is_known)
		registry_tunnel_forward(tunnel, fd);
	else
		*vec_push(&tunnel->waiting) = fd;
	return 0;
}

/*
 * All of it
 */

/* The session's, so that it outlives the target. */
static int find_client(
	const struct registry_tunnel_options *options, struct kube_client **ret, struct err *err)
{
	AUTO(target_free_auto) struct target *opened = NULL;
	struct target *target = options->target;

	if (!target) {
		const char *name = options->target_name ? options->target_name : "local";
		int r = target_open(options->session, name, &opened, err);
		if (r < 0)
			return r;
		target = opened;
	}
	if (target->ops != &target_kube_ops) {
		err_set(err, E_CONFIG,
			"registry %s: forward is for Kubernetes targets, and %s is none",
			options->host, target->name);
		return err_hint(err, "dlrun config --show-origin registry");
	}
	*ret = target_kube_of(target)->cluster->client;
	return 0;
}

static int registry_tunnel_begin(
	struct tunnel *tunnel, const struct registry_tunnel_options *options, struct err *err)
{
	struct loop *loop = session_loop(options->session);
	const struct listen_options listen = {.loop = loop,
		.address = "127.0.0.1",
		.accept = registry_tunnel_on_accept,
		.ctx = tunnel};
	struct podforward_options forward = {
		.loop = loop,
		.transport = {dial, cancel_dial, tunnel},
		.resolve = registry_tunnel_resolve,
		.notice = registry_tunnel_notice,
		.ctx = tunnel,
	};

	int r = kube_service_parse(options->forward, &tunnel->where, err);
	if (r == 0)
		r = find_client(options, &tunnel->client, err);
	if (r == 0)
		r = listener_open(&listen, &tunnel->listener, err);
	if (r < 0)
		return r;
	tunnel->kube = podforward_kube_new(tunnel->client, &tunnel->transport);
	tunnel->forward = podforward_new(&forward);
	return 0;
}

static void add_route(struct tunnel *tunnel, struct http *http)
{
	const char *colon = strrchr(tunnel->way.host, ':'),
		   *bracket = strrchr(tunnel->way.host, ']');
	int64_t port = 0;

	if (!colon || (bracket && bracket > colon) ||
		str_to_int(colon + 1, 1, PORT_MAX, "port", &port, NULL) < 0)
		colon = tunnel->way.host + strlen(tunnel->way.host);
	AUTO_FREE char *name = mem_strndup(tunnel->way.host, (size_t)(colon - tunnel->way.host));
	http_add_route(http, name, (uint16_t)port, listener_port(tunnel->listener),
		registry_tunnel_on_open, tunnel);
}

static void free_tunnel(struct registry_tunnel *way)
{
	struct tunnel *tunnel = (struct tunnel *)way;

	kube_cancel(tunnel->call);
	listener_free(tunnel->listener);
	drop_waiting(tunnel);
	podforward_free(tunnel->forward);
	podforward_kube_free(tunnel->kube);
	json_free(tunnel->service);
	vec_done(&tunnel->expected);
	vec_done(&tunnel->waiting);
	err_done(&tunnel->error);
	free(tunnel->way.host);
	free(tunnel);
}

int registry_tunnel_open(const struct registry_tunnel_options *options,
	struct registry_tunnel **ret, struct err *err)
{
	struct tunnel *tunnel = mem_alloc(1, sizeof(*tunnel));

	*tunnel = (struct tunnel){
		.way = {.host = mem_strdup(options->host), .free = free_tunnel},
		.note = options->note,
		.ctx = options->ctx,
	};
	int r = registry_tunnel_begin(tunnel, options, err);
	if (r < 0) {
		free_tunnel(&tunnel->way);
		return r;
	}
	add_route(tunnel, options->http);
	registry_tunnel_find_pod(tunnel);
	*ret = &tunnel->way;
	return 0;
}
