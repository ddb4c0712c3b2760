/* SPDX-License-Identifier: Apache-2.0 */
/*
 * To be preloaded: device and inode numbers that are the same within a process and others in the
 * next one, as file systems have them that make the numbers up (NFS, FUSE, 9p, drvfs).
 */
#undef _FILE_OFFSET_BITS /* both names of each call are to be replaced */
#include <dlfcn.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#pragma GCC visibility push(default) /* the project hides all symbols */

static uint64_t other(uint64_t number)
{
	return number ^ ((uint64_t)getpid() * UINT64_C(0x9e3779b97f4a7c15) >> 8);
}

#define REPLACE(name, params, args)                                                                \
	int name params                                                                            \
	{                                                                                          \
		int(*real) params = (int(*) params)dlsym(RTLD_NEXT, #name);                        \
		int r = real args;                                                                 \
		if (r == 0) {                                                                      \
			st->st_ino = other(st->st_ino);                                            \
			st->st_dev ^= (dev_t)(getpid() & 0xff) << 8;                               \
		}                                                                                  \
		return r;                                                                          \
	}

#define REPLACE_ALL(suffix)                                                                        \
	REPLACE(stat##suffix, (const char *path, struct stat##suffix *st), (path, st))             \
	REPLACE(lstat##suffix, (const char *path, struct stat##suffix *st), (path, st))            \
	REPLACE(fstat##suffix, (int fd, struct stat##suffix *st), (fd, st))                        \
	REPLACE(fstatat##suffix, (int fd, const char *path, struct stat##suffix *st, int flags),   \
		(fd, path, st, flags))

REPLACE_ALL()
REPLACE_ALL(64)

int statx(int fd, const char *path, int flags, unsigned mask, struct statx *st)
{
	int (*real)(int, const char *, int, unsigned, struct statx *) = (int (*)(
		int, const char *, int, unsigned, struct statx *))dlsym(RTLD_NEXT, "statx");
	int r = real(fd, path, flags, mask, st);

	if (r == 0) {
		st->stx_ino = other(st->stx_ino);
		st->stx_dev_minor ^= (uint32_t)(getpid() & 0xff);
	}
	return r;
}
