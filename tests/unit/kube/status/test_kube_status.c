/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/term.h"
#include "kube/status/status.h"
#include "kube/status/status_impl.h"

/*
 * Cases: tests/unit/data/kube_status/NAME.json is {"facts": {…}, "expect": [lines]}, facts as in
 * status.h. The lines are what render() makes of the status.
 */

static const char *wait_name(enum kube_wait wait)
{
	static const char *const names[KUBE_WAITS] = {
		[KUBE_WAIT_NONE] = "",
		[KUBE_WAIT_QUEUE] = "waiting in a queue",
		[KUBE_WAIT_PODS] = "making pods",
		[KUBE_WAIT_SCHEDULE] = "scheduling",
		[KUBE_WAIT_VOLUME] = "mounting volumes",
		[KUBE_WAIT_PULL] = "pulling the image",
		[KUBE_WAIT_INIT] = "running init containers",
		[KUBE_WAIT_START] = "starting",
		[KUBE_WAIT_AGAIN] = "trying again",
	};

	return names[wait];
}

static void render_rank(const struct kube_rank *rank, struct strv *out)
{
	strv_addf(out, "rank %d: %s%s%s%s%s%s%s", rank->rank, kube_phase_name(rank->phase),
		rank->wait ? ", " : "", wait_name(rank->wait), rank->pod ? " " : "",
		rank->pod ? rank->pod : "", rank->node ? " on " : "", rank->node ? rank->node : "");
	if (rank->attempt > 1)
		strv_addf(out, "  attempt %d", rank->attempt);
	if (rank->exit.known)
		strv_addf(out, "  exit %d %s%s", rank->exit.code, rank->exit.reason,
			rank->is_victim ? " (victim)" : "");
}

static void render_flags(const struct kube_status *status, struct strv *out)
{
	if (status->never_fits)
		strv_add(out, "never fits");
	if (status->needs_help)
		strv_add(out, "needs help");
	if (status->is_stranded)
		strv_add(out, "stranded");
	if (status->waits_for_code)
		strv_add(out, "waits for code");
	if (status->cancelling)
		strv_add(out, "cancelling");
	if (status->results_lost && status->phase != KUBE_LOST)
		strv_addf(out, "results lost: %s", status->results_lost);
	if (status->results_unsent)
		strv_addf(out, "results unsent: %s", status->results_unsent);
	if (status->attempt > 1)
		strv_addf(out, "attempt %d", status->attempt);
	if (status->first_failed >= 0 && status->n_ranks > 1)
		strv_addf(out, "first failed: %d, victims: %d", status->first_failed,
			status->n_victims);
}

static void render_times(const struct kube_status *status, struct strv *out)
{
	char text[CLOCK_TEXT_SIZE];

	if (status->started_ms) {
		clock_format(status->started_ms, text);
		strv_addf(out, "started %s", text);
	}
	if (status->ended_ms) {
		clock_format(status->ended_ms, text);
		strv_addf(out, "ended %s", text);
	}
}

static void render(const struct kube_status *status, struct strv *out)
{
	strv_addf(out, "%s%s%s", kube_phase_name(status->phase), status->wait ? ", " : "",
		wait_name(status->wait));
	if (status->sentence)
		strv_addf(out, "%s: %s", status->id ? err_info(status->id)->name : "-",
			status->sentence);
	for (size_t i = 0; i < status->evidence.n; i++)
		strv_addf(out, "  %s", status->evidence.v[i]);
	if (status->hint)
		strv_addf(out, "hint: %s", status->hint);
	if (status->exit.known)
		strv_addf(out, "exit %d signal %d %s %s", status->exit.code, status->exit.signal,
			status->exit.origin, status->exit.reason);
	render_flags(status, out);
	render_times(status, out);
	if (status->n_ranks > 1)
		vec_foreach (struct kube_rank, rank, &status->ranks)
			render_rank(rank, out);
}

/*
 * Files
 */

struct given {
	struct json *doc;
	struct kube_facts facts;
	struct kube_growth growth;
	const struct json **arrays[5];
};

static struct kube_items items_of(struct given *given, const char *key, size_t slot)
{
	const struct json *array = json_get(json_get(given->doc, "facts"), key);
	struct kube_items items = {.known = array && json_kind(array) == JSON_ARRAY};

	if (!items.known)
		return items;
	given->arrays[slot] = mem_alloc(json_count(array) + 1, sizeof(struct json *));
	for (const struct json *m = json_first(array); m; m = json_next(m))
		given->arrays[slot][items.n++] = m;
	items.v = given->arrays[slot];
	return items;
}

