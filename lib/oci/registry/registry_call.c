/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "net/stream/field.h"
#include "oci/registry/registry_error.h"
#include "oci/registry/registry_impl.h"

enum { NOTE_MIN_MS = 1000, AHEAD_MAX = HTTP_CONNECTIONS_MAX - 2 };

/* A request of a caller: as many http requests as it takes. One of wait, http and probe is under
 * way (with wait a held http, too), or timer runs, or it waits for the pilot. */
struct registry_call {
	struct registry *registry;
	struct registry_call *prev, *next;
	struct registry_request request; /* its strings are owned */
	struct url url;                  /* of it, or empty */
	struct strv headers;
	char *repo;
	bool foreign;  /* url is of another origin: no login */
	bool finished; /* done was or is being called */
	bool behind_gate;

	struct auth_wait *wait;
	bool waiting;
	struct http_call *http;
	bool by_tls; /* how it was sent */
	struct registry_probe *probe;
	struct loop_timer *timer, *deadline_timer;

	unsigned generation; /* of the authorization */
	unsigned logins, tries;
	int64_t began_ms;
	bool spent;              /* the body was read, or data was given: it cannot be sent again */
	struct err cause;        /* why it was tried again */
	struct err fault;        /* to be delivered by timer */
	struct http_answer kept; /* that was accepted, in case of no better one */
};

static void authorize(struct registry_call *call);

/*
 * The end
 */

static void free_answer(struct http_answer *answer)
{
	strv_done(&answer->headers);
	buf_done(&answer->body);
	url_done(&answer->url);
	*answer = (struct http_answer){0};
}

static void stop(struct registry_call *call)
{
	struct loop *loop = call->registry->loop;

	auth_cancel(TAKE(call->wait));
	call->waiting = call->behind_gate = false;
	http_cancel(TAKE(call->http));
	registry_probe_free(TAKE(call->probe));
	loop_remove_timer(loop, TAKE(call->timer));
	loop_remove_timer(loop, TAKE(call->deadline_timer));
}

static void free_call(struct registry_call *call)
{
	free((char *)call->request.method);
	free((char *)call->request.repo);
	free((char *)call->request.path);
	free((char *)call->request.doing);
	if (call->request.body.copy)
		free((void *)call->request.body.data);
	free(call->repo);
	url_done(&call->url);
	strv_done(&call->headers);
	err_done(&call->cause);
	err_done(&call->fault);
	free_answer(&call->kept);
	free(call);
}

static void unlink_call(struct registry_call *call)
{
	if (call->prev)
		call->prev->next = call->next;
	else
		call->registry->calls = call->next;
	if (call->next)
		call->next->prev = call->prev;
}

/* The pilot has shown the way, or is no more. */
static void open_gate(struct registry *registry)
{
	registry->gated = false;
	registry->pilot = NULL;
	for (struct registry_call *call = registry->calls; call; call = call->next) {
		if (!call->behind_gate)
			continue;
		call->behind_gate = false;
		authorize(call);
	}
}

/* The registry may be gone when done returns. */
static int finish(
	struct registry_call *call, struct http_answer *answer, struct err *fault, struct err *err)
{
	struct registry *registry = call->registry;

	call->finished = true;
	stop(call);
	unlink_call(call);
	if (registry->pilot == call)
		open_gate(registry);
	int r = call->request.done(call->request.ctx, answer, fault, err);
	free_call(call);
	return r;
}

void registry_cancel(struct registry_call *call)
{
	struct registry *registry = call ? call->registry : NULL;

	if (!call || call->finished)
		return;
	stop(call);
	unlink_call(call);
	if (registry->pilot == call && registry->gated)
		open_gate(registry);
	free_call(call);
}

void registry_resume(struct registry_call *call)
{
	if (call->http)
		http_resume(call->http);
}

uint64_t registry_sent(const struct registry_call *call)
{
	return call->http ? http_sent(call->http) : 0;
}

