/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kube/logs/podlog_impl.h"

/*
 * Order of times within a stream. Lines of stdout and stderr overtake each other by little, clocks
 * are set; but a kubelet that fell behind two rotations serves the newest file from its start
 * again. What looks like that is cut, and the next stream tells by the point.
 */

enum { FALLS_MAX = 8 };
static const int64_t SLACK_NS = 1000000000;

static bool is_recent(const struct podlog_lines *lines, int64_t ns)
{
	for (size_t i = 0; i < PODLOG_RECENT; i++)
		if (lines->recent[i] == (uint32_t)ns)
			return true;
	return false;
}

static bool is_passed_head(const struct podlog_lines *lines, int64_t ns)
{
	for (size_t i = 0; i < lines->n_heads; i++)
		if (lines->heads[i].passed && lines->heads[i].ns == ns)
			return true;
	return false;
}

/* The line that followed the point in its file does so in any case. */
static void learn_fall(struct podlog_lines *lines, int64_t fall_ns)
{
	lines->n_falls++;
	if (fall_ns < INT64_MAX / 4 && fall_ns * 4 > lines->fall_max_ns)
		lines->fall_max_ns = fall_ns * 4;
}

static bool is_suspect(const struct podlog_lines *lines, int64_t ns)
{
	bool has_learned = lines->n_falls > FALLS_MAX;

	if (lines->ns - ns > lines->fall_max_ns)
		return true;
	if (is_passed_head(lines, ns))
		return ns < lines->ns || !has_learned;
	return ns < lines->ns && !has_learned && is_recent(lines, ns);
}

int podlog_check_order(struct podlog_lines *lines, int64_t ns)
{
	if (lines->just_found) {
		learn_fall(lines, lines->ns - ns);
		return 0;
	}
	if (!is_suspect(lines, ns))
		return 0;
	lines->doubts = true;
	return PODLOG_AGAIN;
}

/* A line of this time is delivered, and it is not the head itself. */
static bool overtakes(const struct podlog_lines *lines, struct podlog_head *head, int64_t ns)
{
	if (ns < head->ns)
		return false;
	if (head->after_ns == 0)
		head->after_ns = lines->ns;
	return ns > head->ns + SLACK_NS;
}

static void tell_skipped(
	struct podlog_lines *lines, const struct podlog_head *head, int64_t before_ns)
{
	if (head && !lines->has_long)
		podlog_tell_gap(lines, PODLOG_SKIPPED, head->after_ns, before_ns);
}

void podlog_pass_heads(struct podlog_lines *lines, int64_t ns)
{
	struct podlog_head *skipped = NULL;

	lines->head_ahead = false;
	for (size_t i = 0; i < lines->n_heads; i++) {
		struct podlog_head *head = &lines->heads[i];
		if (head->passed)
			continue;
		head->passed = ns == head->ns || overtakes(lines, head, ns);
		if (head->passed && ns != head->ns && !skipped)
			skipped = head;
		lines->head_ahead = lines->head_ahead || !head->passed;
	}
	tell_skipped(lines, skipped, ns);
}

void podlog_lines_finish(struct podlog_lines *lines)
{
	struct podlog_head *skipped = NULL;

	for (size_t i = 0; i < lines->n_heads; i++) {
		struct podlog_head *head = &lines->heads[i];
		if (!head->passed && head->after_ns > 0 && !skipped)
			skipped = head;
		head->passed = true;
	}
	lines->head_ahead = false;
	tell_skipped(lines, skipped, lines->ns);
}

void podlog_lines_head(struct podlog_lines *lines, const char *data, size_t len)
{
	struct podlog_head head = {0};

	if (podlog_stamp(data, len, &head.ns) == 0)
		return;
	if (lines->n_heads > 0 && lines->heads[lines->n_heads - 1].ns == head.ns)
		return;
	if (lines->n_heads == PODLOG_HEADS) {
		lines->n_heads--;
		memmove(lines->heads, lines->heads + 1, lines->n_heads * sizeof(head));
	}
	head.passed = lines->n_heads == 0 || head.ns <= lines->point.max_ns;
	lines->head_ahead = lines->head_ahead || !head.passed;
	lines->heads[lines->n_heads++] = head;
}

static bool same_point(const struct podlog_point *a, const struct podlog_point *b)
{
	return a->time_ns == b->time_ns && a->ordinal == b->ordinal && a->len == b->len &&
	       a->hash == b->hash;
}

bool podlog_lines_is_behind(struct podlog_lines *lines, const char *data, size_t len)
{
	const struct podlog_point *point = &lines->point;
	uint64_t hash = podlog_hash(PODLOG_HASH_START, data, len);
	int64_t ns;
	size_t n = podlog_stamp(data, len, &ns);

	if (n == 0)
		return false;
	if (ns == point->time_ns && len - n == point->len &&
		podlog_hash(PODLOG_HASH_START, data + n, len - n) == point->hash)
		return false;
	/* The last part of a long line has a time of its own there: said once, that is enough. */
	if (lines->has_tail && lines->tail_hash == hash && same_point(&lines->tail_point, point))
		return false;
	lines->has_tail = true;
	lines->tail_hash = hash;
	lines->tail_point = *point;
	return true;
}
