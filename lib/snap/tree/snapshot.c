/* SPDX-License-Identifier: Apache-2.0 */
#include "snap/tree/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/loop/par.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "snap/git/gitdir.h"
#include "snap/git/gitindex.h"
#include "snap/git/repo.h"
#include "snap/tree/private.h"

struct finder {
	const struct tree_place_options *options;
	char *start; /* real path */
	char *root, *git_dir;
	char *too_wide; /* a repository whose tree is not taken: the home directory or / */
};

static bool same_dir(const char *a, const char *b)
{
	struct stat x, y;

	return a && b && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
	       x.st_ino == y.st_ino;
}

static bool is_too_wide(const struct finder *finder, const char *dir)
{
	return same_dir(dir, "/") || same_dir(dir, finder->options->home);
}

/* Cut dir down to its parent; false at /. */
static bool go_up(char *dir)
{
	char *slash = strrchr(dir, '/');

	if (!slash[1])
		return false;
	slash[slash == dir] = '\0';
	return true;
}

static int fail_bare(const char *git_dir, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(git_dir);

	if (str_ends(git_dir, "/.git")) {
		AUTO_FREE char *above = mem_strndup(git_dir, strlen(git_dir) - strlen("/.git"));
		err_set(err, E_SNAPSHOT_BARE, "'%s' holds the data of a repository, not its files",
			shown);
		return hint_path(err, "cd ", *above ? above : "/", "");
	}
	err_set(err, E_SNAPSHOT_BARE, "'%s' is a bare repository", shown);
	return hint_path(err, "git -C ", git_dir, " worktree add ../work");
}

/* The files of a repository that was found at dir. */
static int set_repository(
	struct finder *finder, const char *dir, const char *git_dir, struct err *err)
{
	AUTO_GITDIR_CONFIG struct gitdir_config config;
	AUTO_FREE char *named = NULL;

	gitdir_config_read(git_dir, &config);
	if (finder->options->work_tree)
		named = fs_join(finder->start, finder->options->work_tree);
	else if (config.work_tree)
		named = fs_join(git_dir, config.work_tree);
	else if (config.bare)
		return fail_bare(git_dir, err);
	int rc = fs_realpath(named ? named : dir, &finder->root, err);
	if (rc < 0)
		return err_prefix(err, "the work tree of '%s'", git_dir);
	finder->git_dir = mem_strdup(git_dir);
	return 0;
}

static int use_given_repository(struct finder *finder, struct err *err)
{
	AUTO_FREE char *path = fs_join(finder->start, finder->options->git_dir);
	AUTO_FREE char *git_dir = NULL;

	if (gitdir_resolve(path, &git_dir) != GITDIR_FOUND) {
		AUTO_FREE char *shown = str_escaped(path);
		err_set(err, E_SNAPSHOT_REPO, "GIT_DIR names '%s', which is not a git repository",
			shown);
		return err_hint(err, "unset GIT_DIR");
	}
	return set_repository(finder, finder->start, git_dir, err);
}

/* As git does, the search ends at the border of the file system. */
static bool snapshot_is_border(const char *dir)
{
	AUTO_FREE char *above = fs_join(dir, "..");
	struct stat here, there;

	return stat(dir, &here) || stat(above, &there) || here.st_dev != there.st_dev;
}

/* 1: the tree is found; 0: no repository here. */
static int repository_at(struct finder *finder, const char *dir, struct err *err)
{
	AUTO_FREE char *git_dir = NULL;

	switch (gitdir_at(dir, &git_dir)) {
	case GITDIR_FOUND:
		if (is_too_wide(finder, dir)) {
			REPLACE(finder->too_wide, mem_strdup(dir));
			return 0;
		}
		int rc = set_repository(finder, dir, git_dir, err);
		return rc < 0 ? rc : 1;
	case GITDIR_BROKEN:
		/* The repository's data are elsewhere and not available, but its files begin
		 * here. */
		if (is_too_wide(finder, dir))
			return 0;
		finder->root = mem_strdup(dir);
		return 1;
	case GITDIR_NONE:
		break;
	}
	return gitdir_is_repository(dir) ? fail_bare(dir, err) : 0;
}

static int search_repository(struct finder *finder, struct err *err)
{
	AUTO_FREE char *dir = mem_strdup(finder->start);

	do {
		int rc = repository_at(finder, dir, err);
		if (rc)
			return rc;
	} while (!snapshot_is_border(dir) && go_up(dir));
	return 0;
}