static int timer_due(void *ctx, struct err *err)
{
	struct registry_call *call = ctx;

	call->timer = NULL;
	if (call->kept.status)
		return finish(call, &call->kept, NULL, err);
	if (err_is_set(&call->fault))
		return finish(call, NULL, &call->fault, err);
	authorize(call);
	return 0;
}

/* Not from where the caller started it: from the loop. */
static void end_soon(struct registry_call *call)
{
	call->timer = loop_add_timer(call->registry->loop, clock_ms(), timer_due, call);
}

/*
 * Failures
 */

static struct registry_asked asked(const struct registry_call *call, const struct url *from)
{
	return (struct registry_asked){
		.host = call->registry->host,
		.repo = call->request.repo ? call->request.repo : call->registry->repo,
		.doing = call->request.doing,
		.method = call->request.method,
		.identity = auth_identity(call->registry->auth),
		.elsewhere = from->host && !str_eq(from->host, call->registry->origin.host),
	};
}

int registry_call_error(
	const struct registry_call *call, const struct http_answer *answer, struct err *err)
{
	const struct registry_asked what = asked(call, &answer->url);

	return registry_refusal(&what, answer, err);
}

static int deadline_due(void *ctx, struct err *err)
{
	struct registry_call *call = ctx;
	AUTO_ERR struct err fault = {0};

	call->deadline_timer = NULL;
	err_set(&fault, E_REGISTRY_TIMEOUT, "registry %s: timed out (%s)", call->registry->host,
		call->request.doing);
	if (err_is_set(&call->cause))
		err_evidence(&fault, "before that: %s", call->cause.message);
	err_hint(&fault, "export DLRUN_PUSH_TIMEOUT=30m   # or push_timeout: in dlrun.yaml");
	return finish(call, NULL, &fault, err);
}

/* The cause of the last try, as the reason to give up. */
static int give_up(struct registry_call *call, struct err *err)
{
	AUTO_ERR struct err fault = {0};
	const struct err *cause = &call->cause;

	if (call->tries > 1)
		err_set(&fault, E_REGISTRY_UNREACHABLE, "%s (%u tries)", cause->message,
			call->tries);
	else
		err_set(&fault, E_REGISTRY_UNREACHABLE, "%s", cause->message);
	for (size_t i = 0; i < cause->n_evidence; i++)
		err_evidence(&fault, "%s", cause->evidence[i]);
	err_hint(&fault, "%s", cause->hint ? cause->hint : "dlrun doctor");
	return finish(call, NULL, &fault, err);
}

static void add_hint(const struct registry_call *call, struct err *fault)
{
	if (fault->id == E_HTTP_TLS)
		err_hint(fault, "registry: {push: %s, ca: registry-ca.pem}", call->registry->name);
	else if (fault->id == E_HTTP_CERT)
		err_hint(fault, "registry: {push: %s, cert: client.cert, key: client.key}",
			call->registry->name);
	else if (fault->id == E_HTTP_CONNECT || fault->id == E_HTTP_RESOLVE)
		err_hint(fault, "dlrun doctor");
}

static int on_probed(void *ctx, struct err *fault, struct err *err)
{
	struct registry_call *call = ctx;

	add_hint(call, fault);
	return finish(call, NULL, fault, err);
}

/* Whether an error is of lib/net; others are of the source or the receiver of the bytes. */
static bool is_net_fault(const struct err *fault)
{
	return fault->id >= E_HTTP_CLOSED && fault->id <= E_HTTP_ZONE;
}

/* Faults of lib/net begin with the host they are about, or have it somewhere. */
static void name_registry(const struct registry_call *call, struct err *fault)
{
	const char *host = call->registry->host;
	size_t len = strlen(host);

	if (strncmp(fault->message, host, len) != 0 || fault->message[len] != ' ') {
		err_prefix(fault, "registry %s", host);
		return;
	}
	AUTO_FREE char *message = fault->message;
	fault->message = mem_printf("registry %s", message);
}

