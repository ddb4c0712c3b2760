/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/os_linux.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/ioprio.h>
#include <linux/netlink.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/os/cgroup.h"
#include "base/os/os.h"
#include "base/os/os_shared.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/vec.h"

static void os_each_group(const char *dir, unsigned depth, os_group_visit *visit, void *ctx);
static int64_t os_group_value(const char *dir, const char *file, const char *key);

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC 4
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2
#endif

enum {
	CHILD_STACK_SIZE = 64 << 10,
	STAT_SIZE = 1024,
	KILL_ROUNDS_MAX = 100,
	SHARING_MIN_BYTES = 32 << 20,
};

/* The start of a small file of proc or sysfs as a string without its final newline. */
static bool os_read_small(const char *path, char *out, size_t size)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t len = 0;

	while (fd >= 0 && len < size - 1) {
		ssize_t n = read(fd, out + len, size - 1 - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		len += (size_t)n;
	}
	if (len > 0 && out[len - 1] == '\n')
		len--;
	out[len] = '\0';
	return len > 0;
}

bool os_boot_id(char out[static OS_ID_SIZE])
{
	return os_read_small("/proc/sys/kernel/random/boot_id", out, OS_ID_SIZE);
}

bool os_machine_id(char out[static OS_ID_SIZE])
{
	char id[OS_ID_SIZE];

	/* The file holds "uninitialized" in an image that has not booted yet. */
	if (!os_read_small("/etc/machine-id", id, sizeof(id)) || strlen(id) != 32)
		return os_hostname_id(out);
	os_hash_id(id, out);
	return true;
}

/*
 * Processes (proc(5), /proc/PID/stat)
 */

struct process {
	pid_t pid, parent;
	char state;
	uint64_t start;
	uint64_t cpu_ticks; /* its own and of the children that it waited for */
	int64_t resident_pages;
};

static bool parse_stat(const char *text, struct process *ret)
{
	/* The name in parentheses is the program's own and may hold any byte: the last ) ends
	 * it. */
	const char *rest = strrchr(text, ')');
	int parent;
	unsigned long long start, user, system, children_user, children_system;
	long long resident;

	if (!rest || sscanf(rest + 1,
			     " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %llu %llu %llu %*s"
			     " %*s %*s %*s %llu %*s %lld",
			     &ret->state, &parent, &user, &system, &children_user, &children_system,
			     &start, &resident) != 8)
		return false;
	ret->parent = parent;
	ret->start = start;
	ret->cpu_ticks = user + system + children_user + children_system;
	ret->resident_pages = resident;
	return true;
}

static bool read_process(pid_t pid, struct process *ret)
{
	char path[32], text[STAT_SIZE];

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	ret->pid = pid;
	return pid > 0 && os_read_small(path, text, sizeof(text)) && parse_stat(text, ret);
}

static bool os_linux_is_dead(const struct process *process)
{
	return process->state == 'Z' || process->state == 'X' || process->state == 'x';
}

/* proc_locks(5): "1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF". */
bool os_lock_listed(ino_t inode, pid_t pid)
{
	char line[256];
	FILE *file = fopen("/proc/locks", "re");
	bool is_listed = false;

	while (file && !is_listed && fgets(line, sizeof(line), file)) {
		unsigned long long number;
		int owner;

		is_listed = sscanf(line, "%*s FLOCK %*s WRITE %d %*[0-9a-f]:%*[0-9a-f]:%llu",
				    &owner, &number) == 2 &&
			    number == inode && (pid == 0 || owner == pid);
	}
	if (file)
		fclose(file);
	return is_listed;
}

uint64_t os_process_start(pid_t pid)
{
	struct process process;

	return read_process(pid, &process) ? process.start : 0;
}

bool os_process_alive(pid_t pid, uint64_t start)
{
	struct process process;

	/* With hidepid a process that protects its memory is hidden even from its own user. */
	if (!read_process(pid, &process))
		return pid > 0 && kill(pid, 0) == 0;
	return !os_linux_is_dead(&process) && (start == 0 || process.start == start);
}

bool os_become_subreaper(void)
{
	return prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0;
}

struct processes VEC_OF(struct process);

static int compare_parents(const void *a, const void *b)
{
	const struct process *x = a, *y = b;

	return (x->parent > y->parent) - (x->parent < y->parent);
}

static bool list_processes(struct processes *ret)
{
	AUTO_DIR DIR *dir = opendir("/proc");
	struct dirent *entry;

	if (!dir)
		return false;
	while ((entry = readdir(dir))) {
		char *end;
		long pid = strtol(entry->d_name, &end, 10);
		struct process process;

		if (*end == '\0' && read_process((pid_t)pid, &process))
			*vec_push(ret) = process;
	}
	vec_sort(ret, compare_parents);
	return true;
}

/* The position of the first child of parent in a list that is sorted by parents. */
static size_t first_child(const struct processes *all, pid_t parent)
{
	return vec_bound(all, process, process->parent < parent);
}

static void add_children(const struct processes *all, pid_t parent, struct processes *ret)
{
	size_t i = first_child(all, parent);

	for (; i < all->n && all->v[i].parent == parent; i++)
		*vec_push(ret) = all->v[i];
}

