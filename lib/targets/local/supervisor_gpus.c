/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/supervisor_impl.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "host/gpu.h"

/*
 * The GPUs of the program: the worker runs the tools, which may take long; the queue is checked
 * here.
 */

enum {
	LOOK_MS = 1000,
	ASK_AGAIN_MS = 2000, /* between two questions to the tools */
	GPUS_JSON_MAX = 64 << 10,
};

struct supervisor_gpus {
	struct gpu_list list; /* as of the last answer */
	struct gpu_claim *claim;
	int64_t asked_ms; /* clock_ms() */
	bool asking;
	bool quiet; /* the queue has called and is not to call again before the timer */
	struct loop_fd *source;
	struct loop_timer *timer;
};

void sup_gpus_free(struct supervisor *sup)
{
	struct supervisor_gpus *gpus = sup->gpus;

	if (!gpus)
		return;
	loop_remove_timer(sup->loop, gpus->timer);
	loop_remove_fd(sup->loop, gpus->source);
	gpu_claim_free(gpus->claim);
	free(gpus);
	sup->gpus = NULL;
}

const struct gpu_list *sup_gpus_granted(const struct supervisor *sup)
{
	return sup->gpus && sup->gpus->claim ? gpu_claim_granted(sup->gpus->claim) : NULL;
}

/*
 * GPUs of the program
 */

const int *sup_gpus_fds(const struct supervisor *sup, size_t *ret_n)
{
	*ret_n = 0;
	return sup_gpus_granted(sup) ? gpu_claim_fds(sup->gpus->claim, ret_n) : NULL;
}

static bool is_set_by_user(const struct supervisor *sup, const char *pair)
{
	AUTO_FREE char *name = mem_strndup(pair, strcspn(pair, "="));
	const struct strv *env = &sup->job->env;

	return env->n && env_get((const char *const *)env->v, name);
}

void sup_gpus_env(const struct supervisor *sup, struct strv *env)
{
	const struct gpu_list *granted = sup_gpus_granted(sup);
	AUTO_STRV struct strv pairs = {0};

	if (!granted)
		return;
	gpu_claim_env(sup->gpus->claim, &pairs);
	for (size_t i = 0; i < pairs.n; i++)
		if (!is_set_by_user(sup, pairs.v[i]))
			env_set(env, pairs.v[i], false);
	AUTO_FREE char *count = mem_printf("DLRUN_GPUS_PER_NODE=%zu", granted->n);
	env_set(env, count, false);
}

/* Write the granted GPUs for the record, and for a later supervisor. warning: may be NULL. */
static void write_granted(
	struct supervisor *sup, const struct gpu_list *granted, const char *warning)
{
	AUTO_JSON struct json *json = json_object();
	struct json *resources = json_sub(json, "resources");
	AUTO_BUF struct buf text;

	json_set_int(resources, "gpus", (int64_t)granted->n);
	json_set_str(resources, "gpu_model", granted->n ? granted->v[0].model : NULL);
	json_set(json, "list", gpu_list_to_json(granted));
	json_set_str(json, "warning", warning);
	buf_init(&text, GPUS_JSON_MAX);
	json_print(json, &text);
	if (buf_check(&text, ATTEMPT_GPUS, NULL) < 0 ||
		fs_replace(ATTEMPT_GPUS, text.data, text.len, 0600, FS_SYNC_NONE, NULL) < 0)
		sup_note(sup, "cannot write " ATTEMPT_GPUS);
}

/*
 * The queue
 */

static void go_on_without(struct supervisor *sup)
{
	sup_gpus_free(sup);
	sup_start_program(sup);
}

/* If no number of GPUs was requested, run without one and say so rather than not at all. */
static void fail(struct supervisor *sup, const struct err *err)
{
	static const struct gpu_list none;
	AUTO_FREE char *warning = NULL;

	if (sup->job->world.gpus != WORLD_GPUS_AUTO || err->id == E_RUN_START) {
		sup_start_failed(sup, err);
		return;
	}
	warning = mem_printf("it was given no GPU: %s%s%s", err->message,
		err->n_evidence ? ": " : "", err->n_evidence ? err->evidence[0] : "");
	sup_note(sup, "%s", warning);
	write_granted(sup, &none, warning);
	go_on_without(sup);
}

static void ask(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};

	sup->gpus->asking = true;
	sup->gpus->asked_ms = clock_ms();
	if (sup_ask_worker(sup, WORKER_GPUS, &err) < 0)
		fail(sup, &err);
}

