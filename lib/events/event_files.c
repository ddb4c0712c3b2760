/* SPDX-License-Identifier: Apache-2.0 */
#include "events/event_files.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"

enum { CHUNK = 256 << 10, TAGS_MAX = 2000, NS_PER_MS = 1000 * 1000, SETTLED_MS = 3000 };

struct dir {
	char *path;
	unsigned depth;
	size_t parent;
	size_t n_files;
	int64_t changed_ns; /* its time when it was read; 0: read it again */
};

struct dir_list VEC_OF(struct dir);

struct file {
	struct event_files *owner;
	char *path;
	size_t dir, number;
	dev_t dev;
	ino_t ino;
	int64_t changed_ns; /* its time and size when it was read to its end */
	int64_t size;
	struct tfevents *reader;
};

struct file_list VEC_OF(struct file *);

struct event_files {
	struct event_files_spec spec;
	char *root;
	struct dir_list dirs;
	struct file_list files;
	struct map dir_paths, file_paths; /* those of the lists */
	size_t next_file;                 /* that a look begins with */
	size_t entries_left, bytes_left;
	char *chunk;
};

static void event_files_add_dir(
	struct event_files *files, const char *path, unsigned depth, size_t parent)
{
	if (files->dirs.n >= files->spec.dirs_max || depth > files->spec.depth_max ||
		map_get(&files->dir_paths, path))
		return;
	*vec_push(&files->dirs) =
		(struct dir){.path = mem_strdup(path), .depth = depth, .parent = parent};
	map_put(&files->dir_paths, path, files);
}

struct event_files *event_files_new(const struct event_files_spec *spec)
{
	struct event_files *files = mem_alloc(1, sizeof(*files));

	files->spec = *spec;
	files->root = mem_strdup(spec->dir);
	files->spec.dir = files->root;
	event_files_add_dir(files, "", 0, 0);
	return files;
}

const char *event_files_dir(const struct event_files *files, size_t dir)
{
	return files->dirs.v[dir].path;
}

const char *event_files_nested(const struct event_files *files, size_t dir)
{
	const char *path = files->dirs.v[dir].path;

	while (dir > 0) {
		dir = files->dirs.v[dir].parent;
		if (files->dirs.v[dir].n_files) {
			size_t len = strlen(files->dirs.v[dir].path);
			return path + len + (len > 0);
		}
	}
	return NULL;
}

/*
 * Files
 */

static void event_files_on_scalar(void *ctx, const struct tfevents_scalar *scalar)
{
	struct file *file = ctx;
	const struct event_files_spec *spec = &file->owner->spec;

	if (spec->scalar)
		spec->scalar(spec->ctx, file->dir, file->number, scalar);
}

static void event_files_on_restart(void *ctx, int64_t step)
{
	struct file *file = ctx;
	const struct event_files_spec *spec = &file->owner->spec;

	if (spec->restart)
		spec->restart(spec->ctx, file->dir, file->number, step);
}

static void start_reader(struct file *file)
{
	static const struct tfevents_ops ops = {
		.scalar = event_files_on_scalar, .restart = event_files_on_restart};
	const struct event_files_spec *wanted = &file->owner->spec;
	const struct tfevents_spec spec = {.ops = &ops,
		.ctx = file,
		.record_max = wanted->record_max,
		.tags_max = wanted->tags_max ? wanted->tags_max : TAGS_MAX};

	tfevents_free(file->reader);
	file->reader = tfevents_new(&spec);
	file->changed_ns = 0;
	file->size = -1;
}

static void event_files_add_file(struct event_files *files, const char *path, size_t dir)
{
	if (files->files.n >= files->spec.files_max || map_get(&files->file_paths, path))
		return;
	struct file *file = mem_alloc(1, sizeof(*file));
	*file = (struct file){
		.owner = files, .path = mem_strdup(path), .dir = dir, .number = files->files.n};
	start_reader(file);
	*vec_push(&files->files) = file;
	map_put(&files->file_paths, path, files);
	files->dirs.v[dir].n_files++;
}