/* A fault that will not go away. */
static int fail(struct registry_call *call, struct err *fault, struct err *err)
{
	bool probe = !call->foreign && registry_wants_probe(call->registry, fault);

	if (is_net_fault(fault))
		name_registry(call, fault);
	if (probe) {
		call->probe = registry_probe_start(call->registry, fault, on_probed, call);
		return 0;
	}
	add_hint(call, fault);
	return finish(call, NULL, fault, err);
}

/*
 * Trying again
 */

/* Half of it jitter, so that all tries together outlast a line that is gone for a second; what the
 * server asks for is at least waited, but not more than people would. */
static int64_t delay_ms(const struct registry_call *call, const struct http_answer *answer)
{
	static const uint32_t caps_ms[REGISTRY_TRIES - 1] = {200, 600, 1800, 5000};
	const char *text = answer ? field_find(&answer->headers, "retry-after") : NULL;
	int64_t asked_ms = text ? field_retry_after(text, clock_wall_ms()) : -1;
	uint32_t half_ms = caps_ms[call->tries - 1] / 2;
	int64_t jitter_ms = half_ms + random_below(half_ms + 1);

	if (asked_ms > REGISTRY_RETRY_AFTER_MAX_MS)
		return REGISTRY_RETRY_AFTER_MAX_MS;
	return asked_ms > jitter_ms ? asked_ms : jitter_ms;
}

static void note_wait(const struct registry_call *call, int64_t wait_ms)
{
	char text[32];

	if (wait_ms < NOTE_MIN_MS || !call->registry->note)
		return;
	AUTO_FREE char *note =
		mem_printf("%s, waiting %s", call->cause.message, duration_text(wait_ms, text));
	call->registry->note(call->registry->note_ctx, note);
}

/* The cause is set. end_ms: no try begins later. */
static int again(struct registry_call *call, const struct http_answer *answer, int64_t end_ms,
	struct err *err)
{
	int64_t now_ms = clock_ms();
	char text[32];

	if (call->tries >= REGISTRY_TRIES || now_ms >= end_ms)
		return give_up(call, err);
	int64_t wait_ms = delay_ms(call, answer);
	if (end_ms != INT64_MAX && now_ms + wait_ms > end_ms)
		wait_ms = end_ms - now_ms;
	if (now_ms + wait_ms >= call->registry->deadline_ms) {
		err_evidence(&call->cause, "another try, in %s, would come too late",
			duration_text(wait_ms, text));
		return give_up(call, err);
	}
	note_wait(call, wait_ms);
	call->timer = loop_add_timer(call->registry->loop, now_ms + wait_ms, timer_due, call);
	return 0;
}

static bool may_send_again(const struct registry_call *call, const struct http_answer *answer)
{
	if (call->spent)
		return false;
	return !call->request.once || (answer->status ? answer->status == 429 : !answer->sent);
}

static void other_scheme(struct registry_call *call)
{
	/* Another call may have been faster. */
	if (call->by_tls == call->registry->origin.tls)
		registry_switch_scheme(call->registry);
	authorize(call);
}

/* Whether it is to be sent by the other scheme: now, or because that was changed meanwhile. */
static bool is_of_other_scheme(const struct registry_call *call, const struct http_answer *answer)
{
	const struct registry *registry = call->registry;

	if (call->foreign || call->spent)
		return false;
	return call->by_tls != registry->origin.tls ||
	       (!registry->answered && registry_wants_switch(registry, answer));
}

static int on_fault(struct registry_call *call, struct http_answer *answer, struct err *err)
{
	struct err *fault = &answer->fault;
	int64_t end_ms = INT64_MAX;

	if (!answer->is_transient || fault->id == E_HTTP_RESOLVE || !may_send_again(call, answer))
		return fail(call, fault, err);
	err_move(&call->cause, fault);
	if (answer->sent)
		name_registry(call, &call->cause);
	else
		err_prefix(&call->cause, "registry %s cannot be reached", call->registry->host);
	if (!answer->sent && !call->registry->answered)
		end_ms = call->began_ms + REGISTRY_CONNECT_MS;
	return again(call, NULL, end_ms, err);
}

/*
 * Answers
 */

