/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ownership that can be seen: AUTO_X on a declaration frees it when the scope ends, TAKE() hands
 * it over and leaves NULL (or -1) behind.
 *
 *	AUTO_FREE char *path = mem_printf("%s/%s", dir, name);
 *	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
 *	…
 *	*ret_path = TAKE(path);
 *	return 0;
 */
#ifndef DLRUN_BASE_UTIL_AUTO_H
#define DLRUN_BASE_UTIL_AUTO_H

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define AUTO(fn) __attribute__((cleanup(fn)))

/* Defines fn_auto(type *p), which calls fn(*p): the cleanup of a variable of a pointer type. */
#define AUTO_POINTER(type, fn)                                                                     \
	static inline void fn##_auto(type **p)                                                     \
	{                                                                                          \
		fn(*p);                                                                            \
	}

static inline void auto_free(void *p)
{
	free(*(void **)p);
}

static inline void auto_fd(int *fd)
{
	if (*fd >= 0) {
		int saved = errno;
		close(*fd);
		errno = saved;
	}
}

static inline void auto_dir(DIR **dir)
{
	if (*dir)
		closedir(*dir);
}

#define AUTO_FREE AUTO(auto_free)
#define AUTO_FD   AUTO(auto_fd)
#define AUTO_DIR  AUTO(auto_dir)
#define AUTO_ERR  AUTO(err_done)

/* Free what p owns; value is p's now. */
#define REPLACE(p, value)                                                                          \
	do {                                                                                       \
		__typeof__(p) value_ = (value);                                                    \
		free(p);                                                                           \
		(p) = value_;                                                                      \
	} while (0)

#define TAKE(p)                                                                                    \
	__extension__({                                                                            \
		__typeof__(p) taken_ = (p);                                                        \
		(p) = NULL;                                                                        \
		taken_;                                                                            \
	})

static inline int take_fd(int *fd)
{
	int taken = *fd;
	*fd = -1;
	return taken;
}
#define TAKE_FD(fd) take_fd(&(fd))

#endif
