/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kinds.h"
#include "kube/status/status_impl.h"

/*
 * A run with roles has a Job for each. They are read as one Job, whose indexes are the ranks of the
 * run.
 */

enum { INDEXES_MAX = 64 << 10 };

struct roles_list VEC_OF(const struct json *); /* Jobs */

static int64_t roles_restart_of(const struct json *job)
{
	return kube_number(kube_label(job, KUBE_JOBSET_RESTART), 0);
}

/* By their first rank; of Jobs that a JobSet makes anew the newest. */
static void roles_choose(const struct roles_list *all, struct roles_list *ret)
{
	int64_t newest = 0;

	vec_foreach (const struct json *, job, all)
		if (roles_restart_of(*job) > newest)
			newest = roles_restart_of(*job);
	vec_foreach (const struct json *, job, all) {
		size_t i = ret->n;

		if (roles_restart_of(*job) != newest)
			continue;
		vec_push(ret);
		for (; i > 0 && kube_rank_of(ret->v[i - 1]) > kube_rank_of(*job); i--)
			ret->v[i] = ret->v[i - 1];
		ret->v[i] = *job;
	}
}

/* Times of RFC 3339 in UTC can be compared. */
static bool roles_is_before(const struct json *a, const struct json *b)
{
	const char *at = json_get_str(a, "lastTransitionTime");
	const char *other = json_get_str(b, "lastTransitionTime");

	return a && (!b || strcmp(at ? at : "", other ? other : "") < 0);
}

static const struct json *roles_earlier(const struct json *a, const struct json *b)
{
	return roles_is_before(b, a) ? b : a;
}

/* The first of them that is so; NULL: none is. */
static const struct json *roles_first(const struct roles_list *jobs, const char *type)
{
	const struct json *first = NULL;

	vec_foreach (const struct json *, job, jobs)
		first = roles_earlier(first, kube_condition_true(*job, type));
	return first;
}

/* The condition of that type which says that the run has succeeded; or NULL. */
static const struct json *roles_success(const struct roles_list *jobs, const char *type)
{
	const char *ends = kube_annotation(jobs->v[0], KUBE_ANNOTATION_ENDS);
	int64_t n = 0;
	const struct json *last = NULL;

	vec_foreach (const struct json *, job, jobs) {
		if (!kube_condition_is(*job, type, "True") &&
			!kube_condition_is(*job, "Complete", "True"))
			continue;
		n += json_get_int(json_get(*job, "spec"), "completions", 0);
		if (kube_condition_is(*job, type, "True"))
			last = kube_condition(*job, type);
		if (ends && str_eq(kube_label(*job, KUBE_LABEL_ROLE), ends))
			return last;
	}
	return !ends && n >= kube_ranks_of(jobs->v[0]) ? last : NULL;
}

/* The end comes first: a role that fails behind it does not count, nor one that succeeds behind a
 * failure. */
static void roles_set_conditions(const struct roles_list *jobs, struct json *status)
{
	const struct json *successes[] = {
		roles_success(jobs, "Complete"), roles_success(jobs, "SuccessCriteriaMet")};
	const struct json *failures[] = {
		roles_first(jobs, "Failed"), roles_first(jobs, "FailureTarget")};
	bool has_failed = roles_is_before(
		roles_earlier(failures[0], failures[1]), roles_earlier(successes[0], successes[1]));
	const struct json *const *ends = has_failed ? failures : successes;
	struct json *list = json_array();

	for (size_t i = 0; i < ARRAY_LEN(successes); i++)
		if (ends[i])
			json_add(list, json_clone(ends[i]));
	json_set(status, "conditions", list);
}

static void roles_set_counts(const struct roles_list *jobs, struct json *status)
{
	static const char *const counts[] = {"active", "ready", "failed", "succeeded"};

	for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
		int64_t sum = 0;

		vec_foreach (const struct json *, job, jobs)
			sum = kube_add(sum, json_get_int(json_get(*job, "status"), counts[i], 0));
		json_set_int(status, counts[i], sum);
	}
}

/* Indexes that have succeeded, as ranks of the run. */
static void roles_set_indexes(const struct roles_list *jobs, struct json *status)
{
	AUTO_BUF struct buf out = buf_with(INDEXES_MAX);

	vec_foreach (const struct json *, job, jobs) {
		const char *list = kube_str_at(*job, "status.completedIndexes");
		int64_t from, to, first = kube_rank_of(*job);

		while (!str_empty(list)) {
			list = kube_next_indexes(list, &from, &to);
			if (from >= 0)
				buf_addf(&out, "%s%lld-%lld", out.len ? "," : "",
					(long long)(first + from), (long long)(first + to));
		}
	}
	if (out.len)
		json_set_str(status, "completedIndexes", out.data);
}

static void roles_set_times(const struct roles_list *jobs, struct json *status)
{
	const char *start = NULL, *end = NULL;

	vec_foreach (const struct json *, job, jobs) {
		const char *from = kube_str_at(*job, "status.startTime");
		const char *to = kube_str_at(*job, "status.completionTime");

		if (from && (!start || strcmp(from, start) < 0))
			start = from;
		if (to && (!end || strcmp(to, end) > 0))
			end = to;
	}
	if (start)
		json_set_str(status, "startTime", start);
	if (end)
		json_set_str(status, "completionTime", end);
}

