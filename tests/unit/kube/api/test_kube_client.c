/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/kubefix.h"

#define POD "{\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"}}"
#define STATUS(code, reason, message)                                                              \
	"{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"reason\":\"" reason   \
	"\",\"message\":\"" message "\",\"code\":" #code "}"

static const struct kube_request get_pod = {
	.method = "GET", .path = "/api/v1/namespaces/jobs/pods/a"};
static const struct kube_request post_job = {
	.method = "POST", .path = "/apis/batch/v1/namespaces/jobs/jobs"};

/* One request to a server with these steps. */
static int one(const struct step *steps, size_t n, const struct kube_request *request,
	struct json **ret, struct err *err)
{
	struct kube kube;
	struct json *json = NULL;

	kube_init(&kube, steps, n);
	kube_connect(&kube);
	int r = kube_query(kube.client, request, &json, err);
	kube_done(&kube);
	if (ret)
		*ret = json;
	else
		json_free(json);
	return r;
}

static int n_requested(void)
{
	return atomic_load(&script.at);
}

/*
 * Requests
 */

static void test_get(void **state)
{
	static const struct step steps[] = {{200, POD}};
	AUTO_KUBE struct kube kube;
	AUTO_JSON struct json *json = NULL;
	const char *const query[] = {"labelSelector", "a=b,c", "watch", "x y", NULL};
	struct kube_request request = get_pod;

	kube_init(&kube, steps, 1);
	kube.access.token = mem_strdup("secret");
	kube.access.as = mem_strdup("boss");
	strv_add(&kube.access.as_groups, "g1");
	strv_add(&kube.access.as_groups, "g2");
	strv_add(&kube.access.as_extra, "a/b=c=d");
	kube_connect(&kube);
	request.query = query;
	assert_int_equal(kube_query(kube.client, &request, &json, NULL), 0);
	assert_string_equal(json_get_str(json, "kind"), "Pod");
	const char *head = kube.server->heads.v[0];
	assert_true(str_starts(head, "GET /base/api/v1/namespaces/jobs/pods/a"
				     "?labelSelector=a%3Db%2Cc&watch=x%20y HTTP/1.1\r\n"));
	assert_non_null(strstr(head, "\r\nAuthorization: Bearer secret\r\n"));
	assert_non_null(strstr(head, "\r\nUser-Agent: dlrun/test\r\n"));
	assert_non_null(strstr(head, "\r\nAccept: application/json\r\n"));
	assert_non_null(strstr(head, "\r\nImpersonate-User: boss\r\n"));
	assert_non_null(strstr(head, "\r\nImpersonate-Group: g1\r\nImpersonate-Group: g2\r\n"));
	assert_non_null(strstr(head, "\r\nImpersonate-Extra-a%2Fb: c=d\r\n"));
	assert_null(strcasestr(head, "\r\nContent-Type:"));
}

static void test_post(void **state)
{
	static const struct step steps[] = {{201, POD}};
	AUTO_KUBE struct kube kube;
	AUTO_JSON struct json *body = json_object();
	struct kube_request request = post_job;

	json_set_str(body, "kind", "Job");
	kube_init(&kube, steps, 1);
	kube.access.username = mem_strdup("u");
	kube.access.password = mem_strdup("p");
	kube_connect(&kube);
	request.body = body;
	assert_int_equal(kube_query(kube.client, &request, NULL, NULL), 0);
	request.method = "PATCH";
	request.content_type = "application/merge-patch+json";
	assert_int_equal(kube_query(kube.client, &request, NULL, NULL), 0);
	assert_string_equal(script.bodies.v[0], "{\"kind\":\"Job\"}");
	assert_non_null(strstr(kube.server->heads.v[0], "\r\nAuthorization: Basic dTpw\r\n"));
	assert_non_null(strstr(kube.server->heads.v[0], "\r\nContent-Type: application/json\r\n"));
	assert_non_null(strstr(
		kube.server->heads.v[1], "\r\nContent-Type: application/merge-patch+json\r\n"));
}

