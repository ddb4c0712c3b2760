/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/api/client.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/err.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "kube/api/response.h"
#include "kube/api/credential.h"
#include "net/http/http.h"
#include "net/stream/url.h"
#include "net/websocket/upgrade.h"

enum {
	KUBE_DEADLINE_MS = 60 * 1000,
	KUBE_FIRST_MS = 5000, /* for a server that has not responded yet and cannot be reached */
	KUBE_BACKOFF_FIRST_MS = 100,
	KUBE_BACKOFF_MAX_MS = 5000,
	KUBE_NOTE_MIN_MS = 1000,    /* shorter waits are not reported */
	KUBE_NOTE_EVERY_MS = 10000, /* nor others more often */
	KUBE_PAGE = 500,
	DNS_LABEL_MAX = 63,
	KUBE_PAGE_SIZE_MAX = 64 << 20,
};

struct kube_client {
	struct kube_client_options options;
	struct kube_credential *credential;
	char *host; /* for people */
	struct kube_call *calls;
	struct loop_wait *end; /* of kube_client_free; or NULL */
	bool has_responded;    /* by something that speaks HTTP */
	int64_t noted_ms;
};

/* How the exchange of a call is done. */
struct kube_call_ops {
	void (*send)(struct kube_call *call, const struct url *url, const struct strv *headers,
		const struct http_tls *tls);
	void (*cancel)(struct kube_call *call);
	int (*done)(struct kube_call *call, struct kube_response *response, struct err *err);
	/* A good response; 1: it is not the last, call was changed for the next one. Or NULL. */
	int (*more)(struct kube_call *call, struct kube_response *response);
	/* After a refusal: whether it is to be begun again, changed. May be NULL. */
	bool (*restart)(struct kube_call *call, const struct kube_response *response);
	bool is_once;                         /* errors are not repeated */
	void (*free)(struct kube_call *call); /* of more_ctx; may be NULL */
};

/* At any time wait or exchange is pending, or timer runs. */
struct kube_call {
	struct kube_client *client;
	struct kube_call *prev, *next;
	const struct kube_call_ops *ops;

	char *method, *path, *content_type;
	struct strv query; /* key, value, … */
	char *body;
	size_t body_len;
	bool is_idempotent;
	int64_t deadline_ms, idle_ms;
	size_t max_body;
	http_data_fn *data;
	enum http_share share;
	kube_done_fn *fn;
	void *ctx;
	void *more_ctx; /* of ops */

	struct kube_login login;
	struct kube_login_wait *wait;
	void *exchange; /* of ops: struct http_call, struct upgrade */
	struct loop_timer *timer, *deadline_timer;
	bool finished, refreshed, got_bytes;
	unsigned tries;
	int64_t began_ms, wanted_ms; /* the first exchange; the login */
	struct err cause;            /* why it was tried again */
};

/*
 * Calls
 */

static void client_authorize(struct kube_call *call);

static struct kube_requested client_requested(const struct kube_call *call)
{
	const struct kube_access *access = call->client->options.access;

	return (struct kube_requested){.method = call->method,
		.path = call->path,
		.host = call->client->host,
		.user = str_empty(access->user) ? NULL : access->user,
		.context = access->context};
}

/*
 * The end
 */

static void client_stop(struct kube_call *call)
{
	struct loop *loop = call->client->options.loop;

	kube_credential_cancel(TAKE(call->wait));
	if (call->exchange)
		call->ops->cancel(call);
	call->exchange = NULL;
	loop_remove_timer(loop, TAKE(call->timer));
	loop_remove_timer(loop, TAKE(call->deadline_timer));
}

static void client_unlink_call(struct kube_call *call)
{
	if (call->prev)
		call->prev->next = call->next;
	else
		call->client->calls = call->next;
	if (call->next)
		call->next->prev = call->prev;
}

