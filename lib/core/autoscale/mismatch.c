/* SPDX-License-Identifier: Apache-2.0 */
#include "core/autoscale/mismatch.h"

#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/fit.h"
#include "core/autoscale/snapshot_words.h"

static struct scale_mismatch mismatch_copy(const struct scale_mismatch *mismatch)
{
	return (struct scale_mismatch){.key = mem_strdup(mismatch->key),
		.told = mem_strdup(mismatch->told),
		.found = mem_strdup(mismatch->found),
		.effect = mismatch->effect,
		.node = mem_strdup(mismatch->node)};
}

static bool mismatch_is_taint(const struct scale_mismatch *mismatch)
{
	return !mismatch->told;
}

bool mismatch_may_settle(const struct scale_model *model, const struct scale_node *node)
{
	int64_t boot_ms = model->limits.boot_ms;
	int64_t most_ms =
		node->is_ready && boot_ms > SCALE_SETTLING_MS ? SCALE_SETTLING_MS : boot_ms;

	return node->group >= 0 && model->groups.v[node->group].has_template && node->created_ms &&
	       model->now_ms - node->created_ms <= most_ms;
}

/* Finding. */

static bool mismatch_is_asked_for(const struct scale_shape *shape, const char *key)
{
	vec_foreach (const struct scale_term, term, &shape->affinity)
		vec_foreach (const struct scale_rule, rule, term)
			if (str_eq(rule->key, key))
				return true;
	return scale_pair(&shape->selector, key);
}

static bool mismatch_keeps_out(const struct scale_shape *shape, const struct scale_taint *taint)
{
	static const struct scale_pairs none = {0};
	const struct scale_taints one = {.v = (struct scale_taint *)taint, .n = 1};
	const struct scale_shape bare = {.tolerations = shape->tolerations};
	const struct scale_machine machine = {.labels = &none, .taints = &one};

	return !scale_allows(&bare, &machine, NULL);
}

static struct scale_taint mismatch_taint(const struct scale_mismatch *mismatch)
{
	return (struct scale_taint){mismatch->key, mismatch->found, mismatch->effect};
}

static bool mismatch_matters(const struct scale_mismatch *mismatch, const struct scale_shape *shape)
{
	const struct scale_taint taint = mismatch_taint(mismatch);

	return mismatch_is_taint(mismatch) ? mismatch_keeps_out(shape, &taint)
					   : mismatch_is_asked_for(shape, mismatch->key);
}

static bool mismatch_same_taint(const struct scale_taint *a, const struct scale_taint *b)
{
	return str_eq(a->key, b->key) && str_eq(a->value, b->value) && a->effect == b->effect;
}

bool mismatch_has_taint(const struct scale_taints *taints, const struct scale_taint *taint)
{
	vec_foreach (const struct scale_taint, one, taints)
		if (mismatch_same_taint(one, taint))
			return true;
	return false;
}

/* Whether a pod runs there that the taint would have kept out. */
static bool mismatch_came_later(
	const struct scale_model *model, size_t node, const struct scale_taint *taint)
{
	vec_foreach (const struct scale_pod, pod, &model->pods)
		if (pod->node == (int32_t)node && !pod->is_daemon &&
			mismatch_keeps_out(&model->shapes.v[pod->shape], taint))
			return true;
	return false;
}

static struct scale_mismatch *mismatch_known(
	struct scale_mismatches *among, const struct scale_mismatch *like)
{
	vec_foreach (struct scale_mismatch, known, among)
		if (str_eq(known->key, like->key) && known->effect == like->effect &&
			mismatch_is_taint(known) == mismatch_is_taint(like))
			return known;
	return NULL;
}

static void mismatch_add(const struct scale_model *model, const bool *is_waiting,
	const struct scale_mismatch *like, struct scale_mismatches *ret)
{
	const char *const texts[] = {like->key, like->told, like->found, like->node};
	bool matters = false;

	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		if (texts[i] && strlen(texts[i]) > MISMATCH_TEXT_MAX)
			return;
	for (size_t i = 0; i < model->shapes.n && !matters; i++)
		matters = is_waiting[i] && mismatch_matters(like, &model->shapes.v[i]);
	if (matters && !mismatch_known(ret, like) && ret->n < MISMATCHES_MAX)
		*vec_push(ret) = mismatch_copy(like);
}