static void test_path(void **state)
{
	AUTO_FREE char *plain = kube_path("/api/v1/namespaces/%s/pods/%s", "jobs", "a-b.c");
	AUTO_FREE char *odd = kube_path("/x/%s/%s", "a/b?c#d%", "..");

	assert_string_equal(plain, "/api/v1/namespaces/jobs/pods/a-b.c");
	assert_string_equal(odd, "/x/a%2Fb%3Fc%23d%25/%2E%2E");
}

/*
 * Refusals
 */

static void refused(
	int status, const char *body, const char *type, enum err_id id, const char *text)
{
	const struct step steps[] = {{status, body, type}};
	AUTO_ERR struct err err = {0};
	struct kube_request request = post_job;

	assert_true(one(steps, 1, &request, NULL, &err) < 0);
	if (err.id != id || !strstr(err.message, text))
		fail_msg("%d: %s: %s", status, err_info(err.id)->name, err.message);
	assert_int_equal(n_requested(), 1);
}

static void test_a_quota_is_of_a_namespace(void **state)
{
	const struct step steps[] = {{403, STATUS(403, "Forbidden", "exceeded quota: gpus")}};
	AUTO_ERR struct err err = {0};
	struct kube_request request = post_job;

	assert_true(one(steps, 1, &request, NULL, &err) < 0);
	assert_string_equal(err.hint, "kubectl describe resourcequota -n jobs");
}

static void test_refusals(void **state)
{
	refused(400, STATUS(400, "BadRequest", "no"), NULL, E_KUBE_INVALID,
		"cannot create jobs in namespace jobs: no");
	refused(401, STATUS(401, "Unauthorized", "Unauthorized"), NULL, E_KUBE_AUTH,
		"does not accept the login of me: Unauthorized");
	refused(403, STATUS(403, "Forbidden", "exceeded quota"), NULL, E_KUBE_DENIED,
		"cannot create jobs in namespace jobs: exceeded quota");
	refused(404, STATUS(404, "NotFound", "none"), NULL, E_KUBE_NOT_FOUND, "none");
	refused(404, "404 page not found\n", "Content-Type: text/plain\r\n", E_KUBE_NOT_FOUND,
		"the server answers 404: 404 page not found");
	refused(409, STATUS(409, "AlreadyExists", "it is"), NULL, E_KUBE_EXISTS, "it is");
	refused(409, STATUS(409, "Other", "it was"), NULL, E_KUBE_CONFLICT, "it was");
	refused(410, STATUS(410, "Expired", "old"), NULL, E_KUBE_GONE, "old");
	refused(429, STATUS(429, "TooManyRequests", "later"), NULL, E_KUBE_BUSY, "later");
	refused(500, STATUS(500, "InternalError", "oops"), NULL, E_KUBE_SERVER, "oops");
	refused(503, "", NULL, E_KUBE_SERVER, "the server answers 503 without a message");
	refused(418, "", NULL, E_KUBE_RESPONSE, "418");
	refused(302, "", "Location: http://127.0.0.1:1/\r\n", E_KUBE_RESPONSE, "302");
	refused(200, STATUS(500, "InternalError", "inside"), NULL, E_KUBE_SERVER, "inside");
	refused(200, "garbage", NULL, E_KUBE_RESPONSE, "not JSON");
	refused(200, "<html>login</html>", NULL, E_KUBE_RESPONSE, "an HTML page");
	refused(403, " <!DOCTYPE html>", NULL, E_KUBE_RESPONSE, "an HTML page");
}

/* What a server says can neither paint the terminal nor fill it. */
static void test_hostile_message(void **state)
{
	AUTO_BUF struct buf body;
	AUTO_ERR struct err err = {0};
	struct step step = {403};

	buf_init(&body, 64 << 10);
	buf_adds(&body, "{\"kind\":\"Status\",\"message\":\"a\\u001b[31m\\nb \\u202e");
	for (int i = 0; i < 5000; i++)
		buf_adds(&body, "x");
	buf_adds(&body, "\"}");
	step.body = body.data;
	assert_true(one(&step, 1, &post_job, NULL, &err) < 0);
	assert_non_null(strstr(err.message, "a\\x1b[31m b "));
	assert_true(strlen(err.message) < 800);
	assert_true(str_is_plain(err.message));
}

