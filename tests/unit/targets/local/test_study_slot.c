/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/attemptfix.h"

#include "targets/local/study_slot.h"

/*
 * Members of one study, each with a supervisor of its own. A member writes "b I" into the log of
 * the study when it begins, waits for go.I, and writes "e I".
 */

#define STUDY "tiger-4k2x9"

enum { MEMBERS = 30 };

struct members {
	char *base;
	char *slots;
	struct place at[MEMBERS];
	struct spec_study study; /* of the members that are made next */
};

static int members_setup(void **state)
{
	struct members *members = mem_alloc(1, sizeof(*members));

	members->base = mem_strdup("/tmp/dlrun-test-slots-XXXXXX");
	if (!mkdtemp(members->base))
		return -1;
	members->slots = mem_printf("%s/studies/" STUDY "/slots", members->base);
	members->study = (struct spec_study){.size = MEMBERS, .parallel = 1};
	*state = members;
	return 0;
}

static void go_on(struct members *members, int index)
{
	AUTO_FREE char *name = mem_printf("go.%d", index);

	write_file(members->base, name, "", 0600);
}

static int members_teardown(void **state)
{
	struct members *members = *state;

	for (int i = 0; i < MEMBERS; i++) {
		struct place *place = &members->at[i];
		if (place->job.run_id)
			attempt_cancel(place->dir, NULL);
		go_on(members, i);
	}
	for (int i = 0; i < MEMBERS; i++) {
		if (members->at[i].child > 0)
			waitpid(members->at[i].child, NULL, 0);
		attempt_job_done(&members->at[i].job);
		strv_done(&members->at[i].env);
	}
	int r = fs_remove_tree(AT_FDCWD, members->base, NULL);
	free(members->base);
	free(members->slots);
	free(members);
	return r;
}

/* The directory of an attempt of the member, with a tree. */
static void enter_attempt(struct members *members, struct place *place, int attempt)
{
	AUTO_FREE char *tree = NULL;

	snprintf(place->dir, sizeof(place->dir), "%s/runs/%s/attempts/%d", members->base,
		place->job.run_id, attempt);
	place->job.attempt = attempt;
	tree = fs_join(place->dir, ATTEMPT_TREE);
	assert_int_equal(fs_mkdirs(tree, 0700, NULL), 0);
}

/* A member that is not started yet; its program ends with `end` ("exit 3"). */
static struct place *make(struct members *members, int index, const char *end)
{
	struct place *place = &members->at[index];
	char id[RUN_ID_SIZE];

	run_member_id(STUDY, (size_t)index, id);
	place->job = (struct attempt_job){.run_id = mem_strdup(id),
		.spec = {.cwd = mem_strdup("."), .grace_ms = 10000, .study = members->study},
		.slots = mem_strdup(members->slots)};
	place->job.spec.study.id = mem_strdup(STUDY);
	place->job.spec.study.index = index;
	snprintf(place->submit_lock, sizeof(place->submit_lock), "%s/runs/%s/" RUN_SUBMIT_LOCK,
		members->base, id);
	enter_attempt(members, place, 1);
	strv_add(&place->env, "PATH=/usr/local/bin:/usr/bin:/bin");
	strv_addf(&place->env, "BASE=%s", members->base);
	strv_addf(&place->env, "I=%d", index);
	AUTO_FREE char *line =
		mem_printf("echo b $I >> $BASE/log; until test -e $BASE/go.$I; do sleep 0.02; done;"
			   " echo e $I >> $BASE/log; %s",
			end);
	sh(place, line);
	return place;
}

static struct place *begin(struct members *members, int index)
{
	struct place *place = make(members, index, ":");

	start(place);
	return place;
}

static char *study_log(const struct members *members)
{
	AUTO_FREE char *path = mem_printf("%s/log", members->base);
	AUTO_BUF struct buf text = {0};

	return fs_read(path, 1 << 20, &text, NULL, NULL) < 0 ? mem_strdup("") : buf_take(&text);
}

