/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "core/store/store.h"

struct place {
	char dir[64], db[80];
};

static int setup(void **state)
{
	struct place *place = mem_alloc(1, sizeof(*place));

	snprintf(place->dir, sizeof(place->dir), "/tmp/dlrun-test-store-XXXXXX");
	if (!mkdtemp(place->dir))
		return -1;
	snprintf(place->db, sizeof(place->db), "%s/runs.db", place->dir);
	*state = place;
	return 0;
}

static int teardown(void **state)
{
	struct place *place = *state;
	int r = fs_remove_tree(AT_FDCWD, place->dir, NULL);

	free(place);
	return r;
}

static struct store *open_store(const struct place *place)
{
	AUTO_ERR struct err err = {0};
	struct store *store = NULL;

	if (store_open(place->dir, &store, &err) < 0)
		fail_msg("%s", err.message);
	return store;
}

static struct run *make_run(const char *id, int64_t submitted_ms, const char *user)
{
	AUTO_FREE char *name = mem_strndup(id, strlen(id) - RUN_SUFFIX - 1);
	struct run *run = run_new(id, name);

	run->spec = json_object();
	json_set_str(run->spec, "schema", "dlrun/spec/v1");
	run_set_time(json_sub(run->doc, "times"), "submitted", submitted_ms);
	json_set_str(json_sub(run->doc, "target"), "name", "local");
	json_set_str(run->doc, "user", user);
	return run;
}

