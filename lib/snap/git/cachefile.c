/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "snap/git/cachefile.h"

struct header {
	uint64_t magic, checksum, n, len;
};

_Static_assert(sizeof(struct header) == CACHEFILE_HEADER_SIZE, "layout of the file");

enum { WRITE_SIZE = 128 * 1024, LANES = 4 };

static uint64_t mix(uint64_t sum, uint64_t word)
{
	sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
	return sum ^ sum >> 29;
}

static uint64_t cachefile_load(const uint8_t *p)
{
	uint64_t word;

	memcpy(&word, p, sizeof(word));
	return word;
}

/* Each step is invertible, so two texts that differ in one word never have the same sum. A product
 * waits for the one before it, so four run in parallel. */
static uint64_t block_checksum(uint64_t start, const uint8_t *p, size_t len)
{
	uint64_t lanes[LANES] = {start, 1, 2, 3}, sum = 0;
	const uint8_t *end = p + len, *last = p + len / (8 * LANES) * (8 * LANES);

	for (; p < last; p += 8 * LANES)
		for (size_t i = 0; i < LANES; i++)
			lanes[i] = mix(lanes[i], cachefile_load(p + 8 * i));
	for (size_t i = 0; i < LANES; i++)
		sum = mix(sum, lanes[i]);
	for (; p < end; p += 8)
		sum = mix(sum, cachefile_load(p));
	return sum;
}

/* Split the data like the writer's buffer. */
uint64_t cachefile_checksum(uint64_t start, const void *data, size_t len)
{
	const uint8_t *p = data;
	uint64_t sum = start;

	for (size_t at = 0, n; at < len; at += n) {
		n = len - at < WRITE_SIZE ? len - at : WRITE_SIZE;
		sum = block_checksum(sum, p + at, n & ~(size_t)7);
	}
	return sum;
}

/* The count and the length are included. */
static uint64_t header_checksum(const struct header *header, uint64_t sum)
{
	uint64_t numbers[] = {header->n, header->len};

	return cachefile_checksum(sum, numbers, sizeof(numbers));
}

bool cachefile_parse(struct cachefile *file, uint64_t magic, const void *data, size_t len)
{
	struct header header;

	*file = (struct cachefile){0};
	if (len < sizeof(header))
		return false;
	memcpy(&header, data, sizeof(header));
	data = (const uint8_t *)data + sizeof(header);
	len -= sizeof(header);
	if (header.magic != magic || header.len != len || len % CACHEFILE_ALIGN != 0 ||
		header.n > CACHEFILE_RECORDS_MAX)
		return false;
	if (header.checksum != header_checksum(&header, cachefile_checksum(0, data, len)))
		return false;
	file->data = data;
	file->len = len;
	file->n = header.n;
	return true;
}

/* false: nothing to map, or not a file of ours. */
static bool cachefile_map_file(struct cachefile *file, uint64_t magic, int fd)
{
	struct stat st;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size < CACHEFILE_HEADER_SIZE)
		return false;
	void *map = fs_map(fd, (size_t)st.st_size);
	if (!map)
		return false;
	if (!cachefile_parse(file, magic, map, (size_t)st.st_size)) {
		munmap(map, (size_t)st.st_size);
		return false;
	}
	file->map = map;
	file->map_len = (size_t)st.st_size;
	return true;
}

void cachefile_open(struct cachefile *file, uint64_t magic, const char *path)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);

	*file = (struct cachefile){0};
	if (fd < 0 && errno == ENOENT)
		return;
	if (fd < 0 || !cachefile_map_file(file, magic, fd))
		log_note("cache %s: not used, it is not as it should be", path);
}

void cachefile_done(struct cachefile *file)
{
	if (!file)
		return;
	if (file->map)
		munmap(file->map, file->map_len);
	*file = (struct cachefile){0};
}

/*
 * Writing
 */

struct cachefile_writer {
	char *path, *temp;
	int lock_fd, fd;
	struct header header;
	uint64_t sum;
	uint8_t *buf;
	size_t used;
	struct err err;
};

