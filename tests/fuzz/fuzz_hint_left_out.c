/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search for a left-out path in a program's output: lines of the list, an empty line, and the
 * output.
 */
#include <string.h>

#include "app/lifecycle/hint_left_out.h"
#include "base/util/auto.h"
#include "base/util/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct left_out *find(const struct left_out_paths *paths, const char *text, size_t len)
{
	const struct left_out_place place = {
		.run_id = "a-22222", .tree = "/t/attempts/1/tree", .cwd = "exp/a"};

	return left_out_find(paths, &place, text, len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_LEFT_OUT struct left_out_paths paths = {0};
	AUTO_FREE char *text = mem_alloc(size + 3, 1);
	char *at = text + 2;

	/* A line in front that says nothing must not matter. */
	memcpy(text, "-\n", 2);
	if (size)
		memcpy(at, data, size);
	for (char *end; *at && (end = strchr(at, '\n')); at = end + 1) {
		if (end == at) {
			at++;
			break;
		}
		*end = '\0';
		left_out_add(&paths, at, LEFT_OUT_IGNORED);
		*end = '\n';
	}
	left_out_sort(&paths);
	size_t len = size + 2 - (size_t)(at - text);
	const struct left_out *found = find(&paths, at, len);
	BUG_ON(found && (found < paths.v || found >= paths.v + paths.n));
	if (found) {
		/* Without it nothing is claimed of it. */
		const char *path = found->path;
		struct left_out_paths one = {.v = (struct left_out *)found, .n = 1, .cap = 1};
		BUG_ON(find(&one, at, len) != found);
		BUG_ON(!*path);
	}
	if (len + 2 <= LEFT_OUT_TAIL && at - text >= 2) {
		at[-2] = '-';
		at[-1] = '\n';
		BUG_ON(find(&paths, at - 2, len + 2) != found);
	}
	return 0;
}
