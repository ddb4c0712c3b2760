/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search for a left-out path in a program's output: lines of the list, an empty line, and the
 * output.
 */
#include <string.h>

#include "app/lifecycle/hint_excluded.h"
#include "base/util/auto.h"
#include "base/util/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct excluded *find(const struct excluded_paths *paths, const char *text, size_t len)
{
	const struct excluded_place place = {
		.run_id = "a-22222", .tree = "/t/attempts/1/tree", .cwd = "exp/a"};

	return excluded_find(paths, &place, text, len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_EXCLUDED struct excluded_paths paths = {0};
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
		excluded_add(&paths, at, EXCLUDED_IGNORED);
		*end = '\n';
	}
	excluded_sort(&paths);
	size_t len = size + 2 - (size_t)(at - text);
	const struct excluded *found = find(&paths, at, len);
	BUG_ON(found && (found < paths.v || found >= paths.v + paths.n));
	if (found) {
		/* Without it nothing is claimed of it. */
		const char *path = found->path;
		struct excluded_paths one = {.v = (struct excluded *)found, .n = 1, .cap = 1};
		BUG_ON(find(&one, at, len) != found);
		BUG_ON(!*path);
	}
	if (len + 2 <= EXCLUDED_TAIL && at - text >= 2) {
		at[-2] = '-';
		at[-1] = '\n';
		BUG_ON(find(&paths, at - 2, len + 2) != found);
	}
	return 0;
}
