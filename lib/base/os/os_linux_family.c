/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/os_linux.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/mem.h"

/*
 * Families (cgroups(7), kernel Documentation/admin-guide/cgroup-v2.rst and cgroup-v1)
 */

enum {
	KILL_ROUNDS_MAX = 100,
	DEPTH_MAX = 16,
	PATH_SIZE = 2 * CGROUP_PATH_SIZE,
	PROC_MAX = 256 << 10,
	PERIOD_US = 100000,
	CPUS_MILLI_MIN = 10, /* the kernel's least: 1 ms of a period */
};

#define FAMILY_PREFIX "dlrun-"

int64_t os_group_value(const char *dir, const char *file, const char *key)
{
	char path[PATH_SIZE], text[8192];

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	return os_read_small(path, text, sizeof(text)) ? cgroup_value(text, key) : -1;
}

static void find_own(struct cgroup_dirs *ret)
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

void os_each_group(const char *dir, unsigned depth, os_group_visit *visit, void *ctx)
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
static bool is_ours(const char *dir)
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
static bool is_limited(const char *dir)
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
	if (wanted && is_ours(dir))
		best = enable_below(dir, wanted);
	while (best != wanted && strcmp(dir, own->top) != 0 && !is_limited(dir)) {
		char *slash = strrchr(dir, '/');

		if (!slash)
			return;
		*slash = '\0';
		if (!is_ours(dir))
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

static void remove_group(const char *dir, void *ctx)
{
	(void)ctx;
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

	if (!is_ours(parent))
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

static void set_limits(struct os_family *family, const struct os_limits *limits)
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
	set_limits(family, limits);
	return os_family_is(family);
}

bool os_family_create(struct os_family *family, const char *name, const struct os_limits *limits)
{
	struct cgroup_dirs own;

	find_own(&own);
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

	find_own(&own);
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
static void look_group(const char *dir, void *ctx)
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
	os_each_group(dir, 0, look_group, &is_empty);
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

	find_own(&own);
	return os_family_oom_kills_in(&own, family, ret_shared);
}