static const struct json *object_of(const struct json *facts, const char *key)
{
	const struct json *object = json_get(facts, key);

	return object && json_kind(object) == JSON_OBJECT ? object : NULL;
}

static void given_read_growth(struct given *given, const struct json *json)
{
	given->growth = (struct kube_growth){.is_silent = json_get_bool(json, "silent", false),
		.applies = json_get_bool(json, "applies", false),
		.may_later = json_get_bool(json, "may_later", false),
		.updated_ms = kube_time_at(json, "updated"),
		.group = mem_strdup(json_get_str(json, "group")),
		.expected_ms = kube_time_at(json, "expected"),
		.price = -1};
	for (const struct json *m = kube_first(json, "reasons"); m; m = json_next(m))
		strv_add(&given->growth.reasons, json_str(m));
	given->facts.growth = &given->growth;
}

static void given_read(struct given *given)
{
	const struct json *facts = json_get(given->doc, "facts");
	struct kube_facts *f = &given->facts;

	f->run_id = json_get_str(facts, "run_id");
	f->job_name = json_get_str(facts, "job_name");
	f->kube_namespace = json_get_str(facts, "namespace");
	f->image = json_get_str(facts, "image");
	f->job = object_of(facts, "job");
	f->last_seen = object_of(facts, "last_seen");
	f->workload = object_of(facts, "workload");
	f->jobset = object_of(facts, "jobset");
	if (object_of(facts, "growth"))
		given_read_growth(given, object_of(facts, "growth"));
	f->is_jobset = json_get_bool(facts, "is_jobset", false);
	f->was_cancelled = json_get_bool(facts, "was_cancelled", false);
	assert_int_equal(clock_parse(json_get_str(facts, "now"), &f->now_ms, NULL), 0);
	f->pods = items_of(given, "pods", 0);
	f->events = items_of(given, "events", 1);
	f->nodes = items_of(given, "nodes", 2);
	f->node_pods = items_of(given, "node_pods", 3);
	f->quotas = items_of(given, "quotas", 4);
}

static void given_done(struct given *given)
{
	kube_growth_done(&given->growth);
	for (size_t i = 0; i < ARRAY_LEN(given->arrays); i++)
		free(given->arrays[i]);
	json_free(given->doc);
}

static void check_text(const char *text, size_t max)
{
	if (!text)
		return;
	assert_true(str_is_plain(text));
	assert_true(strlen(text) <= max);
	assert_true(*text);
}

static void check_form(const struct kube_status *status)
{
	check_text(status->sentence, KUBE_SENTENCE_MAX);
	check_text(status->hint, KUBE_SENTENCE_MAX);
	assert_true(status->evidence.n <= ERR_EVIDENCE_MAX);
	for (size_t i = 0; i < status->evidence.n; i++)
		check_text(status->evidence.v[i], KUBE_EVIDENCE_LINE_MAX);
	if (status->sentence) {
		size_t len = strlen(status->sentence);

		assert_false(len && status->sentence[len - 1] == '\n');
	}
	assert_int_equal(status->exit.known, kube_phase_is_final(status->phase));
}

/* 1 when it is not as expected, after the differences were printed. */
static int compare(const char *name, const struct json *expect, const struct strv *got)
{
	const struct json *line = expect ? json_first(expect) : NULL;
	bool same = true;

	for (size_t i = 0; i < got->n; i++, line = line ? json_next(line) : NULL)
		same = same && line && str_eq(json_str(line), got->v[i]);
	if (same && !line)
		return 0;
	print_message("--- %s\n", name);
	for (line = expect ? json_first(expect) : NULL; line; line = json_next(line))
		print_message("-%s\n", json_str(line) ? json_str(line) : "?");
	for (size_t i = 0; i < got->n; i++)
		print_message("+%s\n", got->v[i]);
	return 1;
}

