/* SPDX-License-Identifier: Apache-2.0 */
#include "app/submit/send.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/environment/environment.h"
#include "app/lifecycle/after_wait.h"
#include "app/prepare/prepare.h"
#include "app/runs/after_check.h"
#include "app/runs/deliver.h"
#include "app/runs/held.h"
#include "app/runs/refresh.h"
#include "app/submit/place_impl.h"
#include "app/submit/spill_impl.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/config/words.h"
#include "core/context/secrets.h"
#include "core/image/code.h"
#include "core/record/finish.h"
#include "core/record/group.h"
#include "net/http/http.h"
#include "targets/targets.h"

enum { LOCK_MS = 2000, STATE_MS = 15000, QUEUE_MS = 30000 };

struct send_result {
	bool is_sent;
	bool is_whole;  /* tried with all other members of its study that wait */
	bool is_silent; /* who was asked did not answer, or takes no login now */
	bool goes_on;   /* refused, and held for the next of its places */
};

/* A held run while it is sent. */
struct sending {
	struct session session; /* in the directory that the run was submitted in */
	char *cwd;
	struct submit_options options;
	struct submit submit;
	struct strv *silent; /* names of places that did not answer in this turn */
	bool may_be_refused; /* the target has been asked: what fails now is its answer */
	bool is_whole;       /* with all other members of its study that wait */
	int first_fd;        /* held_lock, where that is another run's; 0: none */
	bool *left_out;      /* by index: members of the study that do not go; NULL: none */
	size_t n;            /* runs that go */
};

/* 0 is no lock, too. */
static void send_unlock(struct sending *sending)
{
	struct submit *submit = &sending->submit;

	if (submit->lock_fd > 0)
		auto_fd(&submit->lock_fd);
	submit->lock_fd = -1;
	if (sending->first_fd > 0)
		close(sending->first_fd);
	sending->first_fd = 0;
}

static void send_done(struct sending *sending)
{
	send_unlock(sending);
	free(sending->left_out);
	/* The store is that of the caller. */
	submit_done(&sending->submit);
	session_done(&sending->session);
	free(sending->cwd);
}

/*
 * The list of held runs
 */

/* Also where that cannot be told. */
static bool send_watches_members(struct store *store, const char *study)
{
	const struct store_filter filter = {.unfinished_only = true, .group = study};
	AUTO(run_list_done) struct run_list members = {0};

	if (store_list(store, &filter, &members, NULL) < 0)
		return true;
	vec_foreach (struct run *, run, &members)
		if (run_is_watched(*run))
			return true;
	return false;
}

/* A mark that outlived its row, or the hold of it. */
static void drop_mark(struct session *session, struct store *store, const char *id)
{
	AUTO_FREE char *dir = dirs_run(&session->dirs, id);
	AUTO_FREE char *lock = fs_join(dir, RUN_SUBMIT_LOCK);
	AUTO_RUN struct run *run = NULL;
	AUTO_ERR struct err err = {0};

	/* The lock first: a submit makes its row while it has it. */
	if (fs_is_locked(lock) || study_is_held(&session->dirs, id))
		return;
	if (store_get(store, id, &run, &err) < 0 && err.id != E_RUN_NOT_FOUND)
		return;
	if (run ? !run_is_watched(run) : !send_watches_members(store, id))
		held_unmark(&session->dirs, id);
}

int queue_list(struct session *session, struct run_list *ret, struct err *err)
{
	return held_any(&session->dirs, NULL) ? runs_unfinished(session, run_is_held, ret, err) : 0;
}

/*
 * Members of a study
 */

/* The row of run, and those of the other members: all or none. members: as they are then. */
static int send_change_members(struct session *session, struct run *run, store_change_fn *fn,
	void *ctx, struct run_list *members, struct err *err)
{
	struct store *store;
	int r = session_store(session, &store, err);

	if (r == 0) {
		/* The rows of the run and, behind it, of all other members of its study that have
		 * not ended. */
		const struct store_filter filter = {
			.unfinished_only = true, .group = run_study(run)};
		AUTO(run_list_done) struct run_list all = {0};

		r = store_list(store, &filter, &all, err);
		if (r == 0)
			*vec_push(members) = run_copy(run);
		for (size_t i = all.n; r == 0 && i-- > 0;)
			if (str_eq(run_study(all.v[i]), filter.group) &&
				!str_eq(run_id(all.v[i]), run_id(run)))
				*vec_push(members) = TAKE(all.v[i]);
	}
	if (r == 0)
		r = store_change_all(store, members, fn, ctx, err);
	if (r == 0)
		run_replace(run, run_copy(members->v[0]));
	return r;
}

/* The row of run alone, or as a whole. */
static int send_change_run(struct session *session, struct run *run, bool is_whole,
	store_change_fn *fn, void *ctx, struct err *err)
{
	AUTO(run_list_done) struct run_list members = {0};

	return is_whole ? send_change_members(session, run, fn, ctx, &members, err)
			: run_change_row(session, run, fn, ctx, err);
}

