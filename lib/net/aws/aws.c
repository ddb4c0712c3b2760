/* SPDX-License-Identifier: Apache-2.0 */
#include "net/aws/aws.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "net/s3/s3_login.h"
#include "net/s3/s3_profile.h"
#include "net/s3/s3_sign.h"
#include "net/stream/field.h"

enum { AWS_RETRY_AFTER_MAX_MS = 60 * 1000 };

static const struct {
	const char *name; /* in a scope and a host */
	const char *variable, *setting;
} aws_services[] = {
	[AWS_AUTOSCALING] = {"autoscaling", "AWS_ENDPOINT_URL_AUTO_SCALING",
		"auto_scaling.endpoint_url"},
	[AWS_EC2] = {"ec2", "AWS_ENDPOINT_URL_EC2", "ec2.endpoint_url"},
};

struct aws {
	struct loop *loop;
	struct http *http;
	struct s3_profile profile;
	struct s3_login *login;
	struct url endpoints[ARRAY_LEN(aws_services)]; /* host NULL: AWS's */
	int64_t skew_ms;
	struct aws_call *calls;
};

struct aws_call {
	struct aws *aws;
	struct aws_call *next, *prev;
	struct aws_request request; /* region and action are owned */
	struct strv params;
	char *token, *form; /* token: of the page; or NULL */
	struct loop_timer *timer, *deadline;
	struct http_call *http_call;
	unsigned tries, pages, generation;
	bool is_renewed, is_skewed;
	bool may_have_worked; /* one of the tries */
	int64_t skew_ms;
};

/*
 * The client
 */

bool aws_is_region(const char *text)
{
	return !str_empty(text) && strlen(text) < 64 && *text != '-' &&
	       text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-")] == '\0';
}

static int aws_endpoint_read(
	struct aws *aws, const char *const *env, enum aws_service service, struct err *err)
{
	struct url *url = &aws->endpoints[service];
	AUTO_FREE char *text = s3_profile_endpoint(
		env, &aws->profile, aws_services[service].variable, aws_services[service].setting);

	if (!text)
		return 0;
	int r = url_parse(text, "the endpoint", url, err);
	if (r == 0 && !url->tls && !url_is_loopback(url))
		r = err_set(err, E_SCALE_SETTINGS, "it is neither https nor of this machine");
	if (r == 0 && strchr(url->path, '?'))
		r = err_set(err, E_SCALE_SETTINGS, "it has a query");
	if (r == 0)
		return 0;
	AUTO_FREE char *shown = str_shown(text);
	AUTO_FREE char *why = mem_strdup(err->message);
	return err_set(err, E_SCALE_SETTINGS, "the endpoint of %s, %s: %s",
		aws_services[service].name, shown, why);
}

int aws_open(struct loop *loop, struct http *http, const char *const *env, struct aws **ret,
	struct err *err)
{
	AUTO_AWS struct aws *aws = mem_alloc(1, sizeof(*aws));
	int r = s3_profile_read(env, &aws->profile, err);

	aws->loop = loop;
	aws->http = http;
	for (int i = 0; i < (int)ARRAY_LEN(aws_services) && r == 0; i++)
		r = aws_endpoint_read(aws, env, (enum aws_service)i, err);
	if (r < 0)
		return r;
	aws->login = s3_login_new(loop, http, env, &aws->profile);
	*ret = TAKE(aws);
	return 0;
}

static void aws_call_free(struct aws_call *call)
{
	struct aws *aws = call->aws;

	if (call->prev)
		call->prev->next = call->next;
	else
		aws->calls = call->next;
	if (call->next)
		call->next->prev = call->prev;
	loop_remove_timer(aws->loop, call->timer);
	loop_remove_timer(aws->loop, call->deadline);
	http_cancel(call->http_call);
	s3_login_cancel(aws->login, call);
	strv_done(&call->params);
	free((char *)call->request.region);
	free((char *)call->request.action);
	free(call->token);
	free(call->form);
	free(call);
}

void aws_cancel(struct aws_call *call)
{
	if (call)
		aws_call_free(call);
}

void aws_free(struct aws *aws)
{
	if (!aws)
		return;
	while (aws->calls)
		aws_call_free(aws->calls);
	s3_login_free(aws->login);
	s3_profile_done(&aws->profile);
	for (size_t i = 0; i < ARRAY_LEN(aws_services); i++)
		url_done(&aws->endpoints[i]);
	free(aws);
}

/*
 * The end of a call
 */

static int aws_call_end(
	struct aws_call *call, enum aws_class class, struct err *error, struct err *err)
{
	struct aws_result result = {.class = class, .is_unknown = call->may_have_worked};
	aws_done_fn *done = call->request.done;
	void *ctx = call->request.ctx;

	if (err_is_set(error)) {
		err_move(&result.error, error);
		err_prefix(&result.error, "%s in %s", call->request.action, call->request.region);
	}
	/* done may start another one. */
	aws_call_free(call);
	int r = done(ctx, &result, err);
	err_done(&result.error);
	return r;
}

