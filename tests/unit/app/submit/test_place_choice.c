/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "app/submit/place_impl.h"
#include "base/loop/loop.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/target/target_work.h"

/*
 * Places whose answers are written in their names: WHEN-ANSWER[-N], where WHEN is "soon" (in
 * turn), "slow" (after 100 ms) or "mute" (never).
 */

enum { SLOW_MS = 100 };

struct asked {
	struct target_work work;
	struct target *target;
	struct target_call *call;
	struct target_room *ret;
	struct loop_timer *timer;
};

static unsigned n_open;  /* questions that are under way */
static unsigned n_asked; /* in all */

static void asked_drop(struct target_work *work)
{
	struct asked *asked = (struct asked *)work;

	loop_remove_timer(asked->target->loop, asked->timer);
	free(asked);
	n_open--;
}

static bool answers(const struct target *target, const char *word)
{
	return strncmp(target->name + strlen("soon-"), word, strlen(word)) == 0;
}

static int asked_on_timer(void *ctx, struct err *err)
{
	struct asked *asked = ctx;
	const struct target *target = asked->target;
	AUTO_ERR struct err error = {0};
	int r = 0;

	asked->timer = NULL;
	if (answers(target, "never"))
		r = err_set(&error, E_GPU_COUNT, "target %s: too few GPUs", target->name);
	else if (answers(target, "silent"))
		r = err_set(&error, E_TARGET_SILENT, "no answer");
	asked->ret->is_now = answers(target, "now");
	asked->ret->text = mem_strdup(answers(target, "now") ? "free" : "full");
	target_call_end(asked->call, r, &error);
	return 0;
}

static int fake_room(struct target *target, const struct target_requirements *requirements,
	struct target_room *ret, struct target_call *call, struct err *err)
{
	struct asked *asked = mem_alloc(1, sizeof(*asked));
	bool is_slow = str_starts(target->name, "slow");

	assert_true(run_id_is_valid(requirements->run_id));
	*asked = (struct asked){.work = {asked_drop}, .target = target, .call = call, .ret = ret};
	n_open++;
	n_asked++;
	if (!str_starts(target->name, "mute"))
		asked->timer = loop_add_timer(
			target->loop, clock_ms() + (is_slow ? SLOW_MS : 0), asked_on_timer, asked);
	target_call_begin(call, &asked->work);
	return 0;
}

static void fake_free(struct target *target)
{
	free(target->name);
	free(target);
}

static const struct target_ops fake_ops = {.kind = "fake", .room = fake_room, .free = fake_free};

static int fake_prepare(struct submit *submit, struct err *err)
{
	const char *name = submit->place_name;

	if (str_starts(name, "bad"))
		return err_set(err, E_USAGE, "there is nothing to run");
	snprintf(submit->name, sizeof(submit->name), "a");
	if (str_starts(name, "unknown"))
		return err_set(err, E_TARGET, "there is no target '%s'", name);
	if (str_starts(name, "small"))
		return err_set(err, E_GPU_COUNT, "too few GPUs");
	submit->target = mem_alloc(1, sizeof(*submit->target));
	*submit->target = (struct target){
		.ops = &fake_ops, .name = mem_strdup(name), .loop = session_loop(submit->session)};
	return 0;
}

struct choice {
	struct session session;
	struct submit submit;
	struct err err;
	int r;
	int64_t took_ms;
};

static void choice_done(struct choice *choice)
{
	submit_done(&choice->submit);
	err_done(&choice->err);
	session_done(&choice->session);
}
#define AUTO_CHOICE AUTO(choice_done)

/* A place behind "<": the run was there before; behind "!": it is waited for; behind "#": it has refused
 * the run. */
static void choose_of(struct choice *choice, const char *const *names, struct strv *silent)
{
	*choice = (struct choice){0};
	choice->submit.session = &choice->session;
	for (; *names; names++) {
		const char *name = *names + (strchr("<!#", **names) != NULL);
		*vec_push(&choice->submit.places) = (struct run_place){.target = mem_strdup(name),
			.wait_ms = -1,
			.waits_first = **names == '!',
			.state = **names == '<'   ? RUN_PLACE_LEFT
				 : **names == '#' ? RUN_PLACE_REFUSED
						  : RUN_PLACE_UNTRIED};
	}
	const struct submit common = {.session = &choice->session};
	int64_t begin_ms = clock_ms();
	choice->r = place_choose(&choice->submit, &common, fake_prepare, silent, &choice->err);
	choice->took_ms = clock_ms() - begin_ms;
	assert_int_equal(n_open, 0);
}

static void choose(struct choice *choice, const char *const *names)
{
	choose_of(choice, names, NULL);
}

/* Of many runs in one turn: a place that was silent is not asked for the next one. */
static void test_silent_once(void **state)
{
	static const char *const names[] = {"soon-silent", "soon-later", NULL};
	AUTO_STRV struct strv silent = {0};

	n_asked = 0;
	for (unsigned i = 1; i <= 3; i++) {
		AUTO_CHOICE struct choice choice;
		choose_of(&choice, names, &silent);
		assert_int_equal(choice.r, 0);
		assert_string_equal(choice.submit.place_name, "soon-later");
		assert_int_equal(choice.submit.places.v[0].state, RUN_PLACE_SILENT);
		assert_int_equal(n_asked, 1 + i);
	}
	assert_int_equal(silent.n, 1);
	AUTO_CHOICE struct choice alone;
	choose_of(&alone, (const char *const[]){"soon-silent", NULL}, &silent);
	assert_int_equal(alone.err.code, ERR_NET);
	assert_int_equal(n_asked, 4);
}

