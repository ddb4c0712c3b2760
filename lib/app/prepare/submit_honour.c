/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/prepare/submission.h"
#include "base/os/env.h"
#include "base/os/os.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/gpu.h"

/*
 * Settings that a machine does not support are never dropped silently: on the command line they are
 * an error that names the fix; in a configuration file, which serves other targets, too, they are
 * reported.
 */

enum { GPU_LOOK_MS = 10000, NAMES_MAX = 4096 };

static bool is_local(const struct submission *submission)
{
	return submission->target->ops->is_here;
}

static const char *runtime_of(const struct submission *submission)
{
	const struct json *target = config_target(submission->config, submission->target->name);
	const char *runtime = json_get_str(target, "runtime");

	return str_eq(runtime, "host") ? NULL : runtime;
}

/*
 * Settings that only clusters support
 */

static int refuse_key(
	struct submission *submission, const char *key, const char *what, struct err *err)
{
	const char *name = submission->target->name, *value = config_str(submission->config, key);
	AUTO_FREE char *shown = value ? str_shown(value) : NULL;

	if (!config_is_set(submission->config, key))
		return 0;
	if (!config_is_option(submission->config, key)) {
		submission_note(submission, "%s: target %s has no %s, so it does not count here",
			key, name, what);
		return 0;
	}
	err_set(err, E_TARGET_UNSUPPORTED, "--%s %s: target %s has no %s", key, shown ? shown : "",
		name, what);
	return err_hint(err, "dlrun submit -t kube …");
}

/* Programs of a machine run on it. */
static int check_image(struct submission *submission, struct err *err)
{
	const char *name = submission->target->name,
		   *image = config_str(submission->config, "image");

	if (str_empty(image) || str_eq(image, "scratch") || runtime_of(submission) ||
		!config_is_option(submission->config, "image"))
		return 0;
	AUTO_FREE char *shown = str_shown(image);
	err_set(err, E_TARGET_UNSUPPORTED,
		"--image %s: target %s runs programs on the machine itself, without an image",
		shown, name);
	if (is_local(submission))
		return err_hint(err, "dlrun submit -t kube …");
	return err_hint(err, "runtime: podman   # of the target: programs run in the image there");
}

/*
 * Processors and memory
 */

static int too_much(struct submission *submission, const char *key, const char *wanted,
	const char *has, const char *unit, struct err *err)
{
	const char *dot = strrchr(key, '.');

	if (!config_is_option(submission->config, key)) {
		submission_warn(
			submission, "%s: %s: this machine has %s%s", key, wanted, has, unit);
		return 0;
	}
	err_set(err, E_TARGET_UNSUPPORTED, "--%s %s: this machine has %s%s", dot + 1, wanted, has,
		unit);
	return err_hint(err, "dlrun submit --%s %s …", dot + 1, has);
}

static int check_size(struct submission *submission, struct err *err)
{
	const struct resources *wanted = &submission->spec.resources;
	long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
	uint64_t memory = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
	unsigned cpus = os_processors();
	int r = 0;

	if (wanted->cpus_milli > (int64_t)cpus * 1000) {
		AUTO_FREE char *has = mem_printf("%u", cpus);
		AUTO_FREE char *asked = mem_printf("%g", (double)wanted->cpus_milli / 1000);
		r = too_much(submission, "resources.cpus", asked, has, cpus == 1 ? " CPU" : " CPUs",
			err);
	}
	if (r == 0 && memory && wanted->memory_bytes > memory) {
		char asked[16], has[32];
		snprintf(has, sizeof(has), "%lluMi", (unsigned long long)(memory >> 20));
		r = too_much(submission, "resources.memory", str_size(wanted->memory_bytes, asked),
			has, " of memory", err);
	}
	return r;
}

/*
 * The model of a GPU
 */

static void add_models(const struct gpu_list *list, struct buf *out)
{
	for (size_t i = 0; i < list->n; i++)
		if (i == 0 || !str_eq(list->v[i].model, list->v[i - 1].model))
			buf_addf(out, "%s%s", i ? ", " : "", list->v[i].model);
}

static int fail_type(
	const char *type, int wanted, size_t n, const struct gpu_list *list, struct err *err)
{
	AUTO_FREE char *shown = str_shown(type);
	AUTO_BUF struct buf models;

	buf_init(&models, NAMES_MAX);
	add_models(list, &models);
	if (n > 0) {
		err_set(err, E_GPU_COUNT, "requested %d %s GPUs, this machine has %zu", wanted,
			shown, n);
		return err_hint(err, "dlrun submit -g %zu --gpu-type %s …", n, shown);
	}
	err_set(err, E_GPU_COUNT, "--gpu-type %s: this machine has %s", shown,
		list->n ? models.data : "no GPU");
	return err_hint(err, "dlrun targets");
}

/* "0" or the beginning of an id, as CUDA_VISIBLE_DEVICES has it. */
static bool is_chosen(const struct strv *only, const struct gpu *gpu)
{
	for (size_t i = 0; i < only->n; i++) {
		AUTO_FREE char *index = mem_printf("%u", gpu->index);
		if (str_eq(only->v[i], index) || str_starts(gpu->id, only->v[i]))
			return true;
	}
	return only->n == 0;
}

/* Only those of that model are taken. */
static int choose_model(struct submission *submission, const char *type, struct err *err)
{
	struct world *world = &submission->spec.world;
	const char *path = env_get(submission->session->env.env, "PATH");
	AUTO_STRV struct strv ids = {0};
	struct gpu_list list = {0};
	int r = gpu_may_exist(path) ? gpu_find(path, GPU_LOOK_MS, &list, err) : 0;

	if (r < 0)
		return r;
	for (size_t i = 0; i < list.n; i++)
		if (gpu_model_matches(list.v[i].model, type) &&
			is_chosen(&world->gpus_only, &list.v[i]))
			strv_add(&ids, list.v[i].id);
	if (ids.n < (size_t)world->gpus)
		return fail_type(type, world->gpus, ids.n, &list, err);
	strv_copy(&world->gpus_only, &ids);
	return 0;
}

static int check_model(struct submission *submission, struct err *err)
{
	const char *type = submission->spec.resources.gpu_type;
	struct world *world = &submission->spec.world;

	if (!type)
		return 0;
	if (world->gpus == 0 && config_is_set(submission->config, "resources.gpus")) {
		err_set(err, E_USAGE, "--gpu-type %s cannot be used together with -g 0", type);
		return err_hint(err, "dlrun submit --gpu-type %s …", type);
	}
	if (world->gpus <= 0)
		world->gpus = 1;
	return is_local(submission) ? choose_model(submission, type, err) : 0;
}

int submission_check_honour(struct submission *submission, struct err *err)
{
	int r = refuse_key(submission, "queue", "queues", err);

	if (r == 0)
		r = refuse_key(submission, "priority", "priorities", err);
	if (r == 0 && !runtime_of(submission))
		r = refuse_key(submission, "resources.shm", "limit on shared memory", err);
	if (r == 0 && is_local(submission))
		r = refuse_key(submission, "resources.disk", "limit on disk space", err);
	if (r == 0)
		r = check_image(submission, err);
	if (r == 0)
		r = check_model(submission, err);
	if (r == 0 && is_local(submission))
		r = check_size(submission, err);
	return r;
}
