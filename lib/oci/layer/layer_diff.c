/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layer/layer_diff.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"

/* The position of the first entry whose path is not less than the first len bytes of path. */
static size_t lower_bound(const struct entry_refs *refs, const char *path, size_t len)
{
	return vec_bound(refs, ref, strncmp((*ref)->path, path, len) < 0);
}

/* Whether there is an entry at the path, or with slash one below it. */
static bool has_path(const struct entry_refs *refs, const char *path, size_t len, bool slash)
{
	/* Paths that merely begin with path may stand before the one that is it plus a slash. */
	AUTO_FREE char *wanted = mem_printf("%.*s%s", (int)len, path, slash ? "/" : "");
	size_t at = lower_bound(refs, wanted, len + 1);

	return at < refs->n && strncmp(refs->v[at]->path, wanted, len + 1) == 0;
}

/*
 * Covering
 */

static void hide_path(const struct entry_refs *lower, const char *path, size_t len, bool *hidden)
{
	AUTO_FREE char *wanted = mem_strndup(path, len);
	size_t at = lower_bound(lower, wanted, len + 1);

	if (at < lower->n && strcmp(lower->v[at]->path, wanted) == 0)
		hidden[at] = true;
}

static void hide_below(const struct entry_refs *lower, const char *path, bool *hidden)
{
	AUTO_FREE char *prefix = mem_printf("%s/", path);
	size_t len = strlen(prefix);

	for (size_t at = lower_bound(lower, prefix, len); at < lower->n; at++) {
		if (strncmp(lower->v[at]->path, prefix, len) != 0)
			return;
		hidden[at] = true;
	}
}

static void hide(const struct entry_refs *lower, const struct entry *by, bool *hidden)
{
	for (const char *slash = by->path; (slash = strchr(slash, '/')); slash++)
		hide_path(lower, by->path, (size_t)(slash - by->path), hidden);
	hide_path(lower, by->path, strlen(by->path), hidden);
	hide_below(lower, by->path, hidden);
}

void entry_refs_cover(
	const struct entry_refs *lower, const struct entry_refs *upper, struct entry_refs *ret)
{
	AUTO_FREE bool *hidden = mem_alloc(lower->n, sizeof(*hidden));
	struct entry_refs merged = {0};
	size_t at = 0;

	for (size_t i = 0; i < upper->n; i++)
		hide(lower, upper->v[i], hidden);
	vec_reserve(&merged, lower->n + upper->n);
	for (size_t i = 0; i < lower->n; i++) {
		if (hidden[i])
			continue;
		while (at < upper->n && strcmp(upper->v[at]->path, lower->v[i]->path) < 0)
			merged.v[merged.n++] = upper->v[at++];
		merged.v[merged.n++] = lower->v[i];
	}
	while (at < upper->n)
		merged.v[merged.n++] = upper->v[at++];
	*ret = merged;
}

/*
 * Difference
 */

struct work {
	const struct entry_refs *to;
	size_t max;
	struct layer_diff diff;
	/* Skip paths below this one, which was dealt with: removed paths of one directory are
	 * adjacent. */
	const char *settled;
	size_t settled_len;
};

/* Whether the directory that the first len bytes of path name takes all below it along: something
 * else has its place now, or nothing of it is left. */
static bool settle(struct work *work, const char *path, size_t len)
{
	bool replaced = has_path(work->to, path, len, false);

	if (!replaced && has_path(work->to, path, len, true))
		return false;
	work->settled = path;
	work->settled_len = len;
	if (!replaced)
		strv_add_take(&work->diff.whiteouts, mem_strndup(path, len));
	return true;
}

static bool is_settled(const struct work *work, const char *path)
{
	return work->settled && strncmp(path, work->settled, work->settled_len) == 0 &&
	       path[work->settled_len] == '/';
}

static void remove_path(struct work *work, const char *path)
{
	if (is_settled(work, path))
		return;
	for (const char *slash = path; (slash = strchr(slash, '/')); slash++)
		if (settle(work, path, (size_t)(slash - path)))
			return;
	/* A directory at its place replaces it. */
	if (!has_path(work->to, path, strlen(path), true))
		strv_add(&work->diff.whiteouts, path);
}

static void add_entry(struct work *work, const struct entry *entry)
{
	*vec_push(&work->diff.entries) = entry;
}

static bool is_over(const struct work *work)
{
	return work->diff.entries.n + work->diff.whiteouts.n > work->max;
}

static int compare_strings(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

bool layer_diff_make(const struct entry_refs *from, const struct entry_refs *to, size_t max,
	struct layer_diff *ret)
{
	struct work work = {.to = to, .max = max};
	size_t i = 0, k = 0;

	while ((i < from->n || k < to->n) && !is_over(&work)) {
		int order = i == from->n ? 1 : k == to->n ? -1 : 0;
		if (order == 0)
			order = strcmp(from->v[i]->path, to->v[k]->path);
		if (order < 0)
			remove_path(&work, from->v[i]->path);
		else if (order > 0 || !entry_same(from->v[i], to->v[k]))
			add_entry(&work, to->v[k]);
		i += order <= 0;
		k += order >= 0;
	}
	if (is_over(&work)) {
		layer_diff_done(&work.diff);
		return false;
	}
	vec_sort(&work.diff.whiteouts, compare_strings);
	*ret = work.diff;
	return true;
}

void layer_diff_done(struct layer_diff *diff)
{
	if (!diff)
		return;
	vec_done(&diff->entries);
	strv_done(&diff->whiteouts);
}
