/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/gpu.h"
#include "host/gpu_impl.h"
#include "tests/unit/tmpfix.h"

enum { LONG_MS = 60000 };

#define UUID_0 "GPU-6d8a4e3c-1b7f-0a52-93c1-5f0e2d7b9a10"
#define UUID_1 "GPU-0c11f9d2-77aa-4be0-8d3e-1a2b3c4d5e6f"

static void put(const char *name, const char *text, mode_t mode)
{
	AUTO_FREE char *path = fs_join(tmp, name);
	AUTO_FREE char *dir = mem_strdup(path);
	AUTO_ERR struct err err = {0};

	*strrchr(dir, '/') = '\0';
	if (fs_mkdirs(dir, 0755, &err) < 0 ||
		fs_replace(path, text, strlen(text), mode, FS_SYNC_NONE, &err) < 0)
		fail_msg("%s", err.message);
}

/* A tool that prints list, or apps when it is asked for processes. */
static void put_nvidia(const char *list, const char *apps, int status)
{
	AUTO_FREE char *script = mem_printf("#!/bin/sh\n"
					    "d=${0%%/*}\n"
					    "case $1 in\n"
					    "--query-gpu=*) cat \"$d/list\"; exit %d;;\n"
					    "*) cat \"$d/apps\";;\n"
					    "esac\n",
		status);

	put("bin/list", list, 0644);
	put("bin/apps", apps, 0644);
	put("bin/nvidia-smi", script, 0755);
}

static int find(struct gpu_list *ret, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s/bin", tmp);
	AUTO_FREE char *sysfs = mem_printf("%s/sys", tmp);

	return gpu_find_at(path, sysfs, LONG_MS, ret, err);
}

static void found(struct gpu_list *ret, size_t n)
{
	AUTO_ERR struct err err = {0};

	if (find(ret, &err) < 0)
		fail_msg("%s (%s)", err.message, err.n_evidence ? err.evidence[0] : "");
	assert_int_equal(ret->n, n);
}

static void not_found(enum err_id id, const char *message, const char *evidence)
{
	AUTO_ERR struct err err = {0};
	struct gpu_list list;

	assert_true(find(&list, &err) < 0);
	assert_int_equal(err.id, id);
	if (!strstr(err.message, message))
		fail_msg("'%s' is not in '%s'", message, err.message);
	assert_true(!evidence || (err.n_evidence > 0 && strstr(err.evidence[0], evidence)));
	assert_non_null(err.hint);
}

/*
 * nvidia-smi
 */

static int parse(const char *text, struct gpu_found_list *ret)
{
	ret->n = 0;
	return gpu_parse_nvidia(text, strlen(text), ret, NULL);
}

static void test_nvidia(void **state)
{
	struct gpu_found_list list;

	assert_int_equal(parse("0, " UUID_0 ", 00000000:17:00.0, 81920, NVIDIA A100-SXM4-80GB\n"
			       "1, " UUID_1 ", 00000000:CA:00.0, 24576, NVIDIA RTX A5000, odd\r\n",
				 &list),
		0);
	assert_int_equal(list.n, 2);
	assert_int_equal(list.v[0].gpu.vendor, GPU_NVIDIA);
	assert_int_equal(list.v[0].gpu.index, 0);
	assert_string_equal(list.v[0].gpu.id, UUID_0);
	assert_string_equal(list.v[0].gpu.model, "NVIDIA A100-SXM4-80GB");
	assert_string_equal(list.v[0].pci, "0000:17:00.0");
	assert_true(list.v[0].gpu.memory_bytes == UINT64_C(80) << 30);
	assert_false(list.v[0].gpu.used);
	assert_int_equal(list.v[1].gpu.index, 1);
	assert_string_equal(list.v[1].gpu.model, "NVIDIA RTX A5000, odd");
	assert_string_equal(list.v[1].pci, "0000:ca:00.0");
}