static void test_causes(void **state)
{
	static const struct step steps[] = {{422,
		"{\"kind\":\"Status\",\"reason\":\"Invalid\",\"message\":\"bad\",\"details\":{\"causes\":["
		"{\"field\":\"spec.a\",\"message\":\"Required value\"},{\"message\":\"only\"},"
		"{\"field\":\"f\"},{\"field\":\"4\"},{\"field\":\"5\"}]}}"}};
	AUTO_ERR struct err err = {0};

	assert_true(one(steps, 1, &post_job, NULL, &err) < 0);
	assert_int_equal(err.id, E_KUBE_INVALID);
	assert_int_equal(err.n_evidence, 4);
	assert_string_equal(err.evidence[0], "spec.a: Required value");
	assert_string_equal(err.evidence[1], "only");
	assert_string_equal(err.evidence[3], "and 2 more");
}

struct got {
	struct kube *kube;
	int n, status;
	enum err_id id;
	char *reason, *message;
	struct strv warnings;
	struct buf data;
	struct json *object;
};

static int take(void *ctx, struct kube_response *response, struct err *err)
{
	struct got *got = ctx;

	got->n++;
	got->status = response->status;
	got->id = response->error.id;
	got->reason = mem_strdup(response->reason);
	got->message = mem_strdup(response->error.message);
	strv_copy(&got->warnings, &response->warnings);
	got->object = TAKE(response->object);
	loop_stop(got->kube->loop);
	return 0;
}

static void got_done(struct got *got)
{
	free(got->reason);
	free(got->message);
	strv_done(&got->warnings);
	buf_done(&got->data);
	json_free(got->object);
}

static void test_warnings(void **state)
{
	static const struct step steps[] = {{200, POD,
		"Warning: 299 - \"old \\\"x\\\"\", 299 a \"two\\u001b\"\r\nWarning: 199 - \"no\"\r\n"
		"Warning: 299 - \"three\r\nWarning: 299\r\n"}};
	AUTO_KUBE struct kube kube;
	AUTO(got_done) struct got got = {.kube = &kube};
	struct kube_request request = get_pod;

	kube_init(&kube, steps, 1);
	kube_connect(&kube);
	request.done = take;
	request.ctx = &got;
	kube_start(kube.client, &request);
	assert_int_equal(loop_run(kube.loop, NULL), 0);
	assert_int_equal(got.warnings.n, 3);
	assert_string_equal(got.warnings.v[0], "old \"x\"");
	assert_string_equal(got.warnings.v[1], "twou001b");
	assert_string_equal(got.warnings.v[2], "three");
	assert_string_equal(got.reason, "");
}

/*
 * Repetitions
 */

static void test_repeats(void **state)
{
	static const struct step steps[] = {{0}, {503, ""}, {502, "<html>"}, {504, "x"},
		{500, STATUS(500, "InternalError", "etcdserver: leader changed")}, {200, POD}};
	AUTO_ERR struct err err = {0};

	assert_int_equal(one(steps, ARRAY_LEN(steps), &get_pod, NULL, &err), 0);
	assert_int_equal(n_requested(), 6);
}

static void test_lost_reply(void **state)
{
	/* A connection of its own each: on a used one libcurl itself tries again. */
	static const struct step steps[] = {{200, POD, .is_stream = true}, {0}, {201, POD}};
	AUTO_KUBE struct kube kube;
	AUTO_ERR struct err err = {0};
	struct kube_request request = post_job;

	kube_init(&kube, steps, ARRAY_LEN(steps));
	kube_connect(&kube);
	assert_int_equal(kube_query(kube.client, &get_pod, NULL, NULL), 0);
	/* It may have had an effect. */
	assert_true(kube_query(kube.client, &request, NULL, &err) < 0);
	assert_int_equal(err.id, E_KUBE_UNREACHABLE);
	assert_int_equal(n_requested(), 2);
	atomic_store(&script.at, 1);
	request.is_idempotent = true;
	assert_int_equal(kube_query(kube.client, &request, NULL, &err), 0);
	assert_int_equal(n_requested(), 3);
}

