/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/term.h"
#include "core/autoscale/growth.h"
#include "core/autoscale/report.h"
#include "kube/status/object.h"

enum { COUNT_MAX = 1000 * 1000, MINUTE_MS = 60 * 1000 };
#define GPU_DEFAULT "nvidia.com/gpu"

static int whatif_bad(const char *text, struct err *err)
{
	err_set(err, E_USAGE, "'%.200s' is not a demand for pods", text);
	return err_hint(err,
		"dlrun autoscale plan --what-if '16 x 8 GPUs', or 'study of 200 x 1 GPU, "
		"8 CPUs, 64Gi'");
}

/* The name of the GPUs that machines of this model have. */
static const char *whatif_gpu(const struct scale_model *model)
{
	for (int i = SCALE_RESOURCES_FIXED; i < SCALE_RESOURCES_MAX; i++)
		if (model->resources[i] && kube_is_gpu(model->resources[i]))
			return model->resources[i];
	return GPU_DEFAULT;
}

static void whatif_trim(char **text)
{
	while (**text == ' ')
		++*text;
	for (char *end = *text + strlen(*text); end > *text && end[-1] == ' ';)
		*--end = 0;
}

static bool whatif_amount(
	struct scale_model *model, const char *name, const char *amount, struct scale_amounts *ret)
{
	int64_t milli;
	int resource = scale_resource(model, name);

	if (resource < 0 || !kube_quantity(amount, &milli) || milli <= 0 || milli > INT64_MAX / 2)
		return false;
	/* Kubernetes has no parts of devices. */
	if (resource >= SCALE_RESOURCES_FIXED && milli % 1000)
		return false;
	ret->of[resource] = resource == SCALE_CPU ? milli : milli / 1000 + (milli % 1000 != 0);
	return true;
}

/* "8 GPUs", "64 CPUs", "512Gi", "nvidia.com/gpu=4". */
static bool whatif_part(struct scale_model *model, char *part, struct scale_amounts *ret)
{
	char *equals = strchr(part, '='), *blank = strchr(part, ' ');

	if (equals) {
		*equals = 0;
		return whatif_amount(model, part, equals + 1, ret);
	}
	/* Memory alone, with its unit. */
	if (!blank)
		return strpbrk(part, "KMGTPEkmgtpe") && whatif_amount(model, "memory", part, ret);
	*blank = 0;
	AUTO_FREE char *unit = str_lower(blank + 1, strlen(blank + 1));
	if (str_is_word_of(unit, "gpu gpus"))
		return whatif_amount(model, whatif_gpu(model), part, ret);
	if (str_is_word_of(unit, "cpu cpus core cores"))
		return whatif_amount(model, "cpu", part, ret);
	return str_is_word_of(unit, "memory") && whatif_amount(model, "memory", part, ret);
}

static bool whatif_parts(struct scale_model *model, char *parts, struct scale_amounts *ret)
{
	char *rest = parts;

	for (char *part = strsep(&rest, ","); part; part = strsep(&rest, ",")) {
		whatif_trim(&part);
		if (!whatif_part(model, part, ret))
			return false;
	}
	return true;
}

static void whatif_ask(
	struct scale_model *model, const struct scale_amounts *request, int64_t count, bool is_gang)
{
	struct scale_shape *shape = vec_push(&model->shapes);
	struct scale_pod *pod = vec_push(&model->pods);

	shape->name = mem_printf("what-if-%zu", model->shapes.n);
	shape->request = *request;
	/* As runs of dlrun tolerate what keeps others from GPUs. */
	*vec_push(&shape->tolerations) =
		(struct scale_toleration){mem_strdup(whatif_gpu(model)), NULL, SCALE_NO_SCHEDULE};
	if (is_gang && count > 1) {
		struct scale_gang *gang = vec_push(&model->gangs);
		gang->name = mem_strdup(shape->name);
		gang->owner = mem_strdup("what-if");
	}
	*pod = (struct scale_pod){.name = mem_strdup(shape->name),
		.count = count,
		.shape = (int32_t)model->shapes.n - 1,
		.node = -1,
		.gang = is_gang && count > 1 ? (int32_t)model->gangs.n - 1 : -1};
}

int whatif_add(const char *text, struct scale_model *model, struct err *err)
{
	AUTO_FREE char *copy = mem_strdup(text);
	struct scale_amounts request = {.of = {[SCALE_PODS] = 1}};
	char *at = copy;
	int64_t count = 1;
	bool is_study = str_starts(at, "study of ");

	at += is_study ? strlen("study of ") : 0;
	char *by = strstr(at, "\u00d7"), *end = by ? by + strlen("\u00d7") : NULL;
	if (!by && (by = strstr(at, " x ")))
		end = by + 3;
	if (by) {
		*by = 0;
		whatif_trim(&at);
		int r = str_to_int(at, 1, COUNT_MAX, "the number of pods", &count, err);
		if (r < 0)
			return r;
		at = end;
	}
	if (!whatif_parts(model, at, &request))
		return whatif_bad(text, err);
	whatif_ask(model, &request, count, !is_study);
	return 0;
}

/* Answers. */

struct whatif_gets {
	int64_t pods, helped;
	int64_t nodes, shared; /* new ones with its pods alone, and with those of others, too */
	double price;          /* of the former, for an hour; negative: not known */
	bool waits;            /* its pods wait for machines */
	int64_t ready_ms; /* when the last of its machines is there, from now on; -1: not known */
};

/* Pods on a new machine. */
struct whatif_use {
	int32_t group, machine;
	bool is_other; /* the pods are not the demand's */
};
struct whatif_uses VEC_OF(struct whatif_use);

