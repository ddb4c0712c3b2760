/* SPDX-License-Identifier: Apache-2.0 */
#include "core/autoscale/report.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/term.h"
#include "kube/status/object.h"

/* Text from elsewhere on one line of a terminal. The caller frees. */
static char *report_plain(const char *text)
{
	return term_plain(text, strlen(text));
}

static const char *const report_doings[] = {
	"uncordon", "grow", "shrink", "cordon", "remove", "forget", "terminate"};
static const char *const report_supplies[] = {"free", "cordoned", "coming", "new", NULL};

static struct json *report_action(
	const struct scale_model *model, const struct scale_action *action)
{
	struct json *json = json_object();
	bool is_size = action->kind == SCALE_GROW || action->kind == SCALE_SHRINK;

	json_set_str(json, "do", report_doings[action->kind]);
	if (action->node >= 0)
		json_set_str(json, "node", model->nodes.v[action->node].name);
	if (action->group >= 0)
		json_set_str(json, "group", model->groups.v[action->group].id);
	if (action->instance >= 0)
		json_set_str(json, "instance",
			model->groups.v[action->group].instances.v[action->instance].id);
	if (is_size) {
		json_set_int(json, "from", action->from);
		json_set_int(json, "to", action->to);
	}
	if (action->pods)
		json_set_int(json, "pods", action->pods);
	json_set_str(json, "why", action->why);
	return json;
}

static struct json *report_placement(
	const struct scale_model *model, const struct scale_placement *placement)
{
	struct json *json = json_object();

	json_set_str(json, "pod", model->pods.v[placement->pod].name);
	json_set_int(json, "pods", placement->pods);
	json_set_str(json, "on", report_supplies[placement->supply]);
	if (placement->node >= 0)
		json_set_str(json, "node", model->nodes.v[placement->node].name);
	if (placement->group >= 0)
		json_set_str(json, "group", model->groups.v[placement->group].id);
	return json;
}

static struct json *report_reason_list(
	const struct scale_model *model, const struct scale_reasons *reasons)
{
	struct json *list = json_array();

	vec_foreach (const struct scale_reason, reason, reasons) {
		struct json *why = json_object();
		json_set_str(
			why, "group", reason->group < 0 ? NULL : model->groups.v[reason->group].id);
		json_set_str(why, "text", reason->text);
		json_add(list, why);
	}
	return list;
}

static struct json *report_not_helped(
	const struct scale_model *model, const struct scale_plan *plan)
{
	AUTO_FREE struct json **lists = mem_alloc(plan->reasons.n + 1, sizeof(struct json *));
	struct json *all = json_array();

	vec_foreach (const struct scale_left, left, &plan->left) {
		struct json *one = json_object(), **list = &lists[left->reasons];
		bool is_first = !*list;
		json_set_str(one, "shape", model->shapes.v[left->shape].name);
		if (left->gang >= 0)
			json_set_str(one, "gang", model->gangs.v[left->gang].name);
		json_set_int(one, "pods", left->pods);
		*list = is_first ? report_reason_list(model, &plan->reasons.v[left->reasons])
				 : *list;
		json_set(one, "reasons", is_first ? *list : json_same_array(*list));
		json_add(all, one);
	}
	return all;
}

struct json *plan_json(const struct scale_model *model, const struct scale_plan *plan)
{
	struct json *json = json_object(), *actions = json_array(), *placements = json_array();
	struct json *bound, *remarks = json_array();

	vec_foreach (const struct scale_action, action, &plan->actions)
		json_add(actions, report_action(model, action));
	vec_foreach (const struct scale_placement, placement, &plan->placements)
		json_add(placements, report_placement(model, placement));
	json_set(json, "actions", actions);
	json_set(json, "placements", placements);
	json_set(json, "not_helped", report_not_helped(model, plan));
	bound = json_sub(json, "bound");
	json_set_int(bound, "nodes", plan->bound.nodes);
	json_set_int(bound, "nodes_least", plan->bound.nodes_least);
	if (plan->bound.price >= 0) {
		json_set_num(bound, "price", plan->bound.price);
		json_set_num(bound, "price_least", plan->bound.price_least);
	}
	json_set_int(json, "waiting", plan->waiting);
	json_set_int(json, "helped", plan->helped);
	json_set_int(json, "nodes_after", plan->nodes_after);
	json_set_num(json, "price_after", plan->price_after);
	json_add_strv(remarks, &model->remarks);
	json_add_strv(remarks, &plan->remarks);
	json_set(json, "remarks", remarks);
	return json;
}

/* For people. */

