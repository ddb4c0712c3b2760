/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "targets/ssh/node_machine.h"
#include "targets/ssh/target_gang.h"

/*
 * The hosts of a run: asked, and told, all at once.
 */

bool node_handle_is_gang(const char *handle)
{
	return strchr(handle, ',') != NULL;
}

void node_handle_split(const char *text, struct strv *ret)
{
	for (;;) {
		size_t len = strcspn(text, ",");
		AUTO_FREE char *host = mem_strndup(text, len);

		strv_add(ret, host);
		if (!text[len])
			return;
		text += len + 1;
	}
}

int node_handle_rank(const char *handle, int rank, char **ret, struct err *err)
{
	AUTO(node_handle_done) struct node_handle parsed = {0};
	AUTO_STRV struct strv hosts = {0};

	int r = node_handle_parse(handle, &parsed, err);
	if (r < 0)
		return r;
	node_handle_split(parsed.host, &hosts);
	if (rank < 0 || hosts.n == 1)
		rank = 0;
	if ((size_t)rank >= hosts.n)
		return err_set(
			err, E_USAGE, "%s has the ranks 0 to %zu", parsed.run_id, hosts.n - 1);
	*ret = node_handle_text(hosts.v[rank], parsed.run_id, parsed.attempt);
	return 0;
}

const char *gang_address(const struct node_host *host)
{
	const char *name = host->ssh ? ssh_hostname(host->ssh) : NULL;
	const char *at = strrchr(host->name, '@');

	return name ? name : at ? at + 1 : host->name;
}

int gang_open(struct target *target, const char *handle, struct gang *gang, struct err *err)
{
	gang->node = target_node_of(target);
	int r = node_handle_parse(handle, &gang->handle, err);
	if (r < 0)
		return r;
	node_handle_split(gang->handle.host, &gang->hosts);
	strv_addf(&gang->names, "%s/%d", gang->handle.run_id, gang->handle.attempt);
	gang->places = mem_alloc(gang->hosts.n, sizeof(*gang->places));
	gang->ranks = mem_alloc(gang->hosts.n, sizeof(*gang->ranks));
	gang->steps = mem_alloc(gang->hosts.n, sizeof(*gang->steps));
	for (size_t i = 0; r == 0 && i < gang->hosts.n; i++) {
		gang->places[i] = (struct gang_place){.gang = gang};
		gang->ranks[i] = (struct gang_rank){.host = gang->hosts.v[i]};
		r = node_open(gang->node->session, gang->hosts.v[i], gang->node->root,
			&gang->places[i].host, err);
	}
	return r;
}

static void forget_answers(struct gang *gang)
{
	for (size_t i = 0; i < gang->hosts.n; i++) {
		struct gang_place *place = &gang->places[i];
		node_cancel(place->asked);
		place->asked = NULL;
		node_attempts_done(&place->found);
		err_done(&place->fault);
		place->is_answered = false;
	}
	gang->n_open = 0;
}

static void forget_ranks(struct gang *gang)
{
	for (size_t i = 0; i < gang->hosts.n; i++) {
		target_status_done(&gang->ranks[i].status);
		gang->ranks[i] = (struct gang_rank){.host = gang->hosts.v[i]};
	}
}

void gang_close(struct gang *gang)
{
	if (gang->places) {
		forget_answers(gang);
		forget_ranks(gang);
	}
	node_handle_done(&gang->handle);
	strv_done(&gang->hosts);
	strv_done(&gang->names);
	free(gang->places);
	free(gang->ranks);
	free(gang->steps);
	*gang = (struct gang){0};
}

/*
 * Asking
 */

static int on_answer(void *ctx, int status, struct err *fault, struct err *err)
{
	struct gang_place *place = ctx;
	struct gang *gang = place->gang;

	(void)err;
	place->asked = NULL;
	place->is_answered = status == 0;
	if (status < 0) {
		node_explain(place->host, fault);
		err_move(&place->fault, fault);
	}
	if (--gang->n_open == 0)
		gang->done(gang);
	return 0;
}

