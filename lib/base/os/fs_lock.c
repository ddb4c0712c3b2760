/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/trace.h"

enum { FIRST_WAIT_MS = 5, LONGEST_WAIT_MS = 50 };

/* 0 when the lock is ours, EWOULDBLOCK if it is held elsewhere until the deadline, else an
 * errno. */
static int take_lock(int fd, int how, int64_t deadline_ms)
{
	if (deadline_ms != INT64_MAX)
		how |= LOCK_NB;
	for (int wait_ms = FIRST_WAIT_MS; flock(fd, how);) {
		if (errno == EINTR)
			continue;
		int64_t left_ms = deadline_ms - clock_ms();
		if (errno != EWOULDBLOCK || left_ms <= 0)
			return errno;
		poll(NULL, 0, left_ms < wait_ms ? (int)left_ms : wait_ms);
		wait_ms = 2 * wait_ms < LONGEST_WAIT_MS ? 2 * wait_ms : LONGEST_WAIT_MS;
	}
	return 0;
}

/* Whether path still names the file of fd, 0 or an errno. */
static int check_current(int fd, const char *path, bool *ret)
{
	struct stat ours, named;

	*ret = false;
	if (fstat(fd, &ours))
		return errno;
	if (stat(path, &named))
		return errno == ENOENT ? 0 : errno;
	*ret = ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
	return 0;
}

int fs_lock(const char *path, bool exclusive, int64_t timeout_ms, int *ret_fd, struct err *err)
{
	int64_t deadline_ms = clock_deadline(timeout_ms);
	int64_t start_ms = clock_ms();
	bool current;

	/* The previous holder may have removed the file: a lock on an unlinked file excludes
	 * nobody. */
	do {
		AUTO_FD int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (fd < 0)
			return fs_error(err, errno, "%s", path);
		int errnum = take_lock(fd, exclusive ? LOCK_EX : LOCK_SH, deadline_ms);
		if (errnum == EWOULDBLOCK) {
			trace_note(TRACE_STORE, "lock %s: another process holds it", path);
			return err_set(err, E_IO_LOCK, "another process holds %s", path);
		}
		if (errnum == 0)
			errnum = check_current(fd, path, &current);
		if (errnum)
			return fs_error(err, errnum, "locking %s", path);
		if (current)
			*ret_fd = TAKE_FD(fd);
	} while (!current);
	trace_note(TRACE_STORE, "lock %s: taken after %lld ms", path,
		(long long)(clock_ms() - start_ms));
	return 0;
}

/* Open for writing if permitted: NFS gives no exclusive lock otherwise. */
static int open_to_look(const char *path)
{
	const int flags = O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
	int fd = open(path, O_RDWR | flags);

	if (fd < 0 && errno != ENOENT && errno != ENOTDIR)
		fd = open(path, O_RDONLY | flags);
	return fd;
}

int fs_is_locked(const char *path)
{
	enum { TRIES = 3 };
	AUTO_FD int fd = open_to_look(path);

	if (fd < 0)
		return errno != ENOENT && errno != ENOTDIR;
	if (flock(fd, LOCK_SH | LOCK_NB))
		return 1;
	/* Other processes may hold shared locks. If they only check, as we do, that is over in a
	 * moment. */
	for (int i = 0; i < TRIES; i++) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			return 0;
		flock(fd, LOCK_UN);
		poll(NULL, 0, 1 + i);
	}
	return 1;
}
