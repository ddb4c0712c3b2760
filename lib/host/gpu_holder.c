/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/gpu_dir.h"

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

void gpu_dir_sign(const struct gpu_dir *dir, const char *name, int lock_fd, const char *owner)
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
static bool is_plausible(const struct holder *holder)
{
	int64_t since_ms;

	return holder->run[0] >= 'a' && holder->run[0] <= 'z' &&
	       holder->run[strspn(holder->run, "abcdefghijklmnopqrstuvwxyz0123456789-")] == '\0' &&
	       strlen(holder->since) == TIME_TEXT && str_ends(holder->since, "Z") &&
	       clock_parse(holder->since, &since_ms, NULL) == 0 && holder->pid > 0;
}

static bool read_line(int fd, struct holder *ret)
{
	char line[LINE_MAX_BYTES];
	ssize_t n = read(fd, line, sizeof(line) - 1);

	if (n <= 0)
		return false;
	line[n] = '\0';
	return sscanf(line, "%47s %lu %d %llu %20s", ret->run, &ret->uid, &ret->pid, &ret->start,
		       ret->since) == 5 &&
	       is_plausible(ret);
}

/* Whether holder still holds the lock: its line stays until the next holder writes one, which older
 * versions do not. */
static bool holds(const struct holder *holder, ino_t inode, int queue_fd)
{
	struct stat queue;

	if (!os_process_alive(holder->pid, holder->start) ||
		os_process_start(holder->pid) != holder->start)
		return false;
	bool is_list_good = fstat(queue_fd, &queue) == 0 && os_lock_listed(queue.st_ino, 0);
	return !is_list_good || os_lock_listed(inode, holder->pid);
}

char *gpu_dir_holder(const struct gpu_dir *dir, const char *name, int queue_fd)
{
	struct holder holder = {0};
	struct stat st;
	AUTO_FD int fd = open_regular(dir, name, O_RDONLY, &st);

	if (fd < 0 || !read_line(fd, &holder) || !holds(&holder, st.st_ino, queue_fd))
		return mem_strdup("another run");
	return mem_printf("%s%s since %s", holder.run,
		holder.uid == geteuid() ? "" : " of another user", holder.since);
}
