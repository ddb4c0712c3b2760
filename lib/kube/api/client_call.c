/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "kube/api/client_impl.h"

static void authorize(struct kube_call *call);

static struct kube_asked asked(const struct kube_call *call)
{
	const struct kube_access *access = call->client->options.access;

	return (struct kube_asked){.method = call->method,
		.path = call->path,
		.host = call->client->host,
		.user = str_empty(access->user) ? NULL : access->user,
		.context = access->context};
}

/*
 * The end
 */

static void stop(struct kube_call *call)
{
	struct loop *loop = call->client->options.loop;

	kube_credential_cancel(TAKE(call->wait));
	if (call->exchange)
		call->ops->cancel(call);
	call->exchange = NULL;
	loop_remove_timer(loop, TAKE(call->timer));
	loop_remove_timer(loop, TAKE(call->deadline_timer));
}

static void unlink_call(struct kube_call *call)
{
	if (call->prev)
		call->prev->next = call->next;
	else
		call->client->calls = call->next;
	if (call->next)
		call->next->prev = call->prev;
}

static void free_call(struct kube_call *call)
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
int kube_call_finish(struct kube_call *call, struct kube_answer *answer, struct err *err)
{
	call->finished = true;
	stop(call);
	unlink_call(call);
	int r = call->ops->done(call, answer, err);
	free_call(call);
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
	stop(call);
	unlink_call(call);
	free_call(call);
}

static int finish_fault(struct kube_call *call, struct err *fault, struct err *err)
{
	AUTO_KUBE_ANSWER struct kube_answer answer = {.reason = ""};

	err_move(&answer.fault, fault);
	return kube_call_finish(call, &answer, err);
}

static int deadline_due(void *ctx, struct err *err)
{
	struct kube_call *call = ctx;
	const struct kube_asked what = asked(call);
	AUTO_ERR struct err late = {0}, fault = {0};

	call->deadline_timer = NULL;
	err_set(&late, E_HTTP_TIMEOUT, "no answer within the time for it");
	kube_unreachable(&what, &late, &fault);
	if (err_is_set(&call->cause))
		err_evidence(&fault, "before that: %s", call->cause.message);
	return finish_fault(call, &fault, err);
}

/*
 * Trying again
 */

static int timer_due(void *ctx, struct err *err)
{
	struct kube_call *call = ctx;

	(void)err;
	call->timer = NULL;
	authorize(call);
	return 0;
}

/* Full jitter on top of half; what the server asks for is at least waited. */
static int64_t pause_ms(const struct kube_call *call, const struct kube_answer *answer)
{
	unsigned doubled = call->tries < 8 ? call->tries - 1 : 7;
	int64_t base_ms = (int64_t)KUBE_PAUSE_FIRST_MS << doubled;
	int64_t asked_ms = kube_answer_retry_after(answer);

	if (base_ms > KUBE_PAUSE_MAX_MS)
		base_ms = KUBE_PAUSE_MAX_MS;
	int64_t jitter_ms = base_ms / 2 + random_below((uint32_t)(base_ms / 2) + 1);
	return asked_ms > jitter_ms ? asked_ms : jitter_ms;
}

static void note_wait(const struct kube_call *call, int64_t wait_ms)
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

static bool is_net_fault(const struct kube_answer *answer)
{
	return answer->status == 0 && answer->fault.id == E_KUBE_UNREACHABLE;
}

/* A POST that conflicts with a concurrent change of a ResourceQuota: nothing was created. */
static bool is_crowded_out(const struct kube_call *call, const struct kube_answer *answer)
{
	return str_eq(call->method, "POST") && answer->fault.id == E_KUBE_CONFLICT &&
	       str_eq(answer->reason, "Conflict");
}

/* Whether the request cannot have had any effect. */
static bool is_without_effect(const struct kube_call *call, const struct kube_answer *answer)
{
	if (is_net_fault(answer))
		return answer->http && !answer->http->sent;
	return is_crowded_out(call, answer) ||
	       (answer->status == 429 && kube_answer_retry_after(answer) >= 0);
}

static bool wants_again(const struct kube_call *call, const struct kube_answer *answer)
{
	if (call->ops->is_once || call->got_bytes ||
		(!is_net_fault(answer) && !kube_answer_is_transient(answer) &&
			!is_crowded_out(call, answer)))
		return false;
	return call->is_idempotent || is_without_effect(call, answer);
}

/* A server that nobody has reached yet is given up soon. */
static int64_t end_of(const struct kube_call *call)
{
	int64_t first_ms = call->began_ms + KUBE_FIRST_MS;

	return !call->client->answered && first_ms < call->deadline_ms ? first_ms
								       : call->deadline_ms;
}

/* false: there is no time left for it. */
static bool again(struct kube_call *call, struct kube_answer *answer)
{
	int64_t wait_ms = pause_ms(call, answer), now_ms = clock_ms();

	if (now_ms + wait_ms >= end_of(call))
		return false;
	err_clear(&call->cause);
	err_move(&call->cause, &answer->fault);
	note_wait(call, wait_ms);
	call->timer = loop_add_timer(call->client->options.loop, now_ms + wait_ms, timer_due, call);
	return true;
}