/* Whether the environment of pid has another value for the name of mark. */
static bool has_other_mark(pid_t pid, const char *mark)
{
	size_t name_len = strcspn(mark, "=") + 1, size = 0;
	AUTO_FREE char *entry = NULL;
	bool is_other = false;
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
	FILE *file = fopen(path, "re");
	while (file && !is_other && getdelim(&entry, &size, '\0', file) > 0)
		is_other = strncmp(entry, mark, name_len) == 0 && strcmp(entry, mark) != 0;
	if (file)
		fclose(file);
	return is_other;
}

static void drop_other_marks(const char *mark, size_t from, struct processes *list)
{
	size_t kept = from;

	for (size_t i = from; i < list->n; i++)
		if (!has_other_mark(list->v[i].pid, mark))
			list->v[kept++] = list->v[i];
	list->n = kept;
}

/* The list is not atomic, so a reused pid could close a cycle. */
static void add_offspring(
	const struct processes *all, const char *mark, size_t from, struct processes *ret)
{
	for (size_t i = from; i < ret->n && ret->n <= all->n; i++) {
		size_t n = ret->n;
		add_children(all, ret->v[i].pid, ret);
		if (mark)
			drop_other_marks(mark, n, ret);
	}
}

static const struct process *find_process(const struct processes *list, pid_t pid)
{
	vec_foreach (struct process, process, list)
		if (process->pid == pid)
			return process;
	return NULL;
}

/* List the descendants of this process, nearest first, then root (0: none) and its descendants,
 * unless found already. */
static bool list_descendants(pid_t root, const char *mark, struct processes *ret)
{
	struct processes all = {0};
	bool ok = list_processes(&all);

	ret->n = 0;
	add_children(&all, getpid(), ret);
	if (mark)
		drop_other_marks(mark, 0, ret);
	add_offspring(&all, mark, 0, ret);
	const struct process *other = find_process(&all, root);
	if (other && !find_process(ret, root)) {
		size_t from = ret->n;
		*vec_push(ret) = *other;
		add_offspring(&all, mark, from, ret);
	}
	vec_done(&all);
	return ok;
}

static bool has_process(const struct processes *list, const struct process *process)
{
	for (size_t i = 0; i < list->n; i++)
		if (list->v[i].pid == process->pid && list->v[i].start == process->start)
			return true;
	return false;
}

/* Signal the processes of found that were not signalled before; returns how many. */
static int signal_new(const struct processes *found, int sig, struct processes *done)
{
	int n = 0;

	for (size_t i = 0; i < found->n; i++) {
		if (os_linux_is_dead(&found->v[i]) || has_process(done, &found->v[i]))
			continue;
		kill(found->v[i].pid, sig);
		*vec_push(done) = found->v[i];
		n++;
	}
	return n;
}

int os_signal_descendants(int sig, const char *mark)
{
	struct processes found = {0}, done = {0};
	int n_new = 0, n = -1;

	/* Further rounds find processes that were forked while the list was read. Only SIGKILL
	 * needs them, and it leaves nobody who could fork for ever. */
	for (int round = 0; round < KILL_ROUNDS_MAX; round++) {
		if (!list_descendants(0, mark, &found))
			break;
		n_new = signal_new(&found, sig, &done);
		n = (int)done.n;
		if (n_new == 0 || sig != SIGKILL)
			break;
	}
	vec_done(&found);
	vec_done(&done);
	return n;
}

/*
 * Files
 */

int os_open_beneath(int dirfd, const char *path, int flags, mode_t mode)
{
	static bool is_missing; /* an old kernel, or a filter that does not know the call */
	struct open_how how = {
		.flags = (unsigned)(flags | O_CLOEXEC),
		.mode = flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)) ? mode & 07777 : 0,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
	};

	if (os_leads_out(path))
		return -EXDEV;
	while (!__atomic_load_n(&is_missing, __ATOMIC_RELAXED)) {
		long fd = syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
		if (fd >= 0)
			return (int)fd;
		/* Do not retry on EAGAIN: without ".." it means what it means for open(2). */
		if (errno == EINTR)
			continue;
		if (errno != ENOSYS && errno != EPERM)
			return -errno;
		/* EPERM may also concern this file: only then does the walk fail with it, too. */
		if (errno == ENOSYS)
			__atomic_store_n(&is_missing, true, __ATOMIC_RELAXED);
		break;
	}
	return os_walk_beneath(dirfd, path, flags, mode);
}

/* Without readdir, whose stream costs three more calls on a descriptor before the first name. */
int os_list_names(int fd, void *buffer, os_name_fn *fn, void *ctx)
{
	const char *names = buffer;
	long n;

	while ((n = syscall(SYS_getdents64, fd, buffer, OS_NAMES_SIZE)) > 0) {
		for (long at = 0; at < n;) {
			const struct dirent64 *entry = (const void *)(names + at);
			at += entry->d_reclen;
			fn(ctx, entry->d_name, entry->d_type);
		}
	}
	return n < 0 ? -errno : 0;
}

/* AT_EMPTY_PATH would need a capability. */
static void path_of_fd(int fd, char out[static 32])
{
	snprintf(out, 32, "/proc/self/fd/%d", fd);
}

int os_open_nameless(int dirfd, mode_t mode)
{
	char path[32];
	AUTO_FD int fd = openat(dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, mode);

	if (fd < 0)
		return -errno;
	path_of_fd(fd, path);
	/* Without /proc, os_link_fd could never name the file. */
	if (access(path, F_OK) < 0)
		return -ENOTSUP;
	return TAKE_FD(fd);
}

bool os_reserve(int fd, off_t offset, off_t len)
{
	return fallocate(fd, FALLOC_FL_KEEP_SIZE, offset, len) == 0;
}