/* Others count on the same ResourceQuota; nothing was created. */
static void test_conflict(void **state)
{
	static const char modified[] = STATUS(409, "Conflict",
		"Operation cannot be fulfilled on resourcequotas \\\"q\\\": the object has been "
		"modified; please apply your changes to the latest version and try again");
	static const struct step steps[] = {
		{409, modified}, {409, modified}, {409, STATUS(409, "AlreadyExists", "it is")}};
	AUTO_ERR struct err err = {0};
	struct kube_request put = post_job;

	assert_true(one(steps, 3, &post_job, NULL, &err) < 0);
	assert_int_equal(err.id, E_KUBE_EXISTS);
	assert_int_equal(n_requested(), 3);
	/* A change of what others have changed is not for us to repeat. */
	err_clear(&err);
	put.method = "PUT";
	assert_true(one(steps, 3, &put, NULL, &err) < 0);
	assert_int_equal(err.id, E_KUBE_CONFLICT);
	assert_int_equal(n_requested(), 1);
}

static void test_retry_after(void **state)
{
	static const struct step steps[] = {
		{429, STATUS(429, "TooManyRequests", "later"), "Retry-After: 1\r\n"}, {201, POD}};
	int64_t begin_ms = clock_ms();
	AUTO_ERR struct err err = {0};

	assert_int_equal(one(steps, 2, &post_job, NULL, &err), 0);
	assert_int_equal(n_requested(), 2);
	assert_true(clock_ms() - begin_ms >= 1000);
}

static void test_deadline(void **state)
{
	static const struct step steps[] = {{503, "", "Retry-After: 30\r\n"}};
	AUTO_ERR struct err err = {0};
	struct kube_request request = get_pod;
	int64_t begin_ms = clock_ms();

	request.deadline_ms = clock_ms() + 20000;
	assert_true(one(steps, 1, &request, NULL, &err) < 0);
	assert_int_equal(err.id, E_KUBE_SERVER);
	assert_true(clock_ms() - begin_ms < 10000);
	assert_int_equal(n_requested(), 1);
}

static void test_silence(void **state)
{
	static const struct step steps[] = {{-1}};
	AUTO_ERR struct err err = {0};
	struct kube_request request = get_pod;

	request.deadline_ms = clock_ms() + 300;
	assert_true(one(steps, 1, &request, NULL, &err) < 0);
	assert_int_equal(err.id, E_KUBE_UNREACHABLE);
	assert_non_null(strstr(err.message, "no answer within the time"));
}

/* Whether it told of its waits: a busy machine may leave time for short ones only. */
static bool is_notified_unreachable(void)
{
	static const struct step steps[] = {{200, POD}};
	AUTO_KUBE struct kube kube;
	AUTO_ERR struct err err = {0};
	int64_t begin_ms = clock_ms();

	kube_init(&kube, steps, 1);
	kube.access.server.port = fix_closed_port();
	kube_connect(&kube);
	assert_true(kube_query(kube.client, &get_pod, NULL, &err) < 0);
	assert_int_equal(err.id, E_KUBE_UNREACHABLE);
	assert_non_null(strstr(err.message, "cannot be reached"));
	assert_true(clock_ms() - begin_ms < 15000);
	return kube.notes.n > 0;
}

/* Nobody listens: told before long, though the deadline is far. */
static void test_unreachable(void **state)
{
	bool is_notified = false;

	for (int i = 0; i < 3 && !is_notified; i++)
		is_notified = is_notified_unreachable();
	assert_true(is_notified);
}