static bool has_marker(const struct finder *finder, const char *dir)
{
	AUTO_FREE char *path = fs_join(dir, finder->options->marker);
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
	       (!finder->options->marker_counts ||
		       finder->options->marker_counts(finder->options->marker_ctx, path));
}

/* Whether the directory above dir belongs to another user (not us, root or the owner of dir), or
 * cannot be examined: then the search ends here. */
static bool is_owner_border(const char *dir)
{
	AUTO_FREE char *above = fs_join(dir, "..");
	struct stat here, there;

	return stat(dir, &here) || stat(above, &there) || !fs_is_ours(there.st_uid, here.st_uid);
}

static void search_marker(struct finder *finder)
{
	AUTO_FREE char *dir = mem_strdup(finder->start);

	do {
		if (is_too_wide(finder, dir))
			break;
		if (finder->options->marker && has_marker(finder, dir)) {
			finder->root = TAKE(dir);
			return;
		}
	} while (!snapshot_is_border(dir) && !is_owner_border(dir) && go_up(dir));
}

static int fail_wide_repository(const struct finder *finder, struct err *err)
{
	AUTO_FREE char *start = str_escaped(finder->start);
	AUTO_FREE char *wide = str_escaped(finder->too_wide);

	err_set(err, E_SNAPSHOT_ROOT, "'%s' lies in the repository of all of '%s'", start, wide);
	if (!finder->options->marker)
		return hint_path(err, "git init ", finder->start, "");
	AUTO_FREE char *marker = fs_join(finder->start, finder->options->marker);
	return hint_path(err, "touch ", marker, "");
}

static int refuse_wide(const struct finder *finder, struct err *err)
{
	if (!is_too_wide(finder, finder->root))
		return 0;
	AUTO_FREE char *shown = str_escaped(finder->root);
	err_set(err, E_SNAPSHOT_ROOT, "'%s' is %s: refusing to take a snapshot of it", shown,
		same_dir(finder->root, "/") ? "the root of the file system"
					    : "your home directory");
	return err_hint(err, "change to the directory of the project, or name it with -C");
}

/* Set the prefix of start below root, both without symbolic links. An error if start lies
 * outside. */
static int set_prefix(const struct finder *finder, struct tree_place *place, struct err *err)
{
	size_t len = strlen(finder->root);
	const char *rest = finder->start + len;

	if (!str_starts(finder->start, finder->root) || (*rest && *rest != '/')) {
		AUTO_FREE char *start = str_escaped(finder->start);
		AUTO_FREE char *root = str_escaped(finder->root);
		err_set(err, E_SNAPSHOT_ROOT, "'%s' lies outside of the work tree '%s'", start,
			root);
		return hint_path(err, "cd ", finder->root, "");
	}
	place->prefix = mem_strdup(*rest ? rest + 1 : ".");
	return 0;
}

static int snapshot_find(struct finder *finder, struct tree_place *place, struct err *err)
{
	int rc = finder->options->git_dir ? use_given_repository(finder, err)
					  : search_repository(finder, err);

	if (rc < 0)
		return rc;
	if (!finder->root)
		search_marker(finder);
	if (!finder->root && finder->too_wide && !is_too_wide(finder, finder->start))
		return fail_wide_repository(finder, err);
	if (!finder->root)
		finder->root = mem_strdup(finder->start);
	rc = refuse_wide(finder, err);
	if (rc < 0)
		return rc;
	return set_prefix(finder, place, err);
}

int tree_place_find(
	const struct tree_place_options *options, struct tree_place *ret, struct err *err)
{
	struct finder finder = {.options = options};
	struct tree_place place = {0};
	int rc = fs_realpath(options->start, &finder.start, err);

	if (rc == 0)
		rc = snapshot_find(&finder, &place, err);
	if (rc == 0) {
		place.root = TAKE(finder.root);
		place.git_dir = TAKE(finder.git_dir);
		*ret = place;
	}
	free(finder.start);
	free(finder.root);
	free(finder.git_dir);
	free(finder.too_wide);
	return rc;
}

void tree_place_done(struct tree_place *place)
{
	if (!place)
		return;
	free(place->root);
	free(place->prefix);
	free(place->git_dir);
	*place = (struct tree_place){0};
}

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
static void snapshot_warn(
	struct snapshot *s, const struct tally *tally, const char *one, const char *many)
{
	if (tally->n == 0)
		return;
	AUTO_FREE char *shown = str_escaped(tally->example);
	if (tally->n == 1)
		strv_addf(&s->warnings, "'%s' %s", shown, one);
	else
		strv_addf(&s->warnings, "%zu %s, such as '%s'", tally->n, many, shown);
}

