/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/record/roles.h"
#include "core/record/spec.h"
#include "tmpfix.h"

/* Roles of a file of that text, checked as a submit does: the run's command is `run`. */
static int roles_test_read(const char *yaml, struct spec *ret, struct err *err)
{
	AUTO_CONFIG struct config *config = NULL;
	AUTO_FREE char *path = fs_join(tmp, "config.yaml");
	const struct config_files files = {.user = path};

	int r = fs_replace(path, yaml, strlen(yaml), 0600, FS_SYNC_NONE, err);
	if (r == 0)
		r = config_load(&files, &config, err);
	if (r == 0)
		r = roles_from_config(config, &ret->roles, err);
	strv_add(&ret->command, "run");
	ret->cwd = mem_strdup(".");
	ret->resources.nodes = ret->roles.list.n ? roles_sum(&ret->roles) : 3;
	ret->runtime.gpus = 2;
	ret->resources.cpus_milli = 500;
	return r < 0 ? r : roles_check(ret, err);
}

static const char three[] =
	"roles:\n"
	"  learner: {gpus: 4, command: [learn, '{x}'], env: {A: '1', B: '{learner.0}'}}\n"
	"  actors-2: {nodes: 3, cpus: 1.5, memory: 2Gi, gpus: 0,\n"
	"    command: 'act {learner.0}:{actors-2.2} {}'}\n"
	"  eval:\n"
	"ends_with: learner\n";

static void test_ranks(void **state)
{
	AUTO_SPEC struct spec spec = {0};
	AUTO_ERR struct err err = {0};
	struct roles_part part;

	assert_int_equal(roles_test_read(three, &spec, &err), 0);
	assert_int_equal(roles_count(&spec), 3);
	assert_int_equal(spec.resources.nodes, 5);
	roles_of_rank(&spec, 0, &part);
	assert_string_equal(part.name, "learner");
	assert_int_equal(part.first, 0);
	assert_int_equal(part.nodes, 1);
	assert_int_equal(part.gpus, 4);
	assert_int_equal(part.cpus_milli, 500);
	assert_string_equal(part.command->v[0], "learn");
	assert_false(part.shell);
	assert_true(part.is_deciding);
	roles_of_rank(&spec, 3, &part);
	assert_string_equal(part.name, "actors-2");
	assert_int_equal(part.index, 1);
	assert_int_equal(part.first, 1);
	assert_int_equal(part.rank, 2);
	assert_int_equal(part.nodes, 3);
	assert_int_equal(part.gpus, 0);
	assert_int_equal(part.cpus_milli, 1500);
	assert_int_equal(part.memory_bytes, 2ULL << 30);
	assert_true(part.shell);
	assert_false(part.is_deciding);
	roles_of_rank(&spec, 4, &part);
	assert_string_equal(part.name, "eval");
	assert_int_equal(part.rank, 0);
	assert_int_equal(part.gpus, 2);
	assert_string_equal(part.command->v[0], "run");
}

static void test_no_roles(void **state)
{
	AUTO_SPEC struct spec spec = {0}, same = {0};
	AUTO_STRV struct strv env = {0}, addresses = {0};
	AUTO_JSON struct json *doc = json_object();
	struct roles_part part;
	int first, nodes;

	assert_int_equal(roles_test_read("name: a\n", &spec, NULL), 0);
	assert_int_equal(roles_count(&spec), 1);
	roles_of_rank(&spec, 2, &part);
	assert_null(part.name);
	assert_int_equal(part.first, 0);
	assert_int_equal(part.rank, 2);
	assert_int_equal(part.nodes, 3);
	assert_int_equal(part.gpus, 2);
	assert_true(part.is_deciding);
	roles_add_env(&spec, 2, &addresses, &env);
	assert_int_equal(env.n, 0);
	AUTO_FREE char *text = roles_fill(&spec, &addresses, "{learner.0}");
	assert_string_equal(text, "{learner.0}");
	assert_int_equal(spec_of_role(&spec, 0, &addresses, &same, NULL), 0);
	assert_int_equal(same.resources.nodes, 3);
	roles_to_record(&spec.roles, doc);
	assert_null(json_first(doc));
	AUTO_FREE char *sentence = roles_rank_text(doc, 2);
	assert_string_equal(sentence, "rank 2");
	assert_int_equal(roles_find(doc, "learner", &first, &nodes, NULL), -ERR_USAGE);
}

