/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/yaml.h"
#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/image/image_facts.h"
#include "core/record/places.h"
#include "core/record/setup_key.h"
#include "core/record/spec.h"
#include "core/store/store.h"
#include "kube/job/preflight.h"
#include "kube/job/room.h"
#include "kube/status/object.h"
#include "oci/layout/layout.h"
#include "targets/kube/kube_growth.h"
#include "targets/kube/kube_reconcile.h"
#include "targets/kube/target_kube.h"

/*
 * Plan of a run in a cluster: its specification and the target's keys in Kubernetes' terms.
 */

enum {
	OVERLAY_MAX = 1 << 20,
	TTL_MS = 7 * 24 * 3600 * 1000,
	MEMBER_LINGER_MS = 2 * 60 * 1000,
	SETUP_TTL_MS = 10 * 60 * 1000
};

struct kube_plan_role {
	struct spec spec; /* as of a run that has no other role */
	struct strv command, env, variables;
};

void kube_plan_done(struct kube_plan *plan)
{
	if (!plan)
		return;
	if (plan->facts)
		image_facts_done(plan->facts);
	free(plan->facts);
	strv_done(&plan->image_env);
	strv_done(&plan->texts);
	strv_done(&plan->command);
	strv_done(&plan->env);
	json_free(plan->json);
	free(plan->data);
	strv_done(&plan->sent);
	free(plan->volumes);
	free(plan->outputs);
	for (size_t i = 0; plan->member_commands && i < plan->run.n_members; i++)
		strv_done(&plan->member_commands[i]);
	for (size_t i = 0; plan->member_env && i < plan->run.n_members; i++)
		strv_done(&plan->member_env[i]);
	free(plan->member_commands);
	free(plan->member_env);
	free(plan->members);
	for (size_t i = 0; i < plan->n_roles; i++) {
		struct kube_plan_role *words = &plan->role_words[i];
		spec_done(&words->spec);
		strv_done(&words->command);
		strv_done(&words->env);
		strv_done(&words->variables);
	}
	free(plan->role_words);
	free(plan->roles);
	for (size_t i = 0; plan->code_data && i < plan->run.n_code; i++)
		buf_done(&plan->code_data[i]);
	free(plan->code_data);
	free(plan->code);
	*plan = (struct kube_plan){0};
}

/* A text that lives as long as the plan. */
static const char *kube_submit_keep(struct kube_plan *plan, char *take)
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
	place->name = kube_submit_keep(plan, mem_strndup(text, (size_t)(colon - text)));
	place->path = colon + 1;
	return 0;
}

static int read_place(
	struct kube_plan *plan, const struct json *json, struct kube_place *place, struct err *err)
{
	const char *pvc = json_get_str(json, "pvc"), *nfs = json_get_str(json, "nfs");
	const char *host = json_get_str(json, "host_path"), *claim = json_get_str(json, "claim");
	const char *s3 = json_get_str(json, "s3"), *cache = json_get_str(json, "cache");

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
	} else if (s3) {
		place->kind = KUBE_PLACE_S3;
		place->path = s3;
		return cache ? str_to_size(cache, &place->size_bytes, err) : 0;
	} else if (claim) {
		place->kind = KUBE_PLACE_CLAIM;
		return str_to_size(claim, &place->size_bytes, err);
	} else if (json_get_bool(json, "emptyDir", false)) {
		place->kind = KUBE_PLACE_EMPTY;
	}
	return nfs ? read_nfs(plan, nfs, place, err) : 0;
}

static bool is_filled(const struct runtime *runtime, const char *path)
{
	return strv_find(&runtime->filled, path) >= 0;
}

/* Where a data path is was written down at the submit, as JSON. */
static int set_data(struct kube_plan *plan, struct err *err)
{
	const struct runtime *runtime = &plan->spec->runtime;
	int r = 0;

	plan->data = mem_alloc(runtime->data.n + 1, sizeof(*plan->data));
	for (size_t i = 0; r == 0 && i < runtime->data.n; i++) {
		const struct runtime_data *data = &runtime->data.v[i];
		struct json *json = NULL;

		if (str_eq(data->from, RUNTIME_SYNC)) {
			strv_add(&plan->sent, data->path);
			continue;
		}
		r = json_parse(data->from, strlen(data->from), JSON_SIZE_MAX, "data", &json, err);
		if (r < 0)
			break;
		struct kube_mount *mount = &plan->data[plan->run.n_data++];
		*mount = (struct kube_mount){
			.path = data->path, .has_files = is_filled(runtime, data->path)};
		r = read_place(plan, keep_json(plan, json), &mount->place, err);
	}
	plan->run.data = plan->data;
	plan->run.sent = &plan->sent;
	return r;
}

