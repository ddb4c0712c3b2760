/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/runs/patch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/image/code.h"

enum { GIT_MS = 60 * 1000, GIT_DIFFERENT = 1, COPY_BYTES = 64 << 10 };

static int copy_from_tree(const char *root, const char *path, int out_fd, struct err *err)
{
	AUTO_FD int dir_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	AUTO_FD int fd = dir_fd < 0 ? -errno : fs_open_beneath(dir_fd, path, O_RDONLY, 0);
	AUTO_FREE char *chunk = mem_alloc(1, COPY_BYTES);
	ssize_t n;

	if (fd < 0)
		return fs_error(err, -fd, "%s/%s", root, path);
	while ((n = read(fd, chunk, COPY_BYTES)) != 0) {
		if (n < 0 && errno != EINTR)
			return fs_error(err, errno, "%s/%s", root, path);
		int r = n < 0 ? 0 : fs_write_fd(out_fd, path, chunk, (size_t)n, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Write one file of a side (run NULL: the working tree) below dir. */
static int patch_put_file(const struct patch_request *request, const struct run *run,
	const struct entry *entry, const char *dir, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s/%s", dir, entry->path);
	AUTO_FREE char *parent = mem_strndup(path, (size_t)(strrchr(path, '/') - path));
	int r = fs_mkdirs(parent, 0700, err);

	if (r < 0)
		return r;
	if (entry->kind == ENTRY_LINK)
		return symlink(entry->target, path) < 0 ? fs_error(err, errno, "%s", path) : 0;
	AUTO_FD int fd =
		open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, entry->exec ? 0700 : 0600);
	if (fd < 0)
		return fs_error(err, errno, "%s", path);
	if (run)
		return run_read_file(request->session, run, entry->path, fd, err);
	return copy_from_tree(request->root, entry->path, fd, err);
}

static int patch_put_files(const struct patch_request *request, const char *dir_a,
	const char *dir_b, size_t *ret_skipped, struct err *err)
{
	vec_foreach (struct diff_file, file, &request->report->files) {
		const struct entry *a = entry_find(&request->report->a, file->path);
		const struct entry *b = entry_find(&request->report->b, file->path);
		int r = 0;

		if ((a && a->size > PATCH_FILE_MAX) || (b && b->size > PATCH_FILE_MAX)) {
			++*ret_skipped;
			continue;
		}
		if (a)
			r = patch_put_file(request, request->a, a, dir_a, err);
		if (r == 0 && b)
			r = patch_put_file(request, request->b, b, dir_b, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int run_git(const char *dir, bool color, struct buf *ret, struct err *err)
{
	const char *argv[] = {"git", "diff", "--no-index", "--no-prefix", "--no-ext-diff",
		"--no-textconv", "--no-renames", color ? "--color=always" : "--color=never", "--",
		"a", "b", NULL};
	int status;
	int r = proc_capture(argv, dir, GIT_MS, ret, &status, err);

	if (r == 0)
		r = buf_check(ret, "the patch", err);
	if (r < 0)
		return r;
	if (WIFEXITED(status) && WEXITSTATUS(status) <= GIT_DIFFERENT)
		return 0;
	return err_set(err, E_IO, "git diff failed on the files in %s", dir);
}

static int make_in(const struct patch_request *request, const char *dir, struct buf *ret,
	size_t *ret_skipped, struct err *err)
{
	AUTO_FREE char *dir_a = mem_printf("%s/a", dir);
	AUTO_FREE char *dir_b = mem_printf("%s/b", dir);
	int r = fs_mkdirs(dir_a, 0700, err);

	if (r == 0)
		r = fs_mkdirs(dir_b, 0700, err);
	if (r == 0)
		r = patch_put_files(request, dir_a, dir_b, ret_skipped, err);
	return r < 0 ? r : run_git(dir, request->color, ret, err);
}

int patch_make(
	const struct patch_request *request, struct buf *ret, size_t *ret_skipped, struct err *err)
{
	const char *temp = getenv("TMPDIR");
	AUTO_FREE char *dir = mem_printf("%s/dlrun-diff.XXXXXX", str_empty(temp) ? "/tmp" : temp);
	AUTO_FREE char *git = proc_find("git", NULL);
	int r;

	if (!git)
		return err_set(err, E_USAGE, "--patch requires git, which is not on PATH");
	if (!mkdtemp(dir))
		return fs_error(err, errno, "%s", dir);
	r = make_in(request, dir, ret, ret_skipped, err);
	fs_remove_tree(AT_FDCWD, dir, NULL);
	return r;
}
