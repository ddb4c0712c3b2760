/* SPDX-License-Identifier: Apache-2.0 */
#include "app/transfer/mirror_files.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/transfer/mirror.h"
#include "app/transfer/sink_dir.h"
#include "base/data/entry.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/auto.h"
#include "base/util/map.h"
#include "base/util/str.h"
#include "events/event_files.h"
#include "events/scalars_only.h"
#include "events/series.h"
#include "events/tfevents.h"

enum {
	MIRROR_OVERLAP = 64, /* bytes that are compared before more are appended */
	MIRROR_NEVER = -1,   /* a time that no file has */
};

/* Of scalars only. */
struct mirror_walked {
	struct scalars_place place; /* there; what is before it is here, as far as it is kept */
	uint64_t source;            /* size there, when it was seen last */
	bool is_unsure;             /* what is here was written before a power cut */
	bool is_behind;             /* there is more that can be had now */
	uint64_t goal;              /* where the present row of polls ends */
	uint64_t window; /* bytes that are asked for at one time; 0: as in the beginning */
	unsigned n_lost; /* places that turned out to be none */
};

struct mirror_kept {
	const char *path;
	uint64_t size; /* here; of a copy: that was seen there */
	int64_t mtime_ns;
	bool is_anew;  /* what is here is of another file */
	bool is_there; /* the present poll has found it */
	/* Read by TensorBoard's plugins, and no event file; is_rewritten: not only at its end. */
	bool is_plugin, is_rewritten;
	uint64_t seen_size; /* of one that is rewritten: there, when it was seen last */
	int64_t seen_mtime_ns;
	struct mirror_walked walked;
};

struct mirror_files {
	struct fetch_sink sink;
	struct sink_dir dir;
	char *linked;
	struct map files; /* path → struct mirror_kept */
	struct arena arena;
	ino_t seen_ino;
	char *whole; /* or NULL */
	bool is_dirty;
	struct mirror_counts counts;
	struct strv like;  /* of the sink */
	struct strv named; /* patterns for "./" and the path: what others of them name */
	char *excluded;    /* the first; or NULL */
	size_t n_plugins;  /* of files */
	/* Of the file that comes. */
	struct mirror_kept *current;
	int fd;
	bool is_dropped; /* it is another one than was thought */
	/* Copies. */
	uint64_t at; /* where the next byte goes */
	struct sink_overlap overlap;
	/* Scalars only; NULL: copies. */
	struct scalars_only *walk;
	struct fetch_range range;
	bool was_sure; /* of the place where the range begins */
	struct buf out;
	/* Files that were not copied: the first of them, and its error. */
	char *unread;
	int unread_errnum;
	bool is_over_limit;
};

static void mirror_scalars_init(struct mirror_files *files);

static inline struct mirror_files *mirror_files_of(struct fetch_sink *sink)
{
	return (struct mirror_files *)sink;
}

static const struct fetch_sink_ops mirror_scalars_ops;

/*
 * Files of plugins
 */

enum { NAMED_MAX = 500 };

static bool mirror_files_is_named(const struct mirror_files *files, const char *path)
{
	AUTO_FREE char *below = mem_printf("./%s", path);

	vec_foreach (char *, pattern, &files->named)
		if (fnmatch(*pattern, below, 0) == 0)
			return true;
	return false;
}

/* Whether a plugin's file is transferred at all; files over the limits are noted. */
static bool mirror_plugins_admit(struct mirror_files *files, const struct fetch_item *item)
{
	const char *slash = strrchr(item->path, '/');
	const struct mirror_kept *kept = map_get(&files->files, item->path);
	uint64_t before = kept ? kept->size : 0;

	if (strstr(slash ? slash : item->path, MIRROR_PART))
		return true;
	if (!plugin_files_is_one(item->path) && !mirror_files_is_named(files, item->path))
		return false;
	if (files->linked || ((kept || files->n_plugins < MIRROR_PLUGIN_FILES_MAX) &&
				     item->size <= MIRROR_PLUGIN_BYTES_MAX &&
				     files->counts.plugin_bytes - before + item->size <=
					     MIRROR_PLUGIN_BYTES_MAX))
		return true;
	const char *path = item->path;
	files->counts.excluded++;
	if (!files->excluded)
		files->excluded = mem_strdup(path);
	return false;
}

/* Whether to wait until a file that is rewritten stops changing. */
static bool mirror_plugins_waits(
	struct mirror_files *files, struct mirror_kept *kept, const struct fetch_item *item)
{
	bool is_as_before = kept->seen_size == item->size && kept->seen_mtime_ns == item->mtime_ns;

	kept->seen_size = item->size;
	kept->seen_mtime_ns = item->mtime_ns;
	if (!kept->is_rewritten || !item->changing || is_as_before)
		return false;
	files->counts.is_behind = true;
	return true;
}

/*
 * Files that plugin files name
 */

static bool mirror_files_has(const struct strv *strv, const char *text)
{
	vec_foreach (char *, one, strv)
		if (str_eq(*one, text))
			return true;
	return false;
}