static void expect_study_log(const struct members *members, const char *want)
{
	AUTO_FREE char *log = study_log(members);

	assert_string_equal(log, want);
}

static size_t count_lines(const struct members *members, char kind)
{
	AUTO_FREE char *log = study_log(members);
	size_t n = 0;

	for (const char *s = log; *s; s++)
		n += *s == kind && (s == log || s[-1] == '\n');
	return n;
}

static bool has_begun(const struct members *members, int index)
{
	AUTO_FREE char *log = study_log(members), *line = mem_printf("b %d\n", index);
	const char *at = strstr(log, line);

	return at && (at == log || at[-1] == '\n');
}

static bool waits(const struct place *place, const char *text)
{
	AUTO(target_status_done) struct target_status status = {0};

	observe(place, &status);
	assert_true(status.started_ms == 0 || status.state != RUN_QUEUED);
	return status.state == RUN_QUEUED && str_eq(status.text, text);
}

static bool is_waiting(const struct place *place)
{
	AUTO(target_status_done) struct target_status status = {0};

	observe(place, &status);
	return status.state == RUN_QUEUED;
}

static bool is_slot_held(const struct members *members, int k)
{
	AUTO_FREE char *path = mem_printf("%s/slot.%d", members->slots, k);

	return fs_is_locked(path);
}

/* Dead, or a zombie that its parent has not waited for, which not every system can tell. */
static bool is_gone(pid_t pid)
{
	AUTO_FREE char *path = mem_printf("/proc/%ld/stat", (long)pid);
	AUTO_BUF struct buf text = {0};

	return is_dead(pid) || (fs_read(path, 4096, &text, NULL, NULL) == 0 && text.data &&
				       strstr(text.data, ") Z"));
}

/* Its supervisor, not what works for it. */
static void kill_at_once(struct place *place)
{
	struct attempt_state at;

	assert_true(attempt_state_read(place->dir, &at));
	assert_int_equal(kill(at.supervisor.pid, SIGKILL), 0);
	UNTIL(is_gone(at.supervisor.pid));
}

/*
 * The line
 */

static void test_limit_and_order(void **state)
{
	struct members *members = *state;

	members->study.parallel = 3;
	for (int i = 0; i < 3; i++) {
		begin(members, i);
		UNTIL(has_begun(members, i));
	}
	/* Those who come last are next. */
	for (int i = MEMBERS - 1; i >= 3; i--) {
		begin(members, i);
		UNTIL(is_waiting(&members->at[i]));
	}
	UNTIL(waits(&members->at[3], "waits for a place in study " STUDY ": 3 run"));
	assert_int_equal(count_lines(members, 'b'), 3);
	for (int i = 0; i < MEMBERS; i++) {
		/* All three of them at once in the end, any of them before. */
		int ended = i % 3 == 0 && i + 2 < MEMBERS ? i + 1 : i % 3 == 1 ? i - 1 : i;
		size_t want = i + 4 < MEMBERS ? (size_t)i + 4 : MEMBERS;

		go_on(members, ended);
		expect_end(&members->at[ended], RUN_SUCCEEDED, 0, 0, "Completed");
		UNTIL(count_lines(members, 'b') >= want);
		assert_int_equal(count_lines(members, 'b'), want);
		assert_true(has_begun(members, (int)want - 1));
	}
	assert_int_equal(count_lines(members, 'e'), MEMBERS);
}

/* Nobody looks on, and programs end as they like. */
static void test_limit_of_a_crowd(void **state)
{
	struct members *members = *state;
	size_t now = 0, most = 0;

	members->study.parallel = 3;
	for (int i = 0; i < MEMBERS; i++)
		go_on(members, i);
	for (int i = 0; i < MEMBERS; i++)
		begin(members, i);
	for (int i = 0; i < MEMBERS; i++)
		expect_end(&members->at[i], RUN_SUCCEEDED, 0, 0, "Completed");
	AUTO_FREE char *log = study_log(members);
	for (const char *s = log; *s; s = strchr(s, '\n') + 1) {
		now = *s == 'b' ? now + 1 : now - 1;
		most = now > most ? now : most;
	}
	assert_int_equal(count_lines(members, 'e'), MEMBERS);
	assert_in_range(most, 1, 3);
}

