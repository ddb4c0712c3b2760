/* SPDX-License-Identifier: Apache-2.0 */
#include "net/http/http.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "net/http/http_impl.h"

enum {
	READ_BUDGET = 256 << 10, /* in one dispatch */
	/* A stream of records so small that each would be waited for alone is read now and then. */
	QUICK_MS = 2,
	QUICK_READS = 16, /* at such distances at most */
	REST_MS = 4,
	REST_MIN = 1 << 10, /* came meanwhile; less: it is no such stream any more */
	REST_MAX = 32 << 10,
};

struct http_watch {
	struct http *http;
	struct loop_fd *source;
	curl_socket_t fd;
	short events;
	struct http_call *call;   /* that waits for it; NULL: one that has ended */
	struct loop_timer *timer; /* it is read then */
	bool rests;               /* and not before */
	int64_t read_ms;          /* when it was last read */
	unsigned n_quick;
};

/*
 * libcurl to the loop
 */

/* Events to withhold from libcurl while a request is held: on completing the connection it would
 * send the request at once. */
static short held_back(const struct http_call *call)
{
	if (!call || !call->held)
		return 0;
	return call->url.tls ? POLLIN : POLLIN | POLLOUT;
}

/* Connections that only wait to be used again are no reason for the loop to go on. */
static short prepare_watch(void *ctx)
{
	const struct http_watch *watch = ctx;

	if (watch->http->n_running == 0 || watch->rests)
		return 0;
	return (short)(watch->events & ~held_back(watch->call));
}

static int dispatch_watch(void *ctx, short revents, struct err *err);

static int read_due(void *ctx, struct err *err)
{
	struct http_watch *watch = ctx;

	watch->timer = NULL;
	return dispatch_watch(watch, POLLIN, err);
}

static void read_at(struct http_watch *watch, int64_t at_ms)
{
	loop_remove_timer(watch->http->loop, watch->timer);
	watch->timer = loop_add_timer(watch->http->loop, at_ms, read_due, watch);
}

static bool may_rest(struct http_watch *watch, uint64_t n_bytes, int64_t now_ms)
{
	bool was_resting = watch->n_quick > QUICK_READS;
	bool is_quick = now_ms - watch->read_ms <= QUICK_MS;

	if (n_bytes > REST_MAX || (was_resting ? n_bytes < REST_MIN : !is_quick))
		watch->n_quick = 0;
	else
		watch->n_quick++;
	return watch->n_quick > QUICK_READS;
}

/* n_bytes came. */
static void after_read(struct http_watch *watch, uint64_t n_bytes)
{
	int64_t now_ms = clock_ms();

	watch->rests = may_rest(watch, n_bytes, now_ms);
	watch->read_ms = now_ms;
	if (watch->rests)
		read_at(watch, now_ms + REST_MS);
}

/* All that is there, up to the budget: libcurl reads one record at a time. */
static void read_stream(struct http_watch *watch, struct http_call *call)
{
	struct http *http = watch->http;
	uint64_t start = call->x.bytes_down, before;
	int running;

	call->gathers = true;
	do {
		before = call->x.bytes_down;
		curl_multi_socket_action(http->multi, watch->fd, CURL_CSELECT_IN, &running);
		if (call->canceled || call->x.watch != watch || call->recv_paused)
			break;
	} while (call->x.bytes_down > before && call->x.bytes_down - start < READ_BUDGET);
	call->gathers = false;
	if (!call->canceled && call->x.watch == watch)
		after_read(watch, call->x.bytes_down - start);
}

/* The body of an answer comes, and nothing is sent. */
static bool is_stream(const struct http_watch *watch, short revents)
{
	const struct http_call *call = watch->call;

	return call && call->request.data && call->x.headers_over && watch->events == POLLIN &&
	       revents == POLLIN;
}

/* libcurl is left to look at the socket itself: what came since poll returned is read before more
 * is sent, so that an answer which ends an upload is not lost to the reset behind it. */
