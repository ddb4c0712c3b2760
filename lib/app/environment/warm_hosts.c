/* SPDX-License-Identifier: Apache-2.0 */
#include "app/environment/warm_impl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "app/environment/tagged.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/setup_key.h"
#include "targets/ssh/target_node.h"

enum {
	HOSTS_AT_ONCE = 32,
	HOSTS_LOCK_MS = 60000,
	HOSTS_ROOM_MS = 20000,
	HOSTS_SUBMIT_MS = 120000,
	HOSTS_RESPONSE_MS = 20000,
	HOSTS_STOP_MS = 15000,
	HOSTS_POLL_MS = 500,
	HOSTS_SILENT_MS = 2 * 60 * 1000,
};

/* The request that a host is sent; its response decides about the next request. */
enum hosts_step {
	HOST_WAITS,
	HOST_ROOM,
	HOST_SUBMIT,
	HOST_PAUSE,
	HOST_STATE,
	HOST_CANCEL,
	HOST_FORGET,
	HOST_OVER,
};

struct hosts;

struct host {
	struct target_call call; /* first: host_on_done */
	struct hosts *all;
	const char *name;
	struct target *target; /* that host alone */
	enum hosts_step step;
	bool has_response;
	int status;
	struct err error; /* of the step */
	struct target_room room;
	struct target_status state;
	char id[RUN_ID_SIZE], handle[TARGET_HANDLE_SIZE];
	struct target_job job;
	int64_t begun_ms, heard_ms, next_ms;
	char *text; /* what it does, as it was reported last */
	char *why;  /* it is cold */
	bool is_warm, is_unfit;
};

struct hosts {
	struct submit *submit;
	struct warm_result *result;
	struct spec wanted; /* of the run, for the question whether a host could take it */
	struct target_job job;
	struct host *v;
	size_t n;
	size_t n_wanted; /* 0: all */
	bool is_ending;
	struct loop_wait wait;
	volatile int interrupted;
};

static void hosts_done(struct hosts *hosts)
{
	for (size_t i = 0; i < hosts->n; i++) {
		struct host *host = &hosts->v[i];
		target_call_cancel(&host->call);
		target_room_done(&host->room);
		target_status_done(&host->state);
		target_free(host->target);
		err_done(&host->error);
		free(host->text);
		free(host->why);
	}
	free(hosts->v);
	spec_done(&hosts->wanted);
}

/*
 * A host
 */

static void host_on_done(struct target_call *call, int status, struct err *error)
{
	struct host *host = (struct host *)call;

	host->has_response = true;
	host->status = status;
	if (status < 0)
		err_move(&host->error, error);
	if (host->all->wait.n_open)
		loop_wait_done(&host->all->wait);
}

static int host_ask_room(struct host *host, struct err *err)
{
	const struct submit *submit = host->all->submit;
	const struct target_requirements wanted = {
		.run_id = host->id,
		.spec = &host->all->wanted,
		.image = &submit->image,
		.base = submit->pack.base_name,
		.tree_bytes = submit->snapshot->bytes,
	};

	return host->target->ops->room(host->target, &wanted, &host->room, &host->call, err);
}

static int host_ask_state(struct host *host, struct err *err)
{
	target_status_done(&host->state);
	host->state = (struct target_status){0};
	return host->target->ops->state(host->target, host->handle, &host->state, &host->call, err);
}

static void host_begin(struct host *host, enum hosts_step step)
{
	static const int64_t limits[] = {
		[HOST_ROOM] = HOSTS_ROOM_MS,
		[HOST_SUBMIT] = HOSTS_SUBMIT_MS,
		[HOST_STATE] = HOSTS_RESPONSE_MS,
		[HOST_CANCEL] = HOSTS_RESPONSE_MS,
		[HOST_FORGET] = HOSTS_RESPONSE_MS,
		[HOST_OVER] = 0,
	};
	struct target *target = host->target;
	const struct target_ops *ops = target->ops;
	struct err *err = &host->error;
	int r = 0;

	err_clear(err);
	host->step = step;
	host->has_response = false;
	host->call = (struct target_call){
		.deadline_ms = clock_ms() + limits[step], .done = host_on_done};
	if (step == HOST_ROOM)
		r = host_ask_room(host, err);
	else if (step == HOST_SUBMIT)
		r = ops->submit(target, &host->job, &host->call, err);
	else if (step == HOST_STATE)
		r = host_ask_state(host, err);
	else if (step == HOST_CANCEL)
		r = ops->cancel(target, host->handle, &host->call, err);
	else if (step == HOST_FORGET)
		r = ops->forget(target, host->handle, true, &host->call, err);
	if (r < 0) {
		host->has_response = true;
		host->status = r;
	}
}

