/* SPDX-License-Identifier: Apache-2.0 */
/* Providers that are programs, with real ones that fail in each way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "app/autoscale/provider.h"
#include "base/loop/loop.h"
#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/str.h"
#include "tests/unit/tmpfix.h"
#include "tests/unit/until.h"

enum { LONG_MS = 60 * 1000 };

struct result {
	struct loop_wait *wait;
	int n_done;
	struct json *response;
	enum scale_failure failure;
	bool is_unknown, is_unsent;
	enum err_id id;
	char *text;
};

static void result_done(struct result *result)
{
	json_free(result->response);
	free(result->text);
}
#define AUTO_RESULT AUTO(result_done)

static int on_done(void *ctx, struct provider_reply *reply, struct err *err)
{
	struct result *result = ctx;

	assert_int_equal(!reply->response, err_is_set(&reply->error));
	result->n_done++;
	result->response = TAKE(reply->response);
	result->failure = reply->failure;
	result->is_unknown = reply->is_unknown;
	result->is_unsent = reply->is_unsent;
	result->id = reply->error.id;
	result->text = mem_strdup(reply->error.message);
	if (result->wait)
		loop_wait_done(result->wait);
	return 0;
}

static int start(void **state)
{
	signal(SIGPIPE, SIG_IGN);
	return make_tmp(state);
}

/* No test leaves a process behind. */
static int end(void **state)
{
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
	return remove_tmp(state);
}

static struct json *request_of(size_t len)
{
	struct json *request = json_object();
	AUTO_FREE char *text = mem_alloc(len + 1, 1);

	memset(text, 'x', len);
	json_set_str(request, "verb", "groups");
	json_set_str(request, "cluster", text);
	return request;
}

static void call_argv(const char *const *argv, const char *const *env, size_t len, int64_t ms,
	struct result *result)
{
	struct loop *loop = loop_new();
	struct provider_programs *programs = provider_programs_new(1);
	struct provider *provider = provider_exec_new(loop, programs, "name", argv, env);
	struct loop_wait wait = {.loop = loop, .n_open = 1};
	AUTO_JSON struct json *request = request_of(len);
	AUTO_ERR struct err err = {0};

	assert_string_equal(provider_name(provider), "name");
	*result = (struct result){.wait = &wait};
	provider_start(provider, request, clock_deadline(ms), on_done, result);
	assert_int_equal(result->n_done, 0);
	assert_int_equal(loop_wait_run(&wait, &err), 0);
	assert_int_equal(result->n_done, 1);
	provider_free(provider);
	provider_programs_free(programs);
	loop_free(loop);
}

static void call_for(const char *script, int64_t ms, struct result *result)
{
	call_argv(
		(const char *[]){"sh", "-c", script, "provider", tmp, NULL}, NULL, 10, ms, result);
}

static void call(const char *script, struct result *result)
{
	call_for(script, LONG_MS, result);
}

/* is_unknown, and a text that ends with this. */
static void check_lost(const char *script, const char *text)
{
	AUTO_RESULT struct result result;

	call(script, &result);
	assert_null(result.response);
	assert_true(result.is_unknown);
	assert_int_equal(result.failure, SCALE_FAILED_OTHER);
	assert_int_equal(result.id, E_SCALE_PROVIDER);
	if (!str_ends(result.text, text))
		fail_msg("'%s' does not end with '%s'", result.text, text);
}

static void check_failure(const char *script, enum scale_failure failure, const char *text)
{
	AUTO_RESULT struct result result;

	call(script, &result);
	assert_null(result.response);
	assert_false(result.is_unknown);
	assert_int_equal(result.failure, failure);
	assert_int_equal(result.id, E_SCALE_PROVIDER);
	assert_string_equal(result.text, text);
}

/* The process id that a program has left in a file. */
static pid_t pid_in(const char *name)
{
	AUTO_FREE char *path = fs_join(tmp, name);
	AUTO_BUF struct buf text = {0};

	assert_int_equal(fs_read(path, 64, &text, NULL, NULL), 0);
	return (pid_t)strtol(text.data, NULL, 10);
}