static int set_volumes(struct kube_plan *plan, const struct json *definition, struct err *err)
{
	const struct json *list = json_get(definition, "volumes");
	const struct json *caches = json_get(definition, "caches");
	size_t n = 0;
	int r = 0;

	plan->volumes = mem_alloc((list ? json_count(list) : 0) + 2, sizeof(*plan->volumes));
	if (caches) {
		plan->volumes[n] =
			(struct kube_mount){.path = TARGET_CACHES_DIR, .is_shared = true};
		r = read_place(plan, caches, &plan->volumes[n++].place, err);
	}
	for (const struct json *item = json_first(list); r == 0 && item; item = json_next(item)) {
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
	const struct runtime *runtime = &plan->spec->runtime;

	plan->outputs = mem_alloc(runtime->outputs.n + 1, sizeof(*plan->outputs));
	for (size_t i = 0; i < runtime->outputs.n; i++)
		plan->outputs[i] = (struct kube_output){
			runtime->outputs.v[i], is_filled(runtime, runtime->outputs.v[i])};
	plan->run.outputs = plan->outputs;
	plan->run.n_outputs = runtime->outputs.n;
	const struct json *caches = json_get(definition, "caches");
	int r = set_data(plan, err);
	if (r == 0 && caches)
		r = read_place(plan, caches, &plan->run.s3_cache, err);
	if (r == 0 && !plan->run.is_warming)
		r = set_volumes(plan, definition, err);
	if (r < 0)
		return r;
	if (plan->run.is_warming)
		results = NULL;
	const char *s3 = json_get_str(results, "s3");
	if (results && !s3)
		return read_place(plan, results, &plan->run.results, err);
	plan->run.results.kind = KUBE_PLACE_EMPTY;
	if (s3) {
		size_t len = strlen(s3);

		while (len > 0 && s3[len - 1] == '/')
			len--;
		plan->run.results_s3 = kube_submit_keep(plan, mem_strndup(s3, len));
	}
	return 0;
}

/*
 * The program
 */

static void kube_submit_set_image(struct kube_plan *plan, const struct target_job *job)
{
	struct image_facts *facts = plan->facts;
	struct kube_run *run = &plan->run;

	image_facts_from_json(json_get(job->run->spec, "image"), facts);
	for (size_t i = 0; i < facts->env_names.n; i++)
		strv_addf(&plan->image_env, "%s=", facts->env_names.v[i]);
	run->image_ref = job->image_ref;
	run->drop_entrypoint = job->spec->drop_entrypoint && facts->entrypoint.n > 0;
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

/* Where the image does not have it: dlrun's own layers, as the record has them. */
static int kube_submit_set_code(
	struct kube_plan *plan, const struct target_job *job, struct err *err)
{
	const struct json *layers = json_get(json_get(job->run->doc, "image"), "layers");
	struct kube_run *run = &plan->run;

	run->code_apart = job->code_apart;
	if (!job->code_apart || !layers)
		return 0;
	plan->code = mem_alloc(json_count(layers) + 1, sizeof(*plan->code));
	for (const struct json *item = json_first(layers); item; item = json_next(item)) {
		const char *digest = json_get_str(item, "digest");
		if (digest && !str_eq(json_get_str(item, "role"), "base"))
			plan->code[run->n_code++] = (struct kube_code){
				.digest = digest, .size = (uint64_t)json_get_int(item, "size", 0)};
	}
	run->code = plan->code;
	/* Layers that go in objects are read. */
	int r = 0;
	if (!job->layout || !kube_code_fits(&plan->run))
		return 0;
	plan->code_data = mem_alloc(plan->run.n_code + 1, sizeof(*plan->code_data));
	for (size_t i = 0; r == 0 && i < plan->run.n_code; i++) {
		struct descriptor blob = {.size = plan->code[i].size};
		snprintf(blob.digest, sizeof(blob.digest), "%s", plan->code[i].digest);
		buf_init(&plan->code_data[i], blob.size + 1);
		r = layout_read_blob(job->layout, &blob, blob.size, &plan->code_data[i], err);
		plan->code[i].data = plan->code_data[i].data;
	}
	return r;
}

static const struct strv *place_words(const struct strv *words, const char *tree, struct strv *ret)
{
	for (size_t i = 0; words && i < words->n; i++)
		strv_add_take(ret, words_in_tree(words->v[i], tree ? tree : "."));
	return words ? ret : NULL;
}

/* The words that are started: those of the launcher, which becomes the program. */
static const struct strv *place_command(const struct launcher *launcher, const struct strv *command,
	const char *tree, struct strv *ret)
{
	AUTO_STRV struct strv words = {0};

	launcher_words(launcher, command, &words);
	return place_words(&words, tree, ret);
}

static const char *keep_signal(struct kube_plan *plan, int sig)
{
	char text[8];

	return sig ? kube_submit_keep(plan, mem_strdup(proc_signal_name(sig, text))) : NULL;
}

static void set_program(struct kube_plan *plan, const struct target_job *job)
{
	const struct spec *spec = job->spec;
	const struct runtime *runtime = &spec->runtime;
	struct kube_run *run = &plan->run;

	run->cwd = spec->cwd;
	run->command =
		place_command(&runtime->launcher, &spec->command, run->workdir, &plan->command);
	run->shell = spec->shell;
	run->has_launcher = runtime->launcher.kind != LAUNCHER_NONE;
	run->env = place_words(job->env, run->workdir, &plan->env);
	run->defaults = job->default_env;
	run->secret_env = job->secret_env;
	run->before = runtime->before;
	run->setup = runtime->setup.run;
	run->setup_cwd = runtime->setup.cwd;
	run->is_baked = runtime->setup.baked != NULL;
	run->timeout_ms = spec->timeout_ms;
	run->grace_ms = spec->grace_ms;
	run->retries = runtime->retries;
	run->collects = runtime->collect.mode != COLLECT_NONE;
	run->exclude = &runtime->collect.exclude;
	run->collect_bytes = runtime->collect.size_bytes;
	run->linger_ms = runtime->linger_ms;
	run->carries_over = job->carries_over;
	run->is_warming = job->is_warming;
	run->only_nodes = job->only_nodes;
	run->ports = spec->ports.v;
	run->n_ports = spec->ports.n;
	run->signal = keep_signal(plan, runtime->signal);
	run->signal_before_ms = runtime->signal ? runtime->signal_before_ms : 0;
	run->stop_signal = keep_signal(plan, runtime->stop_signal);
}

/*
 * Resources and placement
 */

static int kube_submit_fail_type(const struct json *types, const char *name, struct err *err)
{
	AUTO_FREE char *shown = str_shown(name);
	AUTO_STRV struct strv names = {0};
	const char *near;

	for (const struct json *item = json_first(types); item; item = json_next(item))
		strv_add(&names, json_key(item));
	near = str_suggest(name, (const char *const *)names.v, names.n);
	err_set(err, E_CONFIG, "the target has no GPU type '%s'", shown);
	if (near)
		return err_hint(err, "did you mean %s?", near);
	return err_hint(err, "gpu_types: {%s: {resource: nvidia.com/gpu}}", shown);
}

/* The types of a list that the target has, of the resource of the first: a pod asks for one. */
static void kube_submit_find_types(const struct json *types, const char *names, struct json *ret)
{
	const char *resource = NULL;

	for (const char *at = names; *at; at += strcspn(at, ","), at += *at == ',') {
		AUTO_FREE char *name = mem_strndup(at, strcspn(at, ","));
		const struct json *type = json_get(types, name);
		const char *has = json_get_str(type, "resource");

		if (!type || (json_count(ret) && !str_eq(has, resource)))
			continue;
		resource = has;
		json_add(ret, json_clone(type));
	}
}

static int kube_submit_set_gpus(
	struct kube_plan *plan, const struct json *definition, struct err *err)
{
	const struct json *types = json_get(definition, "gpu_types"), *type, *found;
	const char *name = plan->spec->resources.gpu_type;
	struct kube_run *run = &plan->run;

	/* A cluster hands out what is asked for. */
	run->gpus = plan->spec->runtime.gpus > 0 ? plan->spec->runtime.gpus : 0;
	if (!name)
		return 0;
	type = json_get(types, name);
	if (!type && strchr(name, ',')) {
		struct json *list = json_array();
		kube_submit_find_types(types, name, list);
		found = keep_json(plan, list);
		type = json_first(found);
		run->gpu_choices = json_count(found) > 1 ? found : NULL;
	}
	if (!type)
		return kube_submit_fail_type(types, name, err);
	if (run->gpus == 0)
		run->gpus = 1;
	run->gpu_resource = json_get_str(type, "resource");
	if (run->gpu_choices)
		return 0;
	run->node_selector = json_get(type, "node_selector");
	run->tolerations = json_get(type, "tolerations");
	return 0;
}

static int kube_submit_set_resources(
	struct kube_plan *plan, const struct json *definition, struct err *err)
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
	run->region = wanted->region;
	run->instance_type = wanted->instance_type;
	run->same = str_eq(wanted->same, "zone") ? KUBE_LABEL_ZONE : wanted->same;
	run->is_spot = wanted->spot == RESOURCES_SPOT;
	run->is_not_spot = wanted->spot == RESOURCES_SPOT_NOT;
	run->queue = wanted->queue ? wanted->queue : queue;
	priority = wanted->priority ? wanted->priority : priority;
	if (run->queue)
		run->queue_priority = priority;
	else
		run->priority_class = priority;
	return kube_submit_set_gpus(plan, definition, err);
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

static int kube_submit_set_target(
	struct kube_plan *plan, const struct target_kube *kube, struct err *err)
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
	/* Nothing reads its log later, and it may have secrets. */
	if (setup_id_is_own(plan->handle.run_id))
		run->ttl_ms = SETUP_TTL_MS;
	return r == 0 && overlay ? read_overlay(plan, overlay, err) : r;
}

/*
 * Identity
 */

static const char *kube_submit_print(struct kube_plan *plan, const struct json *json)
{
	AUTO_BUF struct buf out = buf_with(JSON_SIZE_MAX);

	json_print(json, &out);
	return kube_submit_keep(plan, buf_take(&out));
}

/* Members of the record that another machine needs to show the run and to run it again. */
static const char *record_of(struct kube_plan *plan, const struct run *run)
{
	static const char *const members[] = {"id", "name", "command", "shell", "launcher",
		"params", "tags", "group", "parent", "user", "note", "target", "places", "origin",
		"snapshot", "image", "resources", "ports", "times", "roles", "ends_with",
		RUNTIME_DATA, AFTER_RECORD};
	AUTO_JSON struct json *record = json_object();

	for (size_t i = 0; i < ARRAY_LEN(members); i++) {
		const struct json *value = json_get(run->doc, members[i]);
		if (value)
			json_set(record, members[i], json_clone(value));
	}
	return kube_submit_print(plan, record);
}

/*
 * Roles
 */

/* Roles without words. The caller frees. */
static struct kube_role *kube_submit_new_roles(const struct roles *roles)
{
	struct kube_role *list = mem_alloc(roles->list.n + 1, sizeof(*list));

	for (size_t i = 0; i < roles->list.n; i++)
		list[i] = (struct kube_role){
			.name = roles->list.v[i].name, .nodes = roles->list.v[i].nodes};
	return list;
}

static int kube_submit_set_role(struct kube_plan *plan, const struct target_job *job, size_t i,
	const struct strv *addresses, struct err *err)
{
	struct kube_plan_role *words = &plan->role_words[i];
	struct kube_role *role = &plan->roles[i];
	struct spec whole = *job->spec; /* borrowed */
	AUTO_STRV struct strv variables = {0};
	struct roles_part part;

	whole.env = *job->env;
	roles_nth(&whole, i, &part);
	roles_add_env(&whole, part.first, addresses, &variables);
	/* The pod knows its rank. */
	for (size_t k = 0; k < variables.n; k++)
		if (!str_starts(variables.v[k], "DLRUN_ROLE_RANK="))
			strv_add(&words->variables, variables.v[k]);
	int r = spec_of_role(&whole, i, addresses, &words->spec, err);
	if (r < 0)
		return r;
	role->gpus = part.gpus > 0 ? part.gpus : 0;
	role->cpu_milli = part.cpus_milli;
	role->memory_bytes = part.memory_bytes;
	role->shell = part.shell;
	role->command = place_command(&job->spec->runtime.launcher, &words->spec.command,
		plan->run.workdir, &words->command);
	role->env = place_words(&words->spec.env, plan->run.workdir, &words->env);
	role->variables = &words->variables;
	return 0;
}

/* Of the run as a whole what one node has at most. */
static void kube_submit_raise(struct kube_run *run, const struct kube_role *role)
{
	run->gpus = role->gpus > run->gpus ? role->gpus : run->gpus;
	run->cpu_milli = role->cpu_milli > run->cpu_milli ? role->cpu_milli : run->cpu_milli;
	run->memory_bytes =
		role->memory_bytes > run->memory_bytes ? role->memory_bytes : run->memory_bytes;
}

/* After the target, on which names of ranks depend, and resources. */
static int kube_submit_set_roles(
	struct kube_plan *plan, const struct target_job *job, struct err *err)
{
	const struct roles *roles = &job->spec->roles;
	AUTO_STRV struct strv addresses = {0};
	int r = 0;

	plan->n_roles = roles->list.n;
	plan->roles = kube_submit_new_roles(roles);
	plan->role_words = mem_alloc(plan->n_roles + 1, sizeof(*plan->role_words));
	plan->run.roles = plan->roles;
	plan->run.n_roles = plan->n_roles;
	plan->run.ends_with = roles->ends_with;
	/* Of all ranks, by which they find each other. */
	for (size_t i = 0; i < plan->n_roles; i++)
		for (int k = 0; k < plan->roles[i].nodes; k++)
			strv_add_take(&addresses, kube_role_host(&plan->run, i, k));
	for (size_t i = 0; r == 0 && i < plan->n_roles; i++) {
		r = kube_submit_set_role(plan, job, i, &addresses, err);
		kube_submit_raise(&plan->run, &plan->roles[i]);
	}
	return r;
}

/* Without the words of the others they are as the first one is. */
static void kube_submit_set_members(struct kube_plan *plan, const struct target_job *job)
{
	const struct spec_study *of = &plan->spec->study;
	const struct target_study *study = job->study;
	size_t n = study ? study->n : (size_t)of->size;
	struct kube_run *run = &plan->run;

	plan->members = mem_alloc(n + 1, sizeof(*plan->members));
	if (study)
		plan->member_commands = mem_alloc(n + 1, sizeof(struct strv));
	if (study && study->env)
		plan->member_env = mem_alloc(n + 1, sizeof(struct strv));
	for (size_t i = 0; i < n; i++) {
		plan->members[i] = (struct kube_member){.command = run->command,
			.params = study && study->params ? study->params[i] : NULL,
			.is_cancelled = study && study->left_out && study->left_out[i]};
		if (plan->member_commands)
			plan->members[i].command = place_command(&job->spec->runtime.launcher,
				&study->commands[i], run->workdir, &plan->member_commands[i]);
		if (plan->member_env)
			plan->members[i].env =
				place_words(&study->env[i], run->workdir, &plan->member_env[i]);
	}
	run->run_id = plan->handle.owner;
	run->members = plan->members;
	run->n_members = n;
	run->parallel = of->parallel;
	/* Pods that wait until their results have been taken are in the way of the next ones. */
	if (of->parallel > 0 && (size_t)of->parallel < n && run->linger_ms > MEMBER_LINGER_MS)
		run->linger_ms = MEMBER_LINGER_MS;
	run->fail_fast = of->fail_fast;
}

int kube_plan_make(const struct target_kube *kube, const struct target_job *job,
	struct kube_plan *ret, struct err *err)
{
	AUTO_KUBE_PLAN struct kube_plan plan = {
		.spec = job->spec,
		.facts = mem_alloc(1, sizeof(*plan.facts)),
		.json = json_object(),
	};

	*plan.facts = (struct image_facts){0};
	int r = kube_handle_parse(kube, job->handle, &plan.handle, err);
	if (r < 0)
		return r;
	*ret = plan;
	plan = (struct kube_plan){0};
	const struct json *snapshot = json_get(job->run->doc, "snapshot");
	const char *id = json_get_str(snapshot, "id");
	struct kube_run *run = &ret->run;

	run->run_id = job->run_id;
	run->job = ret->handle.name;
	run->attempt = job->attempt;
	run->user = kube->user ? kube->user : json_get_str(job->run->doc, "user");
	run->tree = id && str_starts(id, "sha256:") ? id + strlen("sha256:") : NULL;
	run->commit = json_get_str(snapshot, "commit");
	run->may_move =
		!ret->handle.is_member && json_count(json_get(job->run->doc, RUN_PLACES)) > 1;
	run->spec = kube_submit_print(ret, job->run->spec);
	run->record = record_of(ret, job->run);
	kube_submit_set_image(ret, job);
	set_program(ret, job);
	if (ret->handle.is_member)
		kube_submit_set_members(ret, job);
	else if (job->spec->study.id && job->spec->resources.nodes <= 1)
		run->claim_of = job->spec->study.id;
	r = kube_submit_set_code(ret, job, err);
	if (r == 0)
		r = set_storage(ret, kube->definition, err);
	if (r == 0)
		r = kube_submit_set_resources(ret, kube->definition, err);
	if (r == 0)
		r = kube_submit_set_target(ret, kube, err);
	return r < 0 ? r : kube_submit_set_roles(ret, job, err);
}

/*
 * The record here
 */

static int kube_submit_make(const struct target_kube *kube, const struct kube_handle *handle,
	const struct run *run, struct json **ret, struct err *err)
{
	AUTO_FREE char *text =
		handle->is_member ? kube_handle_member_text(handle->server, handle->kube_namespace,
					    handle->name, handle->index)
				  : kube_handle_text(handle->server, handle->kube_namespace,
					    handle->kind, handle->name);
	AUTO_SPEC struct spec spec = {0};
	AUTO_KUBE_PLAN struct kube_plan plan = {0};
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};

	int r = spec_from_json(run->spec, &spec, err);
	if (r < 0)
		return r;
	const char *base_ref = run_base_ref(run);
	const struct target_job job = {
		.run_id = handle->run_id,
		.attempt = handle->attempt,
		.handle = text,
		.spec = &spec,
		.env = &spec.env,
		.run = run,
		.image_ref = base_ref ? base_ref : json_get_str(json_get(run->doc, "image"), "ref"),
		.code_apart = base_ref != NULL,
	};
	r = kube_plan_make(kube, &job, &plan, err);
	if (r == 0)
		r = kube_job_make(&plan.run, &objects, err);
	if (r == 0)
		*ret = TAKE(objects.job);
	return r;
}