void mismatch_find(const struct scale_model *model, size_t index, const bool *is_waiting,
	struct scale_mismatches *ret)
{
	const struct scale_node *node = &model->nodes.v[index];
	const struct scale_group *group = &model->groups.v[node->group];
	bool may_settle = mismatch_may_settle(model, node);

	vec_foreach (const struct scale_pair, label, &group->labels) {
		const char *found = scale_pair(&node->labels, label->key);
		if (str_eq(found, label->value) || (!found && may_settle))
			continue;
		mismatch_add(model, is_waiting,
			&(struct scale_mismatch){.key = label->key,
				.told = label->value,
				.found = (char *)found,
				.node = node->name},
			ret);
	}
	vec_foreach (const struct scale_taint, taint, &node->taints) {
		if (may_settle || taint->effect == SCALE_PREFER_NO_SCHEDULE ||
			str_starts(taint->key, "node.kubernetes.io/") ||
			mismatch_has_taint(&group->taints, taint) ||
			mismatch_came_later(model, index, taint))
			continue;
		mismatch_add(model, is_waiting,
			&(struct scale_mismatch){.key = taint->key,
				.found = taint->value,
				.effect = (int)taint->effect,
				.node = node->name},
			ret);
	}
}

bool mismatch_merge(struct scale_mismatches *found, struct scale_mismatches *into)
{
	bool is_news = false;

	vec_foreach (struct scale_mismatch, mismatch, found) {
		struct scale_mismatch *known = mismatch_known(into, mismatch);
		is_news = is_news || !known;
		if (known)
			scale_mismatch_done(known);
		else if (into->n < MISMATCHES_MAX)
			known = vec_push(into);
		if (known)
			*known = *mismatch;
		else
			scale_mismatch_done(mismatch);
	}
	vec_done(found);
	return is_news;
}

void mismatch_drop_refuted(struct scale_mismatches *mismatches, const struct scale_node *node)
{
	size_t kept = 0;

	vec_foreach (struct scale_mismatch, mismatch, mismatches) {
		const struct scale_taint taint = mismatch_taint(mismatch);
		bool is_refuted =
			mismatch_is_taint(mismatch)
				? !mismatch_has_taint(&node->taints, &taint)
				: str_eq(scale_pair(&node->labels, mismatch->key), mismatch->told);
		if (is_refuted)
			scale_mismatch_done(mismatch);
		else
			mismatches->v[kept++] = *mismatch;
	}
	mismatches->n = kept;
}

/* Applying. */

/* The value that nodes have is no promise: the next one may have another. */
static void mismatch_apply_label(const struct scale_mismatch *mismatch, struct scale_pairs *labels)
{
	size_t kept = 0;

	vec_foreach (struct scale_pair, label, labels) {
		if (!str_eq(label->key, mismatch->key)) {
			labels->v[kept++] = *label;
			continue;
		}
		free(label->key);
		free(label->value);
	}
	labels->n = kept;
}

void mismatch_apply(const struct scale_mismatches *found, struct scale_group *group)
{
	if (group->mismatches.n)
		return;
	vec_foreach (const struct scale_mismatch, mismatch, found) {
		const struct scale_taint taint = mismatch_taint(mismatch);
		bool is_as_told =
			mismatch_is_taint(mismatch)
				? !mismatch_has_taint(&group->taints, &taint)
				: str_eq(scale_pair(&group->labels, mismatch->key), mismatch->told);
		if (!is_as_told)
			continue;
		if (mismatch_is_taint(mismatch))
			scale_taints_add(&group->taints, taint.key, taint.value, (int)taint.effect);
		else
			mismatch_apply_label(mismatch, &group->labels);
		*vec_push(&group->mismatches) = mismatch_copy(mismatch);
	}
}

/* Reasons. */

