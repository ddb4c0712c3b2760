/* SPDX-License-Identifier: Apache-2.0 */
#include "app/environment/warm_impl.h"

#include <fcntl.h>
#include <stdlib.h>

#include "app/environment/environment.h"
#include "app/environment/tagged.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/target_names.h"
#include "core/record/setup_key.h"
#include "targets/targets.h"

enum {
	WARM_CHECK_MS = 10000,
	WARM_SUBMIT_MS = 60000,
	WARM_STATE_MS = 20000,
	WARM_REMOVE_MS = 20000,
	WARM_POLL_MS = 500,
	WARM_REPORT_MS = 10 * 1000,
	/* Pods that no node has taken for so long will not be. */
	WARM_STALL_MS = 30 * 1000,
	WARM_SILENT_MS = 2 * 60 * 1000,
	WARM_PULL_MS = 60 * 60 * 1000,
	/* A pod that has ended would leave its node to another one of them. */
	WARM_STAY_S = 15 * 60,
	WARM_GRACE_MS = 1000,
	/* Each pod names all of the nodes, and there are as many pods as nodes. */
	WARM_NAMED_MAX = 500,
};

struct warm {
	struct submit *submit;
	struct warm_result *result;
	char id[RUN_ID_SIZE];
	char handle[TARGET_HANDLE_SIZE];
	struct spec spec;
	struct run *run;
	struct target_room room; /* of the run: which nodes could take it */
	size_t n_reported;
	char *why; /* as it was reported last, at reported_ms */
	int64_t reported_ms, heard_ms;
	volatile int interrupted;
};

static void warm_done(struct warm *warm)
{
	spec_done(&warm->spec);
	run_free(warm->run);
	target_room_done(&warm->room);
	free(warm->why);
}

/*
 * The target
 */

static int warm_check_target(struct config *config, struct err *err)
{
	const char *name = config_str(config, "target");
	AUTO_STRV struct strv names = {0};

	name = name ? name : "local";
	int r = target_names_split(config, name, &names, err);
	if (r == 0 && names.n > 1) {
		err_set(err, E_USAGE, "'%s' is several targets; one is warmed at a time", name);
		return err_hint(err, "dlrun warm -t %s", names.v[0]);
	}
	if (r == 0)
		r = target_check(config, name, err);
	if (r < 0 || !target_ops_named(config, name)->is_here)
		return r;
	err_set(err, E_TARGET_UNSUPPORTED, "target %s is this machine: nothing is sent anywhere",
		name);
	return err_hint(err, "dlrun targets");
}

static int warm_find_nodes(struct warm *warm, int n_nodes, struct err *err)
{
	struct submit *submit = warm->submit;
	struct target_room *room = &warm->room;
	AUTO_ERR struct err error = {0};
	AUTO_SPEC struct spec spec = {0};

	int r = spec_copy(&submit->spec, &spec, err);
	if (r < 0)
		return r;
	spec.resources.nodes = 1;
	const struct target_requirements requirements = {.run_id = warm->id, .spec = &spec};
	r = target_room(submit->target, &requirements, WARM_CHECK_MS, room, &error);
	/* Where their number is given the names are a help alone. */
	if (r < 0 && (n_nodes == 0 || error.code == ERR_CANCELED))
		return err_move(err, &error);
	warm->result->wanted = n_nodes > 0 ? n_nodes : (int)room->nodes.n;
	if (warm->result->wanted)
		return 0;
	err_set(err, E_CONFIG, "how many nodes of target %s could take the run is not known: %s",
		submit->target->name,
		room->text && !room->is_now ? room->text : "you may not list nodes");
	return err_hint(err, "dlrun warm --nodes 8");
}

/*
 * The Job
 */

