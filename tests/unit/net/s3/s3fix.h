/* SPDX-License-Identifier: Apache-2.0 */
/* A client of S3 whose server is a function of the test. */
#ifndef DLRUN_TESTS_UNIT_NET_S3_S3FIX_H
#define DLRUN_TESTS_UNIT_NET_S3_S3FIX_H

#include "net/s3/s3.h"
#include "tests/unit/httpfix.h"

struct s3_fix {
	struct loop *loop;
	struct http *http;
	struct fix_server *server;
	struct strv env;
	struct s3 *s3;
	/* what the last call ended with */
	int n_done;
	struct err error;
	struct buf data; /* of a get */
	char *notes;     /* of a put */
	struct s3_objects objects;
};

static inline void s3_fix_init(struct s3_fix *fix, fix_response_fn *response)
{
	*fix = (struct s3_fix){.loop = loop_new(), .server = fix_start(response)};
	struct http_options options = {.loop = fix->loop, .user_agent = "dlrun/test"};

	fix->http = http_new(&options);
	strv_addf(&fix->env, "AWS_ENDPOINT_URL_S3=http://127.0.0.1:%u", fix->server->port);
	buf_init(&fix->data, 64 << 20);
}

static inline void s3_fix_open(struct s3_fix *fix)
{
	AUTO_ERR struct err err = {0};

	assert_int_equal(
		s3_open(fix->loop, fix->http, (const char *const *)fix->env.v, &fix->s3, &err), 0);
}

/* With keys of the environment. */
static inline void s3_fix_start(struct s3_fix *fix, fix_response_fn *response)
{
	s3_fix_init(fix, response);
	strv_add(&fix->env, "AWS_ACCESS_KEY_ID=ID");
	strv_add(&fix->env, "AWS_SECRET_ACCESS_KEY=canary-secret");
	s3_fix_open(fix);
}

static inline void s3_fix_stop(struct s3_fix *fix)
{
	s3_free(fix->s3);
	http_free(fix->http);
	fix_stop(fix->server);
	loop_free(fix->loop);
	strv_done(&fix->env);
	err_done(&fix->error);
	buf_done(&fix->data);
	free(fix->notes);
	s3_objects_done(&fix->objects);
}

static inline int s3_fix_done(void *ctx, struct err *error, struct err *err)
{
	struct s3_fix *fix = ctx;

	fix->n_done++;
	err_clear(&fix->error);
	err_move(&fix->error, error);
	/* No message has a secret. */
	if (fix->error.message)
		assert_null(strstr(fix->error.message, "canary"));
	return 0;
}

static inline int s3_fix_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct s3_fix *fix = ctx;

	buf_add(&fix->data, data, len);
	return 0;
}

static inline void s3_fix_noted(void *ctx, const char *resume)
{
	struct s3_fix *fix = ctx;

	free(fix->notes);
	fix->notes = mem_strdup(resume);
}

/* Runs until the call has ended; with this error. */
static inline void s3_fix_run(struct s3_fix *fix, enum err_id id)
{
	AUTO_ERR struct err err = {0};
	int n_done = fix->n_done;

	assert_int_equal(loop_run(fix->loop, &err), 0);
	assert_int_equal(fix->n_done, n_done + 1);
	if (fix->error.id != id)
		print_error("%s\n", fix->error.message ? fix->error.message : "no error");
	assert_int_equal(fix->error.id, id);
}

/* A response with a body; head: "503 Slow" and more headers, "\r\n" before each. */
static inline bool s3_fix_respond(struct fix_conn *conn, const char *head, const char *body)
{
	AUTO_FREE char *text = mem_printf("HTTP/1.1 %s\r\ncontent-length: %zu\r\n\r\n%s", head,
		strlen(body), strcmp(conn->method, "HEAD") == 0 ? "" : body);

	return fix_print(conn, text);
}

static inline bool s3_fix_refuse(struct fix_conn *conn, const char *head, const char *code)
{
	AUTO_FREE char *body = mem_printf(
		"<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>why</Message></Error>",
		code);

	return s3_fix_respond(conn, head, body);
}

#endif