static bool is_there(const char *name)
{
	AUTO_FREE char *path = fs_join(tmp, name);

	return access(path, F_OK) == 0;
}

/*
 * Responses
 */

static void test_a_request_and_its_response(void **state)
{
	AUTO_RESULT struct result result, with_env;

	call_argv((const char *[]){"cat", NULL}, NULL, 10, LONG_MS, &result);
	assert_string_equal(json_get_str(result.response, "cluster"), "xxxxxxxxxx");
	call_argv((const char *[]){"/bin/sh", "-c", "echo '{\"a\": \"'$WORD'\"}'", NULL},
		(const char *[]){"WORD=from env", NULL}, 10, LONG_MS, &with_env);
	assert_string_equal(json_get_str(with_env.response, "a"), "from env");
}

static void test_one_line_each(void **state)
{
	AUTO_RESULT struct result result;

	call("read -r line; read -r more && exit 1; echo '{\"groups\": []}'; echo; "
	     "echo news >&2",
		&result);
	assert_non_null(json_get(result.response, "groups"));
}

static void test_a_request_over_a_pipe(void **state)
{
	AUTO_RESULT struct result read, unread, closed;

	call_argv((const char *[]){"cat", NULL}, NULL, 3 << 20, LONG_MS, &read);
	assert_int_equal(strlen(json_get_str(read.response, "cluster")), 3 << 20);
	call_argv((const char *[]){"sh", "-c", "echo {}", NULL}, NULL, 3 << 20, LONG_MS, &unread);
	assert_non_null(unread.response);
	call_argv((const char *[]){"sh", "-c", "exec <&-; echo {}", NULL}, NULL, 3 << 20, LONG_MS,
		&closed);
	assert_non_null(closed.response);
}

static void test_a_request_over_the_limit(void **state)
{
	AUTO_RESULT struct result result;

	call_argv((const char *[]){"cat", NULL}, NULL, PROVIDER_RESPONSE_MAX, LONG_MS, &result);
	assert_null(result.response);
	assert_false(result.is_unknown);
}

static void test_failures(void **state)
{
	check_failure("echo '{\"error\": {\"class\": \"capacity\", \"text\": \"none left\"}}'",
		SCALE_FAILED_CAPACITY, "none left");
	check_failure(
		"printf '%s' '{\"error\": {\"class\": \"other\", \"text\": \"a\\tb\\n\\u001b[1m\"}}'",
		SCALE_FAILED_OTHER, "a b \\x1b[1m");
	check_failure(
		"echo '{\"error\": {\"class\": \"\", \"text\": \"t\"}}'", SCALE_FAILED_OTHER, "t");
	check_failure("echo '{\"error\": {\"class\": \"new\"}}'", SCALE_FAILED_OTHER,
		"no reason was given");
	check_failure("echo '{\"error\": {}}'", SCALE_FAILED_OTHER, "no reason was given");
}

static void test_each_class(void **state)
{
	for (int i = SCALE_FAILED_CAPACITY; i <= SCALE_FAILED_OTHER; i++) {
		AUTO_FREE char *script =
			mem_printf("echo '{\"error\": {\"class\": \"%s\", \"text\": \"t\"}}'",
				scale_failure_names[i]);
		check_failure(script, (enum scale_failure)i, "t");
	}
}

static void test_a_long_text(void **state)
{
	AUTO_RESULT struct result result, last;

	call("printf '{\"error\": {\"class\": \"quota\", \"text\": \"%0600d\"}}' 0", &result);
	assert_int_equal(strlen(result.text), PROVIDER_TEXT_MAX);
	assert_true(str_ends(result.text, "0…"));
	call("printf '%0600d' 0 >&2; exit 1", &last);
	assert_int_equal(strlen(last.text), PROVIDER_TEXT_MAX);
	assert_true(str_starts(last.text, "exit status 1: 000"));
}

