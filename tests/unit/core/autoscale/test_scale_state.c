/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/plan.h"
#include "core/autoscale/snapshot.h"
#include "core/autoscale/state.h"

enum { MINUTE = 60 * 1000, EVERY = 15 * 1000 };
#define NOW (INT64_C(1795755600) * 1000)

static void read_text(const char *text, struct scale_state *ret)
{
	AUTO_JSON struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), 1 << 20, "text", &json, NULL), 0);
	assert_int_equal(scale_state_read(json, ret, NULL), 0);
}

static char *written(const struct scale_state *state)
{
	AUTO_JSON struct json *json = scale_state_write(state);
	AUTO_BUF struct buf text = buf_with(1 << 20);

	json_print(json, &text);
	return buf_take(&text);
}

/* A model with one group, which has so many nodes. */
static void model_with(const char *id, int nodes, struct scale_model *model)
{
	scale_model_init(model);
	model->now_ms = NOW;
	struct scale_group *group = vec_push(&model->groups);
	group->id = mem_strdup(id);
	group->desired = nodes;
	for (int i = 0; i < nodes; i++)
		vec_push(&model->nodes)->name = mem_printf("n-%d", i);
}

static void test_waits(void **state UNUSED)
{
	static const struct {
		enum scale_failure failure;
		int64_t failures, wait_ms;
	} cases[] = {
		{SCALE_FAILED_CAPACITY, 1, 3 * MINUTE},
		{SCALE_FAILED_CAPACITY, 2, 6 * MINUTE},
		{SCALE_FAILED_CAPACITY, 5, 30 * MINUTE},
		{SCALE_FAILED_CAPACITY, INT64_MAX, 30 * MINUTE},
		{SCALE_FAILED_QUOTA, 1, 60 * MINUTE},
		{SCALE_FAILED_QUOTA, 9, 60 * MINUTE},
		{SCALE_FAILED_PRICE, 3, 20 * MINUTE},
		{SCALE_FAILED_CONFIG, 1, 10 * MINUTE},
		{SCALE_FAILED_OTHER, 0, MINUTE},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		assert_int_equal(
			scale_state_wait_ms(cases[i].failure, cases[i].failures), cases[i].wait_ms);
	for (int64_t n = 1; n < 12; n++)
		assert_in_range(scale_state_wait_ms(SCALE_FAILED_THROTTLE, n), 7500, 5 * MINUTE);
}

static void test_failures_in_a_row(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0};
	AUTO_SCALE_MODEL struct scale_model model;

	model_with("gpu-a", 0, &model);
	scale_state_fail(&s, "gpu-a", SCALE_FAILED_CAPACITY, "no p4d", NOW - 9 * MINUTE);
	/* While it waits, failures are of the same row. */
	scale_state_fail(&s, "gpu-a", SCALE_FAILED_CAPACITY, "no p4d", NOW - 8 * MINUTE);
	assert_int_equal(s.groups.v[0].failures, 1);
	scale_state_fail(&s, "gpu-a", SCALE_FAILED_CAPACITY, "no p4d", NOW);
	scale_state_apply(&s, &model);
	assert_int_equal(model.groups.v[0].wait_until_ms, NOW + 6 * MINUTE);
	assert_int_equal(model.groups.v[0].failure, SCALE_FAILED_CAPACITY);
	assert_string_equal(model.groups.v[0].failure_text, "no p4d");
	/* Of another class: the first one again. */
	scale_state_fail(&s, "gpu-a", SCALE_FAILED_PRICE, NULL, NOW);
	scale_state_apply(&s, &model);
	assert_int_equal(model.groups.v[0].wait_until_ms, NOW + 20 * MINUTE);
	assert_null(model.groups.v[0].failure_text);
}

/* A wait after a clock that steps back is no longer than the longest of its class. */
static void test_waits_by_a_clock_that_steps(void **state UNUSED)
{
	static const int64_t back_ms[] = {60 * MINUTE, INT64_C(365) * 24 * 60 * MINUTE};

	for (size_t i = 0; i < ARRAY_LEN(back_ms); i++) {
		AUTO_SCALE_STATE struct scale_state s = {0};
		AUTO_SCALE_MODEL struct scale_model model, later;

		model_with("gpu-a", 0, &model);
		scale_state_fail(&s, "gpu-a", SCALE_FAILED_CAPACITY, "", NOW);
		model.now_ms = NOW - back_ms[i];
		scale_state_apply(&s, &model);
		assert_int_equal(model.groups.v[0].wait_until_ms, model.now_ms + 30 * MINUTE);
		scale_state_settle(&s, &model, EVERY);
		model_with("gpu-a", 0, &later);
		later.now_ms = model.now_ms + 31 * MINUTE;
		scale_state_settle(&s, &later, EVERY);
		scale_state_apply(&s, &later);
		assert_int_equal(later.groups.v[0].wait_until_ms, 0);
	}
}