/* Before the nodes are asked: then what they say is at least as new. */
static void look_here(struct gang *gang)
{
	const struct dirs *dirs = &gang->node->session->dirs;
	AUTO_FREE char *dir = dirs_attempt(dirs, gang->handle.run_id, gang->handle.attempt);
	AUTO_FREE char *run_dir = dirs_run(dirs, gang->handle.run_id);
	AUTO_FREE char *accepted = fs_join(dir, ATTEMPT_ACCEPTED);
	AUTO_FREE char *lock = fs_join(run_dir, RUN_SUBMIT_LOCK);

	gang->view = (struct gang_view){
		.is_submitting = fs_is_locked(lock),
		.is_ours = access(run_dir, F_OK) == 0,
		.was_accepted = access(accepted, F_OK) == 0,
		.attempt = gang->handle.attempt,
		.now_ms = clock_wall_ms(),
	};
}

void gang_ask(struct gang *gang, void (*done)(struct gang *gang))
{
	forget_answers(gang);
	look_here(gang);
	gang->done = done;
	for (size_t i = 0; i < gang->hosts.n; i++) {
		struct gang_place *place = &gang->places[i];
		gang->n_open++;
		place->asked = node_state(
			place->host->node, &gang->names, &place->found, on_answer, place);
	}
}

static bool says(const struct node_attempt *attempt, const char *key)
{
	return str_eq(node_attempt_get(attempt, key), "1");
}

/* A rank whose host has not responded may still be running. */
static void take_one(const struct gang_place *place, struct gang_rank *rank)
{
	const struct node_attempt *attempt = place->found.n ? &place->found.v[0] : NULL;

	if (!place->is_answered) {
		rank->status.state = RUN_UNKNOWN;
		return;
	}
	rank->is_absent = !attempt || str_eq(attempt->state, "absent");
	if (rank->is_absent) {
		const struct gang *gang = place->gang;
		rank->status.text = node_machine_other(&gang->node->session->dirs,
			gang->handle.run_id, place->host->name, node_facts(place->host->node));
		rank->is_absent = !rank->status.text;
		rank->status.state = rank->is_absent ? rank->status.state : RUN_UNKNOWN;
		return;
	}
	rank->is_held = says(attempt, "held");
	rank->is_going = says(attempt, "go");
	target_node_status(place->host->node, attempt, &rank->status);
}

bool gang_take(struct gang *gang)
{
	bool all = true;

	forget_ranks(gang);
	for (size_t i = 0; i < gang->hosts.n; i++) {
		take_one(&gang->places[i], &gang->ranks[i]);
		all &= gang->places[i].is_answered;
	}
	return all;
}

struct gang_place *gang_failed(struct gang *gang)
{
	for (size_t i = 0; i < gang->hosts.n; i++) {
		struct gang_place *place = &gang->places[i];
		if (err_is_set(&place->fault))
			return place;
		if (place->asked) {
			err_set(&place->fault, E_TARGET_SILENT, "%s did not answer in time",
				place->host->name);
			return place;
		}
	}
	return NULL;
}

/*
 * Telling
 */

static struct node_call *tell(struct gang_place *place, const char *verb)
{
	const struct node_handle *handle = &place->gang->handle;
	struct node *node = place->host->node;
	const char *run = handle->run_id;
	int attempt = handle->attempt;

	if (str_eq(verb, "go"))
		return node_go(node, run, attempt, on_answer, place);
	if (str_eq(verb, "stop"))
		return node_stop(node, run, attempt, on_answer, place);
	if (str_starts(verb, "forget"))
		return node_forget(node, run, attempt, str_ends(verb, "all"), on_answer, place);
	return node_stop_for(node, run, attempt, verb, on_answer, place);
}

void gang_tell(struct gang *gang, const char *verb, void (*done)(struct gang *gang))
{
	forget_answers(gang);
	gang->done = done;
	gang->n_open = gang->hosts.n;
	for (size_t i = 0; i < gang->hosts.n; i++)
		gang->places[i].asked = tell(&gang->places[i], verb);
}

bool gang_take_steps(struct gang *gang, void (*done)(struct gang *gang))
{
	static const char *const verbs[] = {
		[GANG_GO] = "go", [GANG_DROP] = "drop", [GANG_END] = "peer"};

	gang->done = done;
	gang->n_open = 0;
	for (size_t i = 0; i < gang->hosts.n; i++) {
		struct gang_place *place = &gang->places[i];
		node_cancel(place->asked);
		place->asked = NULL;
		if (gang->steps[i] == GANG_NOTHING || !place->is_answered)
			continue;
		gang->n_open++;
		place->asked = tell(place, verbs[gang->steps[i]]);
	}
	return gang->n_open > 0;
}