static void test_nvidia_unknown(void **state)
{
	struct gpu_found_list list;

	/* Memory that it shares with the machine; no UUID; nothing known but the address. */
	assert_int_equal(parse("0, " UUID_0 ", 0000000F:01:00.0, [N/A], NVIDIA GB10\n"
			       "1, [Not Supported], 00000000:02:00.0, [Not Supported], [N/A]\n"
			       "2, N/A, 00000000:03:00.0, N/A, Quadro \x1b[31m\xff\n",
				 &list),
		0);
	assert_int_equal(list.n, 3);
	assert_true(list.v[0].gpu.memory_bytes == 0);
	assert_string_equal(list.v[0].pci, "000f:01:00.0");
	assert_string_equal(list.v[1].gpu.id, "");
	assert_string_equal(list.v[1].pci, "0000:02:00.0");
	assert_string_equal(list.v[2].gpu.model, "Quadro ?[31m?");
	assert_int_equal(parse("0, [N/A], [N/A], [N/A], [N/A]\n", &list), -ERR_IO);
}

static void test_nvidia_remarks(void **state)
{
	struct gpu_found_list list;

	assert_int_equal(parse("", &list), 0);
	assert_int_equal(list.n, 0);
	assert_int_equal(parse("\n \r\n", &list), 0);
	assert_int_equal(parse("No devices were found\n", &list), 0);
	assert_int_equal(list.n, 0);
	assert_int_equal(
		parse("Unable to determine the device handle for GPU0000:02:00.0: Unknown Error\n"
		      "0, " UUID_0 ", 00000000:17:00.0, 81920, NVIDIA A100\n"
		      "3, [GPU is lost], 00000000:31:00.0, [GPU is lost], [GPU is lost]\n"
		      "WARNING: infoROM is corrupted at gpu 0000:17:00.0\n",
			&list),
		0);
	assert_int_equal(list.n, 1);
	assert_int_equal(list.v[0].gpu.index, 0);
}

static void test_nvidia_nonsense(void **state)
{
	static const char *const bad[] = {
		"Failed to initialize NVML: Driver/library version mismatch\n"
		"NVML library version: 535.183\n",
		"Failed to initialize NVML: Unknown Error\n",
		"Field \"uuid\" is not a valid field to query.\n",
		"0\n",
		"-1, " UUID_0 ", 00000000:17:00.0, 81920, A\n",
		"4294967296, " UUID_0 ", 00000000:17:00.0, 81920, A\n",
		"0, " UUID_0 ", 00000000:17:00.0, 81920 MiB, A\n",
		"0, " UUID_0 ", 00000000:17:00.0, 99999999999999999999, A\n",
		"0, ../../etc/passwd, nonsense, 81920, A\n",
		",,,,,,,,,\n",
	};
	struct gpu_found_list list;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (parse(bad[i], &list) != -ERR_IO)
			fail_msg("taken: %s", bad[i]);
	list.n = 0;
	assert_int_equal(gpu_parse_nvidia("0, GPU-\0, 0:1:0.0, 1, A", 23, &list, NULL), -ERR_IO);
}

static void test_nvidia_many(void **state)
{
	struct gpu_found_list list = {.n = 0};
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 20);
	for (int i = 0; i < GPU_MAX; i++)
		buf_addf(&text, "%d, GPU-%d, 00000000:17:00.0, 81920, A\n", i, i);
	assert_int_equal(gpu_parse_nvidia(text.data, text.len, &list, NULL), 0);
	assert_int_equal(list.n, GPU_MAX);
	list.n = 0;
	buf_adds(&text, "64, GPU-64, 00000000:17:00.0, 81920, A\n");
	assert_int_equal(gpu_parse_nvidia(text.data, text.len, &list, NULL), -ERR_LIMIT);
}