int kube_record_job(const struct target_kube *kube, const struct kube_handle *handle,
	struct json **ret, struct err *err)
{
	AUTO_RUN struct run *run = NULL;
	struct store *store;

	int r = session_store(kube->session, &store, err);
	if (r == 0)
		r = store_get(store, handle->run_id, &run, err);
	return r < 0 ? r : kube_submit_make(kube, handle, run, ret, err);
}

/*
 * Whether a run could be in the cluster, asked in parallel while its image is made and pushed. What
 * does not answer in time counts as not known. A list of thousands of nodes is not waited for: the
 * state of a run that fits none says so, too.
 */

enum { LIST_MAX = 20000, CHECK_LIMIT_MS = 5000, LISTS_MS = 300 };

struct check;

struct requested {
	struct check *check;
	struct kube_call *call;
	struct kube_reply reply;
	struct json *object; /* of reply */
};

struct check {
	struct target_work work;
	struct target_kube *kube;
	struct target_call *call;
	struct kube_plan plan;
	struct kube_questions questions;
	struct requested *requested;
	struct loop_timer *timer;
	struct strv *notes; /* the caller's */
	/* Whether there is room is asked, too; or NULL. What the plan was made of is kept then. */
	struct target_room *room;
	struct run *draft;
	char *handle;
	struct strv own_notes;
	struct err silence; /* why there is no response, as long as there is none */
	bool is_heard;
	size_t n_open;
	size_t n_needed; /* of those that are open: all but lists */
	int64_t deadline_ms;
};

