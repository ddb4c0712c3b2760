/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which paths of the results are wanted: a line for the pattern, the rest is a path. What is wanted
 * is found: every directory on the way to it is looked into.
 */
#include <string.h>

#include "app/transfer/fetch.h"
#include "base/util/auto.h"
#include "base/util/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_path(const char *path)
{
	size_t len = strlen(path);

	return len && path[0] != '/' && path[len - 1] != '/' && !strstr(path, "//");
}

static void check_way(struct fetch_paths *paths, char *path)
{
	for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		BUG_ON(!fetch_paths_lead_into(paths, path) && !fetch_paths_want(paths, path));
		*slash = '/';
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	AUTO(fetch_paths_free_auto) struct fetch_paths *paths = NULL;
	AUTO_STRV struct strv words = {0};
	char *path = strchr(text, '\n');

	if (!path)
		return 0;
	*path++ = '\0';
	strv_add(&words, text);
	if (!is_path(path) || fetch_paths_new(&words, &paths, NULL) < 0)
		return 0;
	BUG_ON(fetch_paths_unused(paths) && strcmp(fetch_paths_unused(paths), text) != 0);
	if (!fetch_paths_want(paths, path))
		return 0;
	BUG_ON(fetch_paths_unused(paths));
	check_way(paths, path);
	return 0;
}