static void insert(struct store *store, const char *id, int64_t submitted_ms, const char *user)
{
	AUTO_RUN struct run *run = make_run(id, submitted_ms, user);
	AUTO_ERR struct err err = {0};

	if (store_insert(store, run, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(run->revision, 1);
}

static void expect_resolved(struct store *store, const char *text, const char *id)
{
	AUTO_RUN struct run *run = NULL;
	AUTO_ERR struct err err = {0};

	if (store_resolve(store, text, &run, &err) < 0)
		fail_msg("%s: %s", text, err.message);
	assert_string_equal(run_id(run), id);
}

static void expect_unresolved(
	struct store *store, const char *text, enum err_id id, const char *evidence)
{
	AUTO_ERR struct err err = {0};
	struct run *run = NULL;

	assert_true(store_resolve(store, text, &run, &err) < 0);
	assert_null(run);
	assert_int_equal(err.id, id);
	assert_non_null(err.hint);
	if (evidence) {
		assert_true(err.n_evidence > 0);
		assert_string_equal(err.evidence[0], evidence);
	} else {
		assert_int_equal(err.n_evidence, 0);
	}
}

/*
 * Rows
 */

static void test_round_trip(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);
	AUTO_RUN struct run *run = make_run("resnet-3k2f9", 1000, "me");
	AUTO_RUN struct run *got = NULL;
	AUTO_BUF struct buf before, after;
	struct stat st;

	assert_int_equal(store_insert(store, run, NULL), 0);
	assert_int_equal(store_get(store, "resnet-3k2f9", &got, NULL), 0);
	buf_init(&before, 1 << 16);
	buf_init(&after, 1 << 16);
	json_print(run->doc, &before);
	json_print(got->doc, &after);
	assert_string_equal(before.data, after.data);
	assert_string_equal(json_get_str(got->spec, "schema"), "dlrun/spec/v1");
	assert_int_equal(got->revision, 1);
	assert_int_equal(stat(((struct place *)*state)->db, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
}

static void test_an_id_is_taken_once(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);
	AUTO_RUN struct run *run = make_run("a-22222", 1, "me");
	AUTO_ERR struct err err = {0};

	insert(store, "a-22222", 1, "me");
	assert_int_equal(store_insert(store, run, &err), -ERR_USAGE);
	assert_int_equal(err.id, E_RUN_NAME);
	insert(store, "a-33333", 1, "me");
}

static void test_updates_see_each_other(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);
	AUTO_RUN struct run *first = NULL;
	AUTO_RUN struct run *second = NULL;
	AUTO_ERR struct err err = {0};

	insert(store, "a-22222", 1, "me");
	assert_int_equal(store_get(store, "a-22222", &first, NULL), 0);
	assert_int_equal(store_get(store, "a-22222", &second, NULL), 0);
	run_set_state(first, RUN_QUEUED);
	assert_int_equal(store_update_known(store, first, NULL), 0);
	assert_int_equal(first->revision, 2);
	run_set_state(second, RUN_LOST);
	assert_int_equal(store_update_known(store, second, &err), -ERR_CONFLICT);
	assert_int_equal(err.id, E_STORE_CHANGED);
	run_set_state(first, RUN_RUNNING);
	assert_int_equal(store_update_known(store, first, NULL), 0);
	run_free(TAKE(second));
	assert_int_equal(store_get(store, "a-22222", &second, NULL), 0);
	assert_int_equal(run_state(second), RUN_RUNNING);
	assert_int_equal(second->revision, 3);
}

static void test_update_all_leaves_what_changed(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO(run_list_done) struct run_list after = {0};
	AUTO_RUN struct run *other = NULL;
	struct store_filter filter = {0};

	insert(store, "a-22222", 1, "me");
	insert(store, "b-22222", 2, "me");
	assert_int_equal(store_list(store, &filter, &runs, NULL), 0);
	assert_int_equal(store_get(store, "a-22222", &other, NULL), 0);
	run_set_state(other, RUN_CANCELLED);
	assert_int_equal(store_update_known(store, other, NULL), 0);
	for (size_t i = 0; i < runs.n; i++)
		run_set_state(runs.v[i], RUN_LOST);
	assert_int_equal(store_update_all(store, &runs, NULL), 0);
	assert_int_equal(runs.v[0]->revision, 2);
	assert_int_equal(runs.v[1]->revision, 1);
	assert_int_equal(store_list(store, &filter, &after, NULL), 0);
	assert_int_equal(run_state(after.v[0]), RUN_LOST);
	assert_int_equal(run_state(after.v[1]), RUN_CANCELLED);
	runs.n = 0;
	assert_int_equal(store_update_all(store, &runs, NULL), 0);
	runs.n = 2;
}

static void test_insert_new_leaves_what_is_there(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO(run_list_done) struct run_list after = {0};
	struct store_filter filter = {0};

	insert(store, "a-22222", 1, "me");
	insert(store, "b-22222", 2, "me");
	assert_int_equal(store_list(store, &filter, &runs, NULL), 0);
	assert_int_equal(store_remove(store, "a-22222", NULL), 0);
	for (size_t i = 0; i < runs.n; i++)
		run_set_state(runs.v[i], RUN_LOST);
	assert_int_equal(store_insert_new(store, &runs, NULL), 0);
	assert_int_equal(store_insert_new(store, &runs, NULL), 0);
	assert_int_equal(store_list(store, &filter, &after, NULL), 0);
	assert_int_equal(after.n, 2);
	assert_string_equal(run_id(after.v[0]), "a-22222");
	assert_int_equal(run_state(after.v[0]), RUN_LOST);
	assert_int_equal(after.v[0]->revision, 1);
	assert_int_equal(run_state(after.v[1]), RUN_PREPARING);
}

static int set_note(void *ctx, struct run *run, struct err *err)
{
	const char *note = ctx;

	if (!note)
		return 0;
	if (str_eq(note, "fail"))
		return err_set(err, E_RUN_ENDED, "no");
	json_set_str(run->doc, "note", note);
	return 1;
}

/* The change of one and the others that come with it: all or none. */
static void test_change_and_insert(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);
	AUTO_RUN struct run *run = NULL, *b = run_new("b-22222", "b"), *c = run_new("c-22222", "c");
	struct run *list[] = {b, c};
	const struct run_list others = {.v = list, .n = 2, .cap = 2};
	AUTO_ERR struct err err = {0};
	char note[] = "held", bad[] = "fail";
	size_t n = 0;

	insert(store, "a-22222", 1, "me");
	assert_true(
		store_change_and_insert(store, "a-22222", set_note, bad, &others, NULL, &err) < 0);
	assert_int_equal(err.id, E_RUN_ENDED);
	err_clear(&err);
	AUTO_FREE char *huge = mem_alloc((9 << 20) + 1, 1);
	memset(huge, 'x', 9 << 20);
	json_set_str(c->doc, "note", huge);
	assert_true(
		store_change_and_insert(store, "a-22222", set_note, note, &others, NULL, &err) < 0);
	assert_int_equal(store_get(store, "a-22222", &run, NULL), 0);
	assert_string_equal(json_get_str(run->doc, "note"), "");
	run_free(TAKE(run));
	assert_int_equal(store_count(store, &n, NULL), 0);
	assert_int_equal(n, 1);
	json_set_str(c->doc, "note", "there");
	assert_int_equal(store_insert(store, c, NULL), 0);
	json_set_str(c->doc, "note", "not written over it");
	assert_int_equal(
		store_change_and_insert(store, "a-22222", set_note, note, &others, &run, NULL), 0);
	assert_string_equal(json_get_str(run->doc, "note"), "held");
	run_free(TAKE(run));
	assert_int_equal(store_count(store, &n, NULL), 0);
	assert_int_equal(n, 3);
	assert_int_equal(store_get(store, "c-22222", &run, NULL), 0);
	assert_string_equal(json_get_str(run->doc, "note"), "there");
}

