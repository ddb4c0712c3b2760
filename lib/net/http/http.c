/* SPDX-License-Identifier: Apache-2.0 */
#include "net/http/http.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/os/env.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "net/http/http_impl.h"

static void http_enter(struct http *http);
static void http_exit(struct http *http);
static int http_drain(struct http *http, struct err *err);
static int http_attach(struct http_call *call, struct err *err);
static void http_detach(struct http_call *call);
static int http_ready(struct http *http, struct err *err);
static int http_share_connections(struct http *http);

static int http_finish(struct http_call *call, struct err *err);
static int limit_due(void *ctx, struct err *err);

/*
 * Limits of time
 */

static int64_t idle_end(const struct http_call *call, int64_t now_ms)
{
	int64_t from_ms = call->x.last_ms;

	if (!call->x.begun) /* until then it waits for a connection, which has a limit of its own */
		return INT64_MAX;
	if (call->recv_paused || call->send_paused)
		from_ms = now_ms;
	return from_ms + call->request.idle_ms;
}

/* Check the limits again when the earlier one may be reached; progress made meanwhile is seen then,
 * so that bytes cost no timers. */
static void watch_limits(struct http_call *call)
{
	int64_t now_ms = clock_ms(), at_ms = now_ms + call->request.idle_ms;
	int64_t idle_ms = idle_end(call, now_ms);

	if (idle_ms < at_ms)
		at_ms = idle_ms;
	if (call->request.deadline_ms > 0 && call->request.deadline_ms < at_ms)
		at_ms = call->request.deadline_ms;
	call->timer = loop_add_timer(call->http->loop, at_ms, limit_due, call);
}

static int time_out(struct http_call *call, bool is_idle, struct err *err)
{
	AUTO_FREE char *host = url_authority(&call->url);
	struct err *error = &call->x.error;
	char text[32];

	if (is_idle)
		err_set(error, E_HTTP_TIMEOUT, "%s has not gone on for %s", host,
			duration_text(call->request.idle_ms, text));
	else if (call->x.begun)
		err_set(error, E_HTTP_TIMEOUT, "%s has not answered within the time for it", host);
	else
		err_set(error, E_HTTP_TIMEOUT, "no connection to %s within the time for it", host);
	call->x.is_transient = true;
	call->held = call->x.too_early = false;
	return http_call_ended(call, CURLE_OPERATION_TIMEDOUT, err);
}

static int limit_due(void *ctx, struct err *err)
{
	struct http_call *call = ctx;
	int64_t now_ms = clock_ms(), deadline_ms = call->request.deadline_ms;

	call->timer = NULL;
	if (deadline_ms > 0 && now_ms >= deadline_ms)
		return time_out(call, false, err);
	if (now_ms >= idle_end(call, now_ms))
		return time_out(call, true, err);
	watch_limits(call);
	return 0;
}

/*
 * The start
 */

/* Neither a header nor a login may hold what would begin another header. */
static bool is_one_line(const char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < 0x20 ? *text != '\t' : *text == 0x7f)
			return false;
	return true;
}

static int check_lines(const struct http_call *call, struct err *err)
{
	bool is_ok = !call->request.authorization || is_one_line(call->request.authorization);

	vec_foreach (char *, header, &call->headers)
		is_ok = is_ok && is_one_line(*header) && strchr(*header, ':');
	return is_ok ? 0
		     : err_set(err, E_HTTP_PROTOCOL,
			       "a header of the request to %s holds a line break or control",
			       call->url.host);
}

static int http_begin(struct http_call *call, struct err *err)
{
	int r = check_lines(call, err);

	if (r == 0)
		r = http_ready(call->http, err);
	if (r == 0)
		r = http_exchange_init(call, err);
	if (r == 0)
		r = http_check_literal(call, err);
	return r < 0 ? r : http_attach(call, err);
}

