/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/spec.h"
#include "host/gpu.h"
#include "targets/ssh/node_look.h"
#include "targets/ssh/target_node.h"

/*
 * Choice of the host that takes a run: made when the image is there, while nothing has been written
 * down yet. A login that began earlier is mostly done by then.
 */

enum { POOL_MS = 15000, SETTLE_MS = 3000 };

struct choosing {
	struct target_node *node;
	struct node_look *looks;
	struct node_offer *offers;
	size_t n;
};

static void choosing_done(struct choosing *choosing)
{
	for (size_t i = 0; choosing->looks && i < choosing->n; i++)
		node_look_done(&choosing->looks[i]);
	free(choosing->looks);
	free(choosing->offers);
}

/* Size of dlrun's own layers that would have to be sent. */
static uint64_t missing_bytes(const struct node_facts *facts, const struct image *image)
{
	uint64_t bytes = 0;

	for (size_t i = 0; image && i < image->n_layers; i++) {
		const struct image_layer *layer = &image->layers[i];
		const char *hex = strchr(layer->blob.digest, ':');
		if (layer->role != IMAGE_ROLE_BASE && hex && strv_find(&facts->layers, hex + 1) < 0)
			bytes += layer->blob.size;
	}
	return bytes;
}

/* GPUs of other models are none for this run. */
static void keep_model(struct node_gpus *gpus, const char *type)
{
	size_t kept = 0;

	for (size_t i = 0; i < gpus->n; i++)
		if (gpu_model_matches(gpus->v[i].model, type))
			gpus->v[kept++] = gpus->v[i];
	gpus->n = kept;
}

static int look_at_hosts(struct choosing *choosing, const struct spec *spec, struct err *err)
{
	struct target_node *node = choosing->node;
	const char *type = spec->resources.gpu_type;
	bool is_pool = node->hosts.n > 1;
	/* A run of several has to know them all. */
	bool is_enough = is_pool && spec->resources.nodes <= 1;

	choosing->n = node->hosts.n;
	choosing->looks = mem_alloc(choosing->n + 1, sizeof(*choosing->looks));
	choosing->offers = mem_alloc(choosing->n + 1, sizeof(*choosing->offers));
	for (size_t i = 0; i < choosing->n; i++)
		choosing->looks[i] = (struct node_look){.host = node->hosts.v[i],
			.root = node->root,
			.gpus_too = is_pool || spec->world.gpus > 0 || type};
	int r = node_look_all(node->session, choosing->looks, choosing->n, is_pool ? POOL_MS : -1,
		is_enough ? SETTLE_MS : -1, NULL, err);
	for (size_t i = 0; r == 0 && type && i < choosing->n; i++)
		keep_model(&choosing->looks[i].gpus, type);
	return r;
}

static void add_silent(const struct choosing *choosing, struct err *err)
{
	for (size_t i = 0; i < choosing->n; i++)
		if (!choosing->looks[i].facts)
			err_evidence(err, "%s: %s", choosing->looks[i].host,
				choosing->looks[i].fault.message);
}

static int fail_choice(
	struct choosing *choosing, const struct node_wish *wish, const char *why, struct err *err)
{
	const char *name = choosing->node->target.name;
	const struct err *first = &choosing->looks[0].fault;
	size_t n_answered = 0;

	for (size_t i = 0; i < choosing->n; i++)
		n_answered += choosing->looks[i].facts != NULL;
	if (n_answered == 0)
		err_set(err, first->id, "none of the %zu hosts of target %s answers", choosing->n,
			name);
	else
		err_set(err, wish->gpus > 0 ? E_GPU_COUNT : E_NODE_FAILED, "target %s: %s", name,
			why ? why : "no host takes the run");
	add_silent(choosing, err);
	return err_hint(err, "dlrun targets %s", name);
}

