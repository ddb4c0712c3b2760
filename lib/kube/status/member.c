/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/status_impl.h"

/*
 * The Job of a study as one of its members sees it.
 */

const char *kube_next_indexes(const char *list, int64_t *ret_from, int64_t *ret_to)
{
	*ret_from = *ret_to = kube_number(list, -1);
	list += strspn(list, "0123456789");
	if (*list == '-') {
		*ret_to = kube_number(list + 1, *ret_from);
		list += 1 + strspn(list + 1, "0123456789");
	}
	list += strcspn(list, ",");
	return list + (*list == ',');
}

bool kube_in_indexes(const char *list, int n)
{
	int64_t from, to;

	while (!str_empty(list)) {
		list = kube_next_indexes(list, &from, &to);
		if (n >= from && n <= to)
			return true;
	}
	return false;
}

void kube_mark_indexes(const char *list, bool *marks, int n)
{
	int64_t from, to;

	while (!str_empty(list)) {
		list = kube_next_indexes(list, &from, &to);
		for (int64_t i = from < 0 ? n : from; i <= to && i < n; i++)
			marks[i] = true;
	}
}

char *kube_list_indexes(const bool *marks, int n)
{
	AUTO_BUF struct buf out = buf_with((size_t)n * 12 + 1);

	for (int i = 0, last; i < n; i = last + 1) {
		last = i;
		while (marks[i] && last + 1 < n && marks[last + 1])
			last++;
		if (marks[i])
			buf_addf(&out, "%s%d", out.len ? "," : "", i);
		if (last > i)
			buf_addf(&out, "-%d", last);
	}
	return out.len ? buf_take(&out) : mem_strdup("");
}

static void member_set_condition(struct json *status, const char *type, const char *reason,
	const char *message, const struct json *of)
{
	json_set(status, "conditions",
		json_make("[{'type': %s, 'status': 'True', 'reason': %s, 'message': %s, "
			  "'lastTransitionTime': %s}]",
			type, reason, message, json_get_str(of, "lastTransitionTime")));
}

static void member_set_status(const struct json *job, int index, struct json *status)
{
	static const char *const members[] = {"active", "startTime"};
	const struct json *from = json_get(job, "status"),
			  *failed = kube_condition_true(job, "Failed");

	/* FailureTarget precedes Failed while pods still end. */
	if (!failed)
		failed = kube_condition_true(job, "FailureTarget");
	kube_copy_members(status, from, members, ARRAY_LEN(members));
	if (kube_in_indexes(json_get_str(from, "completedIndexes"), index)) {
		json_set_str(status, "completedIndexes", "0");
		member_set_condition(status, "Complete", NULL, NULL, NULL);
	} else if (kube_in_indexes(json_get_str(from, "failedIndexes"), index)) {
		AUTO_FREE char *text = mem_printf("index %d of the study failed", index);
		member_set_condition(status, "Failed", "IndexFailed", text, NULL);
	} else if (failed) {
		bool is_fast = str_eq(json_get_str(failed, "reason"), "MaxFailedIndexesExceeded");
		member_set_condition(status, json_get_str(failed, "type"),
			is_fast ? KUBE_FAILED_FAST : KUBE_STOPPED, json_get_str(failed, "message"),
			failed);
	}
}

struct json *kube_member_job(const struct json *job, int index, bool with_pod)
{
	static const char *const metadata[] = {"name", "namespace", "uid", "creationTimestamp",
		"deletionTimestamp", "deletionGracePeriodSeconds", "labels"};
	static const char *const members[] = {"completionMode", "backoffLimitPerIndex",
		"podFailurePolicy", "podReplacementPolicy", "suspend", "managedBy"};
	const struct json *spec = json_get(job, "spec"), *template = json_get(spec, "template");
	AUTO_FREE char *text = mem_printf("%d", index);
	struct json *own, *to;

	if (!job)
		return NULL;
	own = json_object();
	to = json_sub(own, "metadata");
	kube_copy_members(to, json_get(job, "metadata"), metadata, ARRAY_LEN(metadata));
	json_set_str(json_sub(to, "annotations"), KUBE_MEMBER, text);
	if (kube_in_indexes(kube_annotation(job, KUBE_ANNOTATION_CANCELLED), index))
		json_set_str(json_sub(to, "annotations"), KUBE_ANNOTATION_CANCELLED, "0");
	to = json_sub(own, "spec");
	kube_copy_members(to, spec, members, ARRAY_LEN(members));
	json_set_int(to, "completions", 1);
	json_set_int(to, "parallelism", 1);
	to = json_sub(to, "template");
	kube_copy_members(
		to, template, (const char *const[]){"metadata", "spec"}, with_pod ? 2 : 1);
	member_set_status(job, index, json_sub(own, "status"));
	return own;
}

bool kube_member_has_ended(const struct json *job, int index)
{
	const struct json *status = json_get(job, "status");

	return kube_kind_has_ended(KUBE_KIND_JOB, job) ||
	       kube_in_indexes(json_get_str(status, "completedIndexes"), index) ||
	       kube_in_indexes(json_get_str(status, "failedIndexes"), index);
}
