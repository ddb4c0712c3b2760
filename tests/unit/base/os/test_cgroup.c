/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/os/cgroup.h"

#define SYSTEMD_MOUNT                                                                              \
	"25 30 0:23 / /sys rw - sysfs sysfs rw\n"                                                  \
	"26 25 0:24 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define HYBRID_MOUNTS                                                                              \
	"32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"              \
	"34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"                        \
	"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"                        \
	"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"

struct expected {
	const char *groups, *mounts, *unified, *top, *memory, *cpu;
};

static void check(const struct expected *expected)
{
	struct cgroup_dirs dirs;

	cgroup_find(expected->groups, expected->mounts, &dirs);
	assert_string_equal(dirs.unified, expected->unified);
	assert_string_equal(dirs.top, expected->top);
	assert_string_equal(dirs.memory, expected->memory);
	assert_string_equal(dirs.cpu, expected->cpu);
}

static void test_where(void **state)
{
	static const struct expected rows[] = {
		{"0::/user.slice/user-1000.slice/session-2.scope\n", SYSTEMD_MOUNT,
			"/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope",
			"/sys/fs/cgroup", "", ""},
		{"8:pids:/\n4:memory:/a/b\n2:cpuset:/\n1:cpu,cpuacct:/\n9:name=systemd:/x\n0::/\n",
			HYBRID_MOUNTS, "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified",
			"/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/cpu,cpuacct"},
		/* Version 1 alone; a line without an end. */
		{"4:memory:/", HYBRID_MOUNTS, "", "", "/sys/fs/cgroup/memory", ""},
		/* A container sees its own part. */
		{"0::/docker/abc/run\n", "26 25 0:24 /docker/abc /cg ro - cgroup2 cgroup rw",
			"/cg/run", "/cg", "", ""},
		/* The last mount covers the others. */
		{"0::/x\n", SYSTEMD_MOUNT "27 26 0:24 / /sys/fs/cgroup ro - cgroup2 c rw\n",
			"/sys/fs/cgroup/x", "/sys/fs/cgroup", "", ""},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		check(&rows[i]);
}

static void test_nowhere(void **state)
{
	static const struct expected rows[] = {
		{"", "", "", "", "", ""},
		{"0::/x\n", "", "", "", "", ""},
		/* Outside of the namespace, or of what is mounted. */
		{"0::/../../x\n", SYSTEMD_MOUNT, "", "", "", ""},
		{"0::/..\n", SYSTEMD_MOUNT, "", "", "", ""},
		{"0::/other\n", "26 25 0:24 /docker/abc /cg ro - cgroup2 cgroup rw", "", "", "",
			""},
		{"0::/docker/abcd\n", "26 25 0:24 /docker/abc /cg ro - cgroup2 cgroup rw", "", "",
			"", ""},
		/* Neither a controller of another name nor a mount of another kind. */
		{"1:cpuset:/\n2:cpuacct:/\n", HYBRID_MOUNTS, "", "", "", ""},
		{"4:memory:/\n", "35 31 0:32 / /m rw - tmpfs memory rw,memory\n", "", "", "", ""},
		{"0:x\n0::\n:::\nmemory\n", SYSTEMD_MOUNT HYBRID_MOUNTS, "", "", "", ""},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		check(&rows[i]);
}

/* A path that does not fit is no path, not a shorter one. */
static void test_too_long(void **state)
{
	char groups[600] = "0::/", mounts[300];
	struct cgroup_dirs dirs;

	memset(groups + 4, 'a', 300);
	cgroup_find(groups, SYSTEMD_MOUNT, &dirs);
	assert_string_equal(dirs.unified, "");
	/* Both fit, and not behind one another. */
	groups[4 + 200] = '\0';
	snprintf(mounts, sizeof(mounts), "1 2 3:4 / /%0200d rw - cgroup2 c rw\n", 0);
	cgroup_find(groups, mounts, &dirs);
	assert_string_equal(dirs.unified, "");
	cgroup_find(groups, SYSTEMD_MOUNT, &dirs);
	assert_int_equal(strlen(dirs.unified), strlen("/sys/fs/cgroup/") + 200);
}

static void test_values(void **state)
{
	static const char events[] = "low 0\noom 3\noom_kill 2\noom_group_kill 9\n";

	assert_int_equal(cgroup_value(events, "oom_kill"), 2);
	assert_int_equal(cgroup_value(events, "oom"), 3);
	assert_int_equal(cgroup_value(events, "kill"), -1);
	assert_int_equal(cgroup_value("oom_kill", "oom_kill"), -1);
	assert_int_equal(cgroup_value("oom_kill -4\n", "oom_kill"), -1);
	assert_int_equal(cgroup_value("oom_kill x\n", "oom_kill"), -1);
	assert_int_equal(cgroup_value("", "oom_kill"), -1);
	assert_true(cgroup_has_word("cpuset cpu io\n", "cpu"));
	assert_true(cgroup_has_word("rw,cpu,cpuacct", "cpu"));
	assert_false(cgroup_has_word("cpuset cpuacct", "cpu"));
	assert_false(cgroup_has_word("", "cpu"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_where),
		cmocka_unit_test(test_nowhere),
		cmocka_unit_test(test_too_long),
		cmocka_unit_test(test_values),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
