/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "host/usage.h"
#include "tests/unit/tmpfix.h"
#include "tests/unit/until.h"

enum { MIB = 1 << 20, LOAD_MIB = 96, ORPHAN_S = 120 };

static void check_near(double value, double wanted, double epsilon)
{
	if (!(fabs(value - wanted) <= epsilon))
		fail_msg("%g is not %g", value, wanted);
}

/* A file below tmp, with its directories. */
static void put(const char *path, const char *text)
{
	AUTO_FREE char *full = fs_join(tmp, path);
	AUTO_FREE char *dir = mem_strdup(full);

	*strrchr(dir, '/') = '\0';
	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(full, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
}

static struct json *result(const struct usage *usage)
{
	struct json *json = json_object();
	struct json *total = json_sub(json, "usage");

	usage_set(usage, total, json_sub(json, "now"));
	return json;
}

static double number(const struct json *json, const char *object, const char *key)
{
	return json_get_num(json_get(json, object), key, -1);
}

static bool knows_processes(void)
{
	struct os_use use;

	return os_family_use(&(struct os_family){{0}}, 0, &use);
}

/*
 * Counters
 */

static void test_counter(void **state)
{
	struct usage_counter counter = {0};

	assert_true(usage_counter_add(&counter, -1, 100) < 0);
	assert_true(usage_counter_add(&counter, 90, 100) < 0);
	check_near(usage_counter_add(&counter, 95, 100), 5, 1e-9);
	/* Over the end. */
	check_near(usage_counter_add(&counter, 3, 100), 8, 1e-9);
	assert_true(usage_counter_add(&counter, -1, 100) < 0);
	check_near(usage_counter_add(&counter, 4, 100), 1, 1e-9);
	check_near(counter.gained, 14, 1e-9);
	/* Set back: nobody knows what was lost. */
	assert_true(usage_counter_add(&counter, 1, 0) < 0);
	check_near(usage_counter_add(&counter, 2, 0), 1, 1e-9);
	check_near(counter.gained, 15, 1e-9);
}

/*
 * Processes
 */

static double own_cpu_s(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* A child that has used memory and time, says so on the pipe and waits for its end, which a test
 * that fails does not bring. */
static pid_t start_load(double cpu_s, unsigned mib, bool twice)
{
	int fds[2];
	char byte;

	assert_int_equal(os_pipe(fds, 0), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		alarm(ORPHAN_S);
		char *memory = malloc((size_t)mib * MIB);
		memset(memory, 1, (size_t)mib * MIB);
		if (twice && fork() == 0)
			alarm(ORPHAN_S);
		while (own_cpu_s() < cpu_s)
			;
		byte = memory[MIB - 1];
		if (write(fds[1], &byte, 1) == 1)
			pause();
		_exit(0);
	}
	assert_int_equal(read(fds[0], &byte, 1), 1);
	if (twice)
		assert_int_equal(read(fds[0], &byte, 1), 1);
	close(fds[0]);
	close(fds[1]);
	return pid;
}

static void end_load(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void test_child(void **state)
{
	if (!knows_processes())
		skip();
	AUTO(usage_free_auto) struct usage *usage = usage_new(&(struct usage_spec){0});
	pid_t pid = start_load(0.3, LOAD_MIB, false);
	usage_sample(usage);
	AUTO_JSON struct json *json = result(usage);
	/* What it has memory by may take longer than it was to burn. */
	check_near(number(json, "usage", "cpu_s"), 1, 0.75);
	assert_true(number(json, "usage", "memory_peak_bytes") > LOAD_MIB * MIB);
	assert_true(number(json, "usage", "memory_peak_bytes") < (LOAD_MIB + 60) * MIB);
	/* Nothing to compare with yet. */
	assert_int_equal(json_kind(json_get(json_get(json, "now"), "cpu")), JSON_NULL);
	assert_int_equal(json_kind(json_get(json_get(json, "usage"), "energy_j")), JSON_NULL);
	assert_int_equal(json_kind(json_get(json_get(json, "usage"), "gpu_busy")), JSON_NULL);
	end_load(pid);
	/* What it used is not lost with it. */
	usage_sample(usage);
	AUTO_JSON struct json *after = result(usage);
	assert_true(number(after, "usage", "cpu_s") >= number(json, "usage", "cpu_s"));
	assert_true(number(after, "now", "cpu") >= 0);
	assert_true(number(after, "now", "memory_bytes") < LOAD_MIB * MIB);
	assert_true(number(after, "usage", "memory_peak_bytes") > LOAD_MIB * MIB);
}

/* Memory that a child has from its parent counts once. */
static void test_shared_memory(void **state)
{
	struct os_use use;

	if (!knows_processes())
		skip();
	os_become_subreaper();
	pid_t pid = start_load(0, LOAD_MIB, true);
	assert_true(os_family_use(&(struct os_family){{0}}, 0, &use));
	assert_true(use.memory_bytes > LOAD_MIB * MIB);
	assert_true(use.memory_bytes < LOAD_MIB * 3 / 2 * MIB);
	assert_false(use.cpu_is_whole);
	end_load(pid);
	os_signal_descendants(SIGKILL, NULL);
	while (waitpid(-1, NULL, 0) > 0)
		;
}

/* A program that another supervisor has started. */
static void test_stranger(void **state)
{
	int fds[2];
	pid_t pid, middle;

	if (!knows_processes())
		skip();
	assert_int_equal(os_pipe(fds, 0), 0);
	middle = fork();
	if (middle == 0) {
		pid = start_load(0.1, LOAD_MIB, false);
		if (write(fds[1], &pid, sizeof(pid)) == sizeof(pid))
			pause();
		_exit(0);
	}
	assert_int_equal(read(fds[0], &pid, sizeof(pid)), sizeof(pid));
	struct os_use as_root, as_own;
	/* It is below us as well: counted once. */
	assert_true(os_family_use(&(struct os_family){{0}}, pid, &as_root));
	assert_true(os_family_use(&(struct os_family){{0}}, 0, &as_own));
	assert_true(llabs(as_root.memory_bytes - as_own.memory_bytes) < 8 * MIB);
	/* Our parent is not below us: it is counted when it is named, and we as its child. */
	assert_true(os_family_use(&(struct os_family){{0}}, getppid(), &as_root));
	assert_true(as_root.memory_bytes > as_own.memory_bytes);
	uint64_t start = os_process_start(pid);

	kill(pid, SIGKILL);
	/* Nobody here reaps it, and until it is gone its memory counts in the tests that follow. */
	UNTIL(!os_process_alive(pid, start));
	end_load(middle);
	close(fds[0]);
	close(fds[1]);
}

static void test_finish(void **state)
{
	AUTO(usage_free_auto) struct usage *usage = usage_new(&(struct usage_spec){0});
	usage_finish(usage, 12.3456, 5 * MIB);
	AUTO_JSON struct json *json = result(usage);
	check_near(number(json, "usage", "cpu_s"), 12.346, 1e-9);
	check_near(number(json, "usage", "memory_peak_bytes"), 5 * MIB, 1);
	assert_int_equal(json_kind(json_get(json_get(json, "now"), "memory_bytes")), JSON_NULL);
}

/* A cgroup as far as its files tell. */
static void test_group(void **state)
{
	struct os_family family = {{0}};
	struct os_use use;

	if (!knows_processes())
		skip();
	snprintf(family.path, sizeof(family.path), "%s/group", tmp);
	put("group/cpu.stat", "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n");
	assert_true(os_family_use(&family, 0, &use));
	check_near(use.cpu_s, 2.5, 1e-9);
	assert_true(use.cpu_is_whole);
	assert_int_equal(use.memory_bytes, 0);
	/* Members, where the memory controller is not handed down; also of groups within it. */
	pid_t pid = start_load(0, LOAD_MIB, false);
	AUTO_FREE char *members = mem_printf("%d\n", (int)pid);
	put("group/inner/cgroup.procs", members);
	assert_true(os_family_use(&family, 0, &use));
	assert_true(use.memory_bytes > LOAD_MIB * MIB);
	end_load(pid);
	put("group/memory.stat", "anon 1048576\nfile 999999999\nkernel 5\nfile_mapped 4096\n");
	assert_true(os_family_use(&family, 0, &use));
	assert_int_equal(use.memory_bytes, 1048576 + 4096);
}

/*
 * Energy and GPUs
 */

static void put_package(const char *zone, const char *name, const char *energy_uj)
{
	AUTO_FREE char *a = mem_printf("class/powercap/%s/name", zone);
	AUTO_FREE char *b = mem_printf("class/powercap/%s/energy_uj", zone);
	AUTO_FREE char *c = mem_printf("class/powercap/%s/max_energy_range_uj", zone);

	put(a, name);
	put(b, energy_uj);
	put(c, "262143328850\n");
}

static void test_packages(void **state)
{
	put_package("intel-rapl:0", "package-0\n", "262143000000\n");
	put_package("intel-rapl:1", "package-1\n", "1000000\n");
	put_package("intel-rapl:0:0", "core\n", "1000000\n");
	put_package("intel-rapl:2", "psys\n", "1000000\n");
	put_package("intel-rapl-mmio:0", "package-0\n", "1000000\n");
	AUTO(usage_free_auto)
	struct usage *usage = usage_new(&(struct usage_spec){.sysfs = tmp});
	usage_sample(usage);
	/* The first one starts again from 0. */
	put_package("intel-rapl:0", "package-0\n", "1671150\n");
	put_package("intel-rapl:1", "package-1\n", "4000000\n");
	put_package("intel-rapl:0:0", "core\n", "9000000\n");
	put_package("intel-rapl:2", "psys\n", "9000000\n");
	put_package("intel-rapl-mmio:0", "package-0\n", "9000000\n");
	usage_sample(usage);
	AUTO_JSON struct json *json = result(usage);
	check_near(number(json, "usage", "energy_j"), 5, 1e-9);
	assert_true(number(json, "now", "power_w") > 0);
}

#define AMD "bus/pci/devices/"

static void put_amd(const char *address, const char *busy, const char *vram, const char *vendor)
{
	AUTO_FREE char *a = mem_printf(AMD "%s/vendor", address);
	AUTO_FREE char *b = mem_printf(AMD "%s/gpu_busy_percent", address);
	AUTO_FREE char *c = mem_printf(AMD "%s/mem_info_vram_used", address);

	put(a, vendor);
	put(b, busy);
	put(c, vram);
}

static void test_amd(void **state)
{
	struct gpu_list gpus = {.n = 2};
	struct gpu_reading reading;

	put_amd("0000:03:00.0", "25\n", "1000\n", "0x1002\n");
	put_amd("0000:c1:00.0", "75\n", "2000\n", "0x1002\n");
	put_amd("0000:00:02.0", "99\n", "3000\n", "0x8086\n");
	put(AMD "0000:00:1f.0/vendor", "0x1002\n");
	put(AMD "0000:03:00.0/hwmon/hwmon4/power1_average", "120000000\n");
	put(AMD "0000:c1:00.0/hwmon/hwmon5/power1_input", "80000000\n");
	put(AMD "0000:c1:00.0/hwmon/hwmon5/energy1_input", "7000000\n");
	put(AMD "0000:c1:00.0/unique_id", "deadbeef01\n");
	gpus.v[0] = (struct gpu){.vendor = GPU_AMD, .index = 0, .id = "0000:03:00.0"};
	gpus.v[1] = (struct gpu){.vendor = GPU_AMD, .index = 0, .id = "0xDEADBEEF01-1"};
	AUTO(usage_free_auto)
	struct usage *usage = usage_new(&(struct usage_spec){.gpus = &gpus, .sysfs = tmp});
	int64_t begun_ms = clock_ms();
	usage_sample(usage);
	put(AMD "0000:c1:00.0/hwmon/hwmon5/energy1_input", "17000000\n");
	put_amd("0000:03:00.0", "garbage\n", "500\n", "0x1002\n");
	usage_sample(usage);
	double between_s = (double)(clock_ms() + 1 - begun_ms) / 1000;
	AUTO_JSON struct json *json = result(usage);
	check_near(number(json, "usage", "gpu_busy"), (25 + 75 + 75) / 300.0, 1e-3);
	check_near(number(json, "usage", "gpu_memory_peak_bytes"), 3000, 1e-9);
	check_near(number(json, "now", "gpu_memory_bytes"), 2500, 1e-9);
	check_near(number(json, "now", "gpu_busy"), 0.75, 1e-9);
	/* A counter for one, power over the time between the samples for the other; in tenths. */
	check_near(number(json, "usage", "energy_j"), 10 + 60 * between_s, 60 * between_s + 0.06);
	/* By its place, where the name says nothing. */
	gpus.v[0] = (struct gpu){.vendor = GPU_AMD, .index = 1, .id = "unknown"};
	gpus.v[1] = (struct gpu){.vendor = GPU_AMD, .index = 2, .id = "unknown"};
	AUTO(gpu_meter_free_auto)
	struct gpu_meter *meter =
		gpu_meter_new(&(struct gpu_meter_spec){.gpus = &gpus, .sysfs = tmp});
	gpu_meter_read(meter, 0, &reading);
	check_near(reading.power_w, 80, 1e-9);
	gpu_meter_read(meter, 1, &reading);
	assert_true(reading.busy < 0 && reading.memory_bytes < 0 && reading.power_w < 0);
}

static struct gpu_list nvidia(const char *id, unsigned index)
{
	struct gpu_list gpus = {.n = 1, .v = {{.vendor = GPU_NVIDIA, .index = index}}};

	snprintf(gpus.v[0].id, sizeof(gpus.v[0].id), "%s", id);
	return gpus;
}

static void read_nvidia(const char *id, unsigned index, struct gpu_reading *ret)
{
	struct gpu_list gpus = nvidia(id, index);
	AUTO(gpu_meter_free_auto)
	struct gpu_meter *meter =
		gpu_meter_new(&(struct gpu_meter_spec){.gpus = &gpus, .nvml = getenv("FAKE_NVML")});

	gpu_meter_read(meter, 0, ret);
}

static void test_nvidia(void **state)
{
	struct gpu_list gpus = nvidia("GPU-fake", 0);
	struct gpu_reading reading;

	if (!getenv("FAKE_NVML"))
		skip();
	AUTO(usage_free_auto)
	struct usage *usage = usage_new(
		&(struct usage_spec){.gpus = &gpus, .nvml = getenv("FAKE_NVML"), .sysfs = tmp});
	for (int i = 0; i < 3; i++) {
		/* Power is energy over time, so there must be some. */
		for (int64_t start_ms = clock_ms(); clock_ms() == start_ms;)
			;
		usage_sample(usage);
	}
	AUTO_JSON struct json *json = result(usage);
	check_near(number(json, "usage", "gpu_busy"), 0.5, 1e-9);
	check_near(number(json, "usage", "gpu_memory_peak_bytes"), 20.0 * 1024 * MIB, 1);
	check_near(number(json, "usage", "energy_j"), 200, 1e-9);
	assert_true(number(json, "now", "power_w") > 0);
	read_nvidia("00000000:3B:00.0", 0, &reading);
	check_near(reading.busy, 0.5, 1e-9);
	read_nvidia("", 1, &reading);
	check_near(reading.busy, 0.5, 1e-9);
	read_nvidia("GPU-other", 1, &reading);
	assert_true(reading.busy < 0);
}

static void test_nvidia_lacks(void **state)
{
	struct gpu_reading reading;

	if (!getenv("FAKE_NVML"))
		skip();
	setenv("FAKE_NVML_OFF", "utilization memory_v2 energy", 1);
	read_nvidia("GPU-fake", 0, &reading);
	assert_true(reading.busy < 0 && reading.energy_j < 0);
	assert_int_equal(reading.memory_bytes, (int64_t)30 << 30);
	check_near(reading.power_w, 250.5, 1e-9);
	setenv("FAKE_NVML_OFF", "init", 1);
	read_nvidia("GPU-fake", 0, &reading);
	assert_true(reading.power_w < 0);
	unsetenv("FAKE_NVML_OFF");
}

/* No library, or one that is none. */
static void test_nvidia_missing(void **state)
{
	struct gpu_list gpus = nvidia("GPU-fake", 0);
	AUTO_FREE char *bad = fs_join(tmp, "bad.so");
	struct gpu_reading reading;

	put("bad.so", "not a library");
	const char *const paths[] = {"/proc/nonexistent/libnvidia-ml.so.1", bad, "libc.so.6"};
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		AUTO(gpu_meter_free_auto)
		struct gpu_meter *meter =
			gpu_meter_new(&(struct gpu_meter_spec){.gpus = &gpus, .nvml = paths[i]});
		assert_int_equal(gpu_meter_count(meter), 1);
		gpu_meter_read(meter, 0, &reading);
		assert_true(reading.busy < 0 && reading.power_w < 0 && reading.energy_j < 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_counter),
		cmocka_unit_test_setup_teardown(test_child, make_tmp, remove_tmp),
		cmocka_unit_test(test_shared_memory),
		cmocka_unit_test(test_stranger),
		cmocka_unit_test(test_finish),
		cmocka_unit_test_setup_teardown(test_group, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_packages, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_amd, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_nvidia, make_tmp, remove_tmp),
		cmocka_unit_test(test_nvidia_lacks),
		cmocka_unit_test_setup_teardown(test_nvidia_missing, make_tmp, remove_tmp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
