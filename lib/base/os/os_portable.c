/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/os/os_shared.h"
#include "base/util/auto.h"
#include "base/util/err.h"

bool os_boot_id(char out[static OS_ID_SIZE])
{
	out[0] = '\0';
	return false;
}

bool os_machine_id(char out[static OS_ID_SIZE])
{
	return os_hostname_id(out);
}

uint64_t os_process_start(pid_t pid)
{
	(void)pid;
	return 0;
}

bool os_process_alive(pid_t pid, uint64_t start)
{
	(void)start;
	return pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
}

bool os_lock_listed(ino_t inode, pid_t pid)
{
	(void)inode;
	(void)pid;
	return false;
}

bool os_become_subreaper(void)
{
	return false;
}

int os_signal_descendants(int sig, const char *mark)
{
	(void)sig;
	(void)mark;
	return -1;
}

int os_open_beneath(int dirfd, const char *path, int flags, mode_t mode)
{
	return os_walk_beneath(dirfd, path, flags, mode);
}

int os_list_names(int fd, void *buffer, os_name_fn *fn, void *ctx)
{
	int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	AUTO_DIR DIR *stream = own < 0 ? NULL : fdopendir(own);
	const struct dirent *entry;

	(void)buffer;
	if (!stream) {
		int errnum = errno;
		if (own >= 0)
			close(own);
		return -errnum;
	}
	for (errno = 0; (entry = readdir(stream)); errno = 0)
		fn(ctx, entry->d_name, entry->d_type);
	return -errno;
}

int os_open_nameless(int dirfd, mode_t mode)
{
	(void)dirfd;
	(void)mode;
	return -ENOTSUP;
}

bool os_reserve(int fd, off_t offset, off_t len)
{
	(void)fd;
	(void)offset;
	(void)len;
	return false;
}

int os_link_fd(int fd, int dirfd, const char *name)
{
	(void)fd;
	(void)dirfd;
	(void)name;
	return -ENOTSUP;
}

int os_watch_open(const char *path)
{
	(void)path;
	return -1;
}

bool os_watch_add(int fd, const char *path)
{
	(void)fd;
	(void)path;
	return false;
}

void os_watch_drain(int fd)
{
	(void)fd;
}

unsigned os_processors(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n > 0 ? (unsigned)n : 1;
}

int os_pipe(int fds[static 2], int flags)
{
	int ends[2];

	if (pipe(ends) < 0)
		return -errno;
	for (int i = 0; i < 2; i++) {
		if (fcntl(ends[i], F_SETFD, FD_CLOEXEC) == 0 && fcntl(ends[i], F_SETFL, flags) == 0)
			continue;
		int errnum = errno;
		close(ends[0]);
		close(ends[1]);
		return -errnum;
	}
	fds[0] = ends[0];
	fds[1] = ends[1];
	return 0;
}

bool os_cloexec_from(int low)
{
	(void)low;
	return false;
}

pid_t os_start_child(int (*fn)(void *ctx), void *ctx)
{
	pid_t pid = fork();

	if (pid == 0) {
		fn(ctx);
		err_bug(__FILE__, __LINE__, "a child that came back");
	}
	return pid;
}

int os_peer_uid(int fd, uid_t *ret)
{
	(void)fd;
	(void)ret;
	return -ENOTSUP;
}

bool os_self_path(char *out, size_t size)
{
	(void)out;
	(void)size;
	return false;
}

void os_protect_memory(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_CORE, &limit) < 0)
		return;
	limit.rlim_cur = 0;
	setrlimit(RLIMIT_CORE, &limit);
}

void os_be_nice(void)
{
	if (getpriority(PRIO_PROCESS, 0) < 10)
		setpriority(PRIO_PROCESS, 0, 10);
}

const char *os_network_fs(int fd)
{
	(void)fd;
	return NULL;
}

bool os_keep_only_fd(int fd)
{
	(void)fd;
	return false;
}

bool os_dir_times_hold(int fd)
{
	(void)fd;
	return false;
}

bool os_family_create(struct os_family *family, const char *name, const struct os_limits *limits)
{
	(void)name;
	(void)limits;
	*family = (struct os_family){{0}};
	return false;
}

bool os_family_is(const struct os_family *family)
{
	(void)family;
	return false;
}

pid_t os_family_fork(const struct os_family *family)
{
	(void)family;
	return fork();
}

void os_family_leave(void)
{
}

int os_family_signal(struct os_family *family, int sig)
{
	(void)family;
	(void)sig;
	return -1;
}

bool os_family_is_empty(const struct os_family *family)
{
	(void)family;
	return true;
}

void os_family_remove(struct os_family *family)
{
	*family = (struct os_family){{0}};
}

int64_t os_family_oom_kills(const struct os_family *family, bool *ret_shared)
{
	(void)family;
	*ret_shared = true;
	return -1;
}

bool os_family_use(const struct os_family *family, pid_t root, struct os_use *ret)
{
	(void)family;
	(void)root;
	(void)ret;
	return false;
}
