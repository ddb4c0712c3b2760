/* SPDX-License-Identifier: Apache-2.0 */
/* A client for tests, and what became of each of its calls. */
#ifndef DLRUN_TESTS_UNIT_HTTPCLIENT_H
#define DLRUN_TESTS_UNIT_HTTPCLIENT_H

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/vec.h"
#include "net/http/http.h"

struct client {
	struct loop *loop;
	struct http *http;
	struct strv events; /* METHOD URL STATUS UP DOWN */
};

struct result {
	struct http_request request; /* what a test sets before client_start */
	struct client *client;
	struct http_call *call;
	int n_done;
	int status;
	struct strv headers;
	char *body;
	size_t body_len;
	char *url;
	enum address_zone zone;
	uint64_t bytes_up, bytes_down;
	bool sent, is_transient;
	enum err_id error;
	char *message;
	char *evidence;
	char *hint;
	/* For data and read callbacks */
	uint64_t n_data;
	uint64_t n_read;
	int step;
	struct result *other;
};

static inline void client_event(void *ctx, const struct http_event *event)
{
	struct client *client = ctx;

	strv_addf(&client->events, "%s %s %d %llu %llu%s%s", event->method, event->url,
		event->status, (unsigned long long)event->bytes_up,
		(unsigned long long)event->bytes_down, event->error ? " " : "",
		event->error ? err_info(event->error->id)->name : "");
}

static inline void client_init_with(
	struct client *client, const struct proxy_env *proxy, const char *ca_file)
{
	*client = (struct client){.loop = loop_new()};
	struct http_options options = {
		.loop = client->loop,
		.user_agent = "dlrun/test",
		.ca_file = ca_file,
		.event = client_event,
		.event_ctx = client,
	};
	if (proxy)
		options.proxy = *proxy;
	client->http = http_new(&options);
}

static inline void client_init(struct client *client)
{
	client_init_with(client, NULL, NULL);
}

static inline void client_done(struct client *client)
{
	http_free(client->http);
	loop_free(client->loop);
	strv_done(&client->events);
}

static inline void client_run(struct client *client)
{
	AUTO_ERR struct err err = {0};

	int r = loop_run(client->loop, &err);
	if (r < 0)
		print_error("%s\n", err.message);
	assert_int_equal(r, 0);
	assert_false(err_is_set(&err));
}

static inline int result_note(void *ctx, struct http_response *response, struct err *err)
{
	struct result *result = ctx;
	const struct err *error = &response->error;

	result->n_done++;
	result->call = NULL;
	result->status = response->status;
	strv_copy(&result->headers, &response->headers);
	result->body_len = response->body.len;
	result->body = mem_dup(response->body.data, response->body.len + 1);
	result->url = url_text(&response->url);
	result->zone = response->zone;
	result->bytes_up = response->bytes_up;
	result->bytes_down = response->bytes_down;
	result->sent = response->sent;
	result->is_transient = response->is_transient;
	result->error = error->id;
	result->message = mem_strdup(error->message);
	result->evidence = mem_strdup(error->evidence[0]);
	result->hint = mem_strdup(error->hint);
	return 0;
}

static inline void result_done(struct result *result)
{
	strv_done(&result->headers);
	free(result->body);
	free(result->url);
	free(result->message);
	free(result->evidence);
	free(result->hint);
	*result = (struct result){0};
}

/* With what the test has set in result->request. */
static inline void client_start_url(struct client *client, const char *text, struct result *result)
{
	AUTO_URL struct url url = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(url_parse(text, "the URL", &url, &err), 0);
	result->client = client;
	result->request.url = &url;
	result->request.ctx = result;
	if (!result->request.method)
		result->request.method = "GET";
	if (!result->request.done)
		result->request.done = result_note;
	if (!result->request.max_body)
		result->request.max_body = 1 << 20;
	result->call = http_start(client->http, &result->request);
	result->request.url = NULL;
}

static inline void client_start(
	struct client *client, uint16_t port, const char *path, struct result *result)
{
	AUTO_FREE char *text = mem_printf("http://localhost:%u%s", port, path);

	client_start_url(client, text, result);
}

static inline void client_get(
	struct client *client, uint16_t port, const char *path, struct result *result)
{
	client_start(client, port, path, result);
	client_run(client);
}

static inline void result_is_error(const struct result *result, enum err_id id, bool is_transient)
{
	if (result->error != id)
		print_error("%s (status %d)\n", result->message ? result->message : "no fault",
			result->status);
	assert_int_equal(result->n_done, 1);
	assert_int_equal(result->error, id);
	assert_int_equal(result->status, 0);
	assert_int_equal(result->is_transient, is_transient);
	assert_int_equal(result->body_len, 0);
}

#endif
