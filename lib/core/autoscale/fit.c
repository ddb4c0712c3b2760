/* SPDX-License-Identifier: Apache-2.0 */
#include "core/autoscale/fit.h"

#include <inttypes.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/plan.h"
#include "kube/api/kinds.h"
#include "kube/status/object.h"

const char *scale_pair(const struct scale_pairs *pairs, const char *key)
{
	size_t at = vec_bound(pairs, pair, strcmp(pair->key, key) < 0);

	return at < pairs->n && str_eq(pairs->v[at].key, key) ? pairs->v[at].value : NULL;
}

#define ZONE_BEFORE "failure-domain.beta.kubernetes.io/zone"

bool scale_is_zone(const char *key)
{
	return str_eq(key, KUBE_LABEL_ZONE) || str_eq(key, ZONE_BEFORE);
}

const char *scale_zone(const struct scale_pairs *labels)
{
	const char *zone = scale_pair(labels, KUBE_LABEL_ZONE);

	return zone ? zone : scale_pair(labels, ZONE_BEFORE);
}

int scale_n_resources(const struct scale_model *model)
{
	int n = 0;

	while (n < SCALE_RESOURCES_MAX && model->resources[n])
		n++;
	return n;
}

bool scale_is_gpu(const struct scale_model *model, int i)
{
	return model->resources[i] && kube_is_gpu(model->resources[i]);
}

bool scale_wants_gpu(const struct scale_model *model, const struct scale_amounts *amounts)
{
	for (int i = SCALE_RESOURCES_FIXED; i < SCALE_RESOURCES_MAX; i++)
		if (amounts->of[i] > 0 && scale_is_gpu(model, i))
			return true;
	return false;
}

static const char *scale_label(const struct scale_machine *machine, const char *key)
{
	return str_eq(key, SCALE_NODE_NAME) ? machine->name : scale_pair(machine->labels, key);
}

static bool scale_is_beyond(const char *label, const struct scale_rule *rule)
{
	int64_t is = 0, limit = 0;
	struct err ignored = {0};
	bool numbers =
		label && rule->values.n == 1 &&
		str_to_int(label, INT64_MIN, INT64_MAX, "label", &is, &ignored) == 0 &&
		str_to_int(rule->values.v[0], INT64_MIN, INT64_MAX, "value", &limit, &ignored) == 0;

	err_clear(&ignored);
	return numbers && (rule->op == SCALE_GREATER ? is > limit : is < limit);
}

static bool scale_rule_holds(const struct scale_rule *rule, const struct scale_machine *machine)
{
	const char *label = scale_label(machine, rule->key);

	switch (rule->op) {
	case SCALE_IN:
		return label && strv_find(&rule->values, label) >= 0;
	case SCALE_NOT_IN:
		return !label || strv_find(&rule->values, label) < 0;
	case SCALE_EXISTS:
		return label;
	case SCALE_NOT_EXISTS:
		return !label;
	case SCALE_GREATER:
	case SCALE_LESS:
		return scale_is_beyond(label, rule);
	}
	return false;
}

bool scale_affinity_holds(const struct scale_terms *terms, const struct scale_machine *machine)
{
	vec_foreach (const struct scale_term, term, terms) {
		bool all = term->n > 0; /* a term without rules selects nothing */
		vec_foreach (const struct scale_rule, rule, term)
			all = all && scale_rule_holds(rule, machine);
		if (all)
			return true;
	}
	return terms->n == 0;
}

static bool scale_tolerates(const struct scale_shape *shape, const struct scale_taint *taint)
{
	if (taint->effect == SCALE_PREFER_NO_SCHEDULE)
		return true;
	vec_foreach (const struct scale_toleration, t, &shape->tolerations)
		if ((t->effect < 0 || t->effect == (int)taint->effect) &&
			(!t->key || str_eq(t->key, taint->key)) &&
			(!t->value || str_eq(t->value, taint->value)))
			return true;
	return false;
}

static const char *scale_effect(const struct scale_taint *taint)
{
	return taint->effect == SCALE_NO_EXECUTE ? "NoExecute" : "NoSchedule";
}

/* term: the first, which does not hold. */
static char *scale_why_affinity(const struct scale_term *term, const struct scale_machine *machine)
{
	vec_foreach (const struct scale_rule, rule, term)
		if (!scale_rule_holds(rule, machine))
			return rule->op == SCALE_EXISTS
				       ? mem_printf("it has no label %s", rule->key)
				       : mem_printf("its labels are not those of the node affinity "
						    "(%s)",
						 rule->key);
	return mem_strdup("its labels are not those of the node affinity (a term without rules)");
}