static void host_report(struct host *host, const char *text)
{
	if (str_empty(text) || str_eq(text, host->text))
		return;
	REPLACE(host->text, mem_strdup(text));
	AUTO_FREE char *line = mem_printf("warm: %s: %s", host->name, text);
	tagged_note(host->all->submit, line);
}

static void host_fail(struct host *host, const char *why)
{
	if (host->why)
		return;
	host->why = mem_strdup(why ? why : "nothing says why");
	host_report(host, host->why);
}

/* Nothing of the attempt stays here. */
static void host_end(struct host *host)
{
	AUTO_FREE char *dir = dirs_run(&host->all->submit->session->dirs, host->id);
	AUTO_ERR struct err error = {0};

	host->step = HOST_OVER;
	if (fs_remove_tree(AT_FDCWD, dir, &error) < 0)
		log_note("warm: %s", error.message);
}

/* A host that could never take the run is not wanted. */
static bool host_is_unfit(const struct err *error)
{
	return error->id == E_GPU_COUNT || error->id == E_TARGET_UNSUPPORTED;
}

static void host_after_room(struct host *host)
{
	struct err *error = &host->error;

	if (host->status == 0 && host->target->ops->prepare(host->target, host->id, 1,
					 host->job.spec, host->handle, error) == 0) {
		host->job.run_id = host->id;
		host->job.handle = host->handle;
		host_report(host, "data and code are sent");
		host_begin(host, HOST_SUBMIT);
		return;
	}
	host->is_unfit = host_is_unfit(error);
	host_fail(host, error->message);
	host_end(host);
}

static void host_after_state(struct host *host)
{
	const struct target_status *state = &host->state;
	char took[32];

	host->next_ms = clock_ms() + HOSTS_POLL_MS;
	if (host->status < 0 && host->error.code == ERR_NET &&
		clock_ms() - host->heard_ms < HOSTS_SILENT_MS) {
		host->step = HOST_PAUSE;
		return;
	}
	host->heard_ms = clock_ms();
	if (host->status == 0 && !run_state_is_final(state->state)) {
		host_report(host, state->text);
		host->step = HOST_PAUSE;
		return;
	}
	if (host->status < 0) {
		host_fail(host, host->error.message);
	} else if (state->state != RUN_SUCCEEDED) {
		host_fail(host, state->text);
	} else {
		/* The response to its submit was lost, and it has run all the same. */
		free(TAKE(host->why));
		host->is_warm = true;
		AUTO_FREE char *text = mem_printf(
			"it is warm, after %s", duration_text(clock_ms() - host->begun_ms, took));
		host_report(host, text);
	}
	host_begin(host, HOST_FORGET);
}

/* An attempt that may have arrived or not is ended. */
static void host_after_submit(struct host *host)
{
	host->heard_ms = clock_ms();
	if (host->status < 0)
		host_fail(host, host->error.message);
	host_begin(host, host->status < 0 ? HOST_CANCEL : HOST_STATE);
}

static void host_go_on(struct host *host)
{
	if (host->step == HOST_PAUSE && clock_ms() >= host->next_ms)
		host_begin(host, HOST_STATE);
	if (!host->has_response)
		return;
	if (host->step == HOST_ROOM)
		host_after_room(host);
	else if (host->step == HOST_SUBMIT)
		host_after_submit(host);
	else if (host->step == HOST_STATE)
		host_after_state(host);
	else if (host->step == HOST_CANCEL)
		host_begin(host, host->status < 0 ? HOST_FORGET : HOST_STATE);
	else if (host->step == HOST_FORGET)
		host_end(host);
}

