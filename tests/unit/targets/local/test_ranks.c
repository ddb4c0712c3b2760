/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/attemptfix.h"

#include "base/data/json.h"
#include "base/loop/loop.h"
#include "base/os/env.h"
#include "core/target/target_work.h"
#include "targets/local/rank_log.h"

/*
 * A run of several nodes on this machine: one program for each, one end for all. This program is
 * its own `dlrun __supervise DIR`.
 */

static void ranks(struct place *place, int nodes, const char *line)
{
	place->job.spec.resources.nodes = nodes;
	strv_add(&place->job.defaults, "MASTER_ADDR=127.0.0.1");
	assert_int_equal(attempt_make_dirs(place->dir, NULL, nodes, NULL), 0);
	sh(place, line);
}

static char *rank_text(const struct place *place, int rank, const char *name)
{
	AUTO_FREE char *file =
		rank ? mem_printf(ATTEMPT_RANKS "/%d/%s", rank, name) : mem_strdup(name);

	return read_text(place, file);
}

/* "succeeded 0 Completed, failed 3 Error" */
static char *ends_of(const struct place *place)
{
	AUTO(target_status_done) struct target_status status = {0};
	AUTO_BUF struct buf out;

	observe(place, &status);
	buf_init(&out, 1 << 16);
	for (const struct json *item = json_first(status.ranks); item; item = json_next(item)) {
		const struct json *exit = json_get(item, "exit");
		buf_addf(&out, "%s%s %lld %s", out.len ? ", " : "", json_get_str(item, "state"),
			(long long)json_get_int(exit, "code", -1), json_get_str(exit, "reason"));
	}
	return buf_take(&out);
}

static void expect_ends(const struct place *place, const char *want)
{
	AUTO_FREE char *ends = ends_of(place);

	assert_string_equal(ends, want);
}

static void expect_text(const struct place *place, const char *want)
{
	AUTO(target_status_done) struct target_status status = {0};

	observe(place, &status);
	assert_string_equal(status.text, want);
}

static void test_variables(void **state)
{
	struct place *place = *state;

	strv_add(&place->env, "NODE_RANK=7");
	strv_add(&place->env, "MASTER_PORT=1");
	strv_add(&place->job.spec.env, "PET_NNODES=9");
	ranks(place, 3,
		"test $MASTER_PORT -gt 1 && test $MASTER_PORT = $PET_MASTER_PORT || exit; "
		"echo $NODE_RANK $NNODES $MASTER_ADDR $PET_NODE_RANK $PET_NNODES; "
		"wc -l <../hostfile");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	for (int i = 0; i < 3; i++) {
		AUTO_FREE char *log = rank_text(place, i, ATTEMPT_LOG);
		AUTO_FREE char *want = mem_printf("%d 3 127.0.0.1 %d 9\n3\n", i, i);
		assert_string_equal(log, want);
	}
	expect_ends(place, "succeeded 0 Completed, succeeded 0 Completed, succeeded 0 Completed");
}

static void test_one_port(void **state)
{
	struct place *place = *state;

	ranks(place, 2, "echo $MASTER_PORT");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	AUTO_FREE char *first = rank_text(place, 0, ATTEMPT_LOG);
	AUTO_FREE char *second = rank_text(place, 1, ATTEMPT_LOG);
	assert_string_equal(first, second);
	assert_true(atoi(first) > 1024);
	/* Its size is written down with a time. */
	AUTO_FREE char *marks = rank_text(place, 1, ATTEMPT_MARKS);
	AUTO_FREE char *want = mem_printf(" %zu\n", strlen(second));
	assert_non_null(strstr(marks, want));
}

static void first_failure(struct place *place)
{
	ranks(place, 3, "echo up; test $NODE_RANK = 1 && exit 7; exec sleep 600");
	start(place);
	expect_end(place, RUN_FAILED, 7, 0, "Error");
	expect_ends(place, "cancelled 143 PeerEnded, failed 7 Error, cancelled 143 PeerEnded");
	expect_text(place, "rank 1: the program exited with 7");
}

static void test_first_failure(void **state)
{
	first_failure(*state);
}