static bool is_transient_status(int status)
{
	static const int statuses[] = {408, 429, 500, 502, 503, 504};

	for (size_t i = 0; i < ARRAY_LEN(statuses); i++)
		if (statuses[i] == status)
			return true;
	return false;
}

static bool is_accepted(unsigned accept, int status)
{
	static const int refusals[] = {400, 401, 403, 405, 409, 412, 416, 501};

	if ((status >= 200 && status < 300) || (accept & REGISTRY_ANY))
		return true;
	if (status == 404)
		return accept & REGISTRY_NOT_FOUND;
	for (size_t i = 0; i < ARRAY_LEN(refusals); i++)
		if (refusals[i] == status)
			return accept & REGISTRY_REFUSED;
	return false;
}

/* Whether the registry itself wants another login: what it has redirected us to may not. */
static bool wants_login(const struct registry_call *call, const struct http_answer *answer)
{
	if (call->request.accept & REGISTRY_NO_LOGIN || call->spent || call->foreign ||
		call->logins >= REGISTRY_LOGINS_MAX ||
		!url_same_origin(&answer->url, &call->registry->origin))
		return false;
	if (answer->status == 401)
		return true;
	AUTO_CHALLENGES struct challenge_list list = {0};
	if (answer->status != 403)
		return false;
	challenges_parse(&answer->headers, &list);
	const struct challenge *bearer = challenge_find(&list, "bearer");
	return bearer && str_eq(challenge_param(bearer, "error"), "insufficient_scope");
}

static void keep(struct registry_call *call, const struct http_answer *answer)
{
	struct http_answer *kept = &call->kept;

	kept->status = answer->status;
	kept->zone = answer->zone;
	strv_copy(&kept->headers, &answer->headers);
	buf_init(&kept->body, answer->body.len + 1);
	buf_add(&kept->body, answer->body.data ? answer->body.data : "", answer->body.len);
	url_copy(&answer->url, &kept->url);
}

static int on_ready(void *ctx, const char *authorization, unsigned generation, struct err *fault,
	struct err *err);
static void add_spares(struct registry *registry);

static int log_in(struct registry_call *call, const struct http_answer *answer)
{
	struct registry *registry = call->registry;

	call->logins++;
	call->tries--;
	if (is_accepted(call->request.accept, answer->status))
		keep(call, answer);
	registry_call_error(call, answer, &call->cause);
	call->waiting = true;
	struct auth_wait *wait = auth_refused(
		registry->auth, &answer->headers, answer->zone, call->generation, on_ready, call);
	call->wait = call->waiting ? wait : NULL;
	if (registry->pilot == call)
		open_gate(registry);
	if (call->waiting)
		add_spares(registry);
	return 0;
}

static int on_status(struct registry_call *call, struct http_answer *answer, struct err *err)
{
	AUTO_ERR struct err fault = {0};

	if (wants_login(call, answer))
		return log_in(call, answer);
	if (is_accepted(call->request.accept, answer->status))
		return finish(call, answer, NULL, err);
	registry_call_error(call, answer, &fault);
	if (!is_transient_status(answer->status) || fault.id == E_REGISTRY_FULL ||
		!may_send_again(call, answer))
		return finish(call, NULL, &fault, err);
	err_move(&call->cause, &fault);
	return again(call, answer, INT64_MAX, err);
}

static int on_answer(void *ctx, struct http_answer *answer, struct err *err)
{
	struct registry_call *call = ctx;
	struct registry *registry = call->registry;

	call->http = NULL;
	registry->succeeded |= answer->status >= 200 && answer->status < 300;
	if (is_of_other_scheme(call, answer)) {
		other_scheme(call);
		return 0;
	}
	if (!answer->status)
		return on_fault(call, answer, err);
	if (url_same_origin(&answer->url, &registry->origin)) {
		registry->answered = true;
		registry->zone = answer->zone;
	}
	return on_status(call, answer, err);
}

/*
 * Sending
 */

