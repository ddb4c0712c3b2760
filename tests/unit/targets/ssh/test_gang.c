/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "targets/ssh/gang.h"

/*
 * Each rank is a word: a (absent), p (prepared yet), q (queued), h (held), g (told to go, not
 * begun), r (running), R (running, its end was asked for), s (succeeded), fCODE@TIME (failed),
 * c@TIME (cancelled by its user), e (ended with another one), o (ended with the run), l@TIME (lost), d (taken back), x
 * (failed to start before it was told to), u (does not answer)
 */

enum { RANKS_MAX = 8 };

struct expected {
	const char *ranks;
	bool is_submitting, is_elsewhere, was_accepted;
	enum run_state state;
	int code;           /* of an end */
	const char *reason; /* NULL: it has not ended */
	const char *steps;  /* a letter for each: . g d e o */
	const char *text;   /* a part of it; NULL: none */
	bool is_cancelling;
	bool has_roles; /* learner.0 is the first, which the run ends with, then actors */
};

static void set_end(struct gang_rank *rank, enum run_state state, int code, const char *reason,
	const char *rest)
{
	rank->status.state = state;
	rank->status.exit =
		(struct run_exit){.known = true, .code = code, .origin = "job", .reason = reason};
	rank->status.ended_ms = *rest == '@' ? strtol(rest + 1, NULL, 10) : 1;
	rank->status.text = mem_strdup(reason);
}

static void set_rank(const char *word, struct gang_rank *rank)
{
	char *rest = NULL;
	long code = word[0] == 'f' ? strtol(word + 1, &rest, 10) : 0;

	rank->is_absent = word[0] == 'a';
	rank->is_held = strchr("h", word[0]) != NULL;
	rank->is_going = strchr("grRsfceol", word[0]) != NULL;
	rank->status.state = strchr("rR", word[0]) ? RUN_RUNNING
			     : word[0] == 'q'      ? RUN_QUEUED
			     : word[0] == 'u'      ? RUN_UNKNOWN
						   : RUN_STARTING;
	rank->status.cancelling = word[0] == 'R';
	if (word[0] == 's')
		set_end(rank, RUN_SUCCEEDED, 0, "Completed", word + 1);
	else if (word[0] == 'f')
		set_end(rank, RUN_FAILED, (int)code, "Error", rest);
	else if (word[0] == 'c')
		set_end(rank, RUN_CANCELLED, 143, "Cancelled", word + 1);
	else if (word[0] == 'e')
		set_end(rank, RUN_CANCELLED, 143, GANG_PEER, "");
	else if (word[0] == 'o')
		set_end(rank, RUN_CANCELLED, 143, GANG_ROLE, "");
	else if (word[0] == 'l')
		set_end(rank, RUN_LOST, 125, "Lost", word + 1);
	else if (word[0] == 'd')
		set_end(rank, RUN_FAILED, 125, "Interrupted", "");
	else if (word[0] == 'x')
		set_end(rank, RUN_FAILED, 125, "StartFailed", "");
}

static size_t set_ranks(const char *words, struct gang_rank *ranks)
{
	static const char *const hosts[RANKS_MAX] = {"h0", "h1", "h2", "h3"};
	AUTO_FREE char *copy = mem_strdup(words);
	char *rest = copy;
	size_t n = 0;

	for (char *word; (word = strsep(&rest, " "));) {
		ranks[n] = (struct gang_rank){.host = hosts[n]};
		set_rank(word, &ranks[n++]);
	}
	return n;
}

static void check_end(const struct expected *expected, const struct target_status *status)
{
	assert_int_equal(status->exit.known, expected->reason != NULL);
	assert_int_equal(run_state_is_final(status->state), expected->reason != NULL);
	if (!expected->reason)
		return;
	assert_string_equal(status->exit.reason, expected->reason);
	assert_int_equal(status->exit.code, expected->code);
	assert_true(status->ended_ms > 0);
}

static void check(const struct expected *expected)
{
	AUTO(target_status_done) struct target_status status = {0};
	struct gang_rank ranks[RANKS_MAX] = {0};
	enum gang_step steps[RANKS_MAX];
	size_t n = set_ranks(expected->ranks, ranks);
	const struct gang_view view = {
		.is_submitting = expected->is_submitting,
		.is_ours = !expected->is_elsewhere,
		.was_accepted = expected->was_accepted,
		.attempt = 1,
		.now_ms = 9999,
		.ends_n = expected->has_roles,
	};
	static const char *const names[RANKS_MAX] = {
		"learner.0", "actors.0", "actors.1", "actors.2"};

	for (size_t i = 0; expected->has_roles && i < n; i++)
		ranks[i].name = names[i];

	gang_evaluate(ranks, n, &view, &status, steps);
	assert_string_equal(run_state_name(status.state), run_state_name(expected->state));
	check_end(expected, &status);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(".gdeo"[steps[i]], expected -> steps[i]);
	if (expected->text)
		assert_non_null(strstr(status.text ? status.text : "", expected->text));
	assert_int_equal(status.cancelling, expected->is_cancelling);
	assert_int_equal(json_count(status.ranks), n);
	for (size_t i = 0; i < n; i++)
		target_status_done(&ranks[i].status);
}