static void client_free_call(struct kube_call *call)
{
	if (call->ops->free)
		call->ops->free(call);
	free(call->method);
	free(call->path);
	free(call->content_type);
	strv_done(&call->query);
	free(call->body);
	kube_login_done(&call->login);
	err_done(&call->cause);
	free(call);
}

/* The client may be gone when done returns. */
static int kube_call_finish(struct kube_call *call, struct kube_response *response, struct err *err)
{
	call->finished = true;
	client_stop(call);
	client_unlink_call(call);
	int r = call->ops->done(call, response, err);
	client_free_call(call);
	return r;
}

unsigned kube_try(const struct kube_call *call)
{
	return call->tries ? 2 * call->tries + (call->timer != NULL) : 0;
}

void kube_cancel(struct kube_call *call)
{
	if (!call || call->finished)
		return;
	client_stop(call);
	client_unlink_call(call);
	client_free_call(call);
}

static int finish_error(struct kube_call *call, struct err *error, struct err *err)
{
	AUTO_KUBE_RESPONSE struct kube_response response = {.reason = ""};

	err_move(&response.error, error);
	return kube_call_finish(call, &response, err);
}

static int client_deadline_due(void *ctx, struct err *err)
{
	struct kube_call *call = ctx;
	const struct kube_requested what = client_requested(call);
	AUTO_ERR struct err late = {0}, error = {0};

	call->deadline_timer = NULL;
	err_set(&late, E_HTTP_TIMEOUT, "no answer within the time for it");
	kube_unreachable(&what, &late, &error);
	if (err_is_set(&call->cause))
		err_evidence(&error, "before that: %s", call->cause.message);
	return finish_error(call, &error, err);
}

/*
 * Trying again
 */

static int client_timer_due(void *ctx, struct err *err UNUSED)
{
	struct kube_call *call = ctx;

	call->timer = NULL;
	client_authorize(call);
	return 0;
}

/* Full jitter on top of half; what the server asks for is at least waited. */
static int64_t client_backoff_ms(const struct kube_call *call, const struct kube_response *response)
{
	int64_t requested_ms = kube_response_retry_after(response);
	int64_t ms = backoff_jitter_ms(call->tries, KUBE_BACKOFF_FIRST_MS, KUBE_BACKOFF_MAX_MS);

	return requested_ms > ms ? requested_ms : ms;
}

static void client_note_wait(const struct kube_call *call, int64_t wait_ms)
{
	struct kube_client *client = call->client;
	int64_t now_ms = clock_ms();
	char text[32];

	if (!client->options.note || wait_ms < KUBE_NOTE_MIN_MS ||
		(client->noted_ms && now_ms < client->noted_ms + KUBE_NOTE_EVERY_MS))
		return;
	client->noted_ms = now_ms;
	AUTO_FREE char *note = mem_printf(
		"%s; trying again in %s", call->cause.message, duration_text(wait_ms, text));
	client->options.note(client->options.ctx, note);
}

static bool client_is_net_error(const struct kube_response *response)
{
	return response->status == 0 && response->error.id == E_KUBE_UNREACHABLE;
}

/* A POST that conflicts with a concurrent change of a ResourceQuota: nothing was created. */
static bool is_crowded_out(const struct kube_call *call, const struct kube_response *response)
{
	return str_eq(call->method, "POST") && response->error.id == E_KUBE_CONFLICT &&
	       str_eq(response->reason, "Conflict");
}

/* Whether the request cannot have had any effect. */
static bool is_without_effect(const struct kube_call *call, const struct kube_response *response)
{
	if (client_is_net_error(response))
		return response->http && !response->http->sent;
	return is_crowded_out(call, response) ||
	       (response->status == 429 && kube_response_retry_after(response) >= 0);
}

static bool wants_again(const struct kube_call *call, const struct kube_response *response)
{
	if (call->ops->is_once || call->got_bytes ||
		(!client_is_net_error(response) && !kube_response_is_transient(response) &&
			!is_crowded_out(call, response)))
		return false;
	return call->is_idempotent || is_without_effect(call, response);
}