/* Targets look for the name alone: their paths may begin elsewhere. */
static bool mirror_files_want(struct mirror_files *files, const char *pattern)
{
	const char *name = strrchr(pattern, '/') + 1;

	if (files->named.n >= NAMED_MAX || mirror_files_has(&files->named, pattern))
		return false;
	strv_add(&files->named, pattern);
	if (!mirror_files_has(&files->like, name))
		strv_add(&files->like, name);
	return true;
}

static bool mirror_files_read_one(struct mirror_files *files, int dir_fd, const char *path)
{
	enum { FLAGS = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY };
	AUTO_FD int fd = fs_open_beneath(dir_fd, path, FLAGS, 0);
	AUTO_BUF struct buf text = {0};
	AUTO_STRV struct strv named = {0};
	struct stat st;
	bool is_more = false;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
		fs_read_fd(fd, path, PLUGIN_FILES_TEXT_MAX, &text, NULL) < 0)
		return false;
	plugin_files_named(path, text.data, text.len, &named);
	vec_foreach (char *, pattern, &named)
		is_more |= mirror_files_want(files, *pattern);
	return is_more;
}

/* Add the files that plugin files here name to the wanted ones. Returns whether there are more than
 * before. */
static bool mirror_plugins_read(struct mirror_files *files)
{
	enum { FLAGS = O_RDONLY | O_DIRECTORY | O_CLOEXEC };
	AUTO_FD int linked = files->linked ? open(files->linked, FLAGS) : -1;
	int dir_fd = files->linked ? linked : files->dir.fd;
	size_t pos = 0;
	const char *path;
	void *value;
	bool is_more = false;

	while (dir_fd >= 0 && !files->walk && map_each(&files->files, &pos, &path, &value))
		if (plugin_files_names_others(path))
			is_more |= mirror_files_read_one(files, dir_fd, path);
	return is_more;
}

/*
 * Copies
 */

/*
 * MIRROR_OWN holds the lock and `seen`, replaced as a whole at the end of a poll: records with a
 * NUL behind each, "boot ID" of when it was written, "all HANDLE", and for each file that was
 * copied "SIZE MTIME_NS PATH". That only spares reading: what it says of a file counts while the
 * file here has that size, and a power cut (another boot) makes it ask again for the last bytes. Of
 * scalars only it is "scalars SIZE MTIME_NS SOURCE PLACE SUM PATH", SOURCE the size there, SUM -1
 * where it is not known: without it the file is begun anew. What is of the other kind is nothing.
 */
#define SEEN "seen"
#define NEW  "new"

enum { SEEN_MAX = 64 << 20 };

static void mirror_close_file(struct mirror_files *files)
{
	auto_fd(&files->fd);
	files->fd = -1;
	files->current = NULL;
}

void mirror_files_drop(struct mirror_files *files)
{
	mirror_close_file(files);
	sink_dir_close(&files->dir);
}

void mirror_files_free(struct mirror_files *files)
{
	if (!files)
		return;
	mirror_files_drop(files);
	map_done(&files->files);
	arena_done(&files->arena);
	scalars_only_free(files->walk);
	buf_done(&files->out);
	strv_done(&files->like);
	strv_done(&files->named);
	free(files->excluded);
	free(files->whole);
	free(files->unread);
	free(files->linked);
	sink_dir_done(&files->dir);
	free(files);
}

static void mirror_free_sink(struct fetch_sink *sink)
{
	mirror_files_free(mirror_files_of(sink));
}

void mirror_files_count(const struct mirror_files *files, struct mirror_counts *ret)
{
	*ret = files->counts;
	ret->bytes -= ret->plugin_bytes;
}

const char *mirror_files_excluded(const struct mirror_files *files)
{
	return files->excluded;
}

struct fetch_sink *mirror_files_sink(struct mirror_files *files)
{
	return &files->sink;
}

/*
 * Records of files
 */

static struct mirror_kept *mirror_files_keep(struct mirror_files *files, const char *path)
{
	struct mirror_kept *kept = map_get(&files->files, path);
	const char *slash = strrchr(path, '/');

	if (kept)
		return kept;
	kept = arena_alloc(&files->arena, sizeof(*kept));
	*kept = (struct mirror_kept){.path = arena_strdup(&files->arena, path),
		.mtime_ns = MIRROR_NEVER,
		.is_plugin = !strstr(slash ? slash : path, MIRROR_PART),
		.is_rewritten = !strstr(slash ? slash : path, MIRROR_PART) &&
				!plugin_files_is_appended(path)};
	files->n_plugins += kept->is_plugin;
	map_put(&files->files, kept->path, kept);
	return kept;
}

/* The size that counts as being here. */
static void mirror_set_size(struct mirror_files *files, struct mirror_kept *kept, uint64_t size)
{
	files->counts.bytes = files->counts.bytes - kept->size + size;
	if (kept->is_plugin)
		files->counts.plugin_bytes = files->counts.plugin_bytes - kept->size + size;
	kept->size = size;
}

