/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/metric.h"

#include <ctype.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

static const char *const training[] = {"train", NULL};
static const char *const held_out[] = {"val", "eval", "test", "dev", NULL};

static bool has_one(const char *name, const char *const *words)
{
	for (; *words; words++)
		if (strstr(name, *words))
			return true;
	return false;
}

/* The smallest is shown. */
static int rank_of(const char *name)
{
	enum { LOSS, TRAINING_LOSS, SOME_LOSS, HELD_OUT_LOSS, OTHER };
	AUTO_FREE char *low = mem_strdup(name);

	for (char *c = low; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	if (str_eq(low, "loss"))
		return LOSS;
	if (!strstr(low, "loss"))
		return OTHER;
	if (has_one(low, training))
		return TRAINING_LOSS;
	return has_one(low, held_out) ? HELD_OUT_LOSS : SOME_LOSS;
}

const struct json *metric_main(const struct json *metrics)
{
	const struct json *best = NULL;
	int best_rank = 0;

	if (!metrics || json_kind(metrics) != JSON_OBJECT)
		return NULL;
	for (const struct json *item = json_first(metrics); item; item = json_next(item)) {
		int rank = rank_of(json_key(item));

		if (json_kind(item) != JSON_OBJECT || (best && rank >= best_rank))
			continue;
		best = item;
		best_rank = rank;
	}
	return best;
}

void metric_value(const struct json *metric, struct buf *out)
{
	const char *not_finite = json_get_str(metric, "not_finite");
	const struct json *value = json_get(metric, "value");

	if (not_finite)
		buf_adds(out, not_finite);
	else if (value && json_kind(value) == JSON_NUMBER)
		buf_addf(out, "%.4g", json_get_num(metric, "value", 0));
	else
		buf_adds(out, "null");
}

void metric_text(const struct json *metric, size_t width, struct buf *out)
{
	const char *name = json_key(metric);
	size_t columns = str_columns(name);

	if (columns > width) {
		/* Whole characters: no byte but the first of one is 10xxxxxx. */
		for (; *name && columns >= width; columns--)
			for (name++; (*name & 0xc0) == 0x80;)
				name++;
		buf_adds(out, "…");
	}
	buf_addf(out, "%s ", name);
	metric_value(metric, out);
}
