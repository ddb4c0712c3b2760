/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/stat.h>

#include "core/attempt/attempt.h"
#include "core/record/spec.h"
#include "targets/kube/kube_archive.h"
#include "tests/unit/kubetarget.h"

/*
 * The logs of an attempt in a cluster: kept here, given up, refused.
 */

#define LINE "2026-11-21T08:21:00.000000001Z one\n"
#define REFUSED                                                                                    \
	"{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\","                       \
	"\"reason\":\"Forbidden\",\"message\":\"no\",\"code\":403}"

#define POD                                                                                        \
	"{\"metadata\":{\"name\":\"p-%d\",\"uid\":\"12345678-%d\",\"resourceVersion\":\"1\","      \
	"\"creationTimestamp\":\"2026-11-21T08:20:00Z\",\"labels\":"                               \
	"{\"batch.kubernetes.io/job-completion-index\":\"%d\"}},\"status\":"                       \
	"{\"phase\":\"Succeeded\",\"containerStatuses\":[{\"name\":\"program\",\"state\":"         \
	"{\"terminated\":{\"exitCode\":0}}}]}}"

static const char *many;    /* items of the list of pods; NULL: one without a rank that runs */
static const char *refused; /* a part of paths, or a method; NULL: nothing is */
static int refusal;

/* Until the client goes away. */
static bool print_stream(struct fix_conn *conn, const char *body)
{
	AUTO_FREE char *text = mem_printf("HTTP/1.1 200 X\r\nConnection: close\r\n\r\n%s", body);

	if (fix_print(conn, text))
		fix_wait_end(conn);
	return false;
}

static bool on_request(struct fix_conn *conn)
{
	static const char pods[] =
		"{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[{\"metadata\":{\"name\":\"p\","
		"\"uid\":\"12345678-1\",\"resourceVersion\":\"1\","
		"\"labels\":{\"jobset.sigs.k8s.io/restart-attempt\":\"2\"},"
		"\"creationTimestamp\":\"2026-11-21T08:20:00Z\"},\"status\":{\"phase\":\"Running\","
		"\"containerStatuses\":[{\"name\":\"program\",\"state\":{\"running\":{}}}]}}]}";
	static const char jobs[] =
		"{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[{\"metadata\":"
		"{\"name\":\"" JOB "\",\"uid\":\"j\",\"resourceVersion\":\"1\"}}]}";

	free(fix_body(conn));
	if (refused && (strstr(conn->path, refused) || str_eq(conn->method, refused)))
		return print_json(conn, refusal, refusal == 403 ? REFUSED : "{}");
	if (strstr(conn->path, "watch=1"))
		return print_stream(conn, "");
	if (strstr(conn->path, "/log?"))
		return strstr(conn->path, "follow=true") ? print_stream(conn, LINE)
							 : print_json(conn, 200, LINE);
	if (str_eq(conn->method, "DELETE"))
		return print_json(conn, 200, "{\"kind\":\"Status\",\"status\":\"Success\"}");
	if (many && strstr(conn->path, "/pods?")) {
		AUTO_FREE char *text = mem_printf(
			"{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[%s]}", many);
		return print_json(conn, 200, text);
	}
	return print_json(conn, 200, strstr(conn->path, "/jobs?") ? jobs : pods);
}

static void begin(struct place *place, const char *refuse)
{
	refused = refuse;
	many = NULL;
	refusal = 403;
	place_init(place, on_request);
}

/* What the attempt's directory has of rank 0; the caller frees. */
static char *text_of(const struct place *place, const char *name)
{
	AUTO_FREE char *dir = dirs_attempt(&place->session.dirs, JOB, 1);
	AUTO_FREE char *path = mem_printf("%s/%s/0/" ATTEMPT_LOG, dir, name);
	AUTO_BUF struct buf text = {0};

	return fs_read(path, 1 << 20, &text, NULL, NULL) < 0 ? NULL : buf_take(&text);
}

/* Until the first line was written down. */
static void wait_for_line(struct place *place)
{
	for (int i = 0; i < 500; i++) {
		AUTO_FREE char *text = text_of(place, ATTEMPT_RANKS ".tmp");
		if (text && *text)
			return;
		run_for(place, 20);
	}
	fail_msg("no line came");
}

static void test_logs_that_are_refused(void **state)
{
	AUTO_PLACE struct place place;
	const struct target_log_request request = {.tail_lines = -1, .rank = -1};
	char token[TARGET_TOKEN_SIZE] = "";

	begin(&place, "/pods?");
	WAITED(logs, &place);
	assert_int_equal(place.target->ops->logs(
				 place.target, place.handle, &request, token, &logs.call, NULL),
		0);
	assert_int_equal(loop_run(place.session.loop, NULL), 0);
	assert_true(logs.over);
	assert_int_equal(logs.status, -ERR_AUTH);
	assert_int_equal(logs.err.id, E_KUBE_DENIED);
	assert_non_null(strstr(logs.err.message, "pods in namespace jobs"));
}

