/* SPDX-License-Identifier: Apache-2.0 */
/* An attempt's tree and outputs for tests of run/world_*. */
#ifndef DLRUN_TESTS_UNIT_WORLDFIX_H
#define DLRUN_TESTS_UNIT_WORLDFIX_H

#include <stdlib.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "core/attempt/attempt.h"
#include "tests/unit/tree.h"

/* run/ is the tree, results/ the outputs, places/ where data are. */
struct place {
	struct tree tree;
	char *run;
	struct attempt_job job;
	struct err err;
};

static inline int setup(void **state)
{
	struct place *place = mem_alloc(1, sizeof(*place));

	place->tree = tree_new();
	tree_dir(&place->tree, "run");
	tree_dir(&place->tree, "places");
	place->run = fs_join(place->tree.root, "run");
	place->job.outputs = fs_join(place->tree.root, "results");
	*state = place;
	return 0;
}

static inline int teardown(void **state)
{
	struct place *place = *state;

	tree_free(&place->tree);
	free(place->run);
	attempt_job_done(&place->job);
	err_done(&place->err);
	free(place);
	return 0;
}

#endif
