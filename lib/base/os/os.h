/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Differences between operating systems. os_linux.c is written for Linux (proc, cgroup, openat2,
 * inotify), os_portable.c for any POSIX system; -Dos= selects one. Where the portable one cannot
 * know something it says so, and callers do with less.
 */
#ifndef DLRUN_BASE_OS_OS_H
#define DLRUN_BASE_OS_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { OS_ID_SIZE = 64 };

/* A text that is new with each boot; false where there is none. */
bool os_boot_id(char out[static OS_ID_SIZE]);
/* A text that stays the same on this machine (never the raw machine-id: a hash of it). */
bool os_machine_id(char out[static OS_ID_SIZE]);
/* When a process was started, in units that tell two users of one pid apart; 0 if unknown or no
 * such process. */
uint64_t os_process_start(pid_t pid);
/* Whether the process pid that was started at start (from os_process_start) still runs and is no
 * zombie; where start times are not known: whether the pid exists. */
bool os_process_alive(pid_t pid, uint64_t start);

/* Whether the kernel's list of locks has an exclusive flock(2) on the file with this inode, taken
 * by pid (0: by any process). false also where there is no such list, and on file systems whose
 * files have other numbers in it: callers compare with a lock that they know to be held. */
bool os_lock_listed(ino_t inode, pid_t pid);

/* Orphaned descendants of this process become its children. false: not supported here. */
bool os_become_subreaper(void);
/* Signal every descendant of this process; returns how many were found, -1 where they cannot be
 * listed (then use the process group). mark, NAME=VALUE or NULL: descendants in whose environment
 * NAME has another value are left alone, with all below them. */
int os_signal_descendants(int sig, const char *mark);

/* openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS) or a walk that does the same; O_CLOEXEC is added.
 * An absolute path and any ".." is -EXDEV, a symbolic link on the way or at the end -ELOOP.
 * -errno on failure. */
int os_open_beneath(int dirfd, const char *path, int flags, mode_t mode);
/* Whether a path is absolute or has a "..", which os_open_beneath never follows. */
bool os_leads_out(const char *path);

/* Call fn for each name in the directory that fd was opened for just now, "." and ".." too, in any
 * order; type: DT_*, perhaps DT_UNKNOWN. buffer: OS_NAMES_SIZE bytes, aligned for any object, for
 * as long as the call. 0 or -errno. */
enum { OS_NAMES_SIZE = 32 * 1024 };
typedef void os_name_fn(void *ctx, const char *name, unsigned char type);
int os_list_names(int fd, void *buffer, os_name_fn *fn, void *ctx);

/* Make a file without a name in the directory dirfd, for reading and writing, gone when it is
 * closed unless os_link_fd names it. -errno where either is not supported: make a named file
 * then. */
int os_open_nameless(int dirfd, mode_t mode);
/* Reserve disk space for these bytes of a file, which keeps its size. false: not supported there,
 * or the disk is full. */
bool os_reserve(int fd, off_t offset, off_t len);
/* Give the file of an open descriptor a (further) name below dirfd. 0 or -errno: -EEXIST when the
 * name is taken, -EXDEV on another file system, -ENOTSUP where that is not supported. */
int os_link_fd(int fd, int dirfd, const char *name);

/* A descriptor that becomes readable when the file grows, or the directory gets a new name (not
 * when a file in it is opened or written: a caller that takes a lock there would wake itself for
 * ever); -1 where that is not supported: poll with a timer instead. os_watch_drain makes it quiet
 * again. */
int os_watch_open(const char *path);
/* Watch one more path with the descriptor, until the path is gone. false: not possible. */
bool os_watch_add(int fd, const char *path);
void os_watch_drain(int fd);

/* The number of CPUs that this process may use, at least 1. */
unsigned os_processors(void);
/* pipe(2) with both ends close-on-exec. flags: 0 or O_NONBLOCK. 0 or -errno, with fds as before. */
int os_pipe(int fds[static 2], int flags);
/* Let a pipe hold size bytes, where the system can and permits it. */
void os_pipe_widen(int fd, int size);
/* Mark every open descriptor from low up as close-on-exec; false: not supported here. For a child
 * between fork and exec: async-signal-safe. */