static void test_no_response(void **state)
{
	static const char *const texts[] = {"", "{", "[]", "1", "\"text\"", "null", "{} {}",
		"{\"a\": 1, \"a\": 2}", "{\"error\": \"text\"}", "{\"error\": null}",
		"{\"error\": []}"};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		AUTO_FREE char *script = mem_printf("printf '%%s\\n' '%s'", texts[i]);
		check_lost(script, "");
	}
	check_lost("printf '{\"a\": \"\\200\"}'", "");
}

/*
 * Ends
 */

static void test_programs_that_do_not_start(void **state)
{
	AUTO_FREE char *script = fs_join(tmp, "script");
	AUTO_RESULT struct result missing, interpreter;

	call_argv((const char *[]){"/no/such/provider", NULL}, NULL, 10, LONG_MS, &missing);
	assert_false(missing.is_unknown || missing.is_unsent);
	assert_int_equal(missing.failure, SCALE_FAILED_CONFIG);
	assert_non_null(strstr(missing.text, "/no/such/provider"));
	assert_non_null(strstr(missing.text, strerror(ENOENT)));
	assert_int_equal(fs_replace(script, "#!/no/such/shell\n", 17, 0700, FS_SYNC_NONE, NULL), 0);
	call_argv((const char *[]){script, NULL}, NULL, 10, LONG_MS, &interpreter);
	assert_false(interpreter.is_unknown);
	assert_non_null(strstr(interpreter.text, "interpreter"));
}

static void test_exit_statuses(void **state)
{
	check_lost("echo '{}'; exit 3", "exit status 3");
	check_lost("echo one >&2; echo two >&2; echo >&2; exit 1", "exit status 1: two");
	check_lost("printf 'no newline' >&2; exit 1", "exit status 1: no newline");
	check_lost("echo '{}'; kill -9 $$", "killed by SIGKILL");
	check_lost("echo why >&2; kill $$", "killed by SIGTERM: why");
	check_lost("echo '{'; echo why >&2", ": why");
}

static void test_much_on_stderr(void **state)
{
	AUTO_RESULT struct result result;

	call("i=0; while [ $i -lt 2000 ]; do printf '%0100d\\n' $i >&2; i=$((i+1)); done; "
	     "echo {}",
		&result);
	assert_non_null(result.response);
	check_lost("i=0; while [ $i -lt 2000 ]; do printf '%0100d\\n' $i >&2; i=$((i+1)); "
		   "done; echo end >&2; exit 1",
		"exit status 1: end");
}

static void test_much_on_stdout(void **state)
{
	check_lost("yes", "printed more than 8 MiB");
}

static void test_an_ignored_sigchld(void **state)
{
	signal(SIGCHLD, SIG_IGN);
	check_lost("echo {}", "it is not known how it ended");
	signal(SIGCHLD, SIG_DFL);
}

static void test_the_deadline(void **state)
{
	/* On a machine under load a program may have no time even for what it does at its end. */
	for (int64_t ms = 200; !is_there("trapped"); ms *= 2) {
		AUTO_RESULT struct result result;

		assert_true(ms < LONG_MS);
		call_for(
			"trap ': > $1/trapped; exit 0' TERM; echo '{}'; while :; do sleep 0.01; done",
			ms, &result);
		assert_true(result.is_unknown);
		assert_true(str_starts(result.text, "it took longer than "));
	}
}

static void test_a_deadline_in_the_past(void **state)
{
	AUTO_RESULT struct result result;

	call_for("sleep 1000", 0, &result);
	assert_true(result.is_unknown);
}

/* Of two processes that ignore SIGTERM, the second of them a child of the program. */
static void test_a_program_that_stays(void **state)
{
	AUTO_RESULT struct result result;

	call_for(
		"trap '' TERM; sh -c 'echo $$ > $1/new; mv $1/new $1/child; while :; do sleep 1000; "
		"done' x $1 & while :; do sleep 1000; done",
		2000, &result);
	assert_true(result.is_unknown);
	if (is_there("child"))
		UNTIL(!os_process_alive(pid_in("child"), 0));
}

