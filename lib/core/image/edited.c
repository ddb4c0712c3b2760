/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/edited.h"

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

static void files_done(struct edited_files *files)
{
	vec_foreach (struct edited_file, file, files)
		free(file->path);
	vec_done(files);
}

void edited_done(struct edited *edited)
{
	files_done(&edited->before);
	files_done(&edited->now);
	*edited = (struct edited){0};
}

static void make_mark(const struct path *path, char out[static EDITED_MARK_SIZE])
{
	AUTO_FREE char *text = mem_printf("%" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 " %o",
		path->ino, path->size, path->mtime_ns, path->ctime_ns, path->mode);
	uint8_t sha256[SHA256_SIZE];

	digest_sha256(text, strlen(text), sha256);
	hex_encode(sha256, sizeof(sha256), out);
}

/* Lines: mark, blank, path. */
void edited_load(const char *path, struct edited *ret)
{
	AUTO_BUF struct buf text = {0};

	*ret = (struct edited){0};
	if (fs_read(path, FILE_MAX, &text, NULL, NULL) < 0)
		return;
	for (char *line = text.data, *end; (end = strchr(line, '\n')); line = end + 1) {
		*end = '\0';
		if (end - line <= EDITED_MARK_SIZE || line[EDITED_MARK_SIZE - 1] != ' ' ||
			ret->before.n == EDITED_MAX)
			return;
		struct edited_file *file = vec_push(&ret->before);
		memcpy(file->mark, line, EDITED_MARK_SIZE - 1);
		file->path = mem_strdup(line + EDITED_MARK_SIZE);
	}
	ret->known = true;
}

bool edited_has_changed(const struct edited *edited, const char *root)
{
	AUTO_FD int root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char mark[EDITED_MARK_SIZE];
	struct stat st;

	vec_foreach (const struct edited_file, file, &edited->before) {
		struct path path = {.path = file->path};
		if (content_lstat(root_fd, file->path, &st) != 0 || !content_set_stat(&path, &st))
			return true;
		make_mark(&path, mark);
		if (strcmp(mark, file->mark) != 0)
			return true;
	}
	return false;
}

static bool was_there(const struct edited *edited, const struct edited_file *now)
{
	vec_foreach (const struct edited_file, file, &edited->before)
		if (strcmp(file->path, now->path) == 0)
			return strcmp(file->mark, now->mark) == 0;
	return false;
}

bool edited_add(struct edited *edited, const struct path *const *paths, size_t n)
{
	bool changed = !edited->known || n > EDITED_MAX;

	for (size_t i = 0; i < n && i < EDITED_MAX; i++) {
		if (strchr(paths[i]->path, '\n'))
			continue;
		struct edited_file *file = vec_push(&edited->now);
		file->path = mem_strdup(paths[i]->path);
		make_mark(paths[i], file->mark);
		changed |= !was_there(edited, file);
	}
	return changed;
}

int edited_save(const char *path, const struct edited *edited, struct err *err)
{
	AUTO_BUF struct buf text = {0};

	buf_init(&text, FILE_MAX);
	vec_foreach (const struct edited_file, file, &edited->now)
		buf_addf(&text, "%s %s\n", file->mark, file->path);
	if (text.full)
		buf_truncate(&text, 0);
	return fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, err);
}
