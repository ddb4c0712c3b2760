/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/os/os_shared.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/err.h"
#include "base/util/mem.h"

enum { WAIT_MS = 20000, ORPHAN_S = 120 };

static char *tmp;
static int tmp_fd = -1;

static int make_tmp(void **state)
{
	const char *base = getenv("TMPDIR");

	tmp = mem_printf("%s/dlrun-os-XXXXXX", base ? base : "/tmp");
	if (!mkdtemp(tmp))
		return -1;
	tmp_fd = open(tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return tmp_fd < 0 ? -1 : 0;
}

static int remove_tmp(void **state)
{
	close(tmp_fd);
	int r = fs_remove_tree(AT_FDCWD, tmp, NULL);
	free(tmp);
	return r;
}

/* Whether this is the twin that knows all; the portable one knows no path of the program. */
static bool is_full(void)
{
	char path[4096];

	return os_self_path(path, sizeof(path));
}

static void put(const char *name)
{
	AUTO_FD int fd = openat(tmp_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, "x", 1), 1);
}

/* Wait for what ends soon, at a time that nobody knows. */
static bool becomes(bool (*holds)(void *ctx), void *ctx)
{
	int64_t end_ms = clock_ms() + WAIT_MS;

	while (!holds(ctx)) {
		if (clock_ms() > end_ms)
			return false;
		poll(NULL, 0, 2);
	}
	return true;
}

static void test_ids(void **state)
{
	char boot[OS_ID_SIZE], again[OS_ID_SIZE], machine[OS_ID_SIZE], raw[64] = "";

	assert_int_equal(os_boot_id(boot), is_full());
	if (is_full()) {
		assert_int_equal(strlen(boot), 36);
		assert_true(os_boot_id(again));
		assert_string_equal(boot, again);
	}
	assert_true(os_machine_id(machine));
	assert_true(os_machine_id(again));
	assert_string_equal(machine, again);
	assert_int_equal(strlen(machine), 32);
	assert_int_equal(strspn(machine, "0123456789abcdef"), 32);
	FILE *file = fopen("/etc/machine-id", "re");
	if (file) {
		assert_true(!fgets(raw, 33, file) || strcmp(raw, machine) != 0);
		fclose(file);
	}
}

static void test_hash_id(void **state)
{
	char id[OS_ID_SIZE], other[OS_ID_SIZE];

	/* The beginning of sha256("dlrun machine 4f0d2c9a:" "0"): a change of it would make every
	 * machine another one. */
	os_hash_id("0", id);
	assert_string_equal(id, "616f09bf999cd828c09a4dd9172d337e");
	assert_true(os_hostname_id(other));
	assert_string_not_equal(id, other);
}

/*
 * Processes
 */

static pid_t fork_sleeper(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		alarm(ORPHAN_S);
		for (;;)
			pause();
	}
	return pid;
}

static bool is_zombie_or_gone(void *ctx)
{
	return !os_process_alive(*(pid_t *)ctx, 0);
}

static void test_process(void **state)
{
	uint64_t start = os_process_start(getpid());

	assert_int_equal(start != 0, is_full());
	assert_true(os_process_start(getpid()) == start);
	assert_true(os_process_alive(getpid(), start));
	assert_true(os_process_alive(getpid(), 0));
	assert_true(os_process_start(-1) == 0);
	assert_true(os_process_start(0) == 0);
	assert_false(os_process_alive(0, 0));
	assert_false(os_process_alive(-1, 0));
	if (is_full())
		assert_false(os_process_alive(getpid(), start + 1));

	pid_t pid = fork_sleeper();
	uint64_t child_start = os_process_start(pid);
	assert_true(os_process_alive(pid, child_start));
	kill(pid, SIGKILL);
	if (is_full()) {
		/* Not waited for yet: a zombie runs no more. */
		assert_true(becomes(is_zombie_or_gone, &pid));
		assert_false(os_process_alive(pid, child_start));
	}
	waitpid(pid, NULL, 0);
	assert_false(os_process_alive(pid, child_start));
	assert_true(os_process_start(pid) == 0);
}