static void test_change(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);
	AUTO_RUN struct run *run = NULL;
	AUTO_ERR struct err err = {0};
	char note[] = "hello", bad[] = "fail";

	insert(store, "a-22222", 1, "me");
	assert_int_equal(store_change(store, "a-22222", set_note, note, &run, NULL), 0);
	assert_string_equal(json_get_str(run->doc, "note"), "hello");
	assert_int_equal(run->revision, 2);
	json_set_str(run->doc, "group", "g");
	assert_int_equal(store_update_known(store, run, NULL), 0);
	assert_int_equal(store_change(store, "a-22222", set_note, NULL, NULL, NULL), 0);
	assert_int_equal(store_change(store, "a-22222", set_note, bad, NULL, &err), -ERR_CONFLICT);
	assert_int_equal(err.id, E_RUN_ENDED);
	run_free(TAKE(run));
	assert_int_equal(store_get(store, "a-22222", &run, NULL), 0);
	assert_int_equal(run->revision, 3);
	assert_int_equal(store_change(store, "b-22222", set_note, note, NULL, &err), -ERR_NOTFOUND);
}

static void test_remove(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);
	AUTO_ERR struct err err = {0};
	struct run *run;

	insert(store, "a-22222", 1, "me");
	assert_int_equal(store_remove(store, "a-22222", NULL), 0);
	assert_int_equal(store_get(store, "a-22222", &run, &err), -ERR_NOTFOUND);
	assert_int_equal(err.id, E_RUN_NOT_FOUND);
	assert_int_equal(store_remove(store, "a-22222", &err), -ERR_NOTFOUND);
	insert(store, "a-22222", 1, "me");
}

static void test_remove_all(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);
	AUTO_STRV struct strv ids = {0};
	size_t n;

	insert(store, "a-22222", 1, "me");
	insert(store, "b-22222", 2, "me");
	insert(store, "c-22222", 3, "me");
	strv_add(&ids, "a-22222");
	strv_add(&ids, "gone-22222");
	strv_add(&ids, "c-22222");
	assert_int_equal(store_remove_all(store, &ids, NULL), 0);
	assert_int_equal(store_count(store, &n, NULL), 0);
	assert_int_equal(n, 1);
}

static void test_text_of_any_kind(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);
	AUTO_RUN struct run *run = make_run("a-22222", 1, "o'brien\"; DROP TABLE runs;--");
	AUTO_RUN struct run *got = NULL;
	struct store_filter filter = {.user = "o'brien\"; DROP TABLE runs;--"};
	AUTO(run_list_done) struct run_list runs = {0};

	json_set_bytes(json_sub(run->doc, "origin"), "root", "/a\xff\n", 4);
	assert_int_equal(store_insert(store, run, NULL), 0);
	assert_int_equal(store_list(store, &filter, &runs, NULL), 0);
	assert_int_equal(runs.n, 1);
	assert_int_equal(store_get(store, "a-22222", &got, NULL), 0);
	assert_string_equal(json_get_str(json_get(got->doc, "origin"), "root_b64"), "L2H/Cg==");
}

static void test_a_record_has_a_limit(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);
	AUTO_RUN struct run *run = make_run("a-22222", 1, "me");
	AUTO_FREE char *note = mem_alloc(9 << 20, 1);
	AUTO_ERR struct err err = {0};

	memset(note, 'x', (9 << 20) - 1);
	json_set_str(run->doc, "note", note);
	assert_int_equal(store_insert(store, run, &err), -ERR_LIMIT);
	insert(store, "a-22222", 1, "me");
}