static int warm_init(struct warm *warm, int n_nodes, struct err *err)
{
	struct submit *submit = warm->submit;
	const struct spec *of = &submit->spec;
	struct spec *spec = &warm->spec;

	setup_new_id(warm->id);
	int r = warm_find_nodes(warm, n_nodes, err);
	if (r < 0)
		return r;
	*spec = (struct spec){
		.cwd = mem_strdup("."),
		.timeout_ms = WARM_PULL_MS,
		.grace_ms = WARM_GRACE_MS,
		.drop_entrypoint = true,
		.runtime = {.collect = {.mode = COLLECT_NONE}, .gpus = roles_gpus(of)},
		.resources = {.nodes = warm->result->wanted,
			.gpu_type = mem_strdup(of->resources.gpu_type),
			.queue = mem_strdup(of->resources.queue)},
	};
	strv_add(&spec->command, "sleep");
	strv_addf(&spec->command, "%d", WARM_STAY_S);
	r = submit->target->ops->prepare(submit->target, warm->id, 1, spec, warm->handle, err);
	if (r < 0)
		return r;
	warm->run = run_new(warm->id, warm->id);
	warm->run->spec = spec_to_json(spec);
	json_set_str(warm->run->doc, "user", submit->session->env.user);
	run_add_attempt(warm->run, warm->handle);
	if (submit->image_facts)
		json_set(warm->run->spec, "image", json_clone(submit->image_facts));
	return 0;
}

static int warm_start(struct warm *warm, struct err *err)
{
	struct target *target = warm->submit->target;
	AUTO_STRV struct strv notes = {0};
	const struct target_job job = {
		.run_id = warm->id,
		.attempt = 1,
		.handle = warm->handle,
		.spec = &warm->spec,
		.env = &warm->spec.env,
		.run = warm->run,
		.image_ref = warm->result->ref,
		.is_warming = true,
		.only_nodes = warm->room.nodes.n <= WARM_NAMED_MAX ? &warm->room.nodes : NULL,
	};

	/* The check, as that of a run, also finds out what pods have to be like. */
	int r = target->ops->check ? target_check_job(target, &job, WARM_CHECK_MS, &notes, err) : 0;
	return r < 0 ? r : target_submit(target, &job, WARM_SUBMIT_MS, err);
}

/* Nothing of it stays, also after a failure. */
static void warm_remove(struct warm *warm)
{
	AUTO_FREE char *dir = dirs_run(&warm->submit->session->dirs, warm->id);
	AUTO_ERR struct err error = {0};

	int r = target_forget(warm->submit->target, warm->handle, true, WARM_REMOVE_MS, &error);
	if (r == 0)
		r = fs_remove_tree(AT_FDCWD, dir, &error);
	if (r < 0)
		log_note("warm: %s", error.message);
}

/*
 * Waiting
 */

static void warm_read(struct warm *warm, const struct target_status *status)
{
	struct warm_result *result = warm->result;

	strv_done(&result->warm);
	strv_done(&result->pulling);
	for (const struct json *rank = json_first(status->ranks); rank; rank = json_next(rank)) {
		const char *host = json_get_str(rank, "host"), *state = json_get_str(rank, "state");
		bool is_there = str_eq(state, "succeeded") || str_eq(state, "running");
		struct strv *names = is_there ? &result->warm : &result->pulling;
		if (host && strv_find(names, host) < 0)
			strv_add(names, host);
	}
	if (result->warm.n == warm->n_reported)
		return;
	warm->n_reported = result->warm.n;
	AUTO_FREE char *text =
		mem_printf("warm: %zu of %d nodes have the image", result->warm.n, result->wanted);
	tagged_note(warm->submit, text);
}

/* As a pull that fails, which the cluster tries again and again. */
static void warm_report(struct warm *warm, const char *why)
{
	if (str_empty(why) || str_eq(why, warm->why) ||
		clock_ms() - warm->reported_ms < WARM_REPORT_MS)
		return;
	warm->reported_ms = clock_ms();
	REPLACE(warm->why, mem_strdup(why));
	AUTO_FREE char *text = mem_printf("warm: %s", why);
	tagged_note(warm->submit, text);
}

/* 1: no answer, which may come at the next time. */
static int warm_poll(struct warm *warm, struct target_status *status, struct err *err)
{
	AUTO_ERR struct err error = {0};

	if (target_state(warm->submit->target, warm->handle, WARM_STATE_MS, status, &error) == 0) {
		warm->heard_ms = clock_ms();
		warm_read(warm, status);
		return 0;
	}
	return error.code == ERR_NET && clock_ms() - warm->heard_ms < WARM_SILENT_MS
		       ? 1
		       : err_move(err, &error);
}