static void test_401(void **state)
{
	static const struct step steps[] = {{200, POD}, {401, STATUS(401, "Unauthorized", "no")},
		{200, POD}, {401, ""}, {200, POD}};
	AUTO_KUBE struct kube kube;
	AUTO_ERR struct err err = {0};
	char path[] = "/tmp/dlrun-token-XXXXXX";
	int fd = mkstemp(path);

	assert_int_equal(write(fd, " old\n", 5), 5);
	kube_init(&kube, steps, ARRAY_LEN(steps));
	kube.access.token = mem_strdup("beside");
	kube.access.token_file = mem_strdup(path);
	kube_connect(&kube);
	assert_int_equal(kube_query(kube.client, &post_job, NULL, &err), 0);
	assert_non_null(strstr(kube.server->heads.v[0], "Authorization: Bearer old\r\n"));
	assert_int_equal(pwrite(fd, " new\n", 5, 0), 5);
	/* The file has changed: once more. */
	assert_int_equal(kube_query(kube.client, &post_job, NULL, &err), 0);
	assert_int_equal(n_requested(), 3);
	assert_non_null(strstr(kube.server->heads.v[1], "Authorization: Bearer old\r\n"));
	assert_non_null(strstr(kube.server->heads.v[2], "Authorization: Bearer new\r\n"));
	/* It has not. */
	assert_true(kube_query(kube.client, &post_job, NULL, &err) < 0);
	assert_int_equal(err.id, E_KUBE_AUTH);
	assert_int_equal(n_requested(), 4);
	/* Gone: what was read last is used. */
	unlink(path);
	close(fd);
	assert_int_equal(kube_query(kube.client, &post_job, NULL, &err), 0);
}

static void test_no_token_file(void **state)
{
	static const struct step steps[] = {{200, POD}};
	AUTO_KUBE struct kube kube;
	AUTO_ERR struct err err = {0};

	kube_init(&kube, steps, 1);
	kube.access.token_file = mem_strdup("/nowhere/token");
	kube_connect(&kube);
	assert_true(kube_query(kube.client, &post_job, NULL, &err) < 0);
	assert_int_equal(err.id, E_KUBE_AUTH);
	assert_int_equal(n_requested(), 0);
}

/*
 * Streams
 */

static int add_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct got *got = ctx;

	buf_add(&got->data, data, len);
	return 0;
}

static void test_stream(void **state)
{
	static const struct step steps[] = {{503, ""}, {200, "line\n", .is_stream = true},
		{200, "part", .is_stream = true, .headers = "Transfer-Encoding: chunked\r\n"}};
	AUTO_KUBE struct kube kube;
	AUTO(got_done) struct got got = {.kube = &kube}, cut = {.kube = &kube};
	struct kube_request request = get_pod;

	kube_init(&kube, steps, ARRAY_LEN(steps));
	kube_connect(&kube);
	buf_init(&got.data, 1000);
	buf_init(&cut.data, 1000);
	request.data = add_data;
	request.done = take;
	request.ctx = &got;
	kube_start(kube.client, &request);
	assert_int_equal(loop_run(kube.loop, NULL), 0);
	assert_int_equal(got.status, 200);
	assert_int_equal(got.id, E_NONE);
	assert_string_equal(got.data.data, "line\n");
	assert_null(got.object);
	request.ctx = &cut;
	kube_start(kube.client, &request);
	assert_int_equal(loop_run(kube.loop, NULL), 0);
	assert_int_equal(cut.n, 1);
	assert_true(cut.id != E_NONE);
}

/*
 * Lists
 */

static void list(struct kube *kube, size_t max, struct got *got)
{
	const char *const query[] = {"labelSelector", "x", NULL};

	got->kube = kube;
	kube_list(kube->client, "/api/v1/pods", query, max, 0, take, got);
	assert_int_equal(loop_run(kube->loop, NULL), 0);
}

static void listed(const struct got *got, const char *expected)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 1000);
	json_print(got->object, &out);
	assert_string_equal(out.data, expected);
}

#define PAGE(rv, next, items)                                                                      \
	"{\"kind\":\"PodList\",\"metadata\":{\"resourceVersion\":\"" rv "\",\"continue\":\"" next  \
	"\"},\"items\":" items "}"