/* Whether it has several places, and may be at none of them. */
static bool send_has_choice(const struct run *run)
{
	return json_count(json_get(run->doc, RUN_PLACES)) > 1 && run_is_unsent(run);
}

/* Whether nothing of the run was ever taken back, although it may have been sent. */
static bool send_is_first_attempt(const struct run *run)
{
	return run_attempts(run) == (run_handle(run) ? 1 : 0);
}

/* Whether the target starts it with the other members. */
static bool send_is_together(const struct submit *submit)
{
	return submit->target && submit->target->ops->submit_study && submit->spec.study.id &&
	       submit->spec.resources.nodes <= 1 && send_is_first_attempt(submit->run);
}

/* Whether it is sent with the others: a study has one target. */
static bool send_is_whole(const struct submit *submit)
{
	if (send_has_choice(submit->run))
		return submit->spec.study.id && send_is_first_attempt(submit->run);
	return send_is_together(submit);
}

/*
 * Opening
 */

static int send_open_session(
	struct sending *sending, struct session *session, const struct run *run, struct err *err)
{
	struct session_env env = session->env;

	/* Without the tree its settings are not known: the run stays until the tree is back. */
	int r = after_submit_dir(run, &sending->cwd, err);

	if (r < 0)
		return err_hint(err, "dlrun cancel %s", run_id(run));
	if (!sending->cwd)
		sending->cwd = mem_strdup(session->dirs.home ? session->dirs.home : "/");
	env.cwd = sending->cwd;
	env.shell_dir = env.git_dir = env.git_work_tree = NULL;
	env.must_count = env.has_terminal = false;
	env.print = NULL;
	env.prompt = NULL;
	return session_init(&sending->session, &env, err);
}

static int send_configure(struct submit *submit, struct err *err)
{
	static const char *const keys[] = {"platform", "workdir"};
	const struct json *held = json_get(submit->run->doc, RUN_HELD);
	int r = session_config(submit->session, &submit->config, err);

	for (size_t i = 0; r == 0 && i < ARRAY_LEN(keys); i++) {
		const char *value = json_get_str(held, keys[i]);
		if (value)
			r = config_override(submit->config, keys[i], value, err);
	}
	if (r == 0 && json_get_bool(held, "no_gpus", false))
		r = config_override(submit->config, "resources.gpus", "0", err);
	return r;
}

/* The place that the target leads to now is that of the submit. */
static int send_check_known(const struct submit *submit, const char *known, struct err *err)
{
	char handle[TARGET_HANDLE_SIZE];

	if (!known || !submit->target->ops->needs_image)
		return 0;
	int r = submit->target->ops->prepare(
		submit->target, submit->id, 1, &submit->spec, handle, err);
	if (r < 0)
		return r;
	AUTO_FREE char *now = held_place(handle);
	if (str_eq(known, now))
		return 0;
	err_set(err, E_TARGET_OTHER,
		"target %s leads to another cluster than when %s was submitted",
		submit->target->name, submit->id);
	return err_hint(err, "kubectl config get-contexts");
}

/* Hosts of a pool are chosen when it is sent; a cluster is the one of the submit, whatever the
 * current context is. */
static int send_open_target(struct submit *submit, struct err *err)
{
	bool is_chosen = target_ops_recorded(submit->run)->needs_image || run_handle(submit->run);

	if (send_has_choice(submit->run))
		return 0;
	int r = is_chosen ? target_open_run(submit->session, submit->run, &submit->target, err)
			  : target_open(
				    submit->session, run_target(submit->run), &submit->target, err);
	if (r < 0)
		return r;
	const char *known = json_get_str(json_get(submit->run->doc, RUN_HELD), "place");

	return send_check_known(submit, known, err);
}

/* The row, as it is now; not its target. */
static int send_open_row(
	struct sending *sending, struct session *session, const struct run *run, struct err *err)
{
	struct submit *submit = &sending->submit;

	int r = send_open_session(sending, session, run, err);
	submit->session = &sending->session;
	submit->options = &sending->options;
	submit->begun_ms = clock_ms();
	submit->is_recorded = submit->is_held = true;
	snprintf(submit->id, sizeof(submit->id), "%s", run_id(run));
	snprintf(submit->name, sizeof(submit->name), "%s", run_name(run));
	if (r == 0)
		r = session_store(submit->session, &submit->store, err);
	if (r == 0)
		r = store_get(submit->store, submit->id, &submit->run, err);
	submit->dir = dirs_run(&session->dirs, submit->id);
	return r;
}

static int send_open(
	struct sending *sending, struct session *session, const struct run *run, struct err *err)
{
	struct submit *submit = &sending->submit;

	int r = send_open_row(sending, session, run, err);
	if (r == 0)
		r = send_configure(submit, err);
	if (r == 0)
		r = spec_from_json(submit->run->spec, &submit->spec, err);
	if (r == 0)
		r = send_open_target(submit, err);
	if (r < 0)
		return r;
	sending->is_whole = send_is_whole(submit);
	sending->n = sending->is_whole ? (size_t)submit->spec.study.size : 1;
	return 0;
}