/* Runs this program's own code in a child with a name that looks like the fields behind it. */
static void test_process_with_odd_name(void **state)
{
	int fds[2], in[2];
	char c;

	if (!is_full())
		skip();
	AUTO_FREE char *path = mem_printf("%s/a) Z 1 (b c", tmp);
	assert_int_equal(symlink("/bin/sh", path), 0);
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(in[0], 0);
		dup2(fds[1], 1);
		execl(path, path, "-c", "echo; read x", (char *)NULL);
		_exit(1);
	}
	/* It has said something, so its name is the new one. */
	assert_int_equal(read(fds[0], &c, 1), 1);
	uint64_t start = os_process_start(pid);
	assert_true(start >= os_process_start(getpid()));
	assert_true(os_process_alive(pid, start));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	for (int i = 0; i < 2; i++) {
		close(fds[i]);
		close(in[i]);
	}
}

static void in_child(int (*fn)(void))
{
	int status;

	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0)
		_exit(fn());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* A family of processes: everyone holds the write end of a pipe, whose end tells that all are gone.
 * Each tells that it is there by a byte. */
static int family_pipe[2];

static _Noreturn void be_family(int levels)
{
	for (int i = 0; i < 2 && levels > 0; i++) {
		if (fork() != 0)
			continue;
		if (levels == 2)
			setsid();
		levels--;
		i = -1;
	}
	alarm(ORPHAN_S);
	if (write(family_pipe[1], "x", 1) == 1)
		for (;;)
			pause();
	_exit(1);
}

static bool wait_family(int n)
{
	char c;

	while (n > 0 && read(family_pipe[0], &c, 1) == 1)
		n--;
	return n == 0;
}

static bool is_family_gone(void)
{
	struct pollfd pollfd = {.fd = family_pipe[0], .events = POLLIN};

	return poll(&pollfd, 1, WAIT_MS) == 1 && (pollfd.revents & POLLHUP);
}

static int kill_descendants(void)
{
	if (os_signal_descendants(SIGTERM, NULL) != 0)
		return 10;
	if (!os_become_subreaper() || pipe2(family_pipe, O_CLOEXEC) < 0)
		return 11;
	if (fork() == 0)
		be_family(3);
	close(family_pipe[1]);
	if (!wait_family(15))
		return 12;
	if (os_signal_descendants(0, NULL) != 15)
		return 13;
	if (os_signal_descendants(SIGKILL, NULL) < 15)
		return 14;
	if (!is_family_gone())
		return 15;
	/* All of them are ours now, to be buried. */
	int n = 0;
	while (waitpid(-1, NULL, 0) > 0)
		n++;
	if (n != 15)
		return 16;
	return os_signal_descendants(SIGKILL, NULL) == 0 ? 0 : 17;
}

static int signal_orphans(void)
{
	if (!os_become_subreaper() || pipe2(family_pipe, O_CLOEXEC) < 0)
		return 10;
	pid_t middle = fork();
	if (middle == 0) {
		if (fork() == 0)
			be_family(0);
		_exit(0);
	}
	close(family_pipe[1]);
	waitpid(middle, NULL, 0);
	if (!wait_family(1))
		return 11;
	if (os_signal_descendants(SIGTERM, NULL) != 1)
		return 12;
	return is_family_gone() && waitpid(-1, NULL, 0) > 0 ? 0 : 13;
}

static void test_descendants(void **state)
{
	if (!is_full()) {
		assert_false(os_become_subreaper());
		assert_int_equal(os_signal_descendants(SIGTERM, NULL), -1);
		return;
	}
	in_child(kill_descendants);
	in_child(signal_orphans);
}

/*
 * Files
 */

typedef int open_fn(int dirfd, const char *path, int flags, mode_t mode);

static void check_open(open_fn *open_it, const char *path, int flags, int want)
{
	int fd = open_it(tmp_fd, path, flags, 0600);

	if (fd < 0 ? fd != want : want != 0)
		fail_msg("%s, flags %o: %d, not %d", path, (unsigned)flags, fd, want);
	if (fd < 0)
		return;
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	close(fd);
}

static void make_tree(void)
{
	if (faccessat(tmp_fd, "d", F_OK, 0) == 0)
		return;
	mkdirat(tmp_fd, "d", 0755);
	mkdirat(tmp_fd, "d/e", 0755);
	put("f");
	put("d/e/f");
	assert_int_equal(symlinkat("f", tmp_fd, "link"), 0);
	assert_int_equal(symlinkat("d", tmp_fd, "dirlink"), 0);
	assert_int_equal(symlinkat("nothing", tmp_fd, "dangling"), 0);
	assert_int_equal(symlinkat("/etc", tmp_fd, "d/out"), 0);
}