static int aws_call_send(struct aws_call *call, struct err *err);

static int aws_call_due(void *ctx, struct err *err)
{
	struct aws_call *call = ctx;

	call->timer = NULL;
	return aws_call_send(call, err);
}

/* A call may wait for anything: keys that a program makes have no deadline. */
static int aws_call_overdue(void *ctx, struct err *err)
{
	struct aws_call *call = ctx;
	AUTO_ERR struct err error = {0};

	call->deadline = NULL;
	call->may_have_worked |= call->http_call != NULL;
	err_set(&error, E_SCALE_PROVIDER, "no response in time");
	return aws_call_end(call, AWS_OTHER, &error, err);
}

static void aws_call_later(struct aws_call *call, int64_t ms)
{
	call->timer = loop_add_timer(call->aws->loop, clock_ms() + ms, aws_call_due, call);
}

/* Full jitter: anything up to the backoff, so that clients that were throttled together spread. */
static int64_t aws_call_wait_ms(const struct aws_call *call, const struct http_response *response)
{
	int64_t limit_ms = backoff_ms(call->tries, AWS_BACKOFF_FIRST_MS, AWS_BACKOFF_MAX_MS);
	int64_t ms = random_below((uint32_t)limit_ms + 1);
	const char *text = field_find(&response->headers, "retry-after");
	int64_t asked_ms = text ? field_retry_after(text, clock_wall_ms()) : -1;

	if (asked_ms > AWS_RETRY_AFTER_MAX_MS)
		asked_ms = AWS_RETRY_AFTER_MAX_MS;
	return asked_ms > ms ? asked_ms : ms;
}

/* Send it once more if there is time, else end it. */
static int aws_call_repeat(struct aws_call *call, const struct http_response *response,
	enum aws_class class, struct err *error, struct err *err)
{
	int64_t wait_ms = aws_call_wait_ms(call, response);
	bool has_time = clock_ms() + wait_ms < call->request.deadline_ms;

	if ((call->request.is_once && call->may_have_worked) || !has_time ||
		call->tries >= AWS_TRIES)
		return aws_call_end(call, class, error, err);
	aws_call_later(call, wait_ms);
	return 0;
}

/*
 * Responses
 */

static void aws_call_see_clock(struct aws_call *call, const struct http_response *response)
{
	const char *text = field_find(&response->headers, "date");
	int64_t server_ms = text ? field_date(text) : -1;

	if (server_ms > 0)
		call->skew_ms = server_ms - clock_wall_ms();
}

/* Whether the refusal is one of keys or of a clock, which the next try has right. */
static bool aws_call_heal(struct aws_call *call, const char *code, const char *message)
{
	static const char expired[] =
		"ExpiredToken ExpiredTokenException InvalidClientTokenId AuthFailure "
		"UnrecognizedClientException";
	static const char skewed[] = "RequestExpired RequestTimeTooSkewed";
	bool is_skewed = str_is_word_of(code, skewed) ||
			 (str_eq(code, "SignatureDoesNotMatch") && message &&
				 (str_starts(message, "Signature expired") ||
					 str_starts(message, "Signature not yet current")));

	if (is_skewed && !call->is_skewed && call->skew_ms != call->aws->skew_ms) {
		call->is_skewed = true;
		call->aws->skew_ms = call->skew_ms;
		return true;
	}
	if (!str_is_word_of(code, expired) || call->is_renewed)
		return false;
	call->is_renewed = true;
	return s3_login_refuse(call->aws->login, call->generation);
}

static int aws_call_refused(
	struct aws_call *call, const struct http_response *response, struct err *err)
{
	AUTO_ERR struct err error = {0};
	AUTO_FREE char *code = NULL;
	AUTO_FREE char *message = NULL;
	int status = response->status;

	aws_read_error(response->body.data, response->body.len, &code, &message);
	if (!code) {
		/* No document of the service: something between here and it, or it is ill. */
		call->may_have_worked |= status >= 500;
		err_set(&error, E_SCALE_PROVIDER, "status %d, and no error that AWS has", status);
		return aws_call_repeat(
			call, response, status == 429 ? AWS_THROTTLE : AWS_OTHER, &error, err);
	}
	AUTO_FREE char *both = mem_printf("%s: %s", code, message ? message : "");
	enum aws_class class = aws_classify(code);
	if (class == AWS_OTHER)
		class = aws_classify(both);
	err_set(&error, E_SCALE_PROVIDER, "%s%s%s", code, str_empty(message) ? "" : ": ",
		str_empty(message) ? "" : message);
	bool is_ill = status >= 500 && class == AWS_OTHER;
	call->may_have_worked |= is_ill;
	if (class == AWS_THROTTLE || is_ill || status == 429 || status == 503)
		return aws_call_repeat(call, response, class, &error, err);
	if (aws_call_heal(call, code, message)) {
		aws_call_later(call, 0);
		return 0;
	}
	return aws_call_end(call, class, &error, err);
}