/*
 * Has it begun?
 */

/* After a start whose end nobody has seen: 1: the target has it. Nobody may hold its lock. */
static int send_has_begun(struct submit *submit, struct err *err)
{
	AUTO(target_status_done) struct target_status status = {0};
	const char *handle = run_handle(submit->run);

	if (!handle)
		return 0;
	int r = target_state(submit->target, handle, STATE_MS, &status, err);
	if (r < 0)
		return r;
	if (status.state == RUN_UNKNOWN)
		return err_set(err, E_TARGET_SILENT, "%s",
			status.text ? status.text : "the target cannot tell now");
	if (status.state == RUN_PREPARING)
		return 0;
	return !attempt_never_began(&status);
}

/* A cancel may come for as long as the run is held: its end is asked for before. */
static int send_change_settled(void *ctx, struct run *run, struct err *err UNUSED)
{
	const bool *is_cancelled = ctx;

	if (!run_is_held(run) || run_is_unsent(run) || (run_cancelling(run) && !*is_cancelled))
		return 0;
	held_clear(run);
	return 1;
}

static int send_settle(struct sending *sending, struct err *err)
{
	struct submit *submit = &sending->submit;
	struct session *session = submit->session;
	struct run *run = submit->run;
	bool is_cancelled = false;
	int r = send_change_run(
		session, run, sending->is_whole, send_change_settled, &is_cancelled, err);

	if (r == 0 && run_is_held(run)) {
		r = target_cancel(submit->target, run_handle(run), STATE_MS, err);
		is_cancelled = true;
		if (r == 0)
			r = run_change_row(session, run, send_change_settled, &is_cancelled, err);
	}
	if (r == 0)
		held_unmark(&session->dirs, submit->id);
	return r;
}

/* 1: it is not to be sent: it was cancelled, and has not begun. */
static int send_is_cancelled(const struct submit *submit, struct err *err)
{
	const char *handle = run_handle(submit->run);

	if (!run_cancelling(submit->run))
		return 0;
	/* Parts that were sent may still arrive. */
	if (handle && !target_knows(submit->target, handle, STATE_MS))
		return err_set(err, E_TARGET_SILENT, "it is not known yet whether it has begun");
	return 1;
}

static int send_change_cancelled(void *ctx UNUSED, struct run *run, struct err *err UNUSED)
{
	if (!run_is_held(run))
		return 0;
	held_end(run);
	return 1;
}

/*
 * Sending
 */

/* The submit borrows strings of the record. */
static void send_borrow(struct submit *submit)
{
	submit->remote_url = json_get_str(json_get(submit->run->doc, RUN_HELD), "remote_url");
}

/* Read the row again under the lock: 1, or 0: it is not held any more. */
static int send_lock(struct sending *sending, struct err *err)
{
	struct submit *submit = &sending->submit;
	AUTO_FREE char *lock = fs_join(submit->dir, RUN_SUBMIT_LOCK);

	int r = fs_lock(lock, true, LOCK_MS, &submit->lock_fd, err);
	if (r == 0 && submit->spec.study.id && submit->spec.study.index > 0)
		r = held_lock(
			&submit->session->dirs, submit->run, LOCK_MS, &sending->first_fd, err);
	if (r == 0)
		r = run_read_row(submit->session, submit->run, err);
	send_borrow(submit);
	return r < 0 ? r : run_is_held(submit->run);
}

/* Images for a cluster lie on a base image; programs of a machine have their code from here. */
static int send_check_code(const struct submit *submit, struct err *err)
{
	const struct json *image = json_get(submit->run->doc, "image");
	const char *ref = json_get_str(image, "ref"), *base = json_get_str(image, "base");
	bool is_here = ref && str_starts(ref, "oci:");

	if (!submit->target->ops->needs_image || !is_here ||
		config_is_set(submit->config, "image") || (base && !str_eq(base, "scratch")))
		return 0;
	return err_set(err, E_IMAGE_NONE, "no base image is set");
}

static int send_prepare_place(struct submit *submit, struct err *err)
{
	AUTO_RUN_PLACES struct run_places places = {0};
	int r = spec_from_json(submit->run->spec, &submit->spec, err);

	if (r == 0)
		r = target_open(submit->session, submit->place_name, &submit->target, err);
	if (r < 0)
		return r;
	run_places_from_json(json_get(submit->run->doc, RUN_PLACES), &places);
	const struct run_place *place = run_places_find(&places, submit->place_name);
	r = send_check_known(submit, place ? place->server : NULL, err);
	if (r == 0)
		r = send_check_code(submit, err);
	return r < 0 ? r : submit_move_runtime(submit, err);
}

/* submit->places are those of its row. */
static int send_ask_places(struct sending *sending, struct err *err)
{
	struct submit *submit = &sending->submit;
	struct submit common = {
		.session = submit->session,
		.options = submit->options,
		.config = submit->config,
		.begun_ms = submit->begun_ms,
		.is_held = true,
		.run = submit->run,
	};

	snprintf(common.id, sizeof(common.id), "%s", submit->id);
	snprintf(common.name, sizeof(common.name), "%s", submit->name);
	return place_choose(submit, &common, send_prepare_place, sending->silent, err);
}