int os_link_fd(int fd, int dirfd, const char *name)
{
	char path[32];

	path_of_fd(fd, path);
	if (linkat(AT_FDCWD, path, dirfd, name, AT_SYMLINK_FOLLOW) == 0)
		return 0;
	/* Without /proc the path is what is missing, not the file. */
	return errno == ENOENT ? -ENOTSUP : -errno;
}

bool os_watch_add(int fd, const char *path)
{
	enum {
		FILE_EVENTS =
			IN_MODIFY | IN_CLOSE_WRITE | IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF,
		DIR_EVENTS = IN_CREATE | IN_MOVED_TO
	};
	AUTO_FD int at = open(path, O_PATH | O_CLOEXEC);
	struct stat st;

	/* inotify does not report writes by other machines. */
	if (fd < 0 || at < 0 || fstat(at, &st) < 0 || os_network_fs(at))
		return false;
	return inotify_add_watch(fd, path, S_ISDIR(st.st_mode) ? DIR_EVENTS : FILE_EVENTS) >= 0;
}

int os_watch_open(const char *path)
{
	AUTO_FD int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);

	return os_watch_add(fd, path) ? TAKE_FD(fd) : -1;
}

void os_watch_drain(int fd)
{
	char events[4096];

	while (fd >= 0 && read(fd, events, sizeof(events)) > 0)
		;
}

/*
 * This process
 */

unsigned os_processors(void)
{
	cpu_set_t set;

	/* The set is too small for more than 1,024 CPUs. */
	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		return (unsigned)CPU_COUNT(&set);
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	return n > 0 ? (unsigned)n : 1;
}

int os_pipe(int fds[static 2], int flags)
{
	return pipe2(fds, O_CLOEXEC | flags) < 0 ? -errno : 0;
}

void os_pipe_widen(int fd, int size)
{
	fcntl(fd, F_SETPIPE_SZ, size);
}

bool os_cloexec_from(int low)
{
#ifdef SYS_close_range
	return syscall(SYS_close_range, (unsigned)low, ~0U, CLOSE_RANGE_CLOEXEC) == 0;
#else
	(void)low;
	return false;
#endif
}

bool os_keep_only_fd(int fd)
{
#ifdef SYS_close_range
	enum { LOW = 3 };
	unsigned at = (unsigned)fd;

	if (fd < LOW || syscall(SYS_close_range, at + 1, ~0U, CLOSE_RANGE_UNSHARE) < 0)
		return false;
	if (at > LOW)
		syscall(SYS_close_range, LOW, at - 1, 0);
	return true;
#else
	(void)fd;
	return false;
#endif
}

/* Like posix_spawn, without the copy of the page tables that fork makes, which takes longer than
 * exec. The child has a stack of its own, because it must not write over the frames of the caller;
 * from malloc, so that a sanitizer knows where it ends. */
pid_t os_start_child(int (*fn)(void *ctx), void *ctx)
{
	AUTO_FREE char *stack = mem_grow(NULL, CHILD_STACK_SIZE, 1);
	uintptr_t top = (uintptr_t)(stack + CHILD_STACK_SIZE) & ~(uintptr_t)63;

	return clone(fn, (void *)top, CLONE_VM | CLONE_VFORK | SIGCHLD, ctx);
}

bool os_self_path(char *out, size_t size)
{
	static const char link[] = "/proc/self/exe";
	struct stat here, there;
	ssize_t len = readlink(link, out, size);

	if (len < 0 || (size_t)len >= size || stat(link, &here) < 0)
		return false;
	out[len] = '\0';
	if (stat(out, &there) == 0 && here.st_dev == there.st_dev && here.st_ino == there.st_ino)
		return true;
	/* The program was replaced while it runs: the link still opens the old one. */
	if (size < sizeof(link))
		return false;
	memcpy(out, link, sizeof(link));
	return true;
}

/* A limit on cores would be inherited by the programs that are run, this is not. */
void os_protect_memory(void)
{
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

void os_be_nice(void)
{
	if (getpriority(PRIO_PROCESS, 0) < 10)
		setpriority(PRIO_PROCESS, 0, 10);
	/* The idle class would never get a turn on a disk that is always busy. */
	syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 7));
}

/*
 * Mounts
 */

typedef bool mount_test(const struct mount *mount, const void *wanted);

/* Find the last matching mount: it covers the others. */
static bool find_mount(mount_test *fits, const void *wanted, struct mount *ret)
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	char *line = NULL;
	size_t size = 0;
	bool found = false;
	struct mount mount;

	if (!file)
		return false;
	while (getline(&line, &size, file) > 0) {
		if (!mount_parse(line, &mount) || !fits(&mount, wanted))
			continue;
		*ret = mount;
		found = true;
	}
	free(line);
	fclose(file);
	return found;
}

static bool is_on_device(const struct mount *mount, const void *wanted)
{
	return strcmp(mount->device, wanted) == 0;
}

/* A file system in user space is identified only by its mount; one not known to be local may be
 * remote. */