/*
 * Finding
 */

static void test_list(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);
	static const struct {
		struct store_filter filter;
		const char *want;
	} cases[] = {
		{{0}, "c-22222 b-22222 a-33333 a-22222 "},
		{{.limit = 2}, "c-22222 b-22222 "},
		{{.limit = 2, .skip = 1}, "b-22222 a-33333 "},
		{{.user = "me"}, "c-22222 a-33333 a-22222 "},
		{{.id_prefix = "a"}, "a-33333 a-22222 "},
		{{.id_prefix = "a-3"}, "a-33333 "},
		{{.id_prefix = ""}, "c-22222 b-22222 a-33333 a-22222 "},
		{{.since_ms = 2000}, "c-22222 a-33333 "},
		{{.target = "local"}, "c-22222 b-22222 a-33333 a-22222 "},
		{{.target = "lab"}, ""},
		{{.unfinished_only = true}, "b-22222 a-33333 a-22222 "},
		{{.unfinished_only = true, .limit = 1, .user = "me"}, "a-33333 "},
	};
	AUTO_RUN struct run *run = NULL;
	size_t count = 1;

	assert_int_equal(store_count(store, &count, NULL), 0);
	assert_int_equal(count, 0);
	insert(store, "a-22222", 1000, "me");
	insert(store, "a-33333", 5000, "me");
	insert(store, "b-22222", 1000, "you");
	insert(store, "c-22222", 2000, "me");
	assert_int_equal(store_get(store, "c-22222", &run, NULL), 0);
	run_set_state(run, RUN_FAILED);
	assert_int_equal(store_update_known(store, run, NULL), 0);
	assert_int_equal(store_count(store, &count, NULL), 0);
	assert_int_equal(count, 4);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		AUTO(run_list_done) struct run_list runs = {0};
		char ids[100] = "";
		assert_int_equal(store_list(store, &cases[i].filter, &runs, NULL), 0);
		for (size_t n = 0; n < runs.n; n++) {
			strcat(ids, run_id(runs.v[n]));
			strcat(ids, " ");
		}
		assert_string_equal(ids, cases[i].want);
	}
}

/*
 * Studies
 */

static void insert_member(struct store *store, const char *id, const char *group)
{
	AUTO_RUN struct run *run = make_run(id, 1, "me");
	AUTO_ERR struct err err = {0};

	json_set_str(run->doc, "group", group);
	if (store_insert(store, run, &err) < 0)
		fail_msg("%s", err.message);
}

/* ids: of the runs that text names, with blanks; group: NULL: it names one run. */
static void expect_all(struct store *store, const char *text, const char *group, const char *ids)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FREE char *found = NULL;
	AUTO_STRV struct strv words = {0};
	AUTO_ERR struct err err = {0};

	if (store_resolve_all(store, text, &runs, &found, &err) < 0)
		fail_msg("%s: %s", text, err.message);
	vec_foreach (struct run *, run, &runs)
		strv_add(&words, run_id(*run));
	AUTO_FREE char *joined = strv_join(&words, " ");
	assert_string_equal(joined, ids);
	if (group)
		assert_string_equal(found, group);
	else
		assert_null(found);
}

static void insert_studies(struct store *store)
{
	/* Not in the order of the index, and some names begin like others. */
	static const char *const tiger[] = {"tiger-1-4k2x9", "tiger-0-4k2x9", "tiger-10-4k2x9",
		"tiger-7-4k2x9", "tiger-2-4k2x9", "tiger-70-4k2x9"};

	for (size_t i = 0; i < ARRAY_LEN(tiger); i++)
		insert_member(store, tiger[i], "tiger-4k2x9");
	insert_member(store, "b-22222", "mine");
	insert_member(store, "a-22222", "mine");
	insert_member(store, "c-22222", "mine two");
	insert_member(store, "resnet-22222", NULL);
	insert_member(store, "resnet-33333", NULL);
	insert_member(store, "lion-0-5k2x9", "lion-5k2x9");
	insert_member(store, "lion-0-6k2x9", "lion-6k2x9");
	insert_member(store, "lion-1-6k2x9", "lion-6k2x9");
	insert_member(store, "seal-0-7k2x9", "seal-7k2x9");
	insert_member(store, "seal-1-7k2x9", "seal-7k2x9");
	insert_member(store, "sealed-22222", NULL);
}

