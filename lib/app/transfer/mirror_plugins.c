/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <fnmatch.h>
#include <string.h>

#include "app/transfer/mirror_files_impl.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "events/plugin_files.h"

enum { NAMED_MAX = 500 };

static bool is_named(const struct mirror_files *files, const char *path)
{
	AUTO_FREE char *below = mem_printf("./%s", path);

	vec_foreach (char *, pattern, &files->named)
		if (fnmatch(*pattern, below, 0) == 0)
			return true;
	return false;
}

static void leave_out(struct mirror_files *files, const char *path)
{
	files->counts.left_out++;
	if (!files->left_out)
		files->left_out = mem_strdup(path);
}

bool mirror_plugins_admit(struct mirror_files *files, const struct fetch_item *item)
{
	const char *slash = strrchr(item->path, '/');
	const struct mirror_kept *kept = map_get(&files->files, item->path);
	uint64_t before = kept ? kept->size : 0;

	if (strstr(slash ? slash : item->path, MIRROR_PART))
		return true;
	if (!plugin_files_is_one(item->path) && !is_named(files, item->path))
		return false;
	if (files->linked || ((kept || files->n_plugins < MIRROR_PLUGIN_FILES_MAX) &&
				     item->size <= MIRROR_PLUGIN_BYTES_MAX &&
				     files->counts.plugin_bytes - before + item->size <=
					     MIRROR_PLUGIN_BYTES_MAX))
		return true;
	leave_out(files, item->path);
	return false;
}

bool mirror_plugins_waits(
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

static bool has(const struct strv *strv, const char *text)
{
	vec_foreach (char *, one, strv)
		if (str_eq(*one, text))
			return true;
	return false;
}

/* Targets look for the name alone: their paths may begin elsewhere. */
static bool want(struct mirror_files *files, const char *pattern)
{
	const char *name = strrchr(pattern, '/') + 1;

	if (files->named.n >= NAMED_MAX || has(&files->named, pattern))
		return false;
	strv_add(&files->named, pattern);
	if (!has(&files->like, name))
		strv_add(&files->like, name);
	return true;
}

static bool read_one(struct mirror_files *files, int dir_fd, const char *path)
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
		is_more |= want(files, *pattern);
	return is_more;
}

bool mirror_plugins_read(struct mirror_files *files)
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
			is_more |= read_one(files, dir_fd, path);
	return is_more;
}
