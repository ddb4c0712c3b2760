/* SPDX-License-Identifier: Apache-2.0 */
#include "net/http/http.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "net/http/http_impl.h"

static int finish(struct http_call *call, struct err *err);
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
	struct err *fault = &call->x.fault;
	char text[32];

	if (is_idle)
		err_set(fault, E_HTTP_TIMEOUT, "%s has not gone on for %s", host,
			duration_text(call->request.idle_ms, text));
	else if (call->x.begun)
		err_set(fault, E_HTTP_TIMEOUT, "%s has not answered within the time for it", host);
	else
		err_set(fault, E_HTTP_TIMEOUT, "no connection to %s within the time for it", host);
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

static int begin(struct http_call *call, struct err *err)
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

void http_call_tell(struct http_call *call)
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
		.fault = err_is_set(&x->fault) ? &x->fault : NULL,
	};

	if (trace_is_on(TRACE_HTTP)) {
		AUTO_FREE char *shown = url_shown(&call->url);
		long n_connects = 0;

		if (x->easy)
			curl_easy_getinfo(x->easy, CURLINFO_NUM_CONNECTS, &n_connects);
		trace_write(TRACE_HTTP, "%s %s: status %d, up %llu, down %llu, %lld ms, %s%s%s",
			event.method, shown, event.status, (unsigned long long)event.bytes_up,
			(unsigned long long)event.bytes_down, (long long)event.ms,
			!x->begun    ? "no connection"
			: n_connects ? "new connection"
				     : "reused connection",
			event.fault ? ": " : "", event.fault ? event.fault->message : "");
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

static int fail(struct http_call *call, struct err *err)
{
	http_call_tell(call);
	return finish(call, err);
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
	int r = begin(call, &call->x.fault);

	/* A proxy or route would have to be contacted before the server. */
	if (call->held && (r < 0 || call->x.proxy || call->x.route))
		drop_exchange(call);
	else if (r < 0)
		return fail(call, err);
	return 0;
}

static int start_due(void *ctx, struct err *err)
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
	call->timer = loop_add_timer(call->http->loop, clock_ms(), start_due, call);
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

static void copy_request(struct http_call *call, const struct http_request *request)
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
	copy_request(call, request);
	buf_init(&call->answer.body, HTTP_ERROR_BODY_MAX);
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

void http_answer_done(struct http_answer *answer)
{
	strv_done(&answer->headers);
	buf_done(&answer->body);
	url_done(&answer->url);
	err_done(&answer->fault);
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
	http_answer_done(&call->answer);
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

static int finish(struct http_call *call, struct err *err)
{
	struct http_answer *answer = &call->answer;
	struct http_exchange *x = &call->x;

	call->over = true;
	answer->status = x->status;
	answer->is_transient = x->is_transient;
	answer->ms = clock_ms() - call->start_ms;
	answer->url = call->url;
	call->url = (struct url){0};
	if (err_is_set(&x->fault)) {
		answer->status = 0;
		strv_done(&answer->headers);
		buf_reset(&answer->body);
		err_move(&answer->fault, &x->fault);
	}
	if (call->ended)
		return call->ended(call, err);
	drop_exchange(call);
	int r = call->request.done(call->request.ctx, answer, err);
	http_call_free(call);
	return r;
}

/*
 * The end of an exchange
 */

/* While it was held, maybe: neither a server nor libcurl waits for ever. */
static bool is_lost_ahead(const struct http_exchange *x, CURLcode result)
{
	if (!x->was_held || x->begun || err_is_set(&x->fault))
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
	if (call->connected && result == CURLE_OK && !err_is_set(&x->fault))
		return call->connected(call, err);
	if (x->easy)
		curl_easy_getinfo(x->easy, CURLINFO_SIZE_UPLOAD_T, &up);
	x->bytes_up = (uint64_t)up;
	http_fault(call, result);
	call->answer.sent = call->answer.sent || x->begun;
	call->answer.bytes_up += x->bytes_up;
	call->answer.bytes_down += x->bytes_down;
	http_call_tell(call);
	if (!err_is_set(&x->fault))
		r = http_find_redirect(call, &url, &x->fault);
	if (r <= 0)
		return finish(call, err);
	drop_exchange(call);
	http_redirect(call, &url);
	return start_exchange(call, err);
}

/*
 * Pauses
 */

static int wake_due(void *ctx, struct err *err)
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
		call->wake_timer = loop_add_timer(call->http->loop, clock_ms(), wake_due, call);
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