static void take(struct choosing *choosing, size_t at, const char *why)
{
	struct target_node *node = choosing->node;
	const struct session_env *env = &node->session->env;

	free(node->chosen);
	free(node->why);
	node->chosen = mem_strdup(choosing->looks[at].host);
	node->why = mem_strdup(why);
	log_note("%s answered after %lld ms; programs are started by %s there", node->chosen,
		(long long)choosing->looks[at].answer_ms, choosing->looks[at].facts->launch);
	if (choosing->n > 1 && env->say) {
		AUTO_FREE char *text = mem_printf(
			"%s of target %s takes it: %s", node->chosen, node->target.name, why);
		env->say(env->say_ctx, text);
	}
}

static void take_gang(struct choosing *choosing, const struct node_choice *choice)
{
	struct target_node *node = choosing->node;
	const struct session_env *env = &node->session->env;
	AUTO_STRV struct strv names = {0};

	for (size_t i = 0; i < choice->hosts.n; i++)
		strv_add(&names, choosing->looks[choice->hosts.v[i]].host);
	free(node->chosen);
	free(node->why);
	node->chosen = strv_join(&names, ",");
	node->why = mem_strdup(choice->why);
	if (env->say) {
		AUTO_FREE char *text = mem_printf("%zu hosts of target %s take it: %s", names.n,
			node->target.name, choice->why);
		env->say(env->say_ctx, text);
	}
}

static int choose(struct choosing *choosing, const struct target_wish *wish, struct strv *ret_notes,
	struct err *err)
{
	const struct resources *resources = &wish->spec->resources;
	const struct node_wish wanted = {
		.nodes = (unsigned)resources->nodes,
		.gpus = wish->spec->world.gpus,
		.memory_bytes = resources->memory_bytes,
		.disk_bytes = resources->disk_bytes,
		.cpus = (double)resources->cpus_milli / 1000,
	};
	AUTO(node_choice_done) struct node_choice choice = {0};

	for (size_t i = 0; i < choosing->n; i++) {
		const struct node_look *look = &choosing->looks[i];
		node_look_offer(look, &choosing->offers[i]);
		if (look->facts)
			choosing->offers[i].missing_bytes = missing_bytes(look->facts, wish->image);
	}
	node_choose(choosing->offers, choosing->n, &wanted, &choice);
	if (choice.hosts.n == 0)
		return fail_choice(choosing, &wanted, choice.why, err);
	for (size_t i = 0; i < choosing->n; i++)
		if (!choosing->looks[i].facts)
			strv_addf(ret_notes, "%s is passed over: %s", choosing->looks[i].host,
				choosing->looks[i].fault.message);
	if (choice.hosts.n > 1)
		take_gang(choosing, &choice);
	else
		take(choosing, choice.hosts.v[0], choice.why ? choice.why : "it is free");
	return 0;
}

/* More than there are would never begin. */
static int check_gpus(struct node_look *look, const struct spec *spec, struct err *err)
{
	const char *type = spec->resources.gpu_type;
	int wanted = spec->world.gpus;

	if (!look->gpus_too)
		return 0;
	if (!look->has_gpus)
		return err_move(err, &look->fault);
	if (wanted <= 0 || (size_t)wanted <= look->gpus.n)
		return 0;
	AUTO_FREE char *shown = type ? str_shown(type) : mem_strdup("");
	err_set(err, E_GPU_COUNT, "requested %d %s%sGPU%s, host %s has %zu", wanted, shown,
		type ? " " : "", wanted == 1 ? "" : "s", look->host, look->gpus.n);
	return type ? err_hint(err, "dlrun targets")
		    : err_hint(err, "dlrun submit -g %zu …", look->gpus.n);
}