static int dispatch_watch(void *ctx, short revents, struct err *err)
{
	struct http_watch *watch = ctx;
	struct http *http = watch->http;
	struct http_call *call = is_stream(watch, revents) ? watch->call : NULL;
	int running;

	loop_remove_timer(http->loop, TAKE(watch->timer));
	watch->rests = false;
	http_enter(http);
	if (call)
		read_stream(watch, call);
	else
		curl_multi_socket_action(http->multi, watch->fd, 0, &running);
	bool has_failed = call && http_give_batch(call) < 0 && !call->canceled;
	http_exit(http);
	return has_failed ? http_call_ended(call, CURLE_WRITE_ERROR, err) : http_drain(http, err);
}

static const struct loop_fd_ops watch_ops = {.prepare = prepare_watch, .dispatch = dispatch_watch};

static void leave_call(struct http_watch *watch)
{
	if (watch->call)
		watch->call->x.watch = NULL;
	watch->call = NULL;
}

static void drop_watch(struct http_watch *watch)
{
	leave_call(watch);
	loop_remove_timer(watch->http->loop, watch->timer);
	loop_remove_fd(watch->http->loop, watch->source);
	free(watch);
}

static struct http_watch *add_watch(struct http *http, curl_socket_t fd)
{
	struct http_watch *watch = mem_alloc(1, sizeof(*watch));

	watch->http = http;
	watch->fd = fd;
	watch->source = loop_add_fd(http->loop, fd, &watch_ops, watch);
	curl_multi_assign(http->multi, fd, watch);
	return watch;
}

static struct http_call *call_of(CURL *easy)
{
	char *private = NULL;

	/* NULL: a handle of libcurl's own */
	curl_easy_getinfo(easy, CURLINFO_PRIVATE, &private);
	return (struct http_call *)private;
}

static void note_socket(struct http_call *call, struct http_watch *watch)
{
	if (call->x.watch)
		leave_call(call->x.watch);
	leave_call(watch);
	call->x.fd = watch->fd;
	call->x.watch = watch;
	watch->call = call;
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *socket_ctx)
{
	struct http_watch *watch = socket_ctx;
	struct http_call *call = call_of(easy);

	if (what == CURL_POLL_REMOVE) {
		if (watch)
			drop_watch(watch);
		if (call && call->x.fd == fd)
			call->x.fd = -1;
		return 0;
	}
	bool is_new = !watch;
	if (is_new)
		watch = add_watch(ctx, fd);
	if (call)
		note_socket(call, watch);
	/* Behind a pause. */
	if (is_new && call && call->x.headers_over)
		read_at(watch, clock_ms());
	watch->events =
		(short)((what & CURL_POLL_IN ? POLLIN : 0) | (what & CURL_POLL_OUT ? POLLOUT : 0));
	return 0;
}

static void set_timer(
	struct http *http, struct loop_timer **timer, int64_t at_ms, loop_timer_fn *fn)
{
	loop_remove_timer(http->loop, *timer);
	*timer = loop_add_timer(http->loop, at_ms, fn, http);
}

static void drop_timer(struct http *http, struct loop_timer **timer)
{
	loop_remove_timer(http->loop, *timer);
	*timer = NULL;
}

static int timer_due(void *ctx, struct err *err)
{
	struct http *http = ctx;
	int running;

	http->timer = NULL;
	http_enter(http);
	curl_multi_socket_action(http->multi, CURL_SOCKET_TIMEOUT, 0, &running);
	http_exit(http);
	return http_drain(http, err);
}

static int on_timer(CURLM *multi, long timeout_ms, void *ctx)
{
	struct http *http = ctx;

	(void)multi;
	if (timeout_ms < 0)
		drop_timer(http, &http->timer);
	else
		set_timer(http, &http->timer, clock_deadline(timeout_ms), timer_due);
	return 0;
}

/*
 * Entering and leaving libcurl
 */

void http_enter(struct http *http)
{
	http->depth++;
}

static void free_canceled(struct http *http)
{
	struct http_call *call = http->calls;

	while (call) {
		struct http_call *next = call->next;

		if (call->canceled)
			http_call_free(call);
		call = next;
	}
}

static int drain_due(void *ctx, struct err *err)
{
	struct http *http = ctx;

	http->drain_timer = NULL;
	return http_drain(http, err);
}

