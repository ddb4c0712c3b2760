/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "host/gpu_impl.h"

/*
 * The directory of the queue for GPUs: locks, tickets, and a way to wake waiting processes. All
 * users of the machine share it; gpu.h says what that means.
 *
 *	queue                locked for the moments of a check of tickets and GPUs
 *	gpu.ID               locked as long as a run holds the GPU
 *	ticket.NNNNNNNNNNNN  locked as long as its owner lives and waits; the lowest is next
 *	                     (numbers that 9e11 submits would not reach are no place in the queue)
 *	new.*, wake.*        gone in a moment; what a killed process leaves is swept
 *
 * A file gets its name when it is complete, so a process may die at any instant, and no link is
 * followed. The holder of a GPU is not decided here: see the guard below. Files are only written by
 * their makers, but for the line that the holder of a GPU leaves in its lock: RUN UID PID START
 * TIME, with field 22 of proc(5)'s stat of the process that took it. This line is input from other
 * users: bounded, checked, and used for a sentence only.
 */

#define GPU_DIR_QUEUE "queue"

enum { GPU_DIR_ENTRIES_MAX = 100000 };

struct gpu_dir {
	char *path;
	int fd;
};

#define NAME "dlrun-gpus"

enum {
	OPEN_MODE = 01777,
	OPEN_WAIT_MS = 1000, /* until another user's new directory is open to all */
	MAKE_TRIES = 16,
	FIRST_PAUSE_US = 100,
	LONGEST_PAUSE_US = 2000,
	/* The sticky bit of a file only keeps systemd-tmpfiles(8) from ageing it out. */
	FILE_MODE = 01666,
	FILE_MODE_PLAIN = 0666,
};

