/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "snap/git/gittree.h"
#include "snap/tree/private.h"

#define NS_PER_S INT64_C(1000000000)

static bool holds(const struct repo *repo, const struct tracked_path *t)
{
	const struct tracked *tracked = &repo->paths.tracked;

	return t >= tracked->v && t < tracked->v + tracked->n;
}

const struct repo *gitstate_repo(
	const struct snapshot *snapshot, const struct tracked_path *t, const struct repo *hint)
{
	if (hint && holds(hint, t))
		return hint;
	vec_foreach (struct repo *, repo, &snapshot->private->repos.list)
		if (holds(*repo, t))
			return *repo;
	return NULL;
}

uint32_t gitstate_mode(const struct path *path)
{
	if (path->kind == ENTRY_LINK)
		return TRACKED_MODE_LINK;
	return path->mode & S_IXUSR ? TRACKED_MODE_EXEC : TRACKED_MODE_FILE;
}

/* Whether the stat data of the index are the current ones, and older than the index: then git takes
 * the file for unchanged, whatever a filter makes of its bytes. */
static bool is_clean_for_git(const struct repo *repo, const struct path *path)
{
	const struct gitindex_stat *stat = &repo->stats[path->tracked - repo->paths.tracked.v];

	return path->mtime_ns < repo->index_mtime_ns && !stat->assume_valid &&
	       stat->mtime_s == (uint32_t)(path->mtime_ns / NS_PER_S) &&
	       stat->mtime_ns == (uint32_t)(path->mtime_ns % NS_PER_S) &&
	       stat->ctime_s == (uint32_t)(path->ctime_ns / NS_PER_S) &&
	       stat->ctime_ns == (uint32_t)(path->ctime_ns % NS_PER_S) &&
	       stat->ino == (uint32_t)path->ino && stat->size == (uint32_t)path->size;
}

static bool is_changed(const struct snapshot *s, size_t i, const struct repo *repo)
{
	const struct path *path = &s->paths.v[i];
	const struct tracked_path *t = path->tracked;
	uint32_t mode = gitstate_mode(path);

	if (t->conflict)
		return true;
	if (mode != t->mode && (repo->facts.file_mode || path->kind == ENTRY_LINK ||
				       (t->mode & 0170000) != 0100000))
		return true;
	if (memcmp(s->private->git_ids[i], t->oid, SHA1_SIZE) == 0)
		return false;
	return !is_clean_for_git(repo, path);
}

/* Whether path lies in one of the parts that the snapshot is limited to. */
static bool is_wanted(const struct snapshot *s, const char *path)
{
	const struct strv *limits = &s->private->limits;

	for (size_t i = 0; i < limits->n; i++) {
		size_t len = strlen(limits->v[i]);
		while (len && limits->v[i][len - 1] == '/')
			len--;
		if (str_eq(limits->v[i], ".") ||
			(strncmp(path, limits->v[i], len) == 0 && (!path[len] || path[len] == '/')))
			return true;
	}
	return limits->n == 0;
}

/* Whether the list of what was left out names path or a directory above it. */
static bool is_left_out(const struct path_list *paths, const char *path)
{
	size_t n = vec_bound(&paths->left_out, item, strcmp(item->path, path) <= 0);

	if (n == 0)
		return false;
	const char *named = paths->left_out.v[n - 1].path;
	return str_eq(named, path) || (str_ends(named, "/") && str_starts(path, named));
}

/* Whether the entry is neither in the snapshot nor on disk, though the index says that it should
 * be. */
static bool is_deleted(const struct snapshot *s, const struct repo *repo, size_t at)
{
	const struct tracked_path *t = &repo->paths.tracked.v[at];
	struct stat st;

	if (t->mode == TRACKED_MODE_GITLINK || repo->stats[at].skip_worktree)
		return false;
	AUTO_FREE char *path =
		*repo->dir ? mem_printf("%s/%s", repo->dir, t->path) : mem_strdup(t->path);
	if (!is_wanted(s, path) || is_left_out(&s->paths, path))
		return false;
	int rc = content_lstat(s->private->root_fd, path, &st);
	return rc < 0 || !(S_ISREG(st.st_mode) || S_ISLNK(st.st_mode));
}

/* seen: one for each tracked path. */
static size_t count_deleted(const struct snapshot *s, const struct repo *repo, const bool *seen)
{
	size_t n = 0;

	for (size_t at = 0; at < repo->paths.tracked.n; at++)
		if (!seen[at])
			n += is_deleted(s, repo, at);
	return n;
}

