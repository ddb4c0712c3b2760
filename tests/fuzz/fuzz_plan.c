/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/util/mem.h"
#include "oci/image/plan.h"
#include "oci/layer/layer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_entries(const struct plan *plan)
{
	for (size_t i = 0; i < plan->n_entries; i++) {
		const struct entry *e = &plan->entries[i];
		BUG_ON((e->kind == ENTRY_LINK) != (e->target != NULL));
		BUG_ON(e->kind == ENTRY_LINK && e->exec);
		BUG_ON(!*e->path || *e->path == '/' || strlen(e->path) > ENTRY_PATH_MAX);
		BUG_ON(strstr(e->path, "//") || strstr(e->path, "/../"));
		BUG_ON(i > 0 && strcmp(plan->entries[i - 1].path, e->path) >= 0);
	}
}

/* A diff against any list must end, and one against the list itself is empty. */
static void check_diff(const struct plan *plan)
{
	struct entry_refs all = {0}, some = {0};
	AUTO_LAYER_DIFF struct layer_diff same = {0}, less = {0};

	for (size_t i = 0; i < plan->n_entries; i++) {
		*vec_push(&all) = &plan->entries[i];
		if (plan->entries[i].sha256[0] & 1)
			*vec_push(&some) = &plan->entries[i];
	}
	BUG_ON(!layer_diff_make(&all, &all, 0, &same));
	BUG_ON(!layer_diff_make(&all, &some, SIZE_MAX, &less));
	BUG_ON(less.entries.n != 0 || less.whiteouts.n > all.n - some.n);
	vec_done(&all);
	vec_done(&some);
}

/* The bytes behind the checksum of either file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_PLAN struct plan plan = {0};

	if (size == 0)
		return 0;
	if (data[0] & 1) {
		if (plan_parse_recent(data + 1, size - 1, &plan))
			BUG_ON(plan.n_recent > PLAN_RECENT_MAX);
		return 0;
	}
	if (!plan_parse_full(data + 1, size - 1, &plan)) {
		BUG_ON(plan.has_full || plan.entries);
		return 0;
	}
	check_entries(&plan);
	check_diff(&plan);
	return 0;
}