static void test_nvidia_long(void **state)
{
	struct gpu_found_list list = {.n = 0};
	AUTO_BUF struct buf text;
	AUTO_ERR struct err err = {0};

	buf_init(&text, 1 << 20);
	buf_adds(&text, "0, " UUID_0 ", 00000000:17:00.0, 81920, ");
	for (int i = 0; i < 100000; i++)
		buf_addc(&text, 'x');
	assert_int_equal(gpu_parse_nvidia(text.data, text.len, &list, &err), 0);
	assert_int_equal(strlen(list.v[0].gpu.model), GPU_MODEL_SIZE - 1);
	buf_consume(&text, 3);
	assert_true(gpu_parse_nvidia(text.data, text.len, &list, &err) < 0);
	assert_true(strlen(err.evidence[0]) <= 800);
}

static void test_nvidia_apps(void **state)
{
	static const char apps[] = UUID_1 ", 00000000:CA:00.0, 4242, python\n"
					  "GPU-other, 00000000:CB:00.0, 1, x\n";
	static const char server[] =
		UUID_1 ", 00000000:CA:00.0, 7, /usr/bin/nvidia-cuda-mps-server\n";
	static const char address[] =
		"[N/A], 00000000:17:00.0, [N/A], [Insufficient Permissions]\n";
	struct gpu_found_list list;

	parse("0, " UUID_0 ", 00000000:17:00.0, 81920, A\n"
	      "1, " UUID_1 ", 00000000:CA:00.0, 81920, A\n",
		&list);
	gpu_parse_nvidia_apps("", 0, &list);
	gpu_parse_nvidia_apps(server, strlen(server), &list);
	assert_false(list.v[0].gpu.used || list.v[1].gpu.used);
	gpu_parse_nvidia_apps(apps, strlen(apps), &list);
	assert_false(list.v[0].gpu.used);
	assert_true(list.v[1].gpu.used);
	gpu_parse_nvidia_apps(address, strlen(address), &list);
	assert_true(list.v[0].gpu.used);
}

static void test_pci(void **state)
{
	static const struct {
		const char *in, *out;
	} cases[] = {
		{"00000000:17:00.0", "0000:17:00.0"},
		{"0000:C1:1f.7", "0000:c1:1f.7"},
		{"00010000:01:00.0", "10000:01:00.0"},
		{"c1:00.0", "0000:c1:00.0"},
		{"", NULL},
		{"c1:00", NULL},
		{"c1:00.8", NULL},
		{"c1:20.0", NULL},
		{"0000:c1:00.0 ", NULL},
		{"0000:c1:00.0/..", NULL},
		{"-000:c1:00.0", NULL},
		{"0x:c1:00.0", NULL},
		{"00000000000000000:c1:00.0", NULL},
	};
	char out[GPU_PCI_SIZE];

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		bool ok = gpu_pci_normal(cases[i].in, strlen(cases[i].in), out);
		if (ok != (cases[i].out != NULL) || (ok && strcmp(out, cases[i].out) != 0))
			fail_msg("%s: %s", cases[i].in, ok ? out : "refused");
	}
}

/*
 * rocm-smi and KFD
 */

static const char two_cards[] =
	"WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n"
	"\n"
	"{\"card0\": {\"Unique ID\": \"0x8e5c9a3b12d4f601\", \"VRAM Total Memory (B)\": "
	"\"68702699520\", \"VRAM Total Used Memory (B)\": \"10960896\", \"PCI Bus\": "
	"\"0000:C1:00.0\", \"Card series\": \"Instinct MI210\", \"Card model\": \"0x0c34\", "
	"\"Card vendor\": \"Advanced Micro Devices, Inc. [AMD/ATI]\", \"Card SKU\": \"D67301\"}, "
	"\"card1\": {\"Unique ID\": \"N/A\", \"VRAM Total Memory (B)\": \"N/A\", "
	"\"PCI Bus\": \"0000:C2:00.0\", \"Card Series\": \"0x744c\", \"Card Model\": \"N/A\"}, "
	"\"system\": {\"Driver version\": \"6.3.6\"}}\n";