/* A pool is chosen from by the same. */
static int check_size(const struct node_look *look, const struct resources *wanted, struct err *err)
{
	const struct node_facts *facts = look->facts;
	char asked[16], has[16];

	if (facts->cpus && wanted->cpus_milli > (int64_t)facts->cpus * 1000) {
		err_set(err, E_TARGET_UNSUPPORTED, "--cpus %g: host %s has %u CPU%s",
			(double)wanted->cpus_milli / 1000, look->host, facts->cpus,
			facts->cpus == 1 ? "" : "s");
		return err_hint(err, "dlrun submit --cpus %u …", facts->cpus);
	}
	if (facts->memory_bytes && wanted->memory_bytes > facts->memory_bytes) {
		err_set(err, E_TARGET_UNSUPPORTED, "--memory %s: host %s has %s",
			str_size(wanted->memory_bytes, asked), look->host,
			str_size(facts->memory_bytes, has));
		return err_hint(err, "dlrun submit --memory %lluMi …",
			(unsigned long long)(facts->memory_bytes >> 20));
	}
	if (wanted->disk_bytes <= facts->free_bytes)
		return 0;
	return err_set(err, E_NODE_DISK, "%s: %s has %s free, resources.disk is %s", look->host,
		facts->local, str_size(facts->free_bytes, has),
		str_size(wanted->disk_bytes, asked));
}

/* Requirements that the host would refuse, by its own facts. */
static int check_room(const struct node_look *look, const struct target_wish *wish, struct err *err)
{
	const struct node_facts *facts = look->facts;
	uint64_t need = wish->tree_bytes * NODE_TREE_FACTOR + missing_bytes(facts, wish->image);
	int r = 0;

	for (size_t i = 0; r == 0 && i < facts->missing.n; i++) {
		const char *needed = node_tool_needed(facts->missing.v[i]);
		if (needed)
			r = err_set(err, E_NODE_TOOL, "host %s has no %s", look->host, needed);
	}
	if (r == 0 && facts->free_bytes < need)
		r = err_set(err, E_NODE_DISK,
			"%s: %s has %" PRIu64 " bytes free, %" PRIu64 " are needed", look->host,
			facts->local, facts->free_bytes, need);
	node_explain(look->opened, err);
	return r;
}

/* Settings that a container needs, and those not supported in one. */
static int check_runtime(
	const struct target_node *node, const struct target_wish *wish, struct err *err)
{
	const char *name = node->target.name;

	if (!node->runtime)
		return 0;
	if (!wish->base || str_eq(wish->base, "scratch")) {
		err_set(err, E_CONFIG, "target %s: runtime: %s needs an image, and none is named",
			name, node->runtime);
		return err_hint(err, "image: docker.io/library/python:3.12   # in dlrun.yaml");
	}
	if (str_starts(wish->base, "oci:")) {
		err_set(err, E_CONFIG,
			"target %s: the image of runtime: %s is pulled there, and %s is a "
			"directory here",
			name, node->runtime, wish->base);
		return err_hint(err, "image: docker.io/library/python:3.12   # in dlrun.yaml");
	}
	if (!wish->spec->world.setup.run)
		return 0;
	err_set(err, E_TARGET_UNSUPPORTED,
		"target %s: setup: is not run with runtime: %s: what it makes is a part of the "
		"image there",
		name, node->runtime);
	return err_hint(err, "before: source /opt/env.sh   # in dlrun.yaml, instead of setup:");
}

int target_node_learn(struct target *target, const struct target_wish *wish, struct strv *ret_notes,
	struct err *err)
{
	AUTO(choosing_done) struct choosing choosing = {.node = target_node_of(target)};

	int r = check_runtime(choosing.node, wish, err);
	if (r == 0)
		r = look_at_hosts(&choosing, wish->spec, err);
	if (r < 0)
		return r;
	if (choosing.n > 1 || wish->spec->resources.nodes > 1)
		return choose(&choosing, wish, ret_notes, err);
	if (!choosing.looks[0].facts)
		return err_move(err, &choosing.looks[0].fault);
	r = check_room(&choosing.looks[0], wish, err);
	if (r == 0)
		r = check_gpus(&choosing.looks[0], wish->spec, err);
	if (r == 0)
		r = check_size(&choosing.looks[0], &wish->spec->resources, err);
	if (r == 0)
		take(&choosing, 0, NULL);
	return r;
}