static void test_places(void **state)
{
	AUTO_SPEC struct spec spec = {0}, learner = {0}, actors = {0}, unfilled = {0};
	AUTO_STRV struct strv env = {0}, addresses = {0};

	assert_int_equal(roles_test_read(three, &spec, NULL), 0);
	strv_add(&spec.env, "A=0");
	strv_add(&spec.env, "C=3");
	for (int i = 0; i < 5; i++)
		strv_addf(&addresses, "h%d", i);
	roles_add_env(&spec, 3, &addresses, &env);
	AUTO_FREE char *all = strv_join(&env, " ");
	assert_string_equal(all, "DLRUN_ROLE=actors-2 DLRUN_ROLE_RANK=2 DLRUN_ROLE_NODES=3 "
				 "DLRUN_ROLE_LEARNER=h0 DLRUN_ROLE_ACTORS_2=h1,h2,h3 "
				 "DLRUN_ROLE_EVAL=h4");
	assert_int_equal(spec_of_role(&spec, 0, &addresses, &learner, NULL), 0);
	AUTO_FREE char *words = strv_join(&learner.command, " ");
	AUTO_FREE char *pairs = strv_join(&learner.env, " ");
	assert_string_equal(words, "learn {x}");
	assert_string_equal(pairs, "A=1 C=3 B=h0");
	assert_int_equal(learner.resources.nodes, 1);
	assert_int_equal(learner.runtime.gpus, 4);
	assert_int_equal(learner.roles.list.n, 0);
	assert_int_equal(spec_of_role(&spec, 1, &addresses, &actors, NULL), 0);
	assert_string_equal(actors.command.v[0], "act h0:h3 {}");
	assert_true(actors.shell);
	assert_int_equal(actors.resources.memory_bytes, 2ULL << 30);
	assert_int_equal(spec_of_role(&spec, 1, NULL, &unfilled, NULL), 0);
	assert_string_equal(unfilled.command.v[0], "act {learner.0}:{actors-2.2} {}");
	AUTO_FREE char *filled = roles_fill(&spec, &addresses, "x{eval.0}");
	AUTO_FREE char *same = roles_fill(&spec, &addresses, "{other.0} {eval} {{eval.a}");
	assert_string_equal(filled, "xh4");
	assert_string_equal(same, "{other.0} {eval} {{eval.a}");
}

static void test_json(void **state)
{
	AUTO_SPEC struct spec spec = {0}, read = {0};
	AUTO_JSON struct json *doc = json_object(), *json = NULL, *again = NULL;
	AUTO_BUF struct buf text, other;
	AUTO_ERR struct err err = {0};
	int first = 0, nodes = 0;

	buf_init(&text, JSON_SIZE_MAX);
	buf_init(&other, JSON_SIZE_MAX);
	assert_int_equal(roles_test_read(three, &spec, NULL), 0);
	json = spec_to_json(&spec);
	assert_int_equal(spec_from_json(json, &read, NULL), 0);
	again = spec_to_json(&read);
	json_print(json, &text);
	json_print(again, &other);
	assert_string_equal(text.data, other.data);
	assert_string_equal(read.roles.ends_with, "learner");
	assert_int_equal(read.roles.list.v[2].gpus, ROLES_GPUS_UNSET);
	/* Their nodes are those of the run. */
	json_set_int(json_sub(json, "resources"), "nodes", 4);
	AUTO_SPEC struct spec wrong = {0};
	assert_int_equal(spec_from_json(json, &wrong, NULL), -ERR_IO);

	roles_to_record(&spec.roles, doc);
	AUTO_FREE char *name = roles_rank_text(doc, 3), *none = roles_rank_text(doc, 5);
	assert_string_equal(name, "actors-2.2");
	assert_string_equal(none, "rank 5");
	assert_int_equal(roles_find(doc, "eval", &first, &nodes, NULL), 0);
	assert_int_equal(first, 4);
	assert_int_equal(nodes, 1);
	assert_int_equal(roles_find(doc, "actor", &first, &nodes, &err), -ERR_USAGE);
	assert_string_equal(
		err.message, "the run has no role 'actor': it has learner, actors-2, eval");
}