static const char *fuse_network(int fd)
{
	static const char *const local[] = {"fuseblk", "virtiofs", "fuse.bindfs", "fuse.encfs",
		"fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.lxcfs", "fuse.mergerfs",
		"fuse.squashfuse", "fuse.unionfs"};
	static const char *const remote[] = {"fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
		"fuse.goofys", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"};
	char device[32];
	struct mount mount;
	struct stat st;

	if (fstat(fd, &st) < 0)
		return "fuse";
	snprintf(device, sizeof(device), "%u:%u", major(st.st_dev), minor(st.st_dev));
	if (!find_mount(is_on_device, device, &mount))
		return "fuse";
	for (size_t i = 0; i < ARRAY_LEN(local); i++)
		if (strcmp(mount.type, local[i]) == 0)
			return NULL;
	for (size_t i = 0; i < ARRAY_LEN(remote); i++)
		if (strcmp(mount.type, remote[i]) == 0)
			return remote[i];
	return "fuse";
}

const char *os_network_fs(int fd)
{
	/* statfs(2) */
	static const struct {
		unsigned long type;
		const char *name;
	} network[] = {
		{0x6969, "nfs"},
		{0x517b, "smb"},
		{0xff534d42, "smb"},
		{0xfe534d42, "smb"},
		{0x00c36400, "ceph"},
		{0x01021997, "9p"},
		{0x0bd00bd0, "lustre"},
		{0x19830326, "beegfs"},
		{0x47504653, "gpfs"},
		{0x5346414f, "afs"},
		{0x6b414653, "afs"},
		{0x73757245, "coda"},
		{0x01161970, "gfs2"},
		{0x7461636f, "ocfs2"},
	};
	enum { FUSE = 0x65735546 };
	struct statfs st;

	if (fstatfs(fd, &st) < 0)
		return NULL;
	unsigned long type = (unsigned long)st.f_type & 0xffffffff;
	if (type == FUSE)
		return fuse_network(fd);
	for (size_t i = 0; i < ARRAY_LEN(network); i++)
		if (type == network[i].type)
			return network[i].name;
	return NULL;
}

bool os_dir_times_hold(int fd)
{
	static const unsigned long known[] = {
		0xef53,     /* ext2, ext3, ext4 */
		0x58465342, /* xfs */
		0x9123683e, /* btrfs */
		0xf2f52010, /* f2fs */
		0x01021994, /* tmpfs */
	};
	struct statfs st;

	if (fstatfs(fd, &st) < 0)
		return false;
	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (((unsigned long)st.f_type & 0xffffffff) == known[i])
			return true;
	return false;
}

/*
 * Resource use of processes
 */

/* Shared pages are counted in parts, so that sums are right. The kernel walks through all pages for
 * that. */
static int64_t proportional_bytes(const struct process *process, int64_t fallback)
{
	char path[48], text[2048];
	long long kib;

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)process->pid);
	if (!os_read_small(path, text, sizeof(text)))
		return fallback;
	const char *line = strstr(text, "\nPss:");
	return line && sscanf(line + 5, "%lld", &kib) == 1 ? kib * 1024 : fallback;
}

static int64_t memory_of(const struct processes *list)
{
	int64_t page = sysconf(_SC_PAGESIZE), bytes = 0;
	unsigned n_large = 0;

	vec_foreach (struct process, process, list)
		n_large += process->resident_pages * page >= SHARING_MIN_BYTES;
	vec_foreach (struct process, process, list) {
		int64_t resident = process->resident_pages * page;

		if (n_large > 1 && resident >= SHARING_MIN_BYTES)
			bytes += proportional_bytes(process, resident);
		else
			bytes += resident;
	}
	return bytes;
}

static void os_linux_add_members(const char *dir, void *ctx)
{
	char path[512];
	int pid;
	struct process process;

	if ((size_t)snprintf(path, sizeof(path), "%s/cgroup.procs", dir) >= sizeof(path))
		return;
	FILE *file = fopen(path, "re");
	while (file && fscanf(file, "%d", &pid) == 1)
		if (read_process(pid, &process))
			*vec_push((struct processes *)ctx) = process;
	if (file)
		fclose(file);
}

/* Exclude the page cache of files, which memory.current and memory.peak count: it is as large as
 * the machine allows. */
static bool group_memory(const char *dir, int64_t *ret)
{
	int64_t anon = os_group_value(dir, "memory.stat", "anon");
	int64_t mapped = os_group_value(dir, "memory.stat", "file_mapped");

	if (anon < 0 || mapped < 0)
		return false;
	*ret = anon + mapped;
	return true;
}

static bool use_of_group(const char *dir, struct os_use *ret)
{
	int64_t usec = os_group_value(dir, "cpu.stat", "usage_usec");

	if (usec < 0)
		return false;
	ret->cpu_s = (double)usec / 1e6;
	ret->cpu_is_whole = true;
	if (group_memory(dir, &ret->memory_bytes))
		return true;
	/* The memory controller is seldom enabled where programs run. */
	struct processes members = {0};
	os_each_group(dir, 0, os_linux_add_members, &members);
	ret->memory_bytes = memory_of(&members);
	vec_done(&members);
	return true;
}

bool os_family_use(const struct os_family *family, pid_t root, struct os_use *ret)
{
	struct processes found = {0};
	struct os_use use = {0};
	uint64_t ticks = 0;

	if (family->path[0] && use_of_group(family->path, &use)) {
		*ret = use;
		return true;
	}
	bool ok = list_descendants(root, NULL, &found);
	vec_foreach (struct process, process, &found)
		ticks += process->cpu_ticks;
	use.cpu_s = (double)ticks / (double)sysconf(_SC_CLK_TCK);
	use.memory_bytes = memory_of(&found);
	vec_done(&found);
	if (ok)
		*ret = use;
	return ok;
}

/*
 * Families (cgroups(7), kernel Documentation/admin-guide/cgroup-v2.rst and cgroup-v1)
 */