/* The place that has room now, of several. */
static int send_choose_place(struct sending *sending, struct err *err)
{
	struct submit *submit = &sending->submit;

	if (!send_has_choice(submit->run))
		return 0;
	run_places_done(&submit->places);
	run_places_from_json(json_get(submit->run->doc, RUN_PLACES), &submit->places);
	int r = send_ask_places(sending, err);
	if (r < 0)
		return r;
	spec_done(&submit->spec);
	return send_prepare_place(submit, err);
}

/* The places that the run was not at yet: it does not go to and fro. */
static void send_set_others(struct submit *submit, const char *target)
{
	AUTO_RUN_PLACES struct run_places all = {0};

	run_places_from_json(json_get(submit->run->doc, RUN_PLACES), &all);
	vec_foreach (struct run_place, place, &all) {
		if (place->state == RUN_PLACE_LEFT || str_eq(place->target, target))
			continue;
		*vec_push(&submit->places) = *place;
		*place = (struct run_place){0};
	}
}

/* Of a run that waits at target. */
static int send_find_other(struct sending *sending, const char *target, char **ret, struct err *err)
{
	struct submit *submit = &sending->submit;
	const struct json *moves = json_get(submit->run->doc, RUN_MOVES);
	AUTO_ERR struct err none = {0};

	if (moves)
		json_set(submit->run->doc, RUN_HELD, json_clone(moves));
	int r = send_configure(submit, err);
	if (r < 0)
		return r;
	send_set_others(submit, target);
	r = submit->places.n ? send_ask_places(sending, &none) : 0;
	if (r < 0)
		return none.code == ERR_CANCELED ? err_move(err, &none) : 0;
	*ret = mem_strdup(submit->place_name);
	return 0;
}

static int send_find_place(struct session *session, const struct run *run, struct strv *silent,
	char **ret_target, struct err *err)
{
	AUTO(send_done) struct sending sending = {.silent = silent};
	int r = send_open_row(&sending, session, run, err);

	return r < 0 ? r : send_find_other(&sending, run_target(run), ret_target, err);
}

static int send_secrets(struct submit *submit, struct err *err)
{
	AUTO_STRV struct strv missing = {0};
	int r = secrets_again(submit->session, submit->run, &submit->spec.secrets,
		&submit->secret_env, &missing, err);

	if (submit->secret_env.n > 0)
		os_protect_memory();
	if (r < 0 || missing.n == 0)
		return r;
	err_set(err, E_SECRET, "%s is written nowhere, and not set in this shell", missing.v[0]);
	return err_hint(
		err, "read -rs %s && export %s && dlrun queue --send", missing.v[0], missing.v[0]);
}

static int send_read_code(struct submit *submit, const char *ref, struct err *err)
{
	AUTO_BUF struct buf text = buf_with(IMAGE_CONFIG_MAX);
	const struct json *labels;

	int r = code_open(submit->session, ref, &submit->from, err);
	if (r < 0)
		return r;
	r = layout_read_blob(
		submit->from.layout, &submit->from.image.config, IMAGE_CONFIG_MAX, &text, err);
	if (r == 0)
		r = json_parse(text.data, text.len, IMAGE_CONFIG_MAX,
			submit->from.image.config.digest, &submit->from_config, err);
	if (r < 0)
		return r;
	labels = json_get(json_get(submit->from_config, "config"), "Labels");
	submit->reused = (struct pack_reused){
		.image = &submit->from.image,
		.layout = submit->from.layout,
		.snapshot_id = json_get_str(labels, LABEL_SNAPSHOT),
		.commit = json_get_str(labels, PACK_LABEL_REVISION),
		.source = json_get_str(labels, PACK_LABEL_SOURCE),
	};
	return submit->reused.snapshot_id
		       ? 0
		       : err_set(err, E_IMAGE, "%s has no label %s",
				 submit->from.image.config.digest, LABEL_SNAPSHOT);
}

/* Onto its base, and into the registry; the target's check is made meanwhile. */
static int send_push(struct submit *submit, struct err *err)
{
	const struct json *image = json_get(submit->run->doc, "image");
	const char *ref = json_get_str(image, "ref"), *base = json_get_str(image, "base");
	const char *configured = config_str(submit->config, "image");

	submit->from_digest = mem_strdup(run_image_digest(submit->run));
	submit->from_ref = mem_strdup(ref);
	if (!str_starts(ref, "oci:"))
		return submit_push(submit, err);
	int r = send_read_code(submit, ref, err);
	if (r == 0)
		r = pack_init(&submit->pack, submit->session,
			base && !str_eq(base, configured) ? base : NULL, false, err);
	return r < 0 ? r : environment_push(submit, err);
}