static void check_all(const struct expected *cases, size_t n)
{
	for (size_t i = 0; i < n; i++)
		check(&cases[i]);
}

/* As long as somebody submits it, nobody else does anything. */
static void test_preparing(void **state)
{
	static const struct expected cases[] = {
		{"a a", true, .state = RUN_PREPARING, .steps = ".."},
		{"h a", true, .state = RUN_STARTING, .steps = ".."},
		{"h q", true, .state = RUN_STARTING, .steps = ".."},
		{"h h", true, .state = RUN_STARTING, .steps = ".."},
		{"h x", true, .state = RUN_STARTING, .steps = "..", .text = "StartFailed"},
		{"g h", true, .state = RUN_RUNNING, .steps = ".."},
		/* Seen from another machine: who submits it cannot be seen. */
		{"h a", false, true, .state = RUN_STARTING, .steps = ".."},
		{"h h", false, true, .state = RUN_STARTING, .steps = ".."},
	};

	check_all(cases, ARRAY_LEN(cases));
}

static void test_left(void **state)
{
	static const struct expected cases[] = {
		{"a a", .state = RUN_FAILED, .code = 125, .reason = "Interrupted", .steps = "dd"},
		{"h a", .state = RUN_FAILED, .code = 125, .reason = "Interrupted", .steps = "dd"},
		{"h q p h", .state = RUN_FAILED, .code = 125, .reason = "Interrupted",
			.steps = "dddd"},
		{"d d", .state = RUN_FAILED, .code = 125, .reason = "Interrupted", .steps = "..",
			.text = "stopped before"},
		/* Nothing has run, whatever one of them says. */
		{"h x", .state = RUN_FAILED, .code = 125, .reason = "Interrupted", .steps = "d.",
			.text = "rank 1 on h1"},
		{"d d", false, true, .state = RUN_FAILED, .code = 125, .reason = "Interrupted",
			.steps = ".."},
	};

	check_all(cases, ARRAY_LEN(cases));
}

/* One that was told to go is enough: the others are told, too. */
static void test_going(void **state)
{
	static const struct expected cases[] = {
		{"g h", .state = RUN_RUNNING, .steps = ".g"},
		{"r h h", .state = RUN_RUNNING, .steps = ".gg"},
		{"h s", .state = RUN_RUNNING, .steps = "g."},
		{"r r", .state = RUN_RUNNING, .steps = ".."},
		{"r s", .state = RUN_RUNNING, .steps = ".."},
		{"r u", .state = RUN_RUNNING, .steps = ".."},
		{"R r", .state = RUN_RUNNING, .steps = "..", .is_cancelling = true},
		{"s s", .state = RUN_SUCCEEDED, .code = 0, .reason = "Completed", .steps = ".."},
	};

	check_all(cases, ARRAY_LEN(cases));
}

static void test_ends(void **state)
{
	static const struct expected cases[] = {
		{"r f7@5", .state = RUN_RUNNING, .steps = "e.", .text = "rank 1 on h1",
			.is_cancelling = true},
		{"R f7@5 r", .state = RUN_RUNNING, .steps = "..e", .is_cancelling = true},
		{"e f7@5", .state = RUN_FAILED, .code = 7, .reason = "Error", .steps = ".."},
		{"f3@9 f7@5", .state = RUN_FAILED, .code = 7, .reason = "Error", .steps = ".."},
		{"f3@4 f7@5", .state = RUN_FAILED, .code = 3, .reason = "Error", .steps = ".."},
		{"s f7@5", .state = RUN_FAILED, .code = 7, .reason = "Error", .steps = ".."},
		{"h f7@5", .state = RUN_RUNNING, .steps = "e.", .is_cancelling = true},
		{"r l@5", .state = RUN_RUNNING, .steps = "e.", .is_cancelling = true},
		{"e l@5", .state = RUN_LOST, .code = 125, .reason = "Lost", .steps = ".."},
		{"f1@6 l@5", .state = RUN_LOST, .code = 125, .reason = "Lost", .steps = ".."},
		{"c@5 c@5", .state = RUN_CANCELLED, .code = 143, .reason = "Cancelled",
			.steps = ".."},
		{"c@5 f1@6", .state = RUN_CANCELLED, .code = 143, .reason = "Cancelled",
			.steps = ".."},
		{"e e", .state = RUN_CANCELLED, .code = 143, .reason = "Cancelled", .steps = ".."},
		{"e s", .state = RUN_CANCELLED, .code = 143, .reason = "Cancelled", .steps = ".."},
		/* The directory is not there any more. */
		{"r a", .state = RUN_RUNNING, .steps = "e.", .text = "h1 no longer",
			.is_cancelling = true},
		{"e a", .state = RUN_LOST, .code = 125, .reason = "Lost", .steps = ".."},
		{"a a", .was_accepted = true, .state = RUN_LOST, .code = 125, .reason = "Lost",
			.steps = ".."},
		{"f7@5 a", .state = RUN_FAILED, .code = 7, .reason = "Error", .steps = ".."},
	};

	check_all(cases, ARRAY_LEN(cases));
}