static void test_words(void **state)
{
	struct members *members = *state;

	begin(members, 0);
	UNTIL(has_begun(members, 0));
	begin(members, 1);
	UNTIL(is_waiting(&members->at[1]));
	begin(members, 2);
	UNTIL(waits(&members->at[2], "waits for a place in study " STUDY ": 1 runs, 1 before it"));
	begin(members, 3);
	UNTIL(waits(&members->at[3], "waits for a place in study " STUDY ": 1 runs, 2 before it"));
	UNTIL(waits(&members->at[1], "waits for a place in study " STUDY ": 1 runs"));
	go_on(members, 0);
	UNTIL(has_begun(members, 1));
	/* The one that moves up hears of it, the other looks now and then. */
	UNTIL(waits(&members->at[2], "waits for a place in study " STUDY ": 1 runs"));
	UNTIL(waits(&members->at[3], "waits for a place in study " STUDY ": 1 runs, 1 before it"));
}

static void test_cancel_of_one_that_waits(void **state)
{
	struct members *members = *state;
	AUTO(target_status_done) struct target_status status = {0};

	for (int i = 0; i < 4; i++) {
		begin(members, i);
		UNTIL(i == 0 ? has_begun(members, 0) : is_waiting(&members->at[i]));
	}
	/* First in the line, and in the middle. */
	for (int i = 1; i < 3; i++) {
		assert_int_equal(attempt_cancel(members->at[i].dir, NULL), 0);
		expect_end(&members->at[i], RUN_CANCELLED, 143, 0, "Cancelled");
	}
	observe(&members->at[1], &status);
	assert_string_equal(status.text, "it was cancelled before it had begun");
	assert_int_equal(status.started_ms, 0);
	assert_true(is_waiting(&members->at[3]));
	go_on(members, 0);
	UNTIL(has_begun(members, 3));
	go_on(members, 3);
	expect_end(&members->at[3], RUN_SUCCEEDED, 0, 0, "Completed");
	expect_study_log(members, "b 0\ne 0\nb 3\ne 3\n");
}

static void test_one_that_waits_is_taken_back(void **state)
{
	struct members *members = *state;
	bool taken = true;

	members->study.fail_fast = true;
	for (int i = 0; i < 3; i++) {
		begin(members, i);
		UNTIL(i == 0 ? has_begun(members, 0) : is_waiting(&members->at[i]));
	}
	assert_int_equal(attempt_withdraw(members->at[0].dir, &taken, NULL), 1);
	assert_false(taken);
	UNTIL(attempt_withdraw(members->at[1].dir, &taken, NULL) == 1);
	assert_true(taken);
	expect_end(&members->at[1], RUN_FAILED, 125, 0, "Interrupted");
	assert_int_equal(attempt_withdraw(members->at[1].dir, &taken, NULL), 1);
	assert_true(taken);
	/* That is no failure of the study. */
	go_on(members, 0);
	UNTIL(has_begun(members, 2));
	go_on(members, 2);
	expect_end(&members->at[2], RUN_SUCCEEDED, 0, 0, "Completed");
	expect_study_log(members, "b 0\ne 0\nb 2\ne 2\n");
}

static void test_waiting_is_not_running(void **state)
{
	enum { LIMIT_MS = 300 };
	struct members *members = *state;
	struct place *place;

	begin(members, 0);
	UNTIL(has_begun(members, 0));
	place = make(members, 1, ":");
	place->job.spec.timeout_ms = LIMIT_MS;
	go_on(members, 1);
	start(place);
	UNTIL(is_waiting(place));
	int64_t late_ms = clock_ms() + LIMIT_MS + 1;
	UNTIL(clock_ms() > late_ms);
	assert_true(is_waiting(place));
	go_on(members, 0);
	expect_end(place, RUN_SUCCEEDED, 0, 0, "Completed");
}