static void test_list(void **state)
{
	static const struct step steps[] = {{200, PAGE("7", "a b", "[1,2]")}, {503, ""},
		{200, PAGE("8", "c", "[3]")}, {200, PAGE("9", "", "[4]")}};
	AUTO_KUBE struct kube kube;
	AUTO(got_done) struct got got = {0};

	kube_init(&kube, steps, ARRAY_LEN(steps));
	kube_connect(&kube);
	list(&kube, 4, &got);
	listed(&got, "{\"kind\":\"PodList\",\"metadata\":{\"resourceVersion\":\"7\"},"
		     "\"items\":[1,2,3,4]}");
	assert_true(str_starts(
		kube.server->heads.v[0], "GET /base/api/v1/pods?labelSelector=x&limit=500 "));
	assert_true(str_starts(kube.server->heads.v[2],
		"GET /base/api/v1/pods?labelSelector=x&limit=500&continue=a%20b "));
}

static void test_list_expired(void **state)
{
	static const struct step steps[] = {{200, PAGE("1", "a", "[1]")},
		{410, STATUS(410, "Expired", "too old")}, {200, PAGE("2", "b", "[2]")},
		{200, PAGE("2", "", "[3]")}};
	AUTO_KUBE struct kube kube;
	AUTO(got_done) struct got got = {0};

	kube_init(&kube, steps, ARRAY_LEN(steps));
	kube_connect(&kube);
	list(&kube, 10, &got);
	listed(&got, "{\"kind\":\"PodList\",\"metadata\":{\"resourceVersion\":\"2\"},"
		     "\"items\":[2,3]}");
}

static void test_list_bad(void **state)
{
	static const struct step expires[] = {{200, PAGE("1", "a", "[1]")}, {410, ""},
		{200, PAGE("1", "a", "[1]")}, {410, ""}, {200, PAGE("1", "a", "[1]")}, {410, ""},
		{200, PAGE("1", "a", "[1]")}, {410, ""}, {200, PAGE("1", "", "[]")}};
	const struct {
		const struct step *steps;
		size_t n;
		enum err_id id;
	} rows[] = {
		{(const struct step[]){
			 {200, PAGE("1", "a", "[1,2]")}, {200, PAGE("1", "b", "[3]")}},
			2, E_DATA_LIMIT},
		{(const struct step[]){{200, PAGE("1", "a", "[]")}}, 1, E_KUBE_RESPONSE},
		{(const struct step[]){{200, PAGE("1", "", "{}")}}, 1, E_KUBE_RESPONSE},
		{(const struct step[]){{200, ""}}, 1, E_KUBE_RESPONSE},
		{(const struct step[]){{410, ""}}, 1, E_KUBE_GONE},
		{expires, ARRAY_LEN(expires), E_KUBE_GONE},
		{(const struct step[]){{200, PAGE("1", "", "null")}}, 1, E_NONE},
		{(const struct step[]){{200, "{\"metadata\":{}}"}}, 1, E_NONE},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_KUBE struct kube kube;
		AUTO(got_done) struct got got = {0};

		kube_init(&kube, rows[i].steps, rows[i].n);
		kube_connect(&kube);
		list(&kube, 2, &got);
		if (got.id != rows[i].id)
			fail_msg("row %zu: %s", i, got.message);
		assert_int_equal(got.object && !json_get(got.object, "items"), 0);
	}
}

/*
 * Upgrades
 */

struct upgraded {
	struct kube *kube;
	struct stream *stream;
	enum err_id id;
	char *message;
};

static int on_upgraded(
	void *ctx, struct stream *stream, struct kube_response *response, struct err *err)
{
	struct upgraded *upgraded = ctx;

	upgraded->stream = stream;
	upgraded->id = response->error.id;
	free(upgraded->message);
	upgraded->message = mem_strdup(response->error.message);
	loop_stop(upgraded->kube->loop);
	return 0;
}

