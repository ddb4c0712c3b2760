/* SPDX-License-Identifier: Apache-2.0 */
#include "app/transfer/fetch_grow.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { CHUNK = 256 << 10, HOLE_MIN = 4096 };

static int open_here(int dir_fd, const char *name)
{
	return openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

static bool is_appended_to(const char *name)
{
	static const char *const ends[] = {".log", "log.txt", ".out", ".err", ".jsonl", ".ndjson"};

	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		if (str_ends(name, ends[i]))
			return true;
	return str_eq(name, "log") || strstr(name, "tfevents");
}

/* Behind the last byte that is not zero, of the first `size`. */
static uint64_t end_of_content(int fd, uint64_t size)
{
	AUTO_FREE char *data = mem_alloc(CHUNK, 1);

	while (size > 0) {
		size_t n = size < CHUNK ? (size_t)size : CHUNK;
		if (pread(fd, data, n, (off_t)(size - n)) != (ssize_t)n)
			return 0;
		for (; n > 0 && !data[n - 1]; n--)
			size--;
		if (n > 0)
			break;
	}
	return size;
}

uint64_t fetch_grow_offset(int dir_fd, const char *name)
{
	AUTO_FD int fd = is_appended_to(name) ? open_here(dir_fd, name) : -1;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return 0;
	uint64_t end = end_of_content(fd, (uint64_t)st.st_size);
	return end > FETCH_GROW_OVERLAP ? end - FETCH_GROW_OVERLAP : 0;
}

int fetch_grow_write(int fd, const char *what, const char *data, size_t len, struct err *err)
{
	if (len < HOLE_MIN || data[0] || memcmp(data, data + 1, len - 1) != 0)
		return fs_write_fd(fd, what, data, len, err);
	off_t end = lseek(fd, (off_t)len, SEEK_CUR);
	if (end < 0 || ftruncate(fd, end) < 0)
		return fs_error(err, errno, "%s", what);
	return 0;
}

int fetch_grow_begin(struct fetch_grow *grow, int dir_fd, const char *name, uint64_t offset,
	int temp_fd, const char *what, struct err *err)
{
	AUTO_FREE char *data = mem_alloc(CHUNK, 1);
	struct stat st;
	int r = 0;

	fetch_grow_end(grow);
	grow->fd = open_here(dir_fd, name);
	if (grow->fd < 0 || fstat(grow->fd, &st) < 0)
		st.st_size = 0;
	grow->at = offset;
	grow->end = (uint64_t)st.st_size;
	grow->differs = grow->end < offset;
	for (uint64_t at = 0; r == 0 && at < offset && !grow->differs;) {
		uint64_t left = offset - at;
		ssize_t n = pread(grow->fd, data, left < CHUNK ? left : CHUNK, (off_t)at);
		grow->differs = n <= 0;
		r = n > 0 ? fetch_grow_write(temp_fd, what, data, (size_t)n, err) : 0;
		at += n > 0 ? (uint64_t)n : 0;
	}
	return r;
}

bool fetch_grow_check(struct fetch_grow *grow, const void *data, size_t len)
{
	uint64_t left = grow->end - grow->at;
	size_t n = len < left ? len : left;
	AUTO_FREE char *here = n && !grow->differs ? mem_alloc(n, 1) : NULL;

	if (here && (pread(grow->fd, here, n, (off_t)grow->at) != (ssize_t)n ||
			    memcmp(here, data, n) != 0))
		grow->differs = true;
	grow->at += n;
	return !grow->differs;
}

void fetch_grow_end(struct fetch_grow *grow)
{
	auto_fd(&grow->fd);
	*grow = (struct fetch_grow){.fd = -1};
}