static void test_no_limit(void **state)
{
	struct members *members = *state;

	members->study.parallel = 0;
	for (int i = 0; i < 4; i++)
		begin(members, i);
	for (int i = 0; i < 4; i++)
		UNTIL(has_begun(members, i));
}

/*
 * Retries
 */

/* The slot is kept: one with a lower index that waits does not come in between. */
static void test_a_retry_keeps_its_slot(void **state)
{
	struct members *members = *state;
	struct place *place =
		make(members, 1, "test $DLRUN_ATTEMPT = 3 || { rm $BASE/go.$I; exit 1; }");

	place->job.spec.runtime.retries = 5;
	enter_attempt(members, place, 3);
	enter_attempt(members, place, 2);
	enter_attempt(members, place, 1);
	attempt_job_place(&place->job, place->dir);
	start(place);
	UNTIL(has_begun(members, 1));
	begin(members, 0);
	UNTIL(is_waiting(&members->at[0]));
	for (int i = 2; i <= 3; i++) {
		go_on(members, 1);
		UNTIL(count_lines(members, 'b') == (size_t)i);
		assert_true(is_waiting(&members->at[0]));
		assert_true(is_slot_held(members, 0));
	}
	go_on(members, 1);
	UNTIL(has_begun(members, 0));
	expect_study_log(members, "b 1\ne 1\nb 1\ne 1\nb 1\ne 1\nb 0\n");
}

/*
 * Deaths
 */

static void test_death_of_one_that_waits(void **state)
{
	struct members *members = *state;

	for (int i = 0; i < 5; i++) {
		begin(members, i);
		UNTIL(i == 0 ? has_begun(members, 0) : is_waiting(&members->at[i]));
	}
	/* The first one of the line, and one in the middle. */
	kill_at_once(&members->at[1]);
	kill_at_once(&members->at[3]);
	expect_end(&members->at[1], RUN_LOST, 125, 0, "Lost");
	go_on(members, 0);
	UNTIL(has_begun(members, 2));
	go_on(members, 2);
	UNTIL(has_begun(members, 4));
	expect_study_log(members, "b 0\ne 0\nb 2\ne 2\nb 4\n");
}

/* The program has the slot until it is gone. */
static void test_death_beside_a_program(void **state)
{
	struct members *members = *state;
	struct attempt_state at;

	begin(members, 0);
	UNTIL(has_begun(members, 0) && is_running(&members->at[0]));
	begin(members, 1);
	UNTIL(is_waiting(&members->at[1]));
	kill_at_once(&members->at[0]);
	begin(members, 2);
	UNTIL(is_waiting(&members->at[2]));
	assert_true(is_running(&members->at[0]));
	assert_true(is_slot_held(members, 0));
	assert_false(has_begun(members, 1));
	assert_true(attempt_state_read(members->at[0].dir, &at));
	assert_int_equal(kill(-at.program.pid, SIGKILL), 0);
	UNTIL(has_begun(members, 1));
	expect_end(&members->at[0], RUN_LOST, 125, 0, "Lost");
	expect_study_log(members, "b 0\nb 1\n");
}

/* A supervisor that takes over a program knows nothing of its slot, and need not. */
static void test_a_program_that_is_taken_over(void **state)
{
	struct members *members = *state;
	struct attempt_state at;
	pid_t before;

	begin(members, 0);
	UNTIL(has_begun(members, 0) && is_running(&members->at[0]));
	kill_at_once(&members->at[0]);
	waitpid(members->at[0].child, NULL, 0);
	assert_true(attempt_state_read(members->at[0].dir, &at));
	before = at.supervisor.pid;
	start(&members->at[0]);
	UNTIL(attempt_state_read(members->at[0].dir, &at) && at.supervisor.pid != before);
	begin(members, 1);
	UNTIL(is_waiting(&members->at[1]));
	assert_true(is_slot_held(members, 0));
	go_on(members, 0);
	UNTIL(has_begun(members, 1));
	expect_end(&members->at[0], RUN_LOST, 125, 0, "Lost");
}

