/* SPDX-License-Identifier: Apache-2.0 */
/* Registries on the loop of a test, their server (httpfix.h), and what became of each call. */
#ifndef DLRUN_TESTS_UNIT_REGISTRYFIX_H
#define DLRUN_TESTS_UNIT_REGISTRYFIX_H

#include "base/loop/loop.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "oci/registry/registry.h"
#include "tests/unit/httpfix.h"
#include "tests/unit/tmpfix.h"

enum { TEST_MS = 20000 };

struct runtime {
	struct loop *loop;
	struct http *http;
	struct credential_env env;
	struct fix_server *server;
	char *host, *auth_file;
	struct registry *registry;
	struct strv notes;
};

struct outcome {
	struct runtime *runtime;
	struct registry_call *call;
	int n_done;
	int status;
	enum err_id error;
	char *message, *evidence, *evidence2, *hint;
	char *body;
	struct url location; /* if there is one */
	int64_t ms;
	int64_t began_ms;
	bool evaluation; /* by registry_call_error */
	uint64_t n_data;
	uint64_t n_read;
};

static inline void runtime_note(void *ctx, const char *text)
{
	struct runtime *runtime = ctx;

	strv_add(&runtime->notes, text);
}

static inline struct registry_options runtime_options(struct runtime *runtime)
{
	return (struct registry_options){
		.http = runtime->http,
		.loop = runtime->loop,
		.env = &runtime->env,
		.host = runtime->host,
		.repo = "me/x",
		.push = true,
		.deadline_ms = clock_ms() + TEST_MS,
		.note = runtime_note,
		.note_ctx = runtime,
	};
}

static inline void runtime_open(struct runtime *runtime, const struct registry_options *options)
{
	AUTO_ERR struct err err = {0};

	registry_free(runtime->registry);
	runtime->registry = NULL;
	if (registry_new(options, &runtime->registry, &err) < 0)
		fail_msg("%s", err.message);
}

static inline void runtime_init(struct runtime *runtime, fix_response_fn *response)
{
	static const char *const no_env[] = {NULL};

	*runtime = (struct runtime){.loop = loop_new()};
	runtime->server = fix_start(response);
	runtime->host = mem_printf("127.0.0.1:%u", runtime->server->port);
	runtime->env.env = no_env;
	const struct http_options options = {.loop = runtime->loop, .user_agent = "dlrun/test"};
	runtime->http = http_new(&options);
	struct registry_options open = runtime_options(runtime);
	runtime_open(runtime, &open);
}

/* user and password for the server. */
static inline void runtime_login(struct runtime *runtime, const char *base64)
{
	AUTO_FREE char *text =
		mem_printf("{\"auths\":{\"%s\":{\"auth\":\"%s\"}}}", runtime->host, base64);

	free(runtime->auth_file);
	runtime->auth_file = mem_printf("%s/auth.json", tmp);
	assert_int_equal(
		fs_replace(runtime->auth_file, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
	runtime->env.registry_auth_file = runtime->auth_file;
}

static inline void runtime_done(struct runtime *runtime)
{
	registry_free(runtime->registry);
	http_free(runtime->http);
	loop_free(runtime->loop);
	fix_stop(runtime->server);
	free(runtime->host);
	free(runtime->auth_file);
	strv_done(&runtime->notes);
}

static inline void runtime_run(struct runtime *runtime)
{
	AUTO_ERR struct err err = {0};

	if (loop_run(runtime->loop, &err) < 0)
		fail_msg("%s", err.message);
}

/* Requests whose head begins with start. */
static inline int fix_count(struct fix_server *server, const char *start)
{
	int n = 0;

	pthread_mutex_lock(&server->lock);
	vec_foreach (char *, head, &server->heads)
		n += str_starts(*head, start);
	pthread_mutex_unlock(&server->lock);
	return n;
}

static inline bool fix_saw(struct fix_server *server, const char *word)
{
	bool found = false;

	pthread_mutex_lock(&server->lock);
	vec_foreach (char *, head, &server->heads)
		found = found || strcasestr(*head, word);
	pthread_mutex_unlock(&server->lock);
	return found;
}

static inline int outcome_note(
	void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct outcome *outcome = ctx;
	AUTO_ERR struct err own = {0};

	outcome->n_done++;
	outcome->ms = clock_ms() - outcome->began_ms;
	assert_true(!response == !!error);
	if (response) {
		outcome->status = response->status;
		outcome->body = mem_strdup(response->body.len ? response->body.data : "");
		if (outcome->evaluation)
			registry_call_error(outcome->call, response, &own);
		registry_location(outcome->runtime->registry, response, &outcome->location, NULL);
	} else {
		err_move(&own, error);
	}
	outcome->call = NULL;
	outcome->error = own.id;
	outcome->message = mem_strdup(own.message);
	outcome->evidence = mem_strdup(own.evidence[0]);
	outcome->evidence2 = mem_strdup(own.evidence[1]);
	outcome->hint = mem_strdup(own.hint);
	return 0;
}

static inline void outcome_done(struct outcome *outcome)
{
	free(outcome->message);
	free(outcome->evidence);
	free(outcome->evidence2);
	free(outcome->hint);
	free(outcome->body);
	url_done(&outcome->location);
	*outcome = (struct outcome){0};
}

static inline void query(
	struct runtime *runtime, struct registry_request request, struct outcome *outcome)
{
	outcome->runtime = runtime;
	outcome->began_ms = clock_ms();
	request.method = request.method ? request.method : "GET";
	request.doing = request.doing ? request.doing : "trying it";
	request.max_body = request.max_body ? request.max_body : 1 << 20;
	request.done = outcome_note;
	request.ctx = outcome;
	outcome->call = registry_start(runtime->registry, &request);
}

static inline void query_now(
	struct runtime *runtime, struct registry_request request, struct outcome *outcome)
{
	query(runtime, request, outcome);
	runtime_run(runtime);
	assert_int_equal(outcome->n_done, 1);
}

static inline void is_ok(const struct outcome *outcome, int status)
{
	if (outcome->error)
		fail_msg("%s", outcome->message);
	assert_int_equal(outcome->n_done, 1);
	assert_int_equal(outcome->status, status);
}

static inline void is_error(const struct outcome *outcome, enum err_id id)
{
	if (outcome->error != id)
		fail_msg("%s: %s (%d)", err_info(id)->name,
			outcome->message ? outcome->message : "no fault", outcome->status);
	assert_int_equal(outcome->n_done, 1);
}

#endif