static void test_hostile_json(void **state)
{
	static const char *const texts[] = {
		"{\"roles\":[{\"name\":\"A\",\"nodes\":1}]}",
		"{\"roles\":[{\"name\":\"a\",\"nodes\":0}]}",
		"{\"roles\":[{\"name\":\"a\",\"nodes\":99999999999}]}",
		"{\"roles\":[{\"name\":\"a\",\"nodes\":1,\"gpus\":-2}]}",
		"{\"roles\":[{\"name\":\"a\",\"nodes\":1,\"cpus_milli\":-2}]}",
		"{\"roles\":[{\"name\":\"a\",\"nodes\":1},{\"name\":\"a\",\"nodes\":1}]}",
		"{\"roles\":[{\"name\":\"a\",\"nodes\":1,\"command\":[1]}]}",
		"{\"roles\":[{\"name\":\"a\",\"nodes\":1}],\"ends_with\":\"b\"}",
		"{\"roles\":[5]}",
		"{\"roles\":[],\"ends_with\":\"b\"}",
		"{\"roles\":[{\"name\":\"a\",\"nodes\":600},{\"name\":\"b\",\"nodes\":600}]}",
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		AUTO_JSON struct json *json = NULL;
		struct roles roles = {0};
		assert_int_equal(
			json_parse(texts[i], strlen(texts[i]), 1000, "it", &json, NULL), 0);
		if (roles_from_json(json, &roles, NULL) != -ERR_IO)
			fail_msg("%s was taken", texts[i]);
		roles_done(&roles);
	}
	AUTO_JSON struct json *doc = NULL;
	static const char record[] =
		"{\"roles\":{\"a\":-1,\"b\":\"x\",\"c\":1e12,\"\\u001b[2J\":9,\"\":3,\"d\":2}}";
	assert_int_equal(json_parse(record, sizeof(record) - 1, 1000, "it", &doc, NULL), 0);
	AUTO_FREE char *name = roles_rank_text(doc, 1), *negative = roles_rank_text(doc, -1);
	assert_string_equal(name, "d.1");
	AUTO_FREE char *summary = roles_summary(doc);
	assert_string_equal(summary, "d 2");
	assert_string_equal(negative, "rank -1");
}

static void test_errors(void **state)
{
	static const struct {
		const char *yaml, *message, *hint;
	} cases[] = {
		{"ends_with: a\n", "ends_with is for a run with roles", "roles: {a: {nodes: 1}}"},
		{"roles: {Learner: {}}\n", "'Learner' is not a valid name of a role", NULL},
		{"roles: {a-: {}}\n", "'a-' is not a valid name", NULL},
		{"roles: {0a: {}}\n", "'0a' is not a valid name", NULL},
		{"roles: {abcdefghijklmnopqrstu: {}}\n", "is not a valid name", NULL},
		{"roles: {rank: {}}\n", "a role cannot be named 'rank'", NULL},
		{"roles: {a: {nodes: 0}}\n", "roles.a.nodes must be", NULL},
		{"roles: {a: {nodes: many}}\n", "roles.a.nodes must be", NULL},
		{"roles: {a: {gpus: -1}}\n", "roles.a.gpus must be", NULL},
		{"roles: {a: {cpus: x}}\n", "roles.a.cpus: 'x' is not a number of CPUs", NULL},
		{"roles: {a: {memory: x}}\n", "roles.a.memory: ", NULL},
		{"roles: {a: {nodes: 600}, b: {nodes: 401}}\n", "more than 1000 nodes", NULL},
		{"roles: {a: {env: {DLRUN_X: y}}}\n", "roles.a.env DLRUN_X: names that begin",
			NULL},
		{"roles: {a: {env: {API_TOKEN: y}}}\n", "API_TOKEN looks like a secret",
			"secrets: [API_TOKEN]"},
		{"roles: {a: {}}\nends_with: b\n", ":2:12: ends_with: there is no role 'b'",
			"ends_with: a"},
		{"roles: {a: {command: 'x {b.0}'}}\n", "{b.0}: there is no role 'b'", "{a.0}"},
		{"roles: {a: {nodes: 2, command: [x, '{a.2}']}}\n",
			"{a.2}: role a has the ranks 0 to 1", "{a.1}"},
		{"roles: {a: {env: {X: '{a.7}'}}}\n", "{a.7}: role a has the ranks 0 to 0",
			"{a.0}"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		AUTO_SPEC struct spec spec = {0};
		AUTO_ERR struct err err = {0};
		if (roles_test_read(cases[i].yaml, &spec, &err) == 0)
			fail_msg("%s was taken", cases[i].yaml);
		if (!strstr(err.message, cases[i].message))
			fail_msg("%s gave %s", cases[i].yaml, err.message);
		if (cases[i].hint)
			assert_string_equal(err.hint, cases[i].hint);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_ranks, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_no_roles, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_places, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_json, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_hostile_json, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_errors, make_tmp, remove_tmp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
