/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/gpu_impl.h"

enum { KFD_NODES_MAX = 256, KFD_BANKS_MAX = 8, PROCESSES_MAX = 4096 };

#define SYSFS            "/sys"
#define INTEGRATED_BYTES (UINT64_C(2) << 30)

struct search {
	const char *path, *sysfs;
	int64_t deadline_ms;
	struct gpu_found_list found;
};

/*
 * The tools
 */

static int fail_tool(const char *tool, const char *why, struct err *err)
{
	return err_set(err, E_GPU_TOOL, "%s does not list the GPUs: %s", tool, why);
}

/* Run a tool: its output and status, or E_GPU_TOOL. */
static int ask(const struct search *search, const char *const *argv, struct buf *out,
	int *ret_status, struct err *err)
{
	AUTO_ERR struct err inner = {0};
	int64_t left_ms = search->deadline_ms - clock_ms();

	buf_init(out, GPU_OUTPUT_MAX);
	if (proc_capture(argv, NULL, left_ms > 0 ? left_ms : 0, out, ret_status, &inner) < 0)
		return fail_tool(argv[0], inner.message, err);
	return 0;
}

/* A tool that fails without output: the status is all there is. */
static int check_silence(
	const char *tool, int status, const struct gpu_found_list *found, struct err *err)
{
	AUTO_FREE char *why = NULL;
	char name[8];

	if (status == 0 || found->n > 0)
		return 0;
	if (WIFSIGNALED(status))
		why = mem_printf(
			"it was killed by SIG%s", proc_signal_name(WTERMSIG(status), name));
	else
		why = mem_printf("it exited with status %d", WEXITSTATUS(status));
	return fail_tool(tool, why, err);
}

/* Whether there is an NVIDIA display controller; true where the bus cannot be seen. */
static bool may_have_nvidia(const char *sysfs)
{
	AUTO_FREE char *dir = mem_printf("%s/bus/pci/devices", sysfs);
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;

	if (!stream)
		return true;
	while ((entry = readdir(stream))) {
		AUTO_FREE char *path = mem_printf("%s/%s/vendor", dir, entry->d_name);
		AUTO_FREE char *class = mem_printf("%s/%s/class", dir, entry->d_name);
		AUTO_BUF struct buf vendor_text = {0}, class_text = {0};

		if (fs_read(path, 64, &vendor_text, NULL, NULL) == 0 &&
			str_starts(vendor_text.data, "0x10de") &&
			fs_read(class, 64, &class_text, NULL, NULL) == 0 &&
			str_starts(class_text.data, "0x03"))
			return true;
	}
	return false;
}

static int find_nvidia(struct search *search, struct err *err)
{
	AUTO_FREE char *tool = proc_find("nvidia-smi", search->path);
	const char *list[] = {
		tool, "--query-gpu=" GPU_NVIDIA_QUERY, "--format=csv,noheader,nounits", NULL};
	const char *apps[] = {
		tool, "--query-compute-apps=" GPU_NVIDIA_APPS, "--format=csv,noheader", NULL};
	AUTO_BUF struct buf out = {0}, uses = {0};
	int status = 0;

	if (!tool)
		return 0;
	int r = ask(search, list, &out, &status, err);
	if (r < 0)
		return r;
	/* A login node has the tool, but neither driver nor GPU. */
	if (gpu_says_no_driver(out.data) && !may_have_nvidia(search->sysfs))
		return 0;
	r = gpu_parse_nvidia(out.data, out.len, &search->found, err);
	if (r == 0 && !strstr(out.data, "No devices"))
		r = check_silence(tool, status, &search->found, err);
	if (r < 0 || search->found.n == 0)
		return r;
	r = ask(search, apps, &uses, &status, err);
	if (r == 0)
		gpu_parse_nvidia_apps(uses.data, uses.len, &search->found);
	return r;
}

static int find_rocm(struct search *search, struct gpu_found_list *list, struct err *err)
{
	AUTO_FREE char *tool = proc_find("rocm-smi", search->path);
	const char *argv[] = {tool, "--showuniqueid", "--showproductname", "--showbus",
		"--showmeminfo", "vram", "--json", NULL};
	AUTO_BUF struct buf out = {0};
	int status = 0;

	if (!tool)
		return 0;
	int r = ask(search, argv, &out, &status, err);
	if (r < 0 || gpu_says_no_driver(out.data))
		return r;
	return gpu_parse_rocm(out.data, out.len, list, err);
}

/*
 * AMD's compute driver. Its nodes are counted as ROCR_VISIBLE_DEVICES counts.
 */

struct kfd_gpu {
	struct gpu_found found;
	unsigned long id; /* names the files of its users */
};
struct kfd {
	char *dir;
	struct kfd_gpu v[GPU_MAX];
	size_t n;
};

ERR_PRINTF(2, 3)
static bool read_kfd(struct buf *ret, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *path = mem_vprintf(fmt, args);
	va_end(args);
	return fs_read(path, GPU_KFD_MAX, ret, NULL, NULL) == 0;
}

static uint64_t kfd_memory(const char *dir, int node)
{
	uint64_t bytes = 0;

	for (int bank = 0; bank < KFD_BANKS_MAX; bank++) {
		AUTO_BUF struct buf text = {0};

		if (read_kfd(
			    &text, "%s/topology/nodes/%d/mem_banks/%d/properties", dir, node, bank))
			bytes += gpu_parse_kfd_bank(text.data, text.len);
	}
	return bytes & INT64_MAX;
}