static void granted(struct supervisor *sup)
{
	struct supervisor_gpus *gpus = sup->gpus;

	loop_remove_timer(sup->loop, gpus->timer);
	loop_remove_fd(sup->loop, gpus->source);
	gpus->timer = NULL;
	gpus->source = NULL;
	write_granted(sup, gpu_claim_granted(gpus->claim), gpu_claim_notice(gpus->claim));
	sup_start_program(sup);
}

static int on_look(void *ctx, struct err *err);

static void look_at(struct supervisor *sup, int64_t at_ms)
{
	loop_remove_timer(sup->loop, sup->gpus->timer);
	sup->gpus->timer = loop_add_timer(sup->loop, at_ms, on_look, sup);
}

static void wait_in_queue(struct supervisor *sup)
{
	struct supervisor_gpus *gpus = sup->gpus;

	gpus->quiet = false;
	sup_wait_as(sup, RUN_QUEUED, gpu_claim_why(gpus->claim));
	look_at(sup, clock_ms() + LOOK_MS);
}

/* Call with fresh output of the tools: old output may call a GPU free that is used by now. */
static void try_claim(struct supervisor *sup)
{
	struct supervisor_gpus *gpus = sup->gpus;
	AUTO_ERR struct err err = {0};
	int r = gpu_claim_try(gpus->claim, &gpus->list, &err);

	if (r < 0)
		fail(sup, &err);
	else if (r > 0)
		granted(sup);
	else
		wait_in_queue(sup);
}

/* Run the tools only when their output could matter; at once when a GPU was given back. */
static void look(struct supervisor *sup, bool given_back)
{
	struct supervisor_gpus *gpus = sup->gpus;
	AUTO_ERR struct err failure = {0};
	int64_t again_ms = given_back ? 0 : gpus->asked_ms + ASK_AGAIN_MS;

	if (gpus->asking)
		return;
	int r = gpu_claim_ready(gpus->claim, &gpus->list, &failure);
	if (r < 0)
		fail(sup, &failure);
	else if (r == 0)
		wait_in_queue(sup);
	else if (clock_ms() >= again_ms)
		ask(sup);
	else
		look_at(sup, again_ms);
}

static int on_look(void *ctx, struct err *err)
{
	struct supervisor *sup = ctx;

	(void)err;
	if (sup->phase != PHASE_GPUS)
		return 0;
	sup->gpus->timer = NULL;
	look(sup, false);
	return 0;
}

static short want_call(void *ctx)
{
	const struct supervisor *sup = ctx;

	return sup->phase != PHASE_GPUS || sup->gpus->quiet ? 0 : POLLIN;
}

static int on_call(void *ctx, short revents, struct err *err)
{
	struct supervisor *sup = ctx;

	(void)revents;
	(void)err;
	if (sup->phase != PHASE_GPUS)
		return 0;
	sup->gpus->quiet = true;
	look(sup, true);
	return 0;
}

static int enter_queue(struct supervisor *sup, struct err *err)
{
	static const struct loop_fd_ops ops = {want_call, on_call};
	struct supervisor_gpus *gpus = sup->gpus;
	const struct world *world = &sup->job->world;
	struct gpu_claim_spec spec = {
		.owner = sup->job->run_id,
		.want = world->gpus == WORLD_GPUS_AUTO ? 1 : (unsigned)world->gpus,
		.only = &world->gpus_only,
	};

	int r = gpu_claim_new(&spec, &gpus->claim, err);
	if (r < 0)
		return r;
	int fd = gpu_claim_watch_fd(gpus->claim);
	if (fd >= 0)
		gpus->source = loop_add_fd(sup->loop, fd, &ops, sup);
	return 0;
}

void sup_gpus_answered(struct supervisor *sup, int r, const struct json *result, struct err *err)
{
	struct supervisor_gpus *gpus = sup->gpus;

	gpus->asking = false;
	if (r == 0)
		r = gpu_list_from_json(json_get(result, "gpus"), &gpus->list, err);
	if (r == 0 && gpus->list.n == 0 && sup->job->world.gpus == WORLD_GPUS_AUTO) {
		go_on_without(sup);
		return;
	}
	if (r == 0 && !gpus->claim)
		r = enter_queue(sup, err);
	if (r < 0)
		fail(sup, err);
	else
		try_claim(sup);
}

void sup_gpus_begin(struct supervisor *sup)
{
	if (sup->job->world.gpus == 0) {
		sup_start_program(sup);
		return;
	}
	sup->phase = PHASE_GPUS;
	sup->gpus = mem_alloc(1, sizeof(*sup->gpus));
	ask(sup);
}