struct record {
	long long size, mtime_ns, source, at, sum;
};

/* The path in it, or NULL. */
static const char *parse_copied(const char *text, struct record *ret)
{
	int path_at = 0;
	int n = sscanf(text, "%lld %lld %n", &ret->size, &ret->mtime_ns, &path_at);

	return n == 2 && path_at ? text + path_at : NULL;
}

static const char *parse_walked(const char *text, struct record *ret)
{
	int path_at = 0;
	int n = sscanf(text, "scalars %lld %lld %lld %lld %lld %n", &ret->size, &ret->mtime_ns,
		&ret->source, &ret->at, &ret->sum, &path_at);

	return n == 5 && path_at && ret->source >= 0 && ret->at >= 0 ? text + path_at : NULL;
}

static void mirror_files_read_record(
	struct mirror_files *files, const char *text, bool is_this_boot)
{
	struct record record = {0};
	const char *path;

	if (str_starts(text, "all ")) {
		REPLACE(files->whole, mem_strdup(text + strlen("all ")));
		return;
	}
	path = files->walk ? parse_walked(text, &record) : parse_copied(text, &record);
	if (!path || record.size < 0 || !fetch_path_is_proper(path) ||
		files->files.n >= MIRROR_FILES_MAX)
		return;
	struct mirror_kept *kept = mirror_files_keep(files, path);
	mirror_set_size(files, kept, (uint64_t)record.size);
	kept->mtime_ns = is_this_boot ? record.mtime_ns : MIRROR_NEVER;
	struct mirror_walked *walked = &kept->walked;
	walked->place = (struct scalars_place){
		.at = (uint64_t)record.at, .sum = (uint32_t)record.sum, .has_sum = record.sum >= 0};
	walked->source = (uint64_t)record.source;
	walked->is_unsure = !is_this_boot;
}

/* Another process may have polled meanwhile. */
static int read_seen(struct mirror_files *files, struct err *err)
{
	AUTO_BUF struct buf text = {0};
	AUTO_FD int fd = openat(files->dir.own_fd, SEEN, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;
	bool is_this_boot;

	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd < 0 || fstat(fd, &st) < 0)
		return fs_error(err, errno, "%s/" MIRROR_OWN "/" SEEN, files->dir.path);
	if (st.st_ino == files->seen_ino)
		return 0;
	int r = fs_read_fd(fd, files->dir.path, SEEN_MAX, &text, err);
	if (r < 0)
		return r;
	files->seen_ino = st.st_ino;
	free(TAKE(files->whole));
	is_this_boot = files->dir.boot[0] && str_starts(text.data, "boot ") &&
		       str_eq(text.data + strlen("boot "), files->dir.boot);
	for (size_t at = 0; at < text.len; at += strlen(text.data + at) + 1)
		mirror_files_read_record(files, text.data + at, is_this_boot);
	return 0;
}

static void mirror_files_add_record(
	const struct mirror_files *files, const struct mirror_kept *kept, struct buf *out)
{
	const struct mirror_walked *walked = &kept->walked;

	if (files->walk)
		buf_adds(out, "scalars ");
	buf_addf(out, "%llu %lld ", (unsigned long long)kept->size, (long long)kept->mtime_ns);
	if (files->walk)
		buf_addf(out, "%llu %llu %lld ", (unsigned long long)walked->source,
			(unsigned long long)walked->place.at,
			walked->place.has_sum ? (long long)walked->place.sum : -1);
	buf_addf(out, "%s%c", kept->path, '\0');
}

static int write_seen(struct mirror_files *files, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s/" MIRROR_OWN "/" SEEN, files->dir.path);
	AUTO_BUF struct buf text = buf_with(SEEN_MAX);
	size_t pos = 0;
	const char *name;
	void *value;
	struct stat st;

	if (!files->is_dirty)
		return 0;
	buf_addf(&text, "boot %s%c", files->dir.boot, '\0');
	if (files->whole)
		buf_addf(&text, "all %s%c", files->whole, '\0');
	while (map_each(&files->files, &pos, &name, &value))
		mirror_files_add_record(files, value, &text);
	int r = buf_check(&text, "what is remembered of a mirror", err);
	if (r == 0)
		r = fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, err);
	if (r < 0)
		return r;
	files->is_dirty = false;
	/* No other process replaces the file during this poll: it need not be read again. */
	if (fstatat(files->dir.own_fd, SEEN, &st, AT_SYMLINK_NOFOLLOW) == 0)
		files->seen_ino = st.st_ino;
	return 0;
}

/*
 * Places
 */

/* Regular and one of ours; a descriptor or -errno, -ENOENT for anything else that is there. */
static int mirror_open_here(const struct mirror_files *files, const char *path, struct stat *ret)
{
	AUTO_FD int fd = fs_open_beneath(
		files->dir.fd, path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);

	if (fd == -ELOOP || fd == -EISDIR || fd == -ENXIO || fd == -ENOTDIR)
		return -ENOENT;
	if (fd < 0)
		return fd;
	if (fstat(fd, ret) < 0)
		return -errno;
	return S_ISREG(ret->st_mode) ? TAKE_FD(fd) : -ENOENT;
}