static ssize_t read_body(void *ctx, void *out, size_t len, struct err *err)
{
	struct registry_call *call = ctx;

	call->spent = true;
	return call->request.body.read(call->request.ctx, out, len, err);
}

static int give_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct registry_call *call = ctx;

	call->spent = true;
	return call->request.data(call->request.ctx, data, len, err);
}

static void make_url(const struct registry_call *call, struct url *ret)
{
	const struct registry *registry = call->registry;
	const char *path = call->request.path;

	url_copy(call->url.host ? &call->url : &registry->origin, ret);
	if (call->url.host)
		return;
	free(ret->path);
	ret->path = *path == '/' ? mem_strdup(path) : mem_printf("/v2/%s/%s", call->repo, path);
}

/* Without a body. */
static struct http_request request_to(
	const struct registry *registry, const char *method, const struct url *url)
{
	return (struct http_request){
		.method = method,
		.url = url,
		/* Words beside a success that nobody reads are no reason to fail. */
		.max_body = HTTP_ERROR_BODY_MAX,
		.follow = true,
		.tls = &registry->tls,
		.zone = registry->answered ? registry->zone : ADDRESS_PUBLIC,
		.idle_ms = registry->idle_ms,
		.done = on_answer,
	};
}

static void start_request(struct registry_call *call, bool held, const char *authorization)
{
	struct registry *registry = call->registry;
	const struct http_tls elsewhere = http_tls_elsewhere(&registry->tls);
	AUTO_URL struct url url = {0};

	make_url(call, &url);
	struct http_request request = request_to(registry, call->request.method, &url);
	request.headers = &call->headers;
	request.authorization = authorization;
	request.held = held;
	request.body = call->request.body;
	if (call->request.max_body)
		request.max_body = call->request.max_body;
	request.data = call->request.data ? give_data : NULL;
	if (call->foreign)
		request.tls = &elsewhere;
	request.has_zone = call->foreign;
	request.ctx = call;
	/* The call keeps the bytes itself, for all tries. */
	request.body.copy = false;
	if (request.body.read)
		request.body.read = read_body;
	call->by_tls = url.tls;
	call->http = http_start(registry->http, &request);
}

/* The token may come from the same server, which has connections for so many only. */
static bool has_room_ahead(const struct registry *registry)
{
	size_t n = registry->spares.n;

	for (const struct registry_call *call = registry->calls; call; call = call->next)
		n += call->waiting && call->http;
	return n < AHEAD_MAX;
}

/* Open the connection while the token is fetched. Later requests can reuse an open one. */
static void connect_ahead(struct registry_call *call)
{
	if (!call->registry->succeeded && !call->http && has_room_ahead(call->registry))
		start_request(call, true, NULL);
}

/*
 * Connections for requests that are yet to come
 */

static void add_spares(struct registry *registry)
{
	AUTO_URL struct url url = {0};

	if (registry->succeeded)
		return;
	url_copy(&registry->origin, &url);
	struct http_request request = request_to(registry, "POST", &url);
	request.held = true;
	while (registry->spares.n < registry->n_expected && has_room_ahead(registry))
		*vec_push(&registry->spares) = http_start(registry->http, &request);
}

void registry_drop_spares(struct registry *registry)
{
	vec_foreach (struct http_call *, spare, &registry->spares)
		http_cancel(*spare);
	registry->spares.n = 0;
}

void registry_expect(struct registry *registry, unsigned n)
{
	registry->n_expected = n;
	if (n == 0)
		registry_drop_spares(registry);
}

static bool fits_spare(const struct registry_call *call)
{
	const struct registry_request *request = &call->request;

	return !call->foreign && str_eq(request->method, "POST") && call->headers.n == 0 &&
	       request->body.size == 0 && request->max_body == 0 && !request->data;
}

static void take_spare(struct registry_call *call)
{
	struct registry *registry = call->registry;
	AUTO_URL struct url url = {0};

	if (call->http || registry->spares.n == 0 || !fits_spare(call))
		return;
	make_url(call, &url);
	call->http = registry->spares.v[--registry->spares.n];
	call->by_tls = url.tls;
	http_retarget(call->http, &url, call);
}

