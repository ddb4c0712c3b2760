/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The repositories of a tree: which files git tracks, which rules leave files out, where HEAD is.
 * Nothing is written and no program runs that a repository names (hooks, filters, fsmonitor,
 * fetches). The index is read by gitindex.c, the rest by libgit2. Where these cannot (SHA-256,
 * split or sparse index, extensions), `git` is run, if there is one; see repo.why.
 */
#ifndef DLRUN_SNAP_GIT_REPO_H
#define DLRUN_SNAP_GIT_REPO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "snap/git/gitindex.h"

/* File name of libgit2 as it is loaded: "libgit2.so.1.5". */
extern const char repo_library_file[];

/* Settings and HEAD; strings are NULL where there is none. */
struct repo_facts {
	char *commit;        /* hex digits of HEAD; NULL: unborn */
	char *branch;        /* short name; NULL: detached */
	char *remote_url;    /* of origin, user info removed */
	char *excludes_file; /* core.excludesFile as written */
	char *user_name, *user_email;
	bool ignore_case;
	bool file_mode; /* core.fileMode: exec bits on disk mean something */
	bool has_tree;  /* tree is that of HEAD */
	uint8_t tree[SHA1_SIZE];
	bool staged; /* the index differs from HEAD; only said where trees cannot be compared */
};

struct repo_query;
struct repo {
	size_t number; /* its position in the list */
	char *dir;     /* its work tree relative to the root of the tree, "" for the root */
	char *git_dir, *common_dir;
	struct paths_repo paths;
	struct gitindex_stat *stats; /* one for each tracked path */
	int64_t index_mtime_ns;      /* of the index file; 0: stats hold only skip_worktree */
	bool has_tree;               /* tree is that of the index */
	uint8_t tree[SHA1_SIZE];
	size_t oid_size;  /* SHA1_SIZE, or 32: then tracked oids are cut to SHA1_SIZE bytes */
	bool has_objects; /* libgit2 can open it: objects can be looked up and added */
	struct repo_facts facts;
	char *why; /* NULL: read in full by dlrun; else one sentence how it was read */
	struct repo_query *query; /* NULL: all is known; else see repos_settle */
};

struct repos_options {
	const char *root;       /* of the tree */
	const char *git_dir;    /* of the repository at the root; NULL: none */
	const char *home;       /* for git's global configuration; NULL: none */
	const char *xdg_config; /* XDG_CONFIG_HOME or NULL */
	/* Where settings of the repository at the root are kept (settings_path); or NULL. */
	const char *settings_path;
};

struct repos {
	const struct repos_options *options;
	struct repo_list VEC_OF(struct repo *) list; /* in the order they were asked for */
	struct strv notes;      /* one sentence each: .git files that lead nowhere */
	struct strv bare_links; /* submodules that are empty directories */
	bool is_remembered;     /* what is kept of the settings is as they are */
};

/* options must outlive repos. */
void repos_init(struct repos *repos, const struct repos_options *options);
void repos_done(struct repos *repos);

/* A paths_repo_fn; ctx is struct repos. E_SNAPSHOT_OWNER (the hint names the setting that trusts
 * the repository), E_SNAPSHOT_REPO when neither dlrun nor git can read it. */
int repos_find(void *ctx, const char *dir, const struct paths_repo **ret_repo, struct err *err);
/* With settings_path the repository at the root may be returned with the settings of the last time,
 * while libgit2 is still at work; until this has returned only its paths and index are valid.
 * *ret_again: the settings have changed: everything made from it, and repos, must be made again.
 * Fails as repos_find does. */
int repos_settle(struct repos *repos, bool *ret_again, struct err *err);
/* Keep the settings for the next time. */
void repos_remember(const struct repos *repos);
/* The repository found for dir, or NULL. */
const struct repo *repos_at(const struct repos *repos, const char *dir);

/* Whether git's own configuration (not that of a repository) names dir in safe.directory. */
bool repo_is_called_safe(const struct repos_options *options, const char *dir);

/* URL without user name, password and token; scp's user@host:path keeps its user. */
char *repo_url_without_user(const char *url);

/* The file of repos_remember: settings.v1 in the directory of the stat cache at path. malloc'd. */
char *settings_path(const char *statcache_path);

/* Parse the output of `git ls-files -s -t -z`. */
int gitls_parse(const char *text, size_t len, struct gitindex *ret, struct err *err);

#endif