/* The run ends with its learner. It is 9999 by now. */
static void test_role_that_ends_it(void **state)
{
	static const struct expected cases[] = {
		{"r r r", .has_roles = true, .state = RUN_RUNNING, .steps = "..."},
		{"s@5000 r r", .has_roles = true, .state = RUN_RUNNING, .steps = ".oo"},
		{"s@5000 R h", .has_roles = true, .state = RUN_RUNNING, .steps = "..o"},
		{"s@5000 o u", .has_roles = true, .state = RUN_RUNNING, .steps = "..o"},
		{"s@5000 o o", .has_roles = true, .state = RUN_SUCCEEDED, .code = 0,
			.reason = "Completed", .steps = "..."},
		{"s@5000 s@3 o", .has_roles = true, .state = RUN_SUCCEEDED, .code = 0,
			.reason = "Completed", .steps = "..."},
		/* What breaks without the learner, or because it is about to go, does not count. */
		{"s@5000 f1@5000 c@6000", .has_roles = true, .state = RUN_SUCCEEDED, .code = 0,
			.reason = "Completed", .steps = "..."},
		{"s@5000 f1@2000 o", .has_roles = true, .state = RUN_SUCCEEDED, .code = 0,
			.reason = "Completed", .steps = "..."},
		{"s@5000 f1@7000 r", .has_roles = true, .state = RUN_RUNNING, .steps = "..o"},
		{"s@5000 l@7000 a", .has_roles = true, .state = RUN_SUCCEEDED, .code = 0,
			.reason = "Completed", .steps = "..."},
		{"r f1@7000 r", .has_roles = true, .state = RUN_RUNNING, .steps = "..."},
		/* What broke before does. */
		{"r f1@6999 r", .has_roles = true, .state = RUN_RUNNING, .steps = "e.e",
			.text = "actors.0 on h1: Error", .is_cancelling = true},
		{"s@5000 r f3@1999", .has_roles = true, .state = RUN_RUNNING, .steps = ".e.",
			.text = "actors.1 on h2: Error", .is_cancelling = true},
		{"s@5000 e f3@1999", .has_roles = true, .state = RUN_FAILED, .code = 3,
			.reason = "Error", .steps = "...", .text = "actors.1 on h2: Error"},
		{"e f1@9000 e", .has_roles = true, .state = RUN_FAILED, .code = 1,
			.reason = "Error", .steps = "..."},
		{"f9@9000 r r", .has_roles = true, .state = RUN_RUNNING, .steps = ".ee",
			.text = "learner.0 on h0: Error", .is_cancelling = true},
		{"f9@5000 f1@6000 e", .has_roles = true, .state = RUN_FAILED, .code = 9,
			.reason = "Error", .steps = "..."},
		{"c@5 c@5 c@5", .has_roles = true, .state = RUN_CANCELLED, .code = 143,
			.reason = "Cancelled", .steps = "..."},
		{"r a r", .has_roles = true, .state = RUN_RUNNING, .steps = "e.e",
			.text = "h1 no longer knows of actors.0", .is_cancelling = true},
		{"r s@3 s@4", .has_roles = true, .state = RUN_RUNNING, .steps = "..."},
	};

	check_all(cases, ARRAY_LEN(cases));
}

static struct json *observed(const char *text)
{
	struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), 4096, "text", &json, NULL), 0);
	return json;
}

static void test_observed(void **state)
{
	AUTO(target_status_done) struct target_status status = {0};
	struct gang_rank ranks[RANKS_MAX] = {0};
	enum gang_step steps[RANKS_MAX];
	const struct gang_view view = {.is_ours = true, .attempt = 1};
	size_t n = set_ranks("r r a", ranks);

	ranks[0].status.observed = observed("{\"usage\":{\"cpu_s\":2,\"gpu_busy\":0.5}}");
	ranks[1].status.observed =
		observed("{\"usage\":{\"cpu_s\":3,\"gpu_busy\":0.2,\"memory_peak_bytes\":7}}");
	gang_evaluate(ranks, n, &view, &status, steps);
	const struct json *usage = json_get(status.observed, "usage");
	assert_true(json_get_num(usage, "cpu_s", 0) == 5);
	assert_true(json_get_num(usage, "gpu_busy", 0) == 0.5);
	assert_true(json_get_num(usage, "memory_peak_bytes", 0) == 7);
	for (size_t i = 0; i < n; i++)
		target_status_done(&ranks[i].status);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_preparing),
		cmocka_unit_test(test_left),
		cmocka_unit_test(test_going),
		cmocka_unit_test(test_ends),
		cmocka_unit_test(test_role_that_ends_it),
		cmocka_unit_test(test_observed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
