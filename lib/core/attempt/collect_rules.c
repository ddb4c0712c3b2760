/* SPDX-License-Identifier: Apache-2.0 */
#include "core/attempt/collect_rules.h"

#include <fnmatch.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "events/plugin_files.h"

bool collect_is_cache(const char *name)
{
	static const char *const names[] = {".git", "__pycache__", ".pytest_cache", ".mypy_cache",
		".ruff_cache", ".ipynb_checkpoints"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_eq(name, names[i]))
			return true;
	return str_ends(name, ".pyc") || str_ends(name, ".pyo");
}

bool collect_is_excluded(const struct world *world, const char *path, const char *name)
{
	const struct strv *patterns = &world->collect.exclude;

	for (size_t i = 0; i < world->data.n; i++)
		if (fs_below(path, world->data.v[i].path))
			return true;
	for (size_t i = 0; i < patterns->n; i++)
		if (fnmatch(patterns->v[i], strchr(patterns->v[i], '/') ? path : name, 0) == 0)
			return true;
	return false;
}

bool collect_is_output(const struct world *world, const char *path)
{
	for (size_t i = 0; i < world->outputs.n; i++)
		if (fs_below(path, world->outputs.v[i]))
			return true;
	return false;
}

bool collect_is_telling(const char *path)
{
	static const char *const names[] = {"params.json", "hparams.yaml", "args.json",
		".hydra/config.yaml", ".hydra/overrides.yaml", "tensors.tsv", "metadata.tsv",
		"sprite.png"};
	size_t len = strlen(path);

	if (strstr(fs_basename(path), "tfevents") || plugin_files_is_one(path))
		return true;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		size_t n = strlen(names[i]);
		if (str_ends(path, names[i]) && (len == n || path[len - n - 1] == '/'))
			return true;
	}
	return false;
}
