/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/record/foreign.h"
#include "core/record/spec.h"
#include "node/hosts.h"
#include "targets/ssh/node_open.h"
#include "targets/ssh/target_node.h"

/*
 * Runs that the hosts know and the store here does not: this user's from another machine. The
 * record of each lies beside it (target_node_run.c). A host that does not answer is passed over
 * while others do.
 */

enum { RECORD_MAX = 1 << 20, HOSTS_MAX = 64 };

struct adoption;

struct place {
	struct adoption *adoption;
	struct node_host *host;
	struct node_call *requested;
	struct node_attempts found;
	struct err error;
	bool answered;
};

struct adoption {
	struct target_work work;
	struct target_node *target;
	struct target_call *call;
	struct run_list *ret;
	char *id; /* or NULL: all of this user */
	struct loop_timer *timer;
	struct place places[HOSTS_MAX];
	size_t n, n_open;
};

static void target_node_drop(struct target_work *work)
{
	struct adoption *adoption = (struct adoption *)work;

	loop_remove_timer(adoption->target->target.loop, adoption->timer);
	for (size_t i = 0; i < adoption->n; i++) {
		node_cancel(adoption->places[i].requested);
		node_attempts_done(&adoption->places[i].found);
		err_done(&adoption->places[i].error);
	}
	free(adoption->id);
	free(adoption);
}

/*
 * A single record
 */

static bool is_requested(const struct adoption *adoption, const char *name)
{
	for (size_t i = 0; i < adoption->n; i++)
		if (str_eq(adoption->places[i].host->name, name))
			return true;
	return false;
}

/* Hosts of the run: a single host by its name here; several by their names where the run came from,
 * if all are of the target: a node sends nobody to other hosts. */
static void target_node_find_hosts(
	const struct place *place, const struct run *run, struct strv *ret)
{
	if (json_get_int(json_get(run->doc, "resources"), "nodes", 1) > 1)
		(void)words_get(json_get(run->doc, "target"), "hosts", ret, NULL);
	for (size_t i = 0; i < ret->n; i++)
		if (!is_requested(place->adoption, ret->v[i])) {
			strv_done(ret);
			break;
		}
	if (ret->n == 0)
		strv_add(ret, place->host->name);
}

static void target_node_set_target(
	const struct place *place, const struct strv *names, struct run *run)
{
	const struct target_node *target = place->adoption->target;
	struct json *json = json_object(), *hosts = json_array();

	json_set_str(json, "kind", "ssh");
	json_set_str(json, "name", target->target.name);
	json_add_strv(hosts, names);
	json_set(json, "hosts", hosts);
	if (!str_eq(place->host->root, NODE_ROOT_DEFAULT))
		json_set_str(json, "dir", place->host->root);
	json_set(run->doc, "target", json);
}

/* The record may have been written by this user's dlrun or by an attacker on the node. */
static int target_node_parse(
	const char *text, const char *id, const char *layout, struct run **ret, struct err *err)
{
	AUTO_JSON struct json *doc = NULL;
	AUTO_SPEC struct spec spec = {0};

	int r = json_parse(text, strlen(text), RECORD_MAX, "the record on the node", &doc, err);
	if (r < 0)
		return r;
	if (json_kind(doc) != JSON_OBJECT || !str_eq(json_get_str(doc, "id"), id))
		return err_set(err, E_DATA, "the record on the node is of another run");
	r = spec_from_json(json_get(doc, "spec"), &spec, err);
	if (r < 0)
		return r;
	AUTO_FREE char *name = mem_strndup(id, strlen(id) - RUN_SUFFIX - 1);
	*ret = run_new(id, name);
	foreign_take(*ret, doc, json_get(doc, "spec"), layout);
	/* For target_node_find_hosts. */
	const struct json *hosts = json_get(json_get(doc, "target"), "hosts");
	if (hosts)
		json_set(json_sub((*ret)->doc, "target"), "hosts", json_clone(hosts));
	return 0;
}

/* A run on several hosts is reported by each of them. */
static bool target_node_is_known(const struct run_list *runs, const char *id)
{
	for (size_t i = 0; i < runs->n; i++)
		if (str_eq(run_id(runs->v[i]), id))
			return true;
	return false;
}