/* All that is remembered is as if it had begun now. */
static void test_times_of_a_clock_that_stepped(void **state UNUSED)
{
#define THEN "'2027-11-27T00:00:00Z'"
	AUTO_SCALE_STATE struct scale_state s = {0};
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_FREE char *text = mem_strdup(
		"{'version': 1, 'looked': " THEN ", 'groups': {'gpu-a': {'failure': 'quota',"
		" 'failures': 1, 'wait_until': " THEN ", 'grow': {'token': 't', 'to': 1,"
		" 'asked': " THEN ", 'due_to': 1, 'due': " THEN ", 'answered': true},"
		" 'awaited': ['i-1'], 'unlisted': " THEN ", 'rooms': {'cpu': {'told': 2, 'room': 1,"
		" 'made': " THEN "}}, 'shown': " THEN ", 'disappointments': 1, 'failed_grow':"
		" {'due': " THEN ", 'until': " THEN "}, 'tried': {'template': 'x', 'since': " THEN
		"}}, 'gone': {'awaited': ['i-2'],"
		" 'missing': " THEN "}}}");

	for (char *at = text; *at; at++)
		*at = *at == '\'' ? '"' : *at;
	read_text(text, &s);
	model_with("gpu-a", 0, &model);
	model.groups.v[0].desired = 1;
	scale_state_settle(&s, &model, EVERY);
	AUTO_FREE char *after = written(&s);
	assert_null(strstr(after, "2027"));
	const struct scale_state_group *group = scale_state_find(&s, "gpu-a");
	assert_int_equal(group->wait_until_ms, NOW + 60 * MINUTE);
	assert_int_equal(group->due_ms, NOW);
	assert_int_equal(group->failed_until_ms, NOW + 2 * MINUTE);
	assert_int_equal(scale_state_find(&s, "gone")->missing_ms, NOW);
}

static void test_a_grow_keeps_its_token(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0};

	assert_string_equal(scale_state_ask(&s, "b", 9, "one", NOW), "one");
	/* Nobody has answered: the same again. */
	assert_string_equal(scale_state_ask(&s, "b", 9, "two", NOW + 1), "one");
	/* Another size is another grow. */
	assert_string_equal(scale_state_ask(&s, "b", 10, "three", NOW), "three");
	assert_int_equal(scale_state_doubt(&s, "b"), 1);
	assert_string_equal(scale_state_ask(&s, "b", 10, "three again", NOW), "three");
	assert_int_equal(scale_state_doubt(&s, "b"), 2);
	scale_state_answer(&s, "b");
	assert_int_equal(scale_state_doubt(&s, "b"), 1);
	assert_string_equal(scale_state_ask(&s, "b", 10, "four", NOW), "four");
	assert_string_equal(scale_state_ask(&s, "a", 1, "five", NOW), "five");
	assert_string_equal(scale_state_find(&s, "b")->token, "four");
	assert_null(scale_state_find(&s, "c"));
	scale_state_fail(&s, "b", SCALE_FAILED_QUOTA, "", NOW);
	assert_null(scale_state_find(&s, "b")->token);
}

/* A grow that was not sent leaves no trace, unless an earlier one may have had an effect. */
static void test_a_grow_that_was_not_sent(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0};

	scale_state_ask(&s, "a", 9, "one", NOW);
	assert_true(scale_state_take_back(&s, "a"));
	assert_null(scale_state_find(&s, "a")->token);
	assert_string_equal(scale_state_ask(&s, "a", 9, "two", NOW), "two");
	scale_state_answer(&s, "a");
	AUTO_FREE char *before = written(&s);
	assert_string_equal(scale_state_ask(&s, "a", 12, "three", NOW + MINUTE), "three");
	assert_true(scale_state_take_back(&s, "a"));
	AUTO_FREE char *after = written(&s);
	assert_string_equal(after, before);
	/* Not answered, and of which another process knows only that. */
	scale_state_ask(&s, "a", 12, "four", NOW);
	AUTO_FREE char *asked = written(&s);
	scale_state_done(&s);
	read_text(asked, &s);
	assert_string_equal(scale_state_ask(&s, "a", 12, "five", NOW), "four");
	assert_false(scale_state_take_back(&s, "a"));
	assert_string_equal(scale_state_ask(&s, "a", 13, "six", NOW), "six");
	assert_false(scale_state_take_back(&s, "a"));
	/* That one is repeated with its token. */
	assert_string_equal(scale_state_find(&s, "a")->token, "four");
	assert_string_equal(scale_state_ask(&s, "a", 12, "seven", NOW), "four");
}

static void test_what_is_over_is_forgotten(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0};
	AUTO_SCALE_MODEL struct scale_model model;

	model_with("gpu-a", 2, &model);
	scale_state_fail(&s, "gpu-a", SCALE_FAILED_CAPACITY, "", NOW);
	scale_state_ask(&s, "gpu-a", 2, "one", NOW);
	scale_state_settle(&s, &model, EVERY);
	assert_string_equal(scale_state_find(&s, "gpu-a")->token, "one"); /* not answered */
	scale_state_answer(&s, "gpu-a");
	scale_state_settle(&s, &model, EVERY);
	assert_null(scale_state_find(&s, "gpu-a")); /* its nodes are there: the failures are over */
	/* A group that is not there: its failure counts for a day after its wait. */
	scale_state_fail(&s, "gone", SCALE_FAILED_QUOTA, "", model.now_ms);
	scale_state_settle(&s, &model, EVERY);
	assert_non_null(scale_state_find(&s, "gone"));
	model.now_ms += INT64_C(26) * 60 * MINUTE;
	scale_state_settle(&s, &model, EVERY);
	assert_null(scale_state_find(&s, "gone"));
}

