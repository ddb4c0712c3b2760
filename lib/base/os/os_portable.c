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
#include "base/util/mem.h"

bool os_boot_id(char out[static OS_ID_SIZE])
{
	out[0] = '\0';
	return false;
}

bool os_machine_id(char out[static OS_ID_SIZE])
{
	return os_hostname_id(out);
}

uint64_t os_process_start(pid_t pid UNUSED)
{
	return 0;
}

bool os_process_alive(pid_t pid, uint64_t start UNUSED)
{
	return pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
}

bool os_lock_listed(ino_t inode UNUSED, pid_t pid UNUSED)
{
	return false;
}

bool os_become_subreaper(void)
{
	return false;
}

int os_signal_descendants(int sig UNUSED, const char *mark UNUSED)
{
	return -1;
}

int os_open_beneath(int dirfd, const char *path, int flags, mode_t mode)
{
	return os_walk_beneath(dirfd, path, flags, mode);
}

int os_list_names(int fd, void *buffer UNUSED, os_name_fn *fn, void *ctx)
{
	int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	AUTO_DIR DIR *stream = own < 0 ? NULL : fdopendir(own);
	const struct dirent *entry;

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

int os_open_nameless(int dirfd UNUSED, mode_t mode UNUSED)
{
	return -ENOTSUP;
}

bool os_reserve(int fd UNUSED, off_t offset UNUSED, off_t len UNUSED)
{
	return false;
}

int os_link_fd(int fd UNUSED, int dirfd UNUSED, const char *name UNUSED)
{
	return -ENOTSUP;
}

int os_watch_open(const char *path UNUSED)
{
	return -1;
}

bool os_watch_add(int fd UNUSED, const char *path UNUSED)
{
	return false;
}

void os_watch_drain(int fd UNUSED)
{
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

void os_pipe_widen(int fd UNUSED, int size UNUSED)
{
}

bool os_cloexec_from(int low UNUSED)
{
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

int os_peer_uid(int fd UNUSED, uid_t *ret UNUSED)
{
	return -ENOTSUP;
}

bool os_self_path(char *out UNUSED, size_t size UNUSED)
{
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

const char *os_network_fs(int fd UNUSED)
{
	return NULL;
}

bool os_keep_only_fd(int fd UNUSED)
{
	return false;
}

bool os_dir_times_hold(int fd UNUSED)
{
	return false;
}

bool os_family_create(
	struct os_family *family, const char *name UNUSED, const struct os_limits *limits UNUSED)
{
	*family = (struct os_family){{0}};
	return false;
}

bool os_family_is(const struct os_family *family UNUSED)
{
	return false;
}

pid_t os_family_fork(const struct os_family *family UNUSED)
{
	return fork();
}

void os_family_leave(void)
{
}

int os_family_signal(struct os_family *family UNUSED, int sig UNUSED)
{
	return -1;
}

bool os_family_is_empty(const struct os_family *family UNUSED)
{
	return true;
}

void os_family_remove(struct os_family *family)
{
	*family = (struct os_family){{0}};
}

int64_t os_family_oom_kills(const struct os_family *family UNUSED, bool *ret_shared)
{
	*ret_shared = true;
	return -1;
}

bool os_family_use(
	const struct os_family *family UNUSED, pid_t root UNUSED, struct os_use *ret UNUSED)
{
	return false;
}
