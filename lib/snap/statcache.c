#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/entry.h"
#include "base/enc.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/mem.h"
#include "snap/statcache.h"

/* The number is written in the order of the machine, so another machine's file is not taken. */
#define MAGIC UINT64_C(0x0131746174536c64)

struct header {
	uint64_t magic, checksum, n, len;
};

_Static_assert(sizeof(struct header) == STATCACHE_HEADER_SIZE, "layout of the file");
_Static_assert(sizeof(struct statcache_entry) == 104, "layout of the file");

enum { ALIGN = 8, WRITE_SIZE = 128 * 1024 };

/* A record: the entry, its path, NUL, zeros up to a multiple of eight. */
static size_t record_size(size_t path_len)
{
	return (sizeof(struct statcache_entry) + path_len + 1 + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

/* Each step can be undone, so two texts that differ in one word never have the same sum. */
uint64_t statcache_checksum(uint64_t start, const void *data, size_t len)
{
	const uint8_t *p = data;
	uint64_t sum = start;

	for (const uint8_t *end = p + (len & ~(size_t)7); p < end; p += 8) {
		uint64_t word;
		memcpy(&word, p, sizeof(word));
		sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
		sum ^= sum >> 29;
	}
	return sum;
}

/* The count and the length are part of it. */
static uint64_t header_checksum(const struct header *header, uint64_t sum)
{
	uint64_t numbers[] = {header->n, header->len};

	return statcache_checksum(sum, numbers, sizeof(numbers));
}

char *statcache_path(const char *cache_dir, const char *root)
{
	enum { ID_SIZE = 8 };
	uint8_t sha256[SHA256_SIZE];
	char hex[2 * ID_SIZE + 1];

	digest_sha256(root, strlen(root), sha256);
	hex_encode(sha256, ID_SIZE, hex);
	return mem_printf("%s/%s/stat.v1", cache_dir, hex);
}

bool statcache_parse(struct statcache *cache, const void *data, size_t len)
{
	struct header header;

	*cache = (struct statcache){0};
	if (len < sizeof(header))
		return false;
	memcpy(&header, data, sizeof(header));
	data = (const uint8_t *)data + sizeof(header);
	len -= sizeof(header);
	if (header.magic != MAGIC || header.len != len || len % ALIGN != 0 ||
		header.n > STATCACHE_ENTRIES_MAX)
		return false;
	if (header.checksum != header_checksum(&header, statcache_checksum(0, data, len)))
		return false;
	cache->data = data;
	cache->len = len;
	cache->n = header.n;
	return true;
}

/* false: nothing to map, or not a file of ours. */
static bool map_file(struct statcache *cache, int fd)
{
	struct stat st;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size < STATCACHE_HEADER_SIZE)
		return false;
	void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED)
		return false;
	if (!statcache_parse(cache, map, (size_t)st.st_size)) {
		munmap(map, (size_t)st.st_size);
		return false;
	}
	cache->map = map;
	cache->map_len = (size_t)st.st_size;
	return true;
}

void statcache_open(struct statcache *cache, const char *path)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);

	*cache = (struct statcache){0};
	if (fd < 0 && errno == ENOENT)
		return;
	if (fd < 0 || !map_file(cache, fd))
		log_note("stat cache %s: not used, it is not as it should be", path);
}

void statcache_done(struct statcache *cache)
{
	if (!cache)
		return;
	if (cache->map)
		munmap(cache->map, cache->map_len);
	*cache = (struct statcache){0};
}

bool statcache_next(const struct statcache *cache, struct statcache_cursor *cursor)
{
	size_t left = cache->len - cursor->at;

	if (left < sizeof(cursor->entry))
		return false;
	const uint8_t *record = cache->data + cursor->at;
	memcpy(&cursor->entry, record, sizeof(cursor->entry));
	size_t path_len = cursor->entry.path_len, size = record_size(path_len);
	const char *path = (const char *)record + sizeof(cursor->entry);
	if (size > left || path_len == 0 || path[path_len] || memchr(path, '\0', path_len))
		return false;
	cursor->path = path;
	cursor->at += size;
	return true;
}