static int name_new(struct mirror_files *files, const char *path)
{
	const char *name;
	AUTO_FD int parent = sink_dir_parent(&files->dir, path, &name);

	if (parent < 0)
		return parent;
	return renameat(files->dir.own_fd, NEW, parent, name) < 0 ? -errno : 0;
}

/* Create an empty file in place of what has the name; a descriptor or -errno. */
static int mirror_open_anew(struct mirror_files *files, const char *path)
{
	AUTO_FD int fd = sink_dir_new(&files->dir, NEW);
	int r = fd < 0 ? fd : name_new(files, path);

	return r < 0 ? r : TAKE_FD(fd);
}

/*
 * The sink
 */

static void mirror_unread(struct fetch_sink *sink, const char *path, int errnum)
{
	struct mirror_files *files = mirror_files_of(sink);

	if (!files->unread) {
		files->unread = mem_strdup(path);
		files->unread_errnum = errnum;
	}
}

/* NULL: it is refused, noted. */
static struct mirror_kept *mirror_admit(struct mirror_files *files, const struct fetch_item *item)
{
	struct mirror_kept *kept;
	uint64_t before;

	if (entry_path_has_git(item->path))
		return NULL;
	if (!sink_dir_admits(&files->dir, item->path)) {
		mirror_unread(&files->sink, item->path, EINVAL);
		return NULL;
	}
	if (!files->walk && !mirror_plugins_admit(files, item))
		return NULL;
	kept = map_get(&files->files, item->path);
	before = kept ? kept->size : 0;
	if ((!kept && files->files.n >= MIRROR_FILES_MAX) || item->size > MIRROR_BYTES_MAX ||
		files->counts.bytes - before + item->size > MIRROR_BYTES_MAX) {
		files->is_over_limit = true;
		return NULL;
	}
	kept = mirror_files_keep(files, item->path);
	kept->is_there = true;
	return kept;
}

static int refresh_link(struct mirror_files *files, const char *path, struct err *err)
{
	AUTO_FREE char *target = mem_printf("%s/%s", files->linked, path);
	AUTO_FREE char *now = mem_alloc(strlen(target) + 2, 1);
	const char *name;
	AUTO_FD int parent = sink_dir_parent(&files->dir, path, &name);

	if (parent < 0)
		return sink_dir_fail(&files->dir, -parent, path, err);
	ssize_t n = readlinkat(parent, name, now, strlen(target) + 1);
	if (n == (ssize_t)strlen(target) && memcmp(now, target, (size_t)n) == 0)
		return 0;
	int r = sink_dir_new_link(&files->dir, NEW, target);
	if (r == 0 && renameat(files->dir.own_fd, NEW, parent, name) < 0)
		r = -errno;
	return r < 0 ? sink_dir_fail(&files->dir, -r, path, err) : 0;
}

static bool mirror_files_is_known(
	const struct mirror_kept *kept, const struct fetch_item *item, uint64_t here)
{
	if (kept->is_anew || here != item->size)
		return false;
	/* A file that may still change is checked again once it no longer does. */
	return (item->changing && !kept->is_rewritten) ||
	       (kept->size == here && kept->mtime_ns == item->mtime_ns);
}

/* Take a file without content: only its name is transferred. */
static int mirror_take_empty(struct mirror_files *files, struct mirror_kept *kept,
	const struct fetch_item *item, bool is_here, struct err *err)
{
	AUTO_FD int fd = is_here ? -1 : mirror_open_anew(files, item->path);

	if (fd < 0 && !is_here)
		return sink_dir_fail(&files->dir, -fd, item->path, err);
	if (!is_here || kept->mtime_ns != item->mtime_ns)
		files->is_dirty = true;
	mirror_set_size(files, kept, 0);
	kept->mtime_ns = item->mtime_ns;
	kept->is_anew = false;
	return 0;
}

/* here: bytes; -1: no file. 1: *ret is wanted. */
static int copy_wants(struct mirror_files *files, struct mirror_kept *kept,
	const struct fetch_item *item, int64_t here, struct fetch_range *ret, struct err *err)
{
	uint64_t size = here < 0 ? 0 : (uint64_t)here;

	if ((here >= 0 && mirror_files_is_known(kept, item, size)) ||
		mirror_plugins_waits(files, kept, item))
		return 0;
	if (item->size == 0)
		return mirror_take_empty(files, kept, item, here == 0, err);
	kept->is_anew |= here < 0 || size > item->size || kept->is_rewritten;
	ret->offset = kept->is_anew || size < MIRROR_OVERLAP ? 0 : size - MIRROR_OVERLAP;
	ret->len = item->size - ret->offset;
	return 1;
}

static int scalars_wants(struct mirror_files *files, struct mirror_kept *kept,
	const struct fetch_item *item, int64_t here, struct fetch_range *ret, struct err *err);