#define TIGERS                                                                                     \
	"tiger-0-4k2x9 tiger-1-4k2x9 tiger-2-4k2x9 tiger-7-4k2x9 tiger-10-4k2x9 tiger-70-4k2x9"

static void test_resolve_all(void **state)
{
	static const struct {
		const char *text, *group, *ids;
	} rows[] = {
		{"tiger-7-4k2x9", NULL, "tiger-7-4k2x9"},
		{"tiger-7", NULL, "tiger-7-4k2x9"},
		{"tiger-70", NULL, "tiger-70-4k2x9"},
		{"tiger-1", NULL, "tiger-1-4k2x9"},
		{"tiger-4k2x9", "tiger-4k2x9", TIGERS},
		{"tiger-4k", "tiger-4k2x9", TIGERS},
		{"tiger", "tiger-4k2x9", TIGERS},
		{"ti", "tiger-4k2x9", TIGERS},
		{"mine", "mine", "b-22222 a-22222"},
		{"mine two", "mine two", "c-22222"},
		{"b", NULL, "b-22222"},
		{"lion-0-5", NULL, "lion-0-5k2x9"},
		{"lion-1", NULL, "lion-1-6k2x9"},
		{"lion-6k2x9", "lion-6k2x9", "lion-0-6k2x9 lion-1-6k2x9"},
		{"lion-5", "lion-5k2x9", "lion-0-5k2x9"},
		{"seal-7k2x9", "seal-7k2x9", "seal-0-7k2x9 seal-1-7k2x9"},
		{"sealed", NULL, "sealed-22222"},
		{"@", NULL, "sealed-22222"},
		{"@-1", NULL, "seal-1-7k2x9"},
	};
	AUTO_STORE struct store *store = open_store(*state);

	insert_studies(store);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		expect_all(store, rows[i].text, rows[i].group, rows[i].ids);
}

static void test_resolve_is_ambiguous(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);

	insert_studies(store);
	expect_unresolved(store, "tiger-4k2x9", E_RUN_STUDY, "tiger-0-4k2x9, preparing");
	expect_unresolved(store, "tiger", E_RUN_STUDY, "tiger-0-4k2x9, preparing");
	expect_unresolved(store, "mine", E_RUN_STUDY, "b-22222, preparing");
	expect_unresolved(store, "resnet", E_USAGE, "resnet-33333, preparing");
	/* A name that two have, and two studies of one name. */
	expect_unresolved(store, "lion-0", E_USAGE, "lion-0-6k2x9, preparing");
	expect_unresolved(store, "lion", E_USAGE, "lion-6k2x9, a study");
	/* A run begins so, too. */
	expect_unresolved(store, "seal", E_USAGE, "sealed-22222, preparing");
	expect_unresolved(store, "min", E_USAGE, "mine two, a study");
	expect_unresolved(store, "nothing-here", E_RUN_NOT_FOUND, NULL);
	/* A study of one run is that run, where one is meant. */
	expect_resolved(store, "lion-5k2x9", "lion-0-5k2x9");
	expect_resolved(store, "mine two", "c-22222");
}

static void expect_group(struct store *store, const char *text, const char *group)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FREE char *found = NULL;
	int r = store_resolve_group(store, text, &runs, &found, NULL);

	assert_int_equal(r == 0, group != NULL);
	if (group)
		assert_string_equal(found, group);
}

static void test_resolve_group(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);

	insert_studies(store);
	/* Runs that begin so do not matter. */
	expect_group(store, "sea", "seal-7k2x9");
	expect_group(store, "mine", "mine");
	expect_group(store, "mine ", "mine two");
	expect_group(store, "lion-6", "lion-6k2x9");
	expect_group(store, "lion", NULL);
	expect_group(store, "resnet", NULL);
	expect_group(store, "tiger-7-4k2x9", NULL);
}

