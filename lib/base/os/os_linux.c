/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ioprio.h>
#include <linux/openat2.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/os/cgroup.h"
#include "base/os/os_linux.h"
#include "base/os/os_shared.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/vec.h"

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

bool os_read_small(const char *path, char *out, size_t size)
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

static bool is_dead(const struct process *process)
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
	return !is_dead(&process) && (start == 0 || process.start == start);
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
		if (is_dead(&found->v[i]) || has_process(done, &found->v[i]))
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

static void add_members(const char *dir, void *ctx)
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
	os_each_group(dir, 0, add_members, &members);
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