static void send_request(struct registry_call *call, const char *authorization)
{
	if (call->request.body.size > 0)
		registry_expect(call->registry, 0);
	take_spare(call);
	if (call->tries++ == 0)
		call->began_ms = clock_ms();
	if (call->http && call->by_tls != call->registry->origin.tls)
		http_cancel(TAKE(call->http));
	if (call->http)
		http_authorize(call->http, authorization);
	else
		start_request(call, false, authorization);
	add_spares(call->registry);
}

/* A login that is refused is what the registry itself has answered before. */
static void no_login(struct registry_call *call, struct err *fault)
{
	const struct err *words = &call->cause;

	if (fault->id != E_REGISTRY_AUTH && fault->id != E_REGISTRY_DENIED)
		free_answer(&call->kept);
	else if (words->n_evidence > 0)
		err_evidence(fault, "%s", words->evidence[0]);
	err_move(&call->fault, fault);
	end_soon(call);
}

static int on_ready(void *ctx, const char *authorization, unsigned generation, struct err *fault,
	struct err *err)
{
	struct registry_call *call = ctx;

	(void)err;
	call->wait = NULL;
	call->waiting = false;
	if (fault && err_is_set(fault)) {
		http_cancel(TAKE(call->http));
		no_login(call, fault);
		return 0;
	}
	free_answer(&call->kept);
	if (call->cause.id == E_REGISTRY_AUTH || call->cause.id == E_REGISTRY_DENIED)
		err_clear(&call->cause);
	call->generation = generation;
	send_request(call, authorization);
	return 0;
}

static void authorize(struct registry_call *call)
{
	if (call->foreign) {
		send_request(call, NULL);
		return;
	}
	call->waiting = true;
	struct auth_wait *wait = auth_want(call->registry->auth, on_ready, call);
	call->wait = call->waiting ? wait : NULL;
	if (call->waiting)
		connect_ahead(call);
}

void registry_drop_waits(struct registry *registry)
{
	for (struct registry_call *call = registry->calls; call; call = call->next)
		auth_cancel(TAKE(call->wait));
}

/* Calls that wait are still marked so. */
void registry_renew_waits(struct registry *registry)
{
	for (struct registry_call *call = registry->calls; call; call = call->next)
		if (call->waiting)
			authorize(call);
}

/*
 * The start
 */

static void copy_request(struct registry_call *call, const struct registry_request *request)
{
	const struct registry *registry = call->registry;
	struct registry_request *kept = &call->request;

	*kept = *request;
	kept->method = mem_strdup(request->method);
	kept->repo = mem_strdup(request->repo);
	kept->path = mem_strdup(request->path);
	kept->doing = mem_strdup(request->doing);
	kept->url = NULL;
	kept->headers = NULL;
	call->repo = registry_repo_path(registry, request->repo ? request->repo : registry->repo);
	if (request->url) {
		url_copy(request->url, &call->url);
		call->foreign = !url_same_origin(request->url, &registry->origin);
	}
	if (request->headers)
		strv_copy(&call->headers, request->headers);
	if (kept->body.data && kept->body.copy)
		kept->body.data = mem_dup(kept->body.data, kept->body.size);
}

static void link_call(struct registry_call *call)
{
	struct registry *registry = call->registry;

	call->next = registry->calls;
	if (call->next)
		call->next->prev = call;
	registry->calls = call;
}

struct registry_call *registry_start(
	struct registry *registry, const struct registry_request *request)
{
	struct registry_call *call = mem_alloc(1, sizeof(*call));

	call->registry = registry;
	copy_request(call, request);
	link_call(call);
	if (registry->deadline_ms != INT64_MAX)
		call->deadline_timer =
			loop_add_timer(registry->loop, registry->deadline_ms, deadline_due, call);
	if (registry->gated && registry->pilot) {
		call->behind_gate = true;
		return call;
	}
	if (registry->gated)
		registry->pilot = call;
	authorize(call);
	return call;
}