static int drain(struct http *http, struct err *err)
{
	const CURLMsg *msg;
	int left;

	while ((msg = curl_multi_info_read(http->multi, &left))) {
		char *call = NULL;
		CURLcode result = msg->data.result;

		if (msg->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &call);
		int r = http_call_ended((struct http_call *)call, result, err);
		if (r < 0) {
			/* The rest, should the loop be run again. */
			if (left > 0)
				set_timer(http, &http->drain_timer, clock_ms(), drain_due);
			return r;
		}
	}
	return 0;
}

int http_drain(struct http *http, struct err *err)
{
	http->draining = true;
	int r = drain(http, err);
	http->draining = false;
	if (http->released)
		http_free(http);
	return r;
}

void http_exit(struct http *http)
{
	http->depth--;
	if (http->depth == 0)
		free_canceled(http);
}

int http_attach(struct http_call *call, struct err *err)
{
	struct http *http = call->http;

	CURLMcode code = curl_multi_add_handle(http->multi, call->x.easy);
	if (code != CURLM_OK)
		return err_set(
			err, E_BUG, "libcurl takes no request: %s", curl_multi_strerror(code));
	call->x.attached = true;
	http->n_running++;
	return 0;
}

void http_detach(struct http_call *call)
{
	struct http *http = call->http;

	if (!call->x.attached)
		return;
	curl_multi_remove_handle(http->multi, call->x.easy);
	if (call->x.watch)
		leave_call(call->x.watch);
	call->x.attached = false;
	http->n_running--;
	if (http->n_running == 0)
		drop_timer(http, &http->timer);
}

/*
 * The client
 */

/* 0 would be no limit. libcurl counts those that are in use to the ones that it keeps: with more
 * streams than that none would be used again. */
int http_share_connections(struct http *http)
{
	if (!http->multi)
		return CURLM_OK;
	int code = curl_multi_setopt(
		http->multi, CURLMOPT_MAXCONNECTS, (long)HTTP_POOL_MAX + http->n_streams);
	if (code != CURLM_OK)
		return code;
	return curl_multi_setopt(http->multi, CURLMOPT_MAX_HOST_CONNECTIONS,
		(long)HTTP_CONNECTIONS_MAX + http->n_streams);
}

static int set_options(struct http *http)
{
	CURLM *multi = http->multi;

	return curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, on_socket) != CURLM_OK ||
	       curl_multi_setopt(multi, CURLMOPT_SOCKETDATA, http) != CURLM_OK ||
	       curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, on_timer) != CURLM_OK ||
	       curl_multi_setopt(multi, CURLMOPT_TIMERDATA, http) != CURLM_OK ||
	       curl_multi_setopt(multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING) != CURLM_OK ||
	       http_share_connections(http) != CURLM_OK;
}

int http_ready(struct http *http, struct err *err)
{
	if (http->multi)
		return 0;
	int r = http_curl_load(err);
	if (r < 0)
		return r;
	http->multi = curl_multi_init();
	if (http->multi && !set_options(http))
		return 0;
	if (http->multi)
		curl_multi_cleanup(TAKE(http->multi));
	return err_set(err, E_BUG, "libcurl does not start");
}

struct http *http_new(const struct http_options *options)
{
	struct http *http = mem_alloc(1, sizeof(*http));

	http->loop = options->loop;
	http->user_agent = mem_strdup(options->user_agent);
	http->ca_file = mem_strdup(options->ca_file);
	http->proxy = options->proxy;
	http->event = options->event;
	http->event_ctx = options->event_ctx;
	return http;
}

struct http *http_twin(const struct http *http)
{
	const struct http_options options = {
		.loop = http->loop,
		.user_agent = http->user_agent,
		.proxy = http->proxy,
		.ca_file = http->ca_file,
		.event = http->event,
		.event_ctx = http->event_ctx,
	};

	return http_new(&options);
}

void http_release(struct http *http)
{
	if (http->draining)
		http->released = true;
	else
		http_free(http);
}

void http_free(struct http *http)
{
	if (!http)
		return;
	BUG_ON(http->depth > 0);
	while (http->calls)
		http_call_free(http->calls);
	if (http->multi)
		curl_multi_cleanup(http->multi);
	else
		http_curl_wait();
	drop_timer(http, &http->timer);
	drop_timer(http, &http->drain_timer);
	http_drop_routes(http);
	free(http->user_agent);
	free(http->ca_file);
	free(http);
}