static const struct {
	const char *path;
	int flags, want;
} opens[] = {
	{"f", O_RDONLY, 0},
	{"./f", O_RDONLY, 0},
	{"d/e/f", O_RDWR, 0},
	{"d//e/./f", O_RDONLY, 0},
	{"d", O_RDONLY | O_DIRECTORY, 0},
	{"d/", O_RDONLY, 0},
	{"d/e//", O_RDONLY, 0},
	{".", O_RDONLY | O_DIRECTORY, 0},
	{"", O_RDONLY, -ENOENT},
	{"g", O_RDONLY, -ENOENT},
	{"d/g", O_RDONLY, -ENOENT},
	{"g/f", O_RDONLY, -ENOENT},
	{"f/", O_RDONLY, -ENOTDIR},
	{"f/x", O_RDONLY, -ENOTDIR},
	{"f", O_RDONLY | O_DIRECTORY, -ENOTDIR},
	{"/", O_RDONLY, -EXDEV},
	{"/etc/passwd", O_RDONLY, -EXDEV},
	{"..", O_RDONLY, -EXDEV},
	{"../f", O_RDONLY, -EXDEV},
	{"d/../f", O_RDONLY, -EXDEV},
	{"d/..", O_RDONLY, -EXDEV},
	{"d/../", O_RDONLY, -EXDEV},
	{"..f", O_RDONLY, -ENOENT},
	{"d/...", O_RDONLY, -ENOENT},
	{"link", O_RDONLY, -ELOOP},
	{"link", O_RDONLY | O_NOFOLLOW, -ELOOP},
	{"dirlink", O_RDONLY | O_DIRECTORY, -ELOOP},
	{"dirlink/", O_RDONLY, -ELOOP},
	{"dirlink/e", O_RDONLY, -ELOOP},
	{"dirlink/e/f", O_RDONLY, -ELOOP},
	{"dangling", O_RDONLY, -ELOOP},
	{"dangling", O_WRONLY | O_CREAT, -ELOOP},
	{"link", O_WRONLY | O_CREAT | O_EXCL, -EEXIST},
	{"d/out/passwd", O_RDONLY, -ELOOP},
	{"d/out", O_RDONLY, -ELOOP},
	{"f", O_WRONLY | O_CREAT | O_EXCL, -EEXIST},
	{"d", O_WRONLY, -EISDIR},
	{"new/", O_WRONLY | O_CREAT, -EISDIR},
	{"d/", O_RDONLY | O_CREAT, -EISDIR},
#ifdef O_PATH
	{"f", O_PATH, 0},
	{"link", O_PATH, -ELOOP},
	{"link", O_PATH | O_NOFOLLOW, 0},
	{"dirlink/e", O_PATH, -ELOOP},
#endif
};

