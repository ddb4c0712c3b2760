/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/os/os_linux.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "tests/unit/tmpfix.h"

/*
 * Groups as far as their files tell: a new one is a directory whose files the kernel makes, so here
 * it is there already, with files.
 */

/* Over the largest pid. */
#define NAME "dlrun-run-1-4194305"

enum { MIB = 1 << 20 };

static char *at(const char *path)
{
	return mem_printf("%s/%s", tmp, path);
}

static void put(const char *path, const char *text)
{
	AUTO_FREE char *file = at(path), *dir = mem_strndup(file, strrchr(file, '/') - file);

	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(file, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
}

static void check_file(const char *path, const char *text)
{
	AUTO_FREE char *file = at(path);
	AUTO_BUF struct buf got = {0};

	assert_int_equal(fs_read(file, 4096, &got, NULL, NULL), 0);
	assert_string_equal(got.len ? got.data : "", text);
}

static bool is_there(const char *path)
{
	AUTO_FREE char *file = at(path);

	return access(file, F_OK) == 0;
}

/* A group, and below it the one that will be made. */
static void put_group(const char *dir, const char *below)
{
	static const char *const files[] = {
		"memory.max", "memory.swap.max", "cpu.max", "cgroup.procs"};
	AUTO_FREE char *procs = mem_printf("%s/cgroup.procs", dir);
	AUTO_FREE char *control = mem_printf("%s/cgroup.subtree_control", dir);

	put(procs, "");
	put(control, below);
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		AUTO_FREE char *file = mem_printf("%s/" NAME "/%s", dir, files[i]);
		put(file, "");
	}
}

static void own_of(const char *dir, struct cgroup_dirs *ret)
{
	*ret = (struct cgroup_dirs){{0}};
	snprintf(ret->unified, sizeof(ret->unified), "%s/%s", tmp, dir);
	snprintf(ret->top, sizeof(ret->top), "%s/v2", tmp);
}

/* As systemd's manager of a user has it. */
static void put_session(struct cgroup_dirs *ret)
{
	put_group("v2", "cpu memory pids");
	put_group("v2/user", "cpu memory pids");
	put_group("v2/user/app", "memory pids");
	put_group("v2/user/app/scope", "");
	own_of("v2/user/app/scope", ret);
}

static void create(const struct cgroup_dirs *own, uint64_t memory, int64_t cpus,
	struct os_family *ret, const char *parent)
{
	const struct os_limits limits = {.memory_bytes = memory, .cpus_milli = cpus};
	AUTO_FREE char *path = mem_printf("%s/%s/" NAME, tmp, parent);

	assert_true(os_family_create_in(own, ret, NAME, &limits));
	assert_string_equal(ret->path, path);
}

static void enter(const struct os_family *family)
{
	int status;
	pid_t pid = os_family_fork(family);

	if (pid == 0)
		_exit(0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
}

static void test_in_our_own(void **state)
{
	struct os_family family;
	struct cgroup_dirs own;

	put_session(&own);
	create(&own, 0, 0, &family, "v2/user/app/scope");
	assert_int_equal(family.enforced, 0);
	check_file("v2/user/app/scope/" NAME "/memory.max", "");
	enter(&family);
	check_file("v2/user/app/scope/" NAME "/cgroup.procs", "0");
	/* What has the controllers needs no other one. */
	put_group("v2/user/app/scope", "cpuset cpu memory");
	create(&own, 64 * MIB, 1500, &family, "v2/user/app/scope");
	assert_int_equal(family.enforced, OS_LIMIT_MEMORY | OS_LIMIT_CPUS);
	check_file("v2/user/app/scope/" NAME "/memory.max", "67108864");
	check_file("v2/user/app/scope/" NAME "/memory.swap.max", "0");
	check_file("v2/user/app/scope/" NAME "/cpu.max", "150000 100000");
}

static void test_where_it_is_handed_down(void **state)
{
	struct os_family family;
	struct cgroup_dirs own;

	put_session(&own);
	create(&own, 64 * MIB, 0, &family, "v2/user/app");
	assert_int_equal(family.enforced, OS_LIMIT_MEMORY);
	check_file("v2/user/app/" NAME "/cpu.max", "");
	create(&own, 64 * MIB, 1, &family, "v2/user");
	assert_int_equal(family.enforced, OS_LIMIT_MEMORY | OS_LIMIT_CPUS);
	check_file("v2/user/" NAME "/cpu.max", "1000 100000");
}

static void test_as_far_as_it_may_be_written(void **state)
{
	struct os_family family;
	struct cgroup_dirs own;

	put_session(&own);
	AUTO_FREE char *procs = at("v2/user/cgroup.procs");
	unlink(procs);
	/* They are there only because of this test: groups without the controller have none. */
	AUTO_FREE char *max = at("v2/user/app/" NAME "/cpu.max");
	AUTO_FREE char *own_max = at("v2/user/app/scope/" NAME "/cpu.max");
	unlink(max);
	unlink(own_max);
	create(&own, 64 * MIB, 1000, &family, "v2/user/app");
	assert_int_equal(family.enforced, OS_LIMIT_MEMORY);
	create(&own, 0, 1000, &family, "v2/user/app/scope");
	assert_int_equal(family.enforced, 0);
}

/* A limit that somebody has set holds for what is started there. */
static void test_limits_are_not_left(void **state)
{
	static const char *const files[] = {"memory.max", "memory.high", "cpu.max"};
	static const char *const none[] = {"max\n", "max\n", "max 100000\n"};
	struct os_family family;
	struct cgroup_dirs own;

	put_session(&own);
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		AUTO_FREE char *file = mem_printf("v2/user/app/scope/%s", files[i]);
		put(file, "50000 100000\n");
		create(&own, 64 * MIB, 0, &family, "v2/user/app/scope");
		put(file, none[i]);
		create(&own, 64 * MIB, 0, &family, "v2/user/app");
	}
	/* Nor what is mounted. */
	snprintf(own.top, sizeof(own.top), "%s", own.unified);
	create(&own, 64 * MIB, 0, &family, "v2/user/app/scope");
}

