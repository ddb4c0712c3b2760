/* SPDX-License-Identifier: Apache-2.0 */
/* The client of EC2 and Auto Scaling, with a server that fails in each way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "net/aws/aws.h"
#include "tests/unit/httpfix.h"

enum { LONG_MS = 60 * 1000 };

static atomic_int n_seen;

struct fix {
	struct loop *loop;
	struct http *http;
	struct fix_server *server;
	struct strv env;
	struct aws *aws;
	struct aws_launches launches;
	int n_done;
	struct aws_result result;
	char *message;
	enum err_id id;
};

static void start(struct fix *fix, fix_response_fn *respond)
{
	AUTO_ERR struct err err = {0};

	*fix = (struct fix){.loop = loop_new(), .server = fix_start(respond)};
	struct http_options options = {.loop = fix->loop, .user_agent = "dlrun/test"};
	fix->http = http_new(&options);
	strv_addf(&fix->env, "AWS_ENDPOINT_URL=http://127.0.0.1:%u", fix->server->port);
	strv_add(&fix->env, "AWS_ACCESS_KEY_ID=ID");
	strv_add(&fix->env, "AWS_SECRET_ACCESS_KEY=canary-secret");
	strv_add(&fix->env, "AWS_SESSION_TOKEN=canary-token");
	assert_int_equal(
		aws_open(fix->loop, fix->http, (const char *const *)fix->env.v, &fix->aws, &err),
		0);
	atomic_store(&n_seen, 0);
}

static void stop(struct fix *fix)
{
	aws_free(fix->aws);
	http_free(fix->http);
	fix_stop(fix->server);
	loop_free(fix->loop);
	strv_done(&fix->env);
	aws_launches_done(&fix->launches);
	free(fix->message);
}

static int on_done(void *ctx, struct aws_result *result, struct err *err)
{
	struct fix *fix = ctx;

	fix->n_done++;
	fix->result = *result;
	fix->id = result->error.id;
	REPLACE(fix->message, mem_strdup(result->error.message));
	if (fix->message)
		assert_null(strstr(fix->message, "canary"));
	loop_stop(fix->loop);
	return 0;
}

static struct aws_request request_of(struct fix *fix)
{
	return (struct aws_request){.service = AWS_EC2,
		.region = "us-east-1",
		.action = "DescribeInstances",
		.deadline_ms = clock_ms() + LONG_MS,
		.read = aws_read_launches,
		.into = &fix->launches,
		.done = on_done,
		.ctx = fix};
}

static void run(struct fix *fix, const struct aws_request *request, enum err_id id)
{
	AUTO_ERR struct err err = {0};
	int n_done = fix->n_done;

	aws_start(fix->aws, request);
	assert_int_equal(fix->n_done, n_done);
	assert_int_equal(loop_run(fix->loop, &err), 0);
	assert_int_equal(fix->n_done, n_done + 1);
	if (fix->id != id)
		print_error("%s\n", fix->message ? fix->message : "no error");
	assert_int_equal(fix->id, id);
}

static bool respond(struct fix_conn *conn, const char *status, const char *body)
{
	AUTO_FREE UNUSED char *form = fix_body(conn);
	AUTO_FREE char *text = mem_printf(
		"HTTP/1.1 %s\r\ncontent-length: %zu\r\n\r\n%s", status, strlen(body), body);

	return fix_print(conn, text);
}

static bool respond_page(struct fix_conn *conn, int number, const char *next)
{
	AUTO_FREE char *body = mem_printf(
		"<DescribeInstancesResponse><reservationSet><item><instancesSet><item><instanceId>"
		"i-%d</instanceId></item></instancesSet></item></reservationSet>%s%s%s"
		"</DescribeInstancesResponse>",
		number, next ? "<nextToken>" : "", next ? next : "", next ? "</nextToken>" : "");

	return respond(conn, "200 OK", body);
}

static bool refuse(struct fix_conn *conn, const char *status, const char *code)
{
	AUTO_FREE char *body = mem_printf(
		"<Response><Errors><Error><Code>%s</Code><Message>why\ncanary-token</Message>"
		"</Error></Errors></Response>",
		code);

	return respond(conn, status, body);
}

static bool respond_pages(struct fix_conn *conn)
{
	static const char *const tokens[] = {NULL, "two +/", "three"};
	AUTO_FREE char *form = fix_body(conn);
	int number = atomic_fetch_add(&n_seen, 1);

	assert_non_null(strstr(conn->head, "/us-east-1/ec2/aws4_request"));
	assert_non_null(strstr(conn->head, "x-amz-security-token: canary-token"));
	assert_non_null(strstr(form, "Action=DescribeInstances"));
	assert_true(number != 1 || strstr(form, "NextToken=two+%2B%2F&"));
	conn->size = 0;
	return respond_page(conn, number, number < 2 ? tokens[number + 1] : NULL);
}

static void test_pages(void **state)
{
	struct fix fix;

	start(&fix, respond_pages);
	struct aws_request request = request_of(&fix);
	run(&fix, &request, E_NONE);
	assert_int_equal(fix.launches.n, 3);
	assert_string_equal(fix.launches.v[2].id, "i-2");
	assert_int_equal(atomic_load(&n_seen), 3);
	stop(&fix);
}

static bool respond_for_ever(struct fix_conn *conn)
{
	return respond_page(conn, atomic_fetch_add(&n_seen, 1), "again");
}

static void test_list_without_end(void **state)
{
	struct fix fix;

	start(&fix, respond_for_ever);
	struct aws_request request = request_of(&fix);
	run(&fix, &request, E_SCALE_PROVIDER);
	assert_int_equal(atomic_load(&n_seen), 2);
	stop(&fix);
}

static bool respond_after_faults(struct fix_conn *conn)
{
	switch (atomic_fetch_add(&n_seen, 1)) {
	case 0:
		return refuse(conn, "400 Bad", "RequestLimitExceeded");
	case 1:
		return respond(conn, "503 No", "<html><body>try later</body></html>");
	case 2:
		return respond(conn, "200 OK", "<html><body>captive portal</body></html>");
	case 3:
		fix_reset(conn);
		return false;
	case 4:
		return refuse(conn, "500 Oops", "InternalError");
	default:
		return respond_page(conn, 1, NULL);
	}
}

static void test_faults_pass(void **state)
{
	struct fix fix;

	start(&fix, respond_after_faults);
	struct aws_request request = request_of(&fix);
	run(&fix, &request, E_NONE);
	assert_int_equal(fix.launches.n, 1);
	assert_int_equal(atomic_load(&n_seen), 6);
	stop(&fix);
}

static bool respond_refused(struct fix_conn *conn)
{
	return atomic_fetch_add(&n_seen, 1) ? refuse(conn, "400 Bad", "VcpuLimitExceeded")
					    : refuse(conn, "403 No", "UnauthorizedOperation");
}

static void test_refusals(void **state)
{
	struct fix fix;

	start(&fix, respond_refused);
	struct aws_request request = request_of(&fix);
	run(&fix, &request, E_SCALE_PROVIDER);
	assert_int_equal(fix.result.class, AWS_CONFIG);
	assert_false(fix.result.is_unknown);
	assert_string_equal(
		fix.message, "DescribeInstances in us-east-1: UnauthorizedOperation: why");
	run(&fix, &request, E_SCALE_PROVIDER);
	assert_int_equal(fix.result.class, AWS_QUOTA);
	assert_int_equal(atomic_load(&n_seen), 2);
	stop(&fix);
}

/* A wait that would end behind the deadline is not begun. */
static bool respond_throttled(struct fix_conn *conn)
{
	atomic_fetch_add(&n_seen, 1);
	return refuse(conn, "400 Bad\r\nretry-after: 50", "Throttling");
}