/* One that takes no notice is killed after the grace period. */
static void test_first_failure_is_ignored(void **state)
{
	struct place *place = *state;

	place->job.spec.grace_ms = 200;
	ranks(place, 2,
		"test $NODE_RANK = 0 && { until test -e ../up; do sleep 0.01; done; kill -KILL $$; }; "
		"trap '' TERM; >../up; while :; do sleep 0.1; done");
	start(place);
	expect_end(place, RUN_FAILED, 137, SIGKILL, "Signal");
	expect_ends(place, "failed 137 Signal, cancelled 137 PeerEnded");
	expect_text(place, "rank 0: the program was killed by SIGKILL");
}

/*
 * Roles
 */

static void add_role(struct place *place, const char *name, int nodes, const char *line)
{
	struct role *role = vec_push(&place->job.spec.roles.list);

	*role = (struct role){.name = mem_strdup(name), .nodes = nodes, .gpus = 0, .shell = true};
	strv_add(&role->command, line);
}

static void roles(struct place *place, const char *learner, int actors, const char *line)
{
	add_role(place, "learner", 1, learner);
	add_role(place, "actors", actors, line);
	ranks(place, 1 + actors, "exit 9");
}

static void test_roles(void **state)
{
	static const char line[] =
		"echo $DLRUN_ROLE $DLRUN_ROLE_RANK $DLRUN_ROLE_NODES $NODE_RANK $NNODES "
		"$MASTER_ADDR {learner.0} $DLRUN_ROLE_ACTORS $DLRUN_NODE_ADDRS $X; "
		"echo $MASTER_PORT >../port-$DLRUN_ROLE-$NODE_RANK";
	struct place *place = *state;

	roles(place, line, 2, line);
	strv_add(&place->job.spec.env, "X=run");
	strv_add(&place->job.spec.roles.list.v[1].env, "X={actors.1}");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	AUTO_FREE char *learner = rank_text(place, 0, ATTEMPT_LOG);
	AUTO_FREE char *actor = rank_text(place, 2, ATTEMPT_LOG);
	assert_string_equal(learner, "learner 0 1 0 1 127.0.0.1 127.0.0.1 127.0.0.1,127.0.0.1 "
				     "127.0.0.1 run\n");
	assert_string_equal(actor, "actors 1 2 1 2 127.0.0.1 127.0.0.1 127.0.0.1,127.0.0.1 "
				   "127.0.0.1,127.0.0.1 127.0.0.1\n");
	/* Each role meets at a port of its own. */
	AUTO_FREE char *one = read_text(place, "port-learner-0");
	AUTO_FREE char *two = read_text(place, "port-actors-0");
	AUTO_FREE char *three = read_text(place, "port-actors-1");
	assert_string_not_equal(one, two);
	assert_string_equal(two, three);
}

/* Those that never end by themselves are ended; one has ended well before, and was reaped. */
static void test_roles_end(void **state)
{
	struct place *place = *state;

	roles(place,
		"until test -e ../up-0 -a -s ../up-1 -a -e ../up-2; do sleep 0.01; done; "
		"while test -d /proc/$(cat ../up-1); do sleep 0.01; done",
		3, "echo $$ >../up-$NODE_RANK; test $NODE_RANK = 1 && exit 0; exec sleep 600");
	place->job.spec.roles.ends_with = mem_strdup("learner");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	expect_ends(place, "succeeded 0 Completed, cancelled 143 RoleEnded, succeeded 0 Completed, "
			   "cancelled 143 RoleEnded");
}

/* An actor whose learner has just ended well has not failed, whichever end is told first. */
static void test_roles_lost_peer(void **state)
{
	struct place *place = *state;

	add_role(place, "actors", 1,
		"echo $$ >../actor; until test -e ../learner; do sleep 0.01; done; "
		"p=$(cat ../learner); while test -d /proc/$p && ! grep -q '^State:.Z' /proc/$p/status; "
		"do :; done; exit 5");
	add_role(place, "learner", 1,
		"echo $$ >../learner.new; mv ../learner.new ../learner; "
		"until test -e ../actor; do sleep 0.01; done; sleep 0.2");
	place->job.spec.roles.ends_with = mem_strdup("learner");
	ranks(place, 2, "exit 9");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
}