static void test_resolve_names_groups_exactly(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);
	AUTO_RUN struct run *run = make_run("liar-22222", 1, "me");

	/* The text of a group, where there is none. */
	json_set_str(run->doc, "note", "\"group\":\"fake\"");
	json_set_str(json_sub(run->doc, "tags"), "group", "fake");
	assert_int_equal(store_insert(store, run, NULL), 0);
	insert_member(store, "a-22222", "say \"hi\" \\ %_");
	insert_member(store, "b-22222", "Ünïcode");
	expect_unresolved(store, "fake", E_RUN_NOT_FOUND, NULL);
	expect_all(store, "say \"hi\" \\ %_", "say \"hi\" \\ %_", "a-22222");
	expect_all(store, "Ünïcode", "Ünïcode", "b-22222");
	expect_unresolved(store, "Ünï", E_RUN_NOT_FOUND, NULL);
}

static void test_resolve(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);

	expect_unresolved(store, "@", E_RUN_NOT_FOUND, NULL);
	insert(store, "resnet-3k2f9", 1, "me");
	insert(store, "resnet-3k2zz", 2, "me");
	insert(store, "unet-22222", 3, "you");
	expect_resolved(store, "@", "unet-22222");
	store_set_user(store, "me");
	expect_resolved(store, "@", "resnet-3k2zz");
	expect_resolved(store, "@-0", "resnet-3k2zz");
	expect_resolved(store, "@-1", "resnet-3k2f9");
	expect_resolved(store, "unet", "unet-22222");
	expect_resolved(store, "u", "unet-22222");
	expect_resolved(store, "resnet-3k2f", "resnet-3k2f9");
	expect_resolved(store, "resnet-3k2f9", "resnet-3k2f9");
	expect_unresolved(store, "resnet", E_USAGE, "resnet-3k2zz, preparing");
	expect_unresolved(store, "@-2", E_RUN_NOT_FOUND, NULL);
	expect_unresolved(store, "@-x", E_RUN_NOT_FOUND, NULL);
	expect_unresolved(store, "@1", E_RUN_NOT_FOUND, NULL);
	expect_unresolved(store, "", E_RUN_NOT_FOUND, NULL);
	expect_unresolved(store, "rensnet", E_RUN_NOT_FOUND, "there is resnet-3k2zz");
	expect_unresolved(store, "unet-22223", E_RUN_NOT_FOUND, "there is unet-22222");
	expect_unresolved(store, "UNET", E_RUN_NOT_FOUND, NULL);
	expect_unresolved(store, "%", E_RUN_NOT_FOUND, NULL);
	expect_unresolved(store, "'", E_RUN_NOT_FOUND, NULL);
}

static void test_the_whole_id_wins_over_longer_ones(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);

	insert(store, "a-22222", 1, "me");
	insert(store, "a-22222-33333", 2, "me");
	expect_resolved(store, "a-22222", "a-22222");
}

/*
 * Several processes
 */

enum { RACERS = 20, ROUNDS = 3 };

static int race(const struct place *place, int racer)
{
	for (int i = 0; i < ROUNDS; i++) {
		AUTO_STORE struct store *store = NULL;
		AUTO_ERR struct err err = {0};
		char id[RUN_ID_SIZE], note[] = "x";
		if (store_open(place->dir, &store, &err) < 0) {
			fprintf(stderr, "open: %s\n", err.message);
			return 1;
		}
		run_make_id("race", id);
		AUTO_RUN struct run *run = make_run(id, racer, "me");
		if (store_insert(store, run, &err) < 0 ||
			store_update_known(store, run, &err) < 0 ||
			store_change(store, "counter-22222", set_note, note, NULL, &err) < 0) {
			fprintf(stderr, "racer %d: %s\n", racer, err.message);
			return 1;
		}
	}
	return 0;
}

static void test_many_processes_at_once(void **state)
{
	const struct place *place = *state;
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_RUN struct run *counter = NULL;
	struct store_filter filter = {0};
	AUTO_STORE struct store *store = NULL;
	int go[2], status;

	store = open_store(place);
	insert(store, "counter-22222", 1, "me");
	store_close(TAKE(store));
	assert_int_equal(pipe(go), 0);
	for (int i = 0; i < RACERS; i++) {
		char c;
		if (fork() > 0)
			continue;
		close(go[1]);
		_exit(read(go[0], &c, 1) == 0 ? race(place, i) : 2);
	}
	close(go[0]);
	close(go[1]);
	for (int i = 0; i < RACERS; i++) {
		assert_true(wait(&status) > 0);
		assert_int_equal(status, 0);
	}
	store = open_store(place);
	assert_int_equal(store_list(store, &filter, &runs, NULL), 0);
	assert_int_equal(runs.n, RACERS * ROUNDS + 1);
	assert_int_equal(store_get(store, "counter-22222", &counter, NULL), 0);
	assert_int_equal(counter->revision, RACERS * ROUNDS + 1);
}

