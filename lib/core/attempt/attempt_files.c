/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/data/entry.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/attempt/collect.h"
#include "core/target/fetch_sink.h"
#include "core/target/target_work.h"

/*
 * The results of a run on this machine, offered to a sink. The program may be at work meanwhile: a
 * file is read up to the size that it had when it was opened, and what goes away is not missed.
 */

enum {
	CHUNK = 1 << 20,
	TURN_MS = 50,          /* then the loop has its turn */
	ENTRIES_MAX = 1 << 20, /* of one directory, and directories to be visited */
	TICK_MS = 20,          /* two changes within it may have one time */
};

struct fetching {
	struct target_work work;
	struct target_call *call;
	struct loop *loop;
	struct loop_timer *timer;
	struct fetch_sink *sink;
	char *root;
	bool ended;          /* the attempt has: nothing changes any more */
	const char *without; /* a name in root; or NULL */
	int root_fd;
	struct strv dirs; /* to be visited, relative to root */
	int fd;           /* the directory that is visited; -1: none */
	char *dir;
	struct strv names; /* in it */
	size_t at;
	int in_fd; /* the file that is copied; -1: none */
	struct fetch_item item;
	char *path; /* of item */
	uint64_t left;
	char *chunk;
};

static void drop_fetching(struct target_work *work)
{
	struct fetching *fetching = (struct fetching *)work;

	loop_remove_timer(fetching->loop, fetching->timer);
	auto_fd(&fetching->in_fd);
	auto_fd(&fetching->fd);
	auto_fd(&fetching->root_fd);
	strv_done(&fetching->dirs);
	strv_done(&fetching->names);
	free(fetching->dir);
	free(fetching->path);
	free(fetching->chunk);
	free(fetching->root);
	free(fetching);
}

static bool is_gone(int errnum)
{
	return errnum == ENOENT || errnum == ENOTDIR || errnum == ELOOP || errnum == ESTALE;
}