static int warm_wait(struct warm *warm, struct err *err)
{
	struct warm_result *result = warm->result;
	struct target *target = warm->submit->target;
	int64_t moved_ms = warm->reported_ms = warm->heard_ms = clock_ms();
	size_t n_before = 0;

	for (;;) {
		AUTO(target_status_done) struct target_status status = {0};
		int r = warm_poll(warm, &status, err);
		if (r < 0)
			return r;
		bool is_moving = r > 0 || result->pulling.n || result->warm.n != n_before;
		n_before = result->warm.n;
		moved_ms = is_moving ? clock_ms() : moved_ms;
		bool is_over = r == 0 && (run_state_is_final(status.state) ||
						 result->warm.n >= (size_t)result->wanted ||
						 clock_ms() - moved_ms > WARM_STALL_MS);
		if (is_over && result->warm.n < (size_t)result->wanted)
			result->why = mem_strdup(status.text ? status.text : "nothing says why");
		if (is_over)
			return 0;
		warm_report(warm, status.text);
		r = loop_pause(target->loop, WARM_POLL_MS, &warm->interrupted, err);
		if (r < 0)
			return r;
	}
}

static int warm_all(struct warm *warm, int n_nodes, struct err *err)
{
	struct submit *submit = warm->submit;
	struct warm_result *result = warm->result;

	int r = environment_push(submit, err);
	if (r < 0)
		return r;
	result->target = mem_strdup(submit->target->name);
	result->ref = mem_strdup(submit->code_apart ? submit->base_ref : submit->ref);
	r = warm_init(warm, n_nodes, err);
	if (r == 0)
		r = loop_flag_interrupts(submit->target->loop, &warm->interrupted, err);
	if (r < 0)
		return r;
	r = warm_start(warm, err);
	if (r == 0)
		r = warm_wait(warm, err);
	loop_remove_interrupts(submit->target->loop);
	warm_remove(warm);
	result->total_ms = clock_ms() - submit->begun_ms;
	return r;
}

int warm_nodes(struct session *session, const struct submit_options *options, int n_nodes,
	const struct submit_events *events, struct warm_result *ret, struct err *err)
{
	AUTO(submit_done)
	struct submit submit = {.session = session,
		.options = options,
		.events = events,
		.is_ahead = true,
		.begun_ms = clock_ms()};
	AUTO(warm_done) struct warm warm = {.submit = &submit, .result = ret};

	int r = session_config(session, &submit.config, err);
	if (r == 0)
		r = warm_check_target(submit.config, err);
	if (r == 0)
		r = submit_check(&submit, err);
	if (r < 0)
		return r;
	return submit.target->ops->needs_image ? warm_all(&warm, n_nodes, err)
					       : warm_hosts(&submit, n_nodes, ret, err);
}

void warm_result_done(struct warm_result *result)
{
	free(result->target);
	free(result->ref);
	strv_done(&result->warm);
	strv_done(&result->pulling);
	strv_done(&result->cold);
	strv_done(&result->cold_why);
	free(result->why);
	*result = (struct warm_result){0};
}

struct json *warm_result_json(const struct warm_result *result)
{
	struct json *json = json_object(), *warm = json_array(), *pulling = json_array();
	struct json *cold = json_array();

	json_set_str(json, "schema", "dlrun/warm/v1");
	json_set_str(json, "target", result->target);
	if (result->ref)
		json_set_str(json, "ref", result->ref);
	json_set_int(json, "wanted", result->wanted);
	json_add_strv(warm, &result->warm);
	json_set(json, "warm", warm);
	json_add_strv(pulling, &result->pulling);
	json_set(json, "pulling", pulling);
	for (size_t i = 0; i < result->cold.n; i++) {
		struct json *host = json_object();
		json_set_str(host, "name", result->cold.v[i]);
		json_set_str(host, "why", result->cold_why.v[i]);
		json_add(cold, host);
	}
	json_set(json, "cold", cold);
	if (result->why)
		json_set_str(json, "why", result->why);
	json_set_int(json, "total_ms", result->total_ms);
	return json;
}