/* A server that was not reached yet is given up soon. */
static int64_t end_of(const struct kube_call *call)
{
	int64_t first_ms = call->began_ms + KUBE_FIRST_MS;

	return !call->client->has_responded && first_ms < call->deadline_ms ? first_ms
									    : call->deadline_ms;
}

/* false: there is no time left for it. */
static bool client_again(struct kube_call *call, struct kube_response *response)
{
	int64_t wait_ms = client_backoff_ms(call, response), now_ms = clock_ms();

	if (now_ms + wait_ms >= end_of(call))
		return false;
	err_clear(&call->cause);
	err_move(&call->cause, &response->error);
	client_note_wait(call, wait_ms);
	call->timer = loop_add_timer(
		call->client->options.loop, now_ms + wait_ms, client_timer_due, call);
	return true;
}

static bool log_in_again(struct kube_call *call)
{
	struct kube_credential *credential = call->client->credential;

	if (call->refreshed || !kube_credential_refused(credential, call->login.generation))
		return false;
	call->refreshed = true;
	client_authorize(call);
	return true;
}

/* Whether the call goes on in another way than by the same request. */
static bool client_goes_on(struct kube_call *call, struct kube_response *response)
{
	const struct kube_call_ops *ops = call->ops;

	if (err_is_set(&response->error) ? !ops->restart || !ops->restart(call, response)
					 : !ops->more || ops->more(call, response) <= 0)
		return false;
	call->tries = 0;
	call->refreshed = false;
	client_authorize(call);
	return true;
}

/* Handle the result of the exchange. */
static int kube_call_on_response(
	struct kube_call *call, struct http_response *http, struct err *err)
{
	AUTO_KUBE_RESPONSE struct kube_response response = {0};
	const struct kube_requested what = client_requested(call);

	call->exchange = NULL;
	kube_response_read(&what, http, call->data != NULL, &response);
	/* Nothing is printed of a 0 by %.0d. */
	trace_note(TRACE_KUBE, "%s %s: %s%.0d, try %u, %lld ms%s%s", call->method, call->path,
		http->status ? "status " : "no response", http->status, call->tries,
		(long long)http->ms, response.error.message ? ": " : "",
		response.error.message ? response.error.message : "");
	if (http->status)
		call->client->has_responded = true;
	if (http->status == 401 && log_in_again(call))
		return 0;
	if (err_is_set(&response.error) && wants_again(call, &response) &&
		client_again(call, &response))
		return 0;
	if (client_goes_on(call, &response))
		return 0;
	if (err_is_set(&response.error) && call->tries > 1)
		err_evidence(&response.error, "%u tries", call->tries);
	return kube_call_finish(call, &response, err);
}

/*
 * Sending
 */

static bool is_token_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || str_is_digit(c) ||
	       (c && strchr("!#$&'*+-.^_`|~", c));
}

static void make_headers(const struct kube_call *call, struct strv *headers)
{
	const struct kube_access *access = call->client->options.access;

	strv_add(headers, "Accept: application/json");
	if (call->body)
		strv_addf(headers, "Content-Type: %s", call->content_type);
	if (access->as)
		strv_addf(headers, "Impersonate-User: %s", access->as);
	if (access->as_uid)
		strv_addf(headers, "Impersonate-Uid: %s", access->as_uid);
	for (size_t i = 0; i < access->as_groups.n; i++)
		strv_addf(headers, "Impersonate-Group: %s", access->as_groups.v[i]);
	for (size_t i = 0; i < access->as_extra.n; i++) {
		/* The key of Impersonate-Extra-KEY (Kubernetes authentication, "User
		 * impersonation"). */
		const char *pair = access->as_extra.v[i];
		const char *equals = strchr(pair, '=');
		AUTO_BUF struct buf name = buf_with(URL_MAX);

		for (const char *at = pair; at < equals; at++) {
			if (is_token_char(*at))
				buf_addc(&name, *at);
			else
				buf_addf(&name, "%%%02X", (unsigned char)*at);
		}
		strv_addf(headers, "Impersonate-Extra-%s: %s", name.data, equals + 1);
	}
}