static void test_children_that_hold_the_pipes(void **state)
{
	AUTO_RESULT struct result group, away;

	call("sleep 1000 & echo $! > $1/child; echo '{}'", &group);
	assert_non_null(group.response);
	UNTIL(!os_process_alive(pid_in("child"), 0));
	call("setsid sh -c 'echo $$ > $0/away.new; mv $0/away.new $0/away; exec sleep 1000' $1 & "
	     "until [ -e $1/away ]; do sleep 0.01; done; echo '{}'",
		&away);
	assert_non_null(away.response);
	assert_int_equal(kill(pid_in("away"), SIGKILL), 0);
}

static void test_nothing_is_inherited(void **state)
{
	AUTO_RESULT struct result result;
	int fd = dup2(1, 9);

	assert_int_equal(fd, 9);
	call("if { true >&9; } 2>/dev/null; then echo it is open >&2; exit 1; fi; echo {}",
		&result);
	close(fd);
	assert_non_null(result.response);
}

/*
 * Several calls
 */

enum { CALLS = 40, AT_ONCE = 8 };

static void test_many_at_once(void **state)
{
	struct loop *loop = loop_new();
	struct provider_programs *programs = provider_programs_new(AT_ONCE);
	struct provider *provider =
		provider_exec_new(loop, programs, "cat", (const char *[]){"cat", NULL}, NULL);
	struct loop_wait wait = {.loop = loop, .n_open = CALLS};
	struct result results[CALLS] = {0};

	for (int i = 0; i < CALLS; i++) {
		AUTO_JSON struct json *request = json_object();

		json_set_int(request, "number", i);
		results[i].wait = &wait;
		provider_start(provider, request, clock_deadline(LONG_MS), on_done, &results[i]);
	}
	assert_int_equal(loop_wait_run(&wait, NULL), 0);
	for (int i = 0; i < CALLS; i++) {
		assert_int_equal(json_get_int(results[i].response, "number", -1), i);
		result_done(&results[i]);
	}
	provider_free(provider);
	provider_programs_free(programs);
	loop_free(loop);
}

static const char hanging[] = "echo $$ > $1/pid.new; mv $1/pid.new $1/pid; exec sleep 1000";

/* Providers whose programs run one at a time, and a call of the first, which hangs. */
struct queue {
	struct loop *loop;
	struct provider_programs *programs;
	struct provider *providers[2];
	struct provider_call *hangs;
	struct result result;
};

static struct provider *provider_of(struct queue *queue, const char *script)
{
	return provider_exec_new(queue->loop, queue->programs, "name",
		(const char *[]){"sh", "-c", script, "provider", tmp, NULL}, NULL);
}

static struct provider_call *queue_call(struct queue *queue, int at, int64_t ms, struct result *ret)
{
	AUTO_JSON struct json *request = json_object();

	return provider_start(queue->providers[at], request, clock_deadline(ms), on_done, ret);
}

static void queue_open(struct queue *ret, const char *other)
{
	*ret = (struct queue){.loop = loop_new(), .programs = provider_programs_new(1)};
	ret->providers[0] = provider_of(ret, hanging);
	ret->providers[1] = provider_of(ret, other);
	ret->hangs = queue_call(ret, 0, LONG_MS, &ret->result);
	UNTIL(is_there("pid"));
}

static void queue_close(struct queue *queue)
{
	assert_int_equal(queue->result.n_done, 0);
	provider_free(queue->providers[0]);
	provider_free(queue->providers[1]);
	provider_programs_free(queue->programs);
	loop_free(queue->loop);
}