static void kube_submit_drop(struct target_work *work)
{
	struct check *check = (struct check *)work;

	loop_remove_timer(check->kube->target.loop, check->timer);
	for (size_t i = 0; i < check->questions.n; i++) {
		kube_cancel(check->requested[i].call);
		json_free(check->requested[i].object);
	}
	free(check->requested);
	kube_questions_done(&check->questions);
	err_done(&check->silence);
	kube_plan_done(&check->plan);
	run_free(check->draft);
	free(check->handle);
	strv_done(&check->own_notes);
	free(check);
}

/*
 * The decision
 */

/* A run that would wait there waits for a node that is bought. */
static void kube_submit_room_grows(
	const struct kube_growth *growth, size_t n, struct target_room *room)
{
	for (size_t i = 0; i < n && !room->is_now && room->text; i++) {
		if (!growth[i].group || !growth[i].applies || growth[i].is_silent)
			continue;
		AUTO_FREE char *group = str_shown(growth[i].group);
		REPLACE(room->text, mem_printf("%s, one of group %s is bought", room->text, group));
		return;
	}
}

static int kube_submit_evaluate(struct check *check, struct err *err)
{
	AUTO_FREE struct kube_reply *replies = mem_alloc(check->questions.n + 1, sizeof(*replies));
	AUTO_KUBE_FINDINGS struct kube_findings findings = {0};
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};

	for (size_t i = 0; i < check->questions.n; i++)
		replies[i] = check->requested[i].reply;
	struct target_kube *kube = check->kube;
	struct kube_surroundings found = {0};

	kube_preflight_surroundings(&check->questions, replies, &found);
	REPLACE(kube->enforced, found.enforced ? mem_strdup(found.enforced) : NULL);
	check->plan.run.enforced = kube->enforced;
	REPLACE(kube->user, found.user ? mem_strdup(found.user) : NULL);
	kube->takes_jobset = found.jobset;
	kube->target.code_max = found.no_stream ? KUBE_CODE_STORED : 0;
	check->plan.run.jobset = found.jobset;
	int r = kube_job_make(&check->plan.run, &objects, err);
	if (r < 0)
		return r;
	size_t n_growth = 0;
	kube_growth_keep(kube->cluster, found.growth_status, found.growth);
	AUTO_FREE struct kube_growth *growth =
		kube_growth_for(kube->cluster, &check->plan.run, &objects, &n_growth);
	kube_preflight_evaluate(
		&check->plan.run, &objects, growth, &check->questions, replies, &findings);
	if (findings.problems.n > 0)
		r = err_copy(err, &findings.problems.v[0]);
	for (size_t i = 0; r == 0 && i < objects.notes.n; i++)
		strv_add(check->notes, objects.notes.v[i]);
	for (size_t i = 0; r == 0 && i < findings.notes.n; i++)
		strv_add(check->notes, findings.notes.v[i]);
	if (r == 0 && check->room) {
		struct kube_room room = {0};

		r = kube_room_evaluate(
			&check->plan.run, &objects, &check->questions, replies, &room, err);
		check->room->is_now = room.is_now;
		check->room->nodes = room.nodes;
		check->room->text = room.text;
		/* In a queue it waits for quota, not for nodes. */
		if (!check->plan.run.queue)
			kube_submit_room_grows(growth, n_growth, check->room);
	}
	for (size_t i = 0; i < n_growth; i++)
		kube_growth_done(&growth[i]);
	return r;
}