enum {
	DEPTH_MAX = 16,
	PATH_SIZE = 2 * CGROUP_PATH_SIZE,
	PROC_MAX = 256 << 10,
	PERIOD_US = 100000,
	CPUS_MILLI_MIN = 10, /* the kernel's least: 1 ms of a period */
};

#define FAMILY_PREFIX "dlrun-"

/* A number in a file of a group (cgroup.h), -1: there is none. */
static int64_t os_group_value(const char *dir, const char *file, const char *key)
{
	char path[PATH_SIZE], text[8192];

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	return os_read_small(path, text, sizeof(text)) ? cgroup_value(text, key) : -1;
}

static void os_linux_find_own(struct cgroup_dirs *ret)
{
	AUTO_FREE char *groups = mem_alloc(PROC_MAX, 1), *mounts = mem_alloc(PROC_MAX, 1);

	*ret = (struct cgroup_dirs){{0}};
	if (os_read_small("/proc/self/cgroup", groups, PROC_MAX) &&
		os_read_small("/proc/self/mountinfo", mounts, PROC_MAX))
		cgroup_find(groups, mounts, ret);
}

/* Write a word to a file of a cgroup. */
static bool write_group(const char *dir, const char *file, const char *word)
{
	char path[PATH_SIZE];

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	AUTO_FD int fd = open(path, O_WRONLY | O_CLOEXEC);
	return fd >= 0 && write(fd, word, strlen(word)) == (ssize_t)strlen(word);
}

static bool write_number(const char *dir, const char *file, uint64_t number)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)number);
	return write_group(dir, file, text);
}

static void os_each_group(const char *dir, unsigned depth, os_group_visit *visit, void *ctx)
{
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;
	char path[PATH_SIZE];

	while (stream && depth < DEPTH_MAX && (entry = readdir(stream))) {
		if (entry->d_type != DT_DIR || entry->d_name[0] == '.')
			continue;
		if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name) <
			sizeof(path))
			os_each_group(path, depth + 1, visit, ctx);
	}
	visit(dir, ctx);
}

/*
 * Parent of a family
 */

/* Moving a process requires write access to this file of the common ancestor. */
static bool os_linux_is_ours(const char *dir)
{
	char path[PATH_SIZE];

	snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
	return dir[0] && access(path, W_OK) == 0;
}

/* Limits (OS_LIMIT_…) that groups below dir can have. */
static unsigned limits_below(const char *dir)
{
	char path[PATH_SIZE], text[512];

	snprintf(path, sizeof(path), "%s/cgroup.subtree_control", dir);
	if (!os_read_small(path, text, sizeof(text)))
		return 0;
	return (cgroup_has_word(text, "memory") ? OS_LIMIT_MEMORY : 0) |
	       (cgroup_has_word(text, "cpu") ? OS_LIMIT_CPUS : 0);
}

/* Enable the controllers for wanted in groups below dir. Fails, and changes nothing, if dir has
 * processes of its own, unless it is the root. */
static unsigned enable_below(const char *dir, unsigned wanted)
{
	unsigned lacks = wanted & ~limits_below(dir);

	if (lacks & OS_LIMIT_MEMORY)
		write_group(dir, "cgroup.subtree_control", "+memory");
	if (lacks & OS_LIMIT_CPUS)
		write_group(dir, "cgroup.subtree_control", "+cpu");
	return limits_below(dir) & wanted;
}

/* Whether dir has a limit: a process moved out of dir would escape from it. */
static bool os_linux_is_limited(const char *dir)
{
	static const char *const files[] = {"memory.max", "memory.high", "cpu.max"};
	char path[PATH_SIZE], text[64];

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
		if (os_read_small(path, text, sizeof(text)) && strncmp(text, "max", 3) != 0)
			return true;
	}
	return false;
}

/* Our own group, or the nearest one above where the wanted limits are possible: controllers are
 * enabled only by groups without processes, such as a slice of systemd. Memory counts more. */
static void choose_parent(const struct cgroup_dirs *own, unsigned wanted, char *ret)
{
	char dir[CGROUP_PATH_SIZE];
	unsigned best = 0;

	memcpy(dir, own->unified, sizeof(dir));
	memcpy(ret, dir, sizeof(dir));
	if (wanted && os_linux_is_ours(dir))
		best = enable_below(dir, wanted);
	while (best != wanted && strcmp(dir, own->top) != 0 && !os_linux_is_limited(dir)) {
		char *slash = strrchr(dir, '/');

		if (!slash)
			return;
		*slash = '\0';
		if (!os_linux_is_ours(dir))
			return;
		unsigned has = limits_below(dir) & wanted;
		if (has > best) {
			best = has;
			memcpy(ret, dir, sizeof(dir));
		}
	}
}

/*
 * Creating a family
 */

static void remove_group(const char *dir, void *ctx UNUSED)
{
	rmdir(dir);
}

/* Whether the process that made dlrun-…-PID is gone. */
static bool is_leftover(const char *name)
{
	const char *dash = strrchr(name, '-');
	long pid = dash ? strtol(dash + 1, NULL, 10) : 0;

	return strncmp(name, FAMILY_PREFIX, strlen(FAMILY_PREFIX)) == 0 && pid > 0 &&
	       kill((pid_t)pid, 0) < 0 && errno == ESRCH;
}