/* Of a run that was at a cluster: its code alone, from the registry into the layout here. */
static int send_fetch_code(struct submit *submit, const char *ref, struct err *err)
{
	int r = send_read_code(submit, ref, err);

	if (r == 0)
		r = pack_init(&submit->pack, submit->session, NULL, false, err);
	if (r < 0)
		return r;
	submit->pack.get_base = NULL;
	submit->pack.full = true;
	if (submit->pack.base_ref.kind == REF_REGISTRY)
		pack_set_base(&submit->pack, NULL);
	return submit_pack(submit, err);
}

static int send_choose(struct submit *submit, struct err *err)
{
	const char *ref = json_get_str(json_get(submit->run->doc, "image"), "ref");
	struct layout *layout;
	int r = session_layout(submit->session, &layout, err);

	if (r == 0 && ref && !str_starts(ref, "oci:"))
		r = send_fetch_code(submit, ref, err);
	else if (r == 0)
		r = image_load(layout, run_image_digest(submit->run), &submit->image, err);
	if (r == 0)
		r = submit_learn(submit, err);
	return r < 0 ? r : submit_insert_row(submit, err);
}

/* To the place that was chosen. spec: of the run there. */
static void send_move(const struct submit *submit, const struct spec *spec, struct run *run)
{
	const struct json *facts = json_get(run->spec, "image");
	struct json *target = json_object(), *image = facts ? json_clone(facts) : NULL;

	json_set_str(target, "kind", submit->target->ops->kind);
	json_set_str(target, "name", submit->target->name);
	json_set(run->doc, "target", target);
	json_set(run->doc, RUN_PLACES, run_places_to_json(&submit->places));
	json_free(run->spec);
	run->spec = spec_to_json(spec);
	if (image)
		json_set(run->spec, "image", image);
	if (submit->spec.runtime.gpus != RUNTIME_GPUS_AUTO && !submit->spec.roles.list.n)
		json_set_int(json_sub(run->doc, "resources"), "gpus", submit->spec.runtime.gpus);
}

static void send_set_row(
	const struct submit *submit, const struct spec *spec, const char *handle, struct run *run)
{
	struct target *target = submit->target;
	AUTO_FREE char *name = mem_strdup(json_get_str(json_get(run->doc, "image"), "base"));

	finish_merge(&submit->session->dirs, run);
	if (!run_handle(run))
		run_add_attempt(run, handle);
	run_set_state(run, RUN_QUEUED);
	if (submit->places.n)
		send_move(submit, spec, run);
	/* The record alone has them: no terminal shows a run while it is sent. */
	AUTO_STRV struct strv warnings = {0};

	words_get(run->doc, "warnings", &warnings, NULL);
	vec_foreach (char *const, text, &submit->warnings)
		if (strv_find(&warnings, *text) < 0)
			strv_add(&warnings, *text);
	struct json *array = json_array();
	json_add_strv(array, &warnings);
	json_set(run->doc, "warnings", array);
	if (target->ops->describe)
		target->ops->describe(target, json_sub(run->doc, "target"));
	if (submit->reused.image)
		json_set(run->doc, "image", submit_image_json(submit, name));
	if (!target->ops->needs_image) {
		json_remove(json_sub(run->doc, "image"), RUN_BASE_REF);
		json_remove(json_sub(run->doc, "image"), RUN_STREAMED);
	}
	if (submit->image_facts)
		json_set(run->spec, "image", json_clone(submit->image_facts));
}

/* A member's own words; the rest is that of the run that is sent. */
static int send_member_spec(
	const struct submit *submit, const struct run *run, struct spec *ret, struct err *err)
{
	AUTO_SPEC struct spec own = {0};
	AUTO_SPEC struct spec spec = {0};
	int r = spec_from_json(run->spec, &own, err);

	if (r == 0)
		r = spec_copy(&submit->spec, &spec, err);
	if (r < 0)
		return r;
	strv_copy(&spec.command, &own.command);
	strv_copy(&spec.env, &own.env);
	spec.study.index = own.study.index;
	*ret = spec;
	spec = (struct spec){0};
	return 0;
}

/* A member that is to be cancelled stays, and ends when the others have been sent. */
static int send_change_member(const struct submit *submit, struct run *run, struct err *err)
{
	AUTO_SPEC struct spec spec = {0};
	char handle[TARGET_HANDLE_SIZE] = "";

	if (!run_is_held(run) || run_cancelling(run) || !send_is_first_attempt(run))
		return 0;
	int r = send_member_spec(submit, run, &spec, err);
	if (r == 0 && !run_handle(run))
		r = submit->target->ops->prepare(
			submit->target, run_id(run), 1, &spec, handle, err);
	if (r < 0)
		return r;
	send_set_row(submit, &spec, handle, run);
	return 1;
}

static int send_change_row(void *ctx, struct run *run, struct err *err)
{
	const struct submit *submit = ctx;

	if (!str_eq(run_id(run), submit->id))
		return send_change_member(submit, run, err);
	if (!run_is_held(run))
		return err_set(err, E_RUN_ENDED, "%s was ended by another dlrun", run_id(run));
	if (run_cancelling(run))
		return err_set(err, E_RUN_ENDED, "%s was cancelled", run_id(run));
	send_set_row(submit, &submit->spec, submit->handle, run);
	return 1;
}