void http_call_notify(struct http_call *call)
{
	const struct http_exchange *x = &call->x;
	AUTO_FREE char *url = url_text(&call->url);
	struct http_event event = {
		.method = call->request.method,
		.url = url,
		.status = x->status,
		.ms = clock_ms() - (x->start_ms ? x->start_ms : call->start_ms),
		.bytes_up = x->bytes_up,
		.bytes_down = x->bytes_down,
		.error = err_is_set(&x->error) ? &x->error : NULL,
	};

	if (trace_is_on(TRACE_HTTP)) {
		AUTO_FREE char *shown = url_shown(&call->url);
		long n_connects = 0;

		if (x->easy)
			curl_easy_getinfo(x->easy, CURLINFO_NUM_CONNECTS, &n_connects);
		/* Nothing is printed of a 0 by %.0d. */
		trace_write(TRACE_HTTP, "%s %s: %s%.0d, up %llu, down %llu, %lld ms, %s%s%s",
			event.method, shown, event.status ? "status " : "no response", event.status,
			(unsigned long long)event.bytes_up, (unsigned long long)event.bytes_down,
			(long long)event.ms,
			!x->begun    ? "no connection"
			: n_connects ? "new connection"
				     : "reused connection",
			event.error ? ": " : "", event.error ? event.error->message : "");
	}
	url[strcspn(url, "?")] = '\0';
	if (call->http->event)
		call->http->event(call->http->event_ctx, &event);
}

static void drop_exchange(struct http_call *call)
{
	http_detach(call);
	http_exchange_done(&call->x);
}

static int http_fail(struct http_call *call, struct err *err)
{
	http_call_notify(call);
	return http_finish(call, err);
}

/*
 * Shares of the connections
 */

static void take_share(struct http_call *call)
{
	struct http *http = call->http;

	call->waits_for_turn = false;
	call->has_share = true;
	http->n_streams++;
	http->n_turns += call->request.share == HTTP_TURN;
	http_share_connections(http);
}

/* Whether the exchange may begin. */
static bool has_share(struct http_call *call)
{
	if (call->request.share == HTTP_SHORT || call->has_share)
		return true;
	if (call->request.share == HTTP_TURN && call->http->n_turns >= HTTP_TURNS_MAX) {
		call->waits_for_turn = true;
		return false;
	}
	take_share(call);
	return true;
}

static struct http_call *first_waiting(const struct http *http)
{
	struct http_call *first = NULL;

	for (struct http_call *call = http->calls; call; call = call->next)
		if (call->waits_for_turn)
			first = call;
	return first;
}

static void start_soon(struct http_call *call);

/* The call that has waited longest gets the turn, before all that are begun meanwhile. */
static void give_share(struct http_call *call)
{
	struct http *http = call->http;
	bool is_turn = call->request.share == HTTP_TURN;
	struct http_call *next = is_turn ? first_waiting(http) : NULL;

	call->has_share = false;
	http->n_streams--;
	http->n_turns -= is_turn;
	if (next) {
		take_share(next);
		start_soon(next);
	} else {
		http_share_connections(http);
	}
}

bool http_waits_for_turn(const struct http_call *call)
{
	return call->waits_for_turn;
}

bool http_is_to_give_way(const struct http_call *call)
{
	return call->request.share == HTTP_TURN && call->x.attached &&
	       clock_ms() - call->x.start_ms >= HTTP_TURN_MS && first_waiting(call->http);
}

/* A held call waits without a connection where none can be made; errors show when it is sent. */
static int start_exchange(struct http_call *call, struct err *err)
{
	if (!has_share(call))
		return 0;
	int r = http_begin(call, &call->x.error);

	/* A proxy or route would have to be contacted before the server. */
	if (call->held && (r < 0 || call->x.proxy || call->x.route))
		drop_exchange(call);
	else if (r < 0)
		return http_fail(call, err);
	return 0;
}

static int http_start_due(void *ctx, struct err *err)
{
	struct http_call *call = ctx;

	call->timer = NULL;
	drop_exchange(call);
	watch_limits(call);
	return start_exchange(call, err);
}

static void start_soon(struct http_call *call)
{
	loop_remove_timer(call->http->loop, call->timer);
	call->timer = loop_add_timer(call->http->loop, clock_ms(), http_start_due, call);
}

/* Where nothing was sent yet only the end of the connection, or TLS, is there to be read. */
static bool is_connected(const struct http_call *call)
{
	struct pollfd pollfd = {.fd = call->x.fd, .events = POLLIN};
	struct sockaddr_storage address = {0};
	socklen_t len = sizeof(address);

	/* The fd may be the one that wakes libcurl after a name lookup. */
	if (getpeername(pollfd.fd, (struct sockaddr *)&address, &len) < 0 ||
		address.ss_family == AF_UNIX)
		return false;
	return call->url.tls || poll(&pollfd, 1, 0) == 0;
}