/* Of grows one after another, the oldest one whose machines are not there is waited for. */
static void test_machines_that_do_not_come(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0};
	AUTO_SCALE_MODEL struct scale_model model;

	model_with("gpu-a", 2, &model);
	model.groups.v[0].desired = 4;
	scale_state_ask(&s, "gpu-a", 2, "one", NOW - 20 * MINUTE);
	scale_state_answer(&s, "gpu-a");
	scale_state_ask(&s, "gpu-a", 4, "two", NOW - 10 * MINUTE);
	scale_state_answer(&s, "gpu-a");
	struct scale_state_group *group = scale_state_find(&s, "gpu-a");
	assert_int_equal(group->due_ms, NOW - 20 * MINUTE);
	scale_state_settle(&s, &model, EVERY);
	assert_int_equal(group->due_to, 4);
	assert_int_equal(group->due_ms, NOW - 10 * MINUTE);
	model.now_ms += 16 * MINUTE;
	scale_state_settle(&s, &model, EVERY);
	group = scale_state_find(&s, "gpu-a");
	assert_null(group->token);
	assert_int_equal(group->failure, SCALE_FAILED_OTHER);
}

/* A grow that was not sent, or was taken back, is no failure. */
static void test_grows_that_are_dropped(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0};
	AUTO_SCALE_MODEL struct scale_model model;

	model_with("gpu-a", 0, &model);
	scale_state_ask(&s, "gpu-a", 2, "one", NOW);
	scale_state_settle(&s, &model, EVERY);
	assert_non_null(scale_state_find(&s, "gpu-a"));
	model.now_ms += 3 * MINUTE;
	scale_state_settle(&s, &model, EVERY);
	assert_null(scale_state_find(&s, "gpu-a"));
	scale_state_ask(&s, "gpu-a", 2, "two", model.now_ms);
	scale_state_answer(&s, "gpu-a");
	model.now_ms += 3 * MINUTE;
	scale_state_settle(&s, &model, EVERY); /* its size is 0 */
	assert_null(scale_state_find(&s, "gpu-a"));
}

static void look(struct scale_state *s, struct scale_model *model, int minutes, const char *awaited)
{
	AUTO_BUF struct buf found = buf_with(100);
	AUTO_FREE char *text = NULL;

	model->now_ms += minutes * MINUTE;
	scale_state_settle(s, model, EVERY);
	/* As the next process finds it. */
	text = written(s);
	scale_state_done(s);
	read_text(text, s);
	scale_state_apply(s, model);
	vec_foreach (const struct scale_instance, instance, &model->groups.v[0].instances)
		if (instance->is_awaited && instance->state != SCALE_STOPPING)
			buf_addf(&found, "%s ", instance->id);
	assert_string_equal(found.data ? found.data : "", awaited);
}

static void set_node(struct scale_model *model, const char *instance)
{
	struct scale_node *node = &model->nodes.v[0];

	REPLACE(node->instance, mem_strdup(instance));
	node->group = instance ? 0 : -1;
}

/* A machine that does not come is late when it would be without the step, and a minute. */
static void test_machines_by_a_clock_that_steps(void **state UNUSED)
{
	static const int64_t back_ms[] = {60 * MINUTE, INT64_C(365) * 24 * 60 * MINUTE};

	for (size_t i = 0; i < ARRAY_LEN(back_ms); i++) {
		AUTO_SCALE_STATE struct scale_state s = {0};
		AUTO_SCALE_MODEL struct scale_model model;

		model_with("gpu-a", 0, &model);
		scale_state_settle(&s, &model, EVERY);
		model.groups.v[0].desired = 1;
		scale_state_ask(&s, "gpu-a", 1, "one", NOW);
		scale_state_bought(&s, "gpu-a", "i-1");
		scale_state_answer(&s, "gpu-a");
		model.now_ms -= back_ms[i];
		for (int minutes = 0; minutes <= 28; minutes += 4) {
			struct scale_instance *instance =
				minutes ? model.groups.v[0].instances.v
					: vec_push(&model.groups.v[0].instances);
			if (!minutes)
				instance->id = mem_strdup("i-1");
			instance->since_ms = NOW + 1; /* as its provider says each time */
			look(&s, &model, minutes ? 4 : 0, "i-1 ");
			assert_int_equal(scale_is_late(&model, instance), minutes > 25);
		}
		assert_null(scale_state_find(&s, "gpu-a")->token);
	}
}

/* Of machines that were bought it is known which never were nodes; who deletes the object of a node
 * does not make its machine new. */