/* A group in use cannot be removed. */
static void remove_leftovers(const char *parent)
{
	AUTO_DIR DIR *stream = opendir(parent);
	struct dirent *entry;
	char path[PATH_SIZE];

	while (stream && (entry = readdir(stream)))
		if (is_leftover(entry->d_name) && (size_t)snprintf(path, sizeof(path), "%s/%s",
							  parent, entry->d_name) < sizeof(path))
			os_each_group(path, 0, remove_group, NULL);
}

static void make_group(const char *parent, const char *name, char *ret)
{
	char path[PATH_SIZE];

	if (!os_linux_is_ours(parent))
		return;
	remove_leftovers(parent);
	int n = snprintf(path, sizeof(path), "%s/%s", parent, name);
	if (n > 0 && n < CGROUP_PATH_SIZE && (mkdir(path, 0755) == 0 || errno == EEXIST))
		memcpy(ret, path, (size_t)n + 1);
}

/* Limit swap as well: otherwise a limit would only make everything slow. */
static bool limit_memory(const char *dir, bool is_v1, uint64_t bytes)
{
	if (!write_number(dir, is_v1 ? "memory.limit_in_bytes" : "memory.max", bytes))
		return false;
	if (is_v1)
		write_number(dir, "memory.memsw.limit_in_bytes", bytes);
	else
		write_group(dir, "memory.swap.max", "0");
	return true;
}

static bool limit_cpus(const char *dir, bool is_v1, int64_t milli)
{
	uint64_t us =
		(uint64_t)(milli > CPUS_MILLI_MIN ? milli : CPUS_MILLI_MIN) * (PERIOD_US / 1000);
	char text[64];

	if (is_v1)
		return write_number(dir, "cpu.cfs_period_us", PERIOD_US) &&
		       write_number(dir, "cpu.cfs_quota_us", us);
	snprintf(text, sizeof(text), "%llu %d", (unsigned long long)us, PERIOD_US);
	return write_group(dir, "cpu.max", text);
}

static void os_linux_set_limits(struct os_family *family, const struct os_limits *limits)
{
	const char *memory = family->memory[0] ? family->memory : family->path;
	const char *cpu = family->cpu[0] ? family->cpu : family->path;

	if (limits->memory_bytes && memory[0] &&
		limit_memory(memory, family->memory[0], limits->memory_bytes))
		family->enforced |= OS_LIMIT_MEMORY;
	if (limits->cpus_milli && cpu[0] && limit_cpus(cpu, family->cpu[0], limits->cpus_milli))
		family->enforced |= OS_LIMIT_CPUS;
}

bool os_family_create_in(const struct cgroup_dirs *own, struct os_family *family, const char *name,
	const struct os_limits *limits)
{
	char parent[CGROUP_PATH_SIZE];
	unsigned wanted = 0;

	*family = (struct os_family){{0}};
	if (!*name || strchr(name, '/') || name[0] == '.')
		return false;
	if (limits->memory_bytes)
		make_group(own->memory, name, family->memory);
	if (limits->cpus_milli)
		make_group(own->cpu, name, family->cpu);
	if (limits->memory_bytes && !own->memory[0])
		wanted |= OS_LIMIT_MEMORY;
	if (limits->cpus_milli && !own->cpu[0])
		wanted |= OS_LIMIT_CPUS;
	choose_parent(own, wanted, parent);
	make_group(parent, name, family->path);
	os_linux_set_limits(family, limits);
	return os_family_is(family);
}

bool os_family_create(struct os_family *family, const char *name, const struct os_limits *limits)
{
	struct cgroup_dirs own;

	os_linux_find_own(&own);
	return os_family_create_in(&own, family, name, limits);
}

/*
 * Members of a family
 */

/* The group whose members are those of the family. */
static const char *members_of(const struct os_family *family)
{
	if (family->path[0])
		return family->path;
	return family->memory[0] ? family->memory : family->cpu;
}

bool os_family_is(const struct os_family *family)
{
	return members_of(family)[0];
}

/* Fork without the fork handlers of libraries. Moving an existing process takes the kernel some 10
 * ms, since all processors have to agree. */
static pid_t fork_into(const char *dir)
{
#if defined(SYS_clone3) && defined(CLONE_INTO_CGROUP)
	AUTO_FD int fd = dir[0] ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	struct clone_args args = {
		.flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (uint64_t)fd};

	return fd < 0 ? -1 : (pid_t)syscall(SYS_clone3, &args, sizeof(args));
#else
	(void)dir;
	return -1;
#endif
}

pid_t os_family_fork(const struct os_family *family)
{
	const char *const dirs[] = {family->path, family->memory, family->cpu};
	/* Linux 6.14 and later kill children created in a group that was killed before: they
	 * compare its count of kills with that of the parent's group. */
	pid_t pid = family->was_killed ? -1 : fork_into(family->path);
	size_t n_entered = pid < 0 ? 0 : 1;

	if (pid < 0)
		pid = fork();
	for (size_t i = n_entered; pid == 0 && i < ARRAY_LEN(dirs); i++)
		if (dirs[i][0])
			write_group(dirs[i], "cgroup.procs", "0");
	return pid;
}

/* Cut dir, a group of a family or below one, where the family begins; false: it is none. Scopes of
 * systemd have such names, too. */
static bool cut_family(char *dir)
{
	for (char *at = dir; (at = strstr(at, "/" FAMILY_PREFIX)); at++) {
		size_t len = strcspn(at + 1, "/");
		if (len > 6 && memcmp(at + 1 + len - 6, ".scope", 6) == 0)
			continue;
		*at = '\0';
		return true;
	}
	return false;
}