static void test_role_fails(void **state)
{
	struct place *place = *state;

	roles(place, "exec sleep 600", 2, "test $NODE_RANK = 1 && exit 3; exec sleep 600");
	place->job.spec.roles.ends_with = mem_strdup("learner");
	start(place);
	expect_end(place, RUN_FAILED, 3, 0, "Error");
	expect_text(place, "actors.1: the program exited with 3");
	expect_ends(place, "cancelled 143 PeerEnded, cancelled 143 PeerEnded, failed 3 Error");
}

static void test_deciding_role_fails(void **state)
{
	struct place *place = *state;

	roles(place, "until test -e ../up; do sleep 0.01; done; exit 4", 1,
		">../up; exec sleep 600");
	place->job.spec.roles.ends_with = mem_strdup("learner");
	start(place);
	expect_end(place, RUN_FAILED, 4, 0, "Error");
	expect_text(place, "learner.0: the program exited with 4");
}

static void test_role_without_program(void **state)
{
	struct place *place = *state;

	roles(place, "exec sleep 600", 1, "x");
	place->job.spec.roles.list.v[1].shell = false;
	strv_done(&place->job.spec.roles.list.v[1].command);
	strv_add(&place->job.spec.roles.list.v[1].command, "no-such-program");
	start(place);
	expect_end(place, RUN_FAILED, 127, 0, "NotFound");
	expect_text(place, "actors.0: no-such-program: command not found");
}

/* A rank that is done waits for nobody, and nobody for it. */
static void test_one_is_done_first(void **state)
{
	struct place *place = *state;

	ranks(place, 2, "test $NODE_RANK = 0 && exit; sleep 0.3; exit 4");
	start(place);
	expect_end(place, RUN_FAILED, 4, 0, "Error");
	expect_ends(place, "succeeded 0 Completed, failed 4 Error");
}

static void cancel_now(struct place *place)
{

	assert_int_equal(attempt_cancel(place->dir, NULL), 0);
	assert_false(attempt_is_orphan(place->dir));
}

static void test_cancel(void **state)
{
	struct place *place = *state;

	ranks(place, 2, "echo up; exec sleep 600");
	start(place);
	UNTIL(is_running(place));
	cancel_now(place);
	expect_end(place, RUN_CANCELLED, 143, SIGTERM, "Cancelled");
	expect_ends(place, "cancelled 143 Cancelled, cancelled 143 Cancelled");
}

static void test_limit(void **state)
{
	struct place *place = *state;

	place->job.spec.timeout_ms = 300;
	ranks(place, 2, "exec sleep 600");
	start(place);
	expect_end(place, RUN_FAILED, 124, SIGTERM, "Timeout");
	expect_ends(place, "cancelled 143 Timeout, cancelled 143 Timeout");
}

static void test_signal(void **state)
{
	struct place *place = *state;

	place->job.spec.timeout_ms = 30000;
	place->job.spec.runtime.signal = SIGUSR1;
	place->job.spec.runtime.signal_before_ms = 29500;
	ranks(place, 2, "trap 'echo heard; exit 0' USR1; while :; do sleep 0.05; done");
	start(place);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
	for (int i = 0; i < 2; i++) {
		AUTO_FREE char *log = rank_text(place, i, ATTEMPT_LOG);
		assert_non_null(strstr(log, "heard\n"));
	}
}

static void test_missing_program(void **state)
{
	struct place *place = *state;

	ranks(place, 3, "");
	command(place, "python33");
	start(place);
	expect_end(place, RUN_FAILED, 127, 0, "NotFound");
	expect_log(place, "dlrun: python33: command not found\n");
}