/* Returns whether the reader is at the end of the data. */
static bool read_chunks(struct event_files *files, struct file *file, int fd)
{
	while (files->bytes_left > 0) {
		size_t want = files->bytes_left < CHUNK ? files->bytes_left : CHUNK;
		ssize_t n = pread(fd, files->chunk, want, (off_t)tfevents_next(file->reader));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return true;
		files->bytes_left -= (size_t)n;
		if (tfevents_feed(file->reader, files->chunk, (size_t)n) != TFRECORD_OK)
			return true;
	}
	return false;
}

static int64_t time_ns(const struct timespec *time)
{
	return (int64_t)time->tv_sec * 1000 * NS_PER_MS + time->tv_nsec;
}

/* Written so lately that it may be written again without another time. */
static bool event_files_is_fresh(int64_t changed_ns)
{
	return changed_ns / NS_PER_MS > clock_wall_ms() - SETTLED_MS;
}

static bool read_open_file(struct event_files *files, struct file *file, int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return true;
	/* Another file of that name, or one that was written anew. */
	if (st.st_dev != file->dev || st.st_ino != file->ino ||
		(uint64_t)st.st_size < tfevents_next(file->reader))
		start_reader(file);
	file->dev = st.st_dev;
	file->ino = st.st_ino;
	if (!read_chunks(files, file, fd))
		return false;
	file->changed_ns = event_files_is_fresh(time_ns(&st.st_mtim)) ? 0 : time_ns(&st.st_mtim);
	file->size = st.st_size;
	return true;
}

