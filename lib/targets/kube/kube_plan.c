/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/data/yaml_json.h"
#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/image/image_facts.h"
#include "core/record/spec.h"
#include "targets/kube/target_kube.h"

/*
 * Plan of a run in a cluster: its specification and the target's keys in Kubernetes' terms.
 */

enum { OVERLAY_MAX = 1 << 20, TTL_MS = 7 * 24 * 3600 * 1000 };

void kube_plan_done(struct kube_plan *plan)
{
	if (!plan)
		return;
	if (plan->spec)
		spec_done(plan->spec);
	free(plan->spec);
	if (plan->facts)
		image_facts_done(plan->facts);
	free(plan->facts);
	strv_done(&plan->image_env);
	strv_done(&plan->texts);
	strv_done(&plan->command);
	strv_done(&plan->env);
	json_free(plan->json);
	free(plan->data);
	free(plan->volumes);
	free(plan->outputs);
	*plan = (struct kube_plan){0};
}

/* A text that lives as long as the plan. */
static const char *keep(struct kube_plan *plan, char *take)
{
	strv_add_take(&plan->texts, take);
	return take;
}

static struct json *keep_json(struct kube_plan *plan, struct json *take)
{
	AUTO_FREE char *key = mem_printf("%zu", json_count(plan->json));

	json_set(plan->json, key, take);
	return take;
}

/*
 * Storage
 */

/* "SERVER:/PATH" */
static int read_nfs(
	struct kube_plan *plan, const char *text, struct kube_place *place, struct err *err)
{
	const char *colon = strstr(text, ":/");

	if (!colon || colon == text) {
		AUTO_FREE char *shown = str_shown(text);
		err_set(err, E_CONFIG, "nfs: '%s' is not of the form SERVER:/PATH", shown);
		return err_hint(err, "nfs: fileserver:/exports/data");
	}
	place->kind = KUBE_PLACE_NFS;
	place->name = keep(plan, mem_strndup(text, (size_t)(colon - text)));
	place->path = colon + 1;
	return 0;
}

static int read_place(
	struct kube_plan *plan, const struct json *json, struct kube_place *place, struct err *err)
{
	const char *pvc = json_get_str(json, "pvc"), *nfs = json_get_str(json, "nfs");
	const char *host = json_get_str(json, "host_path"), *claim = json_get_str(json, "claim");

	*place = (struct kube_place){
		.sub_path = json_get_str(json, "sub_path"),
		.storage_class = json_get_str(json, "storage_class"),
		.read_only = json_get_bool(json, "read_only", false),
	};
	if (pvc) {
		place->kind = KUBE_PLACE_PVC;
		place->name = pvc;
	} else if (host) {
		place->kind = KUBE_PLACE_HOST;
		place->path = host;
	} else if (claim) {
		place->kind = KUBE_PLACE_CLAIM;
		return str_to_size(claim, &place->size_bytes, err);
	} else if (json_get_bool(json, "emptyDir", false)) {
		place->kind = KUBE_PLACE_EMPTY;
	}
	return nfs ? read_nfs(plan, nfs, place, err) : 0;
}

static bool is_filled(const struct world *world, const char *path)
{
	return strv_find(&world->filled, path) >= 0;
}

/* Where a data path is was written down at the submit, as JSON. */
static int set_data(struct kube_plan *plan, struct err *err)
{
	const struct world *world = &plan->spec->world;
	int r = 0;

	plan->data = mem_alloc(world->data.n + 1, sizeof(*plan->data));
	for (size_t i = 0; r == 0 && i < world->data.n; i++) {
		const struct world_data *data = &world->data.v[i];
		struct json *json = NULL;

		r = json_parse(data->from, strlen(data->from), JSON_SIZE_MAX, "data", &json, err);
		if (r < 0)
			break;
		plan->data[i] = (struct kube_mount){
			.path = data->path, .has_files = is_filled(world, data->path)};
		r = read_place(plan, keep_json(plan, json), &plan->data[i].place, err);
	}
	plan->run.data = plan->data;
	plan->run.n_data = world->data.n;
	return r;
}

static void set_outputs(struct kube_plan *plan)
{
	const struct world *world = &plan->spec->world;

	plan->outputs = mem_alloc(world->outputs.n + 1, sizeof(*plan->outputs));
	for (size_t i = 0; i < world->outputs.n; i++)
		plan->outputs[i] = (struct kube_output){
			world->outputs.v[i], is_filled(world, world->outputs.v[i])};
	plan->run.outputs = plan->outputs;
	plan->run.n_outputs = world->outputs.n;
}

static int set_volumes(struct kube_plan *plan, const struct json *definition, struct err *err)
{
	const struct json *list = json_get(definition, "volumes");
	size_t n = 0;
	int r = 0;

	plan->volumes = mem_alloc((list ? json_count(list) : 0) + 1, sizeof(*plan->volumes));
	for (const struct json *item = list ? json_first(list) : NULL; r == 0 && item;
		item = json_next(item)) {
		plan->volumes[n] = (struct kube_mount){.path = json_get_str(item, "path")};
		r = read_place(plan, item, &plan->volumes[n++].place, err);
	}
	plan->run.volumes = plan->volumes;
	plan->run.n_volumes = n;
	return r;
}