static bool snapshot_leads_out(const char *path, const char *target)
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

/* The last result, for the next path: paths of one directory mostly follow each other. */
struct pycache_check {
	const char *path;
	size_t dir_len;
	bool is_below;
};

static bool is_below_pycache(struct pycache_check *last, const char *path)
{
	const char *slash = strrchr(path, '/');
	size_t dir_len = slash ? (size_t)(slash - path) + 1 : 0;

	if (!last->path || dir_len != last->dir_len || memcmp(path, last->path, dir_len) != 0) {
		const char *found = strstr(path, "__pycache__/");
		while (found && found != path && found[-1] != '/')
			found = strstr(found + 1, "__pycache__/");
		*last = (struct pycache_check){path, dir_len, found};
	}
	return last->is_below;
}

static void warn_contents(struct snapshot *s)
{
	struct tally lfs = {0}, scripts = {0}, links = {0}, pycache = {0};
	struct pycache_check last = {0};

	for (size_t i = 0; i < s->entries.n; i++) {
		const struct entry *entry = &s->entries.v[i];
		unsigned marks = s->private->marks[i];

		if (marks & STATCACHE_LFS_POINTER)
			tally(&lfs, entry->path);
		if (marks & STATCACHE_CR_SCRIPT)
			tally(&scripts, entry->path);
		if (entry->kind == ENTRY_LINK && snapshot_leads_out(entry->path, entry->target))
			tally(&links, entry->path);
		if (is_below_pycache(&last, entry->path))
			tally(&pycache, entry->path);
	}
	snapshot_warn(s, &lfs, "is a pointer of Git LFS without the content (git lfs pull)",
		"files are pointers of Git LFS without the content (git lfs pull)");
	snapshot_warn(s, &scripts,
		"begins with a #! line that ends in CR LF and cannot be executed by name",
		"scripts begin with a #! line that ends in CR LF and cannot be executed by name");
	snapshot_warn(s, &links,
		"is a symbolic link out of the tree and may lead nowhere in the run",
		"symbolic links lead out of the tree and may lead nowhere in the run");
	snapshot_warn(s, &pycache,
		"is compiled Python that is not ignored (add __pycache__/ to .gitignore)",
		"files are compiled Python that is not ignored (add __pycache__/ to .gitignore)");
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

static void warn_fill(struct snapshot *s)
{
	struct tally special = {0}, bare = {0};

	warn_repositories(s);
	warn_contents(s);
	vec_foreach (const struct excluded, row, &s->paths.excluded)
		if (row->why == EXCLUDED_SPECIAL)
			tally(&special, row->path);
	snapshot_warn(s, &special, "is a socket, FIFO or device and no part of the snapshot",
		"sockets, FIFOs and devices are no part of the snapshot");
	for (size_t i = 0; i < s->paths.notes.n; i++)
		strv_add(&s->warnings, s->paths.notes.v[i]);
	for (size_t i = 0; i < s->private->repos.bare_links.n; i++)
		tally(&bare, s->private->repos.bare_links.v[i]);
	snapshot_warn(s, &bare,
		"is a submodule that is not checked out (git submodule update --init)",
		"submodules are not checked out (git submodule update --init)");
}

#define NS_PER_S INT64_C(1000000000)

static bool snapshot_holds(const struct repo *repo, const struct tracked_path *t)
{
	const struct tracked *tracked = &repo->paths.tracked;

	return t >= tracked->v && t < tracked->v + tracked->n;
}

const struct repo *gitstate_repo(
	const struct snapshot *snapshot, const struct tracked_path *t, const struct repo *hint)
{
	if (hint && snapshot_holds(hint, t))
		return hint;
	vec_foreach (struct repo *, repo, &snapshot->private->repos.list)
		if (snapshot_holds(*repo, t))
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
static bool snapshot_is_wanted(const struct snapshot *s, const char *path)
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

/* Whether the list of what was excluded names path or a directory above it. */
static bool snapshot_is_excluded(const struct path_list *paths, const char *path)
{
	size_t n = vec_bound(&paths->excluded, item, strcmp(item->path, path) <= 0);

	if (n == 0)
		return false;
	const char *named = paths->excluded.v[n - 1].path;
	return str_eq(named, path) || (str_ends(named, "/") && str_starts(path, named));
}

/* Whether the entry is neither in the snapshot nor on disk, though the index says that it should
 * be. */
static bool snapshot_is_deleted(const struct snapshot *s, const struct repo *repo, size_t at)
{
	const struct tracked_path *t = &repo->paths.tracked.v[at];
	struct stat st;

	if (t->mode == TRACKED_MODE_GITLINK || repo->stats[at].skip_worktree)
		return false;
	AUTO_FREE char *path =
		*repo->dir ? mem_printf("%s/%s", repo->dir, t->path) : mem_strdup(t->path);
	if (!snapshot_is_wanted(s, path) || snapshot_is_excluded(&s->paths, path))
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
			n += snapshot_is_deleted(s, repo, at);
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

static void snapshot_count(struct snapshot *s)
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

/* Fill snapshot->git by the repositories found. */
static void gitstate_fill(struct snapshot *snapshot)
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
	snapshot_count(snapshot);
}

enum { BESIDE_MIN = 4096 }; /* so many entries are worth a thread */

static char *find_settings(const struct snapshot_options *options)
{
	AUTO_FREE char *cache = NULL;

	if (!options->cache_dir)
		return NULL;
	cache = statcache_path(options->cache_dir, options->place->root);
	return settings_path(cache);
}

static struct snapshot *new_snapshot(const struct snapshot_options *options)
{
	struct snapshot *s = mem_alloc(1, sizeof(*s));
	struct snapshot_private *private = mem_alloc(1, sizeof(*private));

	s->private = private;
	s->root = mem_strdup(options->place->root);
	s->prefix = mem_strdup(options->place->prefix);
	private->root_fd = -1;
	private->git_dir = mem_strdup(options->place->git_dir);
	private->home = mem_strdup(options->home);
	private->xdg_config = mem_strdup(options->xdg_config);
	private->shell_dir = mem_strdup(options->shell_dir);
	private->settings_path = find_settings(options);
	if (options->paths)
		strv_copy(&private->limits, options->paths);
	private->repos_options = (struct repos_options){
		.root = s->root,
		.git_dir = private->git_dir,
		.home = private->home,
		.xdg_config = private->xdg_config,
		.settings_path = private->settings_path,
	};
	repos_init(&private->repos, &private->repos_options);
	return s;
}

static void private_free(struct snapshot_private *private)
{
	if (private->root_fd >= 0)
		close(private->root_fd);
	repos_done(&private->repos);
	free(private->git_dir);
	free(private->home);
	free(private->xdg_config);
	free(private->shell_dir);
	free(private->settings_path);
	strv_done(&private->limits);
	free(private->git_ids);
	free(private->marks);
	free(private);
}

static void git_done(struct snapshot_git *git)
{
	free(git->commit);
	free(git->branch);
	free(git->remote_url);
	*git = (struct snapshot_git){0};
}

void snapshot_wait_id(const struct snapshot *snapshot)
{
	par_wait(snapshot->private->naming);
	snapshot->private->naming = NULL;
}

void snapshot_free(struct snapshot *snapshot)
{
	if (!snapshot)
		return;
	snapshot_wait_id(snapshot);
	free(snapshot->root);
	free(snapshot->prefix);
	entry_list_done(&snapshot->entries);
	path_list_done(&snapshot->paths);
	git_done(&snapshot->git);
	strv_done(&snapshot->warnings);
	private_free(snapshot->private);
	free(snapshot);
}

/* The caches are mapped and checked while the repository is read. */
struct cache_job {
	const char *cache_dir, *root;
	char *path, *dirs_path;
	struct statcache cache;
	struct dircache dirs;
	struct par_task *task;
};

static void open_cache(void *ctx)
{
	struct cache_job *job = ctx;

	job->path = statcache_path(job->cache_dir, job->root);
	job->dirs_path = dircache_path(job->path);
	dircache_open(&job->dirs, job->dirs_path);
	statcache_open(&job->cache, job->path);
}

static void cache_job_wait(struct cache_job *job)
{
	par_wait(job->task);
	job->task = NULL;
}

static void cache_job_done(struct cache_job *job)
{
	cache_job_wait(job);
	statcache_done(&job->cache);
	dircache_done(&job->dirs);
	free(job->path);
	free(job->dirs_path);
}

static void choose_git_ids(struct snapshot *s)
{
	const struct repo *repo = repos_at(&s->private->repos, "");

	if (!repo)
		s->private->git = CONTENT_GIT_NONE;
	else if (repo->oid_size == SHA1_SIZE)
		s->private->git = CONTENT_GIT_SHA1;
	else
		s->private->git = CONTENT_GIT_SHA256;
}

/* first: false when repeated for settings that have changed. */
static int snapshot_walk(struct snapshot *s, const struct snapshot_options *options,
	struct cache_job *job, bool first, struct err *err)
{
	static const struct strv none;
	struct paths_options paths = {
		.root = s->root,
		.shell_dir = options->shell_dir,
		.repo = repos_find,
		.repo_ctx = &s->private->repos,
		.include = options->include ? options->include : &none,
		.paths = options->paths ? options->paths : &none,
		.allow = options->allow ? options->allow : &none,
		.limits = options->limits,
	};
	const struct paths_repo *repo;

	int rc = repos_find(&s->private->repos, "", &repo, err);
	cache_job_wait(job);
	paths.dirs = job->path ? &job->dirs : NULL;
	paths.dirs_path = job->dirs_path;
	if (rc == 0 && first && options->will_walk)
		options->will_walk(options->will_ctx);
	return rc == 0 ? paths_list(&paths, &s->paths, err) : rc;
}

static int list_paths(struct snapshot *s, const struct snapshot_options *options,
	struct cache_job *job, struct err *err)
{
	AUTO_ERR struct err error = {0};
	int64_t start_us = clock_us();
	bool again;

	int walked = snapshot_walk(s, options, job, true, &error);
	int rc = repos_settle(&s->private->repos, &again, err);
	if (rc == 0 && again) {
		path_list_done(&s->paths);
		repos_done(&s->private->repos);
		repos_init(&s->private->repos, &s->private->repos_options);
		rc = snapshot_walk(s, options, job, false, err);
	} else if (rc == 0 && walked < 0) {
		rc = err_move(err, &error);
	}
	s->stats.walk_us = clock_us() - start_us;
	return rc;
}

static void snapshot_name(void *ctx)
{
	struct snapshot *s = ctx;

	entry_list_id(&s->entries, s->id);
}

static void snapshot_describe(struct snapshot *s)
{
	if (s->entries.n > BESIDE_MIN)
		s->private->naming = par_start(snapshot_name, s);
	else
		snapshot_name(s);
	gitstate_fill(s);
	warn_fill(s);
}

static int snapshot_fill(
	struct snapshot *s, const struct snapshot_options *options, struct err *err)
{
	struct cache_job job;

	s->private->root_fd = open(s->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->private->root_fd < 0)
		return fs_error(err, errno, "%s", s->root);
	s->private->network = fs_is_network(s->root);
	job = (struct cache_job){.cache_dir = options->cache_dir, .root = s->root};
	if (options->cache_dir)
		job.task = par_start(open_cache, &job);
	int rc = list_paths(s, options, &job, err);
	choose_git_ids(s);
	int64_t start_us = clock_us();
	if (rc == 0)
		rc = contents_take(s, options, &job.cache, err);
	s->stats.hash_us = clock_us() - start_us;
	if (rc == 0) {
		struct contents_saving *saving = contents_save(s, &job.cache, job.path);
		snapshot_describe(s);
		contents_save_wait(saving);
		repos_remember(&s->private->repos);
	}
	cache_job_done(&job);
	return rc;
}

int snapshot_take(const struct snapshot_options *options, struct snapshot **ret, struct err *err)
{
	AUTO_SNAPSHOT struct snapshot *s = new_snapshot(options);
	int rc = snapshot_fill(s, options, err);

	if (rc < 0)
		return rc;
	if (!options->id_later)
		snapshot_wait_id(s);
	*ret = TAKE(s);
	return 0;
}

int snapshot_refresh(struct snapshot *snapshot, struct err *err)
{
	snapshot_wait_id(snapshot);
	int rc = contents_refresh(snapshot, err);
	if (rc < 0)
		return rc;
	git_done(&snapshot->git);
	strv_done(&snapshot->warnings);
	snapshot_describe(snapshot);
	snapshot_wait_id(snapshot);
	return 0;
}

/* Another kind of file in its place counts as changed, like other content. */
static int open_entry(void *ctx, const struct entry *entry, int *ret_fd, struct err *err)
{
	struct snapshot *s = ctx;
	AUTO_FD int fd = fs_open_beneath(
		s->private->root_fd, entry->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
	AUTO_FREE char *shown = NULL;
	struct stat st;

	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
		*ret_fd = TAKE_FD(fd);
		return 0;
	}
	shown = str_escaped(entry->path);
	if (fd == -EACCES || fd == -EPERM || fd == -EIO || fd == -EMFILE || fd == -ENFILE)
		return err_set_errno(err, E_IO_READ, -fd, "'%s' cannot be read", shown);
	return err_set(err, E_IO_CHANGED, "'%s' changed after the snapshot was taken", shown);
}

struct entry_opener snapshot_opener(struct snapshot *snapshot)
{
	return (struct entry_opener){.open = open_entry, .ctx = snapshot};
}