static void check_beneath(open_fn *open_it)
{
	char long_name[300];

	memset(long_name, 'n', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = '\0';
	for (size_t i = 0; i < sizeof(opens) / sizeof(*opens); i++)
		check_open(open_it, opens[i].path, opens[i].flags, opens[i].want);
	check_open(open_it, long_name, O_RDONLY, -ENAMETOOLONG);
	check_open(open_it, "d/e/new", O_WRONLY | O_CREAT | O_EXCL, 0);
	struct stat st;
	assert_int_equal(fstatat(tmp_fd, "d/e/new", &st, 0), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(unlinkat(tmp_fd, "d/e/new", 0), 0);
	assert_int_equal(open_it(-1, "f", O_RDONLY, 0), -EBADF);
	assert_int_equal(fstatat(tmp_fd, "new", &st, 0), -1);
}

/* Both ways give the same answers; the walk is what old kernels and the portable twin use. */
static void test_beneath(void **state)
{
	make_tree();
	check_beneath(os_open_beneath);
	check_beneath(os_walk_beneath);
}

#ifdef F_SETLEASE
/* A file that somebody wants to be asked about (a file server) keeps nobody waiting who does not
 * want to wait. */
static void test_leased(void **state)
{
	int64_t start_ms = clock_ms();

	put("leased");
	AUTO_FD int fd = openat(tmp_fd, "leased", O_RDWR | O_CLOEXEC);
	signal(SIGIO, SIG_IGN);
	if (fcntl(fd, F_SETLEASE, F_WRLCK) < 0)
		skip(); /* not on this file system */
	assert_int_equal(os_open_beneath(tmp_fd, "leased", O_RDONLY | O_NONBLOCK, 0), -EAGAIN);
	assert_in_range(clock_ms() - start_ms, 0, 10000);
	fcntl(fd, F_SETLEASE, F_UNLCK);
	signal(SIGIO, SIG_DFL);
}
#endif

static void test_leads_out(void **state)
{
	static const char *const out[] = {
		"/", "/a", "..", "../", "a/..", "a/../b", "a//..", "./.."};
	static const char *const in[] = {"", ".", "a", "a/b", "...", "..a", "a..", "a/..b", ".a/"};
	for (size_t i = 0; i < sizeof(out) / sizeof(*out); i++)
		assert_true(os_leads_out(out[i]));
	for (size_t i = 0; i < sizeof(in) / sizeof(*in); i++)
		assert_false(os_leads_out(in[i]));
}

static bool is_readable(int fd, int ms)
{
	struct pollfd pollfd = {.fd = fd, .events = POLLIN};

	return poll(&pollfd, 1, ms) == 1;
}

/* What has no name is not seen, and is there under each name that it is given. */
static void test_nameless(void **state)
{
	AUTO_FD int fd = os_open_nameless(tmp_fd, 0600);
	struct stat st;

	if (fd < 0) {
		assert_int_equal(os_link_fd(tmp_fd, tmp_fd, "x"), is_full() ? -EPERM : -ENOTSUP);
		skip();
	}
	assert_int_equal(write(fd, "abc", 3), 3);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_nlink, 0);
	assert_int_equal(os_link_fd(fd, tmp_fd, "named"), 0);
	assert_int_equal(os_link_fd(fd, tmp_fd, "again"), 0);
	assert_int_equal(os_link_fd(fd, tmp_fd, "named"), -EEXIST);
	assert_int_equal(fstatat(tmp_fd, "again", &st, 0), 0);
	assert_int_equal(st.st_nlink, 2);
	assert_int_equal(st.st_size, 3);
	assert_true(os_open_nameless(fd, 0600) < 0);
}

static void test_watch(void **state)
{
	AUTO_FREE char *file = mem_printf("%s/watched", tmp);
	AUTO_FREE char *dir = mem_printf("%s/watched-dir", tmp);

	put("watched");
	mkdirat(tmp_fd, "watched-dir", 0755);
	os_watch_drain(-1);
	AUTO_FD int on_file = os_watch_open(file);
	AUTO_FD int on_dir = os_watch_open(dir);
	assert_false(os_watch_add(-1, file));
	if (!is_full()) {
		assert_int_equal(on_file, -1);
		assert_int_equal(on_dir, -1);
		return;
	}
	assert_int_equal(os_watch_open("/proc/nonexistent/file"), -1);
	assert_false(os_watch_add(on_dir, "/proc/nonexistent/file"));
	assert_true(fcntl(on_file, F_GETFD) & FD_CLOEXEC);
	assert_false(is_readable(on_file, 0));
	assert_false(is_readable(on_dir, 0));

	AUTO_FD int fd = openat(tmp_fd, "watched", O_WRONLY | O_APPEND | O_CLOEXEC);
	assert_int_equal(write(fd, "y", 1), 1);
	assert_true(is_readable(on_file, WAIT_MS));
	os_watch_drain(on_file);
	assert_false(is_readable(on_file, 0));
	assert_false(is_readable(on_dir, 0));

	put("watched-dir/new");
	assert_true(is_readable(on_dir, WAIT_MS));
	os_watch_drain(on_dir);
	assert_false(is_readable(on_dir, 0));
	close(openat(tmp_fd, "watched-dir/new", O_RDWR | O_CLOEXEC));
	assert_false(is_readable(on_dir, 0));
	assert_int_equal(renameat(tmp_fd, "watched", tmp_fd, "watched-dir/moved"), 0);
	assert_true(is_readable(on_dir, WAIT_MS));
	assert_true(is_readable(on_file, WAIT_MS));

	os_watch_drain(on_dir);
	AUTO_FREE char *moved = mem_printf("%s/moved", dir);
	assert_true(os_watch_add(on_dir, moved));
	assert_false(is_readable(on_dir, 0));
	assert_int_equal(write(fd, "z", 1), 1);
	assert_true(is_readable(on_dir, WAIT_MS));
	os_watch_drain(on_dir);
	put("watched-dir/newer");
	assert_true(is_readable(on_dir, WAIT_MS));
}

static void test_network_fs(void **state)
{
	AUTO_FD int proc = open("/proc", O_RDONLY | O_CLOEXEC);
	AUTO_FD int dev = open("/dev", O_RDONLY | O_CLOEXEC);
	assert_null(os_network_fs(proc));
	assert_null(os_network_fs(dev));
	assert_null(os_network_fs(-1));
}

/*
 * This process
 */

static void test_processors(void **state)
{
	assert_true(os_processors() >= 1);
	assert_true((long)os_processors() <= sysconf(_SC_NPROCESSORS_CONF));
}

static int cloexec_from(void)
{
	int fds[3];

	for (int i = 0; i < 3; i++)
		fds[i] = fcntl(2, F_DUPFD, 40 + i);
	if (!os_cloexec_from(41))
		return is_full() ? 77 : 0;
	if (fcntl(fds[0], F_GETFD) != 0)
		return 2;
	return fcntl(fds[1], F_GETFD) == FD_CLOEXEC && fcntl(fds[2], F_GETFD) == FD_CLOEXEC ? 0 : 3;
}

static void test_cloexec_from(void **state)
{
	int status;

	pid_t pid = fork();
	if (pid == 0)
		_exit(cloexec_from());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WEXITSTATUS(status) == 77)
		skip(); /* Linux before 5.11 */
	assert_int_equal(status, 0);
}