/* Whoever gives up without having cancelled the run must not take what came for its log. */
static void test_a_log_that_is_given_up(void **state)
{
	AUTO_PLACE struct place place;
	AUTO_FREE char *kept = NULL;

	begin(&place, NULL);
	WAITED(keep, &place);
	assert_int_equal(kube_keep(place.target, place.handle, true, &keep.call, NULL), 0);
	wait_for_line(&place);
	target_call_cancel(&keep.call);
	kept = text_of(&place, ATTEMPT_RANKS);
	assert_null(kept);
}

static void test_last_words_of_a_cancelled_run(void **state)
{
	AUTO_PLACE struct place place;
	AUTO_FREE char *kept = NULL;
	struct kube_handle handle;

	begin(&place, NULL);
	WAITED(keep, &place);
	WAITED(cancel, &place);
	assert_int_equal(kube_keep(place.target, place.handle, true, &keep.call, NULL), 0);
	wait_for_line(&place);
	assert_int_equal(
		place.target->ops->cancel(place.target, place.handle, &cancel.call, NULL), 0);
	assert_int_equal(loop_run(place.session.loop, NULL), 0);
	assert_true(cancel.over);
	assert_int_equal(cancel.status, 0);
	assert_int_equal(
		kube_handle_parse(target_kube_of(place.target), place.handle, &handle, NULL), 0);
	assert_true(kube_is_cancelled(target_kube_of(place.target), &handle));
	target_call_cancel(&keep.call);
	kept = text_of(&place, ATTEMPT_RANKS);
	assert_non_null(kept);
	assert_string_equal(kept, "one\n");
}

/* A second one, of this command or of another, must not take away what the first has. */
static void test_two_keep_at_once(void **state)
{
	AUTO_PLACE struct place place;
	AUTO_FREE char *text = NULL;

	begin(&place, NULL);
	WAITED(first, &place);
	WAITED(second, &place);
	assert_int_equal(kube_keep(place.target, place.handle, true, &first.call, NULL), 0);
	wait_for_line(&place);
	assert_int_equal(kube_keep(place.target, place.handle, false, &second.call, NULL), 0);
	assert_int_equal(loop_run(place.session.loop, NULL), 0);
	assert_true(second.over);
	assert_int_equal(second.status, 0);
	assert_false(first.over);
	text = text_of(&place, ATTEMPT_RANKS ".tmp");
	assert_non_null(text);
	assert_string_equal(text, "one\n");
}

static bool has_rank(const struct place *place, int rank)
{
	AUTO_FREE char *dir = dirs_attempt(&place->session.dirs, JOB, 1);
	AUTO_FREE char *path = mem_printf("%s/" ATTEMPT_RANKS "/%d/" ATTEMPT_LOG, dir, rank);
	AUTO_BUF struct buf text = {0};

	return fs_read(path, 1 << 20, &text, NULL, NULL) == 0 && str_eq(text.data, "one\n");
}

static void add_pod(struct buf *pods, int rank)
{
	buf_addf(pods, "%s" POD, pods->len ? "," : "", rank, rank, rank);
}

/* More than have their files open at a time, and up to the ceiling. */
static void test_many_ranks(void **state)
{
	static const int high[] = {255, 256, KUBE_ARCHIVE_RANKS_MAX - 1, KUBE_ARCHIVE_RANKS_MAX};
	enum { LOW = 140 };
	AUTO_PLACE struct place place;
	AUTO_BUF struct buf pods = {0};

	begin(&place, NULL);
	buf_init(&pods, 1 << 20);
	for (int i = 0; i < LOW; i++)
		add_pod(&pods, i);
	for (size_t i = 0; i < ARRAY_LEN(high); i++)
		add_pod(&pods, high[i]);
	many = pods.data;
	WAITED(keep, &place);
	assert_int_equal(kube_keep(place.target, place.handle, false, &keep.call, NULL), 0);
	assert_int_equal(loop_run(place.session.loop, NULL), 0);
	assert_true(keep.over);
	if (keep.status < 0)
		fail_msg("%s", keep.err.message);
	for (int i = 0; i < LOW; i++)
		assert_true(has_rank(&place, i));
	for (size_t i = 0; i < ARRAY_LEN(high); i++)
		assert_int_equal(has_rank(&place, high[i]), high[i] < KUBE_ARCHIVE_RANKS_MAX);
	many = NULL;
}

static int on_log_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	buf_add(ctx, data, len);
	return 0;
}