void os_family_leave(void)
{
	char beside[CGROUP_PATH_SIZE], name[32];
	struct cgroup_dirs own;

	os_linux_find_own(&own);
	char *const dirs[] = {own.unified, own.memory, own.cpu};
	snprintf(name, sizeof(name), FAMILY_PREFIX "beside-%ld", (long)getpid());
	for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
		if (!cut_family(dirs[i]) || write_group(dirs[i], "cgroup.procs", "0"))
			continue;
		/* A group that enables controllers for its children takes no process itself. */
		beside[0] = '\0';
		make_group(dirs[i], name, beside);
		if (beside[0])
			write_group(beside, "cgroup.procs", "0");
	}
}

struct group_signal {
	int sig;
	int n;
};

static void signal_group(const char *dir, void *ctx)
{
	struct group_signal *signal = ctx;
	char path[PATH_SIZE];
	int pid;

	if ((size_t)snprintf(path, sizeof(path), "%s/cgroup.procs", dir) >= sizeof(path))
		return;
	FILE *file = fopen(path, "re");
	while (file && fscanf(file, "%d", &pid) == 1) {
		/* 0: a process of another pid namespace. */
		if (pid > 0 && kill(pid, signal->sig) == 0)
			signal->n++;
	}
	if (file)
		fclose(file);
}

int os_family_signal(struct os_family *family, int sig)
{
	struct group_signal signal = {.sig = sig == SIGKILL ? 0 : sig};
	const char *dir = members_of(family);

	if (!dir[0])
		return -1;
	os_each_group(dir, 0, signal_group, &signal);
	family->was_killed |= sig == SIGKILL;
	if (sig != SIGKILL || write_group(dir, "cgroup.kill", "1"))
		return signal.n;
	/* Before Linux 5.14, and with version 1, repeat until no new processes appear. */
	int n = signal.n;
	signal.sig = SIGKILL;
	for (int round = 0; round < KILL_ROUNDS_MAX && !os_family_is_empty(family); round++) {
		os_each_group(dir, 0, signal_group, &signal);
		sched_yield();
	}
	return n;
}

/* With version 1 the lists are read; one that cannot be read may not be empty. */
static void os_linux_check_group(const char *dir, void *ctx)
{
	bool *is_empty = ctx;
	char path[PATH_SIZE], text[32];

	snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 ? errno != ENOENT : read(fd, text, sizeof(text)) != 0)
		*is_empty = false;
}

bool os_family_is_empty(const struct os_family *family)
{
	const char *dir = members_of(family);
	char path[PATH_SIZE], text[256];
	bool is_empty = true;

	if (!dir[0])
		return true;
	snprintf(path, sizeof(path), "%s/cgroup.events", dir);
	if (os_read_small(path, text, sizeof(text)))
		return !strstr(text, "populated 1");
	/* A group that is gone is empty; one that cannot be examined may not be. */
	if (access(dir, F_OK) < 0)
		return errno == ENOENT;
	if (family->path[0])
		return false;
	os_each_group(dir, 0, os_linux_check_group, &is_empty);
	return is_empty;
}

void os_family_remove(struct os_family *family)
{
	const char *const dirs[] = {family->path, family->memory, family->cpu};

	for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
		if (dirs[i][0])
			os_each_group(dirs[i], 0, remove_group, NULL);
	*family = (struct os_family){{0}};
}

/*
 * Processes killed by the kernel for lack of memory
 */

/* Version 2 counts groups below as well, version 1 does not. */
static int64_t kills_in(const char *dir)
{
	int64_t n = os_group_value(dir, "memory.events", "oom_kill");

	return n >= 0 ? n : os_group_value(dir, "memory.oom_control", "oom_kill");
}

int64_t os_family_oom_kills_in(
	const struct cgroup_dirs *own, const struct os_family *family, bool *ret_shared)
{
	const char *memory = family->memory[0] ? family->memory : family->path;
	int64_t n = memory[0] ? kills_in(memory) : -1;
	char dir[CGROUP_PATH_SIZE];

	*ret_shared = n < 0;
	if (n < 0 && own->memory[0])
		return kills_in(own->memory);
	memcpy(dir, own->unified, sizeof(dir));
	/* Where the controller is not enabled the group above counts. */
	while (n < 0 && dir[0] && (n = kills_in(dir)) < 0 && strcmp(dir, own->top) != 0)
		*strrchr(dir, '/') = '\0';
	return n;
}

int64_t os_family_oom_kills(const struct os_family *family, bool *ret_shared)
{
	struct cgroup_dirs own;

	os_linux_find_own(&own);
	return os_family_oom_kills_in(&own, family, ret_shared);
}

enum { LINES_MAX = 1 << 16, LINE_SIZE = 512, REPLY_SIZE = 2048, NAME_SIZE = 48 };

/* An end of a connection. */
struct side {
	int family;
	uint32_t words[4]; /* of the address, in network order */
	uint16_t port;     /* too */
};

static bool read_side(const struct sockaddr_storage *address, struct side *ret)
{
	const struct sockaddr_in *ip4 = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *ip6 = (const struct sockaddr_in6 *)address;

	*ret = (struct side){.family = address->ss_family};
	if (address->ss_family == AF_INET) {
		ret->words[0] = ip4->sin_addr.s_addr;
		ret->port = ip4->sin_port;
	} else if (address->ss_family == AF_INET6) {
		memcpy(ret->words, &ip6->sin6_addr, sizeof(ret->words));
		ret->port = ip6->sin6_port;
	}
	return ret->port != 0;
}