static void test_rocm(void **state)
{
	struct gpu_found_list list = {.n = 0};

	assert_int_equal(gpu_parse_rocm(two_cards, strlen(two_cards), &list, NULL), 0);
	assert_int_equal(list.n, 2);
	assert_int_equal(list.v[0].gpu.vendor, GPU_AMD);
	assert_string_equal(list.v[0].gpu.id, "0x8e5c9a3b12d4f601");
	assert_string_equal(list.v[0].gpu.model, "Instinct MI210");
	assert_string_equal(list.v[0].pci, "0000:c1:00.0");
	assert_true(list.v[0].gpu.memory_bytes == UINT64_C(68702699520));
	assert_string_equal(list.v[1].gpu.id, "");
	assert_string_equal(list.v[1].gpu.model, "AMD GPU");
	assert_true(list.v[1].gpu.memory_bytes == 0);
}

static void test_rocm_odd(void **state)
{
	static const char *const none[] = {
		"", "WARNING: No JSON data to report\n", "{}", "{\"system\": {}}", "{\"card\":1}x"};
	static const char *const bad[] = {"ERROR: GPU[0]", "{", "{\"card0\": {}}", "{\"card0\": 7}",
		"{\"card-1\": {\"PCI Bus\": \"c1:00.0\"}}",
		"{\"card0\": {\"Unique ID\": \"0x0\", \"PCI Bus\": \"/etc\"}}",
		"{\"card0\": {\"Unique ID\": \"0x12345678123456789\"}}",
		"{\"card0\": {\"Unique ID\": 5}}", "[0] {\"card0\"}"};
	struct gpu_found_list list = {.n = 0};

	for (size_t i = 0; i < ARRAY_LEN(none) - 1; i++)
		assert_int_equal(gpu_parse_rocm(none[i], strlen(none[i]), &list, NULL), 0);
	assert_int_equal(list.n, 0);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (gpu_parse_rocm(bad[i], strlen(bad[i]), &list, NULL) != -ERR_IO)
			fail_msg("taken: %s", bad[i]);
}

static const char kfd_cpu[] = "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\ndomain 0\n";
static const char kfd_gpu[] = "cpu_cores_count 0\nsimd_count 416\nmem_banks_count 1\n"
			      "gfx_target_version 90010\nvendor_id 4098\nlocation_id 49408\n"
			      "domain 0\ndrm_render_minor 128\nunique_id 10258243629752841729\n";

static void test_kfd(void **state)
{
	static const char bank[] = "heap_type 1\nsize_in_bytes 68702699520\nflags 0\n";
	struct gpu_found gpu = {.pci = ""};

	assert_false(gpu_parse_kfd(kfd_cpu, strlen(kfd_cpu), &gpu));
	assert_false(gpu_parse_kfd("", 0, &gpu));
	assert_false(gpu_parse_kfd("simd_count 4\n", 13, &gpu));
	assert_true(gpu_parse_kfd(kfd_gpu, strlen(kfd_gpu), &gpu));
	assert_string_equal(gpu.pci, "0000:c1:00.0");
	assert_string_equal(gpu.gpu.id, "0x8e5c9a3b12d4f601");
	assert_string_equal(gpu.gpu.model, "AMD gfx90a");
	assert_true(gpu_parse_kfd_bank(bank, strlen(bank)) == UINT64_C(68702699520));
	assert_true(gpu_parse_kfd_bank("heap_type 4\nsize_in_bytes 9\n", 27) == 0);
}

/*
 * A machine
 */

static void test_find_none(void **state)
{
	struct gpu_list list;

	put("bin/other", "", 0755);
	found(&list, 0);
	AUTO_FREE char *path = mem_printf("%s/bin", tmp);
	if (access("/sys/class/kfd/kfd/topology", F_OK) != 0)
		assert_false(gpu_may_exist(path));
	put_nvidia("", "", 0);
	assert_true(gpu_may_exist(path));
}