static void upgrade(struct kube *kube, struct upgraded *ret)
{
	AUTO_STRV struct strv headers = {0};
	const char *const query[] = {"command", "a b", "command", "c", NULL};
	const struct kube_upgrade_request request = {.method = "GET",
		.path = "/api/v1/namespaces/j/pods/p/exec",
		.query = query,
		.protocol = "websocket",
		.headers = &headers,
		.done = on_upgraded,
		.ctx = ret};

	strv_add(&headers, "Sec-WebSocket-Version: 13");
	ret->kube = kube;
	kube_upgrade(kube->client, &request);
	assert_int_equal(loop_run(kube->loop, NULL), 0);
}

static void test_upgrade(void **state)
{
	static const struct step steps[] = {{401, ""},
		{101, "hello", "Connection: Upgrade\r\nUpgrade: websocket\r\n", .is_switch = true,
			.is_silent = true},
		{403, STATUS(403, "Forbidden", "not in this pod")}, {200, POD}, {503, ""}};
	AUTO_KUBE struct kube kube;
	struct upgraded upgraded = {0};
	char path[] = "/tmp/dlrun-token-XXXXXX";
	AUTO_FD int fd = mkstemp(path);
	char said[16] = {0};

	assert_int_equal(write(fd, "old", 3), 3);
	kube_init(&kube, steps, ARRAY_LEN(steps));
	kube.access.token_file = mem_strdup(path);
	kube_connect(&kube);
	assert_int_equal(pwrite(fd, "new", 3, 0), 3);
	upgrade(&kube, &upgraded);
	if (!upgraded.stream)
		fail_msg("%s", upgraded.message);
	const char *head = kube.server->heads.v[1];
	assert_true(str_starts(
		head, "GET /base/api/v1/namespaces/j/pods/p/exec?command=a%20b&command=c "));
	assert_non_null(strstr(head, "\r\nAuthorization: Bearer new\r\n"));
	assert_non_null(strstr(head, "\r\nUpgrade: websocket\r\n"));
	assert_non_null(strstr(head, "\r\nSec-WebSocket-Version: 13\r\n"));
	for (size_t n = 0; n < 5;) {
		ssize_t r = upgraded.stream->ops->read(
			upgraded.stream, said + n, sizeof(said) - 1 - n, NULL);
		if (r == STREAM_AGAIN) {
			poll(NULL, 0, 5);
			continue;
		}
		assert_true(r > 0);
		n += (size_t)r;
	}
	assert_string_equal(said, "hello");
	stream_free(TAKE(upgraded.stream));
	upgrade(&kube, &upgraded);
	assert_null(upgraded.stream);
	assert_int_equal(upgraded.id, E_KUBE_DENIED);
	upgrade(&kube, &upgraded);
	assert_int_equal(upgraded.id, E_KUBE_RESPONSE);
	upgrade(&kube, &upgraded);
	assert_int_equal(upgraded.id, E_KUBE_SERVER);
	assert_int_equal(n_requested(), 5);
	free(upgraded.message);
	unlink(path);
}

/*
 * Ends
 */

static int never(void *ctx, struct kube_response *response, struct err *err)
{
	fail_msg("done of a call that was given up");
	return 0;
}

static int stop_loop(void *ctx, struct err *err)
{
	loop_stop(ctx);
	return 0;
}

static void test_given_up(void **state)
{
	static const struct step steps[] = {{-1}};
	AUTO_KUBE struct kube kube;
	struct kube_request request = get_pod;

	kube_init(&kube, steps, 1);
	kube_connect(&kube);
	request.done = never;
	struct kube_call *call = kube_start(kube.client, &request);
	kube_start(kube.client, &request);
	kube_list(kube.client, "/api/v1/pods", NULL, 10, 0, never, NULL);
	loop_add_timer(kube.loop, clock_ms() + 50, stop_loop, kube.loop);
	assert_int_equal(loop_run(kube.loop, NULL), 0);
	kube_cancel(call);
	kube_cancel(NULL);
	kube_cancel(kube_start(kube.client, &request));
}