static int mirror_wants(struct fetch_sink *sink, const struct fetch_item *item,
	struct fetch_range *ret, struct err *err)
{
	struct mirror_files *files = mirror_files_of(sink);
	struct mirror_kept *kept = mirror_admit(files, item);
	struct stat st = {0};

	if (!kept)
		return 0;
	if (files->linked) {
		int r = refresh_link(files, item->path, err);

		if (r < 0)
			return r;
		if (kept->mtime_ns != item->mtime_ns || kept->size != item->size) {
			files->counts.is_new = files->is_dirty = true;
			mirror_set_size(files, kept, item->size);
			kept->mtime_ns = item->mtime_ns;
		}
		return 0;
	}
	AUTO_FD int fd = mirror_open_here(files, item->path, &st);
	if (fd < 0 && fd != -ENOENT)
		return sink_dir_fail(&files->dir, -fd, item->path, err);
	int64_t here = fd < 0 ? -1 : (int64_t)st.st_size;
	return files->walk ? scalars_wants(files, kept, item, here, ret, err)
			   : copy_wants(files, kept, item, here, ret, err);
}

static int open_current(struct mirror_files *files, const struct fetch_range *range)
{
	struct stat st = {0};

	if (files->current->is_rewritten) {
		files->fd = sink_dir_new(&files->dir, NEW);
		if (files->fd < 0)
			return files->fd;
		files->current->mtime_ns = MIRROR_NEVER;
	} else if (files->current->is_anew) {
		files->fd = mirror_open_anew(files, files->current->path);
		if (files->fd < 0)
			return files->fd;
		mirror_set_size(files, files->current, 0);
		files->current->mtime_ns = MIRROR_NEVER;
	} else {
		files->fd = mirror_open_here(files, files->current->path, &st);
		if (files->fd < 0)
			return files->fd;
	}
	files->current->is_anew = false;
	files->at = (uint64_t)st.st_size;
	files->overlap =
		(struct sink_overlap){.fd = files->fd, .at = range->offset, .end = files->at};
	return range->offset <= files->at && files->at - range->offset <= MIRROR_OVERLAP ? 0
											 : -ESTALE;
}

static int scalars_open_current(struct mirror_files *files, const struct fetch_range *range);
static void scalars_begin(
	struct mirror_files *files, const struct fetch_item *item, const struct fetch_range *range);

static int mirror_begin(struct fetch_sink *sink, const struct fetch_item *item,
	const struct fetch_range *range, struct err *err)
{
	struct mirror_files *files = mirror_files_of(sink);

	mirror_close_file(files);
	files->current = map_get(&files->files, item->path);
	files->is_dropped = false;
	if (!files->current || files->linked)
		return 0;
	int r = files->walk ? scalars_open_current(files, range) : open_current(files, range);
	/* Another process has changed the file here: the next poll handles it. */
	if (r == -ESTALE || r == -ENOENT) {
		mirror_close_file(files);
		files->counts.wants_more = true;
		return 0;
	}
	if (r < 0)
		return sink_dir_fail(&files->dir, -r, item->path, err);
	if (files->walk)
		scalars_begin(files, item, range);
	return 1;
}

/* All that len bytes at at; 0 or -errno. */
static int mirror_write_at(int fd, const char *data, size_t len, uint64_t at)
{
	for (ssize_t n; len > 0; data += n, len -= (size_t)n, at += (uint64_t)n) {
		do
			n = pwrite(fd, data, len, (off_t)at);
		while (n < 0 && errno == EINTR);
		if (n <= 0)
			return n < 0 ? -errno : -ENOSPC;
	}
	return 0;
}

static int mirror_write(struct fetch_sink *sink, const void *data, size_t len, struct err *err)
{
	struct mirror_files *files = mirror_files_of(sink);
	const char *at = data;
	size_t n = sink_overlap_check(&files->overlap, at, len);

	files->is_dropped |= files->overlap.differs;
	if (files->is_dropped) {
		files->current->is_anew = files->counts.wants_more = true;
		return 0;
	}
	at += n;
	len -= n;
	int r = mirror_write_at(files->fd, at, len, files->at);
	if (r < 0)
		return sink_dir_fail(&files->dir, -r, files->current->path, err);
	files->at += len;
	files->counts.bytes_new += len;
	if (len)
		files->counts.is_new = files->is_dirty = true;
	return 0;
}

static int mirror_end(struct fetch_sink *sink, const struct fetch_item *item, struct err *err)
{
	struct mirror_files *files = mirror_files_of(sink);
	struct mirror_kept *kept = files->current;
	int r = kept->is_rewritten ? name_new(files, kept->path) : 0;

	if (r < 0)
		return sink_dir_fail(&files->dir, -r, kept->path, err);
	if (!files->is_dropped) {
		files->is_dirty = true;
		mirror_set_size(files, kept, files->at);
		kept->mtime_ns = item->changing ? MIRROR_NEVER : item->mtime_ns;
	}
	mirror_close_file(files);
	return 0;
}

static const struct fetch_sink_ops copy_ops = {
	.wants = mirror_wants,
	.begin = mirror_begin,
	.write = mirror_write,
	.end = mirror_end,
	.unread = mirror_unread,
	.free = mirror_free_sink,
};