void http_authorize(struct http_call *call, const char *authorization)
{
	if (!call || call->over || !call->held)
		return;
	call->held = false;
	http_wipe(call->request.authorization);
	call->request.authorization = mem_strdup(authorization);
	if (call->x.attached && is_connected(call) && check_lines(call, NULL) == 0)
		http_exchange_authorize(call);
	else
		start_soon(call);
}

void http_retarget(struct http_call *call, const struct url *url, void *ctx)
{
	BUG_ON(!call->held || !url_same_origin(url, &call->url));
	url_done(&call->url);
	url_copy(url, &call->url);
	call->request.ctx = ctx;
	call->retargeted = true;
}

static void http_copy_request(struct http_call *call, const struct http_request *request)
{
	struct http_request *kept = &call->request;

	*kept = *request;
	kept->method = mem_strdup(request->method);
	kept->authorization = mem_strdup(request->authorization);
	kept->proxy = mem_strdup(request->proxy);
	kept->url = NULL;
	kept->headers = NULL;
	kept->tls = NULL;
	call->held = request->held;
	if (request->idle_ms <= 0)
		kept->idle_ms = HTTP_IDLE_MS;
	url_copy(request->url, &call->url);
	if (request->headers)
		strv_copy(&call->headers, request->headers);
	if (request->tls)
		call->tls = *request->tls;
	if (kept->body.data && kept->body.copy)
		kept->body.data = mem_dup(kept->body.data, kept->body.size);
}

struct http_call *http_start(struct http *http, const struct http_request *request)
{
	struct http_call *call = mem_alloc(1, sizeof(*call));

	call->http = http;
	http_copy_request(call, request);
	buf_init(&call->response.body, HTTP_ERROR_BODY_MAX);
	buf_init(&call->batch, HTTP_BATCH_MAX);
	call->start_ms = clock_ms();
	call->next = http->calls;
	if (call->next)
		call->next->prev = call;
	http->calls = call;
	http_prepare();
	/* Start from the loop: the caller may be libcurl. */
	start_soon(call);
	return call;
}

/*
 * The end
 */

void http_wipe(const char *secret)
{
	char *s = (char *)secret;

	if (!s)
		return;
	explicit_bzero(s, strlen(s));
	free(s);
}

void http_response_done(struct http_response *response)
{
	strv_done(&response->headers);
	buf_done(&response->body);
	url_done(&response->url);
	err_done(&response->error);
	*response = (struct http_response){0};
}

void http_call_free(struct http_call *call)
{
	struct http *http = call->http;

	drop_exchange(call);
	call->waits_for_turn = false;
	if (call->has_share)
		give_share(call);
	if (call->prev)
		call->prev->next = call->next;
	else
		http->calls = call->next;
	if (call->next)
		call->next->prev = call->prev;
	loop_remove_timer(http->loop, call->timer);
	loop_remove_timer(http->loop, call->wake_timer);
	free((char *)call->request.method);
	http_wipe(call->request.authorization);
	http_wipe(call->request.proxy);
	if (call->request.body.copy)
		free((void *)call->request.body.data);
	strv_done(&call->headers);
	url_done(&call->url);
	http_response_done(&call->response);
	buf_done(&call->batch);
	free(call);
}

void http_cancel(struct http_call *call)
{
	if (!call || call->over)
		return;
	if (call->http->depth > 0)
		call->canceled = true;
	else
		http_call_free(call);
}

static int http_finish(struct http_call *call, struct err *err)
{
	struct http_response *response = &call->response;
	struct http_exchange *x = &call->x;

	call->over = true;
	response->status = x->status;
	response->is_transient = x->is_transient;
	response->ms = clock_ms() - call->start_ms;
	response->url = call->url;
	call->url = (struct url){0};
	if (err_is_set(&x->error)) {
		response->status = 0;
		strv_done(&response->headers);
		buf_reset(&response->body);
		err_move(&response->error, &x->error);
	}
	if (call->ended)
		return call->ended(call, err);
	drop_exchange(call);
	int r = call->request.done(call->request.ctx, response, err);
	http_call_free(call);
	return r;
}