static void test_a_new_store_by_many(void **state)
{
	const struct place *place = *state;
	int status;

	for (int i = 0; i < RACERS; i++) {
		struct store *store;
		if (fork() == 0)
			_exit(store_open(place->dir, &store, NULL) == 0 ? 0 : 1);
	}
	for (int i = 0; i < RACERS; i++) {
		assert_true(wait(&status) > 0);
		assert_int_equal(status, 0);
	}
}

/* A writer that dies in the middle of a transaction leaves a journal; whoever comes next undoes
 * it. */
static int die_in_change(void *ctx, struct run *run, struct err *err)
{
	json_set_str(run->doc, "note", "half");
	raise(SIGKILL);
	return 1;
}

static void test_a_killed_writer(void **state)
{
	AUTO_STORE struct store *store = open_store(*state);
	AUTO_RUN struct run *run = NULL;
	int status;

	insert(store, "a-22222", 1, "me");
	store_close(TAKE(store));
	if (fork() == 0) {
		store = open_store(*state);
		store_change(store, "a-22222", die_in_change, NULL, NULL, NULL);
		_exit(0);
	}
	assert_true(wait(&status) > 0);
	assert_true(WIFSIGNALED(status));
	store = open_store(*state);
	assert_int_equal(store_get(store, "a-22222", &run, NULL), 0);
	assert_string_equal(json_get_str(run->doc, "note"), "");
	assert_int_equal(store_update_known(store, run, NULL), 0);
}

/*
 * Files that are off
 */

static void write_db(const struct place *place, const void *data, size_t len)
{
	assert_int_equal(fs_replace(place->db, data, len, 0600, FS_SYNC_NONE, NULL), 0);
}

static void expect_damaged(const struct place *place)
{
	AUTO_ERR struct err err = {0};
	struct store *store;

	assert_int_equal(store_open(place->dir, &store, &err), -ERR_IO);
	assert_int_equal(err.id, E_STORE);
	assert_non_null(strstr(err.message, place->db));
	assert_non_null(strstr(err.hint, ".damaged"));
}

static void test_no_database(void **state)
{
	static const char text[] = "this is no database, but it is long enough to be looked at: "
				   "a header has a hundred bytes, and these are more than that.";

	write_db(*state, text, sizeof(text));
	expect_damaged(*state);
	AUTO_STORE struct store *store = NULL;
	write_db(*state, "", 0);
	store = open_store(*state);
	insert(store, "a-22222", 1, "me");
}

/* Whatever bytes of it are overwritten, an answer comes, and no crash. */
static void test_damaged_anywhere(void **state)
{
	const struct place *place = *state;
	AUTO_STORE struct store *store = open_store(place);
	AUTO_BUF struct buf good = {0};

	for (int i = 0; i < 20; i++) {
		char id[RUN_ID_SIZE];
		run_make_id("some", id);
		insert(store, id, i, "me");
	}
	store_close(TAKE(store));
	assert_int_equal(fs_read(place->db, 1 << 20, &good, NULL, NULL), 0);
	for (int i = 0; i < 300; i++) {
		AUTO_FREE char *bad = mem_dup(good.data, good.len);
		AUTO(run_list_done) struct run_list runs = {0};
		AUTO_ERR struct err err = {0};
		struct store_filter filter = {0};
		size_t at = random_below((uint32_t)good.len - 64);
		random_bytes(bad + at, 1 + random_below(63));
		write_db(place, bad, i % 3 ? good.len : at);
		if (store_open(place->dir, &store, &err) < 0) {
			assert_true(
				err.id == E_STORE || err.id == E_STORE_VERSION || err.id == E_IO);
			continue;
		}
		if (store_list(store, &filter, &runs, &err) < 0)
			assert_int_equal(err.id, E_STORE);
		store_close(TAKE(store));
	}
}