struct mirror_files *mirror_files_new(const char *dir, const char *linked, bool scalars_only)
{
	struct mirror_files *files = mem_alloc(1, sizeof(*files));

	*files = (struct mirror_files){
		.sink = {.ops = &copy_ops, .like = &files->like},
		.linked = mem_strdup(linked),
		.fd = -1,
	};
	sink_dir_init(&files->dir, dir, MIRROR_OWN, 0700);
	strv_add(&files->like, "*" MIRROR_PART "*");
	if (scalars_only)
		mirror_scalars_init(files);
	else
		plugin_files_patterns(&files->like);
	return files;
}

/*
 * Polls
 */

int mirror_files_begin(struct mirror_files *files, struct err *err)
{
	size_t pos = 0;
	const char *name;
	void *value;

	int r = sink_dir_open(&files->dir, 0, err);
	if (r == 0)
		r = read_seen(files, err);
	if (r < 0) {
		mirror_files_drop(files);
		return r;
	}
	while (map_each(&files->files, &pos, &name, &value))
		((struct mirror_kept *)value)->is_there = false;
	mirror_plugins_read(files);
	files->counts.excluded = 0;
	free(TAKE(files->excluded));
	files->counts.is_new = files->counts.wants_more = files->counts.is_behind = false;
	files->is_over_limit = false;
	free(TAKE(files->unread));
	return 0;
}

bool mirror_files_is_whole(struct mirror_files *files, const char *handle)
{
	size_t pos = 0;
	const char *name;
	void *value;
	struct stat st;

	if (!str_eq(files->whole, handle))
		return false;
	while (map_each(&files->files, &pos, &name, &value))
		if (fstatat(files->dir.fd, name, &st, 0) < 0 ||
			(uint64_t)st.st_size != ((const struct mirror_kept *)value)->size)
			return false;
	for (pos = 0; map_each(&files->files, &pos, &name, &value);)
		((struct mirror_kept *)value)->is_there = true;
	return true;
}

/* Links to what is gone; copies stay. */
static void sweep_links(struct mirror_files *files)
{
	size_t pos = 0;
	const char *name;
	void *value;
	struct stat st;

	while (files->linked && map_each(&files->files, &pos, &name, &value)) {
		if (((const struct mirror_kept *)value)->is_there)
			continue;
		AUTO_FD int parent = sink_dir_parent(&files->dir, name, &name);
		if (parent >= 0 && fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
			S_ISLNK(st.st_mode))
			unlinkat(parent, name, 0);
	}
}

/* A complete copy is not requested again, so it has to survive a power cut. */
static int make_durable(struct mirror_files *files, struct err *err)
{
	size_t pos = 0;
	const char *name;
	void *value;
	int r = 0;

	while (r == 0 && !files->linked && map_each(&files->files, &pos, &name, &value)) {
		struct stat st;
		AUTO_FD int fd = mirror_open_here(files, name, &st);

		if (fd >= 0)
			r = fs_sync_fd(fd, name, err);
	}
	return r;
}

static int fail_incomplete(const struct mirror_files *files, struct err *err)
{
	if (files->is_over_limit)
		return err_set(err, E_DATA_LIMIT,
			"event files for %s are more than %d or over %llu GiB", files->dir.path,
			MIRROR_FILES_MAX, (unsigned long long)(MIRROR_BYTES_MAX >> 30));
	AUTO_FREE char *shown = str_shown(files->unread);
	return err_set_errno(err, E_IO_READ, files->unread_errnum,
		"the event file '%s' cannot be copied to %s", shown, files->dir.path);
}

static void count_files(struct mirror_files *files)
{
	size_t pos = 0;
	const char *name;
	void *value;

	files->counts.files = files->counts.plugin_files = 0;
	while (map_each(&files->files, &pos, &name, &value)) {
		const struct mirror_kept *kept = value;

		bool is_here = files->linked ? kept->is_there
					     : kept->mtime_ns != MIRROR_NEVER || kept->size > 0;

		*(kept->is_plugin ? &files->counts.plugin_files : &files->counts.files) += is_here;
	}
}

int mirror_files_end(struct mirror_files *files, const char *whole, struct err *err)
{
	int r = 0;

	mirror_close_file(files);
	files->counts.wants_more |= mirror_plugins_read(files);
	bool is_all = !files->is_over_limit && !files->unread && !files->counts.wants_more &&
		      !files->counts.is_behind && !files->excluded;
	sweep_links(files);
	count_files(files);
	if (whole && is_all && !str_eq(files->whole, whole)) {
		r = make_durable(files, err);
		REPLACE(files->whole, mem_strdup(whole));
		files->is_dirty = true;
	}
	if (r == 0)
		r = write_seen(files, err);
	mirror_files_drop(files);
	if (r == 0 && (files->is_over_limit || files->unread))
		r = fail_incomplete(files, err);
	return r;
}

/*
 * Scalars only
 */