static int on_login(void *ctx, const struct kube_login *login, struct err *error, struct err *err)
{
	struct kube_call *call = ctx;
	const struct kube_access *access = call->client->options.access;
	AUTO_URL struct url url = {0};
	AUTO_STRV struct strv headers = {0};

	call->wait = NULL;
	if (error)
		return finish_error(call, error, err);
	int64_t waited_ms = clock_ms() - call->wanted_ms;

	if (call->deadline_ms < INT64_MAX - waited_ms)
		call->deadline_ms += waited_ms;
	if (!call->data)
		call->deadline_timer = loop_add_timer(
			call->client->options.loop, call->deadline_ms, client_deadline_due, call);
	kube_login_copy(login, &call->login);
	struct http_tls tls = access->tls;
	if (call->login.cert_pem) {
		tls.cert_pem = call->login.cert_pem;
		tls.key_pem = call->login.key_pem;
	}
	const struct url *server = &call->client->options.access->server;

	url_copy(server, &url);
	REPLACE(url.path, mem_printf("%s%s", server->path ? server->path : "", call->path));
	for (size_t i = 0; i + 1 < call->query.n; i += 2) {
		char *path = url_add_param(url.path, call->query.v[i], call->query.v[i + 1]);
		REPLACE(url.path, path);
	}
	make_headers(call, &headers);
	if (call->tries++ == 0)
		call->began_ms = clock_ms();
	call->ops->send(call, &url, &headers, &tls);
	return 0;
}

static void client_authorize(struct kube_call *call)
{
	/* People may take their time to log in. */
	loop_remove_timer(call->client->options.loop, TAKE(call->deadline_timer));
	call->wanted_ms = clock_ms();
	call->wait = kube_credential_want(call->client->credential, on_login, call);
}

/*
 * The start
 */

/* The query parameter is value from now on. */
static void kube_call_set_query(struct kube_call *call, const char *key, const char *value)
{
	for (size_t i = 0; i + 1 < call->query.n; i += 2) {
		if (str_eq(call->query.v[i], key)) {
			free(call->query.v[i + 1]);
			call->query.v[i + 1] = mem_strdup(value);
			return;
		}
	}
	strv_add(&call->query, key);
	strv_add(&call->query, value);
}

/* Copies the texts of request; fn, data and ops are set by the caller, then client_authorize begins
 * it. */
static struct kube_call *kube_call_new(struct kube_client *client,
	const struct kube_request *request, const struct kube_call_ops *ops)
{
	struct kube_call *call = mem_alloc(1, sizeof(*call));

	*call = (struct kube_call){.client = client,
		.ops = ops,
		.method = mem_strdup(request->method),
		.path = mem_strdup(request->path),
		.is_idempotent = request->is_idempotent || str_eq(request->method, "GET"),
		.deadline_ms = request->deadline_ms ? request->deadline_ms
						    : clock_deadline(KUBE_DEADLINE_MS),
		.idle_ms = request->idle_ms,
		.max_body = request->max_body ? request->max_body : JSON_SIZE_MAX,
		.data = request->data,
		.share = request->share,
		.fn = request->done,
		.ctx = request->ctx,
		.next = client->calls};
	/* A key may stand there several times: the words of a command. */
	for (const char *const *at = request->query; at && at[0] && at[1]; at += 2) {
		strv_add(&call->query, at[0]);
		strv_add(&call->query, at[1]);
	}
	call->content_type =
		mem_strdup(request->content_type ? request->content_type : "application/json");
	if (request->body) {
		struct buf text;

		buf_init(&text, SIZE_MAX / 2);
		json_print(request->body, &text);
		call->body_len = text.len;
		call->body = text.data;
	}
	if (call->next)
		call->next->prev = call;
	client->calls = call;
	return call;
}

/*
 * The client
 */