bool scale_allows(
	const struct scale_shape *shape, const struct scale_machine *machine, char **ret_why)
{
	char *why = NULL;

	vec_foreach (const struct scale_pair, want, &shape->selector) {
		const char *label = scale_label(machine, want->key);
		if (!why && !str_eq(label, want->value))
			why = label ? mem_printf("its label %s is %s, not %s", want->key, label,
					      want->value)
				    : mem_printf("it has no label %s (%s is asked for)", want->key,
					      want->value);
	}
	if (!why && !scale_affinity_holds(&shape->affinity, machine))
		why = scale_why_affinity(&shape->affinity.v[0], machine);
	vec_foreach (const struct scale_taint, taint, machine->taints)
		if (!why && !scale_tolerates(shape, taint))
			why = mem_printf("its taint %s%s%s:%s is not tolerated", taint->key,
				str_empty(taint->value) ? "" : "=", taint->value,
				scale_effect(taint));
	bool allowed = !why;
	if (ret_why)
		*ret_why = why;
	else
		free(why);
	return allowed;
}

/* With its length, so that no text looks like two. */
static void scale_add_text(struct buf *text, const char *what)
{
	buf_addf(text, "%zu:%s ", what ? strlen(what) : 0, what ? what : "");
}

void scale_constraints_text(const struct scale_shape *shape, struct buf *text)
{
	vec_foreach (const struct scale_pair, pair, &shape->selector) {
		scale_add_text(text, pair->key);
		scale_add_text(text, pair->value);
	}
	vec_foreach (const struct scale_term, term, &shape->affinity) {
		buf_adds(text, "|");
		vec_foreach (const struct scale_rule, rule, term) {
			scale_add_text(text, rule->key);
			buf_addf(text, "%d %zu ", (int)rule->op, rule->values.n);
			for (size_t i = 0; i < rule->values.n; i++)
				scale_add_text(text, rule->values.v[i]);
		}
	}
	vec_foreach (const struct scale_toleration, t, &shape->tolerations) {
		buf_addf(text, "~%d%d%d ", t->effect, !t->key, !t->value);
		scale_add_text(text, t->key);
		scale_add_text(text, t->value);
	}
}

void scale_shape_text(const struct scale_shape *shape, struct buf *text)
{
	scale_constraints_text(shape, text);
	for (int r = 0; r < SCALE_RESOURCES_MAX; r++)
		buf_addf(text, "%" PRId64 " ", shape->request.of[r]);
	for (size_t i = 0; i < shape->apart.n; i++)
		buf_adds(text, "-"), scale_add_text(text, shape->apart.v[i]);
	for (size_t i = 0; i < shape->marks.n; i++)
		buf_adds(text, "+"), scale_add_text(text, shape->marks.v[i]);
	for (size_t i = 0; i < shape->unsupported.n; i++)
		buf_adds(text, "!"), scale_add_text(text, shape->unsupported.v[i]);
}

int64_t scale_count(
	const struct scale_shape *shape, const struct scale_amounts *room, int n, int64_t max)
{
	for (int i = 0; i < n; i++)
		if (shape->request.of[i] > 0 && room->of[i] / shape->request.of[i] < max)
			max = room->of[i] / shape->request.of[i];
	return max < 0 ? 0 : max;
}

/* As people write amounts: cpu in cores, memory in Gi. */
static char *scale_amount(int resource, int64_t amount)
{
	char bytes[24];

	if (resource == SCALE_CPU)
		return amount % 1000 == 0 ? mem_printf("%" PRId64, amount / 1000)
					  : mem_printf("%" PRId64 "m", amount);
	if (resource == SCALE_MEMORY || resource == SCALE_DISK)
		return mem_strdup(kube_bytes_text(amount, bytes));
	return mem_printf("%" PRId64, amount);
}

bool scale_holds(const struct scale_model *model, const struct scale_shape *shape,
	const struct scale_amounts *room, char **ret_why)
{
	for (int i = 0; i < SCALE_RESOURCES_MAX; i++) {
		if (shape->request.of[i] <= room->of[i])
			continue;
		if (ret_why) {
			AUTO_FREE char *want = scale_amount(i, shape->request.of[i]);
			AUTO_FREE char *have = scale_amount(i, room->of[i]);
			*ret_why = room->of[i] > 0 ? mem_printf("a machine of it has %s %s, not %s",
							     have, model->resources[i], want)
						   : mem_printf("a machine of it has no %s",
							     model->resources[i]);
		}
		return false;
	}
	if (ret_why)
		*ret_why = NULL;
	return true;
}

bool scale_fits(const struct scale_model *model, const struct scale_shape *shape,
	const struct scale_pairs *labels, const struct scale_taints *taints,
	const struct scale_amounts *room, char **ret_why)
{
	struct scale_machine machine = {.labels = labels, .taints = taints};

	if (shape->unsupported.n) {
		if (ret_why)
			*ret_why = mem_printf("%s is not supported", shape->unsupported.v[0]);
		return false;
	}
	return scale_allows(shape, &machine, ret_why) && scale_holds(model, shape, room, ret_why);
}