static void test_death_during_the_setup(void **state)
{
	struct members *members = *state;
	struct place *place = make(members, 0, ":");
	struct attempt_state at;

	place->job.setups = mem_printf("%s/setups", members->base);
	place->job.spec.runtime.setup.run =
		mem_strdup("echo s >> $BASE/log; while :; do sleep 0.02; done");
	place->job.spec.runtime.setup.cwd = mem_strdup(".");
	start(place);
	UNTIL(count_lines(members, 's') == 1);
	begin(members, 1);
	UNTIL(is_waiting(&members->at[1]));
	assert_true(attempt_state_read(place->dir, &at) && at.setup.pid > 0);
	kill_at_once(place);
	begin(members, 2);
	UNTIL(is_waiting(&members->at[2]));
	assert_true(is_slot_held(members, 0));
	assert_int_equal(kill(-at.setup.pid, SIGKILL), 0);
	UNTIL(has_begun(members, 1));
}

/* What is left after a reboot: files that nobody has locked, of members that were before others. */
static void test_after_a_reboot(void **state)
{
	struct members *members = *state;
	AUTO_FREE char *ticket = fs_join(members->slots, "wait.0.1");

	assert_int_equal(fs_mkdirs(members->slots, 0700, NULL), 0);
	write_file(members->slots, "slot.0", "", 0600);
	write_file(members->slots, "wait.0.1", "", 0600);
	write_file(members->slots, "wait.1.1", "", 0600);
	write_file(members->slots, "wait.x", "", 0600);
	write_file(members->slots, "new.1", "", 0600);
	begin(members, 2);
	UNTIL(has_begun(members, 2));
	assert_int_equal(access(ticket, F_OK), -1);
}

static void test_a_line_that_somebody_removes(void **state)
{
	struct members *members = *state;

	begin(members, 0);
	UNTIL(has_begun(members, 0));
	begin(members, 1);
	UNTIL(is_waiting(&members->at[1]));
	AUTO_FREE char *ticket = fs_join(members->slots, "wait.1.1");
	assert_int_equal(unlink(ticket), 0);
	UNTIL(access(ticket, F_OK) == 0);
	begin(members, 2);
	UNTIL(waits(&members->at[2], "waits for a place in study " STUDY ": 1 runs, 1 before it"));
	go_on(members, 0);
	UNTIL(has_begun(members, 1));
}

static void test_a_directory_that_cannot_be_used(void **state)
{
	struct members *members = *state;

	write_file(members->base, "studies", "", 0600);
	begin(members, 0);
	expect_end(&members->at[0], RUN_FAILED, 125, 0, "StartFailed");
	expect_study_log(members, "");
}

/*
 * fail_fast
 */

static void expect_stopped(struct place *place)
{
	AUTO(target_status_done) struct target_status status = {0};

	expect_end(place, RUN_CANCELLED, 143, 0, "Cancelled");
	observe(place, &status);
	assert_string_equal(status.text, "cancelled: tiger-0-4k2x9 failed (--fail-fast)");
	assert_int_equal(status.started_ms, 0);
}

static void test_fail_fast(void **state)
{
	struct members *members = *state;
	AUTO_FREE char *again = NULL;

	members->study.parallel = 2;
	members->study.fail_fast = true;
	start(make(members, 0, "exit 3"));
	UNTIL(has_begun(members, 0));
	begin(members, 1);
	UNTIL(has_begun(members, 1));
	for (int i = 2; i < 6; i++) {
		begin(members, i);
		UNTIL(is_waiting(&members->at[i]));
	}
	go_on(members, 0);
	expect_end(&members->at[0], RUN_FAILED, 3, 0, "Error");
	for (int i = 2; i < 6; i++)
		expect_stopped(&members->at[i]);
	/* One that comes later is not begun either, one that runs goes on. */
	begin(members, 6);
	expect_stopped(&members->at[6]);
	assert_true(is_running(&members->at[1]));
	go_on(members, 1);
	expect_end(&members->at[1], RUN_SUCCEEDED, 0, 0, "Completed");
	/* One that was restarted begins. */
	waitpid(members->at[2].child, NULL, 0);
	enter_attempt(members, &members->at[2], 2);
	go_on(members, 2);
	start(&members->at[2]);
	expect_end(&members->at[2], RUN_SUCCEEDED, 0, 0, "Completed");
	/* So do others, once the one that failed was. */
	again = attempt_sibling(members->at[0].dir, 2);
	assert_int_equal(mkdir(again, 0700), 0);
	go_on(members, 7);
	begin(members, 7);
	expect_end(&members->at[7], RUN_SUCCEEDED, 0, 0, "Completed");
}