static void test_a_cancelled_call(void **state)
{
	struct queue queue;

	queue_open(&queue, "");
	provider_cancel(queue.hangs);
	/* The loop has nothing to wait for when the program has ended. */
	assert_int_equal(loop_run(queue.loop, NULL), 0);
	assert_true(kill(pid_in("pid"), 0) < 0);
	queue_close(&queue);
	provider_cancel(NULL);
}

static void test_calls_that_are_left(void **state)
{
	struct queue queue;

	queue_open(&queue, "");
	queue_call(&queue, 0, LONG_MS, &queue.result);
	queue_call(&queue, 1, LONG_MS, &queue.result);
	provider_cancel(queue.hangs);
	queue_close(&queue);
	assert_true(kill(pid_in("pid"), 0) < 0);
	provider_free(NULL);
}

/* Of two providers, in their order; each takes away what only one can have. */
static void test_calls_that_wait(void **state)
{
	struct loop *loop = loop_new();
	struct queue queue = {.loop = loop, .programs = provider_programs_new(1)};
	struct loop_wait wait = {.loop = loop, .n_open = CALLS};
	struct result results[CALLS] = {0};
	AUTO_FREE char *path = fs_join(tmp, "order");
	AUTO_BUF struct buf order = {0}, wanted = buf_with(1 << 16);

	for (int i = 0; i < 2; i++)
		queue.providers[i] = provider_of(&queue,
			"read -r line; mkdir $1/busy || exit 1; echo $line >> $1/order; "
			"rmdir $1/busy; echo '{}'");
	for (int i = 0; i < CALLS; i++) {
		AUTO_JSON struct json *request = json_object();

		json_set_int(request, "n", i);
		buf_addf(&wanted, "{n:%d}\n", i);
		results[i].wait = &wait;
		provider_start(queue.providers[i % 2], request, INT64_MAX, on_done, &results[i]);
	}
	assert_int_equal(loop_wait_run(&wait, NULL), 0);
	for (int i = 0; i < CALLS; i++) {
		assert_non_null(results[i].response);
		result_done(&results[i]);
	}
	assert_int_equal(fs_read(path, 1 << 16, &order, NULL, NULL), 0);
	for (char *s = order.data; (s = strchr(s, '"'));)
		memmove(s, s + 1, strlen(s));
	assert_string_equal(order.data, wanted.data);
	queue_close(&queue);
}

/* The time of a program begins with it, and a call that is given up before leaves no trace. */
static void test_the_time_of_calls_that_wait(void **state)
{
	struct queue queue;
	AUTO_RESULT struct result waits = {0}, cancelled = {0};

	queue_open(&queue, ": >> $1/begun; exec sleep 1000");
	struct provider_call *given_up = queue_call(&queue, 1, LONG_MS, &cancelled);
	queue_call(&queue, 1, 1, &waits);
	assert_int_equal(loop_pause(queue.loop, 100, NULL, NULL), 0);
	assert_int_equal(waits.n_done, 0);
	assert_true(provider_is_waiting(given_up));
	assert_false(provider_is_waiting(queue.hangs));
	provider_cancel(given_up);
	assert_false(is_there("begun"));
	provider_cancel(queue.hangs);
	assert_int_equal(loop_run(queue.loop, NULL), 0);
	assert_int_equal(waits.n_done, 1);
	assert_true(str_starts(waits.text, "it took longer than "));
	assert_true(waits.is_unknown && !waits.is_unsent);
	assert_int_equal(cancelled.n_done, 0);
	queue_close(&queue);
}

static int refuse(void *ctx, struct err *err)
{
	(void)ctx;
	return err_set(err, E_SCALE_LEASE, "it may not begin");
}