static int aws_call_read(
	struct aws_call *call, const struct http_response *response, struct err *err)
{
	AUTO_ERR struct err error = {0};
	AUTO_FREE char *next = NULL;
	int r = call->request.read(
		call->request.into, response->body.data, response->body.len, &next, &error);

	if (r < 0) {
		call->may_have_worked = true;
		return aws_call_repeat(call, response, AWS_OTHER, &error, err);
	}
	if (next && (++call->pages >= AWS_PAGES_MAX || str_eq(next, call->token))) {
		err_set(&error, E_SCALE_PROVIDER, "the list has no end");
		return aws_call_end(call, AWS_OTHER, &error, err);
	}
	if (!next)
		return aws_call_end(call, AWS_OTHER, &error, err);
	REPLACE(call->token, TAKE(next));
	call->tries = 0;
	aws_call_later(call, 0);
	return 0;
}

static int aws_call_on_response(void *ctx, struct http_response *response, struct err *err)
{
	struct aws_call *call = ctx;

	call->http_call = NULL;
	aws_call_see_clock(call, response);
	if (response->status == 0) {
		AUTO_ERR struct err error = {0};

		call->may_have_worked |= response->sent;
		err_set(&error, E_SCALE_PROVIDER, "%s", response->error.message);
		return response->is_transient
			       ? aws_call_repeat(call, response, AWS_OTHER, &error, err)
			       : aws_call_end(call, AWS_OTHER, &error, err);
	}
	if (response->status >= 200 && response->status < 300)
		return aws_call_read(call, response, err);
	return aws_call_refused(call, response, err);
}

/*
 * Sending
 */

static int aws_call_url(const struct aws_call *call, struct url *ret, struct err *err)
{
	const struct aws_request *request = &call->request;
	const struct url *endpoint = &call->aws->endpoints[request->service];

	if (endpoint->host) {
		url_copy(endpoint, ret);
		return 0;
	}
	AUTO_FREE char *host =
		mem_printf("%s.%s.amazonaws.com%s", aws_services[request->service].name,
			request->region, str_starts(request->region, "cn-") ? ".cn" : "");
	return url_make(true, host, "/", ret, err);
}

static void aws_call_make_form(struct aws_call *call)
{
	AUTO_STRV struct strv params = {0};

	strv_copy(&params, &call->params);
	if (call->token)
		strv_addf(&params, "NextToken=%s", call->token);
	REPLACE(call->form, aws_form(call->request.service, call->request.action, &params));
}

static int aws_call_with_keys(void *ctx, const struct s3_keys *keys, unsigned generation,
	struct err *error, struct err *err)
{
	struct aws_call *call = ctx;
	AUTO_URL struct url url = {0};
	AUTO_STRV struct strv headers = {0}, own = {0};
	AUTO_FREE char *authorization = NULL;
	char payload[SHA256_HEX_SIZE];

	/* Keys may be there again in a moment. */
	if (err_is_set(error))
		return aws_call_end(call, AWS_OTHER, error, err);
	if (aws_call_url(call, &url, error) < 0)
		return aws_call_end(call, AWS_CONFIG, error, err);
	AUTO_FREE char *host = url_authority(&url);
	strv_add(&own, "content-type: application/x-www-form-urlencoded; charset=utf-8");
	s3_payload(call->form, strlen(call->form), payload);
	struct s3_sign sign = {
		.method = "POST",
		.host = host,
		.path = url.path,
		.query = "",
		.headers = &own,
		.region = call->request.region,
		.service = aws_services[call->request.service].name,
		.payload = payload,
		.wall_ms = clock_wall_ms() + call->aws->skew_ms,
		.keys = keys,
	};
	call->generation = generation;
	s3_sign(&sign, &headers, &authorization);
	struct http_request request = {
		.method = "POST",
		.url = &url,
		.headers = &headers,
		.authorization = authorization,
		.body = {.data = call->form, .size = strlen(call->form)},
		.tls = &call->aws->profile.tls,
		.max_body = AWS_BODY_MAX,
		.fresh = call->request.is_once,
		.done = aws_call_on_response,
		.ctx = call,
	};
	call->http_call = http_start(call->aws->http, &request);
	return 0;
}

static int aws_call_send(struct aws_call *call, struct err *err)
{
	call->tries++;
	aws_call_make_form(call);
	return s3_login_want(call->aws->login, aws_call_with_keys, call, err);
}

struct aws_call *aws_start(struct aws *aws, const struct aws_request *request)
{
	struct aws_call *call = mem_alloc(1, sizeof(*call));

	call->aws = aws;
	call->request = *request;
	call->request.region = mem_strdup(request->region);
	call->request.action = mem_strdup(request->action);
	if (request->params)
		strv_copy(&call->params, request->params);
	call->next = aws->calls;
	if (call->next)
		call->next->prev = call;
	aws->calls = call;
	call->deadline = loop_add_timer(aws->loop, request->deadline_ms, aws_call_overdue, call);
	aws_call_later(call, 0);
	return call;
}