/* Returns whether nothing is left to read. */
static bool event_files_check_file(struct event_files *files, int root, struct file *file)
{
	struct stat st;

	if (fstatat(root, file->path, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
		return true;
	if (st.st_ino == file->ino && st.st_dev == file->dev && st.st_size == file->size &&
		time_ns(&st.st_mtim) == file->changed_ns)
		return true;
	AUTO_FD int fd = fs_open_beneath(root, file->path, O_RDONLY | O_NONBLOCK, 0);
	return fd < 0 || read_open_file(files, file, fd);
}

/* The next look goes on where this one was full, so that a large file does not keep the others. */
static bool event_files_check_all(struct event_files *files, int root)
{
	size_t n = files->files.n, first = files->next_file;

	for (size_t i = 0; i < n; i++) {
		size_t at = (first + i) % n;

		if (event_files_check_file(files, root, files->files.v[at]))
			continue;
		files->next_file = at + 1;
		return true;
	}
	return false;
}

/*
 * Directories
 */

static unsigned char event_files_type_of(int dirfd, const struct dirent *entry)
{
	struct stat st;

	if (entry->d_type != DT_UNKNOWN)
		return entry->d_type;
	if (fstatat(dirfd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return DT_UNKNOWN;
	return S_ISDIR(st.st_mode) ? DT_DIR : S_ISREG(st.st_mode) ? DT_REG : DT_UNKNOWN;
}

static void event_files_add_entry(
	struct event_files *files, size_t at, int dirfd, const struct dirent *entry)
{
	const struct dir *dir = &files->dirs.v[at];
	bool is_event = strstr(entry->d_name, "tfevents") != NULL;
	unsigned char type = event_files_type_of(dirfd, entry);

	if (type == DT_DIR ? str_eq(entry->d_name, ".") || str_eq(entry->d_name, "..")
			   : type != DT_REG || !is_event || entry->d_name[0] == '.')
		return;
	AUTO_FREE char *path = *dir->path ? mem_printf("%s/%s", dir->path, entry->d_name)
					  : mem_strdup(entry->d_name);
	if (type == DT_DIR)
		event_files_add_dir(files, path, dir->depth + 1, at);
	else
		event_files_add_file(files, path, at);
}

static int event_files_by_path(const void *a, const void *b)
{
	return strcmp((*(struct file *const *)a)->path, (*(struct file *const *)b)->path);
}

/* Names begin with a time: what a program wrote first is read first. */
static void sort_new(struct event_files *files, size_t first)
{
	size_t n = files->files.n;

	if (n - first > 1)
		qsort(files->files.v + first, n - first, sizeof(*files->files.v),
			event_files_by_path);
	for (size_t i = first; i < n; i++)
		files->files.v[i]->number = i;
}

static void read_dir(struct event_files *files, size_t at, int fd)
{
	AUTO_DIR DIR *stream = fdopendir(fd);
	struct dirent *entry;
	size_t n_before = files->files.n;

	if (!stream) {
		close(fd);
		return;
	}
	while (files->entries_left > 0 && (entry = readdir(stream))) {
		files->entries_left--;
		event_files_add_entry(files, at, dirfd(stream), entry);
	}
	sort_new(files, n_before);
}

static void event_files_check_dir(struct event_files *files, int root, size_t at)
{
	const char *path = files->dirs.v[at].path;
	struct stat st;

	if (fstatat(root, *path ? path : ".", &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		time_ns(&st.st_mtim) == files->dirs.v[at].changed_ns)
		return;
	int fd = fs_open_beneath(root, *path ? path : ".", O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return;
	files->dirs.v[at].changed_ns =
		event_files_is_fresh(time_ns(&st.st_mtim)) ? 0 : time_ns(&st.st_mtim);
	read_dir(files, at, fd);
}

bool event_files_poll(struct event_files *files)
{
	AUTO_FD int root = open(files->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (root < 0)
		return false;
	files->entries_left = files->spec.entries_max;
	files->bytes_left = files->spec.bytes_max;
	for (size_t i = 0; i < files->dirs.n && files->entries_left > 0; i++)
		event_files_check_dir(files, root, i);
	if (files->files.n == 0)
		return false;
	files->chunk = mem_grow(NULL, CHUNK, 1);
	bool more = event_files_check_all(files, root);
	free(TAKE(files->chunk));
	return more;
}

void event_files_free(struct event_files *files)
{
	if (!files)
		return;
	vec_foreach (struct dir, dir, &files->dirs)
		free(dir->path);
	vec_foreach (struct file *, file, &files->files) {
		tfevents_free((*file)->reader);
		free((*file)->path);
		free(*file);
	}
	vec_done(&files->dirs);
	vec_done(&files->files);
	map_done(&files->dir_paths);
	map_done(&files->file_paths);
	free(files->root);
	free(files);
}

/*
 * Files beside event files
 */

#define CHECKPOINT "checkpoint"
#define DEBUGGER   "tfdbg_events."

enum { WORD_MAX = 40, NAME_MAX_BYTES = 4096 };

static const char *const names[] = {
	PLUGIN_FILES_PROJECTOR, "*.pt.trace.json", "*.pt.trace.json.gz", DEBUGGER "*"};
static const char profiles[] = "*/plugins/profile/*";

void plugin_files_patterns(struct strv *ret)
{
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		strv_add(ret, names[i]);
	strv_add(ret, profiles);
}

bool plugin_files_is_one(const char *path)
{
	static const char dir[] = "plugins/profile/";

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (fnmatch(names[i], fs_basename(path), 0) == 0)
			return true;
	for (const char *at = path; (at = strstr(at, dir)); at++)
		if (at == path || at[-1] == '/')
			return true;
	return false;
}

bool plugin_files_is_appended(const char *path)
{
	return str_starts(fs_basename(path), DEBUGGER);
}

bool plugin_files_names_others(const char *path)
{
	return str_eq(fs_basename(path), PLUGIN_FILES_PROJECTOR) ||
	       str_eq(fs_basename(path), CHECKPOINT);
}

/*
 * Files named by others
 */

/* "./", the directory of config and path, made plain; false: it leads elsewhere. */
static bool plugin_files_resolve(const char *config, const char *path, struct buf *out)
{
	AUTO_FREE char *dir = mem_strndup(config, (size_t)(fs_basename(config) - config));
	AUTO_FREE char *all = mem_printf("%s%s", dir, path);

	buf_adds(out, ".");
	for (const char *at = all; *at; at += strspn(at, "/")) {
		size_t len = strcspn(at, "/");

		if (len == 2 && memcmp(at, "..", 2) == 0) {
			while (out->len > 1 && out->data[out->len - 1] != '/')
				out->len--;
			if (out->len <= 1)
				return false;
			out->len--;
		} else if (len != 1 || *at != '.') {
			buf_adds(out, "/");
			buf_add(out, at, len);
		}
		at += len;
	}
	return out->len > 1 && !out->full;
}

static void plugin_files_name(
	const char *config, const char *path, const char *suffix, struct strv *ret)
{
	AUTO_BUF struct buf out = buf_with(NAME_MAX_BYTES);

	if (!*path || *path == '/' || !plugin_files_resolve(config, path, &out))
		return;
	for (size_t i = 0; i < out.len; i++)
		if (strchr("*?[\\\n", out.data[i]))
			out.data[i] = '?';
	strv_addf(ret, "%.*s%s", (int)out.len, out.data, suffix);
}

static bool plugin_files_add_field(
	const char *config, const char *field, const char *value, struct strv *ret)
{
	static const char *const fields[] = {
		"tensor_path", "metadata_path", "image_path", "bookmarks_path"};

	for (size_t i = 0; i < ARRAY_LEN(fields); i++)
		if (str_eq(field, fields[i]))
			plugin_files_name(config, value, "", ret);
	if (str_eq(field, "model_checkpoint_path")) {
		plugin_files_name(config, value, ".index", ret);
		plugin_files_name(config, value, ".data-*", ret);
	}
	return str_eq(field, "tensor_path");
}

/* Up to the quote that it began with; returns what is behind it. */
static const char *plugin_files_read_string(const char *at, const char *end, struct buf *out)
{
	static const char from[] = "ntrabfv", to[] = "\n\t\r\a\b\f\v";
	char quote = *at++;

	for (; at < end && *at != quote && *at != '\n'; at++) {
		char c = *at;

		if (c == '\\' && at + 1 < end) {
			const char *known = strchr(from, *++at);

			c = known && *at ? to[known - from] : *at;
			if (*at >= '0' && *at <= '7') {
				int value = 0;

				for (int i = 0; i < 3 && at < end && *at >= '0' && *at <= '7'; i++)
					value = value * 8 + (*at++ - '0');
				at--;
				c = (char)value;
			}
		}
		buf_add(out, &c, 1);
	}
	return at < end ? at + 1 : end;
}

static bool plugin_files_is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

static const char *plugin_files_read_word(
	const char *at, const char *end, char out[static WORD_MAX])
{
	size_t n = 0;

	for (; at < end && plugin_files_is_word(*at); at++)
		if (n < WORD_MAX - 1)
			out[n++] = *at;
	out[n] = '\0';
	return at;
}

struct naming {
	const char *path;
	char word[WORD_MAX]; /* that a value belongs to */
	bool has_tensors;
	struct strv *ret;
};

static const char *plugin_files_read_value(struct naming *naming, const char *at, const char *end)
{
	AUTO_BUF struct buf value = buf_with(NAME_MAX_BYTES);

	at = plugin_files_read_string(at, end, &value);
	if (!value.full && value.len && !memchr(value.data, '\0', value.len))
		naming->has_tensors |=
			plugin_files_add_field(naming->path, naming->word, value.data, naming->ret);
	naming->word[0] = '\0';
	return at;
}

static const char *plugin_files_read_token(struct naming *naming, const char *at, const char *end)
{
	if (*at == '#') {
		const char *line = memchr(at, '\n', (size_t)(end - at));
		return line ? line : end;
	}
	if (*at == '"' || *at == '\'')
		return plugin_files_read_value(naming, at, end);
	if (plugin_files_is_word(*at))
		return plugin_files_read_word(at, end, naming->word);
	if (*at != ':' && !isspace((unsigned char)*at))
		naming->word[0] = '\0';
	return at + 1;
}

void plugin_files_named(const char *path, const char *text, size_t len, struct strv *ret)
{
	struct naming naming = {
		.path = path, .has_tensors = str_eq(fs_basename(path), CHECKPOINT), .ret = ret};

	for (const char *at = text, *end = text + len; at < end;)
		at = plugin_files_read_token(&naming, at, end);
	/* Then they are variables of the newest checkpoint beside it. */
	if (!naming.has_tensors)
		plugin_files_name(path, CHECKPOINT, "", ret);
}