/* Its ranks live on; who cancels the run watches over them. */
static void test_supervisor_is_killed(void **state)
{
	struct place *place = *state;
	struct attempt_state now;

	place->job.spec.grace_ms = 1000;
	ranks(place, 2, "test $NODE_RANK = 0 && exit; exec sleep 600");
	start(place);
	UNTIL(is_running(place) && attempt_state_read(place->dir, &now) && now.n_ranks == 2 &&
		now.ranks[0].state == RUN_SUCCEEDED);
	kill(now.supervisor.pid, SIGKILL);
	UNTIL(!attempt_process_alive(&now.supervisor));
	UNTIL(is_running(place));
	assert_int_equal(attempt_cancel(place->dir, NULL), 0);
	assert_true(attempt_is_orphan(place->dir));
	waitpid(place->child, NULL, 0);
	start(place);
	UNTIL(is_over(place));
	UNTIL(!attempt_process_alive(&now.ranks[1].program));
	expect_ends(place, "succeeded 0 Completed, cancelled 143 Cancelled");
}

static void test_all_are_killed(void **state)
{
	struct place *place = *state;
	struct attempt_state now;

	ranks(place, 2, ">../up$NODE_RANK; exec sleep 600");
	AUTO_FREE char *first = mem_printf("%s/up0", place->dir);
	AUTO_FREE char *second = mem_printf("%s/up1", place->dir);
	start(place);
	UNTIL(access(first, F_OK) == 0 && access(second, F_OK) == 0);
	assert_true(attempt_state_read(place->dir, &now));
	assert_int_equal(now.n_ranks, 2);
	kill(now.supervisor.pid, SIGKILL);
	UNTIL(!attempt_process_alive(&now.supervisor));
	for (int i = 0; i < 2; i++) {
		assert_true(is_running(place));
		kill(now.ranks[i].program.pid, SIGKILL);
		UNTIL(!attempt_process_alive(&now.ranks[i].program));
	}
	UNTIL(is_over(place));
	expect_end(place, RUN_LOST, 125, 0, "Lost");
	expect_ends(place, "lost 125 Lost, lost 125 Lost");
}

static void test_retries(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *again = attempt_sibling(place->dir, 2);
	AUTO(target_status_done) struct target_status status = {0};

	place->job.spec.runtime.retries = 1;
	AUTO_FREE char *tree = fs_join(again, ATTEMPT_TREE);
	assert_int_equal(fs_mkdirs(tree, 0700, NULL), 0);
	ranks(place, 2, "test $NODE_RANK = 1 && mkdir ../../once && exit 3; exit 0");
	start(place);
	expect_end(place, RUN_FAILED, 3, 0, "Error");
	assert_int_equal(attempt_next(place->dir), 2);
	AUTO_FREE char *rank = mem_printf("%s/" ATTEMPT_RANKS "/1", again);
	assert_int_equal(access(rank, F_OK), 0);
	UNTIL((target_status_done(&status), status = (struct target_status){0},
		attempt_end_read(again, &status)));
	assert_int_equal(json_count(status.ranks), 2);
}

/*
 * The output of all of them
 */

struct reader {
	struct loop *loop;
	struct target_call call;
	struct buf out;
	size_t left; /* pieces until it stops; 0: none */
	int status;
};

static int on_piece(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct reader *reader = ctx;

	assert_true(time_ms > 0);
	buf_addf(&reader->out, "%d[%.*s]", rank, (int)len, data);
	if (reader->left && --reader->left == 0)
		return err_set(err, E_IO, "enough");
	return 0;
}

static void on_read(struct target_call *call, int status, struct err *err)
{
	struct reader *reader = CONTAINER_OF(call, struct reader, call);

	reader->status = status;
	loop_stop(reader->loop);
}

/* The caller frees. */
static char *read_ranks(const struct place *place, struct target_log_request request, size_t pieces,
	char token[static TARGET_TOKEN_SIZE])
{
	struct reader reader = {.loop = loop_new(), .call.done = on_read, .left = pieces};
	struct attempt_place where = {
		.dir = (char *)place->dir, .submit_lock = (char *)place->submit_lock};

	buf_init(&reader.out, 1 << 20);
	request.rank = -1;
	request.events = (struct target_log_events){.data = on_piece, .ctx = &reader};
	rank_log_read(reader.loop, &where, 3, &request, token, &reader.call);
	assert_int_equal(loop_run(reader.loop, NULL), 0);
	assert_int_equal(reader.status < 0, pieces != 0);
	loop_free(reader.loop);
	char *text = mem_strdup(reader.out.data);
	buf_done(&reader.out);
	return text;
}