static void put_v1(struct cgroup_dirs *ret)
{
	*ret = (struct cgroup_dirs){{0}};
	snprintf(ret->memory, sizeof(ret->memory), "%s/mem/own", tmp);
	snprintf(ret->cpu, sizeof(ret->cpu), "%s/cpu", tmp);
	put("mem/own/cgroup.procs", "");
	put("mem/own/" NAME "/memory.limit_in_bytes", "");
	put("mem/own/" NAME "/memory.memsw.limit_in_bytes", "");
	put("mem/own/" NAME "/cgroup.procs", "");
	put("cpu/cgroup.procs", "");
	put("cpu/" NAME "/cpu.cfs_period_us", "");
	put("cpu/" NAME "/cpu.cfs_quota_us", "");
	put("cpu/" NAME "/cgroup.procs", "");
}

static void test_version_1(void **state)
{
	const struct os_limits all = {64 * MIB, 2500}, none = {0}, cpus = {0, 500};
	struct os_family family;
	struct cgroup_dirs own;

	put_v1(&own);
	assert_true(os_family_create_in(&own, &family, NAME, &all));
	assert_string_equal(family.path, "");
	assert_int_equal(family.enforced, OS_LIMIT_MEMORY | OS_LIMIT_CPUS);
	check_file("mem/own/" NAME "/memory.limit_in_bytes", "67108864");
	check_file("mem/own/" NAME "/memory.memsw.limit_in_bytes", "67108864");
	check_file("cpu/" NAME "/cpu.cfs_period_us", "100000");
	check_file("cpu/" NAME "/cpu.cfs_quota_us", "250000");
	assert_true(os_family_is_empty(&family));
	enter(&family);
	check_file("mem/own/" NAME "/cgroup.procs", "0");
	check_file("cpu/" NAME "/cgroup.procs", "0");
	assert_false(os_family_is_empty(&family));
	/* Without limits there is nothing to make. */
	assert_false(os_family_create_in(&own, &family, NAME, &none));
	assert_false(os_family_is(&family));
	assert_true(os_family_create_in(&own, &family, NAME, &cpus));
	assert_int_equal(family.enforced, OS_LIMIT_CPUS);
	/* No knob for swap. */
	AUTO_FREE char *swap = at("mem/own/" NAME "/memory.memsw.limit_in_bytes");
	unlink(swap);
	assert_true(os_family_create_in(&own, &family, NAME, &all));
	assert_int_equal(family.enforced, OS_LIMIT_MEMORY | OS_LIMIT_CPUS);
}

static void test_leftovers(void **state)
{
	AUTO_FREE char *living = mem_printf("v2/user/app/dlrun-a-1-%d", (int)getpid());
	AUTO_FREE char *living_path = at(living), *empty = at("v2/user/app/dlrun-b-2-4194306/x");
	AUTO_FREE char *other = at("v2/user/app/mine-4194306");
	struct os_family family;
	struct cgroup_dirs own;

	put_session(&own);
	fs_mkdirs(living_path, 0700, NULL);
	fs_mkdirs(empty, 0700, NULL);
	fs_mkdirs(other, 0700, NULL);
	put("v2/user/app/dlrun-c-1-4194306/used", "");
	create(&own, MIB, 0, &family, "v2/user/app");
	assert_true(is_there(living));
	assert_false(is_there("v2/user/app/dlrun-b-2-4194306"));
	assert_true(is_there("v2/user/app/mine-4194306"));
	assert_true(is_there("v2/user/app/dlrun-c-1-4194306"));
}

static void check_kills(
	const struct cgroup_dirs *own, const struct os_family *family, int64_t n, bool is_shared)
{
	bool shared = !is_shared;

	assert_int_equal(os_family_oom_kills_in(own, family, &shared), n);
	assert_int_equal(shared, is_shared);
}

static void test_kills(void **state)
{
	const struct os_limits all = {64 * MIB, 2500};
	struct os_family family, none = {{0}};
	struct cgroup_dirs own, v1;

	put_session(&own);
	create(&own, MIB, 0, &family, "v2/user/app");
	check_kills(&own, &none, -1, true);
	/* Where it is not handed down the group above counts. */
	put("v2/user/memory.events", "oom 1\noom_kill 7\n");
	check_kills(&own, &none, 7, true);
	check_kills(&own, &family, 7, true);
	put("v2/user/app/" NAME "/memory.events", "oom_kill 0\n");
	check_kills(&own, &family, 0, false);
	put_v1(&v1);
	assert_true(os_family_create_in(&v1, &family, NAME, &all));
	put("mem/own/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
	check_kills(&v1, &family, 4, true);
	put("mem/own/" NAME "/memory.oom_control", "oom_kill_disable 0\noom_kill 1\n");
	check_kills(&v1, &family, 1, false);
	/* Before Linux 4.13. */
	put("mem/own/" NAME "/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n");
	check_kills(&v1, &family, 4, true);
}

#define IN_TMP(fn) cmocka_unit_test_setup_teardown(fn, make_tmp, remove_tmp)

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_TMP(test_in_our_own),
		IN_TMP(test_where_it_is_handed_down),
		IN_TMP(test_as_far_as_it_may_be_written),
		IN_TMP(test_limits_are_not_left),
		IN_TMP(test_version_1),
		IN_TMP(test_leftovers),
		IN_TMP(test_kills),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