/* The user does not want it any more. */
static void host_stop(struct host *host)
{
	bool is_there = host->step > HOST_ROOM && host->step < HOST_FORGET;

	target_call_cancel(&host->call);
	if (host->step == HOST_FORGET)
		host_begin(host, HOST_FORGET);
	else if (is_there)
		host_begin(host, HOST_CANCEL);
	else if (host->step != HOST_OVER)
		host_end(host);
}

/*
 * All of them
 */

/* Returns how many are under way. */
static size_t hosts_go_on(struct hosts *hosts)
{
	size_t n_open = 0, n_warm = 0;

	for (size_t i = 0; i < hosts->n; i++) {
		struct host *host = &hosts->v[i];
		host_go_on(host);
		n_open += host->step != HOST_WAITS && host->step != HOST_OVER;
		n_warm += host->is_warm && host->step == HOST_OVER;
	}
	for (size_t i = 0; i < hosts->n && !hosts->is_ending; i++) {
		struct host *host = &hosts->v[i];
		bool is_enough = hosts->n_wanted && n_warm + n_open >= hosts->n_wanted;
		if (host->step != HOST_WAITS || n_open >= HOSTS_AT_ONCE || is_enough)
			continue;
		host->begun_ms = clock_ms();
		host_begin(host, HOST_ROOM);
		n_open++;
	}
	return n_open;
}

static int hosts_run(struct hosts *hosts, int64_t end_ms, struct err *err)
{
	int r = 0;

	while (r == 0 && (end_ms == 0 || clock_ms() < end_ms)) {
		hosts->wait = (struct loop_wait){
			.loop = hosts->submit->target->loop,
			.n_open = 1,
			.deadline_ms = clock_ms() + HOSTS_POLL_MS,
			.interrupted = hosts->is_ending ? NULL : &hosts->interrupted,
		};
		if (hosts_go_on(hosts) == 0)
			return 0;
		r = loop_wait_run(&hosts->wait, err);
	}
	return r;
}

static int hosts_warm(struct hosts *hosts, struct err *err)
{
	struct loop *loop = hosts->submit->target->loop;
	int r = loop_flag_interrupts(loop, &hosts->interrupted, err);

	if (r < 0)
		return r;
	r = hosts_run(hosts, 0, err);
	loop_remove_interrupts(loop);
	if (r == 0)
		return 0;
	hosts->is_ending = true;
	for (size_t i = 0; i < hosts->n; i++)
		host_stop(&hosts->v[i]);
	hosts_run(hosts, clock_ms() + HOSTS_STOP_MS, NULL);
	return r;
}

/*
 * Before and after
 */

static int hosts_pack(struct hosts *hosts, struct err *err)
{
	struct submit *submit = hosts->submit;
	int r = submit_take_snapshot(submit, err);

	if (r < 0)
		return r;
	submit_report_snapshot(submit);
	r = session_lock(submit->session, false, HOSTS_LOCK_MS, &submit->gc_fd, err);
	return r < 0 ? r : submit_pack(submit, err);
}

/* The most GPUs that one node of the run asks for. */
static int hosts_gpus_of_node(const struct spec *spec)
{
	struct roles_part part;
	int most = 0;

	if (roles_gpus(spec) == RUNTIME_GPUS_AUTO)
		return RUNTIME_GPUS_AUTO;
	for (size_t i = 0; i < roles_count(spec); i++) {
		roles_nth(spec, i, &part);
		most = part.gpus > most ? part.gpus : most;
	}
	return most;
}