static void write_logs(struct place *place)
{
	ranks(place, 3, "");
	write_file(place->dir, ATTEMPT_LOG, "a\nb\nno end", 0600);
	write_file(place->dir, ATTEMPT_RANKS "/1/" ATTEMPT_LOG, "", 0600);
	write_file(place->dir, ATTEMPT_RANKS "/2/" ATTEMPT_LOG, "c\nd\n", 0600);
}

static void test_logs(void **state)
{
	struct place *place = *state;
	char token[TARGET_TOKEN_SIZE] = "";

	write_logs(place);
	AUTO_FREE char *all =
		read_ranks(place, (struct target_log_request){.tail_lines = -1}, 0, token);
	assert_string_equal(all, "0[a\nb\n]0[no end]2[c\nd\n]");
	AUTO_FREE char *tail =
		read_ranks(place, (struct target_log_request){.tail_lines = 1}, 0, token);
	assert_string_equal(tail, "0[no end]2[d\n]");
}

/* A line that is held back is not behind the token yet. */
static void test_token(void **state)
{
	struct place *place = *state;
	char token[TARGET_TOKEN_SIZE] = "", later[TARGET_TOKEN_SIZE] = "";

	write_logs(place);
	AUTO_FREE char *one =
		read_ranks(place, (struct target_log_request){.tail_lines = -1}, 1, token);
	assert_string_equal(one, "0[a\nb\n]");
	AUTO_FREE char *before =
		read_ranks(place, (struct target_log_request){.tail_lines = -1}, 0, token);
	assert_string_equal(before, "0[a\nb\n]0[no end]2[c\nd\n]");
	write_file(place->dir, ATTEMPT_RANKS "/1/" ATTEMPT_LOG, "new\n", 0600);
	AUTO_FREE char *rest = read_ranks(
		place, (struct target_log_request){.tail_lines = -1, .token = token}, 0, later);
	assert_string_equal(rest, "1[new\n]");
}

/* The logs of further ranks are made when these begin; later a missing one has been removed. */
static void test_logs_before_it_begins(void **state)
{
	struct place *place = *state;
	char token[TARGET_TOKEN_SIZE] = "";
	struct attempt_state now;

	attempt_state_init(&now);
	ranks(place, 3, "");
	write_file(place->dir, ATTEMPT_LOG, "", 0600);
	assert_int_equal(attempt_state_write(place->dir, &now, NULL), 0);
	AUTO_FREE char *text =
		read_ranks(place, (struct target_log_request){.tail_lines = -1}, 0, token);
	assert_string_equal(text, "");
	now.n_ranks = 3;
	assert_int_equal(attempt_state_write(place->dir, &now, NULL), 0);
	AUTO_FREE char *gone =
		read_ranks(place, (struct target_log_request){.tail_lines = -1}, SIZE_MAX, token);
	assert_string_equal(gone, "");
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
#define BARE(fn) cmocka_unit_test_setup_teardown(fn, setup_without_cgroup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_variables),
		TEST(test_one_port),
		TEST(test_first_failure),
		BARE(test_first_failure),
		TEST(test_first_failure_is_ignored),
		BARE(test_first_failure_is_ignored),
		TEST(test_roles),
		TEST(test_roles_end),
		TEST(test_roles_lost_peer),
		TEST(test_role_fails),
		TEST(test_deciding_role_fails),
		TEST(test_role_without_program),
		TEST(test_one_is_done_first),
		TEST(test_cancel),
		BARE(test_cancel),
		TEST(test_limit),
		TEST(test_signal),
		TEST(test_missing_program),
		TEST(test_supervisor_is_killed),
		BARE(test_supervisor_is_killed),
		TEST(test_all_are_killed),
		TEST(test_retries),
		TEST(test_logs),
		TEST(test_logs_before_it_begins),
		TEST(test_token),
	};

	if (argc == 3 && strcmp(argv[1], "__supervise") == 0)
		return run_supervisor(argv[2]);
	if (!os_self_path(self, sizeof(self)) && !realpath(argv[0], self))
		return 1;
	return cmocka_run_group_tests_name("ranks", tests, NULL, NULL);
}