/*
 * The end of an exchange
 */

/* While it was held, maybe: neither a server nor libcurl waits for ever. */
static bool is_lost_ahead(const struct http_exchange *x, CURLcode result)
{
	if (!x->was_held || x->begun || err_is_set(&x->error))
		return false;
	switch (result) {
	case CURLE_OK:
	case CURLE_COULDNT_RESOLVE_HOST:
	case CURLE_PEER_FAILED_VERIFICATION:
		return false;
	case CURLE_OPERATION_TIMEDOUT:
		return clock_ms() - x->start_ms < HTTP_CONNECT_MS / 2;
	default:
		return true;
	}
}

/* Nothing was sent. */
static int begin_again(struct http_call *call, struct err *err)
{
	drop_exchange(call);
	return call->held ? 0 : start_exchange(call, err);
}

int http_call_ended(struct http_call *call, CURLcode result, struct err *err)
{
	struct http_exchange *x = &call->x;
	struct url url = {0};
	curl_off_t up = 0;
	int r = 0;

	if (call->held || x->too_early || is_lost_ahead(x, result))
		return begin_again(call, err);
	if (call->connected && result == CURLE_OK && !err_is_set(&x->error))
		return call->connected(call, err);
	if (x->easy)
		curl_easy_getinfo(x->easy, CURLINFO_SIZE_UPLOAD_T, &up);
	x->bytes_up = (uint64_t)up;
	http_error(call, result);
	call->response.sent = call->response.sent || x->begun;
	call->response.bytes_up += x->bytes_up;
	call->response.bytes_down += x->bytes_down;
	http_call_notify(call);
	if (!err_is_set(&x->error))
		r = http_find_redirect(call, &url, &x->error);
	if (r <= 0)
		return http_finish(call, err);
	drop_exchange(call);
	http_redirect(call, &url);
	return start_exchange(call, err);
}

/*
 * Pausing and resuming
 */

static int http_wake_due(void *ctx, struct err *err)
{
	struct http_call *call = ctx;
	struct http *http = call->http;

	call->wake_timer = NULL;
	if (call->resumes) {
		call->recv_paused = call->send_paused = call->resumes = false;
		call->x.last_ms = clock_ms();
	}
	if (!call->x.attached)
		return 0;
	http_enter(http);
	CURLcode result = curl_easy_pause(call->x.easy, CURLPAUSE_CONT);
	bool has_failed = result != CURLE_OK && !call->canceled;
	http_exit(http);
	return has_failed ? http_call_ended(call, result, err) : http_drain(http, err);
}

/* Wake from the loop, because libcurl hands out data that it has kept. */
void http_call_wake(struct http_call *call)
{
	if (!call->wake_timer)
		call->wake_timer =
			loop_add_timer(call->http->loop, clock_ms(), http_wake_due, call);
}

void http_resume(struct http_call *call)
{
	if (!call || call->over)
		return;
	call->resumes = true;
	http_call_wake(call);
}

uint64_t http_sent(const struct http_call *call)
{
	return (uint64_t)call->x.seen_up;
}

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

static void http_read_at(struct http_watch *watch, int64_t at_ms)
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
		http_read_at(watch, now_ms + REST_MS);
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

/* The body of a response comes, and nothing is sent. */
static bool is_stream(const struct http_watch *watch, short revents)
{
	const struct http_call *call = watch->call;

	return call && call->request.data && call->x.headers_over && watch->events == POLLIN &&
	       revents == POLLIN;
}

/* libcurl is left to check the socket itself: what came since poll returned is read before more
 * is sent, so that a response which ends an upload is not lost to the reset behind it. */
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

static struct http_call *http_call_of(CURL *easy)
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
	struct http_call *call = http_call_of(easy);

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
	/* After a pause. */
	if (is_new && call && call->x.headers_over)
		http_read_at(watch, clock_ms());
	watch->events =
		(short)((what & CURL_POLL_IN ? POLLIN : 0) | (what & CURL_POLL_OUT ? POLLOUT : 0));
	return 0;
}

static void http_set_timer(
	struct http *http, struct loop_timer **timer, int64_t at_ms, loop_timer_fn *fn)
{
	loop_remove_timer(http->loop, *timer);
	*timer = loop_add_timer(http->loop, at_ms, fn, http);
}