static int set_storage(struct kube_plan *plan, const struct json *definition, struct err *err)
{
	const struct json *results = json_get(definition, "results");

	plan->run.allow_host_path = json_get_bool(definition, "host_path", false);
	set_outputs(plan);
	int r = set_data(plan, err);
	if (r == 0)
		r = set_volumes(plan, definition, err);
	if (r < 0)
		return r;
	if (results)
		return read_place(plan, results, &plan->run.results, err);
	plan->run.results.kind = KUBE_PLACE_EMPTY;
	return 0;
}

/*
 * The program
 */

static void set_image(struct kube_plan *plan, const struct target_job *job)
{
	struct image_facts *facts = plan->facts;
	struct kube_run *run = &plan->run;

	image_facts_from_json(json_get(job->spec, "image"), facts);
	for (size_t i = 0; i < facts->env_names.n; i++)
		strv_addf(&plan->image_env, "%s=", facts->env_names.v[i]);
	run->image_ref = job->image_ref;
	run->drop_entrypoint =
		json_get_bool(job->spec, "drop_entrypoint", false) && facts->entrypoint.n > 0;
	if (!run->drop_entrypoint)
		run->image_entrypoint = facts->entrypoint;
	run->image_env = plan->image_env;
	run->image_user = facts->user;
	run->has_no_shell = facts->is_scratch;
	run->has_shell = facts->has_shell;
	run->lacks_shell = facts->lacks_shell;
	run->image_program = facts->program;
	run->workdir = facts->workdir;
	run->os = facts->os;
	run->arch = facts->arch;
}

static const struct strv *place_words(const struct strv *words, const char *tree, struct strv *ret)
{
	for (size_t i = 0; words && i < words->n; i++)
		strv_add_take(ret, words_in_tree(words->v[i], tree ? tree : "."));
	return words ? ret : NULL;
}

static void set_program(struct kube_plan *plan, const struct target_job *job)
{
	const struct world *world = &plan->spec->world;
	struct kube_run *run = &plan->run;

	run->cwd = job->cwd;
	run->command = place_words(job->command, run->workdir, &plan->command);
	run->shell = job->shell;
	run->env = place_words(job->env, run->workdir, &plan->env);
	run->defaults = job->default_env;
	run->secret_env = job->secret_env;
	run->before = world->before;
	run->setup = world->setup.run;
	run->setup_cwd = world->setup.cwd;
	run->timeout_ms = job->timeout_ms;
	run->grace_ms = job->grace_ms;
	run->retries = world->retries;
	run->collects = world->collect.mode != COLLECT_NONE;
	run->exclude = &world->collect.exclude;
	run->collect_bytes = world->collect.size_bytes;
	run->linger_ms = world->linger_ms;
	run->carries = job->carries;
	run->ports = plan->spec->ports.v;
	run->n_ports = plan->spec->ports.n;
	if (world->signal) {
		char text[8];
		run->signal = keep(plan, mem_strdup(proc_signal_name(world->signal, text)));
		run->signal_before_ms = world->signal_before_ms;
	}
}

/*
 * Resources and placement
 */

static int fail_gpu_type(const char *name, const struct json *types, struct err *err)
{
	AUTO_FREE char *shown = str_shown(name);
	AUTO_STRV struct strv names = {0};
	const char *near;

	for (const struct json *item = types ? json_first(types) : NULL; item;
		item = json_next(item))
		strv_add(&names, json_key(item));
	near = str_suggest(name, (const char *const *)names.v, names.n);
	err_set(err, E_CONFIG, "the target has no GPU type '%s'", shown);
	if (near)
		return err_hint(err, "did you mean %s?", near);
	return err_hint(err, "gpu_types: {%s: {resource: nvidia.com/gpu}}", shown);
}

static int set_gpus(struct kube_plan *plan, const struct json *definition, struct err *err)
{
	const struct json *types = json_get(definition, "gpu_types"), *type;
	const char *name = plan->spec->resources.gpu_type;
	struct kube_run *run = &plan->run;

	/* A cluster hands out what is asked for. */
	run->gpus = plan->spec->world.gpus > 0 ? plan->spec->world.gpus : 0;
	if (!name)
		return 0;
	type = json_get(types, name);
	if (!type)
		return fail_gpu_type(name, types, err);
	if (run->gpus == 0)
		run->gpus = 1;
	run->gpu_resource = json_get_str(type, "resource");
	run->node_selector = json_get(type, "node_selector");
	run->tolerations = json_get(type, "tolerations");
	return 0;
}