static void test_machines_that_were_nodes(void **state UNUSED)
{
	static const struct {
		const char *id;
		int64_t since_ms;
	} machines[] = {{"old", NOW - 60 * MINUTE}, {"i-1", NOW + 1}, {"i-2", NOW + 1},
		{"i-3", NOW + 1}, {"?", 0}};
	AUTO_SCALE_STATE struct scale_state s = {0};
	AUTO_SCALE_MODEL struct scale_model model;

	model_with("gpu-a", 1, &model);
	set_node(&model, NULL);
	scale_state_settle(&s, &model, EVERY);
	model.groups.v[0].desired = 4;
	scale_state_ask(&s, "gpu-a", 4, "one", NOW);
	/* The provider tells of one; the others are found. */
	scale_state_bought(&s, "gpu-a", "i-1");
	scale_state_bought(&s, "gpu-a", "i-1");
	scale_state_answer(&s, "gpu-a");
	for (size_t i = 0; i < ARRAY_LEN(machines); i++)
		*vec_push(&model.groups.v[0].instances) =
			(struct scale_instance){.id = mem_strdup(machines[i].id),
				.state = SCALE_RUNNING,
				.since_ms = machines[i].since_ms};
	look(&s, &model, 1, "i-1 i-2 i-3 ");
	set_node(&model, "i-1");
	look(&s, &model, 1, "i-2 i-3 ");
	set_node(&model, NULL);
	look(&s, &model, 1, "i-2 i-3 ");
	/* One that ends is over, and the failure of the group tells nothing of the others. */
	model.groups.v[0].instances.v[2].state = SCALE_STOPPING;
	scale_state_fail(&s, "gpu-a", SCALE_FAILED_CAPACITY, "", model.now_ms);
	look(&s, &model, 1, "i-3 ");
	/* For a while more may come of the grow. */
	model.groups.v[0].instances.v[4].since_ms = model.now_ms;
	look(&s, &model, 1, "i-3 ? ");
	set_node(&model, "?");
	look(&s, &model, 1, "i-3 ");
	set_node(&model, NULL);
	look(&s, &model, 1, "i-3 ");
	model.groups.v[0].instances.v[2].since_ms = model.now_ms;
	model.groups.v[0].instances.v[2].state = SCALE_RUNNING;
	look(&s, &model, 9, "i-3 ");
	/* Nobody has looked for a while. */
	look(&s, &model, 12, "");
	look(&s, &model, 1, "");
}

/* A machine that was launched then, of a grow that was asked for at NOW. */
static void model_of_a_grow(
	struct scale_state *s, struct scale_model *model, const char *id, int64_t since_ms)
{
	model_with("gpu-a", 1, model);
	set_node(model, NULL);
	scale_state_settle(s, model, EVERY);
	model->groups.v[0].desired = 1;
	scale_state_ask(s, "gpu-a", 1, "one", NOW);
	scale_state_answer(s, "gpu-a");
	*vec_push(&model->groups.v[0].instances) = (struct scale_instance){
		.id = mem_strdup(id), .state = SCALE_RUNNING, .since_ms = since_ms};
}

/* With an hour from turn to turn, an hour is no time in which nobody has looked. */
static void test_turns_that_are_rare(void **state UNUSED)
{
	enum { HOUR = 60 * MINUTE };
	AUTO_SCALE_STATE struct scale_state s = {0};
	AUTO_SCALE_MODEL struct scale_model model;

	model_of_a_grow(&s, &model, "i-1", NOW + 1);
	look(&s, &model, 1, "i-1 ");
	model.now_ms += HOUR;
	scale_state_settle(&s, &model, HOUR);
	scale_state_apply(&s, &model);
	assert_true(model.groups.v[0].instances.v[0].is_awaited);
	model.now_ms += 2 * HOUR + 2 * MINUTE;
	scale_state_settle(&s, &model, HOUR);
	scale_state_apply(&s, &model);
	assert_false(model.groups.v[0].instances.v[0].is_awaited);
}

/* A provider's clock may be behind the cluster's a little. */
static void test_clocks_that_differ(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0};
	AUTO_SCALE_MODEL struct scale_model model;

	model_of_a_grow(&s, &model, "i-1", NOW - MINUTE / 2);
	*vec_push(&model.groups.v[0].instances) = (struct scale_instance){
		.id = mem_strdup("old"), .state = SCALE_RUNNING, .since_ms = NOW - 2 * MINUTE};
	look(&s, &model, 1, "i-1 ");
	look(&s, &model, 1, "i-1 ");
}

/* What a provider does not list for a moment, the group or its machine, is still waited for. */
static void test_what_is_not_listed_for_a_moment(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0};
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_SCALE_MODEL struct scale_model none;

	scale_model_init(&none);
	model_of_a_grow(&s, &model, "i-1", NOW + 1);
	struct scale_instances *instances = &model.groups.v[0].instances;
	look(&s, &model, 1, "i-1 ");
	scale_state_fail(&s, "gpu-a", SCALE_FAILED_CAPACITY, "", model.now_ms);
	look(&s, &model, 3, "i-1 ");
	scale_state_find(&s, "gpu-a")->failures = 0;
	none.now_ms = model.now_ms + MINUTE;
	scale_state_settle(&s, &none, EVERY);
	assert_int_equal(scale_state_find(&s, "gpu-a")->missing_ms, none.now_ms);
	look(&s, &model, 2, "i-1 ");
	assert_int_equal(scale_state_find(&s, "gpu-a")->missing_ms, 0);
	instances->n = 0;
	look(&s, &model, 1, "");
	instances->n = 1;
	look(&s, &model, 1, "i-1 ");
	/* It ends, which is no moment. */
	instances->v[0].state = SCALE_STOPPING;
	look(&s, &model, 1, "");
	instances->v[0].state = SCALE_RUNNING;
	look(&s, &model, 1, "");
}