static void read_log(struct place *place, const char *read_token, const char *expected)
{
	AUTO_BUF struct buf text;
	char token[TARGET_TOKEN_SIZE] = "";
	const struct target_log_request request = {.token = read_token,
		.tail_lines = -1,
		.rank = -1,
		.events = {.data = on_log_data, .ctx = &text}};
	WAITED(logs, place);

	buf_init(&text, 10000);
	assert_int_equal(place->target->ops->logs(
				 place->target, place->handle, &request, token, &logs.call, NULL),
		0);
	assert_int_equal(loop_run(place->session.loop, NULL), 0);
	assert_true(logs.over);
	assert_int_equal(logs.status, 0);
	assert_string_equal(text.data ? text.data : "", expected);
}

/* A place in the live log is none in what is kept. */
static void test_a_kept_log_is_read_from_its_start(void **state)
{
	AUTO_PLACE struct place place;

	begin(&place, NULL);
	AUTO_FREE char *dir = dirs_attempt(&place.session.dirs, JOB, 1);
	AUTO_FREE char *rank = fs_join(dir, ATTEMPT_RANKS "/0");
	AUTO_FREE char *log = fs_join(rank, ATTEMPT_LOG);
	assert_int_equal(fs_mkdirs(rank, 0700, NULL), 0);
	assert_int_equal(fs_replace(log, "kept\n", 5, 0600, FS_SYNC_NONE, NULL), 0);
	read_log(&place, NULL, "kept\n");
	read_log(&place, "0=x", "one\n");
}

/* A run that the server did not let us cancel is not taken for a cancelled one later. */
static void test_a_cancel_that_is_refused(void **state)
{
	AUTO_PLACE struct place place;
	struct kube_handle handle;

	begin(&place, "DELETE");
	WAITED(cancel, &place);
	assert_int_equal(
		place.target->ops->cancel(place.target, place.handle, &cancel.call, NULL), 0);
	assert_int_equal(loop_run(place.session.loop, NULL), 0);
	assert_true(cancel.over);
	assert_int_equal(cancel.status, -ERR_AUTH);
	assert_int_equal(
		kube_handle_parse(target_kube_of(place.target), place.handle, &handle, NULL), 0);
	assert_false(kube_is_cancelled(target_kube_of(place.target), &handle));
}

/* A list is never missing: what says so stands in front of the cluster, and knows no run. */
static void test_a_list_that_is_not_found(void **state)
{
	AUTO_PLACE struct place place;
	AUTO(target_status_done) struct target_status status = {0};

	begin(&place, "/jobs?");
	refusal = 404;
	WAITED(observe, &place);
	assert_int_equal(
		place.target->ops->state(place.target, place.handle, &status, &observe.call, NULL),
		0);
	assert_int_equal(loop_run(place.session.loop, NULL), 0);
	assert_true(observe.over);
	assert_int_equal(observe.status, -ERR_NOTFOUND);
	assert_int_equal(observe.err.id, E_KUBE_NOT_FOUND);
}

static void on_notice(void *ctx, const char *text)
{
	strv_add(ctx, text);
}

static int on_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	return 0;
}

/* What went with its pods before anybody could read it, now and when the log is kept. */
static void test_restarts_of_a_jobset_are_said(void **state)
{
	AUTO_PLACE struct place place;
	AUTO_STRV struct strv notices = {0};
	const struct target_log_request request = {
		.tail_lines = -1, .rank = -1, .events = {on_data, on_notice, NULL, &notices}};
	char token[TARGET_TOKEN_SIZE] = "";

	begin(&place, NULL);
	target_kube_of(place.target)->takes_jobset = true;
	const struct spec spec = {.resources = {.nodes = 2}, .runtime = {.retries = 3}};
	place.target->ops->prepare(place.target, JOB, 1, &spec, place.handle, NULL);
	for (size_t i = 1; i <= 2; i++) {
		WAITED(logs, &place);
		WAITED(keep, &place);
		assert_int_equal(place.target->ops->logs(place.target, place.handle, &request,
					 token, &logs.call, NULL),
			0);
		assert_int_equal(loop_run(place.session.loop, NULL), 0);
		assert_true(logs.over && logs.status == 0);
		assert_int_equal(notices.n, i);
		assert_non_null(strstr(notices.v[i - 1], "restarted all nodes 2 times"));
		assert_int_equal(kube_keep(place.target, place.handle, false, &keep.call, NULL), 0);
		assert_int_equal(loop_run(place.session.loop, NULL), 0);
		assert_true(keep.over && keep.status == 0);
	}
}