/* A login may take its time; who sends the Job waits for it. */
static int print_unchecked(struct check *check, struct err *err)
{
	char time[32];

	if (check->room)
		return err_set(err, E_TARGET_SILENT, "no answer within %s",
			duration_text(CHECK_LIMIT_MS, time));
	strv_addf(check->notes, "nothing was checked in the cluster %s: no answer within %s",
		check->kube->cluster->access.cluster, duration_text(CHECK_LIMIT_MS, time));
	return 0;
}

static void kube_submit_finish(struct check *check)
{
	AUTO_ERR struct err error = {0};
	int r;

	if (check->is_heard)
		r = kube_submit_evaluate(check, &error);
	else if (err_is_set(&check->silence))
		r = err_move(&error, &check->silence);
	else
		r = print_unchecked(check, &error);

	target_call_end(check->call, r, &error);
}

/*
 * Requests
 */

/* With what is known by then. */
static int kube_submit_on_late(void *ctx, struct err *err UNUSED)
{
	struct check *check = ctx;

	check->timer = NULL;
	kube_submit_finish(check);
	return 0;
}

static void wait_until(struct check *check, int64_t end_ms)
{
	struct loop *loop = check->kube->target.loop;

	loop_remove_timer(loop, check->timer);
	check->timer = loop_add_timer(loop, end_ms, kube_submit_on_late, check);
}

static bool is_needed(const struct check *check, const struct requested *requested)
{
	return check->room || !check->questions.v[requested - check->requested].is_list;
}

static void kube_submit_query(struct check *check, size_t i);

static int kube_submit_on_response(
	void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct requested *requested = ctx;
	struct check *check = requested->check;

	requested->call = NULL;
	requested->object = TAKE(response->object);
	requested->reply = (struct kube_reply){response->status, requested->object};
	/* No response, or an unknown user (401): later requests will not get through either. */
	bool is_response = response->status != 0 && response->status != 401;

	check->is_heard |= is_response;
	if (!is_response && !err_is_set(&check->silence))
		err_move(&check->silence, &response->error);
	check->n_open--;
	if (is_needed(check, requested))
		check->n_needed--;
	size_t n = check->questions.n;

	kube_preflight_query_rights(&check->plan.run,
		&check->questions.v[requested - check->requested], &requested->reply,
		&check->questions);
	if (check->room)
		kube_room_query_more(&check->questions.v[requested - check->requested],
			&requested->reply, &check->questions);
	for (size_t i = n; i < check->questions.n; i++)
		kube_submit_query(check, i);
	if (check->n_open == 0)
		kube_submit_finish(check);
	else if (check->n_needed == 0 && is_needed(check, requested))
		wait_until(check, clock_ms() + LISTS_MS);
	return 0;
}