/* A machine that gets another id is still waited for, if its provider says which one it was. */
static void test_another_id(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0};
	AUTO_SCALE_MODEL struct scale_model model;

	model_of_a_grow(&s, &model, "machine:a", NOW + 1);
	struct scale_instance *instance = &model.groups.v[0].instances.v[0];
	look(&s, &model, 1, "machine:a ");
	scale_state_fail(&s, "gpu-a", SCALE_FAILED_CAPACITY, "", model.now_ms);
	look(&s, &model, 3, "machine:a ");
	REPLACE(instance->id, mem_strdup("i-1"));
	instance->was = mem_strdup("machine:a");
	look(&s, &model, 1, "i-1 ");
	look(&s, &model, 7, "i-1 ");
	set_node(&model, "i-1");
	look(&s, &model, 1, "");
	set_node(&model, NULL);
	look(&s, &model, 1, "");
}

/* A group that was not listed for long: its machines may have been nodes. */
static void test_a_group_that_comes_back(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0};
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_SCALE_MODEL struct scale_model none;

	scale_model_init(&none);
	model_of_a_grow(&s, &model, "i-1", NOW + 1);
	look(&s, &model, 1, "i-1 ");
	for (int i = 0; i < 12; i++) {
		none.now_ms = model.now_ms += MINUTE;
		scale_state_settle(&s, &none, EVERY);
	}
	look(&s, &model, 1, "");
	/* One that does not come back is forgotten. */
	scale_state_bought(&s, "gone", "i-2");
	for (int i = 0; i < 25; i++) {
		assert_true(i == 0 || scale_state_find(&s, "gone"));
		none.now_ms = model.now_ms += i == 24 ? 120 * MINUTE : 60 * MINUTE;
		scale_state_settle(&s, &none, EVERY);
	}
	assert_null(scale_state_find(&s, "gone"));
}

/* What is remembered of machines is bounded, and so is the time for which. */
static void test_many_machines(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0};
	AUTO_SCALE_MODEL struct scale_model model;
	char id[128];

	model_with("gpu-a", 0, &model);
	scale_state_settle(&s, &model, EVERY);
	scale_state_ask(&s, "gpu-a", 1, "one", NOW);
	for (int i = 0; i < 5000; i++) {
		snprintf(id, sizeof(id), "%0100d", i);
		scale_state_bought(&s, "gpu-a", id);
	}
	scale_state_bought(&s, "gpu-a", "a\nb");
	AUTO_FREE char *text = written(&s);
	assert_in_range(strlen(text), 200 << 10, 700 << 10);
	scale_state_fail(&s, "gpu-a", SCALE_FAILED_CAPACITY, "", NOW);
	scale_state_settle(&s, &model, EVERY);
	assert_true(s.groups.v[0].machines.n > 2000);
	model.now_ms += 6 * MINUTE;
	scale_state_settle(&s, &model, EVERY);
	assert_int_equal(s.groups.v[0].machines.n, 0); /* the provider lists none of them */
}

/* Beyond the limit it is not known which machines were nodes: what is found then is none that may be
 * ended, and that is told, once. */
static void test_too_many_machines(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0};
	AUTO_SCALE_MODEL struct scale_model model;
	char id[1024];

	model_of_a_grow(&s, &model, "i-1", NOW + 1);
	for (int i = 0; i < 300; i++) {
		snprintf(id, sizeof(id), "%01000d", i);
		scale_state_bought(&s, i < 200 ? "full" : "gpu-a", id);
	}
	assert_true(scale_state_find(&s, "gpu-a")->is_cut);
	assert_false(scale_state_find(&s, "full")->is_cut);
	look(&s, &model, 1, "");
	assert_int_equal(model.remarks.n, 1);
	scale_state_apply(&s, &model);
	assert_int_equal(model.remarks.n, 1);
	/* The grow is over, and the next one is remembered. */
	set_node(&model, "i-1");
	look(&s, &model, 1, "");
	assert_null(scale_state_find(&s, "gpu-a")->token);
	look(&s, &model, 1, "");
	scale_state_ask(&s, "gpu-a", 2, "two", model.now_ms);
	scale_state_answer(&s, "gpu-a");
	*vec_push(&model.groups.v[0].instances) = (struct scale_instance){
		.id = mem_strdup("i-2"), .state = SCALE_RUNNING, .since_ms = model.now_ms};
	look(&s, &model, 1, "i-2 ");
}

/* A model with one group, whose machines have 3920m CPU as its template says, and a pod that asks for
 * 3800m. room: what a node of it leaves; 0: there is none. */
static void model_of_template(int64_t told, int64_t room, struct scale_model *model)
{
	model_with("gpu-a", room ? 1 : 0, model);
	struct scale_group *group = model->groups.v;
	group->has_template = true;
	group->told.of[SCALE_PODS] = group->room.of[SCALE_PODS] = 110;
	group->told.of[SCALE_CPU] = told;
	group->room.of[SCALE_CPU] = room ? room : told;
	group->shown_ms.of[SCALE_CPU] = room ? NOW - MINUTE : 0;
	struct scale_shape *shape = vec_push(&model->shapes);
	shape->name = mem_strdup("big");
	shape->request.of[SCALE_PODS] = 1;
	shape->request.of[SCALE_CPU] = 3800;
	*vec_push(&model->pods) =
		(struct scale_pod){.name = mem_strdup("n/big"), .count = 1, .node = -1, .gang = -1};
}

