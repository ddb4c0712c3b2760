/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/str.h"
#include "snap/ignore/pathset.h"

static int by_bytes(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int refuse(const char *what, const char *path, const char *why, struct err *err)
{
	AUTO_FREE char *shown = str_shown(path);

	int r = err_set(err, E_SNAPSHOT_INCLUDE, "%s: \"%s\" %s", what, shown, why);
	err_hint(err, "name paths relative to the root of the working tree, like data/vocab.txt");
	return r;
}

/* *ret: without empty and "." components; empty for the whole tree. */
static int normalise(const char *path, const char *what, char **ret, struct err *err)
{
	AUTO_FREE char *normal = mem_alloc(strlen(path) + 1, 1);
	char *end = normal;

	if (!*path)
		return refuse(what, path, "is not a valid path", err);
	if (*path == '/')
		return refuse(what, path, "is an absolute path", err);
	for (const char *at = path; *at;) {
		size_t len = strcspn(at, "/");
		if (len == 2 && at[0] == '.' && at[1] == '.')
			return refuse(what, path, "may lead out of the tree by ..", err);
		if (len > 0 && !(len == 1 && *at == '.')) {
			if (end > normal)
				*end++ = '/';
			memcpy(end, at, len);
			end += len;
		}
		at += len + (at[len] == '/');
	}
	*end = '\0';
	*ret = TAKE(normal);
	return 0;
}

int pathset_init(struct pathset *set, const struct strv *paths, const char *what, struct err *err)
{
	*set = (struct pathset){0};
	for (size_t i = 0; paths && i < paths->n; i++) {
		AUTO_FREE char *path = NULL;
		int r = normalise(paths->v[i], what, &path, err);
		if (!path) {
			pathset_done(set);
			return r;
		}
		if (*path)
			strv_add_take(&set->paths, TAKE(path));
		else
			set->all = true;
	}
	vec_sort(&set->paths, by_bytes);
	size_t kept = 0;
	for (size_t i = 0; i < set->paths.n; i++) {
		if (kept && str_eq(set->paths.v[kept - 1], set->paths.v[i]))
			free(set->paths.v[i]);
		else
			set->paths.v[kept++] = set->paths.v[i];
	}
	if (set->paths.n)
		set->paths.v[kept] = NULL;
	set->paths.n = kept;
	return 0;
}

void pathset_done(struct pathset *set)
{
	if (!set)
		return;
	strv_done(&set->paths);
	set->all = false;
}

/* The first position whose path is not before the len bytes at path with the byte tail behind. */
static size_t lower_bound(
	const struct pathset *set, const char *path, size_t len, unsigned char tail)
{
	return vec_bound(&set->paths, other, str_is_before(*other, path, len, tail));
}

static bool has(const struct pathset *set, const char *path, size_t len)
{
	size_t at = lower_bound(set, path, len, '\0');

	return at < set->paths.n && strncmp(set->paths.v[at], path, len) == 0 &&
	       set->paths.v[at][len] == '\0';
}

static bool has_below(const struct pathset *set, const char *dir)
{
	size_t len = strlen(dir), at = lower_bound(set, dir, len, '/');

	return at < set->paths.n && strncmp(set->paths.v[at], dir, len) == 0 &&
	       set->paths.v[at][len] == '/';
}

bool pathset_covers(const struct pathset *set, const char *path)
{
	if (set->all)
		return true;
	for (size_t len = strcspn(path, "/"); set->paths.n;
		len += 1 + strcspn(path + len + 1, "/")) {
		if (has(set, path, len))
			return true;
		if (!path[len])
			return false;
	}
	return false;
}

struct pathset_reach pathset_at_root(const struct pathset *set)
{
	return (struct pathset_reach){.covered = set->all, .below = !set->all && set->paths.n};
}

struct pathset_reach pathset_enter(
	const struct pathset *set, struct pathset_reach reach, const char *path)
{
	if (!reach.below)
		return reach;
	if (has(set, path, strlen(path)))
		return (struct pathset_reach){.covered = true};
	return (struct pathset_reach){.below = has_below(set, path)};
}