/* Of the run what it needs, and nothing of what its program does. */
static void hosts_set_spec(struct hosts *hosts)
{
	struct spec *spec = &hosts->submit->spec;
	struct runtime *runtime = &spec->runtime;

	hosts->wanted.runtime.gpus = hosts_gpus_of_node(spec);
	roles_done(&hosts->wanted.roles);
	hosts->wanted.roles = (struct roles){0};
	hosts->wanted.resources.nodes = 1;
	strv_done(&spec->command);
	strv_add(&spec->command, "true");
	spec->shell = false;
	runtime->launcher = (struct launcher){0};
	roles_done(&spec->roles);
	spec->roles = (struct roles){0};
	resources_done(&spec->resources);
	spec->resources = (struct resources){.nodes = 1};
	spec->drop_entrypoint = true;
	spec->timeout_ms = 0;
	free(TAKE(runtime->before));
	strv_done(&runtime->gpus_only);
	runtime->gpus = 0;
	runtime->retries = 0;
	runtime->signal = 0;
	runtime->collect.mode = COLLECT_NONE;
}

/* The ids are new ones, and the image has the first. */
static int hosts_init(struct hosts *hosts, struct err *err)
{
	struct submit *submit = hosts->submit;
	const struct strv *names = submit->target->hosts;
	const struct json *definition = config_target(submit->config, submit->target->name);
	int r = spec_copy(&submit->spec, &hosts->wanted, err);

	hosts->v = mem_alloc(names->n + 1, sizeof(*hosts->v));
	for (size_t i = 0; r == 0 && i < names->n; i++) {
		struct host *host = &hosts->v[i];
		AUTO_STRV struct strv one = {0};
		*host = (struct host){.all = hosts, .name = names->v[i]};
		setup_new_id(host->id);
		strv_add(&one, host->name);
		r = target_node_new(submit->session, submit->target->name, definition, &one, NULL,
			&host->target, err);
		hosts->n += r == 0;
	}
	return r;
}

static int hosts_make_job(struct hosts *hosts, struct err *err)
{
	struct submit *submit = hosts->submit;
	int r = hosts_pack(hosts, err);

	if (r < 0)
		return r;
	hosts_set_spec(hosts);
	submit->run = submit_new_run(submit);
	submit_set_image(submit);
	r = submit_make_start(submit, &hosts->job, err);
	hosts->job.attempt = 1;
	hosts->job.is_warming = true;
	for (size_t i = 0; i < hosts->n; i++)
		hosts->v[i].job = hosts->job;
	return r;
}

static int hosts_set_result(struct hosts *hosts, struct err *err)
{
	struct warm_result *result = hosts->result;
	const char *unfit = NULL;
	size_t n_fit = 0;

	for (size_t i = 0; i < hosts->n; i++) {
		const struct host *host = &hosts->v[i];
		n_fit += !host->is_unfit;
		unfit = host->is_unfit ? host->why : unfit;
		if (host->is_warm)
			strv_add(&result->warm, host->name);
		if (!host->why || host->is_unfit)
			continue;
		strv_add(&result->cold, host->name);
		strv_add(&result->cold_why, host->why);
	}
	if (n_fit == 0)
		return err_set(err, E_TARGET_UNSUPPORTED,
			"no host of target %s could take the run: %s", result->target, unfit);
	result->wanted = (int)(hosts->n_wanted ? hosts->n_wanted : n_fit);
	if (result->warm.n + result->cold.n < (size_t)result->wanted)
		result->why = mem_printf("target %s has %zu host%s that could take the run",
			result->target, n_fit, n_fit == 1 ? "" : "s");
	return 0;
}

int warm_hosts(struct submit *submit, int n_hosts, struct warm_result *ret, struct err *err)
{
	AUTO(hosts_done)
	struct hosts hosts = {.submit = submit, .result = ret, .n_wanted = (size_t)n_hosts};

	ret->target = mem_strdup(submit->target->name);
	if (submit->target->ops->warm)
		submit->target->ops->warm(submit->target);
	int r = hosts_init(&hosts, err);
	if (r < 0)
		return r;
	snprintf(submit->id, sizeof(submit->id), "%s", hosts.v[0].id);
	r = hosts_make_job(&hosts, err);
	if (r == 0)
		r = hosts_warm(&hosts, err);
	if (r == 0)
		r = hosts_set_result(&hosts, err);
	ret->total_ms = clock_ms() - submit->begun_ms;
	return r;
}
