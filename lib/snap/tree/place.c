/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <sys/stat.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "snap/git/gitdir.h"
#include "snap/git/hint.h"
#include "snap/tree/snapshot.h"

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
static bool is_border(const char *dir)
{
	AUTO_FREE char *above = fs_join(dir, "..");
	struct stat here, there;

	return stat(dir, &here) || stat(above, &there) || here.st_dev != there.st_dev;
}

/* 1: the tree is found; 0: no repository here. */
static int look_for_repository(struct finder *finder, const char *dir, struct err *err)
{
	AUTO_FREE char *git_dir = NULL;

	switch (gitdir_at(dir, &git_dir)) {
	case GITDIR_FOUND:
		if (is_too_wide(finder, dir)) {
			free(finder->too_wide);
			finder->too_wide = mem_strdup(dir);
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
		int rc = look_for_repository(finder, dir, err);
		if (rc)
			return rc;
	} while (!is_border(dir) && go_up(dir));
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
	} while (!is_border(dir) && !is_owner_border(dir) && go_up(dir));
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

static int find(struct finder *finder, struct tree_place *place, struct err *err)
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
		rc = find(&finder, &place, err);
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
