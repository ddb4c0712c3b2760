/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/loop/par.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "snap/git/settings.h"
#include "snap/tree/private.h"

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

static void cache_job_begin(struct cache_job *job, const struct snapshot *s, const char *cache_dir)
{
	*job = (struct cache_job){.cache_dir = cache_dir, .root = s->root};
	if (cache_dir)
		job->task = par_start(open_cache, job);
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
static int walk(struct snapshot *s, const struct snapshot_options *options, struct cache_job *job,
	bool first, struct err *err)
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
	AUTO_ERR struct err fault = {0};
	int64_t start_us = clock_us();
	bool again;

	int walked = walk(s, options, job, true, &fault);
	int rc = repos_settle(&s->private->repos, &again, err);
	if (rc == 0 && again) {
		path_list_done(&s->paths);
		repos_done(&s->private->repos);
		repos_init(&s->private->repos, &s->private->repos_options);
		rc = walk(s, options, job, false, err);
	} else if (rc == 0 && walked < 0) {
		rc = err_move(err, &fault);
	}
	s->stats.walk_us = clock_us() - start_us;
	return rc;
}

static int open_root(struct snapshot *s, struct err *err)
{
	s->private->root_fd = open(s->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->private->root_fd < 0)
		return fs_error(err, errno, "%s", s->root);
	s->private->network = fs_is_network(s->root);
	return 0;
}

static void name(void *ctx)
{
	struct snapshot *s = ctx;

	entry_list_id(&s->entries, s->id);
}

static void describe(struct snapshot *s)
{
	if (s->entries.n > BESIDE_MIN)
		s->private->naming = par_start(name, s);
	else
		name(s);
	gitstate_fill(s);
	warn_fill(s);
}

static int fill(struct snapshot *s, const struct snapshot_options *options, struct err *err)
{
	struct cache_job job;

	int rc = open_root(s, err);
	if (rc < 0)
		return rc;
	cache_job_begin(&job, s, options->cache_dir);
	rc = list_paths(s, options, &job, err);
	choose_git_ids(s);
	int64_t start_us = clock_us();
	if (rc == 0)
		rc = contents_take(s, options, &job.cache, err);
	s->stats.hash_us = clock_us() - start_us;
	if (rc == 0) {
		struct contents_saving *saving = contents_save(s, &job.cache, job.path);
		describe(s);
		contents_save_wait(saving);
		repos_remember(&s->private->repos);
	}
	cache_job_done(&job);
	return rc;
}

int snapshot_take(const struct snapshot_options *options, struct snapshot **ret, struct err *err)
{
	AUTO_SNAPSHOT struct snapshot *s = new_snapshot(options);
	int rc = fill(s, options, err);

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
	describe(snapshot);
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