static void add_kfd(struct kfd *kfd, int node)
{
	AUTO_BUF struct buf text = {0}, id = {0};
	struct kfd_gpu gpu = {.id = 0};

	/* A GPU that a container may not use cannot be read there, and is not counted. */
	if (!read_kfd(&text, "%s/topology/nodes/%d/properties", kfd->dir, node) ||
		!read_kfd(&id, "%s/topology/nodes/%d/gpu_id", kfd->dir, node) ||
		!gpu_parse_kfd(text.data, text.len, &gpu.found))
		return;
	gpu.id = strtoul(id.data, NULL, 10);
	gpu.found.gpu.index = (unsigned)kfd->n;
	gpu.found.gpu.memory_bytes = kfd_memory(kfd->dir, node);
	kfd->v[kfd->n++] = gpu;
}

/* Whether the process, a directory below proc, has memory of the GPU. */
static bool is_used_by(const char *dir, const char *process, unsigned long id)
{
	AUTO_BUF struct buf text = {0};

	return read_kfd(&text, "%s/proc/%s/vram_%lu", dir, process, id) &&
	       strtoull(text.data, NULL, 10) > 0;
}

static void mark_kfd_used(struct kfd *kfd)
{
	AUTO_FREE char *dir = fs_join(kfd->dir, "proc");
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;

	for (int n = 0; stream && n < PROCESSES_MAX && (entry = readdir(stream)); n++) {
		if (!str_is_digit(entry->d_name[0]))
			continue;
		for (size_t i = 0; i < kfd->n; i++)
			if (is_used_by(kfd->dir, entry->d_name, kfd->v[i].id))
				kfd->v[i].found.gpu.used = true;
	}
}

static void kfd_init(struct kfd *kfd, const char *sysfs)
{
	kfd->n = 0;
	kfd->dir = fs_join(sysfs, "class/kfd/kfd");
	if (access(kfd->dir, F_OK) < 0)
		return;
	for (int node = 0; node < KFD_NODES_MAX && kfd->n < GPU_MAX; node++)
		add_kfd(kfd, node);
	if (kfd->n > 0)
		mark_kfd_used(kfd);
}

static void kfd_done(struct kfd *kfd)
{
	free(kfd->dir);
}
#define AUTO_KFD AUTO(kfd_done)

static const struct kfd_gpu *kfd_find(const struct kfd *kfd, const char *pci)
{
	for (size_t i = 0; i < kfd->n; i++)
		if (str_eq(kfd->v[i].found.pci, pci))
			return &kfd->v[i];
	return NULL;
}

static unsigned rank_of(const struct gpu_found_list *list, unsigned index)
{
	unsigned rank = 0;

	for (size_t i = 0; i < list->n; i++)
		if (list->v[i].gpu.index < index)
			rank++;
	return rank;
}

/* Whether the GPU is part of a processor, with a small part of its memory set apart. A run would
 * wait for it as for a GPU, which few programs mean. ROCm counts it. */
static bool is_integrated(const struct gpu *gpu)
{
	return gpu->memory_bytes > 0 && gpu->memory_bytes < INTEGRATED_BYTES;
}

static void add_amd(struct search *search, const struct gpu_found *found)
{
	if (!is_integrated(&found->gpu))
		search->found.v[search->found.n++] = *found;
}

/* rocm-smi may count devices that are no GPUs for ROCm, and does not report their users. */
static void add_rocm(
	struct search *search, const struct gpu_found_list *list, const struct kfd *kfd)
{
	for (size_t i = 0; i < list->n; i++) {
		struct gpu_found found = list->v[i];
		const struct kfd_gpu *known = kfd_find(kfd, found.pci);

		found.gpu.index = known ? known->found.gpu.index : rank_of(list, found.gpu.index);
		found.gpu.used = known && known->found.gpu.used;
		add_amd(search, &found);
	}
}

static int find_amd(struct search *search, struct err *err)
{
	AUTO_KFD struct kfd kfd;
	struct gpu_found_list list = {.n = 0};

	kfd_init(&kfd, search->sysfs);
	int r = find_rocm(search, &list, err);
	if (r < 0)
		return r;
	if (search->found.n + (list.n ? list.n : kfd.n) > GPU_MAX)
		return err_set(err, E_DATA_LIMIT, "this machine has more than %d GPUs", GPU_MAX);
	for (size_t i = 0; list.n == 0 && i < kfd.n; i++)
		add_amd(search, &kfd.v[i].found);
	add_rocm(search, &list, &kfd);
	return 0;
}

/*
 * All
 */

int gpu_find_at(const char *path, const char *sysfs, int64_t timeout_ms, struct gpu_list *ret,
	struct err *err)
{
	struct search search = {
		.path = path, .sysfs = sysfs, .deadline_ms = clock_deadline(timeout_ms)};
	int r = find_nvidia(&search, err);

	if (r == 0)
		r = find_amd(&search, err);
	if (r == 0)
		r = gpu_found_finish(&search.found, ret, err);
	if (r < 0)
		err_hint(err, "to run without GPUs: dlrun submit -g 0");
	return r;
}

int gpu_find(const char *path, int64_t timeout_ms, struct gpu_list *ret, struct err *err)
{
	return gpu_find_at(path, SYSFS, timeout_ms, ret, err);
}

bool gpu_may_exist(const char *path)
{
	AUTO_FREE char *nvidia = proc_find("nvidia-smi", path);
	AUTO_FREE char *rocm = proc_find("rocm-smi", path);

	return nvidia || rocm || access(SYSFS "/class/kfd/kfd/topology", F_OK) == 0;
}