static void writer_free(struct cachefile_writer *writer)
{
	if (writer->fd >= 0)
		close(writer->fd);
	if (writer->lock_fd >= 0)
		close(writer->lock_fd);
	free(writer->path);
	free(writer->temp);
	free(writer->buf);
	err_done(&writer->err);
	free(writer);
}

/* The one temporary name is safe under the lock, and what a killed process left is overwritten. */
static int open_files(struct cachefile_writer *writer, struct err *err)
{
	AUTO_FREE char *dir =
		mem_strndup(writer->path, (size_t)(strrchr(writer->path, '/') - writer->path));
	AUTO_FREE char *lock = fs_join(dir, "stat.lock");

	int rc = fs_mkdirs(dir, 0700, err);
	if (rc == 0)
		rc = fs_lock(lock, true, 0, &writer->lock_fd, err);
	if (rc < 0)
		return rc;
	writer->fd =
		open(writer->temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (writer->fd < 0)
		return fs_error(err, errno, "%s", writer->temp);
	if (lseek(writer->fd, sizeof(writer->header), SEEK_SET) < 0)
		return fs_error(err, errno, "%s", writer->temp);
	return 0;
}

static void cachefile_note_failure(const struct cachefile_writer *writer)
{
	log_note("cache %s: not written: %s", writer->path, writer->err.message);
}

struct cachefile_writer *cachefile_write(const char *path, uint64_t magic)
{
	struct cachefile_writer *writer = mem_alloc(1, sizeof(*writer));

	writer->path = mem_strdup(path);
	writer->temp = mem_printf("%s.tmp", path);
	writer->lock_fd = writer->fd = -1;
	if (open_files(writer, &writer->err) < 0) {
		cachefile_note_failure(writer);
		writer_free(writer);
		return NULL;
	}
	writer->header.magic = magic;
	writer->buf = mem_grow(NULL, WRITE_SIZE, 1);
	return writer;
}

static void cachefile_flush(struct cachefile_writer *writer)
{
	writer->sum = cachefile_checksum(writer->sum, writer->buf, writer->used);
	writer->header.len += writer->used;
	if (!err_is_set(&writer->err))
		fs_write_fd(writer->fd, writer->temp, writer->buf, writer->used, &writer->err);
	writer->used = 0;
}

static void add_bytes(struct cachefile_writer *writer, const void *data, size_t len)
{
	for (const uint8_t *at = data; len;) {
		if (writer->used == WRITE_SIZE)
			cachefile_flush(writer);
		size_t space = WRITE_SIZE - writer->used, n = len < space ? len : space;
		memcpy(writer->buf + writer->used, at, n);
		writer->used += n;
		at += n;
		len -= n;
	}
}

void cachefile_add(struct cachefile_writer *writer, const void *head, size_t size, const void *tail,
	size_t len)
{
	static const uint8_t zeros[CACHEFILE_ALIGN];

	if (writer->header.n >= CACHEFILE_RECORDS_MAX)
		return;
	add_bytes(writer, head, size);
	add_bytes(writer, tail, len);
	add_bytes(writer, zeros, -len % CACHEFILE_ALIGN);
	writer->header.n++;
}

static int cachefile_put_in_place(struct cachefile_writer *writer, struct err *err)
{
	const struct header *header = &writer->header;
	ssize_t n = pwrite(writer->fd, header, sizeof(*header), 0);
	int closed = close(writer->fd);

	writer->fd = -1;
	if (n != sizeof(*header) || closed)
		return fs_error(err, n < 0 || closed ? errno : ENOSPC, "%s", writer->temp);
	if (rename(writer->temp, writer->path))
		return fs_error(err, errno, "%s", writer->path);
	return 0;
}

void cachefile_write_end(struct cachefile_writer *writer)
{
	if (!writer)
		return;
	cachefile_flush(writer);
	writer->header.checksum = header_checksum(&writer->header, writer->sum);
	if (!err_is_set(&writer->err))
		cachefile_put_in_place(writer, &writer->err);
	if (err_is_set(&writer->err)) {
		unlink(writer->temp);
		cachefile_note_failure(writer);
	}
	writer_free(writer);
}