static int set_resources(struct kube_plan *plan, const struct json *definition, struct err *err)
{
	const struct resources *wanted = &plan->spec->resources;
	struct kube_run *run = &plan->run;
	const char *queue = json_get_str(definition, "queue");
	const char *priority = json_get_str(definition, "priority");

	run->nodes = wanted->nodes;
	run->cpu_milli = wanted->cpus_milli;
	run->memory_bytes = wanted->memory_bytes;
	run->disk_bytes = wanted->disk_bytes;
	run->shm_bytes = wanted->shm_bytes;
	run->queue = wanted->queue ? wanted->queue : queue;
	priority = wanted->priority ? wanted->priority : priority;
	if (run->queue)
		run->queue_priority = priority;
	else
		run->priority_class = priority;
	return set_gpus(plan, definition, err);
}

static int read_overlay(struct kube_plan *plan, const char *path, struct err *err)
{
	AUTO_YAML struct yaml *yaml = NULL;
	AUTO_BUF struct buf text = {0};

	int r = fs_read(path, OVERLAY_MAX, &text, NULL, err);
	if (r == 0)
		r = yaml_parse(text.data, text.len, path, &yaml, err);
	if (r == 0)
		plan->run.overlay = keep_json(plan, yaml_to_json(yaml));
	return r;
}

static enum kube_security security_of(const char *text)
{
	if (str_eq(text, "image"))
		return KUBE_SECURITY_IMAGE;
	return str_eq(text, "restricted") ? KUBE_SECURITY_RESTRICTED : KUBE_SECURITY_AUTO;
}

static int set_target(struct kube_plan *plan, const struct target_kube *kube, struct err *err)
{
	const struct json *definition = kube->definition;
	const char *overlay = json_get_str(definition, "overlay");
	const char *ttl = json_get_str(definition, "ttl");
	struct kube_run *run = &plan->run;
	int r = 0;

	run->kube_namespace = kube->kube_namespace;
	run->labels = json_get(definition, "labels");
	run->annotations = json_get(definition, "annotations");
	run->service_account = json_get_str(definition, "service_account");
	run->pull_secret = json_get_str(definition, "image_pull_secret");
	run->security = security_of(json_get_str(definition, "security"));
	run->enforced = kube->enforced;
	run->jobset = plan->handle.kind == KUBE_KIND_JOBSET;
	run->ttl_ms = TTL_MS;
	if (ttl)
		r = duration_parse(ttl, &run->ttl_ms, err);
	return r == 0 && overlay ? read_overlay(plan, overlay, err) : r;
}

/*
 * Identity
 */

static const char *print(struct kube_plan *plan, const struct json *json)
{
	AUTO_BUF struct buf out;

	buf_init(&out, JSON_SIZE_MAX);
	json_print(json, &out);
	return keep(plan, buf_take(&out));
}

/* Members of the record that another machine needs to show the run and to run it again. */
static const char *record_of(struct kube_plan *plan, const struct run *run)
{
	static const char *const members[] = {"id", "name", "command", "shell", "params", "tags",
		"group", "parent", "user", "note", "target", "origin", "snapshot", "image",
		"resources", "ports", "times"};
	AUTO_JSON struct json *record = json_object();

	for (size_t i = 0; i < ARRAY_LEN(members); i++) {
		const struct json *value = json_get(run->doc, members[i]);
		if (value)
			json_set(record, members[i], json_clone(value));
	}
	return print(plan, record);
}

static void set_identity(
	struct kube_plan *plan, const struct target_kube *kube, const struct target_job *job)
{
	const struct json *snapshot = json_get(job->run->doc, "snapshot");
	const char *id = json_get_str(snapshot, "id");
	struct kube_run *run = &plan->run;

	run->run_id = job->run_id;
	run->job = plan->handle.name;
	run->attempt = job->attempt;
	run->user = kube->user ? kube->user : json_get_str(job->run->doc, "user");
	run->tree = id && str_starts(id, "sha256:") ? id + strlen("sha256:") : NULL;
	run->commit = json_get_str(snapshot, "commit");
	run->spec = print(plan, job->spec);
	run->record = record_of(plan, job->run);
}

int kube_plan_make(const struct target_kube *kube, const struct target_job *job,
	struct kube_plan *ret, struct err *err)
{
	AUTO_KUBE_PLAN struct kube_plan plan = {
		.spec = mem_alloc(1, sizeof(*plan.spec)),
		.facts = mem_alloc(1, sizeof(*plan.facts)),
		.json = json_object(),
	};

	*plan.spec = (struct spec){0};
	*plan.facts = (struct image_facts){0};
	int r = kube_handle_parse(kube, job->handle, &plan.handle, err);
	if (r == 0)
		r = spec_from_json(job->spec, plan.spec, err);
	if (r < 0)
		return r;
	*ret = plan;
	plan = (struct kube_plan){0};
	set_identity(ret, kube, job);
	set_image(ret, job);
	set_program(ret, job);
	r = set_storage(ret, kube->definition, err);
	if (r == 0)
		r = set_resources(ret, kube->definition, err);
	return r < 0 ? r : set_target(ret, kube, err);
}