bool os_cloexec_from(int low);
/* Give the calling thread a descriptor table of its own, with only fd and 0 to 2 of those that are
 * open: the kernel counts each use of a descriptor that threads share. Never for the main thread.
 * false: not supported here, nothing has changed. */
bool os_keep_only_fd(int fd);

/* Start a child that does nothing but exec: fn must end in exec or _exit and may call only what is
 * async-signal-safe. Until then the caller may be suspended, and memory that fn writes may be the
 * caller's. All signals should be blocked. -1 with errno on failure. */
pid_t os_start_child(int (*fn)(void *ctx), void *ctx);

/* Find the user whose process has the other end of an accepted TCP connection. 1: found. 0: no
 * process any more, or the peer is not on this machine. A negative errno: not known here; the
 * caller needs another proof. */
int os_peer_uid(int fd, uid_t *ret);

/* Bytes written to a TCP connection that the peer's kernel has not received, so that a reset would
 * lose them. 0 also where that is not known. */
size_t os_unsent(int fd);

/* The path of this program. */
bool os_self_path(char *out, size_t size);
/* Hide this process's memory from other processes of the user and write no core. */
void os_protect_memory(void);
/* Lower the priority of this process for CPU and disk. */
void os_be_nice(void);
/* A name for the file system of fd if it is a network one ("nfs", "smb", "fuse.sshfs"), else
 * NULL. */
const char *os_network_fs(int fd);
/* Whether each new, removed or renamed name changes the times of its directory on the file system
 * of fd; false where that is not known. */
bool os_dir_times_hold(int fd);

/* Limits of a family; 0: unlimited. */
struct os_limits {
	uint64_t memory_bytes;
	int64_t cpus_milli;
};
enum { OS_LIMIT_CPUS = 1, OS_LIMIT_MEMORY = 2 };

/* A group of processes that can be killed as a whole: a cgroup v2 below our own, or below one above
 * it that enables the controllers that limits need, where that is writable; for limits also of
 * v1. */
struct os_family {
	char path[256];             /* of v2; empty: none, as the others */
	char memory[256], cpu[256]; /* of v1 */
	unsigned enforced;          /* OS_LIMIT_… */
	bool was_killed;            /* by os_family_signal */
};
/* name: without "/", as dlrun-…-PID: a family whose process is gone is removed by the next one. An
 * existing family is taken over, with the processes in it. false: there is none. */
bool os_family_create(struct os_family *family, const char *name, const struct os_limits *limits);
/* Whether the family exists. */
bool os_family_is(const struct os_family *family);
/* fork(2) with the child beginning in the family, where permitted. Only for a process with one
 * thread. */
pid_t os_family_fork(const struct os_family *family);
/* Move the calling process out of a family that it was started in, where permitted. */
void os_family_leave(void);
/* Signal all members; SIGKILL by cgroup.kill. Returns how many, -1 if there is no family. */
int os_family_signal(struct os_family *family, int sig);
bool os_family_is_empty(const struct os_family *family);
void os_family_remove(struct os_family *family);
/* The number of processes that the kernel has killed for lack of memory, as long as the group that
 * counts them exists: the family's, or else (*ret_shared) the one that this process shares with
 * others. -1: not known. */
int64_t os_family_oom_kills(const struct os_family *family, bool *ret_shared);

/* Resource use of processes. */
struct os_use {
	double cpu_s;
	bool cpu_is_whole;    /* those that have ended are counted in it */
	int64_t memory_bytes; /* resident; pages that large processes share are counted once */
};
/* Use of the members of a family, or if it is empty of the descendants of this process and of root
 * with its descendants (0: none); cpu_s then counts living processes, and of ended ones those that
 * their parent has waited for. false: not known here. Costs some 10 us for each process of the
 * machine. */
bool os_family_use(const struct os_family *family, pid_t root, struct os_use *ret);

#endif
