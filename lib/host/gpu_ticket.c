/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/gpu_dir.h"

#define PREFIX "ticket."

enum { DIGITS = 12, NAME_SIZE = 32, TAKEN_MAX = 1000 };
static const uint64_t number_max = 999999999999;
/* Tickets numbered from here on were written by hand. They have no place in the queue, lest the
 * numbers be used up. */
static const uint64_t number_odd = 900000000000;

static void name_of(uint64_t number, char out[static NAME_SIZE])
{
	snprintf(out, NAME_SIZE, PREFIX "%0*llu", DIGITS, (unsigned long long)number);
}

/* 0: not the name of a ticket. */
static uint64_t number_of(const char *name)
{
	uint64_t number = 0;

	if (!str_starts(name, PREFIX))
		return 0;
	name += strlen(PREFIX);
	if (strlen(name) != DIGITS)
		return 0;
	for (; *name; name++) {
		if (!str_is_digit(*name))
			return 0;
		number = number * 10 + (uint64_t)(*name - '0');
	}
	return number;
}

/* A descriptor of a living ticket, else -1. The lock is shared, so that two concurrent checks do
 * not take each other for the owner. */
static int open_living(const struct gpu_dir *dir, const char *name)
{
	AUTO_FD int fd =
		openat(dir->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat st;

	/* A file that cannot be opened was made with other permissions than ours: it is no
	 * ticket. */
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return -1;
	if (flock(fd, LOCK_SH | LOCK_NB) < 0)
		return TAKE_FD(fd);
	/* Another user's dead ticket stays in a sticky directory, and is ignored. */
	unlinkat(dir->fd, name, 0);
	return -1;
}

static void visit(
	const struct gpu_dir *dir, const char *name, uint64_t number, gpu_ticket_fn *fn, void *ctx)
{
	AUTO_FD int fd = open_living(dir, name);
	AUTO_BUF struct buf text = {0};

	if (fd < 0)
		return;
	bool is_read = fs_read_fd(fd, name, GPU_TICKET_TEXT_MAX, &text, NULL) == 0;
	fn(ctx, number, is_read && strlen(text.data) == text.len ? text.data : NULL);
}

static DIR *open_stream(const struct gpu_dir *dir, struct err *err)
{
	AUTO_FD int fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);

	if (!stream)
		gpu_dir_error(dir, ".", errno, err);
	else
		TAKE_FD(fd);
	return stream;
}

static int fail_many(const struct gpu_dir *dir, struct err *err)
{
	return err_set(
		err, E_GPU_LOCK, "%s has more than %d files", dir->path, GPU_DIR_ENTRIES_MAX);
}

int gpu_ticket_each(
	const struct gpu_dir *dir, uint64_t below, gpu_ticket_fn *fn, void *ctx, struct err *err)
{
	AUTO_DIR DIR *stream = open_stream(dir, err);
	struct dirent *entry;

	if (!stream)
		return -ERR_IO;
	for (int n = 0; (entry = readdir(stream)); n++) {
		uint64_t number = number_of(entry->d_name);

		if (n == GPU_DIR_ENTRIES_MAX)
			return fail_many(dir, err);
		if (number && number < below)
			visit(dir, entry->d_name, number, fn, ctx);
	}
	return 0;
}

static void sweep(const struct gpu_dir *dir, const char *name)
{
	if (str_starts(name, "new.") || str_starts(name, "wake."))
		unlinkat(dir->fd, name, 0);
}

/* Find the highest number in the queue, living or not, and sweep what killed processes have
 * left. */
static int find_highest(const struct gpu_dir *dir, uint64_t *ret, struct err *err)
{
	AUTO_DIR DIR *stream = open_stream(dir, err);
	struct dirent *entry;

	*ret = 0;
	if (!stream)
		return -ERR_IO;
	for (int n = 0; (entry = readdir(stream)); n++) {
		if (n == GPU_DIR_ENTRIES_MAX)
			return fail_many(dir, err);
		uint64_t number = number_of(entry->d_name);

		sweep(dir, entry->d_name);
		if (number < number_odd && number > *ret)
			*ret = number;
	}
	return 0;
}

int gpu_ticket_new(const struct gpu_dir *dir, const struct buf *text, uint64_t *ret_number,
	int *ret_fd, struct err *err)
{
	uint64_t number;
	char name[NAME_SIZE] = GPU_DIR_QUEUE;
	int fd = -1;
	int r = find_highest(dir, &number, err);

	if (r < 0)
		return r;
	for (int i = 0; i < TAKEN_MAX && number < number_max; i++) {
		name_of(++number, name);
		r = gpu_dir_make(dir, name, text->data, text->len, &fd);
		if (r != -EEXIST)
			break;
	}
	if (fd < 0)
		return gpu_dir_error(dir, name, r < 0 ? -r : ERANGE, err);
	*ret_number = number;
	*ret_fd = fd;
	return 0;
}

bool gpu_ticket_lives(const struct gpu_dir *dir, uint64_t number)
{
	char name[NAME_SIZE];

	name_of(number, name);
	AUTO_FD int fd = open_living(dir, name);
	return fd >= 0;
}

char *gpu_ticket_path(const struct gpu_dir *dir, uint64_t number)
{
	char name[NAME_SIZE];

	name_of(number, name);
	return fs_join(dir->path, name);
}

void gpu_ticket_remove(const struct gpu_dir *dir, uint64_t number)
{
	char name[NAME_SIZE], wake[NAME_SIZE];

	name_of(number, name);
	snprintf(wake, sizeof(wake), "wake.%llu", (unsigned long long)number);
	/* A rename makes a new name, too, without a new file. */
	bool is_moved = renameat(dir->fd, name, dir->fd, wake) == 0;
	unlinkat(dir->fd, is_moved ? wake : name, 0);
}