static struct kube_request request_of(const struct kube_question *question, int64_t deadline_ms)
{
	static const char *const dry_run[] = {"dryRun", "All", "fieldValidation", "Strict", NULL};

	return (struct kube_request){
		.method = question->body ? "POST" : "GET",
		.path = question->path,
		.query = question->is_dry_run ? dry_run : NULL,
		.body = question->body,
		.is_idempotent = true,
		.deadline_ms = deadline_ms,
	};
}

static void kube_submit_query(struct check *check, size_t i)
{
	const struct kube_question *question = &check->questions.v[i];
	struct kube_client *client = check->kube->cluster->client;
	struct requested *requested = &check->requested[i];
	struct kube_request request = request_of(question, check->deadline_ms);

	request.done = kube_submit_on_response;
	request.ctx = requested;
	requested->check = check;
	check->n_open++;
	if (is_needed(check, requested))
		check->n_needed++;
	if (question->is_list)
		requested->call = kube_list(client, question->path, question->query, LIST_MAX,
			check->deadline_ms, kube_submit_on_response, requested);
	else
		requested->call = kube_start(client, &request);
}

static struct check *kube_submit_new_check(struct target *target, struct target_call *call)
{
	struct check *check = mem_alloc(1, sizeof(*check));

	*check = (struct check){.work = {kube_submit_drop},
		.kube = target_kube_of(target),
		.call = call,
		.deadline_ms = clock_ms() + CHECK_LIMIT_MS};
	return check;
}

/* Takes check over. */
static int kube_submit_begin(struct check *check, const struct target_job *job, struct err *err)
{
	int r = kube_plan_make(check->kube, job, &check->plan, err);
	size_t n;

	if (r < 0) {
		kube_submit_drop(&check->work);
		return r;
	}
	kube_preflight_query(&check->plan.run, &check->questions);
	if (check->room)
		kube_room_query(&check->plan.run, &check->questions);
	n = check->questions.n;
	check->requested =
		mem_alloc(n + KUBE_RIGHTS_MAX + KUBE_ROOM_MORE_MAX, sizeof(*check->requested));
	target_call_begin(check->call, &check->work);
	wait_until(check, check->deadline_ms);
	for (size_t i = 0; i < n; i++)
		kube_submit_query(check, i);
	return 0;
}

int kube_check(struct target *target, const struct target_job *job, struct strv *ret_notes,
	struct target_call *call, struct err *err)
{
	struct check *check = kube_submit_new_check(target, call);

	check->notes = ret_notes;
	return kube_submit_begin(check, job, err);
}

int kube_room(struct target *target, const struct target_requirements *requirements,
	struct target_room *ret, struct target_call *call, struct err *err)
{
	struct check *check = kube_submit_new_check(target, call);
	const struct spec *spec = requirements->spec;
	char handle[TARGET_HANDLE_SIZE];

	check->notes = &check->own_notes;
	check->room = ret;
	int r = target->ops->prepare(target, requirements->run_id, 1, spec, handle, err);
	if (r < 0) {
		kube_submit_drop(&check->work);
		return r;
	}
	check->handle = mem_strdup(handle);
	check->draft = run_new(requirements->run_id, requirements->run_id);
	check->draft->spec = spec_to_json(spec);
	const struct target_job job = {
		.run_id = requirements->run_id,
		.attempt = 1,
		.handle = check->handle,
		.spec = spec,
		.env = &spec->env,
		.run = check->draft,
	};
	return kube_submit_begin(check, &job, err);
}

/* Without a response in time support for JobSets is not known: a Job is used then. */
int kube_learn(struct target *target, const struct target_requirements *requirements,
	struct strv *ret_notes UNUSED, struct err *err UNUSED)
{
	struct target_kube *kube = target_kube_of(target);
	AUTO_KUBE_QUESTIONS struct kube_questions questions = {0};
	AUTO_ERR struct err error = {0};
	const struct roles *roles = &requirements->spec->roles;
	AUTO_FREE struct kube_role *list = kube_submit_new_roles(roles);
	const struct kube_run run = {
		.run_id = requirements->run_id,
		.job = requirements->run_id,
		.kube_namespace = kube->kube_namespace,
		.nodes = requirements->spec->resources.nodes,
		.retries = requirements->spec->runtime.retries,
		.roles = list,
		.n_roles = roles->list.n,
		.ends_with = roles->ends_with,
	};

	kube_preflight_query_jobset(&run, &questions);
	if (questions.n == 0)
		return 0;
	struct kube_request request = request_of(&questions.v[0], clock_ms() + CHECK_LIMIT_MS);
	int r = kube_query(kube->cluster->client, &request, NULL, &error);
	/* E_KUBE_EXISTS: the JobSet of an earlier attempt. */
	kube->takes_jobset = r == 0 || error.id == E_KUBE_EXISTS;
	return 0;
}

/*
 * Preview of a submit: the objects it would create, and whether the API server accepts them.
 */

enum { QUERY_MS = 10000 };

/* The server checks every field and keeps nothing. */
static int preview_query(const struct target_kube *kube, const struct json *object,
	struct strv *notes, struct err *err)
{
	static const char *const query[] = {"dryRun", "All", "fieldValidation", "Strict", NULL};
	AUTO_FREE char *path = kube_object_collection(object);
	AUTO_ERR struct err error = {0};
	const struct kube_request request = {
		.method = "POST",
		.path = path,
		.query = query,
		.body = object,
		.is_idempotent = true,
		.deadline_ms = clock_ms() + QUERY_MS,
	};

	if (kube_query(kube->cluster->client, &request, NULL, &error) == 0)
		return 0;
	if (error.id == E_KUBE_INVALID)
		return err_move(err, &error);
	strv_addf(notes, "not checked by the cluster: %s", error.message);
	return 1;
}