/* Durable before the target is told. */
static int send_write_row(struct sending *sending, struct err *err)
{
	struct submit *submit = &sending->submit;
	AUTO(run_list_done) struct run_list members = {0};

	sending->n = 1;
	int r = sending->is_whole ? send_change_members(submit->session, submit->run,
					    send_change_row, submit, &members, err)
				  : run_change_row(submit->session, submit->run, send_change_row,
					    submit, err);
	send_borrow(submit);
	if (r < 0 || !sending->is_whole)
		return r;
	/* Elsewhere each is started by itself from now on. */
	sending->is_whole = send_is_together(submit);
	if (sending->is_whole) {
		/* Members that have ended, were removed, or are to be cancelled. */
		size_t size = (size_t)sending->submit.spec.study.size;

		REPLACE(sending->left_out, mem_alloc(size + 1, sizeof(bool)));
		sending->n = 0;
		memset(sending->left_out, true, size);
		vec_foreach (struct run *, run, &members) {
			int64_t index = json_get_int(json_get((*run)->doc, "study"), "index", -1);
			if (!run_is_held(*run) || run_is_unsent(*run) || run_cancelling(*run) ||
				index < 0 || (size_t)index >= size || !sending->left_out[index])
				continue;
			sending->left_out[index] = false;
			sending->n++;
		}
		if (sending->n == size)
			free(TAKE(sending->left_out));
	}
	return 0;
}

static int send_create_study(struct sending *sending, struct err *err)
{
	struct submit *submit = &sending->submit;
	const struct spec_study *of = &submit->spec.study;
	AUTO_STUDY struct study study = {0};
	AUTO_STUDY_WORDS struct study_words words = {0};
	struct target_job job;

	int r = study_read(&submit->session->dirs, of->id, &study, err);
	if (r == 0)
		r = study_all_words(&study, &words, err);
	if (r == 0 && words.n != (size_t)of->size)
		r = err_set(err, E_DATA, "study %s has %zu members, and the record says %d", of->id,
			words.n, of->size);
	if (r == 0)
		r = submit_make_start(submit, &job, err);
	if (r < 0)
		return r;
	struct target_study all = submit_make_study(&job, &words);
	all.left_out = sending->left_out;
	return target_submit_study(submit->target, &all, SUBMIT_START_MS, err);
}

static int send_start(struct sending *sending, struct err *err)
{
	struct submit *submit = &sending->submit;
	AUTO_ERR struct err failure = {0};
	int r = sending->is_whole ? send_create_study(sending, &failure)
				  : submit_create(submit, &failure);

	if (r == 0)
		return send_settle(sending, err);
	sending->may_be_refused = false;
	if (failure.code == ERR_NET)
		return err_move(err, &failure);
	/* An error does not say that nothing came of it. */
	send_unlock(sending);
	r = send_has_begun(submit, err);
	if (r > 0)
		return send_settle(sending, err);
	/* Parts that were sent may still arrive. */
	sending->may_be_refused = r == 0 && target_knows(submit->target, submit->handle, STATE_MS);
	return r < 0 ? r : err_move(err, &failure);
}

static int send_run(struct sending *sending, bool *ret_sent, struct err *err)
{
	struct submit *submit = &sending->submit;
	int r = send_has_begun(submit, err);

	*ret_sent = r > 0;
	if (r != 0)
		return r < 0 ? r : send_settle(sending, err);
	int cancelled = send_is_cancelled(submit, err);
	if (cancelled < 0)
		return cancelled;
	r = send_lock(sending, err);
	if (r <= 0)
		return r;
	/* The others go without it. */
	if (cancelled) {
		sending->is_whole = false;
		struct session *session = submit->session;
		r = run_change_row(session, submit->run, send_change_cancelled, NULL, err);

		if (r == 0)
			held_unmark(&session->dirs, submit->id);
		return r;
	}
	r = send_secrets(submit, err);
	if (r < 0)
		return r;
	sending->may_be_refused = true;
	http_prepare();
	r = send_choose_place(sending, err);
	if (r < 0)
		return r;
	r = submit->target->ops->needs_image ? send_push(submit, err) : send_choose(submit, err);
	if (r == 0)
		r = send_write_row(sending, err);
	if (r == 0)
		r = send_start(sending, err);
	*ret_sent = r == 0;
	if (r == 0)
		deliver_kick(submit->session, submit->run);
	if (r == 0)
		held_watch(&submit->session->dirs, submit->run);
	return r;
}

/*
 * Failures: the run stays here, or was refused
 */

struct send_failure {
	const struct err *why;
	const struct run_places *places; /* as they were decided; empty: they were not */
	bool is_refused;
	char *goes_on; /* to another of its places, and why; or NULL */
};

