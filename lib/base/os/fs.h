/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files and directories: whole files, atomic replacement, locks, trees. Every descriptor is
 * close-on-exec. Errors name the path; ENOSPC and EDQUOT become E_IO_FULL, EACCES and EPERM
 * E_IO_PERMISSION, the rest E_IO.
 */
#ifndef DLRUN_BASE_OS_FS_H
#define DLRUN_BASE_OS_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/util/buf.h"
#include "base/util/err.h"

/* err_set_errno with the id that fits errnum (see above). */
int fs_error(struct err *err, int errnum, const char *fmt, ...) ERR_PRINTF(3, 4);

/* The absolute path of name relative to dir; name itself if it is absolute. */
char *fs_join(const char *dir, const char *name);
/* The same without "." and "..", and without a slash in front or at the end; NULL: it leads out
 * above the first component. Text alone: links are not followed. The caller frees. */
char *fs_join_normal(const char *dir, const char *name);
/* The part of path behind its last slash. */
const char *fs_basename(const char *path);
/* The part of path before its last slash: "/" for the root, "." where there is no slash. */
char *fs_dirname(const char *path);
/* The part of path below dir: "" for dir itself; NULL: path lies elsewhere. */
const char *fs_below(const char *path, const char *dir);
/* Resolve symbolic links, "." and ".."; the path must exist. */
int fs_realpath(const char *path, char **ret, struct err *err);

/* Read a whole file of at most max bytes (E_DATA_LIMIT otherwise). *ret, zero or any buffer,
 * becomes a buffer with limit max. A missing file is E_IO with *ret_missing = true (which may be
 * NULL). For a pipe or device the call blocks until its end. */
int fs_read(const char *path, size_t max, struct buf *ret, bool *ret_missing, struct err *err);
/* Like fs_read, but only for a regular file, E_IO for all else: for files that another user may
 * have put there. *ret_st (may be NULL) is that of the file that was read. */
int fs_read_regular(const char *path, size_t max, struct buf *ret, struct stat *ret_st,
	bool *ret_missing, struct err *err);
int fs_read_fd(int fd, const char *name, size_t max, struct buf *ret, struct err *err);
/* os_pipe; E_IO. */
int fs_pipe(int fds[static 2], int flags, struct err *err);
/* Write all of data, through EINTR and short writes. */
int fs_write_fd(int fd, const char *name, const void *data, size_t len, struct err *err);

/* Names of unfinished files and directories: the prefix and 16 random hex digits. Leftovers of a
 * crash may be removed by a caller that knows that nobody writes there. */
#define FS_TEMP_PREFIX ".dlrun-"
enum { FS_TEMP_NAME_SIZE = 32 };
void fs_temp_name(char out[static FS_TEMP_NAME_SIZE]);

enum fs_sync {
	FS_SYNC_NONE, /* readers see the old or the new file; a power cut may lose either */
	FS_SYNC_FILE, /* the content is on disk before the name shows it */
	FS_SYNC_FULL, /* the name too, when the call returns */
};
/* Replace path by a new file: temporary name beside it, then rename. */
int fs_replace(const char *path, const void *data, size_t len, mode_t mode, enum fs_sync sync,
	struct err *err);
/* Flush a file or directory to disk; name is for errors. */
int fs_sync_fd(int fd, const char *name, struct err *err);
int fs_sync_dir(const char *path, struct err *err);

/* Whether a file of user uid is ours: of the user that we run as, or of root, who can write all
 * files; also: one more user, (uid_t)-1 for none. */
bool fs_is_ours(uid_t uid, uid_t also);

/* Make path and its missing parents. */
int fs_mkdirs(const char *path, mode_t mode, struct err *err);
/* Make path and its missing parents: a directory of ours that nobody else can write to
 * (E_IO_PERMISSION otherwise). */
int fs_private_dir(const char *path, struct err *err);

/* Map the first size bytes of a file (at least 1) read-only, all loaded at once; or NULL. Reading a
 * file that was cut short later kills the program: only for files that are replaced by rename
 * alone, on file systems of this machine. Release with munmap. */
void *fs_map(int fd, size_t size);

/* Open a relative path below dirfd without following any symbolic link and without leaving it.
 * flags as open(2), O_CLOEXEC is added. Returns the descriptor or -errno; no struct err, because
 * the callers decide what a failure means. */
int fs_open_beneath(int dirfd, const char *path, int flags, mode_t mode);
/* The umask of this process; no other thread may make files meanwhile. */
mode_t fs_umask(void);

/* Remove name below dirfd and everything in it, not following links. A missing name is success.
 * Directories without permission bits are opened up first. */
int fs_remove_tree(int dirfd, const char *name, struct err *err);

/* Take an advisory lock on a file (made if missing, 0600), held by the returned descriptor and
 * freed by the kernel when its last copy is closed. timeout_ms: 0 tries once, -1 waits for ever.
 * E_IO_LOCK when another process holds it. */
int fs_lock(const char *path, bool exclusive, int64_t timeout_ms, int *ret_fd, struct err *err);
/* Whether any process holds a lock on the file: 1 or 0; a missing file is 0, one that cannot be
 * opened is 1. The check itself holds the lock for an instant: callers that need the lock give
 * fs_lock a little time instead of 0. */
int fs_is_locked(const char *path);

/* Bytes that we may still write to the file system of path. */
int fs_free_bytes(const char *path, uint64_t *ret, struct err *err);
/* Whether path lies on a network file system, where known. */
bool fs_is_network(const char *path);

#endif