static int64_t mtime_of(const struct stat *st)
{
	return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

/*
 * Copying
 */

static void end_copy(struct fetching *fetching)
{
	auto_fd(&fetching->in_fd);
	fetching->in_fd = -1;
}

/* If the file ends early, it has been truncated since. */
static int copy_chunk(struct fetching *fetching, struct err *err)
{
	size_t want = fetching->left < CHUNK ? (size_t)fetching->left : CHUNK;
	ssize_t n;

	do
		n = want ? read(fetching->in_fd, fetching->chunk, want) : 0;
	while (n < 0 && errno == EINTR);
	if (n < 0) {
		fetch_sink_unread(fetching->sink, fetching->path, errno);
		end_copy(fetching);
		return 0;
	}
	if (n > 0) {
		fetching->left -= (uint64_t)n;
		return fetch_sink_write(fetching->sink, fetching->chunk, (size_t)n, err);
	}
	fetching->item.changing |= fetching->left > 0;
	end_copy(fetching);
	return fetch_sink_end(fetching->sink, &fetching->item, err);
}

static bool may_change(const struct fetching *fetching, const struct stat *st)
{
	return !fetching->ended && clock_wall_ms() - mtime_of(st) / 1000000 < TICK_MS;
}

/* fetching->path is its path. */
static int start_copy(struct fetching *fetching, const char *name, struct err *err)
{
	enum { FLAGS = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC };
	AUTO_FD int fd = openat(fetching->fd, name, FLAGS);
	struct fetch_range range = {0};
	struct stat st;

	if (fd < 0 && is_gone(errno))
		return 0;
	if (fd < 0 || fstat(fd, &st) < 0) {
		fetch_sink_unread(fetching->sink, fetching->path, errno);
		return 0;
	}
	if (!S_ISREG(st.st_mode))
		return 0;
	fetching->item = (struct fetch_item){.path = fetching->path,
		.mode = st.st_mode,
		.size = (uint64_t)st.st_size,
		.mtime_ns = mtime_of(&st),
		.changing = may_change(fetching, &st)};
	int r = fetch_sink_wants(fetching->sink, &fetching->item, &range, err);
	if (r > 0)
		r = fetch_sink_begin(fetching->sink, &fetching->item, &range, err);
	if (r <= 0)
		return r;
	if (range.offset && lseek(fd, (off_t)range.offset, SEEK_SET) < 0)
		return fs_error(err, errno, "%s/%s", fetching->root, fetching->path);
	fetching->in_fd = TAKE_FD(fd);
	fetching->left = range.len;
	return 0;
}

static int copy_link(
	struct fetching *fetching, const char *name, const struct stat *st, struct err *err)
{
	AUTO_FREE char *target = mem_alloc(ENTRY_PATH_MAX + 2, 1);
	ssize_t n = readlinkat(fetching->fd, name, target, ENTRY_PATH_MAX + 1);

	if (n < 0 || n > ENTRY_PATH_MAX) {
		if (n >= 0 || !is_gone(errno))
			fetch_sink_unread(
				fetching->sink, fetching->path, n < 0 ? errno : ENAMETOOLONG);
		return 0;
	}
	target[n] = '\0';
	const struct fetch_item item = {.path = fetching->path,
		.mode = st->st_mode,
		.size = (uint64_t)n,
		.mtime_ns = mtime_of(st),
		.target = target};
	return fetch_sink_link(fetching->sink, &item, err);
}

/*
 * Walking
 */

static int push_dir(struct fetching *fetching, const char *path, struct err *err)
{
	if (fetching->dirs.n == ENTRIES_MAX)
		return err_set(err, E_DATA_LIMIT, "%s has more than %d directories", fetching->root,
			ENTRIES_MAX);
	strv_add(&fetching->dirs, path);
	return 0;
}

static int visit_dir(struct fetching *fetching, const struct stat *st, bool wanted, struct err *err)
{
	int r = 0;

	if (fetch_sink_is_in(fetching->sink, st))
		return 0;
	if (wanted)
		r = fetch_sink_dir(fetching->sink, fetching->path, st->st_mode, err);
	if (r < 0)
		return r;
	if (!wanted && !fetch_sink_leads_into(fetching->sink, fetching->path))
		return 0;
	return push_dir(fetching, fetching->path, err);
}

/* Sockets, pipes and devices stay where they are. */
static int visit(struct fetching *fetching, const char *name, struct err *err)
{
	struct stat st;
	bool wanted;

	free(fetching->path);
	fetching->path =
		*fetching->dir ? mem_printf("%s/%s", fetching->dir, name) : mem_strdup(name);
	wanted = fetch_sink_names(fetching->sink, fetching->path);
	if (strlen(fetching->path) > ENTRY_PATH_MAX) {
		fetch_sink_unread(fetching->sink, fetching->path, ENAMETOOLONG);
		return 0;
	}
	if (fstatat(fetching->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		if (!is_gone(errno))
			fetch_sink_unread(fetching->sink, fetching->path, errno);
		return 0;
	}
	if (S_ISDIR(st.st_mode))
		return visit_dir(fetching, &st, wanted, err);
	if (wanted && S_ISREG(st.st_mode))
		return start_copy(fetching, name, err);
	return wanted && S_ISLNK(st.st_mode) ? copy_link(fetching, name, &st, err) : 0;
}

static int by_bytes(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Skip entries whose d_type rules them out: neither a directory nor a file that may be wanted. */
static bool is_passed_over(const struct fetching *fetching, const struct dirent *entry)
{
	if (str_eq(entry->d_name, ".") || str_eq(entry->d_name, "..") ||
		(!*fetching->dir && str_eq(entry->d_name, fetching->without)))
		return true;
	if (!fetch_sink_is_narrow(fetching->sink) || entry->d_type == DT_UNKNOWN ||
		entry->d_type == DT_DIR)
		return false;
	return entry->d_type != DT_REG ||
	       !fetch_sink_is_like(fetching->sink, fetching->dir, entry->d_name);
}

static int read_names(struct fetching *fetching, struct err *err)
{
	int copy = fcntl(fetching->fd, F_DUPFD_CLOEXEC, 0);
	AUTO_DIR DIR *dir = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;

	if (!dir) {
		auto_fd(&copy);
		return fs_error(err, errno, "%s/%s", fetching->root, fetching->dir);
	}
	while ((entry = readdir(dir))) {
		if (is_passed_over(fetching, entry))
			continue;
		if (fetching->names.n == ENTRIES_MAX)
			return err_set(err, E_DATA_LIMIT, "%s/%s has more than %d entries",
				fetching->root, fetching->dir, ENTRIES_MAX);
		strv_add(&fetching->names, entry->d_name);
	}
	vec_sort(&fetching->names, by_bytes);
	return 0;
}

/* The directory that was put on the list last. */
static int enter(struct fetching *fetching, struct err *err)
{
	enum { FLAGS = O_RDONLY | O_DIRECTORY | O_CLOEXEC };

	auto_fd(&fetching->fd);
	strv_done(&fetching->names);
	free(fetching->dir);
	fetching->at = 0;
	fetching->dir = fetching->dirs.v[--fetching->dirs.n];
	fetching->dirs.v[fetching->dirs.n] = NULL;
	if (*fetching->dir)
		fetching->fd = fs_open_beneath(fetching->root_fd, fetching->dir, FLAGS, 0);
	else
		fetching->fd = openat(fetching->root_fd, ".", FLAGS);
	if (fetching->fd >= 0)
		return read_names(fetching, err);
	if (!is_gone(*fetching->dir ? -fetching->fd : errno))
		fetch_sink_unread(fetching->sink, fetching->dir, EACCES);
	return 0;
}

/* 1: there is more to do. */
static int step(struct fetching *fetching, struct err *err)
{
	int r;

	if (fetching->in_fd >= 0)
		r = copy_chunk(fetching, err);
	else if (fetching->at < fetching->names.n)
		r = visit(fetching, fetching->names.v[fetching->at++], err);
	else if (fetching->dirs.n)
		r = enter(fetching, err);
	else
		return 0;
	return r < 0 ? r : 1;
}

static int on_turn(void *ctx, struct err *err)
{
	struct fetching *fetching = ctx;
	int64_t end_ms = clock_ms() + TURN_MS;
	AUTO_ERR struct err failure = {0};
	int r = 1;

	(void)err;
	fetching->timer = NULL;
	while (r > 0 && clock_ms() < end_ms)
		r = step(fetching, &failure);
	if (r > 0)
		fetching->timer = loop_add_timer(fetching->loop, clock_ms(), on_turn, fetching);
	else
		target_call_end(fetching->call, r, &failure);
	return 0;
}

/* Collect results that are only in the tree. If the disk is full, the rest is fetched all the
 * same. */
static void bring_results(struct fetching *fetching, const char *dir)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	AUTO_ERR struct err err = {0};
	int r = 0;

	if (fetching->sink->from_tree)
		return;
	if (fetching->ended)
		r = collect_finish(dir, &err);
	else if (attempt_job_read(dir, &job, NULL) == 0)
		r = collect_results(dir, &job, COLLECT_RUNNING, &err);
	if (r < 0)
		fetch_sink_unread(fetching->sink, ATTEMPT_TREE, EIO);
}

/* If nothing was ever written there, there is nothing to do. */
static int open_root(struct fetching *fetching, struct err *err)
{
	struct stat st;

	fetching->root_fd = open(fetching->root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fetching->root_fd < 0 && errno == ENOENT && fetching->sink->from_tree)
		return err_set(err, E_FETCH_PATH, "the tree of the run is no longer here");
	if (fetching->root_fd < 0 && errno == ENOENT)
		return 0;
	if (fetching->root_fd < 0 || fstat(fetching->root_fd, &st) < 0)
		return fs_error(err, errno, "%s", fetching->root);
	if (fetch_sink_is_in(fetching->sink, &st)) {
		err_set(err, E_USAGE, "%s holds the results themselves", fetching->root);
		return err_hint(err, "dlrun fetch -o results …");
	}
	return push_dir(fetching, "", err);
}

/* Takes over fetching. */
static int begin(struct fetching *fetching, struct err *err)
{
	struct target_call *call = fetching->call;

	fetching->work = (struct target_work){drop_fetching};
	fetching->root_fd = fetching->fd = fetching->in_fd = -1;
	fetching->chunk = mem_alloc(CHUNK, 1);
	target_call_begin(call, &fetching->work);
	int r = open_root(fetching, err);
	if (r < 0) {
		target_call_cancel(call);
		return r;
	}
	fetching->timer = loop_add_timer(fetching->loop, 0, on_turn, fetching);
	return 0;
}

int attempt_files_fetch(struct loop *loop, const char *root, const char *dir,
	struct fetch_sink *sink, struct target_call *call, struct err *err)
{
	struct target_status status = {0};
	struct fetching *fetching = mem_alloc(1, sizeof(*fetching));

	*fetching = (struct fetching){
		.call = call,
		.loop = loop,
		.sink = sink,
		.root = mem_strdup(root),
		.ended = !dir || attempt_end_read(dir, &status),
		.without = dir ? NULL : FETCH_OWN,
	};
	target_status_done(&status);
	if (dir)
		bring_results(fetching, dir);
	return begin(fetching, err);
}