static void report_line(struct buf *out, const char *what, const char *name, const char *why)
{
	AUTO_FREE char *shown = report_plain(name);
	AUTO_FREE char *text = report_plain(why);

	buf_addf(out, "%-10s %-28s %s\n", what, shown, text);
}

static void report_action_line(
	const struct scale_model *model, const struct scale_action *action, struct buf *out)
{
	const char *group = action->group >= 0 ? model->groups.v[action->group].id : "";
	AUTO_FREE char *name =
		action->kind == SCALE_GROW || action->kind == SCALE_SHRINK
			? mem_printf("%s %" PRId64 " > %" PRId64, group, action->from, action->to)
		: action->instance >= 0
			? mem_strdup(
				  model->groups.v[action->group].instances.v[action->instance].id)
			: mem_strdup(model->nodes.v[action->node].name);

	report_line(out, report_doings[action->kind], name, action->why);
}

static void report_amounts(
	const struct scale_model *model, const struct scale_amounts *amounts, struct buf *out)
{
	char bytes[24];

	for (int r = 0; r < SCALE_RESOURCES_MAX; r++) {
		int64_t amount = amounts->of[r];
		if (!amount || r == SCALE_PODS)
			continue;
		buf_adds(out, ", ");
		if (r == SCALE_CPU)
			buf_addf(out, "cpu %g", (double)amount / 1000);
		else if (r == SCALE_MEMORY || r == SCALE_DISK)
			buf_addf(out, "%s %s", model->resources[r], kube_bytes_text(amount, bytes));
		else
			buf_addf(out, "%s %" PRId64, model->resources[r], amount);
	}
}

static void report_reasons(
	const struct scale_model *model, const struct scale_plan *plan, struct buf *out)
{
	vec_foreach (const struct scale_left, left, &plan->left) {
		AUTO_FREE char *name =
			report_plain(left->gang >= 0 ? model->gangs.v[left->gang].name
						     : model->pods.v[left->pod].name);
		buf_addf(out, "%s%" PRId64 " %s %s not helped (%s%s", out->len ? "\n" : "",
			left->pods, left->pods == 1 ? "pod" : "pods",
			left->pods == 1 ? "is" : "are", name,
			left->pods > 1 && left->gang < 0 ? ", …" : "");
		report_amounts(model, &model->shapes.v[left->shape].request, out);
		buf_adds(out, "):\n");
		vec_foreach (const struct scale_reason, reason, &plan->reasons.v[left->reasons]) {
			AUTO_FREE char *group = report_plain(
				reason->group < 0 ? "" : model->groups.v[reason->group].id);
			AUTO_FREE char *text = report_plain(reason->text);
			buf_addf(out, "  %s%s%s\n", group, *group ? ": " : "", text);
		}
	}
}

static double report_over(double is, double least)
{
	return least > 0 ? (is / least - 1) * 100 : 0;
}

static void report_remarks(const struct strv *remarks, struct buf *out)
{
	for (size_t i = 0; i < remarks->n; i++) {
		AUTO_FREE char *remark = report_plain(remarks->v[i]);
		buf_addf(out, "note: %s\n", remark);
	}
}

static void report_sum(
	const struct scale_model *model, const struct scale_plan *plan, struct buf *out)
{
	const struct scale_bound *bound = &plan->bound;

	buf_adds(out, out->len ? "\n" : "");
	if (plan->waiting)
		buf_addf(out, "%" PRId64 " of %" PRId64 " waiting pods are helped", plan->helped,
			plan->waiting);
	else
		buf_adds(out, "No pods wait");
	if (bound->nodes)
		buf_addf(out, "; new nodes: %" PRId64, bound->nodes);
	/* Where prices are known they are what was made small. */
	if (bound->nodes && bound->price <= 0)
		buf_addf(out, " (%.1f %% over what any packing needs)",
			report_over((double)bound->nodes, (double)bound->nodes_least));
	buf_addf(out, ".\nNodes of groups afterwards: %" PRId64, plan->nodes_after);
	if (plan->price_after > 0)
		buf_addf(out, ", %.2f an hour", plan->price_after);
	if (bound->nodes && bound->price > 0)
		buf_addf(out, " (new ones %.2f, %.1f %% over what any packing costs)", bound->price,
			report_over(bound->price, bound->price_least));
	buf_adds(out, ".\n");
	report_remarks(&model->remarks, out);
	report_remarks(&plan->remarks, out);
}

void plan_text(const struct scale_model *model, const struct scale_plan *plan, struct buf *out)
{
	vec_foreach (const struct scale_action, action, &plan->actions)
		report_action_line(model, action, out);
	report_reasons(model, plan, out);
	report_sum(model, plan, out);
}
