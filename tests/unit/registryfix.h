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

struct world {
	struct loop *loop;
	struct http *http;
	struct credential_env env;
	struct fix_server *server;
	char *host, *auth_file;
	struct registry *registry;
	struct strv notes;
};

struct outcome {
	struct world *world;
	struct registry_call *call;
	int n_done;
	int status;
	enum err_id error;
	char *message, *evidence, *evidence2, *hint;
	char *body;
	struct url location; /* if there is one */
	int64_t ms;
	int64_t began_ms;
	bool judge; /* by registry_call_error */
	uint64_t n_data;
	uint64_t n_read;
};

static inline void world_note(void *ctx, const char *text)
{
	struct world *world = ctx;

	strv_add(&world->notes, text);
}

static inline struct registry_options world_options(struct world *world)
{
	return (struct registry_options){
		.http = world->http,
		.loop = world->loop,
		.env = &world->env,
		.host = world->host,
		.repo = "me/x",
		.push = true,
		.deadline_ms = clock_ms() + TEST_MS,
		.note = world_note,
		.note_ctx = world,
	};
}

static inline void world_open(struct world *world, const struct registry_options *options)
{
	AUTO_ERR struct err err = {0};

	registry_free(world->registry);
	world->registry = NULL;
	if (registry_new(options, &world->registry, &err) < 0)
		fail_msg("%s", err.message);
}

static inline void world_init(struct world *world, fix_response_fn *response)
{
	static const char *const no_env[] = {NULL};

	*world = (struct world){.loop = loop_new()};
	world->server = fix_start(response);
	world->host = mem_printf("127.0.0.1:%u", world->server->port);
	world->env.env = no_env;
	const struct http_options options = {.loop = world->loop, .user_agent = "dlrun/test"};
	world->http = http_new(&options);
	struct registry_options open = world_options(world);
	world_open(world, &open);
}

/* user and password for the server. */
static inline void world_login(struct world *world, const char *base64)
{
	AUTO_FREE char *text =
		mem_printf("{\"auths\":{\"%s\":{\"auth\":\"%s\"}}}", world->host, base64);

	free(world->auth_file);
	world->auth_file = mem_printf("%s/auth.json", tmp);
	assert_int_equal(
		fs_replace(world->auth_file, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
	world->env.registry_auth_file = world->auth_file;
}

static inline void world_done(struct world *world)
{
	registry_free(world->registry);
	http_free(world->http);
	loop_free(world->loop);
	fix_stop(world->server);
	free(world->host);
	free(world->auth_file);
	strv_done(&world->notes);
}

static inline void world_run(struct world *world)
{
	AUTO_ERR struct err err = {0};

	if (loop_run(world->loop, &err) < 0)
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

	(void)err;
	outcome->n_done++;
	outcome->ms = clock_ms() - outcome->began_ms;
	assert_true(!response == !!error);
	if (response) {
		outcome->status = response->status;
		outcome->body = mem_strdup(response->body.len ? response->body.data : "");
		if (outcome->judge)
			registry_call_error(outcome->call, response, &own);
		registry_location(outcome->world->registry, response, &outcome->location, NULL);
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
	struct world *world, struct registry_request request, struct outcome *outcome)
{
	outcome->world = world;
	outcome->began_ms = clock_ms();
	request.method = request.method ? request.method : "GET";
	request.doing = request.doing ? request.doing : "trying it";
	request.max_body = request.max_body ? request.max_body : 1 << 20;
	request.done = outcome_note;
	request.ctx = outcome;
	outcome->call = registry_start(world->registry, &request);
}

static inline void query_now(
	struct world *world, struct registry_request request, struct outcome *outcome)
{
	query(world, request, outcome);
	world_run(world);
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