/* The last call frees everything. */
static int free_client(void *ctx, struct kube_response *response, struct err *err)
{
	struct kube *kube = ctx;

	kube_client_free(TAKE(kube->client));
	loop_stop(kube->loop);
	return 0;
}

static void test_freed_in_done(void **state)
{
	static const struct step steps[] = {{200, POD}};
	AUTO_KUBE struct kube kube;
	struct kube_request request = get_pod;

	kube_init(&kube, steps, 1);
	kube_connect(&kube);
	request.done = free_client;
	request.ctx = &kube;
	kube_start(kube.client, &request);
	request.done = never;
	request.path = "/api/v1/pods/late";
	loop_run(kube.loop, NULL);
	assert_null(kube.client);
}

/* Its response is waited for by the end of the client, and other calls are not. */
static void test_detached(void **state)
{
	static const struct step steps[] = {{503}, {200, "{}"}};
	AUTO_KUBE struct kube kube;
	const struct kube_request request = {.method = "DELETE",
		.path = "/api/v1/namespaces/jobs/pods/a",
		.is_idempotent = true,
		.deadline_ms = clock_ms() + 20 * 1000};
	struct kube_request other = get_pod;

	kube_init(&kube, steps, ARRAY_LEN(steps));
	kube_connect(&kube);
	other.done = never;
	kube_start_detached(kube.client, &request);
	assert_int_equal(n_requested(), 0);
	kube_start(kube.client, &other);
	kube_client_free(TAKE(kube.client));
	assert_int_equal(n_requested(), 2);
	assert_true(str_starts(
		kube.server->heads.v[1], "DELETE /base/api/v1/namespaces/jobs/pods/a HTTP/1.1"));
}

static void test_detached_until_its_deadline(void **state)
{
	static const struct step steps[] = {{-1}};
	AUTO_KUBE struct kube kube;
	int64_t begin_ms = clock_ms();
	const struct kube_request request = {
		.method = "DELETE", .path = "/api", .deadline_ms = begin_ms + 300};

	kube_init(&kube, steps, 1);
	kube_connect(&kube);
	kube_start_detached(kube.client, &request);
	kube_client_free(TAKE(kube.client));
	assert_true(clock_ms() - begin_ms >= 300);
}

/* Something else on the loop, which has ended, may stop it. */
static void test_queries_though_others_stop_the_loop(void **state)
{
	static const struct step steps[] = {{200, "{\"a\":1}"}};
	static const struct kube_request request = {.method = "GET", .path = "/api"};
	AUTO_KUBE struct kube kube;
	AUTO_JSON struct json *response = NULL;

	kube_init(&kube, steps, 1);
	kube_connect(&kube);
	loop_add_timer(kube.loop, 0, stop_loop, kube.loop);
	assert_int_equal(kube_query(kube.client, &request, &response, NULL), 0);
	assert_int_equal(json_get_int(response, "a", 0), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_get),
		cmocka_unit_test(test_post),
		cmocka_unit_test(test_path),
		cmocka_unit_test(test_a_quota_is_of_a_namespace),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_hostile_message),
		cmocka_unit_test(test_causes),
		cmocka_unit_test(test_warnings),
		cmocka_unit_test(test_repeats),
		cmocka_unit_test(test_lost_reply),
		cmocka_unit_test(test_conflict),
		cmocka_unit_test(test_retry_after),
		cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_silence),
		cmocka_unit_test(test_unreachable),
		cmocka_unit_test(test_401),
		cmocka_unit_test(test_no_token_file),
		cmocka_unit_test(test_stream),
		cmocka_unit_test(test_list),
		cmocka_unit_test(test_list_expired),
		cmocka_unit_test(test_list_bad),
		cmocka_unit_test(test_upgrade),
		cmocka_unit_test(test_given_up),
		cmocka_unit_test(test_freed_in_done),
		cmocka_unit_test(test_detached),
		cmocka_unit_test(test_detached_until_its_deadline),
		cmocka_unit_test(test_queries_though_others_stop_the_loop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