static int whatif_by_machine(const void *a_ptr, const void *b_ptr)
{
	const struct whatif_use *a = a_ptr, *b = b_ptr;

	if (a->group != b->group)
		return a->group < b->group ? -1 : 1;
	return a->machine < b->machine ? -1 : a->machine > b->machine;
}

static void whatif_wait(const struct scale_model *model, const struct scale_placement *placement,
	struct whatif_gets *ret)
{
	bool comes = placement->supply == SCALE_NEW || placement->supply == SCALE_ON_ITS_WAY;

	if (!comes)
		return;
	ret->waits = true;
	int64_t at_ms = placement->group < 0 ? 0
					     : growth_expected_ms(model, placement,
						       model->groups.v[placement->group].boot_ms);
	if (!at_ms || ret->ready_ms < 0)
		ret->ready_ms = -1;
	else if (at_ms - model->now_ms > ret->ready_ms)
		ret->ready_ms = at_ms - model->now_ms;
}

static void whatif_count(
	const struct scale_model *model, struct whatif_uses *uses, struct whatif_gets *ret)
{
	AUTO_FREE int64_t *own = mem_alloc(model->groups.n + 1, sizeof(*own));

	vec_sort(uses, whatif_by_machine);
	for (size_t i = 0, next; i < uses->n; i = next) {
		const struct whatif_use *use = &uses->v[i];
		bool has_own = false, has_other = false;
		for (next = i; next < uses->n && !whatif_by_machine(use, &uses->v[next]); next++) {
			has_own |= !uses->v[next].is_other;
			has_other |= uses->v[next].is_other;
		}
		ret->shared += has_own && has_other;
		own[use->group] += has_own && !has_other;
	}
	for (size_t i = 0; i < model->groups.n; i++) {
		double price = model->groups.v[i].price;
		ret->nodes += own[i];
		if (own[i])
			ret->price = price < 0 || ret->price < 0
					     ? -1
					     : ret->price + (double)own[i] * price;
	}
}

static void whatif_find(const struct scale_model *model, const struct scale_plan *plan, int32_t pod,
	struct whatif_gets *ret)
{
	struct whatif_uses uses = {0};

	*ret = (struct whatif_gets){.pods = model->pods.v[pod].count};
	vec_foreach (const struct scale_placement, placement, &plan->placements) {
		bool is_own = placement->pod == pod;
		if (is_own && placement->supply != SCALE_NOT_HELPED)
			ret->helped += placement->pods;
		if (is_own)
			whatif_wait(model, placement, ret);
		if (placement->supply == SCALE_NEW)
			*vec_push(&uses) =
				(struct whatif_use){placement->group, placement->machine, !is_own};
	}
	whatif_count(model, &uses, ret);
	vec_done(&uses);
}

struct json *whatif_json(
	const struct strv *demands, const struct scale_model *model, const struct scale_plan *plan)
{
	struct json *list = json_array();

	for (size_t i = 0; i < demands->n; i++) {
		struct json *one = json_object();
		struct whatif_gets gets;
		whatif_find(model, plan, (int32_t)(model->pods.n - demands->n + i), &gets);
		json_set_str(one, "demand", demands->v[i]);
		json_set_int(one, "pods", gets.pods);
		json_set_int(one, "helped", gets.helped);
		json_set_int(one, "nodes", gets.nodes);
		json_set_int(one, "shared_nodes", gets.shared);
		if (gets.price >= 0)
			json_set_num(one, "price", gets.price);
		if (gets.helped && gets.ready_ms >= 0)
			json_set_int(one, "ready_in_s", (gets.ready_ms + 999) / 1000);
		json_add(list, one);
	}
	return list;
}

static void whatif_line(const char *demand, const struct whatif_gets *gets, struct buf *out)
{
	AUTO_FREE char *shown = term_plain(demand, strlen(demand));
	int64_t minutes = (gets->ready_ms + MINUTE_MS - 1) / MINUTE_MS;
	char text[32];

	buf_addf(out, "What-if %s: %" PRId64 " of %" PRId64 " %s helped", shown, gets->helped,
		gets->pods, gets->pods == 1 ? "pod is" : "pods are");
	if (gets->nodes)
		buf_addf(out, ", new nodes of its own: %" PRId64, gets->nodes);
	if (gets->nodes && gets->price > 0)
		buf_addf(out, " (%.2f an hour)", gets->price);
	if (gets->shared)
		buf_addf(out, ", shared with others: %" PRId64, gets->shared);
	if (gets->helped && !gets->waits)
		buf_adds(out, ", on nodes that are there");
	else if (gets->helped && gets->ready_ms < 0)
		buf_adds(out, "; how long machines take to come is not known");
	else if (gets->helped)
		buf_addf(out, ", all there in about %s",
			duration_text((minutes ? minutes : 1) * MINUTE_MS, text));
	buf_adds(out, ".\n");
}

void whatif_text(const struct strv *demands, const struct scale_model *model,
	const struct scale_plan *plan, struct buf *out)
{
	int64_t asked = 0;

	for (size_t i = 0; i < demands->n; i++) {
		struct whatif_gets gets;
		whatif_find(model, plan, (int32_t)(model->pods.n - demands->n + i), &gets);
		asked += gets.pods;
		buf_adds(out, i ? "" : "\n");
		whatif_line(demands->v[i], &gets, out);
	}
	int64_t others = plan->waiting - asked;
	if (demands->n && others)
		buf_addf(out, "The plan above counts %" PRId64 " %s already, too.\n", others,
			others == 1 ? "pod that waits" : "pods that wait");
}