static void test_rule(void **state)
{
	static const struct {
		const char *names[5];
		const char *chosen;
		const char *states; /* of all, in order */
	} cases[] = {
		{{"soon-now", "soon-now-2"}, "soon-now", NULL},
		{{"soon-later", "soon-now"}, "soon-now", "later chosen"},
		{{"soon-never", "soon-silent", "soon-later", "soon-later-2"}, "soon-later",
			"never silent chosen later"},
		/* An earlier one that takes longer is waited for. */
		{{"slow-now", "soon-now"}, "slow-now", "chosen now"},
		{{"slow-later", "soon-now"}, "soon-now", "later chosen"},
		{{"!soon-later", "soon-now"}, "soon-later", NULL},
		{{"soon-later", "!soon-later-2", "soon-now"}, "soon-later-2", NULL},
		{{"soon-now", "!soon-later"}, "soon-now", NULL},
		{{"!soon-never", "soon-later"}, "soon-later", "never chosen"},
		/* Places that the run has left are last, and keep what was said of them. */
		{{"<soon-now", "soon-later"}, "soon-later", "left chosen"},
		{{"<soon-later", "soon-never", "soon-silent"}, "soon-later", "chosen never silent"},
		{{"<soon-later", "<soon-now", "soon-never"}, "soon-now", "left chosen never"},
		/* A place that has refused it is not asked again, whatever it would say. */
		{{"#soon-now", "soon-later"}, "soon-later", "refused chosen"},
		{{"#mute-now", "<soon-later", "soon-never"}, "soon-later", "refused chosen never"},
		{{"small", "soon-later"}, "soon-later", "never chosen"},
		{{"soon-now", "small", "mute-now"}, "soon-now", "chosen never untried"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_CHOICE struct choice choice;
		AUTO_STRV struct strv states = {0};

		choose(&choice, cases[i].names);
		assert_int_equal(choice.r, 0);
		assert_string_equal(choice.submit.place_name, cases[i].chosen);
		vec_foreach (const struct run_place, place, &choice.submit.places)
			strv_add(&states, run_place_state_name(place->state));
		AUTO_FREE char *all = mem_strdup(states.n ? states.v[0] : "");
		for (size_t k = 1; k < states.n; k++) {
			char *more = mem_printf("%s %s", all, states.v[k]);
			free(all);
			all = more;
		}
		if (cases[i].states)
			assert_string_equal(all, cases[i].states);
	}
}

/* An error has four lines: no place is left out. */
static void test_many_reasons(void **state)
{
	AUTO_CHOICE struct choice choice;

	choose(&choice, (const char *const[]){"soon-never", "soon-never-2", "soon-never-3",
				"soon-never-4", "soon-never-5", "small", NULL});
	assert_int_equal(choice.err.n_evidence, 4);
	assert_string_equal(choice.err.evidence[2], "soon-never-3: too few GPUs");
	assert_string_equal(choice.err.evidence[3],
		"soon-never-4: too few GPUs · soon-never-5: too few GPUs · small: too few GPUs");
}

/* Once a later place has room, an earlier one that says nothing is waited for shortly. */
static void test_mute_places(void **state)
{
	AUTO_CHOICE struct choice choice;

	choose(&choice, (const char *const[]){"mute-now", "soon-now", NULL});
	assert_int_equal(choice.r, 0);
	assert_string_equal(choice.submit.place_name, "soon-now");
	assert_int_equal(choice.submit.places.v[0].state, RUN_PLACE_SILENT);
	assert_in_range(choice.took_ms, 1500, 8000);
}

static void test_failures(void **state)
{
	static const struct {
		const char *names[4];
		enum err_id id;
		const char *message, *evidence; /* evidence: the first line, or NULL */
	} cases[] = {
		{{"bad", "soon-now"}, E_USAGE, "there is nothing to run", NULL},
		{{"soon-now", "unknown"}, E_TARGET, "there is no target 'unknown'", NULL},
		/* All say the same. */
		{{"small", "small-2"}, E_GPU_COUNT, "too few GPUs", NULL},
		{{"soon-never", "small"}, E_GPU_COUNT, "none of the 2 targets takes the run",
			"soon-never: too few GPUs"},
		{{"small", "soon-silent"}, E_TARGET_SILENT, "no answer", "small: too few GPUs"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_CHOICE struct choice choice;

		choose(&choice, cases[i].names);
		assert_true(choice.r < 0);
		assert_int_equal(choice.err.id, cases[i].id);
		assert_string_equal(choice.err.message, cases[i].message);
		if (cases[i].evidence)
			assert_string_equal(choice.err.evidence[0], cases[i].evidence);
		if (cases[i].id == E_TARGET_SILENT)
			assert_string_equal(choice.submit.place_name, "soon-silent");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rule),
		cmocka_unit_test(test_silent_once),
		cmocka_unit_test(test_mute_places),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_many_reasons),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