static void http_drop_timer(struct http *http, struct loop_timer **timer)
{
	loop_remove_timer(http->loop, *timer);
	*timer = NULL;
}

static int http_timer_due(void *ctx, struct err *err)
{
	struct http *http = ctx;
	int running;

	http->timer = NULL;
	http_enter(http);
	curl_multi_socket_action(http->multi, CURL_SOCKET_TIMEOUT, 0, &running);
	http_exit(http);
	return http_drain(http, err);
}

static int http_on_timer(CURLM *multi UNUSED, long timeout_ms, void *ctx)
{
	struct http *http = ctx;

	if (timeout_ms < 0)
		http_drop_timer(http, &http->timer);
	else
		http_set_timer(http, &http->timer, clock_deadline(timeout_ms), http_timer_due);
	return 0;
}

/*
 * Entering and leaving libcurl
 */

static void http_enter(struct http *http)
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

static int http_drain_messages(struct http *http, struct err *err)
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
				http_set_timer(http, &http->drain_timer, clock_ms(), drain_due);
			return r;
		}
	}
	return 0;
}

/* The ends of exchanges that libcurl has reported. */
static int http_drain(struct http *http, struct err *err)
{
	http->draining = true;
	int r = http_drain_messages(http, err);
	http->draining = false;
	if (http->released)
		http_free(http);
	return r;
}

static void http_exit(struct http *http)
{
	http->depth--;
	if (http->depth == 0)
		free_canceled(http);
}

static int http_attach(struct http_call *call, struct err *err)
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

static void http_detach(struct http_call *call)
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
		http_drop_timer(http, &http->timer);
}

/*
 * The client
 */

/* 0 would be no limit. libcurl counts those that are in use to the ones that it keeps: with more
 * streams than that none would be used again. */
static int http_share_connections(struct http *http)
{
	unsigned pool = http->n_connections > HTTP_POOL_MAX ? http->n_connections : HTTP_POOL_MAX;

	if (!http->multi)
		return CURLM_OK;
	int code =
		curl_multi_setopt(http->multi, CURLMOPT_MAXCONNECTS, (long)pool + http->n_streams);
	if (code != CURLM_OK)
		return code;
	return curl_multi_setopt(http->multi, CURLMOPT_MAX_HOST_CONNECTIONS,
		(long)http->n_connections + http->n_streams);
}

static int set_options(struct http *http)
{
	CURLM *multi = http->multi;

	return curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, on_socket) != CURLM_OK ||
	       curl_multi_setopt(multi, CURLMOPT_SOCKETDATA, http) != CURLM_OK ||
	       curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, http_on_timer) != CURLM_OK ||
	       curl_multi_setopt(multi, CURLMOPT_TIMERDATA, http) != CURLM_OK ||
	       curl_multi_setopt(multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING) != CURLM_OK ||
	       http_share_connections(http) != CURLM_OK;
}

/* libcurl is there for the exchanges of a client. */
static int http_ready(struct http *http, struct err *err)
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

struct http_options http_options_of(struct loop *loop, const char *const *env)
{
	const char *ca_file = env_get(env, "SSL_CERT_FILE");
	struct http_options options = {.loop = loop,
		.user_agent = "dlrun",
		.ca_file = str_empty(ca_file) ? NULL : ca_file};

	proxy_env_read(env, &options.proxy);
	return options;
}

struct http *http_new(const struct http_options *options)
{
	struct http *http = mem_alloc(1, sizeof(*http));

	http->loop = options->loop;
	http->user_agent = mem_strdup(options->user_agent);
	http->ca_file = mem_strdup(options->ca_file);
	http->proxy = options->proxy;
	http->n_connections =
		options->n_connections ? options->n_connections : HTTP_CONNECTIONS_MAX;
	http->event = options->event;
	http->event_ctx = options->event_ctx;
	return http;
}

struct http *http_clone(const struct http *http)
{
	const struct http_options options = {
		.loop = http->loop,
		.user_agent = http->user_agent,
		.proxy = http->proxy,
		.ca_file = http->ca_file,
		.n_connections = http->n_connections,
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
	http_drop_timer(http, &http->timer);
	http_drop_timer(http, &http->drain_timer);
	http_drop_routes(http);
	free(http->user_agent);
	free(http->ca_file);
	free(http);
}