static bool log_in_again(struct kube_call *call)
{
	struct kube_credential *credential = call->client->credential;

	if (call->refreshed || !kube_credential_refused(credential, call->login.generation))
		return false;
	call->refreshed = true;
	authorize(call);
	return true;
}

/* Whether the call goes on in another way than by the same request. */
static bool goes_on(struct kube_call *call, struct kube_answer *answer)
{
	const struct kube_call_ops *ops = call->ops;

	if (err_is_set(&answer->fault) ? !ops->restart || !ops->restart(call, answer)
				       : !ops->more || ops->more(call, answer) <= 0)
		return false;
	call->tries = 0;
	call->refreshed = false;
	authorize(call);
	return true;
}

int kube_call_answered(struct kube_call *call, struct http_answer *http, struct err *err)
{
	AUTO_KUBE_ANSWER struct kube_answer answer = {0};
	const struct kube_asked what = asked(call);

	call->exchange = NULL;
	kube_answer_read(&what, http, call->data != NULL, &answer);
	trace_note(TRACE_KUBE, "%s %s: status %d, try %u, %lld ms%s%s", call->method, call->path,
		http->status, call->tries, (long long)http->ms, answer.fault.message ? ": " : "",
		answer.fault.message ? answer.fault.message : "");
	if (http->status)
		call->client->answered = true;
	if (http->status == 401 && log_in_again(call))
		return 0;
	if (err_is_set(&answer.fault) && wants_again(call, &answer) && again(call, &answer))
		return 0;
	if (goes_on(call, &answer))
		return 0;
	if (err_is_set(&answer.fault) && call->tries > 1)
		err_evidence(&answer.fault, "%u tries", call->tries);
	return kube_call_finish(call, &answer, err);
}

/*
 * Sending
 */

static bool is_token_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || str_is_digit(c) ||
	       (c && strchr("!#$&'*+-.^_`|~", c));
}

/* The key of Impersonate-Extra-KEY (Kubernetes authentication, "User impersonation"). */
static void add_extra(struct strv *headers, const char *pair)
{
	const char *equals = strchr(pair, '=');
	AUTO_BUF struct buf name;

	buf_init(&name, URL_MAX);
	for (const char *at = pair; at < equals; at++) {
		if (is_token_char(*at))
			buf_addc(&name, *at);
		else
			buf_addf(&name, "%%%02X", (unsigned char)*at);
	}
	strv_addf(headers, "Impersonate-Extra-%s: %s", name.data, equals + 1);
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
	for (size_t i = 0; i < access->as_extra.n; i++)
		add_extra(headers, access->as_extra.v[i]);
}

static void make_url(const struct kube_call *call, struct url *ret)
{
	const struct url *server = &call->client->options.access->server;

	url_copy(server, ret);
	free(ret->path);
	ret->path = mem_printf("%s%s", server->path ? server->path : "", call->path);
	for (size_t i = 0; i + 1 < call->query.n; i += 2) {
		char *path = url_add_param(ret->path, call->query.v[i], call->query.v[i + 1]);
		free(ret->path);
		ret->path = path;
	}
}

/* People may take their time to log in. */
static void stop_clock(struct kube_call *call)
{
	loop_remove_timer(call->client->options.loop, TAKE(call->deadline_timer));
	call->wanted_ms = clock_ms();
}

static void start_clock(struct kube_call *call)
{
	int64_t waited_ms = clock_ms() - call->wanted_ms;

	if (call->deadline_ms < INT64_MAX - waited_ms)
		call->deadline_ms += waited_ms;
	if (!call->data)
		call->deadline_timer = loop_add_timer(
			call->client->options.loop, call->deadline_ms, deadline_due, call);
}

static int on_login(void *ctx, const struct kube_login *login, struct err *fault, struct err *err)
{
	struct kube_call *call = ctx;
	const struct kube_access *access = call->client->options.access;
	AUTO_URL struct url url = {0};
	AUTO_STRV struct strv headers = {0};

	call->wait = NULL;
	if (fault)
		return finish_fault(call, fault, err);
	start_clock(call);
	kube_login_copy(login, &call->login);
	struct http_tls tls = access->tls;
	if (call->login.cert_pem) {
		tls.cert_pem = call->login.cert_pem;
		tls.key_pem = call->login.key_pem;
	}
	make_url(call, &url);
	make_headers(call, &headers);
	if (call->tries++ == 0)
		call->began_ms = clock_ms();
	call->ops->send(call, &url, &headers, &tls);
	return 0;
}

static void authorize(struct kube_call *call)
{
	stop_clock(call);
	call->wait = kube_credential_want(call->client->credential, on_login, call);
}

/*
 * The start
 */

void kube_call_set_query(struct kube_call *call, const char *key, const char *value)
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

static void copy_body(struct kube_call *call, const struct kube_request *request)
{
	struct buf text;

	call->content_type =
		mem_strdup(request->content_type ? request->content_type : "application/json");
	if (!request->body)
		return;
	buf_init(&text, SIZE_MAX / 2);
	json_print(request->body, &text);
	call->body_len = text.len;
	call->body = text.data;
}

struct kube_call *kube_call_new(struct kube_client *client, const struct kube_request *request,
	const struct kube_call_ops *ops)
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
	copy_body(call, request);
	if (call->next)
		call->next->prev = call;
	client->calls = call;
	return call;
}

void kube_call_begin(struct kube_call *call)
{
	authorize(call);
}