struct keeping {
	int kept, other;
	bool offered, kept_works, other_works;
};

static void *keep_only(void *arg)
{
	struct keeping *keeping = arg;

	keeping->offered = os_keep_only_fd(keeping->kept);
	keeping->kept_works = fcntl(keeping->kept, F_GETFD) >= 0;
	keeping->other_works = fcntl(keeping->other, F_GETFD) >= 0;
	close(keeping->kept);
	return NULL;
}

/* What a thread closes then stays open for the others. */
static void test_keep_only_fd(void **state)
{
	pthread_t thread;
	int fds[3];

	for (int i = 0; i < 3; i++)
		assert_true((fds[i] = fcntl(2, F_DUPFD_CLOEXEC, 3)) >= 3);
	assert_false(os_keep_only_fd(-1));
	assert_false(os_keep_only_fd(2));
	for (int i = 0; i < 3; i++) {
		struct keeping keeping = {.kept = fds[i], .other = fds[(i + 1) % 3]};
		assert_int_equal(pthread_create(&thread, NULL, keep_only, &keeping), 0);
		assert_int_equal(pthread_join(thread, NULL), 0);
		if (!keeping.offered) {
			assert_false(is_full());
			break;
		}
		assert_true(keeping.kept_works);
		assert_false(keeping.other_works);
		assert_true(fcntl(fds[i], F_GETFD) >= 0);
	}
	for (int i = 0; i < 3; i++)
		close(fds[i]);
}