static void test_no_time_left(void **state)
{
	struct fix fix;

	start(&fix, respond_throttled);
	struct aws_request request = request_of(&fix);
	request.deadline_ms = clock_ms() + 40 * 1000;
	run(&fix, &request, E_SCALE_PROVIDER);
	assert_int_equal(fix.result.class, AWS_THROTTLE);
	assert_false(fix.result.is_unknown);
	assert_int_equal(atomic_load(&n_seen), 1);
	stop(&fix);
}

static bool respond_never(struct fix_conn *conn)
{
	fix_wait_end(conn);
	return false;
}

static void test_silence(void **state)
{
	struct fix fix;

	start(&fix, respond_never);
	struct aws_request request = request_of(&fix);
	request.deadline_ms = clock_ms() + 200;
	run(&fix, &request, E_SCALE_PROVIDER);
	assert_true(fix.result.is_unknown);
	stop(&fix);
}

/* What may have had its effect is not sent twice; what was refused is. */
static bool respond_once(struct fix_conn *conn)
{
	switch (atomic_fetch_add(&n_seen, 1)) {
	case 0:
		return refuse(conn, "400 Bad", "Throttling");
	default:
		fix_reset(conn);
		return false;
	}
}

static void test_once(void **state)
{
	struct fix fix;

	start(&fix, respond_once);
	struct aws_request request = request_of(&fix);
	request.is_once = true;
	run(&fix, &request, E_SCALE_PROVIDER);
	assert_true(fix.result.is_unknown);
	assert_int_equal(atomic_load(&n_seen), 2);
	stop(&fix);
}