static struct json *without_values(const struct json *object)
{
	struct json *copy = json_clone(object);
	const struct json *item = json_first(json_get(object, "data"));

	if (!str_eq(json_get_str(object, "kind"), "Secret"))
		return copy;
	json_set(copy, "data", json_object());
	for (; item; item = json_next(item))
		json_set_str(json_sub(copy, "data"), json_key(item), "");
	return copy;
}

int kube_preview(struct target *target, const struct target_job *job, struct json **ret,
	struct strv *ret_notes, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	AUTO_KUBE_PLAN struct kube_plan plan = {0};
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	AUTO_JSON struct json *list = json_array();
	const struct json *all[KUBE_OBJECTS_MAX + 1];
	size_t n;
	int r = kube_plan_make(kube, job, &plan, err);

	if (r == 0)
		r = kube_job_make(&plan.run, &objects, err);
	if (r < 0)
		return r;
	n = kube_objects_before(&objects, all);
	all[n++] = objects.job;
	for (size_t i = 0; i < objects.notes.n; i++)
		strv_add(ret_notes, objects.notes.v[i]);
	for (size_t i = 0; i < n; i++) {
		if (r == 0)
			r = preview_query(kube, all[i], ret_notes, err);
		if (r < 0)
			return r;
		json_add(list, without_values(all[i]));
	}
	*ret = TAKE(list);
	return 0;
}

/*
 * Making the objects of an attempt, in the order of job.h: what its pods need, then the Job,
 * which is the commit point, then ownership. Each request can be repeated: an object of that name
 * that carries this run's labels is the one that an earlier try has made.
 */

struct submit;

/* An object to create. */
struct creation {
	struct submit *submit;
	const struct json *object;
	char *path; /* of the collection */
	struct kube_call *call;
	struct err refusal; /* that came after tries without a response */
	bool is_job;
};

struct submit {
	struct target_work work;
	struct target_kube *kube;
	struct target_call *call;
	struct kube_plan plan;
	struct kube_objects objects;
	struct creation creations[KUBE_OBJECTS_MAX + 1];
	size_t n_before;
	size_t n_open;
	struct err error;
	struct json *job; /* as the server has it */
	bool is_unadopted;
	bool is_unsure; /* whether the cluster has the Job */
	struct kube_reconcile *repair;
};

static void kube_submit_do_submit_drop(struct target_work *work)
{
	struct submit *submit = (struct submit *)work;

	for (size_t i = 0; i < ARRAY_LEN(submit->creations); i++) {
		kube_cancel(submit->creations[i].call);
		free(submit->creations[i].path);
		err_done(&submit->creations[i].refusal);
	}
	kube_reconcile_cancel(submit->repair);
	kube_plan_done(&submit->plan);
	kube_objects_done(&submit->objects);
	json_free(submit->job);
	err_done(&submit->error);
	free(submit);
}

/*
 * Ownership: with the Job its Secret and Service go, too
 */

static void on_stopped(void *ctx, struct err *error)
{
	struct submit *submit = ctx;

	err_clear(error); /* who looks at the run next repeats it */
	submit->repair = NULL;
	target_call_end_as(submit->call, &submit->error);
}

/* A cancel in the meantime found no Job to remove: remove it now. */
static void adopted_all(struct submit *submit)
{
	const struct kube_reconcile_request request = {
		.handle = &submit->plan.handle,
		.what = KUBE_RECONCILE_JOB | KUBE_RECONCILE_PARTS,
		.in_foreground = true,
		.deadline_ms = submit->call->deadline_ms,
		.done = on_stopped,
		.ctx = submit,
	};

	if (!submit->is_unadopted)
		kube_annotation_accepted(submit->kube, &submit->plan.handle, true);
	/* A member that was cancelled is ended by the next request for its state. */
	if (!submit->plan.handle.is_member && kube_is_cancelled(submit->kube, &submit->plan.handle))
		submit->repair = kube_reconcile_start(submit->kube, &request);
	else
		target_call_end_as(submit->call, &submit->error);
}

static int on_adopted(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct creation *creation = ctx;
	struct submit *submit = creation->submit;

	creation->call = NULL;
	submit->is_unadopted |= err_is_set(&response->error);
	if (--submit->n_open == 0)
		adopted_all(submit);
	return 0;
}

static void kube_submit_accepted(struct submit *submit)
{
	/* Without it a Job that is removed by others would look like one that never was. */
	kube_annotation_accepted(submit->kube, &submit->plan.handle, false);
	const struct json *list[KUBE_OBJECTS_MAX];
	size_t n = kube_objects_adopt(&submit->objects, list);
	AUTO_JSON struct json *owner = n > 0 ? kube_job_owner(submit->job) : NULL;

	for (size_t i = 0; i < n; i++) {
		AUTO_FREE char *path = kube_object_path(list[i]);
		struct creation *creation = &submit->creations[i];

		creation->submit = submit;
		submit->n_open++;
		creation->call = kube_reconcile_send(submit->kube, "PATCH", path, owner,
			submit->call->deadline_ms, on_adopted, creation);
	}
	if (n == 0)
		adopted_all(submit);
}

/*
 * Creating
 */

static void kube_submit_create(
	struct creation *creation, struct submit *submit, const struct json *object, bool is_job);

static void created(struct creation *creation, struct json *take)
{
	struct submit *submit = creation->submit;

	if (creation->is_job && take)
		submit->job = TAKE(take);
	json_free(take);
	if (--submit->n_open == 0) {
		if (err_is_set(&submit->error) && !submit->is_unsure)
			kube_annotation_mark(submit->kube, &submit->plan.handle, KUBE_MARK_REFUSED);
		if (err_is_set(&submit->error))
			target_call_end_as(submit->call, &submit->error);
		else if (submit->job)
			kube_submit_accepted(submit);
		else
			kube_submit_create(&submit->creations[KUBE_OBJECTS_MAX], submit,
				submit->objects.job, true);
	}
}

static bool is_unsure(const struct err *error)
{
	return error->id == E_KUBE_UNREACHABLE || error->id == E_KUBE_SERVER ||
	       error->id == E_KUBE_BUSY || error->id == E_KUBE_RESPONSE;
}