struct kube_client *kube_client_new(const struct kube_client_options *options)
{
	struct kube_client *client = mem_alloc(1, sizeof(*client));
	const struct kube_credential_options credential = {
		.loop = options->loop,
		.access = options->access,
		.plugin = options->plugin,
		.note = options->plugin.note ? options->plugin.note : options->note,
		.note_ctx = options->plugin.note ? options->plugin.ctx : options->ctx,
	};

	client->options = *options;
	client->host = url_authority(&options->access->server);
	client->credential = kube_credential_new(&credential);
	return client;
}

static int client_on_detached(void *ctx, struct kube_response *response, struct err *err);

void kube_client_free(struct kube_client *client)
{
	if (!client)
		return;
	struct loop_wait wait = {.loop = client->options.loop};
	for (struct kube_call *call = client->calls, *next; call; call = next) {
		next = call->next;
		if (call->fn != client_on_detached) {
			kube_cancel(call);
			continue;
		}
		wait.n_open++;
		if (call->deadline_ms > wait.deadline_ms)
			wait.deadline_ms = call->deadline_ms;
	}
	client->end = &wait;
	loop_wait_run(&wait, NULL);
	client->end = NULL;
	while (client->calls)
		kube_cancel(client->calls);
	kube_credential_free(client->credential);
	free(client->host);
	free(client);
}

struct loop *kube_client_loop(const struct kube_client *client)
{
	return client->options.loop;
}

/*
 * Requests
 */

static int on_http(void *ctx, struct http_response *response, struct err *err)
{
	return kube_call_on_response(ctx, response, err);
}

static int client_on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct kube_call *call = ctx;

	call->got_bytes = true;
	return call->data(call->ctx, data, len, err);
}

static void send_http(struct kube_call *call, const struct url *url, const struct strv *headers,
	const struct http_tls *tls)
{
	const struct kube_client *client = call->client;
	const struct http_request request = {
		.share = call->share,
		.method = call->method,
		.url = url,
		.headers = headers,
		.authorization = call->login.authorization,
		.body = {.data = call->body, .size = call->body_len},
		.max_body = call->max_body,
		.data = call->data ? client_on_data : NULL,
		.tls = tls,
		.proxy = client->options.access->proxy,
		.deadline_ms = call->data ? 0 : call->deadline_ms,
		.idle_ms = call->idle_ms,
		.done = on_http,
		.ctx = call,
	};

	call->exchange = http_start(client->options.http, &request);
}

static void cancel_http(struct kube_call *call)
{
	http_cancel(call->exchange);
}

static int done_http(struct kube_call *call, struct kube_response *response, struct err *err)
{
	return call->fn(call->ctx, response, err);
}

static const struct kube_call_ops http_ops = {
	.send = send_http, .cancel = cancel_http, .done = done_http};

struct kube_call *kube_start(struct kube_client *client, const struct kube_request *request)
{
	struct kube_call *call = kube_call_new(client, request, &http_ops);

	client_authorize(call);
	return call;
}

static int client_on_detached(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct kube_client *client = ctx;

	if (err_is_set(&response->error) && response->error.id != E_KUBE_NOT_FOUND)
		log_note("%s", response->error.message);
	if (client->end)
		loop_wait_done(client->end);
	return 0;
}

void kube_start_detached(struct kube_client *client, const struct kube_request *request)
{
	struct kube_request own = *request;

	own.done = client_on_detached;
	own.ctx = client;
	kube_start(client, &own);
}

/* Between two tries there is no exchange. */
static const struct http_call *exchange_of(const struct kube_call *call)
{
	return call->ops == &http_ops ? call->exchange : NULL;
}

bool kube_waits_for_turn(const struct kube_call *call)
{
	const struct http_call *http = exchange_of(call);

	return http && http_waits_for_turn(http);
}

bool kube_is_to_give_way(const struct kube_call *call)
{
	const struct http_call *http = exchange_of(call);

	return http && http_is_to_give_way(http);
}

/*
 * Lists, page by page
 */