static void pause_us(long us)
{
	nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

/*
 * The directory
 */

/* path, or the machine's for NULL: a directory of a place that depends on the machine, never on the
 * caller, because all must choose the same. /dev/shm comes last: logind removes the files of a user
 * from it when he logs out (logind.conf(5), RemoveIPC), those of a run that goes on included. The
 * caller frees. */
static char *gpu_dir_place(const char *path)
{
	static const char *const places[] = {"/tmp", "/run/lock", "/dev/shm"};
	struct stat st;

	if (path)
		return mem_strdup(path);
	for (size_t i = 0; i < ARRAY_LEN(places); i++)
		if (stat(places[i], &st) == 0 && S_ISDIR(st.st_mode) &&
			(st.st_mode & OPEN_MODE) == OPEN_MODE && !fs_is_network(places[i]))
			return fs_join(places[i], NAME);
	return fs_join(places[0], NAME);
}

/* -EAGAIN: another user has made the directory and not opened it to all yet. */
static int try_open_dir(const char *path, int *ret_fd)
{
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return errno == EACCES ? -EAGAIN : -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	if ((st.st_mode & OPEN_MODE) != OPEN_MODE) {
		if (st.st_uid != geteuid())
			return -EAGAIN;
		if (fchmod(fd, OPEN_MODE) < 0)
			return -errno;
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static int gpu_dir_open(const char *path, struct gpu_dir *ret, struct err *err)
{
	AUTO_FREE char *dir = gpu_dir_place(path);
	int64_t deadline_ms = clock_deadline(OPEN_WAIT_MS);
	int fd = -1, r;

	while ((r = try_open_dir(dir, &fd)) == -EAGAIN && clock_ms() < deadline_ms)
		pause_us(LONGEST_PAUSE_US);
	if (r == -EAGAIN) {
		r = err_set(err, E_GPU_LOCK, "the directory %s is not open to all users", dir);
		err_hint(err, "sudo chmod 1777 %s", dir);
		return r;
	}
	if (r < 0)
		return err_set_errno(err, E_GPU_LOCK, -r, "cannot use the directory %s", dir);
	*ret = (struct gpu_dir){.path = TAKE(dir), .fd = fd};
	return 0;
}

static void gpu_dir_done(struct gpu_dir *dir)
{
	free(dir->path);
	if (dir->fd >= 0)
		close(dir->fd);
	*dir = (struct gpu_dir){.fd = -1};
}

static int gpu_dir_error(const struct gpu_dir *dir, const char *name, int errnum, struct err *err)
{
	return err_set_errno(err, E_GPU_LOCK, errnum, "cannot use %s/%s", dir->path, name);
}

/*
 * Files
 */

static void random_name(const char *prefix, char out[static 32])
{
	uint64_t number;

	random_bytes(&number, sizeof(number));
	snprintf(out, 32, "%s.%016llx", prefix, (unsigned long long)number);
}

static int gpu_claim_fill(int fd, const void *text, size_t len)
{
	AUTO_ERR struct err err = {0};

	if (fchmod(fd, FILE_MODE) < 0 && fchmod(fd, FILE_MODE_PLAIN) < 0)
		return -errno;
	errno = 0;
	if (len && fs_write_fd(fd, "ticket", text, len, &err) < 0)
		return errno ? -errno : -EIO;
	return flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
}

/* Make a locked file that is complete when it gets its name. 0 or -errno, -EEXIST when the name
 * is taken. */
static int gpu_dir_make(
	const struct gpu_dir *dir, const char *name, const void *text, size_t len, int *ret_fd)
{
	char temporary[32];

	random_name("new", temporary);
	AUTO_FD int fd = openat(
		dir->fd, temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	int r = gpu_claim_fill(fd, text, len);
	if (r == 0 && linkat(dir->fd, temporary, dir->fd, name, 0) < 0)
		r = -errno;
	unlinkat(dir->fd, temporary, 0);
	if (r == 0)
		*ret_fd = TAKE_FD(fd);
	return r;
}

/* Open a file, made if missing: 0 or -errno. Retry when a sweeper removes the temporary name, or
 * another process makes the file first. fs.protected_regular refuses O_CREAT on a file that may be
 * another user's. */
static int gpu_claim_open_file(const struct gpu_dir *dir, const char *name, int *ret_fd)
{
	const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

	for (int i = 0; i < MAKE_TRIES; i++) {
		AUTO_FD int fd = openat(dir->fd, name, flags);
		AUTO_FD int made = -1;
		struct stat st;

		if (fd >= 0) {
			if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
				return -ENOTSUP;
			*ret_fd = TAKE_FD(fd);
			return 0;
		}
		if (errno != ENOENT)
			return -errno;
		int r = gpu_dir_make(dir, name, NULL, 0, &made);
		if (r < 0 && r != -EEXIST && r != -ENOENT)
			return r;
	}
	return -ENOENT;
}

/* 1, 0 or -errno. */
static int gpu_claim_take(int fd, int64_t deadline_ms)
{
	for (long us = FIRST_PAUSE_US; flock(fd, LOCK_EX | LOCK_NB) < 0;) {
		if (errno == EINTR)
			continue;
		if (errno != EWOULDBLOCK)
			return -errno;
		if (clock_ms() >= deadline_ms)
			return 0;
		pause_us(us);
		us = us < LONGEST_PAUSE_US ? 2 * us : us;
	}
	return 1;
}

static bool gpu_claim_is_current(const struct gpu_dir *dir, const char *name, int fd)
{
	struct stat ours, named;

	return fstat(fd, &ours) == 0 && fstatat(dir->fd, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
	       ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

/* Lock the file name, which is made if missing. 1 when the lock is ours, 0 when another process
 * holds it for timeout_ms; E_GPU_LOCK. */
static int gpu_dir_lock(const struct gpu_dir *dir, const char *name, int64_t timeout_ms,
	int *ret_fd, struct err *err)
{
	int64_t deadline_ms = clock_deadline(timeout_ms);

	/* The file may have been removed meanwhile: a lock on an unlinked file excludes nobody. */
	for (int i = 0; i < MAKE_TRIES; i++) {
		AUTO_FD int fd = -1;
		int r = gpu_claim_open_file(dir, name, &fd);

		if (r == 0)
			r = gpu_claim_take(fd, deadline_ms);
		if (r < 0)
			return gpu_dir_error(dir, name, -r, err);
		if (r == 0)
			return 0;
		if (!gpu_claim_is_current(dir, name, fd))
			continue;
		*ret_fd = TAKE_FD(fd);
		return 1;
	}
	return gpu_dir_error(dir, name, ESTALE, err);
}

/* Wake waiting processes by a new name, which is removed at once. */
static void gpu_dir_wake(const struct gpu_dir *dir)
{
	char name[32];

	random_name("wake", name);
	int fd = openat(dir->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	close(fd);
	unlinkat(dir->fd, name, 0);
}

enum { LINE_MAX_BYTES = 200, RUN_TEXT = 48, TIME_TEXT = 20 };

struct holder {
	char run[RUN_TEXT];
	unsigned long uid;
	int pid;
	unsigned long long start;
	char since[TIME_TEXT + 1];
};

static int open_regular(const struct gpu_dir *dir, const char *name, int access, struct stat *ret)
{
	AUTO_FD int fd =
		openat(dir->fd, name, access | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, ret) < 0 || !S_ISREG(ret->st_mode))
		return -1;
	return TAKE_FD(fd);
}

/* Write the holder into a lock that is ours. Best effort: nothing depends on it. */
static void gpu_dir_sign(
	const struct gpu_dir *dir, const char *name, int lock_fd, const char *owner)
{
	char line[LINE_MAX_BYTES], now[CLOCK_TEXT_SIZE];
	struct stat st, ours;
	AUTO_FD int fd = open_regular(dir, name, O_WRONLY, &st);

	/* A lock file that has lost its name is not read by others. */
	if (fd < 0 || fstat(lock_fd, &ours) < 0 || st.st_ino != ours.st_ino ||
		st.st_dev != ours.st_dev)
		return;
	clock_format(clock_wall_ms(), now);
	int n = snprintf(line, sizeof(line), "%.100s %lu %d %llu %.19sZ\n", owner,
		(unsigned long)geteuid(), (int)getpid(),
		(unsigned long long)os_process_start(getpid()), now);
	if (ftruncate(fd, 0) == 0 && write(fd, line, (size_t)n) != n)
		(void)!ftruncate(fd, 0);
}

/* Whether the run id and the time written by another user are plausible. */
static bool gpu_claim_is_plausible(const struct holder *holder)
{
	int64_t since_ms;

	return holder->run[0] >= 'a' && holder->run[0] <= 'z' &&
	       holder->run[strspn(holder->run, "abcdefghijklmnopqrstuvwxyz0123456789-")] == '\0' &&
	       strlen(holder->since) == TIME_TEXT && str_ends(holder->since, "Z") &&
	       clock_parse(holder->since, &since_ms, NULL) == 0 && holder->pid > 0;
}

static bool gpu_claim_read_line(int fd, struct holder *ret)
{
	char line[LINE_MAX_BYTES];
	ssize_t n = read(fd, line, sizeof(line) - 1);

	if (n <= 0)
		return false;
	line[n] = '\0';
	return sscanf(line, "%47s %lu %d %llu %20s", ret->run, &ret->uid, &ret->pid, &ret->start,
		       ret->since) == 5 &&
	       gpu_claim_is_plausible(ret);
}

/* Whether holder still holds the lock: its line stays until the next holder writes one, which older
 * versions do not. */
static bool gpu_claim_holds(const struct holder *holder, ino_t inode, int queue_fd)
{
	struct stat queue;

	if (!os_process_alive(holder->pid, holder->start) ||
		os_process_start(holder->pid) != holder->start)
		return false;
	bool is_list_good = fstat(queue_fd, &queue) == 0 && os_lock_listed(queue.st_ino, 0);
	return !is_list_good || os_lock_listed(inode, holder->pid);
}

/* The holder of a lock that could not be taken: "q1-hc62r since 2026-11-23T05:04:25Z", "… of
 * another user since …", or "another run" where the lock is not signed, or its signer does not
 * hold it or is dead. queue_fd: a lock of the directory that is ours. The caller frees. */
static char *gpu_dir_holder(const struct gpu_dir *dir, const char *name, int queue_fd)
{
	struct holder holder = {0};
	struct stat st;
	AUTO_FD int fd = open_regular(dir, name, O_RDONLY, &st);

	if (fd < 0 || !gpu_claim_read_line(fd, &holder) ||
		!gpu_claim_holds(&holder, st.st_ino, queue_fd))
		return mem_strdup("another run");
	return mem_printf("%s%s since %s", holder.run,
		holder.uid == geteuid() ? "" : " of another user", holder.since);
}

/*
 * The guard keeps a GPU to one run whatever is done to the directory that all users share. Its
 * owner, and in it the maker of each file, can replace a lock file: a lock there says who is next,
 * not who has a GPU. So each user also locks the GPUs that he holds in a directory of his own,
 * DIR.UID beside the shared DIR (DIR.UID.* where another user has taken that name), and takes none
 * that is locked in the directory of any user.
 */

struct gpu_guard {
	char *shared; /* path of the shared directory */
	struct gpu_dir own;
};

enum { OWN_MODE = 0755, ALL_BITS = 07777 };

/* 1: ours, open. 0: not ours, or not there. */
static int open_own(const char *path, int *ret_fd)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || st.st_uid != geteuid())
		return 0;
	if ((st.st_mode & ALL_BITS) != OWN_MODE && fchmod(fd, OWN_MODE) < 0)
		return -errno;
	*ret_fd = TAKE_FD(fd);
	return 1;
}

/* List everything beside shared that is named like it, with a dot and more behind. */
static int list_beside(const char *shared, struct strv *ret, struct err *err)
{
	const char *slash = strrchr(shared, '/');
	AUTO_FREE char *parent = mem_strndup(shared, slash > shared ? (size_t)(slash - shared) : 1);
	AUTO_FREE char *prefix = mem_printf("%s.", slash + 1);
	AUTO_DIR DIR *stream = opendir(parent);
	struct dirent *entry;

	if (!stream)
		return err_set_errno(err, E_GPU_LOCK, errno, "cannot use the directory %s", parent);
	while ((entry = readdir(stream)))
		if (str_starts(entry->d_name, prefix))
			strv_add_take(ret, fs_join(parent, entry->d_name));
	return 0;
}

static int make_own(const char *shared, char **ret_path, int *ret_fd, struct err *err)
{
	char *path = mem_printf("%s.%lu", shared, (unsigned long)geteuid());
	int r = 0;

	for (int i = 0; i < MAKE_TRIES; i++) {
		uint64_t number;

		if (mkdir(path, 0700) < 0 && errno != EEXIST)
			r = -errno;
		else
			r = open_own(path, ret_fd);
		if (r > 0) {
			*ret_path = path;
			return 0;
		}
		if (r < 0)
			break;
		random_bytes(&number, sizeof(number));
		REPLACE(path, mem_printf("%s.%lu.%016llx", shared, (unsigned long)geteuid(),
				      (unsigned long long)number));
	}
	err_set_errno(err, E_GPU_LOCK, r < 0 ? -r : EEXIST, "cannot use the directory %s", path);
	free(path);
	return -ERR_IO;
}

/* Find or make our own directory, also one that an earlier run had to give another name. */
static int gpu_claim_find_own(const char *shared, char **ret_path, int *ret_fd, struct err *err)
{
	AUTO_FREE char *plain = mem_printf("%s.%lu", shared, (unsigned long)geteuid());
	AUTO_FREE char *prefix = mem_printf("%s.", plain);
	AUTO_STRV struct strv beside = {0};
	int r = open_own(plain, ret_fd);

	if (r > 0) {
		*ret_path = TAKE(plain);
		return 0;
	}
	r = list_beside(shared, &beside, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < beside.n; i++)
		if (str_starts(beside.v[i], prefix) && open_own(beside.v[i], ret_fd) > 0) {
			*ret_path = mem_strdup(beside.v[i]);
			return 0;
		}
	return make_own(shared, ret_path, ret_fd, err);
}

static int gpu_guard_open(const char *shared, struct gpu_guard *ret, struct err *err)
{
	char *dir = gpu_dir_place(shared), *path = NULL;
	int fd = -1, r = gpu_claim_find_own(dir, &path, &fd, err);

	if (r < 0) {
		free(dir);
		return r;
	}
	*ret = (struct gpu_guard){.shared = dir, .own = {.path = path, .fd = fd}};
	return 0;
}

/* Take a shared lock, so that two concurrent checks do not take each other for the holder. */
static bool is_locked(const char *path, const char *name)
{
	AUTO_FREE char *file = fs_join(path, name);
	AUTO_FD int fd = open(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	       flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

static int see_others(const struct gpu_guard *guard, const char *name, int queue_fd,
	char **ret_holder, struct err *err)
{
	AUTO_STRV struct strv beside = {0};
	int r = list_beside(guard->shared, &beside, err);

	for (size_t i = 0; r == 0 && i < beside.n; i++) {
		AUTO_FD int fd = -1;

		if (str_eq(beside.v[i], guard->own.path) || !is_locked(beside.v[i], name))
			continue;
		fd = open(beside.v[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		/* Links to a directory do not count. */
		if (fd < 0)
			continue;
		const struct gpu_dir other = {.path = beside.v[i], .fd = fd};
		*ret_holder = gpu_dir_holder(&other, name, queue_fd);
		return 0;
	}
	return r < 0 ? r : 1;
}

/* Lock name in our directory. 1: the lock is ours, and no other user's directory has it locked.
 * 0: it is held elsewhere, *ret_holder is as of gpu_dir_holder. E_GPU_LOCK. */
static int gpu_guard_lock(const struct gpu_guard *guard, const char *name, int queue_fd,
	int *ret_fd, char **ret_holder, struct err *err)
{
	AUTO_FD int fd = -1;
	int r = gpu_dir_lock(&guard->own, name, 0, &fd, err);

	if (r == 0)
		*ret_holder = gpu_dir_holder(&guard->own, name, queue_fd);
	/* Lock ours first, then check theirs: of two who do so at once, at least one sees the
	 * other. */
	if (r > 0)
		r = see_others(guard, name, queue_fd, ret_holder, err);
	if (r > 0)
		*ret_fd = TAKE_FD(fd);
	return r;
}

/*
 * Tickets. The caller has locked the queue.
 */

typedef void gpu_ticket_fn(void *ctx, uint64_t number, const char *text);

#define PREFIX "ticket."

enum { DIGITS = 12, NAME_SIZE = 32, TAKEN_MAX = 1000 };
static const uint64_t number_max = 999999999999;
/* Tickets numbered from here on were written by hand. They have no place in the queue, lest the
 * numbers be used up. */
static const uint64_t number_odd = 900000000000;

static void gpu_claim_name_of(uint64_t number, char out[static NAME_SIZE])
{
	snprintf(out, NAME_SIZE, PREFIX "%0*llu", DIGITS, (unsigned long long)number);
}

/* 0: not the name of a ticket. */
static uint64_t gpu_claim_number_of(const char *name)
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
	struct stat st;
	AUTO_FD int fd = open_regular(dir, name, O_RDONLY, &st);

	/* A file that cannot be opened was made with other permissions than ours: it is no
	 * ticket. */
	if (fd < 0)
		return -1;
	if (flock(fd, LOCK_SH | LOCK_NB) < 0)
		return TAKE_FD(fd);
	/* Another user's dead ticket stays in a sticky directory, and is ignored. */
	unlinkat(dir->fd, name, 0);
	return -1;
}

static void gpu_ticket_read(
	const struct gpu_dir *dir, const char *name, uint64_t number, gpu_ticket_fn *fn, void *ctx)
{
	AUTO_FD int fd = open_living(dir, name);
	AUTO_BUF struct buf text = {0};

	if (fd < 0)
		return;
	bool is_read = fs_read_fd(fd, name, GPU_CLAIM_TEXT_MAX, &text, NULL) == 0;
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

static int gpu_claim_fail_many(const struct gpu_dir *dir, struct err *err)
{
	return err_set(
		err, E_GPU_LOCK, "%s has more than %d files", dir->path, GPU_DIR_ENTRIES_MAX);
}

/* Call fn for each living ticket with a lower number, in no order; dead ones are removed. text:
 * NULL if it cannot be read or is too long. */
static int gpu_ticket_each(
	const struct gpu_dir *dir, uint64_t below, gpu_ticket_fn *fn, void *ctx, struct err *err)
{
	AUTO_DIR DIR *stream = open_stream(dir, err);
	struct dirent *entry;

	if (!stream)
		return -ERR_IO;
	for (int n = 0; (entry = readdir(stream)); n++) {
		uint64_t number = gpu_claim_number_of(entry->d_name);

		if (n == GPU_DIR_ENTRIES_MAX)
			return gpu_claim_fail_many(dir, err);
		if (number && number < below)
			gpu_ticket_read(dir, entry->d_name, number, fn, ctx);
	}
	return 0;
}

static void gpu_claim_sweep(const struct gpu_dir *dir, const char *name)
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
			return gpu_claim_fail_many(dir, err);
		uint64_t number = gpu_claim_number_of(entry->d_name);

		gpu_claim_sweep(dir, entry->d_name);
		if (number < number_odd && number > *ret)
			*ret = number;
	}
	return 0;
}

/* Make a ticket with the next number. text: what the others read. The descriptor keeps the
 * ticket alive. */
static int gpu_ticket_new(const struct gpu_dir *dir, const struct buf *text, uint64_t *ret_number,
	int *ret_fd, struct err *err)
{
	uint64_t number;
	char name[NAME_SIZE] = GPU_DIR_QUEUE;
	int fd = -1;
	int r = find_highest(dir, &number, err);

	if (r < 0)
		return r;
	for (int i = 0; i < TAKEN_MAX && number < number_max; i++) {
		gpu_claim_name_of(++number, name);
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

static bool gpu_ticket_lives(const struct gpu_dir *dir, uint64_t number)
{
	char name[NAME_SIZE];

	gpu_claim_name_of(number, name);
	AUTO_FD int fd = open_living(dir, name);
	return fd >= 0;
}

static char *gpu_ticket_path(const struct gpu_dir *dir, uint64_t number)
{
	char name[NAME_SIZE];

	gpu_claim_name_of(number, name);
	return fs_join(dir->path, name);
}

enum {
	NEW_MS = 10000, /* for the queue's lock, which is held for moments */
	TRY_MS = 200,
	HELD_MS = 60000, /* in all, until the queue is done without */
	CHECKS_MAX = 8,
	HOLDERS_MAX = 2, /* that a sentence names */
	NAMED_MAX = 8    /* GPUs that it does */
};

struct gpu_claim {
	struct gpu_dir dir; /* the shared one, or where we are alone */
	struct gpu_guard guard;
	char *notice;          /* why we are alone; NULL: we are not */
	int64_t held_since_ms; /* since then another process holds the queue; 0: none */
	pid_t pid;             /* a child that was forked only closes its copies */
	unsigned want;
	char *owner;
	struct strv only;
	struct buf text; /* of the ticket: the owner, and a line for each word of only */
	uint64_t number;
	int ticket; /* -1: none (any more) */
	int watch;
	char *why;
	bool is_granted;
	struct gpu_list granted;
	int fds[2 * GPU_MAX];
	size_t n_fds;
};

/*
 * A single check of the queue and the GPUs
 */

/* Bits stand for the GPUs of the list. */
struct gpu_check {
	const struct gpu_list *gpus;
	uint64_t eligible;      /* of the claim */
	uint64_t reserved;      /* an earlier ticket may take it */
	uint64_t busy;          /* the lock is held */
	char *holders[GPU_MAX]; /* of the busy ones, in words */
	unsigned ahead;         /* living tickets before ours */
	uint64_t blocker;       /* the last of them that may take all that we may; 0: none */
	int fds[GPU_MAX];       /* -1, or a lock that we hold for now */
	int guards[GPU_MAX];    /* the same, of the guard */
};

static uint64_t bit(size_t i)
{
	return UINT64_C(1) << i;
}

static unsigned gpu_claim_count(uint64_t mask)
{
	return (unsigned)__builtin_popcountll(mask);
}

static void gpu_claim_check_done(struct gpu_check *check)
{
	for (size_t i = 0; i < GPU_MAX; i++) {
		if (check->fds[i] >= 0)
			close(check->fds[i]);
		if (check->guards[i] >= 0)
			close(check->guards[i]);
		free(check->holders[i]);
	}
}
#define AUTO_GPU_CHECK AUTO(gpu_claim_check_done)

static uint64_t of_vendor(const struct gpu_list *gpus, enum gpu_vendor vendor)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < gpus->n; i++)
		if (gpus->v[i].vendor == vendor)
			mask |= bit(i);
	return mask;
}

static uint64_t in_use(const struct gpu_list *gpus)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < gpus->n; i++)
		if (gpus->v[i].used)
			mask |= bit(i);
	return mask;
}

/* Choose want GPUs of mask, all of one vendor, the first ones; 0 where there are not so many. */
static uint64_t gpu_claim_pick(const struct gpu_list *gpus, uint64_t mask, unsigned want)
{
	for (enum gpu_vendor vendor = GPU_NVIDIA; vendor <= GPU_AMD; vendor++) {
		uint64_t left = mask & of_vendor(gpus, vendor);

		if (gpu_claim_count(left) < want)
			continue;
		while (gpu_claim_count(left) > want)
			left &= ~bit(63 - (size_t)__builtin_clzll(left));
		return left;
	}
	return 0;
}

/* The most that a claim on mask can get. */
static unsigned gpu_claim_most(const struct gpu_list *gpus, uint64_t mask)
{
	unsigned nvidia = gpu_claim_count(mask & of_vendor(gpus, GPU_NVIDIA));
	unsigned amd = gpu_claim_count(mask & of_vendor(gpus, GPU_AMD));

	return nvidia > amd ? nvidia : amd;
}

static int check_count(
	const struct gpu_claim *claim, const struct gpu_check *check, struct err *err)
{
	unsigned most = gpu_claim_most(check->gpus, check->eligible),
		 all = gpu_claim_most(check->gpus, UINT64_MAX);
	AUTO_FREE char *what =
		mem_printf("requested %u GPU%s", claim->want, claim->want == 1 ? "" : "s");
	int r;

	if (most >= claim->want)
		return 0;
	if (all == 0)
		r = err_set(err, E_GPU_COUNT, "%s, this machine has none", what);
	else if (all < claim->want)
		r = err_set(err, E_GPU_COUNT, "%s, this machine has %u%s", what, all,
			all < check->gpus->n ? " of one vendor" : "");
	else
		r = err_set(err, E_GPU_COUNT, "%s, only %u of this machine's %u may be used", what,
			most, all);
	err_hint(err, "dlrun submit -g %u", most);
	return r;
}

/*
 * Earlier tickets
 */

/* The lines behind the first one. */
static void gpu_claim_read_words(const char *text, struct strv *ret)
{
	const char *line = strchr(text, '\n');

	while (line && line[1]) {
		size_t len = strcspn(++line, "\n");

		strv_add_take(ret, mem_strndup(line, len));
		line = line[len] ? line + len : NULL;
	}
}

static void see_ticket(void *ctx, uint64_t number, const char *text)
{
	AUTO_STRV struct strv words = {0};
	struct gpu_check *check = ctx;

	if (text)
		gpu_claim_read_words(text, &words);
	uint64_t mask = gpu_list_match(check->gpus, &words);
	check->ahead++;
	check->reserved |= mask;
	if ((mask & check->eligible) == check->eligible && number > check->blocker)
		check->blocker = number;
}

/* Check earlier tickets until what the result depends on is watched: the end of the ticket that may
 * take everything that we may, which need not wake the others behind us, or any event in the
 * directory. */
static int see_queue(const struct gpu_claim *claim, struct gpu_check *check, struct err *err)
{
	for (int i = 0; i < CHECKS_MAX; i++) {
		check->ahead = 0;
		check->reserved = check->blocker = 0;
		int r = gpu_ticket_each(&claim->dir, claim->number, see_ticket, check, err);
		if (r < 0)
			return r;
		AUTO_FREE char *path = check->blocker ? gpu_ticket_path(&claim->dir, check->blocker)
						      : mem_strdup(claim->dir.path);
		os_watch_add(claim->watch, path);
		/* The blocker may have died before the watch began. */
		if (!check->blocker || gpu_ticket_lives(&claim->dir, check->blocker))
			break;
	}
	return 0;
}

/*
 * Locks of GPUs
 */

static void lock_name(const char *id, char out[static GPU_ID_SIZE + 8])
{
	snprintf(out, GPU_ID_SIZE + 8, "gpu.%s", id);
	for (char *c = out; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr("-_.", *c))
			*c = '_';
}

static int see_locks(
	const struct gpu_claim *claim, int queue_fd, struct gpu_check *check, struct err *err)
{
	char name[GPU_ID_SIZE + 8];

	for (size_t i = 0; i < check->gpus->n; i++) {
		if (!(check->eligible & bit(i)))
			continue;
		lock_name(check->gpus->v[i].id, name);
		int r = gpu_dir_lock(&claim->dir, name, 0, &check->fds[i], err);
		if (r == 0)
			check->holders[i] = gpu_dir_holder(&claim->dir, name, queue_fd);
		else if (r > 0)
			r = gpu_guard_lock(&claim->guard, name, queue_fd, &check->guards[i],
				&check->holders[i], err);
		if (r < 0)
			return r;
		if (r == 0)
			check->busy |= bit(i);
	}
	return 0;
}

/*
 * Words
 */

/* "GPU 3 is ", "GPUs 0,1 are ". */
static void gpu_claim_add_gpus(struct buf *out, const struct gpu_check *check, uint64_t mask)
{
	unsigned n = gpu_claim_count(mask);

	if (out->len)
		buf_adds(out, "; ");
	if (n > NAMED_MAX)
		buf_addf(out, "%u GPUs are ", n);
	else
		buf_adds(out, n == 1 ? "GPU " : "GPUs ");
	for (size_t i = 0, shown = 0; n <= NAMED_MAX && i < check->gpus->n; i++)
		if (mask & bit(i))
			buf_addf(out, "%s%u", shown++ ? "," : "", check->gpus->v[i].index);
	if (n <= NAMED_MAX)
		buf_adds(out, n == 1 ? " is " : " are ");
}

/* Times may differ: a holder takes its locks one after the other. */
static bool is_same_holder(const char *a, const char *b)
{
	static const char since[] = " since ";
	const char *end = strstr(a, since);
	size_t len = end ? (size_t)(end - a) : strlen(a);

	return strncmp(a, b, len) == 0 && (end ? str_starts(b + len, since) : !b[len]);
}

/* A part for each holder. */
static void gpu_claim_add_busy(struct buf *out, const struct gpu_check *check)
{
	uint64_t left = check->busy;

	for (unsigned n = 0; left; n++) {
		const char *holder = check->holders[__builtin_ctzll(left)];
		uint64_t mask = 0;

		for (size_t i = 0; i < check->gpus->n; i++)
			if ((left & bit(i)) &&
				(n == HOLDERS_MAX || is_same_holder(check->holders[i], holder)))
				mask |= bit(i);
		gpu_claim_add_gpus(out, check, mask);
		buf_addf(out, "in use by %s", n == HOLDERS_MAX ? "other runs" : holder);
		left &= ~mask;
	}
}

static void gpu_claim_explain(struct gpu_claim *claim, const struct gpu_check *check)
{
	uint64_t used = check->eligible & ~check->busy & in_use(check->gpus);
	struct buf text;

	buf_init(&text, 1024);
	gpu_claim_add_busy(&text, check);
	if (used) {
		gpu_claim_add_gpus(&text, check, used);
		buf_adds(&text, "used by a program outside of dlrun");
	}
	if (check->ahead)
		buf_addf(&text, "%s%u run%s before it", text.len ? "; " : "", check->ahead,
			check->ahead == 1 ? " is" : "s are");
	if (text.len == 0)
		buf_adds(&text, "the GPUs are free");
	if (claim->notice)
		buf_addf(&text, "; %s", claim->notice);
	REPLACE(claim->why, buf_take(&text));
	buf_done(&text);
}

static void explain_as(struct gpu_claim *claim, const char *why)
{
	REPLACE(claim->why, mem_strdup(why));
}

/*
 * The claim
 */

/* A word that cannot stand in a line names no GPU either. */
static const char *as_line(const char *s)
{
	return s && !strpbrk(s, "\r\n") ? s : "?";
}

static int gpu_claim_write_text(
	struct gpu_claim *claim, const struct gpu_claim_spec *spec, struct err *err)
{
	claim->owner = mem_strdup(as_line(spec->owner));
	buf_init(&claim->text, GPU_CLAIM_TEXT_MAX);
	buf_addf(&claim->text, "%.100s\n", claim->owner);
	for (size_t i = 0; spec->only && i < spec->only->n; i++) {
		strv_add(&claim->only, spec->only->v[i]);
		buf_addf(&claim->text, "%s\n", as_line(spec->only->v[i]));
	}
	return buf_check(&claim->text, "the list of GPUs that may be used", err);
}

/* The queue is locked. */
static int take_ticket(struct gpu_claim *claim, struct err *err)
{
	int r = gpu_ticket_new(&claim->dir, &claim->text, &claim->number, &claim->ticket, err);

	if (r < 0 || claim->watch >= 0)
		return r;
	AUTO_FREE char *path = gpu_ticket_path(&claim->dir, claim->number);
	claim->watch = os_watch_open(path);
	return 0;
}

static int fail_queue(const struct gpu_claim *claim, struct err *err)
{
	return err_set(err, E_GPU_LOCK, "another process holds %s/" GPU_DIR_QUEUE " for too long",
		claim->dir.path);
}

static int join_queue(struct gpu_claim *claim, struct err *err)
{
	AUTO_FD int queue = -1;
	int r = gpu_dir_lock(&claim->dir, GPU_DIR_QUEUE, NEW_MS, &queue, err);

	if (r == 0)
		return fail_queue(claim, err);
	return r < 0 ? r : take_ticket(claim, err);
}

/* By the owner, who need not lock the queue. */
static void leave_queue(struct gpu_claim *claim)
{
	char name[NAME_SIZE], wake[NAME_SIZE];

	if (claim->ticket < 0)
		return;
	gpu_claim_name_of(claim->number, name);
	snprintf(wake, sizeof(wake), "wake.%llu", (unsigned long long)claim->number);
	/* A rename wakes the waiting processes, too, without a new file. */
	bool is_moved = renameat(claim->dir.fd, name, claim->dir.fd, wake) == 0;
	unlinkat(claim->dir.fd, is_moved ? wake : name, 0);
	close(TAKE_FD(claim->ticket));
}

/* Changes that others make to the shared directory may cost the order of the queue, but no run: a
 * user who cannot use it queues in a directory of his own, where no other user is. */
static int go_alone(struct gpu_claim *claim, const struct err *why, struct err *err)
{
	claim->notice = mem_printf("GPUs of this machine are not queued for in order: %s%s%s",
		why->message, why->n_evidence ? ": " : "", why->n_evidence ? why->evidence[0] : "");
	leave_queue(claim);
	gpu_dir_done(&claim->dir);
	claim->held_since_ms = 0;
	AUTO_FREE char *path = fs_join(claim->guard.own.path, "alone");
	int r = gpu_dir_open(path, &claim->dir, err);
	return r < 0 ? r : join_queue(claim, err);
}

static int gpu_claim_begin(struct gpu_claim *claim, const char *dir, struct err *err)
{
	AUTO_ERR struct err why = {0};
	int r = gpu_guard_open(dir, &claim->guard, err);

	if (r < 0)
		return r;
	r = gpu_dir_open(dir, &claim->dir, &why);
	if (r == 0)
		r = join_queue(claim, &why);
	if (r < 0 && why.id != E_GPU_LOCK)
		return err_move(err, &why);
	return r < 0 ? go_alone(claim, &why, err) : 0;
}

int gpu_claim_new(const struct gpu_claim_spec *spec, struct gpu_claim **ret, struct err *err)
{
	if (spec->want == 0 || spec->want > GPU_MAX)
		return err_set(err, E_GPU_COUNT, "requested %u GPUs, the limit is 1 to %d",
			spec->want, GPU_MAX);
	AUTO_GPU_CLAIM struct gpu_claim *claim = mem_alloc(1, sizeof(*claim));
	claim->dir = claim->guard.own = (struct gpu_dir){.fd = -1};
	claim->pid = getpid();
	claim->want = spec->want;
	claim->ticket = claim->watch = -1;
	explain_as(claim, "it has just come");
	int r = gpu_claim_write_text(claim, spec, err);
	if (r == 0)
		r = gpu_claim_begin(claim, spec->dir, err);
	if (r == 0)
		*ret = TAKE(claim);
	return r;
}

static void grant(struct gpu_claim *claim, struct gpu_check *check, uint64_t chosen)
{
	char name[GPU_ID_SIZE + 8];

	for (size_t i = 0; i < check->gpus->n; i++) {
		if (!(chosen & bit(i)))
			continue;
		lock_name(check->gpus->v[i].id, name);
		gpu_dir_sign(&claim->dir, name, check->fds[i], claim->owner);
		claim->granted.v[claim->granted.n++] = check->gpus->v[i];
		gpu_dir_sign(&claim->guard.own, name, check->guards[i], claim->owner);
		claim->fds[claim->n_fds++] = TAKE_FD(check->fds[i]);
		claim->fds[claim->n_fds++] = TAKE_FD(check->guards[i]);
	}
	claim->is_granted = true;
	explain_as(claim, "it has its GPUs");
	leave_queue(claim);
}

/* Check the queue and the locks, and take the GPUs; the queue is locked. */
static int gpu_claim_check_and_take(struct gpu_claim *claim, int queue_fd, bool is_taking,
	struct gpu_check *check, struct err *err)
{
	struct stat st;
	int r = 0;

	/* A cleanup may have removed the ticket; the new one is last in the queue. */
	if (fstat(claim->ticket, &st) < 0 || st.st_nlink == 0) {
		close(TAKE_FD(claim->ticket));
		r = take_ticket(claim, err);
	}
	if (r == 0)
		r = see_queue(claim, check, err);
	if (r == 0)
		r = see_locks(claim, queue_fd, check, err);
	if (r < 0)
		return r;
	uint64_t open = check->eligible & ~check->reserved & ~check->busy;
	if (is_taking)
		open &= ~in_use(check->gpus);
	uint64_t chosen = gpu_claim_pick(check->gpus, open, claim->want);
	gpu_claim_explain(claim, check);
	if (chosen && is_taking)
		grant(claim, check, chosen);
	return chosen != 0;
}

static int gpu_claim_check_once(
	struct gpu_claim *claim, const struct gpu_list *gpus, bool is_taking, struct err *err)
{
	AUTO_FD int queue = -1; /* freed last */
	AUTO_GPU_CHECK struct gpu_check check = {
		.gpus = gpus, .eligible = gpu_list_match(gpus, &claim->only)};

	memset(check.fds, 0xff, sizeof(check.fds));
	memset(check.guards, 0xff, sizeof(check.guards));
	if (claim->is_granted)
		return 1;
	int r = check_count(claim, &check, err);
	if (r < 0)
		return r;
	os_watch_drain(claim->watch);
	r = gpu_dir_lock(&claim->dir, GPU_DIR_QUEUE, TRY_MS, &queue, err);
	if (r == 0) {
		/* An error when it has lasted long. */
		if (!claim->held_since_ms)
			claim->held_since_ms = clock_ms();
		explain_as(claim, "another process holds the queue for GPUs");
		return clock_ms() - claim->held_since_ms < HELD_MS ? 0 : fail_queue(claim, err);
	}
	claim->held_since_ms = 0;
	return r < 0 ? r : gpu_claim_check_and_take(claim, queue, is_taking, &check, err);
}

static int try_once(
	struct gpu_claim *claim, const struct gpu_list *gpus, bool is_taking, struct err *err)
{
	AUTO_ERR struct err why = {0};
	int r = gpu_claim_check_once(claim, gpus, is_taking, &why);

	if (r >= 0)
		return r;
	if (why.id != E_GPU_LOCK || claim->notice)
		return err_move(err, &why);
	r = go_alone(claim, &why, err);
	return r < 0 ? r : gpu_claim_check_once(claim, gpus, is_taking, err);
}

int gpu_claim_try(struct gpu_claim *claim, const struct gpu_list *gpus, struct err *err)
{
	return try_once(claim, gpus, true, err);
}

int gpu_claim_ready(struct gpu_claim *claim, const struct gpu_list *gpus, struct err *err)
{
	return try_once(claim, gpus, false, err);
}

const char *gpu_claim_notice(const struct gpu_claim *claim)
{
	return claim->notice;
}

const char *gpu_claim_why(const struct gpu_claim *claim)
{
	return claim->why;
}

int gpu_claim_watch_fd(const struct gpu_claim *claim)
{
	return claim->watch;
}

const struct gpu_list *gpu_claim_granted(const struct gpu_claim *claim)
{
	return &claim->granted;
}

const int *gpu_claim_fds(const struct gpu_claim *claim, size_t *ret_n)
{
	*ret_n = claim->n_fds;
	return claim->fds;
}

void gpu_claim_env(const struct gpu_claim *claim, size_t from, size_t n, struct strv *ret)
{
	const struct gpu_list *list = &claim->granted;
	struct buf value;

	if (list->n == 0)
		return;
	BUG_ON(from + n > list->n);
	buf_init(&value, GPU_MAX * 16);
	for (size_t i = 0; i < n; i++)
		buf_addf(&value, "%s%u", i ? "," : "", list->v[from + i].index);
	if (list->v[0].vendor == GPU_AMD) {
		strv_addf(ret, "ROCR_VISIBLE_DEVICES=%s", value.data);
	} else {
		/* By default CUDA counts the fastest GPU first. */
		strv_add(ret, "CUDA_DEVICE_ORDER=PCI_BUS_ID");
		strv_addf(ret, "CUDA_VISIBLE_DEVICES=%s", value.data);
	}
	buf_done(&value);
}

void gpu_claim_free(struct gpu_claim *claim)
{
	if (!claim)
		return;
	bool is_owner = claim->pid == getpid();
	if (is_owner)
		leave_queue(claim);
	else if (claim->ticket >= 0)
		close(claim->ticket);
	/* Closed, not unlocked: a program that still runs keeps them. */
	for (size_t i = 0; i < claim->n_fds; i++)
		close(claim->fds[i]);
	if (is_owner && claim->n_fds > 0)
		gpu_dir_wake(&claim->dir);
	/* Last, because the kernel takes its time to end a watch. */
	if (claim->watch >= 0)
		close(claim->watch);
	gpu_dir_done(&claim->dir);
	gpu_dir_done(&claim->guard.own);
	free(claim->guard.shared);
	free(claim->notice);
	strv_done(&claim->only);
	buf_done(&claim->text);
	free(claim->owner);
	free(claim->why);
	free(claim);
}