/* What the check has learnt of the cluster counts for gangs with retries only. */
static void test_which_runs_are_jobsets(void **state)
{
	static const struct {
		int nodes, retries;
		bool takes;
		const char *tail;
	} cases[] = {{2, 1, true, "/jobs/jobset/" JOB "-3"}, {2, 1, false, "/jobs/" JOB "-3"},
		{2, 0, true, "/jobs/" JOB "-3"}, {1, 1, true, "/jobs/" JOB "-3"}};
	AUTO_PLACE struct place place;

	begin(&place, NULL);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct spec spec = {.resources = {.nodes = cases[i].nodes},
			.runtime = {.retries = cases[i].retries}};
		char handle[TARGET_HANDLE_SIZE];

		target_kube_of(place.target)->takes_jobset = cases[i].takes;
		assert_int_equal(
			place.target->ops->prepare(place.target, JOB, 3, &spec, handle, NULL), 0);
		assert_string_equal(strchr(handle, '/'), cases[i].tail);
	}
}

struct seen {
	struct buf text;
	struct strv notices, gaps;
};

static int on_seen(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	buf_add(&((struct seen *)ctx)->text, data, len);
	return 0;
}

static void on_seen_notice(void *ctx, const char *text)
{
	strv_add(&((struct seen *)ctx)->notices, text);
}

static void on_seen_gap(void *ctx, const char *text)
{
	strv_add(&((struct seen *)ctx)->gaps, text);
}

static void check_seen(struct place *place, int64_t tail_lines, const char *text, bool lacks_end)
{
	struct seen seen = {0};
	char token[TARGET_TOKEN_SIZE] = "";
	const struct target_log_request request = {.tail_lines = tail_lines,
		.rank = -1,
		.events = {on_seen, on_seen_notice, on_seen_gap, &seen}};
	WAITED(logs, place);

	buf_init(&seen.text, 10000);
	assert_int_equal(place->target->ops->logs(
				 place->target, place->handle, &request, token, &logs.call, NULL),
		0);
	assert_int_equal(loop_run(place->session.loop, NULL), 0);
	assert_true(logs.over && logs.status == 0);
	assert_string_equal(seen.text.data, text);
	bool is_told = seen.gaps.n > 0 &&
		       strstr(seen.gaps.v[seen.gaps.n - 1], "lines after 2026-11-21T08:21");
	assert_int_equal(is_told, lacks_end);
	buf_done(&seen.text);
	strv_done(&seen.notices);
	strv_done(&seen.gaps);
}

/* Its follower went away, its pods too. */
static void test_what_was_followed_is_kept(void **state)
{
	AUTO_PLACE struct place place;
	struct seen seen = {0};
	char token[TARGET_TOKEN_SIZE] = "";
	const struct target_log_request request = {.tail_lines = -1,
		.rank = -1,
		.follow = true,
		.events = {on_seen, on_seen_notice, on_seen_gap, &seen}};

	begin(&place, NULL);
	AUTO_FREE char *dir = dirs_run(&place.session.dirs, JOB);
	AUTO_FREE char *mark = fs_join(dir, RUN_SUBMIT_LOCK);
	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(mark, "", 0, 0600, FS_SYNC_NONE, NULL), 0);
	buf_init(&seen.text, 10000);
	WAITED(follow, &place);
	assert_int_equal(place.target->ops->logs(
				 place.target, place.handle, &request, token, &follow.call, NULL),
		0);
	wait_for_line(&place);
	target_call_cancel(&follow.call);
	assert_string_equal(seen.text.data, "one\n");
	/* The node still has it: it does not come twice. */
	check_seen(&place, -1, "one\n", false);
	many = "";
	check_seen(&place, -1, "one\n", false);
	WAITED(keep, &place);
	assert_int_equal(kube_keep(place.target, place.handle, false, &keep.call, NULL), 0);
	assert_int_equal(loop_run(place.session.loop, NULL), 0);
	assert_true(keep.over && keep.status == 0);
	check_seen(&place, -1, "one\n", true);
	check_seen(&place, 1, "one\n", true);
	many = NULL;
	buf_done(&seen.text);
	strv_done(&seen.notices);
	strv_done(&seen.gaps);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_restarts_of_a_jobset_are_said),
		cmocka_unit_test(test_which_runs_are_jobsets),
		cmocka_unit_test(test_logs_that_are_refused),
		cmocka_unit_test(test_a_log_that_is_given_up),
		cmocka_unit_test(test_last_words_of_a_cancelled_run),
		cmocka_unit_test(test_two_keep_at_once),
		cmocka_unit_test(test_many_ranks),
		cmocka_unit_test(test_a_kept_log_is_read_from_its_start),
		cmocka_unit_test(test_what_was_followed_is_kept),
		cmocka_unit_test(test_a_cancel_that_is_refused),
		cmocka_unit_test(test_a_list_that_is_not_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