enum { RESTARTS_MAX = 3 };

struct list {
	struct json *whole; /* what came so far, or NULL */
	size_t n, max;
	unsigned restarts;
	kube_trim_fn *trim; /* or NULL */
};

static void drop_pages(struct kube_call *call)
{
	struct list *list = call->more_ctx;

	json_free(TAKE(list->whole));
	list->n = 0;
	kube_call_set_query(call, "continue", "");
}

/* The first page is the list, the items of others go to its end. */
static void add_page(struct list *list, struct kube_response *response)
{
	const struct json *items = json_get(response->object, "items");

	list->n += json_count(items);
	for (const struct json *m = list->trim ? json_first(items) : NULL; m; m = json_next(m))
		list->trim((struct json *)(uintptr_t)m);
	if (!list->whole) {
		list->whole = TAKE(response->object);
		return;
	}
	struct json *all = (struct json *)(uintptr_t)json_get(list->whole, "items");
	json_foreach (item, items)
		json_add(all, json_clone(item));
}

static int fail_list(struct kube_call *call, struct kube_response *response, const char *why)
{
	AUTO_FREE char *what = kube_path_shown(call->path);

	return err_set(&response->error, E_KUBE_RESPONSE, "cannot read %s: %s", what, why);
}

static int more_pages(struct kube_call *call, struct kube_response *response)
{
	struct list *list = call->more_ctx;
	const char *next = json_get_str(json_get(response->object, "metadata"), "continue");
	const struct json *items = json_get(response->object, "items");
	AUTO_FREE char *token = mem_strdup(str_empty(next) ? NULL : next);
	AUTO_FREE char *what = kube_path_shown(call->path);

	/* An empty list may be null in Go. */
	if (!response->object ||
		(items && json_kind(items) != JSON_ARRAY && json_kind(items) != JSON_NULL))
		return fail_list(call, response, "the answer is not a list");
	if (!items || json_kind(items) == JSON_NULL)
		json_set(response->object, "items", json_array());
	if (token && json_count(items) == 0)
		return fail_list(call, response, "an empty page is said not to be the last");
	add_page(list, response);
	if (list->n > list->max)
		return err_set(&response->error, E_DATA_LIMIT, "there are more than %zu %s",
			list->max, what);
	if (!token)
		return 0;
	kube_call_set_query(call, "continue", token);
	return 1;
}

/* The token of the next page has expired: from the beginning. */
static bool client_restart(struct kube_call *call, const struct kube_response *response)
{
	struct list *list = call->more_ctx;

	if (response->error.id != E_KUBE_GONE || !list->whole || list->restarts == RESTARTS_MAX)
		return false;
	list->restarts++;
	drop_pages(call);
	return true;
}

static int done_list(struct kube_call *call, struct kube_response *response, struct err *err)
{
	struct list *list = call->more_ctx;

	if (!err_is_set(&response->error)) {
		if (json_get(list->whole, "metadata"))
			json_remove(json_sub(list->whole, "metadata"), "continue");
		json_free(response->object);
		response->object = TAKE(list->whole);
	}
	return call->fn(call->ctx, response, err);
}

static void client_free_list(struct kube_call *call)
{
	struct list *list = call->more_ctx;

	json_free(list->whole);
	free(list);
}

static const struct kube_call_ops list_ops = {.send = send_http,
	.cancel = cancel_http,
	.done = done_list,
	.more = more_pages,
	.restart = client_restart,
	.free = client_free_list};

struct kube_call *kube_list(struct kube_client *client, const char *path, const char *const *query,
	size_t max, int64_t deadline_ms, kube_done_fn *done, void *ctx)
{
	const struct kube_request request = {.method = "GET",
		.path = path,
		.query = query,
		.deadline_ms = deadline_ms,
		.max_body = KUBE_PAGE_SIZE_MAX,
		.done = done,
		.ctx = ctx};
	struct kube_call *call = kube_call_new(client, &request, &list_ops);
	struct list *list = mem_alloc(1, sizeof(*list));
	char limit[16];

	snprintf(limit, sizeof(limit), "%d", KUBE_PAGE);
	list->max = max;
	call->more_ctx = list;
	kube_call_set_query(call, "limit", limit);
	client_authorize(call);
	return call;
}