static void test_a_call_that_may_not_begin(void **state)
{
	struct queue queue;
	AUTO_RESULT struct result refused = {0}, next = {0};

	queue_open(&queue, "echo begun >> $1/begun; echo '{}'");
	provider_may_begin(queue.hangs, refuse);
	provider_may_begin(queue_call(&queue, 1, LONG_MS, &refused), refuse);
	queue_call(&queue, 1, INT64_MAX, &next);
	provider_cancel(queue.hangs);
	assert_int_equal(loop_run(queue.loop, NULL), 0);
	assert_int_equal(refused.n_done, 1);
	assert_true(refused.is_unsent);
	assert_false(refused.is_unknown);
	assert_string_equal(refused.text, "it may not begin");
	assert_non_null(next.response);
	AUTO_FREE char *path = fs_join(tmp, "begun");
	AUTO_BUF struct buf begun = {0};
	assert_int_equal(fs_read(path, 64, &begun, NULL, NULL), 0);
	assert_string_equal(begun.data, "begun\n");
	queue_close(&queue);
}

struct chain {
	struct provider_programs *programs;
	struct provider *provider;
	struct loop *loop;
	int left;
};

/* The next call, or the end of the provider, from within the end of one. */
static int on_chain(void *ctx, struct provider_reply *reply, struct err *err)
{
	struct chain *chain = ctx;
	AUTO_JSON struct json *request = json_object();

	assert_non_null(reply->response);
	if (chain->left-- > 0)
		provider_start(chain->provider, request, INT64_MAX, on_chain, chain);
	else
		provider_free(chain->provider);
	return 0;
}

static void test_calls_from_within_the_end(void **state)
{
	struct chain chain = {.loop = loop_new(), .left = 3};
	AUTO_JSON struct json *request = json_object();

	chain.programs = provider_programs_new(1);
	chain.provider = provider_exec_new(
		chain.loop, chain.programs, "cat", (const char *[]){"cat", NULL}, NULL);
	provider_start(chain.provider, request, INT64_MAX, on_chain, &chain);
	assert_int_equal(loop_run(chain.loop, NULL), 0);
	assert_int_equal(chain.left, -1);
	provider_programs_free(chain.programs);
	loop_free(chain.loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_request_and_its_response, start, end),
		cmocka_unit_test_setup_teardown(test_one_line_each, start, end),
		cmocka_unit_test_setup_teardown(test_a_request_over_a_pipe, start, end),
		cmocka_unit_test_setup_teardown(test_a_request_over_the_limit, start, end),
		cmocka_unit_test_setup_teardown(test_failures, start, end),
		cmocka_unit_test_setup_teardown(test_each_class, start, end),
		cmocka_unit_test_setup_teardown(test_a_long_text, start, end),
		cmocka_unit_test_setup_teardown(test_no_response, start, end),
		cmocka_unit_test_setup_teardown(test_programs_that_do_not_start, start, end),
		cmocka_unit_test_setup_teardown(test_exit_statuses, start, end),
		cmocka_unit_test_setup_teardown(test_much_on_stderr, start, end),
		cmocka_unit_test_setup_teardown(test_much_on_stdout, start, end),
		cmocka_unit_test_setup_teardown(test_an_ignored_sigchld, start, end),
		cmocka_unit_test_setup_teardown(test_the_deadline, start, end),
		cmocka_unit_test_setup_teardown(test_a_deadline_in_the_past, start, end),
		cmocka_unit_test_setup_teardown(test_a_program_that_stays, start, end),
		cmocka_unit_test_setup_teardown(test_children_that_hold_the_pipes, start, end),
		cmocka_unit_test_setup_teardown(test_nothing_is_inherited, start, end),
		cmocka_unit_test_setup_teardown(test_many_at_once, start, end),
		cmocka_unit_test_setup_teardown(test_a_cancelled_call, start, end),
		cmocka_unit_test_setup_teardown(test_calls_that_are_left, start, end),
		cmocka_unit_test_setup_teardown(test_calls_that_wait, start, end),
		cmocka_unit_test_setup_teardown(test_the_time_of_calls_that_wait, start, end),
		cmocka_unit_test_setup_teardown(test_a_call_that_may_not_begin, start, end),
		cmocka_unit_test_setup_teardown(test_calls_from_within_the_end, start, end),
	};

	return cmocka_run_group_tests_name("provider_exec", tests, NULL, NULL);
}