static void test_find_nvidia(void **state)
{
	struct gpu_list list;

	/* Two of one id, as hostile or partitioned ones may have, get different ones. */
	put_nvidia("1, " UUID_1 ", 00000000:CA:00.0, 24576, B\n"
		   "0, [N/A], 00000000:17:00.0, 81920, A\n"
		   "2, " UUID_1 ", 00000000:CB:00.0, 24576, B\n",
		"[N/A], 00000000:17:00.0, 99, python\n", 0);
	found(&list, 3);
	assert_string_equal(list.v[0].id, "0000:17:00.0");
	assert_true(list.v[0].used);
	assert_string_equal(list.v[1].id, UUID_1);
	assert_false(list.v[1].used);
	assert_string_equal(list.v[2].id, UUID_1 "-2");
	put_nvidia("No devices were found\n", "", 6);
	found(&list, 0);
}

static void test_find_nvidia_fails(void **state)
{
	put_nvidia("Failed to initialize NVML: Driver/library version mismatch\n", "", 18);
	not_found(E_GPU_TOOL, "nvidia-smi does not list the GPUs", "version mismatch");
	put_nvidia("", "", 9);
	not_found(E_GPU_TOOL, "it exited with status 9", NULL);
	put("bin/nvidia-smi", "#!/bin/sh\nkill -9 $$\n", 0755);
	not_found(E_GPU_TOOL, "it was killed by SIGKILL", NULL);
	put("bin/nvidia-smi", "#!/proc/nonexistent/interpreter\n", 0755);
	not_found(E_GPU_TOOL, "cannot run", NULL);
	put("bin/nvidia-smi", "#!/bin/sh\nexec yes\n", 0755);
	not_found(E_GPU_TOOL, "the output of", NULL);
}

static void test_find_timeout(void **state)
{
	AUTO_FREE char *path = mem_printf("%s/bin", tmp);
	AUTO_ERR struct err err = {0};
	struct gpu_list list;

	put("bin/nvidia-smi", "#!/bin/sh\nexec sleep 100\n", 0755);
	assert_int_equal(gpu_find_at(path, tmp, 50, &list, &err), -ERR_IO);
	assert_int_equal(err.id, E_GPU_TOOL);
	assert_non_null(strstr(err.message, "did not end within"));
}

/* A node to log in to has the tool and neither driver nor GPU. */
static void test_find_no_driver(void **state)
{
	struct gpu_list list;

	put_nvidia("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
		   "Make sure that the latest NVIDIA driver is installed and running.\n\n",
		"", 9);
	not_found(E_GPU_TOOL, "nvidia-smi", "couldn't communicate");
	put("sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n", 0644);
	put("sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n", 0644);
	put("sys/bus/pci/devices/0000:00:03.0/vendor", "0x10de\n", 0644);
	put("sys/bus/pci/devices/0000:00:03.0/class", "0x040300\n", 0644);
	found(&list, 0);
	put("sys/bus/pci/devices/0000:00:03.0/class", "0x030200\n", 0644);
	not_found(E_GPU_TOOL, "nvidia-smi", "couldn't communicate");
}

static void put_kfd(void)
{
	put("sys/class/kfd/kfd/topology/nodes/0/properties", kfd_cpu, 0644);
	put("sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n", 0644);
	put("sys/class/kfd/kfd/topology/nodes/1/properties",
		"simd_count 96\nlocation_id 49664\ndomain 0\ngfx_target_version 110000\n", 0644);
	put("sys/class/kfd/kfd/topology/nodes/1/gpu_id", "777\n", 0644);
	put("sys/class/kfd/kfd/topology/nodes/2/properties", kfd_gpu, 0644);
	put("sys/class/kfd/kfd/topology/nodes/2/gpu_id", "4711\n", 0644);
	put("sys/class/kfd/kfd/topology/nodes/2/mem_banks/0/properties",
		"heap_type 1\nsize_in_bytes 68702699520\n", 0644);
	put("sys/class/kfd/kfd/proc/123/vram_777", "0\n", 0644);
	put("sys/class/kfd/kfd/proc/123/vram_4711", "4096\n", 0644);
}