static void test_a_newer_version(void **state)
{
	const struct place *place = *state;
	AUTO_STORE struct store *store = open_store(place);
	AUTO_BUF struct buf data = {0};
	AUTO_ERR struct err err = {0};

	store_close(TAKE(store));
	assert_int_equal(fs_read(place->db, 1 << 20, &data, NULL, NULL), 0);
	/* The file format of SQLite, "The database header": user version at offset 60. */
	data.data[63] = 99;
	write_db(place, data.data, data.len);
	assert_int_equal(store_open(place->dir, &store, &err), -ERR_CONFIG);
	assert_int_equal(err.id, E_STORE_VERSION);
	assert_non_null(strstr(err.hint, "XDG_STATE_HOME="));
}

static void test_a_link_is_not_followed(void **state)
{
	const struct place *place = *state;
	AUTO_ERR struct err err = {0};
	struct store *store;
	char there[100];

	snprintf(there, sizeof(there), "%s/elsewhere", place->dir);
	assert_int_equal(symlink(there, place->db), 0);
	assert_int_equal(store_open(place->dir, &store, &err), -ERR_IO);
	assert_int_equal(access(there, F_OK), -1);
}

static void test_a_missing_directory(void **state)
{
	const struct place *place = *state;
	AUTO_ERR struct err err = {0};
	struct store *store;
	char there[100];

	snprintf(there, sizeof(there), "%s/missing", place->dir);
	assert_int_equal(store_open(there, &store, &err), -ERR_IO);
	assert_non_null(strstr(err.message, "missing/runs.db"));
}

static int use_read_only(const struct place *place)
{
	AUTO_STORE struct store *store = NULL;
	AUTO_RUN struct run *run = NULL;
	AUTO_RUN struct run *new_run = make_run("b-22222", 1, "me");
	AUTO_ERR struct err err = {0};

	if (store_open(place->dir, &store, &err) < 0)
		return 1;
	if (store_get(store, "a-22222", &run, &err) < 0)
		return 2;
	if (store_insert(store, new_run, &err) != -ERR_AUTH || err.id != E_IO_PERMISSION)
		return 3;
	if (store_update_known(store, run, &err) != -ERR_AUTH)
		return 4;
	return 0;
}

static void test_read_only(void **state)
{
	enum { NOBODY = 65534 };
	const struct place *place = *state;
	AUTO_STORE struct store *store = open_store(place);
	int status;

	insert(store, "a-22222", 1, "me");
	store_close(TAKE(store));
	if (geteuid() == 0) {
		assert_int_equal(chown(place->dir, NOBODY, NOBODY), 0);
		assert_int_equal(chown(place->db, NOBODY, NOBODY), 0);
	}
	assert_int_equal(chmod(place->db, 0400), 0);
	assert_int_equal(chmod(place->dir, 0500), 0);
	pid_t pid = fork();
	if (pid == 0) {
		if (geteuid() == 0 && seteuid(NOBODY) < 0)
			_exit(9);
		_exit(use_read_only(place));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	chmod(place->dir, 0700);
	assert_int_equal(status, 0);
}

static void test_close_takes_nothing(void **state)
{
	store_close(NULL);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_round_trip),
		TEST(test_an_id_is_taken_once),
		TEST(test_updates_see_each_other),
		TEST(test_insert_new_leaves_what_is_there),
		TEST(test_update_all_leaves_what_changed),
		TEST(test_change_and_insert),
		TEST(test_change),
		TEST(test_remove),
		TEST(test_remove_all),
		TEST(test_text_of_any_kind),
		TEST(test_a_record_has_a_limit),
		TEST(test_list),
		TEST(test_resolve_all),
		TEST(test_resolve_is_ambiguous),
		TEST(test_resolve_group),
		TEST(test_resolve_names_groups_exactly),
		TEST(test_resolve),
		TEST(test_the_whole_id_wins_over_longer_ones),
		TEST(test_many_processes_at_once),
		TEST(test_a_new_store_by_many),
		TEST(test_a_killed_writer),
		TEST(test_no_database),
		TEST(test_damaged_anywhere),
		TEST(test_a_newer_version),
		TEST(test_a_link_is_not_followed),
		TEST(test_a_missing_directory),
		TEST(test_read_only),
		cmocka_unit_test(test_close_takes_nothing),
	};

	return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