/*
 * Scalars only: a poll asks for a window of each file, and the next one goes on behind what came,
 * or behind a large record that was met in it and of which no more has to come. Windows grow where
 * that spares nothing: a poll costs time, too.
 *
 * What is here is whole records. Those that were appended when somebody died before `seen` was
 * written are cut off again, and come again.
 */

enum {
	LARGE_MIN = 16 << 10,
	WINDOW_MIN = 4 << 10, /* where a record is waited for */
	WINDOW = 64 << 10,
	LARGE_WINDOWS = 2, /* records that are worth a poll of their own, on average */
	GROWTH = 4,
	LOST_MAX = 3, /* times that a file is begun anew because there was no record at a place */
	PIECE = 256 << 10,
};

static const struct scalars_only_spec spec = {
	.large_min = LARGE_MIN, .record_max = SERIES_RECORD_MAX};

static void mirror_scalars_init(struct mirror_files *files)
{
	files->sink.ops = &mirror_scalars_ops;
	files->walk = scalars_only_new(&spec);
	buf_init(&files->out, PIECE + SERIES_RECORD_MAX + PIECE);
}

/*
 * Choice of the range to request
 */

static bool scalars_is_known(
	const struct mirror_kept *kept, const struct fetch_item *item, uint64_t here)
{
	const struct mirror_walked *walked = &kept->walked;

	if (kept->is_anew || walked->is_unsure || walked->is_behind || here != kept->size ||
		walked->source != item->size)
		return false;
	/* A file that may still change is checked again once it no longer does. */
	return item->changing || kept->mtime_ns == item->mtime_ns;
}

/* Record that the file was checked in its present state. */
static void mirror_files_settle(struct mirror_files *files, struct mirror_kept *kept,
	const struct fetch_item *item, bool is_read)
{
	int64_t mtime_ns = is_read && !item->changing ? item->mtime_ns : MIRROR_NEVER;

	if (kept->walked.source != item->size)
		files->counts.is_new = true;
	if (kept->walked.source != item->size || kept->mtime_ns != mtime_ns)
		files->is_dirty = true;
	kept->walked.source = item->size;
	kept->mtime_ns = mtime_ns;
}

static void forget_place(struct mirror_kept *kept)
{
	kept->walked.place = (struct scalars_place){0};
	kept->walked.source = 0;
	kept->walked.is_unsure = kept->walked.is_behind = false;
}

static int scalars_wants(struct mirror_files *files, struct mirror_kept *kept,
	const struct fetch_item *item, int64_t here, struct fetch_range *ret, struct err *err)
{
	uint64_t size = here < 0 ? 0 : (uint64_t)here;

	if (here >= 0 && scalars_is_known(kept, item, size))
		return 0;
	if (item->size == 0) {
		forget_place(kept);
		return mirror_take_empty(files, kept, item, here == 0, err);
	}
	kept->is_anew |= here < 0 || size < kept->size || item->size < kept->walked.source;
	/* 1: *ret is wanted; 0: it waits for a record that was passed over. */
	const struct mirror_walked *walked = &kept->walked;
	uint64_t window = walked->window ? walked->window : WINDOW;

	ret->offset = kept->is_anew ? 0 : scalars_only_from(&walked->place);
	if (!kept->is_anew && item->size < walked->place.at) {
		mirror_files_settle(files, kept, item, true);
		return 0;
	}
	ret->len = item->size - ret->offset;
	if (ret->len > window)
		ret->len = window;
	return 1;
}

/*
 * Content received
 */

/* Whether all that is here are records that were kept: after a power cut. */
static int check_here(struct mirror_files *files, uint64_t size)
{
	AUTO(scalars_only_free_auto) struct scalars_only *walk = scalars_only_new(&spec);
	struct scalars_place place = {0};
	uint64_t at = 0, n_kept = 0;
	AUTO_BUF struct buf piece = buf_with(PIECE);

	scalars_only_begin(walk, &place);
	while (at < size) {
		size_t len = size - at < PIECE ? (size_t)(size - at) : PIECE;
		ssize_t n = pread(files->fd, buf_reserve(&piece, len), len, (off_t)at);

		if (n <= 0)
			return n < 0 ? -errno : -ESTALE;
		buf_reset(&files->out);
		scalars_only_feed(walk, piece.data, (size_t)n, &files->out);
		n_kept += files->out.len;
		at += (uint64_t)n;
	}
	scalars_only_place(walk, &place);
	return place.at == size && n_kept == size ? 0 : -ESTALE;
}

static int open_known(struct mirror_files *files, struct mirror_kept *kept)
{
	struct stat st;

	files->fd = mirror_open_here(files, kept->path, &st);
	if (files->fd < 0)
		return files->fd;
	if ((uint64_t)st.st_size < kept->size)
		return -ESTALE;
	if ((uint64_t)st.st_size > kept->size && ftruncate(files->fd, (off_t)kept->size) < 0)
		return -errno;
	if (!kept->walked.is_unsure)
		return 0;
	int r = check_here(files, kept->size);
	kept->is_anew = r < 0;
	kept->walked.is_unsure = false;
	return r;
}