static void index_tree(const struct repo *repo, uint8_t out[static SHA1_SIZE])
{
	const struct tracked *tracked = &repo->paths.tracked;
	AUTO_FREE struct gittree_item *items = mem_alloc(tracked->n + 1, sizeof(*items));
	struct gittree tree;
	size_t n = 0;

	for (size_t i = 0; i < tracked->n; i++) {
		const struct tracked_path *t = &tracked->v[i];
		if (repo->stats[i].intent_to_add)
			continue;
		items[n++] = (struct gittree_item){.path = t->path, .oid = t->oid, .mode = t->mode};
	}
	gittree_init(&tree, items, n);
	memcpy(out, tree.v[0].oid, SHA1_SIZE);
	gittree_done(&tree);
}

static bool has_conflict(const struct tracked *tracked)
{
	for (size_t i = 0; i < tracked->n; i++)
		if (tracked->v[i].conflict)
			return true;
	return false;
}

/* Whether the index differs from HEAD. */
static bool is_staged(const struct repo *repo)
{
	uint8_t tree[SHA1_SIZE];

	if (!repo->facts.commit)
		return repo->paths.tracked.n > 0;
	if (!repo->facts.has_tree)
		return repo->facts.staged || repo->oid_size == SHA1_SIZE;
	if (has_conflict(&repo->paths.tracked))
		return true;
	memcpy(tree, repo->tree, SHA1_SIZE);
	if (!repo->has_tree)
		index_tree(repo, tree);
	return memcmp(tree, repo->facts.tree, SHA1_SIZE) != 0;
}

/* Whether a repository in the tree is a submodule at the commit that the one around it records. */
static bool is_at_recorded_commit(const struct snapshot *s, const struct repo *inner)
{
	char hex[2 * SHA1_SIZE + 1];

	vec_foreach (struct repo *, outer, &s->private->repos.list) {
		size_t len = strlen((*outer)->dir);
		if (*outer == inner || strncmp(inner->dir, (*outer)->dir, len) != 0 ||
			(len && inner->dir[len] != '/'))
			continue;
		const struct tracked_path *link =
			tracked_find(&(*outer)->paths.tracked, inner->dir + len + (len > 0));
		if (!link || link->mode != TRACKED_MODE_GITLINK)
			continue;
		hex_encode(link->oid, SHA1_SIZE, hex);
		return inner->facts.commit && str_starts(inner->facts.commit, hex);
	}
	return false;
}

static void count_paths(struct snapshot *s, bool **seen)
{
	const struct repo *repo = NULL;

	for (size_t i = 0; i < s->paths.n; i++) {
		const struct path *path = &s->paths.v[i];
		repo = path->tracked ? gitstate_repo(s, path->tracked, repo) : repo;
		if (!path->tracked || !repo) {
			s->git.n_untracked++;
			continue;
		}
		seen[repo->number][path->tracked - repo->paths.tracked.v] = true;
		s->git.n_changed += is_changed(s, i, repo);
	}
}

static void count(struct snapshot *s)
{
	const struct repo_list *list = &s->private->repos.list;
	AUTO_FREE bool **seen = mem_alloc(list->n + 1, sizeof(*seen));

	for (size_t r = 0; r < list->n; r++)
		seen[r] = mem_alloc(list->v[r]->paths.tracked.n + 1, sizeof(bool));
	count_paths(s, seen);
	for (size_t r = 0; r < list->n; r++) {
		s->git.n_deleted += count_deleted(s, list->v[r], seen[r]);
		s->git.dirty |= is_staged(list->v[r]);
		if (*list->v[r]->dir)
			s->git.dirty |= !is_at_recorded_commit(s, list->v[r]);
		free(seen[r]);
	}
	s->git.dirty |= s->git.n_changed || s->git.n_untracked || s->git.n_deleted;
}

void gitstate_fill(struct snapshot *snapshot)
{
	const struct repo *repo = repos_at(&snapshot->private->repos, "");
	struct snapshot_git *git = &snapshot->git;

	if (!repo)
		return;
	git->present = true;
	git->library = !repo->why;
	git->commit = mem_strdup(repo->facts.commit);
	git->branch = mem_strdup(repo->facts.branch);
	git->remote_url = mem_strdup(repo->facts.remote_url);
	count(snapshot);
}