/* Without a limit there is no line, but what has not begun does not begin. */
static void test_fail_fast_without_a_limit(void **state)
{
	struct members *members = *state;

	members->study.parallel = 0;
	members->study.fail_fast = true;
	go_on(members, 0);
	start(make(members, 0, "exit 3"));
	expect_end(&members->at[0], RUN_FAILED, 3, 0, "Error");
	begin(members, 1);
	expect_stopped(&members->at[1]);
}

/* A failure that is repeated is none yet, and a cancel is none at all. */
static void test_fail_fast_counts_the_last_attempt(void **state)
{
	struct members *members = *state;
	struct place *place = make(members, 0, "rm $BASE/go.$I; exit 3");

	members->study.fail_fast = place->job.spec.study.fail_fast = true;
	place->job.spec.runtime.retries = 1;
	enter_attempt(members, place, 2);
	enter_attempt(members, place, 1);
	start(place);
	UNTIL(has_begun(members, 0));
	begin(members, 1);
	UNTIL(is_waiting(&members->at[1]));
	assert_int_equal(attempt_cancel(begin(members, 2)->dir, NULL), 0);
	expect_end(&members->at[2], RUN_CANCELLED, 143, 0, "Cancelled");
	go_on(members, 0);
	UNTIL(count_lines(members, 'b') == 2);
	assert_true(is_waiting(&members->at[1]));
	go_on(members, 0);
	expect_stopped(&members->at[1]);
	expect_study_log(members, "b 0\ne 0\nb 0\ne 0\n");
}

static void test_a_mark_that_is_damaged(void **state)
{
	static const char *const bad[] = {
		"", "tiger-0-4k2x9", "x\n/tmp", "\n\n", "tiger-0-4k2x9\n"};
	struct members *members = *state;

	members->study.fail_fast = true;
	assert_int_equal(fs_mkdirs(members->slots, 0700, NULL), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		write_file(members->slots, "failed", bad[i], 0600);
		go_on(members, (int)i);
		begin(members, (int)i);
		expect_end(&members->at[i], RUN_SUCCEEDED, 0, 0, "Completed");
	}
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, members_setup, members_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_limit_and_order),
		TEST(test_limit_of_a_crowd),
		TEST(test_words),
		TEST(test_cancel_of_one_that_waits),
		TEST(test_one_that_waits_is_taken_back),
		TEST(test_waiting_is_not_running),
		TEST(test_no_limit),
		TEST(test_a_retry_keeps_its_slot),
		TEST(test_death_of_one_that_waits),
		TEST(test_death_beside_a_program),
		TEST(test_a_program_that_is_taken_over),
		TEST(test_death_during_the_setup),
		TEST(test_after_a_reboot),
		TEST(test_a_line_that_somebody_removes),
		TEST(test_a_directory_that_cannot_be_used),
		TEST(test_fail_fast),
		TEST(test_fail_fast_without_a_limit),
		TEST(test_fail_fast_counts_the_last_attempt),
		TEST(test_a_mark_that_is_damaged),
	};

	if (argc == 3 && strcmp(argv[1], "__supervise") == 0)
		return run_supervisor(argv[2]);
	if (!os_self_path(self, sizeof(self)) && !realpath(argv[0], self))
		return 1;
	return cmocka_run_group_tests_name("study_slot", tests, NULL, NULL);
}