void kube_list_trim(struct kube_call *call, kube_trim_fn *trim)
{
	struct list *list = call->more_ctx;

	list->trim = trim;
}

/*
 * Blocking requests
 */

struct query {
	struct loop_wait wait;
	struct json **ret;
	int r;
	struct err *err;
};

static int client_on_query(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct query *query = ctx;

	if (err_is_set(&response->error))
		query->r = err_move(query->err, &response->error);
	else if (query->ret)
		*query->ret = TAKE(response->object);
	loop_wait_done(&query->wait);
	return 0;
}

int kube_query(struct kube_client *client, const struct kube_request *request, struct json **ret,
	struct err *err)
{
	struct kube_request own = *request;
	struct query query = {
		.wait = {.loop = client->options.loop, .n_open = 1}, .ret = ret, .err = err};

	own.done = client_on_query;
	own.ctx = &query;
	struct kube_call *call = kube_start(client, &own);
	int r = loop_wait_run(&query.wait, err);
	if (r < 0)
		kube_cancel(call);
	return r < 0 ? r : query.r;
}

/*
 * Paths
 */

static void add_segment(struct buf *out, const char *text)
{
	static const char plain[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_~.";
	bool is_dots = str_eq(text, ".") || str_eq(text, "..");

	for (const char *at = text; *at; at++) {
		if (strchr(plain, *at) && !is_dots)
			buf_addc(out, *at);
		else
			buf_addf(out, "%%%02X", (unsigned char)*at);
	}
}

char *kube_path(const char *format, ...)
{
	AUTO_BUF struct buf out = buf_with(SIZE_MAX / 2);
	va_list args;

	va_start(args, format);
	for (const char *at = format; *at; at++) {
		if (*at != '%') {
			buf_addc(&out, *at);
			continue;
		}
		BUG_ON(*++at != 's');
		add_segment(&out, va_arg(args, const char *));
	}
	va_end(args);
	return buf_take(&out);
}

bool kube_is_dns_label(const char *name)
{
	size_t len = strlen(name);

	return len > 0 && len <= DNS_LABEL_MAX && name[0] != '-' && name[len - 1] != '-' &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

/*
 * Connections that become streams
 */

struct upgrade_ctx {
	char *protocol;
	struct strv headers;
	int (*done)(
		void *ctx, struct stream *stream, struct kube_response *response, struct err *err);
	struct stream *stream; /* that came */
};

static int on_upgrade(void *ctx, struct stream *stream, struct http_response *http, struct err *err)
{
	struct kube_call *call = ctx;
	struct upgrade_ctx *upgrade = call->more_ctx;
	AUTO_KUBE_RESPONSE struct kube_response response = {.reason = ""};

	if (!stream)
		return kube_call_on_response(call, http, err);
	call->exchange = NULL;
	call->client->has_responded = true;
	upgrade->stream = stream;
	response.status = http ? http->status : 101;
	response.http = http;
	return kube_call_finish(call, &response, err);
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

static int done_upgrade(struct kube_call *call, struct kube_response *response, struct err *err)
{
	struct upgrade_ctx *upgrade = call->more_ctx;

	/* 200 is no success here. */
	if (!upgrade->stream && !err_is_set(&response->error)) {
		AUTO_FREE char *what = kube_path_shown(call->path);
		err_set(&response->error, E_KUBE_RESPONSE,
			"%s answers %d instead of opening a stream to %s", call->client->host,
			response->status, what);
	}
	return upgrade->done(call->ctx, TAKE(upgrade->stream), response, err);
}

static void client_free_upgrade(struct kube_call *call)
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
	.free = client_free_upgrade};

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
	client_authorize(call);
	return call;
}