static bool respond_skewed(struct fix_conn *conn)
{
	if (strstr(conn->head, "x-amz-date: 2031"))
		return respond_page(conn, 1, NULL);
	return refuse(conn, "400 Bad\r\ndate: Thu, 02 Jan 2031 03:04:05 GMT", "RequestExpired");
}

static void test_skew(void **state)
{
	struct fix fix;

	start(&fix, respond_skewed);
	struct aws_request request = request_of(&fix);
	run(&fix, &request, E_NONE);
	/* The correction stays. */
	run(&fix, &request, E_NONE);
	assert_int_equal(atomic_load(&fix.server->n_requests), 3);
	stop(&fix);
}

static void test_cancel(void **state)
{
	AUTO_ERR struct err err = {0};
	struct fix fix;

	start(&fix, respond_never);
	struct aws_request request = request_of(&fix);
	aws_cancel(aws_start(fix.aws, &request));
	aws_cancel(NULL);
	assert_int_equal(loop_run(fix.loop, &err), 0);
	/* Calls that are left end with the client. */
	aws_start(fix.aws, &request);
	stop(&fix);
	assert_int_equal(fix.n_done, 0);
}

static void test_endpoints(void **state)
{
	static const struct {
		const char *variable;
		bool is_good;
	} cases[] = {
		{"AWS_ENDPOINT_URL=https://aws.example/base", true},
		{"AWS_ENDPOINT_URL_EC2=http://localhost:1", true},
		{"AWS_ENDPOINT_URL=http://aws.example", false},
		{"AWS_ENDPOINT_URL_EC2=ftp://localhost", false},
		{"AWS_ENDPOINT_URL_AUTO_SCALING=https://aws.example/?a=b", false},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const char *env[] = {cases[i].variable, NULL};
		AUTO_ERR struct err err = {0};
		AUTO_AWS struct aws *aws = NULL;

		int r = aws_open(NULL, NULL, env, &aws, &err);
		if ((r == 0) != cases[i].is_good)
			fail_msg("%s", cases[i].variable);
		assert_int_equal(err.id, cases[i].is_good ? E_NONE : E_SCALE_SETTINGS);
	}
	assert_true(aws_is_region("us-gov-west-1"));
	assert_false(aws_is_region(""));
	assert_false(aws_is_region("us-east-1.evil.example/"));
	assert_false(aws_is_region("US-EAST-1"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pages),
		cmocka_unit_test(test_list_without_end),
		cmocka_unit_test(test_faults_pass),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_no_time_left),
		cmocka_unit_test(test_silence),
		cmocka_unit_test(test_once),
		cmocka_unit_test(test_skew),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_endpoints),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