/* What a node has left is remembered when it has gone, for a time that doubles, or until the template
 * says something else or a newer node is there. */
static void test_rooms_of_nodes_that_have_gone(void **state UNUSED)
{
	static const struct {
		int64_t later_ms, told, node, made_ms, room;
	} cases[] = {
		{0, 3920, 0, 0, 3770},
		{20 * MINUTE - 1, 3920, 0, 0, 3770},
		{20 * MINUTE + 1, 3920, 0, 0, 3920},
		{0, 4000, 0, 0, 4000},
		{0, 3920, 3900, NOW - 2 * MINUTE, 3770},
		{0, 3920, 3900, NOW, 3900},
	};
	AUTO_SCALE_STATE struct scale_state s = {0}, again = {0};
	AUTO_SCALE_MODEL struct scale_model small, there, gone;

	/* Enough for all that wait. */
	model_of_template(3920, 3850, &there);
	scale_state_settle(&s, &there, EVERY);
	assert_int_equal(s.groups.n, 0);
	model_of_template(3920, 3770, &small);
	scale_state_settle(&s, &small, EVERY);
	AUTO_FREE char *text = written(&s);
	read_text(text, &again);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		model_of_template(cases[i].told, cases[i].node, &model);
		model.groups.v[0].shown_ms.of[SCALE_CPU] = cases[i].made_ms;
		model.now_ms += cases[i].later_ms;
		for (int k = 0; k < 2; k++)
			scale_state_apply(&again, &model);
		assert_int_equal(model.groups.v[0].room.of[SCALE_CPU], cases[i].room);
		assert_int_equal(model.groups.v[0].room.of[SCALE_PODS], 110);
	}
	/* A turn with the same machine is of the same row; the next machine is one more. */
	small.now_ms += 10 * MINUTE;
	scale_state_settle(&again, &small, EVERY);
	assert_int_equal(again.groups.v[0].disappointments, 1);
	small.now_ms += 40 * MINUTE;
	scale_state_settle(&again, &small, EVERY);
	assert_int_equal(again.groups.v[0].disappointments, 2);
	model_of_template(3920, 0, &gone);
	gone.now_ms = small.now_ms + 39 * MINUTE;
	scale_state_settle(&again, &gone, EVERY);
	scale_state_apply(&again, &gone);
	assert_int_equal(gone.groups.v[0].room.of[SCALE_CPU], 3770);
	gone.now_ms += INT64_C(25) * 60 * MINUTE;
	scale_state_settle(&again, &gone, EVERY);
	assert_int_equal(again.groups.n, 0);
}

/* A group of one node, which was made when it was bought and has no labels, though its template
 * says one that a pod asks for. */
static void model_of_labels(int64_t made_ms, struct scale_model *model)
{
	model_with("gpu-a", 1, model);
	model->groups.v[0].has_template = true;
	scale_pairs_add(&model->groups.v[0].labels, "pool", "gpu");
	model->nodes.v[0].is_ready = true;
	model->nodes.v[0].created_ms = made_ms;
	struct scale_shape *shape = vec_push(&model->shapes);
	shape->name = mem_strdup("gpu");
	scale_pairs_add(&shape->selector, "pool", "gpu");
	shape = vec_push(&model->shapes);
	shape->name = mem_strdup("runs");
	*vec_push(&model->pods) =
		(struct scale_pod){.name = mem_strdup("n/p"), .count = 1, .node = -1, .gang = -1};
}

/* Whether the group is held back from the pod after a turn. */
static bool is_held(struct scale_state *s, struct scale_model *model)
{
	scale_state_settle(s, model, EVERY);
	scale_state_apply(s, model);
	scale_state_apply(s, model);
	return !scale_fits(model, &model->shapes.v[0], &model->groups.v[0].labels,
		&model->groups.v[0].taints, &model->groups.v[0].room, NULL);
}

/* Only a node that was made for the template as it is, and is as it will be, shows that it is wrong;
 * and a taint none where a pod runs that it keeps out. */
