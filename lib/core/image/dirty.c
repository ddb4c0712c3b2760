/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/dirty.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os/fs.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "snap/tree/content.h"

enum { FILE_MAX = 512 << 10 };

static void files_done(struct dirty_files *files)
{
	vec_foreach (struct dirty_file, file, files)
		free(file->path);
	vec_done(files);
}

void dirty_done(struct dirty *dirty)
{
	files_done(&dirty->before);
	files_done(&dirty->now);
	*dirty = (struct dirty){0};
}

static void make_mark(const struct path *path, char out[static DIRTY_MARK_SIZE])
{
	AUTO_FREE char *text = mem_printf("%" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 " %o",
		path->ino, path->size, path->mtime_ns, path->ctime_ns, path->mode);
	uint8_t sha256[SHA256_SIZE];

	digest_sha256(text, strlen(text), sha256);
	hex_encode(sha256, sizeof(sha256), out);
}

/* Lines: mark, blank, path. */
void dirty_load(const char *path, struct dirty *ret)
{
	AUTO_BUF struct buf text = {0};

	*ret = (struct dirty){0};
	if (fs_read(path, FILE_MAX, &text, NULL, NULL) < 0)
		return;
	for (char *line = text.data, *end; (end = strchr(line, '\n')); line = end + 1) {
		*end = '\0';
		if (end - line <= DIRTY_MARK_SIZE || line[DIRTY_MARK_SIZE - 1] != ' ' ||
			ret->before.n == DIRTY_MAX)
			return;
		struct dirty_file *file = vec_push(&ret->before);
		memcpy(file->mark, line, DIRTY_MARK_SIZE - 1);
		file->path = mem_strdup(line + DIRTY_MARK_SIZE);
	}
	ret->known = true;
}

bool dirty_has_changed(const struct dirty *dirty, const char *root)
{
	AUTO_FD int root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char mark[DIRTY_MARK_SIZE];
	struct stat st;

	vec_foreach (const struct dirty_file, file, &dirty->before) {
		struct path path = {.path = file->path};
		if (content_lstat(root_fd, file->path, &st) != 0 || !content_set_stat(&path, &st))
			return true;
		make_mark(&path, mark);
		if (strcmp(mark, file->mark) != 0)
			return true;
	}
	return false;
}

static bool was_there(const struct dirty *dirty, const struct dirty_file *now)
{
	vec_foreach (const struct dirty_file, file, &dirty->before)
		if (strcmp(file->path, now->path) == 0)
			return strcmp(file->mark, now->mark) == 0;
	return false;
}

bool dirty_add(struct dirty *dirty, const struct path *const *paths, size_t n)
{
	bool changed = !dirty->known || n > DIRTY_MAX;

	for (size_t i = 0; i < n && i < DIRTY_MAX; i++) {
		if (strchr(paths[i]->path, '\n'))
			continue;
		struct dirty_file *file = vec_push(&dirty->now);
		file->path = mem_strdup(paths[i]->path);
		make_mark(paths[i], file->mark);
		changed |= !was_there(dirty, file);
	}
	return changed;
}

int dirty_save(const char *path, const struct dirty *dirty, struct err *err)
{
	AUTO_BUF struct buf text = buf_with(FILE_MAX);

	vec_foreach (const struct dirty_file, file, &dirty->now)
		buf_addf(&text, "%s %s\n", file->mark, file->path);
	if (text.full)
		buf_truncate(&text, 0);
	return fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, err);
}