static void test_find_kfd(void **state)
{
	struct gpu_list list;

	put("bin/other", "", 0755);
	put_kfd();
	found(&list, 2);
	assert_string_equal(list.v[0].id, "0000:c2:00.0");
	assert_string_equal(list.v[0].model, "AMD gfx1100");
	assert_int_equal(list.v[0].index, 0);
	assert_false(list.v[0].used);
	assert_string_equal(list.v[1].id, "0x8e5c9a3b12d4f601");
	assert_int_equal(list.v[1].index, 1);
	assert_true(list.v[1].memory_bytes == UINT64_C(68702699520));
	assert_true(list.v[1].used);
}

/* ROCm counts what is part of the processor, we do not. */
static void test_find_integrated(void **state)
{
	struct gpu_list list;

	put("bin/other", "", 0755);
	put_kfd();
	put("sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties",
		"heap_type 1\nsize_in_bytes 536870912\n", 0644);
	found(&list, 1);
	assert_string_equal(list.v[0].id, "0x8e5c9a3b12d4f601");
	assert_int_equal(list.v[0].index, 1);
}

/* The same ids whether the tool or the kernel is asked, and the kernel's order. */
static void test_find_rocm(void **state)
{
	AUTO_FREE char *script = mem_printf("#!/bin/sh\ncat <<'E'\n%s\nE\n", two_cards);
	struct gpu_list list;

	put("bin/rocm-smi", script, 0755);
	found(&list, 2);
	assert_string_equal(list.v[0].id, "0x8e5c9a3b12d4f601");
	assert_int_equal(list.v[1].index, 1);
	put_kfd();
	put_nvidia("0, " UUID_0 ", 00000000:17:00.0, 81920, A\n", "", 0);
	found(&list, 3);
	assert_string_equal(list.v[0].id, UUID_0);
	assert_string_equal(list.v[1].id, "0000:c2:00.0");
	assert_false(list.v[1].used);
	assert_string_equal(list.v[2].id, "0x8e5c9a3b12d4f601");
	assert_string_equal(list.v[2].model, "Instinct MI210");
	assert_int_equal(list.v[2].index, 1);
	assert_true(list.v[2].used);
}

static void test_find_rocm_fails(void **state)
{
	struct gpu_list list;

	put("bin/rocm-smi",
		"#!/bin/sh\necho 'ERROR:root:Driver not initialized (amdgpu not found in "
		"modules)'; exit 1\n",
		0755);
	found(&list, 0);
	put("bin/rocm-smi", "#!/bin/sh\necho Traceback; exit 1\n", 0755);
	not_found(E_GPU_TOOL, "rocm-smi", "Traceback");
}

/*
 * JSON, words
 */

static const struct gpu_list mixed = {
	.n = 3,
	.v = {{GPU_NVIDIA, 0, UUID_0, "A100 \"x\"", UINT64_C(80) << 30, false},
		{GPU_NVIDIA, 1, UUID_1, "", 0, true},
		{GPU_AMD, 0, "0000:c1:00.0", "MI210", 5, false}},
};

static void test_json(void **state)
{
	AUTO_JSON struct json *json = gpu_list_to_json(&mixed);
	struct gpu_list back;
	AUTO_BUF struct buf text;

	buf_init(&text, 4096);
	json_print(json, &text);
	assert_non_null(
		strstr(text.data, "{\"vendor\":\"amd\",\"index\":0,\"id\":\"0000:c1:00.0\","
				  "\"model\":\"MI210\",\"memory_bytes\":5,\"used\":false}"));
	assert_int_equal(gpu_list_from_json(json, &back, NULL), 0);
	assert_int_equal(back.n, mixed.n);
	for (size_t i = 0; i < mixed.n; i++) {
		assert_int_equal(back.v[i].vendor, mixed.v[i].vendor);
		assert_int_equal(back.v[i].index, mixed.v[i].index);
		assert_string_equal(back.v[i].id, mixed.v[i].id);
		assert_string_equal(back.v[i].model, mixed.v[i].model);
		assert_true(back.v[i].memory_bytes == mixed.v[i].memory_bytes);
		assert_int_equal(back.v[i].used, mixed.v[i].used);
	}
}