static int scalars_open_current(struct mirror_files *files, const struct fetch_range *range)
{
	struct mirror_kept *kept = files->current;

	if (!kept->is_anew) {
		int r = open_known(files, kept);
		return r == 0 && range->offset != scalars_only_from(&kept->walked.place) ? -ESTALE
											 : r;
	}
	files->fd = mirror_open_anew(files, kept->path);
	if (files->fd < 0)
		return files->fd;
	mirror_set_size(files, kept, 0);
	forget_place(kept);
	kept->is_anew = false;
	return range->offset == 0 ? 0 : -ESTALE;
}

static void scalars_begin(
	struct mirror_files *files, const struct fetch_item *item, const struct fetch_range *range)
{
	struct mirror_kept *kept = files->current;

	files->range = *range;
	if (!kept->walked.is_behind || range->offset >= kept->walked.goal)
		kept->walked.goal = item->size;
	kept->mtime_ns = MIRROR_NEVER;
	files->is_dirty = true;
	files->was_sure = kept->walked.place.at == 0 || kept->walked.place.has_sum;
	scalars_only_begin(files->walk, &kept->walked.place);
}

/* All or nothing. */
static int append(struct mirror_files *files, struct mirror_kept *kept, struct err *err)
{
	const struct buf *out = &files->out;
	int r = mirror_write_at(files->fd, out->data, out->len, kept->size);

	if (r < 0) {
		(void)!ftruncate(files->fd, (off_t)kept->size);
		return sink_dir_fail(&files->dir, -r, kept->path, err);
	}
	files->counts.bytes_new += out->len;
	files->counts.is_new |= out->len > 0;
	mirror_set_size(files, kept, kept->size + out->len);
	return 0;
}

static int mirror_files_take_piece(
	struct mirror_files *files, const char *data, size_t len, struct err *err)
{
	struct mirror_kept *kept = files->current;

	buf_reset(&files->out);
	if (scalars_only_feed(files->walk, data, len, &files->out) == SCALARS_ONLY_OTHER) {
		/* The content there does not continue at the known place. If that place was behind
		 * a record that was passed over, the file may also be damaged. */
		if (!files->was_sure && kept->walked.n_lost >= LOST_MAX)
			return 0;
		kept->walked.n_lost += !files->was_sure;
		files->is_dropped = kept->is_anew = files->counts.wants_more = true;
		return 0;
	}
	int r = append(files, kept, err);
	if (r == 0)
		scalars_only_place(files->walk, &kept->walked.place);
	return r;
}

static int scalars_write(struct fetch_sink *sink, const void *data, size_t len, struct err *err)
{
	struct mirror_files *files = mirror_files_of(sink);
	const char *at = data;
	int r = 0;

	for (size_t n; r == 0 && len > 0 && !files->is_dropped; at += n, len -= n) {
		n = len < PIECE ? len : PIECE;
		r = mirror_files_take_piece(files, at, n, err);
	}
	return r;
}

/*
 * How it goes on
 */

static uint64_t next_window(const struct mirror_files *files, bool is_cut)
{
	struct scalars_only_passed passed;
	uint64_t needs = scalars_only_needs(files->walk) + TFRECORD_TRAILER;

	if (scalars_only_state(files->walk) != SCALARS_ONLY_OK)
		return WINDOW_MIN;
	/* Reset the window at the end of the file: content written later may differ. */
	if (!is_cut)
		return WINDOW;
	if (needs > files->range.len)
		return needs;
	scalars_only_passed(files->walk, &passed);
	if (passed.records && passed.bytes / passed.records >= LARGE_WINDOWS * WINDOW)
		return WINDOW;
	uint64_t window = files->current->walked.window ? files->current->walked.window : WINDOW;
	return window < MIRROR_BYTES_MAX ? window * GROWTH : window;
}

static int scalars_end(
	struct fetch_sink *sink, const struct fetch_item *item, struct err *err UNUSED)
{
	struct mirror_files *files = mirror_files_of(sink);
	struct mirror_kept *kept = files->current;
	struct mirror_walked *walked = &kept->walked;
	enum scalars_only_state state = scalars_only_state(files->walk);
	bool is_cut = files->range.offset + files->range.len < item->size;

	if (!files->is_dropped) {
		walked->is_behind =
			is_cut && state == SCALARS_ONLY_OK && walked->place.at <= item->size;
		walked->window = next_window(files, is_cut);
		mirror_files_settle(
			files, kept, item, !walked->is_behind && state != SCALARS_ONLY_UNFILLED);
		files->counts.is_behind |= walked->is_behind;
		files->counts.wants_more |=
			walked->is_behind && scalars_only_from(&walked->place) < walked->goal;
	}
	mirror_close_file(files);
	return 0;
}

static const struct fetch_sink_ops mirror_scalars_ops = {
	.wants = mirror_wants,
	.begin = mirror_begin,
	.write = scalars_write,
	.end = scalars_end,
	.unread = mirror_unread,
	.free = mirror_free_sink,
};