static int send_change_failed(void *ctx, struct run *run, struct err *err UNUSED)
{
	const struct send_failure *failure = ctx;

	if (!run_is_held(run))
		return 0;
	/* Of a run without an attempt nothing was sent. */
	if (run_cancelling(run) && run_is_unsent(run)) {
		held_end(run);
		return 1;
	}
	if (failure->places->n)
		json_set(run->doc, RUN_PLACES, run_places_to_json(failure->places));
	if (failure->goes_on) {
		held_set_room(run, failure->goes_on, NULL);
		return 1;
	}
	if (!failure->is_refused) {
		held_set(run, failure->why);
		return 1;
	}
	held_clear(run);
	submit_set_failed(run, failure->why);
	return 1;
}

static bool send_is_refused(const struct sending *sending, const struct err *why)
{
	return sending->may_be_refused && place_is_refusal(why);
}

/* A run that was sent, and refused: 1, and it goes on to another of its places. */
static int send_go_on(struct session *session, struct sending *sending, struct run *run,
	const struct err *why, const struct queue_events *events, struct err *err)
{
	struct submit *submit = &sending->submit;

	if (!submit->run || !run_handle(submit->run))
		return 0;
	int r = spill_refused(session, submit->run, submit->target, why, events, err);
	if (r <= 0)
		return r;
	r = run_read_row(session, run, err);
	return r < 0 ? r : 1;
}

static void send_report_failure(
	const struct send_failure *failure, const struct queue_events *events, struct run *run)
{
	if (run_state(run) == RUN_CANCELLED)
		return;
	if (failure->goes_on && events->moved)
		events->moved(events->ctx, run, json_get_str(run->doc, "text"));
	if (failure->goes_on)
		return;
	if (failure->is_refused && events->refused)
		events->refused(events->ctx, run, failure->why);
	if (!failure->is_refused && events->kept)
		events->kept(events->ctx, run, failure->why);
}

static int send_fail(struct session *session, struct sending *sending, struct run *run,
	const struct err *why, const struct queue_events *events, struct err *err)
{
	struct submit *submit = &sending->submit;
	struct send_failure failure = {why, &submit->places, send_is_refused(sending, why), NULL};

	int r = failure.is_refused ? send_go_on(session, sending, run, why, events, err) : 0;
	if (r != 0)
		return r < 0 ? r : 0;
	/* Nothing was sent there. A study that has a name in a cluster stays. */
	AUTO_FREE char *text = NULL;
	if (failure.is_refused && run_is_unsent(submit->run))
		text = place_leave_refused(&submit->places, submit->place_name, why);
	failure.goes_on = text;
	r = send_change_run(session, run, sending->is_whole, send_change_failed, &failure, err);
	if (r < 0)
		return r;
	if (!run_is_held(run))
		held_unmark(&session->dirs, run_id(run));
	send_report_failure(&failure, events, run);
	return 0;
}

static int send_one(struct session *session, struct run *run, struct strv *silent,
	const struct queue_events *events, struct send_result *ret, struct err *err)
{
	AUTO(send_done) struct sending sending = {.silent = silent};
	AUTO_ERR struct err why = {0};

	*ret = (struct send_result){0};
	int r = send_open(&sending, session, run, &why);
	if (r == 0)
		r = send_run(&sending, &ret->is_sent, &why);
	ret->is_whole = sending.is_whole;
	ret->is_silent = why.code == ERR_NET || (why.code == ERR_AUTH && why.id != E_IO_PERMISSION);
	if (r == 0) {
		if (ret->is_sent && events->sent)
			events->sent(events->ctx, sending.submit.run, sending.n);
		return 0;
	}
	if (why.id == E_RUN_NOT_FOUND || why.code == ERR_CANCELED)
		return why.code == ERR_CANCELED ? err_move(err, &why) : 0;
	/* The row may be written by others again. */
	send_unlock(&sending);
	bool is_refused = send_is_refused(&sending, &why);
	r = send_fail(session, &sending, run, &why, events, err);
	ret->goes_on = r == 0 && is_refused && held_is_for_room(run);
	return r;
}

/*
 * Runs that it begins after
 */

static int send_change_never(void *ctx, struct run *run, struct err *err UNUSED)
{
	const struct after_check *check = ctx;

	if (!run_is_unsent(run))
		return 0;
	if (run_cancelling(run))
		held_end(run);
	else
		held_end_after(run, check->text);
	return 1;
}

/* 1: it may begin. 0: not yet, or it has ended instead. */
static int send_after(struct session *session, struct run *run, const struct queue_events *events,
	struct err *err)
{
	AUTO_AFTER_CHECK struct after_check check = {0};
	AUTO_AFTER struct after_list list = {0};

	if (!run_is_unsent(run) || run_cancelling(run))
		return 1;
	int r = after_of(run, &list, err);
	if (r == 0)
		r = after_check_again(session, &list, &check, err);
	if (r < 0 || check.state != AFTER_NEVER)
		return r < 0 ? r : check.state == AFTER_MET;
	r = send_change_run(session, run, run_study(run) != NULL, send_change_never, &check, err);
	if (r < 0)
		return r;
	if (!run_is_held(run))
		held_unmark(&session->dirs, run_id(run));
	if (run_state(run) == RUN_CANCELLED && events->ended)
		events->ended(events->ctx, run);
	/* More runs may wait for this one. */
	held_kick_soon(&session->dirs);
	return 0;
}

