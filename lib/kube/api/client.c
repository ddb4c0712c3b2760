/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/api/client.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/client_impl.h"

enum { LOOK_MS = 250 };

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

void kube_client_free(struct kube_client *client)
{
	if (!client)
		return;
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

static int on_http(void *ctx, struct http_answer *answer, struct err *err)
{
	return kube_call_answered(ctx, answer, err);
}

static int on_data(void *ctx, const void *data, size_t len, struct err *err)
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
		.data = call->data ? on_data : NULL,
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

static int done_http(struct kube_call *call, struct kube_answer *answer, struct err *err)
{
	return call->fn(call->ctx, answer, err);
}

static const struct kube_call_ops http_ops = {
	.send = send_http, .cancel = cancel_http, .done = done_http};

struct kube_call *kube_start(struct kube_client *client, const struct kube_request *request)
{
	struct kube_call *call = kube_call_new(client, request, &http_ops);

	kube_call_begin(call);
	return call;
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
};

static void drop_pages(struct kube_call *call)
{
	struct list *list = call->more_ctx;

	json_free(TAKE(list->whole));
	list->n = 0;
	kube_call_set_query(call, "continue", "");
}

/* The first page is the list, the items of others go to its end. */
static void add_page(struct list *list, struct kube_answer *answer)
{
	const struct json *items = json_get(answer->object, "items");

	list->n += json_count(items);
	if (!list->whole) {
		list->whole = TAKE(answer->object);
		return;
	}
	struct json *all = (struct json *)(uintptr_t)json_get(list->whole, "items");
	for (const struct json *item = json_first(items); item; item = json_next(item))
		json_add(all, json_clone(item));
}

static int fail_list(struct kube_call *call, struct kube_answer *answer, const char *why)
{
	AUTO_FREE char *what = kube_path_shown(call->path);

	return err_set(&answer->fault, E_KUBE_ANSWER, "cannot read %s: %s", what, why);
}

static int more_pages(struct kube_call *call, struct kube_answer *answer)
{
	struct list *list = call->more_ctx;
	const char *next = json_get_str(json_get(answer->object, "metadata"), "continue");
	const struct json *items = json_get(answer->object, "items");
	AUTO_FREE char *token = mem_strdup(str_empty(next) ? NULL : next);
	AUTO_FREE char *what = kube_path_shown(call->path);

	/* An empty list may be null in Go. */
	if (!answer->object ||
		(items && json_kind(items) != JSON_ARRAY && json_kind(items) != JSON_NULL))
		return fail_list(call, answer, "the answer is not a list");
	if (!items || json_kind(items) == JSON_NULL)
		json_set(answer->object, "items", json_array());
	if (token && json_count(items) == 0)
		return fail_list(call, answer, "an empty page is said not to be the last");
	add_page(list, answer);
	if (list->n > list->max)
		return err_set(&answer->fault, E_DATA_LIMIT, "there are more than %zu %s",
			list->max, what);
	if (!token)
		return 0;
	kube_call_set_query(call, "continue", token);
	return 1;
}

static void hide_continue(struct json *whole)
{
	if (json_get(whole, "metadata"))
		json_remove(json_sub(whole, "metadata"), "continue");
}

/* The token of the next page has expired: from the beginning. */
static bool restart(struct kube_call *call, const struct kube_answer *answer)
{
	struct list *list = call->more_ctx;

	if (answer->fault.id != E_KUBE_GONE || !list->whole || list->restarts == RESTARTS_MAX)
		return false;
	list->restarts++;
	drop_pages(call);
	return true;
}

static int done_list(struct kube_call *call, struct kube_answer *answer, struct err *err)
{
	struct list *list = call->more_ctx;

	if (!err_is_set(&answer->fault)) {
		hide_continue(list->whole);
		json_free(answer->object);
		answer->object = TAKE(list->whole);
	}
	return call->fn(call->ctx, answer, err);
}

static void free_list(struct kube_call *call)
{
	struct list *list = call->more_ctx;

	json_free(list->whole);
	free(list);
}

static const struct kube_call_ops list_ops = {.send = send_http,
	.cancel = cancel_http,
	.done = done_list,
	.more = more_pages,
	.restart = restart,
	.free = free_list};

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
	kube_call_begin(call);
	return call;
}

/*
 * Blocking requests
 */

struct ask {
	struct kube_client *client;
	struct kube_call *call;
	struct loop_timer *timer;
	const volatile int *interrupted;
	struct json **ret;
	int r;
	struct err *err;
};

static int on_ask(void *ctx, struct kube_answer *answer, struct err *err)
{
	struct ask *ask = ctx;

	(void)err;
	ask->call = NULL;
	if (err_is_set(&answer->fault))
		ask->r = err_move(ask->err, &answer->fault);
	else if (ask->ret)
		*ask->ret = TAKE(answer->object);
	loop_stop(ask->client->options.loop);
	return 0;
}

static int look(void *ctx, struct err *err)
{
	struct ask *ask = ctx;
	struct loop *loop = ask->client->options.loop;

	(void)err;
	ask->timer = NULL;
	if (*ask->interrupted) {
		kube_cancel(TAKE(ask->call));
		ask->r = err_set(ask->err, E_CANCELED, "stopped");
		loop_stop(loop);
		return 0;
	}
	ask->timer = loop_add_timer(loop, clock_ms() + LOOK_MS, look, ask);
	return 0;
}

int kube_ask(struct kube_client *client, const struct kube_request *request,
	const volatile int *interrupted, struct json **ret, struct err *err)
{
	struct kube_request own = *request;
	struct ask ask = {.client = client, .interrupted = interrupted, .ret = ret, .err = err};
	struct loop *loop = client->options.loop;

	own.done = on_ask;
	own.ctx = &ask;
	ask.call = kube_start(client, &own);
	if (interrupted)
		ask.timer = loop_add_timer(loop, clock_ms(), look, &ask);
	int r = 0;
	/* Other code may stop the loop, too. */
	while (r == 0 && ask.call)
		r = loop_run(loop, err);
	loop_remove_timer(loop, ask.timer);
	if (r < 0) {
		kube_cancel(ask.call);
		return r;
	}
	return ask.r;
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
	AUTO_BUF struct buf out;
	va_list args;

	buf_init(&out, SIZE_MAX / 2);
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