static char *mismatch_text(const struct scale_mismatch *mismatch)
{
	const char *is = mismatch->found && *mismatch->found ? "=" : "";
	const char *found = mismatch->found ? mismatch->found : "";

	if (mismatch_is_taint(mismatch))
		return mem_printf("node %s came with taint %s%s%s:%s, which is not in the template",
			mismatch->node, mismatch->key, is, found,
			snapshot_effects[mismatch->effect]);
	if (mismatch->found)
		return mem_printf("node %s came with label %s%s%s, not with %s=%s as the template "
				  "says",
			mismatch->node, mismatch->key, is, found, mismatch->key, mismatch->told);
	return mem_printf("node %s came without label %s=%s, which is in the template",
		mismatch->node, mismatch->key, mismatch->told);
}

void mismatch_told(
	const struct scale_group *group, struct scale_pairs *labels, struct scale_taints *taints)
{
	vec_foreach (const struct scale_pair, label, &group->labels)
		*vec_push(labels) = *label;
	vec_foreach (const struct scale_taint, taint, &group->taints)
		*vec_push(taints) = *taint;
	vec_foreach (const struct scale_mismatch, mismatch, &group->mismatches) {
		if (!mismatch_is_taint(mismatch)) {
			*vec_push(labels) = (struct scale_pair){mismatch->key, mismatch->told};
			continue;
		}
		const struct scale_taint extra = mismatch_taint(mismatch);
		size_t kept = 0;
		vec_foreach (const struct scale_taint, taint, taints)
			if (!mismatch_same_taint(taint, &extra))
				taints->v[kept++] = *taint;
		taints->n = kept;
	}
	scale_pairs_sort(labels);
}

char *mismatch_why(const struct scale_group *group, const struct scale_shape *shape)
{
	struct scale_pairs labels = {0};
	struct scale_taints taints = {0};
	const struct scale_machine is = {.labels = &group->labels, .taints = &group->taints};
	const struct scale_machine told = {.labels = &labels, .taints = &taints};
	char *why = NULL;

	if (!group->mismatches.n || scale_allows(shape, &is, NULL))
		return NULL;
	mismatch_told(group, &labels, &taints);
	if (scale_allows(shape, &told, NULL))
		vec_foreach (const struct scale_mismatch, mismatch, &group->mismatches)
			if (!why && mismatch_matters(mismatch, shape))
				why = mismatch_text(mismatch);
	vec_done(&labels);
	vec_done(&taints);
	return why;
}

/* JSON. */

static bool mismatch_read_one(const struct json *json, struct scale_mismatch *ret)
{
	const char *label = json_get_str(json, "label"), *taint = json_get_str(json, "taint");
	int effect = SCALE_NO_SCHEDULE;

	*ret = (struct scale_mismatch){.key = mem_strdup(label ? label : taint),
		.told = label ? mem_strdup(json_get_str(json, "told")) : NULL,
		.found = mem_strdup(json_get_str(json, "found")),
		.node = mem_strdup(json_get_str(json, "node"))};
	bool is_word = scale_word(snapshot_effects, json_get_str(json, "effect"), &effect);
	ret->effect = effect;
	return ret->node && (label ? !taint && ret->told : taint && ret->found && is_word);
}

bool mismatch_read(const struct json *json, struct scale_mismatches *ret)
{
	bool is_right = !json || json_kind(json) == JSON_ARRAY;

	if (!is_right)
		return false;
	json_foreach (m, json) {
		struct scale_mismatch one = {0};
		bool is_one = json_kind(m) == JSON_OBJECT && ret->n < MISMATCHES_MAX &&
			      mismatch_read_one(m, &one);
		if (is_one)
			*vec_push(ret) = one;
		else
			scale_mismatch_done(&one);
		is_right = is_right && is_one;
	}
	return is_right;
}

struct json *mismatch_write(const struct scale_mismatches *mismatches)
{
	struct json *list = mismatches->n ? json_array() : NULL;

	vec_foreach (const struct scale_mismatch, mismatch, mismatches) {
		bool is_taint = mismatch_is_taint(mismatch);
		json_add(list,
			json_make("{%s: %s, 'told': %s, 'found': %s, 'effect': %s, 'node': %s}",
				is_taint ? "taint" : "label", mismatch->key, mismatch->told,
				mismatch->found,
				is_taint ? snapshot_effects[mismatch->effect] : NULL,
				mismatch->node));
	}
	return list;
}