/* The places that a run asks: one that is silent stops no run that does not need it. */
static char *send_needs(const struct run *run)
{
	const struct json *image = json_get(run->doc, "image");
	const char *base = json_get_str(image, "base"), *ref = json_get_str(image, "ref");
	const char *handle = run_handle(run);
	AUTO_RUN_PLACES struct run_places places = {0};
	AUTO_STRV struct strv names = {0};

	run_places_from_json(json_get(run->doc, RUN_PLACES), &places);
	vec_foreach (const struct run_place, place, &places)
		strv_add(&names, place->target);
	AUTO_FREE char *all = names.n ? strv_join(&names, ",") : mem_strdup(run_target(run));
	return mem_printf("%s\n%s\n%s\n%s", all, base ? base : "",
		ref && !str_starts(ref, "oci:") ? ref : "", handle ? handle : "");
}

/* A turn: each held run once, and a study that goes as a whole. */
struct send_turn {
	struct session *session;
	const struct queue_events *events;
	struct strv silent;    /* names of places that did not answer, and what runs need that were
	                     * not sent for that */
	struct strv over;      /* studies that were tried as a whole, or wait for other runs */
	struct strv may_begin; /* studies of which that is known */
	bool is_any_sent;
};

static void send_turn_done(struct send_turn *turn)
{
	strv_done(&turn->silent);
	strv_done(&turn->over);
	strv_done(&turn->may_begin);
}

/* As send_after; members of a study wait for the same, which is looked up once. */
static int send_turn_after(struct send_turn *turn, struct run *run, struct err *err)
{
	const char *study = run_study(run);

	if (study && strv_find(&turn->may_begin, study) >= 0)
		return 1;
	bool is_asked = run_is_unsent(run) && !run_cancelling(run);
	AUTO_FREE char *name = study ? mem_strdup(study) : NULL;
	int r = send_after(turn->session, run, turn->events, err);
	if (r >= 0 && name && is_asked)
		strv_add(r > 0 ? &turn->may_begin : &turn->over, name);
	return r;
}

/* Whether what stops others by that name stops the run: one that was taken back, and of which
 * nothing was sent, needs no target. */
static bool send_stops(const struct strv *names, const struct run *run, const char *name)
{
	bool is_ending = run_is_unsent(run) && run_cancelling(run);

	return name && !is_ending && strv_find(names, name) >= 0;
}

static int send_each(struct send_turn *turn, struct run *run, struct err *err)
{
	const struct queue_events *events = turn->events;
	AUTO_FREE char *needs = send_needs(run);
	AUTO_ERR struct err why = {0};
	struct send_result result = {0};

	if (send_stops(&turn->over, run, run_study(run)))
		return 0;
	int r = send_turn_after(turn, run, &why);
	if (r > 0 && send_stops(&turn->silent, run, needs))
		return 0;
	result.goes_on = r > 0;
	/* A place that has refused it is not asked again. */
	while (r >= 0 && result.goes_on)
		r = send_one(turn->session, run, &turn->silent, events, &result, &why);
	turn->is_any_sent |= result.is_sent;
	if (result.is_silent)
		strv_add(&turn->silent, needs);
	if (result.is_whole)
		strv_add(&turn->over, run_study(run));
	/* Removed meanwhile. */
	if (r == 0 || why.id == E_RUN_NOT_FOUND)
		return 0;
	if (why.code == ERR_CANCELED || why.code == ERR_BUG)
		return err_move(err, &why);
	if (events->failed)
		events->failed(events->ctx, run, &why);
	return 0;
}

int queue_send(struct session *session, const struct queue_events *events,
	const volatile int *interrupted, struct err *err)
{
	AUTO_FREE char *dir = held_dir(&session->dirs), *path = fs_join(dir, HELD_LOCK);
	AUTO(send_turn_done) struct send_turn turn = {.session = session, .events = events};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FD int lock = -1;

	if (!held_any(&session->dirs, NULL))
		return 0;
	int r = fs_lock(path, true, QUEUE_MS, &lock, err);
	if (r == 0)
		r = spill_all(session, send_find_place, &turn.silent, events, interrupted, err);
	if (r == 0)
		r = queue_list(session, &runs, err);
	if (r == 0)
		r = after_refresh(session, &runs, STATE_MS, err);
	for (size_t i = 0; r == 0 && i < runs.n && !(interrupted && *interrupted); i++)
		r = send_each(&turn, runs.v[i], err);
	if (turn.is_any_sent)
		held_kick_soon(&session->dirs);
	if (r < 0)
		return r;
	AUTO_STRV struct strv ids = {0};
	struct store *store;

	held_any(&session->dirs, &ids);
	r = session_store(session, &store, err);
	for (size_t i = 0; r == 0 && i < ids.n; i++)
		drop_mark(session, store, ids.v[i]);
	return r;
}