static int read_json(const char *text)
{
	AUTO_JSON struct json *json = NULL;
	struct gpu_list list;

	if (json_parse(text, strlen(text), 1 << 20, "it", &json, NULL) < 0)
		fail_msg("no JSON: %s", text);
	return gpu_list_from_json(json, &list, NULL);
}

static void test_json_refused(void **state)
{
	AUTO_BUF struct buf many;

	buf_init(&many, 1 << 20);
	assert_int_equal(read_json("[]"), 0);
	assert_int_equal(read_json("{}"), -ERR_IO);
	assert_int_equal(read_json("[1]"), -ERR_IO);
	assert_int_equal(read_json("[{\"vendor\":\"intel\",\"index\":0,\"id\":\"a\",\"model\":\"\","
				   "\"memory_bytes\":0}]"),
		-ERR_IO);
	assert_int_equal(read_json("[{\"vendor\":\"amd\",\"index\":-1,\"id\":\"a\",\"model\":\"\","
				   "\"memory_bytes\":0}]"),
		-ERR_IO);
	assert_int_equal(read_json("[{\"vendor\":\"amd\",\"index\":0,\"id\":\"\",\"model\":\"\","
				   "\"memory_bytes\":0}]"),
		-ERR_IO);
	for (int i = 0; i < 500; i++)
		buf_adds(&many, i ? ",1" : "[1");
	buf_addc(&many, ']');
	assert_int_equal(read_json(many.data), -ERR_LIMIT);
}

static uint64_t match(const char *word)
{
	AUTO_STRV struct strv words = {0};

	strv_add(&words, word);
	return gpu_list_match(&mixed, &words);
}

static void test_match(void **state)
{
	AUTO_STRV struct strv two = {0};

	strv_add(&two, "1");
	strv_add(&two, "0000:c1:00.0");
	assert_int_equal(gpu_list_match(&mixed, NULL), 7);
	assert_int_equal(gpu_list_match(&mixed, &two), 6);
	assert_int_equal(match("0"), 5);
	assert_int_equal(match("00"), 0);
	assert_int_equal(match(""), 0);
	assert_int_equal(match(UUID_0), 1);
	assert_int_equal(match("GPU-6d8a"), 1);
	assert_int_equal(match("0000:c1"), 0);
}

#define IN_TMP(test) cmocka_unit_test_setup_teardown(test, make_tmp, remove_tmp)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nvidia),
		cmocka_unit_test(test_nvidia_unknown),
		cmocka_unit_test(test_nvidia_remarks),
		cmocka_unit_test(test_nvidia_nonsense),
		cmocka_unit_test(test_nvidia_many),
		cmocka_unit_test(test_nvidia_long),
		cmocka_unit_test(test_nvidia_apps),
		cmocka_unit_test(test_pci),
		cmocka_unit_test(test_rocm),
		cmocka_unit_test(test_rocm_odd),
		cmocka_unit_test(test_kfd),
		IN_TMP(test_find_none),
		IN_TMP(test_find_nvidia),
		IN_TMP(test_find_nvidia_fails),
		IN_TMP(test_find_timeout),
		IN_TMP(test_find_no_driver),
		IN_TMP(test_find_kfd),
		IN_TMP(test_find_integrated),
		IN_TMP(test_find_rocm),
		IN_TMP(test_find_rocm_fails),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_json_refused),
		cmocka_unit_test(test_match),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