static void test_nodes_that_are_not_as_their_template_says(void **state UNUSED)
{
	enum {
		BEFORE = 1,
		ANOTHER_TEMPLATE = 2,
		RUNS = 4,
		NOT_READY = 8,
		GONE = 16,
		UNASKED = 32,
		CORDONED = 64
	};
	static const struct {
		const char *label;
		bool is_tainted;
		int64_t age_ms;
		int more;
		bool is_held;
	} cases[] = {
		{NULL, false, 5 * MINUTE, 0, false},
		{NULL, false, 5 * MINUTE + 1, 0, true},
		{"cpu", false, MINUTE, 0, true},
		{"gpu", false, 6 * MINUTE, 0, false},
		{"gpu", true, 4 * MINUTE, 0, false},
		{"gpu", true, 6 * MINUTE, 0, true},
		{"gpu", true, 6 * MINUTE, RUNS, false},
		{"cpu", false, 6 * MINUTE, RUNS, true},
		{NULL, false, 6 * MINUTE, BEFORE, false},
		{NULL, false, 6 * MINUTE, ANOTHER_TEMPLATE, false},
		{NULL, false, 6 * MINUTE, NOT_READY, false},
		{NULL, false, 6 * MINUTE, GONE, false},
		{NULL, false, 6 * MINUTE, UNASKED, false},
		{"gpu", true, 6 * MINUTE, CORDONED, false},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_SCALE_STATE struct scale_state s = {0};
		AUTO_SCALE_MODEL struct scale_model model;
		int64_t made_ms = NOW - cases[i].age_ms;
		int more = cases[i].more;

		model_of_labels(made_ms, &model);
		if (more & ANOTHER_TEMPLATE)
			scale_pairs_add(&model.groups.v[0].labels, "tier", "a");
		scale_state_try(&s, &model.groups.v[0], made_ms + ((more & BEFORE) != 0));
		if (more & ANOTHER_TEMPLATE) {
			free(model.groups.v[0].labels.v[1].key);
			free(model.groups.v[0].labels.v[1].value);
			model.groups.v[0].labels.n = 1;
		}
		if (cases[i].label)
			scale_pairs_add(&model.nodes.v[0].labels, "pool", cases[i].label);
		if (cases[i].is_tainted)
			scale_taints_add(&model.nodes.v[0].taints, "team", "a", SCALE_NO_SCHEDULE);
		if (more & RUNS)
			*vec_push(&model.pods) = (struct scale_pod){
				.name = mem_strdup("n/r"), .count = 1, .shape = 1, .gang = -1};
		model.nodes.v[0].is_ready = !(more & NOT_READY);
		model.nodes.v[0].has_no_instance = more & GONE;
		model.nodes.v[0].cordoned = more & CORDONED ? SCALE_CORDONED : SCALE_OPEN;
		if (more & UNASKED)
			model.pods.v[0].node = 0;
		if (is_held(&s, &model) != cases[i].is_held)
			fail_msg("case %zu", i);
	}
}

/* It is remembered when the node has gone, for a time that doubles, and not once one is right. */
static void test_what_a_node_has_shown_is_remembered(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0}, again = {0};

	for (int n = 1; n <= 2; n++) {
		AUTO_SCALE_MODEL struct scale_model there, gone, later;
		int64_t begin_ms = n == 1 ? 0 : 100 * MINUTE;
		struct scale_state *now = n == 1 ? &s : &again;
		model_of_labels(NOW + begin_ms, &there);
		scale_state_try(now, &there.groups.v[0], NOW + begin_ms);
		there.now_ms = NOW + begin_ms + 6 * MINUTE;
		assert_true(is_held(now, &there));
		if (n == 1) {
			AUTO_FREE char *text = written(&s);
			read_text(text, &again);
		}
		model_of_labels(0, &gone);
		gone.nodes.v[0].has_no_instance = true;
		gone.now_ms = there.now_ms + n * 20 * MINUTE - MINUTE;
		assert_true(is_held(&again, &gone));
		model_of_labels(0, &later);
		later.nodes.v[0].has_no_instance = true;
		later.now_ms = gone.now_ms + 2 * MINUTE;
		assert_false(is_held(&again, &later));
	}
	AUTO_SCALE_MODEL struct scale_model right, bare;
	model_of_labels(NOW + 200 * MINUTE, &right);
	scale_pairs_add(&right.nodes.v[0].labels, "pool", "gpu");
	scale_state_try(&again, &right.groups.v[0], NOW + 200 * MINUTE);
	right.now_ms = NOW + 206 * MINUTE;
	assert_false(is_held(&again, &right));
	assert_int_equal(again.groups.n, 0);
	/* Nothing comes of a try. */
	model_of_labels(0, &bare);
	scale_state_try(&again, &bare.groups.v[0], NOW);
	assert_int_equal(again.groups.n, 1);
	bare.now_ms = NOW + 31 * MINUTE;
	assert_false(is_held(&again, &bare));
	assert_int_equal(again.groups.n, 0);
}

/* One node shows it once, however long it lives; labels that no pod asks for hold nothing back; and
 * what a node has instead of the label of its template is not bought. */
static void test_faults_that_hold_no_longer(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0};
	static const struct {
		int64_t at_ms;
		const char *label, *asked;
		bool is_held;
	} turns[] = {
		{6 * MINUTE, NULL, "gpu", true},
		{25 * MINUTE, NULL, "gpu", true},
		{27 * MINUTE, NULL, "gpu", false},
		{28 * MINUTE, "cpu", "gpu", false},
		{29 * MINUTE, "gpu", "gpu", false},
	};

	for (size_t i = 0; i < ARRAY_LEN(turns); i++) {
		AUTO_SCALE_MODEL struct scale_model model;
		model_of_labels(NOW, &model);
		scale_pairs_add(&model.groups.v[0].labels, "legacy", "x");
		scale_pairs_sort(&model.groups.v[0].labels);
		if (i == 0)
			scale_state_try(&s, &model.groups.v[0], NOW);
		if (turns[i].label)
			scale_pairs_add(&model.nodes.v[0].labels, "pool", turns[i].label);
		model.now_ms = NOW + turns[i].at_ms;
		if (is_held(&s, &model) != turns[i].is_held)
			fail_msg("turn %zu", i);
	}
	assert_int_equal(s.groups.n, 0);

	AUTO_SCALE_STATE struct scale_state other = {0};
	AUTO_SCALE_MODEL struct scale_model model;
	model_of_labels(NOW, &model);
	scale_state_try(&other, &model.groups.v[0], NOW);
	scale_pairs_add(&model.nodes.v[0].labels, "pool", "cpu");
	REPLACE(model.shapes.v[0].selector.v[0].value, mem_strdup("cpu"));
	model.now_ms = NOW + 6 * MINUTE;
	assert_true(is_held(&other, &model));
}