bool statcache_matches(
	const struct statcache_entry *entry, const struct statcache_stat *stat, bool network)
{
	return entry->mtime_ns == stat->mtime_ns && entry->ctime_ns == stat->ctime_ns &&
	       entry->size == stat->size && entry->mode == stat->mode &&
	       (network || (entry->ino == stat->ino && entry->dev == stat->dev));
}

/* A ctime that is no whole number of milliseconds was not made by a coarse clock. */
static int64_t window_ns(const struct statcache_stat *stat, bool network)
{
	enum { NS_PER_MS = 1000000 };

	if (network)
		return STATCACHE_WINDOW_NETWORK_NS;
	return stat->ctime_ns % NS_PER_MS ? STATCACHE_WINDOW_FINE_NS : STATCACHE_WINDOW_NS;
}

bool statcache_is_settled(const struct statcache_stat *stat, int64_t now_ns, bool network)
{
	int64_t newest = stat->mtime_ns > stat->ctime_ns ? stat->mtime_ns : stat->ctime_ns;

	return newest < now_ns - window_ns(stat, network);
}

/*
 * Writing
 */

struct statcache_writer {
	char *path, *temp;
	int lock_fd, fd;
	struct header header;
	uint64_t sum;
	uint8_t *buf;
	size_t used;
	struct err err;
};

static void writer_free(struct statcache_writer *writer)
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
static int open_files(struct statcache_writer *writer, struct err *err)
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

static void note_failure(const struct statcache_writer *writer)
{
	log_note("stat cache %s: not written: %s", writer->path, writer->err.message);
}

struct statcache_writer *statcache_write(const char *path)
{
	struct statcache_writer *writer = mem_alloc(1, sizeof(*writer));

	writer->path = mem_strdup(path);
	writer->temp = mem_printf("%s.tmp", path);
	writer->lock_fd = writer->fd = -1;
	if (open_files(writer, &writer->err) < 0) {
		note_failure(writer);
		writer_free(writer);
		return NULL;
	}
	writer->header.magic = MAGIC;
	writer->buf = mem_grow(NULL, WRITE_SIZE, 1);
	return writer;
}

static void flush(struct statcache_writer *writer)
{
	writer->sum = statcache_checksum(writer->sum, writer->buf, writer->used);
	writer->header.len += writer->used;
	if (!err_is_set(&writer->err))
		fs_write_fd(writer->fd, writer->temp, writer->buf, writer->used, &writer->err);
	writer->used = 0;
}

void statcache_add(
	struct statcache_writer *writer, const struct statcache_entry *entry, const char *path)
{
	size_t path_len = strlen(path), size = record_size(path_len);
	struct statcache_entry copy = *entry;

	if (path_len > ENTRY_PATH_MAX || writer->header.n >= STATCACHE_ENTRIES_MAX)
		return;
	if (writer->used + size > WRITE_SIZE)
		flush(writer);
	copy.path_len = (uint16_t)path_len;
	memset(copy.zero, 0, sizeof(copy.zero));
	uint8_t *at = writer->buf + writer->used;
	memcpy(at, &copy, sizeof(copy));
	memcpy(at + sizeof(copy), path, path_len);
	memset(at + sizeof(copy) + path_len, 0, size - sizeof(copy) - path_len);
	writer->used += size;
	writer->header.n++;
}

static int put_in_place(struct statcache_writer *writer, struct err *err)
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

void statcache_write_end(struct statcache_writer *writer)
{
	if (!writer)
		return;
	flush(writer);
	writer->header.checksum = header_checksum(&writer->header, writer->sum);
	if (!err_is_set(&writer->err))
		put_in_place(writer, &writer->err);
	if (err_is_set(&writer->err)) {
		unlink(writer->temp);
		note_failure(writer);
	}
	writer_free(writer);
}
