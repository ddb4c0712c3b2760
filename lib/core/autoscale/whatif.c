/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/report.h"
#include "kube/status/object.h"

enum { COUNT_MAX = 1000 * 1000 };
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