static void test_pipe(void **state)
{
	struct rlimit before, none;
	int fds[2];
	char c;

	for (int flags = 0; flags <= O_NONBLOCK; flags += O_NONBLOCK) {
		assert_int_equal(os_pipe(fds, flags), 0);
		for (int i = 0; i < 2; i++) {
			assert_int_equal(fcntl(fds[i], F_GETFD), FD_CLOEXEC);
			assert_int_equal(fcntl(fds[i], F_GETFL) & O_NONBLOCK, flags);
		}
		assert_int_equal(write(fds[1], "x", 1), 1);
		assert_int_equal(read(fds[0], &c, 1), 1);
		close(fds[0]);
		close(fds[1]);
	}
	/* Room for one more only: neither end is left open. */
	fds[0] = fds[1] = -7;
	int next = dup(2);
	close(next);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = (struct rlimit){.rlim_cur = next + 1, .rlim_max = before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	int r = os_pipe(fds, 0), again = dup(2);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(r, -EMFILE);
	assert_int_equal(fds[0], -7);
	assert_int_equal(fds[1], -7);
	assert_int_equal(again, next);
	close(again);
}

/* Bytes that a pipe takes without a reader. */
static size_t pipe_room(int size)
{
	static const char bytes[4096];
	size_t room = 0;
	int fds[2];

	assert_int_equal(os_pipe(fds, O_NONBLOCK), 0);
	if (size)
		os_pipe_widen(fds[1], size);
	while (write(fds[1], bytes, sizeof(bytes)) == sizeof(bytes))
		room += sizeof(bytes);
	assert_int_equal(errno, EAGAIN);
	close(fds[0]);
	close(fds[1]);
	return room;
}

static void test_pipe_widen(void **state)
{
	size_t usual = pipe_room(0), wide = pipe_room(4 * (int)usual);

	/* Not every system can, and a user who has many pipes may not. */
	assert_true(usual > 0);
	assert_true(wide == usual || (is_full() && wide == 4 * usual));
}

static void test_self_path(void **state)
{
	char path[4096], tiny[4] = "abc";
	struct stat st;

	if (!os_self_path(path, sizeof(path)))
		skip();
	assert_int_equal(path[0], '/');
	assert_int_equal(stat(path, &st), 0);
	assert_true(st.st_mode & S_IXUSR);
	assert_non_null(strstr(path, "test_os"));
	assert_false(os_self_path(tiny, sizeof(tiny)));
}

static int be_nice(void)
{
	os_be_nice();
	int first = getpriority(PRIO_PROCESS, 0);
	os_be_nice();
	return first >= 10 && getpriority(PRIO_PROCESS, 0) == first ? 0 : 1;
}

static int protect(void)
{
	struct rlimit before, after;

	getrlimit(RLIMIT_CORE, &before);
	os_protect_memory();
	getrlimit(RLIMIT_CORE, &after);
	/* What programs that are run inherit is left alone where there is another way. */
	if (is_full())
		return before.rlim_cur == after.rlim_cur ? 0 : 1;
	return after.rlim_cur == 0 && after.rlim_max == before.rlim_max ? 0 : 1;
}

static void test_nice_and_protected(void **state)
{
	in_child(be_nice);
	in_child(protect);
}

/*
 * Families
 */

static const struct os_limits no_limits;

static bool is_empty(void *ctx)
{
	return os_family_is_empty(ctx);
}

/* What it says when no more files can be opened. */
static bool is_empty_unseen(const struct os_family *family)
{
	struct rlimit before, none;

	getrlimit(RLIMIT_NOFILE, &before);
	none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
	setrlimit(RLIMIT_NOFILE, &none);
	bool empty = os_family_is_empty(family);
	setrlimit(RLIMIT_NOFILE, &before);
	return empty;
}

/* 0, or the number of the first thing that is wrong. */
static int use_family(struct os_family *family)
{
	if (!wait_family(7))
		return 20;
	if (os_family_is_empty(family))
		return 21;
	if (is_empty_unseen(family))
		return 25;
	if (os_family_signal(family, 0) != 7)
		return 22;
	if (os_family_signal(family, SIGKILL) != 7)
		return 23;
	return is_family_gone() ? 0 : 24;
}

static int fill_family(struct os_family *family)
{
	int status;

	if (!os_family_is_empty(family) || os_family_signal(family, SIGTERM) != 0)
		return 10;
	if (pipe2(family_pipe, O_CLOEXEC) < 0)
		return 11;
	pid_t pid = os_family_fork(family);
	if (pid == 0) {
		setsid();
		be_family(2);
	}
	close(family_pipe[1]);
	int r = use_family(family);
	os_family_signal(family, SIGKILL);
	waitpid(pid, NULL, 0);
	if (!becomes(is_empty, family))
		return 12;
	/* What is begun afterwards lives. */
	pid = os_family_fork(family);
	if (pid == 0)
		_exit(usleep(10000) == 0 && !os_family_is_empty(family) ? 6 : 7);
	waitpid(pid, &status, 0);
	return r == 0 && status != 6 << 8 ? 13 : r;
}

static int in_family(void)
{
	AUTO_FREE char *name = mem_printf("dlrun-test-%d", (int)getpid());
	struct os_family family;

	if (!os_family_create(&family, name, &no_limits))
		return family.path[0] == '\0' ? 77 : 1;
	AUTO_FREE char *path = mem_strdup(family.path);
	int r = strstr(path, name) ? fill_family(&family) : 2;
	os_family_remove(&family);
	if (r == 0 && (family.path[0] || access(path, F_OK) == 0))
		return 3;
	return r;
}

static void test_family(void **state)
{
	int status;

	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0)
		_exit(in_family());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WEXITSTATUS(status) == 77)
		skip(); /* no cgroup of ours to write to */
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(status, 0);
}