static void test_read_and_written(void **state UNUSED)
{
	static const char text[] =
		"{\"version\":1,\"looked\":\"2026-11-27T05:00:00.000Z\","
		"\"groups\":{\"a\":{\"failure\":\"capacity\",\"text\":\"no "
		"p4d\",\"failures\":2,\"wait_until\":\"2026-11-27T05:00:00.000Z\","
		"\"awaited\":[\"i-1\",\"i-3\"],\"joined\":[\"i-2\"]},\"b\":{\"grow\":{"
		"\"token\":\"t\",\"to\":9,\"asked\":\"2026-11-27T05:00:00.000Z\","
		"\"due_to\":8,\"due\":\"2026-11-27T04:00:00.000Z\",\"answered\":true}},\"c\":{"
		"\"tried\":{\"template\":\"0011223344556677\",\"since\":"
		"\"2026-11-27T05:00:00.000Z\"},\"mismatches\":[{\"label\":\"pool\",\"told\":"
		"\"gpu\",\"node\":\"n1\"},{\"taint\":\"team\",\"found\":\"\",\"effect\":"
		"\"NoExecute\",\"node\":\"n1\"}],\"shown\":\"2026-11-27T05:00:00.000Z\","
		"\"disappointments\":2}}}";
	AUTO_SCALE_STATE struct scale_state s = {0};

	read_text(text, &s);
	AUTO_FREE char *again = written(&s);
	assert_string_equal(again, text);
}

/* What another version wrote is refused; what is odd in a group does no harm. */
static void test_what_is_no_state(void **state UNUSED)
{
	static const char *const bad[] = {"[]", "{}", "{\"version\":2,\"groups\":{}}",
		"{\"version\":1}", "{\"version\":1,\"groups\":[]}", "null"};
	AUTO_SCALE_STATE struct scale_state s = {0};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_JSON struct json *json = NULL;
		assert_int_equal(json_parse(bad[i], strlen(bad[i]), 100, "t", &json, NULL), 0);
		assert_true(scale_state_read(json, &s, NULL) < 0);
	}
	assert_int_equal(scale_state_read(NULL, &s, NULL), 0);
	read_text("{\"version\":1,\"groups\":{\"a\":{\"failure\":\"odd\",\"wait_until\":3,"
		  "\"failures\":\"x\",\"grow\":[]},\"b\":7}}",
		&s);
	assert_int_equal(s.groups.n, 1);
	assert_int_equal(s.groups.v[0].failure, SCALE_FAILED_OTHER);
	assert_int_equal(s.groups.v[0].wait_until_ms, 0);
	assert_null(s.groups.v[0].token);
}

/* A text of a provider is cut where a character ends. */
static void test_long_texts(void **state UNUSED)
{
	AUTO_SCALE_STATE struct scale_state s = {0};
	AUTO_BUF struct buf text = buf_with(4096);

	buf_addc(&text, 'x');
	for (int i = 0; i < 200; i++)
		buf_adds(&text, "ä");
	scale_state_fail(&s, "a", SCALE_FAILED_OTHER, text.data, NOW);
	assert_int_equal(strlen(s.groups.v[0].text), STATE_TEXT_MAX - 1);
	assert_true(str_is_utf8(s.groups.v[0].text, STATE_TEXT_MAX - 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_waits),
		cmocka_unit_test(test_failures_in_a_row),
		cmocka_unit_test(test_waits_by_a_clock_that_steps),
		cmocka_unit_test(test_times_of_a_clock_that_stepped),
		cmocka_unit_test(test_machines_by_a_clock_that_steps),
		cmocka_unit_test(test_a_grow_keeps_its_token),
		cmocka_unit_test(test_a_grow_that_was_not_sent),
		cmocka_unit_test(test_what_is_over_is_forgotten),
		cmocka_unit_test(test_machines_that_do_not_come),
		cmocka_unit_test(test_grows_that_are_dropped),
		cmocka_unit_test(test_machines_that_were_nodes),
		cmocka_unit_test(test_turns_that_are_rare),
		cmocka_unit_test(test_clocks_that_differ),
		cmocka_unit_test(test_what_is_not_listed_for_a_moment),
		cmocka_unit_test(test_another_id),
		cmocka_unit_test(test_a_group_that_comes_back),
		cmocka_unit_test(test_many_machines),
		cmocka_unit_test(test_too_many_machines),
		cmocka_unit_test(test_rooms_of_nodes_that_have_gone),
		cmocka_unit_test(test_nodes_that_are_not_as_their_template_says),
		cmocka_unit_test(test_what_a_node_has_shown_is_remembered),
		cmocka_unit_test(test_faults_that_hold_no_longer),
		cmocka_unit_test(test_read_and_written),
		cmocka_unit_test(test_what_is_no_state),
		cmocka_unit_test(test_long_texts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