static void kube_submit_fail(struct creation *creation, struct err *error)
{
	creation->submit->is_unsure |= creation->is_job && is_unsure(error);
	if (!err_is_set(&creation->submit->error))
		err_move(&creation->submit->error, error);
	created(creation, NULL);
}

static bool kube_submit_is_ours(const struct submit *submit, const struct json *object)
{
	AUTO_FREE char *attempt = mem_printf("%d", submit->plan.run.attempt);

	return str_eq(kube_label(object, KUBE_LABEL_RUN), submit->plan.run.run_id) &&
	       str_eq(kube_label(object, KUBE_LABEL_ATTEMPT), attempt);
}

/* Whether it is the ConfigMap of a study of which members are not to begin. */
static bool kube_submit_leaves_out(const struct creation *creation)
{
	const struct submit *submit = creation->submit;

	for (size_t i = 0;
		creation->object == submit->objects.config && i < submit->plan.run.n_members; i++)
		if (submit->plan.members[i].is_cancelled)
			return true;
	return false;
}

static int kube_submit_on_marked(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct creation *creation = ctx;

	creation->call = NULL;
	if (err_is_set(&response->error))
		kube_submit_fail(creation, &response->error);
	else
		created(creation, TAKE(response->object));
	return 0;
}

/* The try that created it may have known of more members that are to begin. */
static void kube_submit_mark(struct creation *creation)
{
	AUTO_FREE char *path = kube_object_path(creation->object);
	AUTO_JSON struct json *body = json_object();

	json_set(body, "data", json_clone(json_get(creation->object, "data")));
	creation->call = kube_reconcile_send(creation->submit->kube, "PATCH", path, body,
		creation->submit->call->deadline_ms, kube_submit_on_marked, creation);
}

static int kube_submit_on_polled(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct creation *creation = ctx;

	creation->call = NULL;
	if (err_is_set(&response->error)) {
		creation->submit->is_unsure |= creation->is_job && is_unsure(&response->error);
		kube_submit_fail(creation,
			err_is_set(&creation->refusal) ? &creation->refusal : &response->error);
	} else if (kube_submit_is_ours(creation->submit, response->object)) {
		if (kube_submit_leaves_out(creation))
			kube_submit_mark(creation);
		else
			created(creation, TAKE(response->object));
	} else {
		AUTO_FREE char *path = kube_object_path(creation->object);
		AUTO_ERR struct err error = {0};
		err_set(&error, E_KUBE_EXISTS, "%s belongs to somebody else", path);
		err_hint(&error, "kubectl get --raw %s", path);
		kube_submit_fail(creation, &error);
	}
	return 0;
}

/* An object that is refused or exists already may have been created by an earlier try whose
 * response was lost. */
static void kube_submit_poll(struct creation *creation)
{
	AUTO_FREE char *path = kube_object_path(creation->object);

	creation->call = kube_reconcile_send(creation->submit->kube, "GET", path, NULL,
		creation->submit->call->deadline_ms, kube_submit_on_polled, creation);
}

static int on_created(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct creation *creation = ctx;

	creation->call = NULL;
	if (!err_is_set(&response->error)) {
		created(creation, TAKE(response->object));
		return 0;
	}
	if (response->error.id != E_KUBE_EXISTS)
		err_move(&creation->refusal, &response->error);
	/* An earlier try may have had an effect that nobody was told of. */
	if (creation->is_job && is_unsure(&creation->refusal))
		kube_submit_fail(creation, &creation->refusal);
	else
		kube_submit_poll(creation);
	return 0;
}

static void kube_submit_create(
	struct creation *creation, struct submit *submit, const struct json *object, bool is_job)
{
	static const char *const strict[] = {"fieldValidation", "Strict", NULL};

	*creation = (struct creation){.submit = submit,
		.object = object,
		.path = kube_object_collection(object),
		.is_job = is_job};
	const struct kube_request request = {
		.method = "POST",
		.path = creation->path,
		.query = strict,
		.body = object,
		.is_idempotent = true, /* by its name */
		.deadline_ms = submit->call->deadline_ms,
		.done = on_created,
		.ctx = creation,
	};
	submit->n_open++;
	creation->call = kube_start(submit->kube->cluster->client, &request);
}

static int kube_submit_start(struct target *target, const struct target_job *job,
	struct target_call *call, struct err *err)
{
	struct submit *submit = mem_alloc(1, sizeof(*submit));
	const struct json *before[KUBE_OBJECTS_MAX];

	*submit = (struct submit){
		.work = {kube_submit_do_submit_drop}, .kube = target_kube_of(target), .call = call};
	int r = kube_plan_make(submit->kube, job, &submit->plan, err);
	if (r == 0)
		r = kube_job_make(&submit->plan.run, &submit->objects, err);
	if (r == 0)
		r = kube_annotation_sending(submit->kube, &submit->plan.handle, err);
	if (r < 0) {
		kube_submit_do_submit_drop(&submit->work);
		return r;
	}
	if (submit->plan.run.may_move)
		kube_annotation_mark(submit->kube, &submit->plan.handle, KUBE_MARK_GATED);
	if (submit->objects.code[0])
		kube_annotation_mark(submit->kube, &submit->plan.handle, KUBE_MARK_CODE);
	submit->n_before = kube_objects_before(&submit->objects, before);
	target_call_begin(call, &submit->work);
	for (size_t i = 0; i < submit->n_before; i++)
		kube_submit_create(&submit->creations[i], submit, before[i], false);
	if (submit->n_before == 0)
		kube_submit_create(
			&submit->creations[KUBE_OBJECTS_MAX], submit, submit->objects.job, true);
	return 0;
}

int kube_submit(struct target *target, const struct target_job *job, struct target_call *call,
	struct err *err)
{
	struct kube_handle handle;
	int r = kube_handle_parse(target_kube_of(target), job->handle, &handle, err);

	if (r == 0 && handle.is_member)
		return err_set(err, E_TARGET_UNSUPPORTED,
			"%s is started with all members of its study", handle.run_id);
	return r < 0 ? r : kube_submit_start(target, job, call, err);
}

int kube_submit_study(struct target *target, const struct target_study *study,
	struct target_call *call, struct err *err)
{
	struct target_job first = *study->first;

	first.study = study;
	return kube_submit_start(target, &first, call, err);
}