static int run_case(const char *dir, const char *name)
{
	AUTO_FREE char *path = mem_printf("%s/%s", dir, name);
	AUTO_BUF struct buf text;
	AUTO_STRV struct strv got = {0};
	AUTO_KUBE_STATUS struct kube_status status = {0};
	AUTO_ERR struct err err = {0};
	struct given given = {0};
	int bad;

	buf_init(&text, JSON_SIZE_MAX);
	assert_int_equal(fs_read(path, JSON_SIZE_MAX, &text, NULL, &err), 0);
	if (json_parse(text.data, text.len, JSON_SIZE_MAX, name, &given.doc, &err) < 0)
		fail_msg("%s", err.message);
	given_read(&given);
	kube_status_of(&given.facts, &status);
	check_form(&status);
	render(&status, &got);
	bad = compare(name, json_get(given.doc, "expect"), &got);
	given_done(&given);
	return bad;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void test_cases(void **state)
{
	const char *data = getenv("UNIT_DATA");
	AUTO_FREE char *dir = NULL;
	AUTO_STRV struct strv names = {0};
	struct dirent *entry;
	int bad = 0;

	assert_non_null(data);
	dir = mem_printf("%s/kube_status", data);
	AUTO_DIR DIR *handle = opendir(dir);
	assert_non_null(handle);
	while ((entry = readdir(handle)))
		if (str_ends(entry->d_name, ".json"))
			strv_add(&names, entry->d_name);
	vec_sort(&names, by_name);
	assert_true(names.n >= 45);
	for (size_t i = 0; i < names.n; i++)
		bad += run_case(dir, names.v[i]);
	assert_int_equal(bad, 0);
}

/*
 * Parts
 */

static void test_quantity(void **state)
{
	static const struct {
		const char *text;
		int64_t milli;
	} good[] = {
		{"0", 0},
		{"1", 1000},
		{"500m", 500},
		{"0.5", 500},
		{"1.5", 1500},
		{"1k", 1000000},
		{"1Ki", 1024000},
		{"1.5Gi", 1610612736000},
		{"64Gi", 68719476736000},
		{"1e3", 1000000},
		{"2E2", 200000},
		{"129M", 129000000000},
		{".5", 500},
		{"250u", 0},
	};
	static const char *const bad[] = {"", "x", "1x", "-1", "Gi", "1.2.3", "1e", "1e99",
		"9223372036854775807", "9999999999999999999999", "8000Pi", "1 Gi", "."};
	int64_t milli;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_true(kube_quantity(good[i].text, &milli));
		assert_int_equal(milli, good[i].milli);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_false(kube_quantity(bad[i], &milli));
	assert_false(kube_quantity(NULL, &milli));
}

static void test_bytes(void **state)
{
	char text[24];

	assert_string_equal(kube_bytes_text(0, text), "0");
	assert_string_equal(kube_bytes_text(1LL << 30, text), "1Gi");
	assert_string_equal(kube_bytes_text(3LL << 29, text), "1.5Gi");
	assert_string_equal(kube_bytes_text(64LL << 30, text), "64Gi");
	assert_string_equal(kube_bytes_text(INT64_MAX, text), "0");
}

static void test_decision(void **state)
{
	struct kube_decision v;

	kube_decision_parse(
		"0/12 nodes are available: 3 Insufficient nvidia.com/gpu, 4 node(s) had "
		"untolerated taint {team: vision}, 5 node(s) didn't match Pod's node "
		"affinity/selector. preemption: 0/12 nodes are available: 12 No "
		"preemption victims found for incoming pod.",
		&v);
	assert_true(v.parsed);
	assert_int_equal(v.nodes, 12);
	assert_int_equal(v.counts[KUBE_NO_GPU], 3);
	assert_int_equal(v.counts[KUBE_NO_TOLERATION], 4);
	assert_int_equal(v.counts[KUBE_NO_MATCH], 5);
	assert_int_equal(v.counts[KUBE_OTHER], 0);
	assert_string_equal(v.taint, "team=vision");
	assert_string_equal(v.resource, "nvidia.com/gpu");
	kube_decision_parse("0/3 nodes are available: persistentvolumeclaim \"data\" not found. "
			    "preemption: 0/3 nodes are available: 3 Preemption is not helpful.",
		&v);
	assert_true(v.claim_missing);
	assert_string_equal(v.claim, "data");
	assert_int_equal(v.counts[KUBE_NO_VOLUME], 3);
	kube_decision_parse("persistentvolumeclaim \"data\" not found", &v);
	assert_true(v.parsed && v.claim_missing);
	kube_decision_parse("no nodes available to schedule pods", &v);
	assert_false(v.parsed);
	kube_decision_parse("0/1 nodes are available:", &v);
	assert_true(v.parsed);
	kube_decision_parse(NULL, &v);
	assert_false(v.parsed);
}

static void test_text(void **state)
{
	AUTO_FREE char *plain = kube_text("a\n\tb  c \n", 100);
	AUTO_FREE char *hidden = kube_text("x\033[2Jy\xe2\x80\xaez\xff", 100);
	AUTO_FREE char *cut = kube_text("0123456789", 8);
	AUTO_FREE char *wide = kube_text("äöüäöüäöü", 8);
	AUTO_FREE char *none = kube_text(NULL, 8);

	assert_string_equal(plain, "a b c");
	assert_string_equal(hidden, "x\\u001b[2Jy\\u202ez\\xff");
	assert_string_equal(cut, "01234…");
	assert_string_equal(wide, "äö…");
	assert_string_equal(none, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_quantity),
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_decision),
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_cases),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