static struct json *roles_join(const struct roles_list *jobs, const char *gang)
{
	const struct json *base = jobs->v[0];
	int64_t ranks = kube_ranks_of(base);
	struct json *joined, *metadata, *status = json_object();

	vec_foreach (const struct json *, job, jobs)
		if (str_eq(kube_str_at(*job, "metadata.name"), gang))
			base = *job;
	joined = json_clone(base);
	metadata = json_sub(joined, "metadata");
	json_set_str(metadata, "name", gang);
	json_set_int(json_sub(joined, "spec"), "completions", ranks);
	json_set_int(json_sub(joined, "spec"), "parallelism", ranks);
	roles_set_counts(jobs, status);
	roles_set_indexes(jobs, status);
	roles_set_times(jobs, status);
	roles_set_conditions(jobs, status);
	json_set(joined, "status", status);
	json_remove(json_sub(metadata, "labels"), KUBE_LABEL_GANG);
	return joined;
}

/* All Jobs of each gang, by its name; none where there is no gang. */
static void roles_group(const struct json *items, struct map *ret)
{
	json_foreach (job, items) {
		const char *gang = kube_label(job, KUBE_LABEL_GANG);
		struct roles_list *jobs = gang ? map_get(ret, gang) : NULL;

		if (gang && !jobs) {
			jobs = mem_alloc(1, sizeof(*jobs));
			map_put(ret, gang, jobs);
		}
		if (gang)
			*vec_push(jobs) = job;
	}
}

static void roles_done(struct map *gangs)
{
	const char *gang;
	void *value;

	for (size_t pos = 0; map_each(gangs, &pos, &gang, &value);) {
		struct roles_list *jobs = value;

		vec_done(jobs);
		free(jobs);
	}
	map_done(gangs);
}

void kube_join_roles(struct json *list)
{
	const struct json *items = json_get(list, "items");
	AUTO(roles_done) struct map gangs = {0};
	struct json *all;

	roles_group(items, &gangs);
	if (gangs.n == 0)
		return;
	all = json_array();
	json_foreach (job, items) {
		const char *gang = kube_label(job, KUBE_LABEL_GANG);
		struct roles_list *of = gang ? map_get(&gangs, gang) : NULL, jobs = {0};

		if (!of) {
			json_add(all, json_clone(job));
		} else if (of->v[0] == job) {
			roles_choose(of, &jobs);
			json_add(all, roles_join(&jobs, gang));
		}
		vec_done(&jobs);
	}
	json_set(list, "items", all);
}

/*
 * Names of roles
 */

/* The next of "learner 1,actors 12"; returns what is behind it. */
static const char *roles_next(const char *text, char **ret_name, int64_t *ret_nodes)
{
	size_t len = strcspn(text, ","), name = strcspn(text, " ,");

	*ret_name = mem_strndup(text, name);
	*ret_nodes = text[name] == ' ' ? kube_number(text + name + 1, 0) : 0;
	return text + len + (text[len] == ',');
}

int64_t kube_ranks_of(const struct json *job)
{
	const char *roles = kube_annotation(job, KUBE_ANNOTATION_ROLES);
	int64_t n = roles ? 0 : json_get_int(json_get(job, "spec"), "completions", 0);

	while (!str_empty(roles)) {
		AUTO_FREE char *name = NULL;
		int64_t nodes;

		roles = roles_next(roles, &name, &nodes);
		n = kube_add(n, nodes);
	}
	return n > 0 && n <= KUBE_RANKS_MAX ? n : 1;
}

void kube_deciding_ranks(const struct json *job, int *ret_first, int *ret_end)
{
	const char *roles = kube_annotation(job, KUBE_ANNOTATION_ROLES);
	const char *ends = kube_annotation(job, KUBE_ANNOTATION_ENDS);
	int64_t first = 0, end;

	*ret_first = 0;
	*ret_end = (int)kube_ranks_of(job);
	for (; ends && !str_empty(roles); first = end) {
		AUTO_FREE char *name = NULL;
		int64_t nodes;

		roles = roles_next(roles, &name, &nodes);
		end = kube_add(first, nodes);
		if (!str_eq(name, ends) || nodes <= 0 || end > *ret_end)
			continue;
		*ret_first = (int)first;
		*ret_end = (int)end;
		return;
	}
}

char *kube_rank_name(const struct json *job, int rank)
{
	const char *roles = kube_annotation(job, KUBE_ANNOTATION_ROLES);
	int64_t first = 0, nodes;

	for (; !str_empty(roles); first += nodes) {
		AUTO_FREE char *name = NULL;

		roles = roles_next(roles, &name, &nodes);
		if (rank >= first && rank < first + nodes)
			return mem_printf("%.63s.%d", name, (int)(rank - first));
	}
	return mem_printf("rank %d", rank);
}