/*
 * sock_diag(7): request one socket by its addresses
 */

static int os_linux_send_request(int fd, const struct side *local, const struct side *remote)
{
	struct {
		struct nlmsghdr header;
		struct inet_diag_req_v2 request;
	} message = {
		.header = {.nlmsg_len = sizeof(message),
			.nlmsg_type = SOCK_DIAG_BY_FAMILY,
			.nlmsg_flags = NLM_F_REQUEST},
		.request = {.sdiag_family = (uint8_t)local->family,
			.sdiag_protocol = IPPROTO_TCP,
			.idiag_states = UINT32_MAX,
			.id = {.idiag_sport = local->port,
				.idiag_dport = remote->port,
				.idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}},
	};

	memcpy(message.request.id.idiag_src, local->words, sizeof(local->words));
	memcpy(message.request.id.idiag_dst, remote->words, sizeof(remote->words));
	return send(fd, &message, sizeof(message), 0) == sizeof(message) ? 0 : -errno;
}

/* The kernel finds a listener where the connection no longer exists. */
static int read_reply(const struct nlmsghdr *header, const struct side *remote, uid_t *ret)
{
	const struct inet_diag_msg *found = NLMSG_DATA(header);

	if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
		header->nlmsg_len < NLMSG_LENGTH(sizeof(*found)))
		return -ENOTSUP;
	if (found->id.idiag_dport != remote->port || found->idiag_inode == 0)
		return 0;
	*ret = found->idiag_uid;
	return 1;
}

static int os_linux_query_peer(const struct side *local, const struct side *remote, uid_t *ret)
{
	_Alignas(struct nlmsghdr) char reply[REPLY_SIZE];
	AUTO_FD int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);

	if (fd < 0 || os_linux_send_request(fd, local, remote) < 0)
		return -ENOTSUP;
	/* The reply is available as soon as the request has been sent. */
	ssize_t n = recv(fd, reply, sizeof(reply), MSG_DONTWAIT);
	const struct nlmsghdr *header = (const struct nlmsghdr *)reply;
	if (n < (ssize_t)sizeof(*header) || header->nlmsg_len > (size_t)n)
		return -ENOTSUP;
	return read_reply(header, remote, ret);
}

/*
 * /proc/net/tcp, tcp6 (proc(5)): all sockets. A mapped address is that of an IPv6 socket which
 * speaks IPv4.
 */

static void print_side(const struct side *side, bool is_mapped, char out[static NAME_SIZE])
{
	uint32_t ip = side->words[0];

	if (side->family == AF_INET6)
		snprintf(out, NAME_SIZE, "%08X%08X%08X%08X:%04X", side->words[0], side->words[1],
			side->words[2], side->words[3], ntohs(side->port));
	else if (is_mapped)
		snprintf(out, NAME_SIZE, "%016X%08X%08X:%04X", 0, htonl(0xffff), ip,
			ntohs(side->port));
	else
		snprintf(out, NAME_SIZE, "%08X:%04X", ip, ntohs(side->port));
}

/* The uid in the line if it is for that connection and belongs to a process. */
static bool os_linux_read_line(const char *line, const char *local, const char *remote, uid_t *ret)
{
	char names[2][NAME_SIZE];
	unsigned uid;
	unsigned long inode;

	if (sscanf(line, " %*d: %47s %47s %*x %*s %*s %*s %u %*d %lu", names[0], names[1], &uid,
		    &inode) != 4 ||
		strcmp(names[0], local) != 0 || strcmp(names[1], remote) != 0 || inode == 0)
		return false;
	*ret = uid;
	return true;
}

static int search(const char *path, bool is_mapped, const struct side *local,
	const struct side *remote, uid_t *ret)
{
	char names[2][NAME_SIZE], line[LINE_SIZE];
	bool is_found = false;
	FILE *file = fopen(path, "re");

	if (!file)
		return -ENOTSUP;
	print_side(local, is_mapped, names[0]);
	print_side(remote, is_mapped, names[1]);
	for (int i = 0; i < LINES_MAX && !is_found && fgets(line, sizeof(line), file); i++)
		is_found = os_linux_read_line(line, names[0], names[1], ret);
	fclose(file);
	return is_found;
}

static int search_all(const struct side *local, const struct side *remote, uid_t *ret)
{
	int r = -ENOTSUP;

	if (local->family == AF_INET)
		r = search("/proc/net/tcp", false, local, remote, ret);
	if (r > 0)
		return r;
	int r6 = search("/proc/net/tcp6", true, local, remote, ret);
	return r6 >= 0 ? r6 : r;
}

/* The peer's socket has our addresses swapped. The kernel reports a missing module like a missing
 * socket, so the list is read in both cases. */
int os_peer_uid(int fd, uid_t *ret)
{
	struct sockaddr_storage own = {0}, peer = {0};
	socklen_t own_len = sizeof(own), peer_len = sizeof(peer);
	struct side local, remote;

	if (getsockname(fd, (struct sockaddr *)&own, &own_len) < 0 ||
		getpeername(fd, (struct sockaddr *)&peer, &peer_len) < 0)
		return errno == ENOTCONN ? 0 : -errno;
	if (!read_side(&peer, &local) || !read_side(&own, &remote))
		return -ENOTSUP;
	int r = os_linux_query_peer(&local, &remote, ret);
	return r == -ENOTSUP ? search_all(&local, &remote, ret) : r;
}