static void adopt_one(const struct place *place, const struct node_attempt *attempt)
{
	struct adoption *adoption = place->adoption;
	AUTO_RUN struct run *run = NULL;
	AUTO_STRV struct strv hosts = {0};
	struct json *adopted;
	AUTO_FREE char *layout = dirs_layout(&adoption->target->session->dirs);

	if (target_node_is_known(adoption->ret, attempt->run) || !run_id_is_valid(attempt->run) ||
		(adoption->id && !str_eq(adoption->id, attempt->run)) || !attempt->record ||
		attempt->attempt < 1 ||
		target_node_parse(attempt->record, attempt->run, layout, &run, NULL) < 0)
		return;
	target_node_find_hosts(place, run, &hosts);
	target_node_set_target(place, &hosts, run);
	AUTO_FREE char *names = strv_join(&hosts, ",");
	json_set(run->doc, "attempts", json_array());
	for (int i = 1; i <= attempt->attempt; i++) {
		AUTO_FREE char *handle = node_handle_text(names, run_id(run), i);
		run_add_attempt(run, handle);
	}
	run_set_state(run, RUN_QUEUED);
	adopted = json_sub(run->doc, "adopted");
	json_set_str(adopted, "user", json_get_str(run->doc, "user"));
	/* The node's directory is open to its owner alone. */
	json_set_bool(adopted, "own", true);
	*vec_push(adoption->ret) = TAKE(run);
}

/*
 * All hosts
 */

static int target_node_evaluate(struct adoption *adoption, struct err *err)
{
	struct place *failed = NULL;
	size_t n_answered = 0;

	for (size_t i = 0; i < adoption->n; i++) {
		struct place *place = &adoption->places[i];
		n_answered += place->answered;
		failed = place->answered ? failed : place;
		for (size_t j = 0; j < place->found.n; j++)
			adopt_one(place, &place->found.v[j]);
	}
	if (adoption->ret->n || (!adoption->id && n_answered))
		return 0;
	if (failed)
		return err_move(err, &failed->error);
	err_set(err, E_RUN_NOT_FOUND, "there is no run '%s' on target %s", adoption->id,
		adoption->target->target.name);
	return err_hint(err, "dlrun ps -a");
}

static void target_node_end(struct adoption *adoption)
{
	AUTO_ERR struct err error = {0};
	int r = target_node_evaluate(adoption, &error);

	target_call_end(adoption->call, r, &error);
}

static int target_node_on_deadline(void *ctx, struct err *err UNUSED)
{
	struct adoption *adoption = ctx;

	adoption->timer = NULL;
	for (size_t i = 0; i < adoption->n; i++)
		if (adoption->places[i].requested)
			err_set(&adoption->places[i].error, E_TARGET_SILENT,
				"%s did not answer in time", adoption->places[i].host->name);
	target_node_end(adoption);
	return 0;
}

static int target_node_on_listed(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct place *place = ctx;

	place->requested = NULL;
	place->answered = status == 0;
	if (status < 0)
		err_move(&place->error, error);
	if (--place->adoption->n_open == 0)
		target_node_end(place->adoption);
	return 0;
}

int target_node_adopt(struct target *target, const char *id, struct run_list *ret,
	struct target_call *call, struct err *err)
{
	struct target_node *node = target_node_of(target);
	struct adoption *adoption;

	if (node->hosts.n > HOSTS_MAX)
		return err_set(err, E_DATA_LIMIT, "target %s has more than %d hosts to be asked",
			target->name, HOSTS_MAX);
	adoption = mem_alloc(1, sizeof(*adoption));
	*adoption = (struct adoption){.work = {target_node_drop},
		.target = node,
		.call = call,
		.ret = ret,
		.id = mem_strdup(id)};
	target_call_begin(call, &adoption->work);
	if (call->deadline_ms)
		adoption->timer = loop_add_timer(
			target->loop, call->deadline_ms, target_node_on_deadline, adoption);
	for (size_t i = 0; i < node->hosts.n; i++) {
		struct place *place = &adoption->places[adoption->n];
		place->adoption = adoption;
		int r = node_open(node->session, node->hosts.v[i], node->root, &place->host, err);
		if (r < 0) {
			target_call_cancel(call);
			return r;
		}
		adoption->n++;
		adoption->n_open++;
		place->requested =
			node_list(place->host->node, &place->found, target_node_on_listed, place);
	}
	return 0;
}
