/* SPDX-License-Identifier: Apache-2.0 */
#include "core/autoscale/model.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"

const char *const scale_failure_names[] = {
	"", "capacity", "quota", "price", "config", "throttle", "other", NULL};

static const char *const fixed_resources[SCALE_RESOURCES_FIXED] = {
	"cpu", "memory", "pods", "ephemeral-storage"};

void scale_limits_init(struct scale_limits *limits)
{
	*limits = (struct scale_limits){.removals = 10,
		.idle_ms = 600 * 1000,
		.boot_ms = 1500 * 1000,
		.silent_ms = 3600 * 1000};
}

void scale_model_init(struct scale_model *model)
{
	*model = (struct scale_model){0};
	scale_limits_init(&model->limits);
	for (int i = 0; i < SCALE_RESOURCES_FIXED; i++)
		model->resources[i] = mem_strdup(fixed_resources[i]);
}

void scale_pairs_add(struct scale_pairs *pairs, const char *key, const char *value)
{
	*vec_push(pairs) = (struct scale_pair){mem_strdup(key), mem_strdup(value)};
}

static int scale_by_key(const void *left, const void *right)
{
	const struct scale_pair *a = left, *b = right;

	return strcmp(a->key, b->key);
}

void scale_pairs_sort(struct scale_pairs *pairs)
{
	vec_sort(pairs, scale_by_key);
}

void scale_taints_add(struct scale_taints *taints, const char *key, const char *value, int effect)
{
	*vec_push(taints) =
		(struct scale_taint){mem_strdup(key), mem_strdup(value ? value : ""), effect};
}

void scale_pairs_done(struct scale_pairs *pairs)
{
	vec_foreach (struct scale_pair, pair, pairs) {
		free(pair->key);
		free(pair->value);
	}
	vec_done(pairs);
}

static void scale_taints_done(struct scale_taints *taints)
{
	vec_foreach (struct scale_taint, taint, taints) {
		free(taint->key);
		free(taint->value);
	}
	vec_done(taints);
}

static void scale_terms_done(struct scale_terms *terms)
{
	vec_foreach (struct scale_term, term, terms) {
		vec_foreach (struct scale_rule, rule, term) {
			free(rule->key);
			strv_done(&rule->values);
		}
		vec_done(term);
	}
	vec_done(terms);
}

void scale_shape_done(struct scale_shape *shape)
{
	free(shape->name);
	scale_pairs_done(&shape->selector);
	scale_terms_done(&shape->affinity);
	vec_foreach (struct scale_toleration, toleration, &shape->tolerations) {
		free(toleration->key);
		free(toleration->value);
	}
	vec_done(&shape->tolerations);
	strv_done(&shape->apart);
	strv_done(&shape->marks);
	strv_done(&shape->unsupported);
}

void scale_mismatch_done(struct scale_mismatch *mismatch)
{
	free(mismatch->key);
	free(mismatch->told);
	free(mismatch->found);
	free(mismatch->node);
}

void scale_mismatches_done(struct scale_mismatches *mismatches)
{
	vec_foreach (struct scale_mismatch, mismatch, mismatches)
		scale_mismatch_done(mismatch);
	vec_done(mismatches);
}

void scale_group_done(struct scale_group *group)
{
	free(group->id);
	free(group->provider);
	free(group->region);
	free(group->zone);
	scale_pairs_done(&group->labels);
	scale_taints_done(&group->taints);
	scale_mismatches_done(&group->mismatches);
	vec_foreach (struct scale_instance, instance, &group->instances) {
		free(instance->id);
		free(instance->was);
	}
	vec_done(&group->instances);
	free(group->failure_text);
	free(group->refused);
}

void scale_node_done(struct scale_node *node)
{
	free(node->name);
	free(node->instance);
	free(node->kept);
	free(node->version);
	scale_pairs_done(&node->labels);
	scale_taints_done(&node->taints);
}

void scale_model_done(struct scale_model *model)
{
	free(model->cluster);
	for (int i = 0; i < SCALE_RESOURCES_MAX; i++)
		free(model->resources[i]);
	vec_foreach (struct scale_shape, shape, &model->shapes)
		scale_shape_done(shape);
	vec_done(&model->shapes);
	vec_foreach (struct scale_pod, pod, &model->pods)
		free(pod->name);
	vec_done(&model->pods);
	vec_foreach (struct scale_gang, gang, &model->gangs) {
		free(gang->name);
		free(gang->owner);
	}
	vec_done(&model->gangs);
	vec_foreach (struct scale_node, node, &model->nodes)
		scale_node_done(node);
	vec_done(&model->nodes);
	vec_foreach (struct scale_group, group, &model->groups)
		scale_group_done(group);
	vec_done(&model->groups);
	strv_done(&model->remarks);
	*model = (struct scale_model){0};
}

int scale_resource(struct scale_model *model, const char *name)
{
	for (int i = 0; i < SCALE_RESOURCES_MAX; i++) {
		if (!model->resources[i])
			model->resources[i] = mem_strdup(name);
		if (str_eq(model->resources[i], name))
			return i;
	}
	return -1;
}

bool scale_word(const char *const names[], const char *word, int *ret)
{
	for (int i = 0; word && names[i]; i++)
		if (str_eq(names[i], word)) {
			*ret = i;
			return true;
		}
	return false;
}
