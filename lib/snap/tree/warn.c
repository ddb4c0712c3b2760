/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "snap/tree/private.h"

/* The number of paths that a warning is about, and the first of them as the example. */
struct tally {
	size_t n;
	const char *example;
};

static void tally(struct tally *tally, const char *path)
{
	if (tally->n++ == 0)
		tally->example = path;
}

/* one follows the name of the only path, many the number of them. */
static void say(struct snapshot *s, const struct tally *tally, const char *one, const char *many)
{
	if (tally->n == 0)
		return;
	AUTO_FREE char *shown = str_escaped(tally->example);
	if (tally->n == 1)
		strv_addf(&s->warnings, "'%s' %s", shown, one);
	else
		strv_addf(&s->warnings, "%zu %s, such as '%s'", tally->n, many, shown);
}

static bool leads_out(const char *path, const char *target)
{
	size_t depth = 0;

	if (*target == '/')
		return true;
	for (const char *p = path; (p = strchr(p, '/')); p++)
		depth++;
	while (*target) {
		size_t len = strcspn(target, "/");
		if (len == 2 && target[0] == '.' && target[1] == '.') {
			if (depth-- == 0)
				return true;
		} else if (len > 1 || (len == 1 && target[0] != '.')) {
			depth++;
		}
		target += len;
		target += strspn(target, "/");
	}
	return false;
}

static bool is_below_pycache(const char *path)
{
	static const char name[] = "__pycache__/";
	const char *found = strstr(path, name);

	while (found && found != path && found[-1] != '/')
		found = strstr(found + 1, name);
	return found;
}

/* The last result, for the next path: paths of one directory mostly follow each other. */
struct looked {
	const char *path;
	size_t dir_len;
	bool is_below;
};

static bool look_for_pycache(struct looked *last, const char *path)
{
	const char *slash = strrchr(path, '/');
	size_t dir_len = slash ? (size_t)(slash - path) + 1 : 0;

	if (!last->path || dir_len != last->dir_len || memcmp(path, last->path, dir_len) != 0)
		*last = (struct looked){path, dir_len, is_below_pycache(path)};
	return last->is_below;
}

static void warn_contents(struct snapshot *s)
{
	struct tally lfs = {0}, scripts = {0}, links = {0}, pycache = {0};
	struct looked last = {0};

	for (size_t i = 0; i < s->entries.n; i++) {
		const struct entry *entry = &s->entries.v[i];
		unsigned marks = s->private->marks[i];

		if (marks & STATCACHE_LFS_POINTER)
			tally(&lfs, entry->path);
		if (marks & STATCACHE_CR_SCRIPT)
			tally(&scripts, entry->path);
		if (entry->kind == ENTRY_LINK && leads_out(entry->path, entry->target))
			tally(&links, entry->path);
		if (look_for_pycache(&last, entry->path))
			tally(&pycache, entry->path);
	}
	say(s, &lfs, "is a pointer of Git LFS without the content (git lfs pull)",
		"files are pointers of Git LFS without the content (git lfs pull)");
	say(s, &scripts, "begins with a #! line that ends in CR LF and cannot be executed by name",
		"scripts begin with a #! line that ends in CR LF and cannot be executed by name");
	say(s, &links, "is a symbolic link out of the tree and may lead nowhere in the run",
		"symbolic links lead out of the tree and may lead nowhere in the run");
	say(s, &pycache, "is compiled Python that is not ignored (add __pycache__/ to .gitignore)",
		"files are compiled Python that is not ignored (add __pycache__/ to .gitignore)");
}

static void warn_special(struct snapshot *s)
{
	struct tally special = {0};

	for (size_t i = 0; i < s->paths.left_out.n; i++)
		if (s->paths.left_out.v[i].why == LEFT_OUT_SPECIAL)
			tally(&special, s->paths.left_out.v[i].path);
	say(s, &special, "is a socket, FIFO or device and no part of the snapshot",
		"sockets, FIFOs and devices are no part of the snapshot");
}

static void warn_paths(struct snapshot *s)
{
	for (size_t i = 0; i < s->paths.notes.n; i++)
		strv_add(&s->warnings, s->paths.notes.v[i]);
}

static void warn_repositories(struct snapshot *s)
{
	enum { MAX = 8 };
	const struct repos *repos = &s->private->repos;
	size_t n = 0;

	for (size_t i = 0; i < repos->list.n; i++) {
		const struct repo *repo = repos->list.v[i];
		if (!repo->why || n++ >= MAX)
			continue;
		AUTO_FREE char *shown = str_escaped(*repo->dir ? repo->dir : s->root);
		strv_addf(&s->warnings, "the repository '%s' cannot be read in full: %s", shown,
			repo->why);
	}
	for (size_t i = 0; i < repos->notes.n && i < MAX; i++)
		strv_add(&s->warnings, repos->notes.v[i]);
}

static void warn_submodules(struct snapshot *s)
{
	struct tally bare = {0};

	for (size_t i = 0; i < s->private->repos.bare_links.n; i++)
		tally(&bare, s->private->repos.bare_links.v[i]);
	say(s, &bare, "is a submodule that is not checked out (git submodule update --init)",
		"submodules are not checked out (git submodule update --init)");
}

void warn_fill(struct snapshot *snapshot)
{
	warn_repositories(snapshot);
	warn_contents(snapshot);
	warn_special(snapshot);
	warn_paths(snapshot);
	warn_submodules(snapshot);
}