static void test_no_family(void **state)
{
	struct os_family none = {.path = ""}, family;
	int status;

	pid_t pid = os_family_fork(&none);
	if (pid == 0)
		_exit(3);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WEXITSTATUS(status), 3);
	assert_int_equal(os_family_signal(&none, SIGKILL), -1);
	assert_true(os_family_is_empty(&none));
	os_family_remove(&none);
	assert_false(os_family_create(&family, "../up", &no_limits));
	assert_string_equal(family.path, "");
	assert_false(os_family_create(&family, "..", &no_limits));
	assert_false(os_family_create(&family, "", &no_limits));
	assert_string_equal(family.path, "");
}

/* Too many names for one call to the system. */
enum { NAMES = 400, NAME_LEN = 200 };

struct names {
	unsigned times[NAMES];
	size_t n_dots, n_others;
};

static void see_name(void *ctx, const char *name, unsigned char type)
{
	struct names *names = ctx;
	unsigned i = 0;

	if (name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2])))
		names->n_dots++;
	else if (sscanf(name, "%u", &i) == 1 && i < NAMES && strlen(name) == NAME_LEN)
		names->times[i]++;
	else
		names->n_others++;
	assert_true(type == DT_UNKNOWN || type == (name[0] == '.' || i % 2 ? DT_DIR : DT_REG));
}

static void test_list_names(void **state)
{
	AUTO_FREE void *buffer = mem_alloc(1, OS_NAMES_SIZE);
	struct names names = {0};

	assert_int_equal(mkdirat(tmp_fd, "names", 0755), 0);
	AUTO_FD int dir_fd = openat(tmp_fd, "names", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (unsigned i = 0; i < NAMES; i++) {
		AUTO_FREE char *name = mem_printf("%0*u", NAME_LEN, i);
		if (i % 2)
			assert_int_equal(mkdirat(dir_fd, name, 0755), 0);
		else
			close(openat(dir_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
	}
	assert_int_equal(os_list_names(dir_fd, buffer, see_name, &names), 0);
	for (unsigned i = 0; i < NAMES; i++)
		assert_int_equal(names.times[i], 1);
	assert_int_equal(names.n_dots, 2);
	assert_int_equal(names.n_others, 0);

	AUTO_FD int file_fd = openat(tmp_fd, "no-dir", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	assert_int_equal(os_list_names(file_fd, buffer, see_name, &names), -ENOTDIR);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ids),
		cmocka_unit_test(test_hash_id),
		cmocka_unit_test(test_process),
		cmocka_unit_test(test_process_with_odd_name),
		cmocka_unit_test(test_descendants),
		cmocka_unit_test(test_beneath),
		cmocka_unit_test(test_list_names),
#ifdef F_SETLEASE
		cmocka_unit_test(test_leased),
#endif
		cmocka_unit_test(test_leads_out),
		cmocka_unit_test(test_nameless),
		cmocka_unit_test(test_watch),
		cmocka_unit_test(test_network_fs),
		cmocka_unit_test(test_processors),
		cmocka_unit_test(test_cloexec_from),
		cmocka_unit_test(test_keep_only_fd),
		cmocka_unit_test(test_pipe),
		cmocka_unit_test(test_pipe_widen),
		cmocka_unit_test(test_self_path),
		cmocka_unit_test(test_nice_and_protected),
		cmocka_unit_test(test_family),
		cmocka_unit_test(test_no_family),
	};

	return cmocka_run_group_tests_name("os", tests, make_tmp, remove_tmp);
}
