/* SPDX-License-Identifier: Apache-2.0 */
/* What a cluster may answer: {"facts": {…}} as in the cases of test_kube_status, of any shape.
 * Whatever it is, there is a state with sentences that can be shown, and the same one again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/object.h"
#include "kube/status/status.h"

static void check(bool holds)
{
	if (!holds)
		abort();
}

static void check_text(const char *text, size_t max)
{
	if (text)
		check(*text && strlen(text) <= max && str_is_plain(text));
}

static void check_rank(const struct kube_rank *rank, bool is_final)
{
	check(rank->phase < KUBE_PHASES && rank->wait < KUBE_WAITS && rank->attempt >= 1);
	check(!is_final || kube_phase_is_final(rank->phase));
	check_text(rank->pod, 253);
	check_text(rank->node, 253);
	if (rank->exit.known)
		check(rank->exit.code >= 0 && rank->exit.code <= 255 && rank->exit.origin &&
			rank->exit.reason);
}

static void check_status(const struct kube_status *status)
{
	bool is_final = kube_phase_is_final(status->phase);

	check(status->exit.known == is_final);
	check(!is_final || status->phase == KUBE_SUCCEEDED || status->exit.code != 0);
	check(!is_final || status->wait == KUBE_WAIT_NONE);
	check(status->n_ranks >= 1 && status->ranks.n == (size_t)status->n_ranks);
	check(status->first_failed < status->n_ranks && status->n_victims < status->n_ranks);
	check(!is_final || status->ended_ms >= status->started_ms);
	check(!status->id || status->sentence);
	check(status->evidence.n <= ERR_EVIDENCE_MAX);
	check_text(status->sentence, KUBE_SENTENCE_MAX);
	check_text(status->hint, KUBE_SENTENCE_MAX);
	for (size_t i = 0; i < status->evidence.n; i++)
		check_text(status->evidence.v[i], KUBE_EVIDENCE_LINE_MAX);
	vec_foreach (struct kube_rank, rank, &status->ranks)
		check_rank(rank, is_final);
}

static struct kube_items items_of(const struct json *facts, const char *key)
{
	const struct json *array = json_get(facts, key);
	struct kube_items items = {.known = array};
	const struct json **v;

	if (!array || json_kind(array) != JSON_ARRAY)
		return items;
	v = mem_alloc(json_count(array) + 1, sizeof(*v));
	for (const struct json *m = json_first(array); m; m = json_next(m))
		v[items.n++] = m;
	items.v = v;
	return items;
}

static void try_facts(const struct json *json, bool was_cancelled)
{
	const struct json *grows = json_get(json, "growth");
	AUTO_KUBE_GROWTH struct kube_growth growth = {
		.is_silent = json_get_bool(grows, "silent", false),
		.applies = json_get_bool(grows, "applies", false),
		.may_later = json_get_bool(grows, "may_later", false),
		.updated_ms = kube_time_at(grows, "updated"),
		.group = mem_strdup(json_get_str(grows, "group")),
		.expected_ms = kube_time_at(grows, "expected"),
		.price = -1};
	for (const struct json *m = kube_first(grows, "reasons"); m; m = json_next(m))
		if (json_str(m))
			strv_add(&growth.reasons, json_str(m));
	struct kube_facts facts = {.run_id = json_get_str(json, "run_id"),
		.job_name = json_get_str(json, "job_name"),
		.kube_namespace = json_get_str(json, "namespace"),
		.image = json_get_str(json, "image"),
		.job = json_get(json, "job"),
		.last_seen = json_get(json, "last_seen"),
		.workload = json_get(json, "workload"),
		.jobset = json_get(json, "jobset"),
		.growth = json_get(json, "growth") ? &growth : NULL,
		.is_jobset = json_get_bool(json, "is_jobset", false),
		.pods = items_of(json, "pods"),
		.events = items_of(json, "events"),
		.nodes = items_of(json, "nodes"),
		.node_pods = items_of(json, "node_pods"),
		.quotas = items_of(json, "quotas"),
		.now_ms = 1785585600000,
		.was_cancelled = was_cancelled};
	const struct kube_items *all[] = {
		&facts.pods, &facts.events, &facts.nodes, &facts.node_pods, &facts.quotas};
	AUTO_KUBE_STATUS struct kube_status status = {0}, again = {0};

	kube_status_of(&facts, &status);
	check_status(&status);
	kube_status_of(&facts, &again);
	check(status.phase == again.phase && str_eq(status.sentence, again.sentence));
	kube_status_done(&again);
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		free((void *)all[i]->v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_JSON struct json *doc = NULL;

	if (json_parse((const char *)data, size, 1 << 20, "the input", &doc, NULL) < 0)
		return 0;
	try_facts(json_get(doc, "facts"), false);
	try_facts(json_get(doc, "facts"), true);
	return 0;
}
