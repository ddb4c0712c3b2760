/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/record/foreign.h"
#include "core/record/setup_key.h"
#include "kube/job/job.h"
#include "kube/job/preflight.h"
#include "kube/status/object.h"
#include "kube/status/status.h"
#include "targets/kube/kube_record_read.h"
#include "targets/kube/target_kube.h"

/*
 * Records in the cluster
 */

enum { USER_MAX = 4096 };

static struct json *kube_adopt_parse(const struct json *object, const char *key)
{
	const char *text = kube_annotation(object, key);
	struct json *json = NULL;

	if (!text || json_parse(text, strlen(text), KUBE_RECORD_MAX, key, &json, NULL) < 0)
		return NULL;
	if (json_kind(json) == JSON_OBJECT)
		return json;
	json_free(json);
	return NULL;
}

/*
 * Runs
 */

/* Whether its first attempt was started with those of its study. */
static bool kube_adopt_is_member(const struct run *run, char study[static RUN_ID_SIZE], int *index)
{
	const struct json *of = json_get(run->spec, "study");
	int64_t nodes = json_get_int(json_get(run->spec, "resources"), "nodes", 1);

	return nodes <= 1 && kube_member_study(run_id(run), study, index) &&
	       str_eq(json_get_str(of, "id"), study) && json_get_int(of, "index", -1) == *index;
}

/* All attempts up to the newest that there is a Job of. */
static void kube_adopt_add_attempts(
	struct run *run, const struct kube_record_place *place, const struct kube_handle *newest)
{
	char study[RUN_ID_SIZE];
	int index;
	bool is_member = kube_adopt_is_member(run, study, &index);

	for (int i = 1; i <= newest->attempt && i <= KUBE_RECORD_ATTEMPTS_MAX; i++) {
		AUTO_FREE char *name = kube_job_name(newest->run_id, i);
		AUTO_FREE char *handle =
			i == 1 && is_member ? kube_handle_member_text(place->server_id,
						      place->kube_namespace, study, index)
					    : kube_handle_text(place->server_id,
						      place->kube_namespace, newest->kind, name);
		run_add_attempt(run, handle);
	}
}

static struct run *kube_adopt_make_run(const struct json *object, const struct kube_handle *handle,
	const struct kube_record_place *place, const struct json *record, const struct json *spec)
{
	const char *user = kube_annotation(object, KUBE_ANNOTATION_USER);
	AUTO_FREE char *name = mem_strndup(handle->run_id, strlen(handle->run_id) - RUN_SUFFIX - 1);
	struct run *run = run_new(handle->run_id, name);
	struct json *adopted;

	foreign_take(run, record, spec, NULL);
	json_set(run->doc, "target", json_clone(place->target));
	if (!json_get(json_get(run->doc, "target"), "hosts"))
		json_set(json_sub(run->doc, "target"), "hosts", json_array());
	adopted = json_sub(run->doc, "adopted");
	json_set_str(adopted, "user", user && strlen(user) <= USER_MAX ? user : NULL);
	json_set_bool(adopted, "own",
		(user && (str_eq(user, place->cluster_user) || str_eq(user, place->login))));
	run_set_state(run, RUN_QUEUED);
	kube_adopt_add_attempts(run, place, handle);
	return run;
}

/* The handle that the object's name and labels agree on. */
static bool read_handle(const struct json *object, enum kube_kind list,
	const struct kube_record_place *place, struct kube_handle *ret)
{
	const char *name = kube_str_at(object, "metadata.name");
	const char *jobset = list == KUBE_KIND_JOBSET ? name : kube_label(object, KUBE_JOBSET_NAME);
	enum kube_kind kind = jobset ? KUBE_KIND_JOBSET : KUBE_KIND_JOB;
	struct kube_cluster cluster = {0};
	const struct target_kube kube = {.cluster = &cluster};

	if (!name || !str_eq(kube_label(object, "app.kubernetes.io/managed-by"), KUBE_MANAGED_BY))
		return false;
	AUTO_FREE char *text = kube_handle_text(
		place->server_id, place->kube_namespace, kind, jobset ? jobset : name);
	memcpy(cluster.server_id, place->server_id, strlen(place->server_id) + 1);
	return kube_handle_parse(&kube, text, ret, NULL) == 0 &&
	       (list == KUBE_KIND_JOBSET || str_eq(ret->job, name)) &&
	       str_eq(kube_label(object, KUBE_LABEL_RUN), ret->run_id);
}

/* An attempt that is older than the one that is known already says nothing new. */
static bool kube_adopt_is_known(struct run_list *runs, const struct kube_handle *handle)
{
	for (size_t i = 0; i < runs->n; i++) {
		if (!str_eq(run_id(runs->v[i]), handle->run_id))
			continue;
		if (run_attempts(runs->v[i]) >= handle->attempt)
			return true;
		run_free(runs->v[i]);
		runs->v[i] = runs->v[--runs->n];
		return false;
	}
	return false;
}

void kube_record_read(const struct json *objects, enum kube_kind kind, const char *id,
	const struct kube_record_place *place, struct run_list *ret)
{
	for (const struct json *at = kube_first(objects, "items"); at; at = json_next(at)) {
		struct kube_handle handle;

		if (!read_handle(at, kind, place, &handle) || (id && !str_eq(id, handle.run_id)) ||
			kube_label(at, KUBE_LABEL_STUDY) || setup_id_is_own(handle.run_id) ||
			kube_adopt_is_known(ret, &handle))
			continue;
		AUTO_JSON struct json *record = kube_adopt_parse(at, KUBE_ANNOTATION_RECORD);
		AUTO_JSON struct json *spec = kube_adopt_parse(at, KUBE_ANNOTATION_SPEC);
		*vec_push(ret) = kube_adopt_make_run(at, &handle, place, record, spec);
	}
}

/*
 * Members of studies
 */

/* The parts of the specification that are the member's own. */
static void kube_adopt_set_member(struct json *spec, int index, bool is_line,
	const struct strv *words, const struct strv *env)
{
	AUTO_STRV struct strv all = {0}, line = {0};

	/* A line for the shell is the last word. */
	if (is_line)
		strv_add(&line, words->v[words->n - 1]);
	words_set(spec, "command", is_line ? &line : words);
	if (words_get(spec, "env", &all, NULL) < 0)
		return;
	for (size_t i = 0; i < env->n; i++) {
		size_t len = strcspn(env->v[i], "=") + 1;
		for (size_t k = 0; k < all.n; k++)
			if (strncmp(all.v[k], env->v[i], len) == 0)
				REPLACE(all.v[k], mem_strdup(env->v[i]));
	}
	words_set(spec, "env", &all);
	json_set_int(json_sub(spec, "study"), "index", index);
}

/* record and spec: of the first member. */
static struct run *kube_adopt_make_member(const struct json *job, const struct json *config,
	const struct kube_handle *handle, const struct kube_record_place *place)
{
	AUTO_JSON struct json *record = kube_adopt_parse(job, KUBE_ANNOTATION_RECORD);
	AUTO_JSON struct json *spec = kube_adopt_parse(job, KUBE_ANNOTATION_SPEC);
	AUTO_JSON struct json *params = kube_member_params(config, handle->index);
	AUTO_STRV struct strv words = {0}, env = {0};

	if (!record || !spec || kube_member_read(config, handle->index, &words, &env, NULL) < 0)
		return NULL;
	kube_adopt_set_member(
		spec, handle->index, json_get_bool(spec, "shell", false), &words, &env);
	json_set(record, "command", json_clone(json_get(spec, "command")));
	json_remove(record, "params");
	if (params)
		json_set(record, "params", TAKE(params));
	json_set_str(record, "group", handle->owner);
	struct run *run = kube_adopt_make_run(job, handle, place, record, spec);
	struct json *study = json_sub(run->doc, "study");
	json_set_str(study, "id", handle->owner);
	json_set_int(study, "index", handle->index);
	return run;
}

static void kube_adopt_read_study(const struct json *job, const struct json *config, const char *id,
	const struct kube_record_place *place, struct run_list *ret)
{
	int64_t n = json_get_int(json_get(job, "spec"), "completions", 0);
	struct kube_handle handle, study;

	if (!read_handle(job, KUBE_KIND_JOB, place, &study) || study.attempt != 1 ||
		!str_eq(kube_label(job, KUBE_LABEL_STUDY), study.run_id) ||
		strlen(study.run_id) > RUN_ID_SIZE - 1 - RUN_INDEX_MAX)
		return;
	for (int i = 0; i < n && i < KUBE_MEMBERS_MAX; i++) {
		handle = study;
		handle.is_member = true;
		handle.index = i;
		run_member_id(study.run_id, (size_t)i, handle.run_id);
		if ((id && !str_eq(id, handle.run_id)) || kube_adopt_is_known(ret, &handle))
			continue;
		struct run *run = kube_adopt_make_member(job, config, &handle, place);
		if (run)
			*vec_push(ret) = run;
	}
}

void kube_record_read_studies(const struct json *jobs, const struct json *configs, const char *id,
	const struct kube_record_place *place, struct run_list *ret)
{
	for (const struct json *at = kube_first(jobs, "items"); at; at = json_next(at)) {
		const char *study = kube_label(at, KUBE_LABEL_STUDY);
		const struct json *config = study ? kube_item(configs, study) : NULL;

		if (config && str_eq(kube_label(config, KUBE_LABEL_STUDY), study))
			kube_adopt_read_study(at, config, id, place, ret);
	}
}

/*
 * Runs that the cluster knows and the store here does not: a colleague's, or this user's from
 * another machine.
 */

enum { JOBS_MAX = 20000 };

struct adoption {
	struct target_work work;
	struct target_kube *kube;
	struct target_call *call;
	struct run_list *ret;
	char *id; /* or NULL: all of this user */
	/* Of each kind; or the first attempt alone. */
	struct adoption_list {
		struct adoption *adoption;
		enum kube_kind kind;
		struct kube_call *call;
	} lists[KUBE_KINDS];
	struct kube_call *review;
	struct json *objects[KUBE_KINDS];
	struct kube_call *configs_call; /* of studies */
	struct json *configs;
	bool has_configs; /* they were asked for */
	char *user;       /* as the cluster calls this one; or NULL */
	struct err error;
	size_t n_open;
};

static void kube_adopt_drop(struct target_work *work)
{
	struct adoption *adoption = (struct adoption *)work;

	for (size_t i = 0; i < KUBE_KINDS; i++) {
		kube_cancel(adoption->lists[i].call);
		json_free(adoption->objects[i]);
	}
	kube_cancel(adoption->review);
	kube_cancel(adoption->configs_call);
	json_free(adoption->configs);
	err_done(&adoption->error);
	free(adoption->user);
	free(adoption->id);
	free(adoption);
}

static int read_runs(struct adoption *adoption, struct err *err)
{
	struct target *target = &adoption->kube->target;
	AUTO_JSON struct json *json = json_object();
	const struct kube_record_place place = {
		.server_id = adoption->kube->cluster->server_id,
		.kube_namespace = adoption->kube->kube_namespace,
		.target = json,
		.login = adoption->kube->session->env.user,
		.cluster_user = adoption->user,
	};

	json_set_str(json, "kind", target->ops->kind);
	json_set_str(json, "name", target->name);
	target->ops->describe(target, json);
	for (size_t i = 0; i < KUBE_KINDS; i++)
		kube_record_read(adoption->objects[i], (enum kube_kind)i, adoption->id, &place,
			adoption->ret);
	kube_record_read_studies(adoption->objects[KUBE_KIND_JOB], adoption->configs, adoption->id,
		&place, adoption->ret);
	if (!adoption->id) {
		/* A label says less than the annotation. */
		struct run_list *runs = adoption->ret;
		size_t n = 0;

		for (size_t i = 0; i < runs->n; i++) {
			if (json_get_bool(json_get(runs->v[i]->doc, "adopted"), "own", false))
				runs->v[n++] = runs->v[i];
			else
				run_free(runs->v[i]);
		}
		runs->n = n;
	}
	if (!adoption->id || adoption->ret->n)
		return 0;
	err_set(err, E_RUN_NOT_FOUND, "there is no run '%s' in namespace %s of target %s",
		adoption->id, place.kube_namespace, target->name);
	return err_hint(err, "kubectl -n %s get jobs -l app.kubernetes.io/managed-by=dlrun",
		place.kube_namespace);
}

static bool kube_adopt_has_study(const struct adoption *adoption)
{
	const struct json *at = kube_first(adoption->objects[KUBE_KIND_JOB], "items");

	for (; at; at = json_next(at))
		if (kube_label(at, KUBE_LABEL_STUDY))
			return true;
	return false;
}

static void kube_adopt_answered(struct adoption *adoption);

/* Members of studies are not known where ConfigMaps may not be listed. */
static int kube_adopt_on_configs(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct adoption *adoption = ctx;

	adoption->configs_call = NULL;
	adoption->configs = TAKE(response->object);
	kube_adopt_answered(adoption);
	return 0;
}

static void kube_adopt_answered(struct adoption *adoption)
{
	AUTO_ERR struct err error = {0};
	int r;

	if (--adoption->n_open > 0)
		return;
	if (!adoption->has_configs && kube_adopt_has_study(adoption)) {
		char study[RUN_ID_SIZE];
		int index;
		bool is_one = adoption->id && kube_member_study(adoption->id, study, &index);
		AUTO_FREE char *path = kube_path(
			"/api/v1/namespaces/%s/configmaps", adoption->kube->kube_namespace);
		AUTO_FREE char *selector = is_one ? mem_printf(KUBE_LABEL_STUDY "=%s", study)
						  : mem_strdup(KUBE_LABEL_STUDY);
		const char *const query[] = {"labelSelector", selector, NULL};
		adoption->has_configs = true;
		adoption->n_open++;
		adoption->configs_call = kube_list(adoption->kube->cluster->client, path, query,
			JOBS_MAX, adoption->call->deadline_ms, kube_adopt_on_configs, adoption);
		return;
	}
	if (err_is_set(&adoption->error))
		r = err_move(&error, &adoption->error);
	else
		r = read_runs(adoption, &error);
	target_call_end(adoption->call, r, &error);
}

static int kube_adopt_on_one(void *ctx, struct kube_response *response, struct err *err);

/* A user who may not list Jobs may still be allowed to get one by its name. */
static bool kube_adopt_query_one(struct adoption *adoption)
{
	AUTO_FREE char *path = NULL;

	if (!adoption->id)
		return false;
	path = kube_kind_path(KUBE_KIND_JOB, adoption->kube->kube_namespace, adoption->id);
	const struct kube_request request = {.method = "GET",
		.path = path,
		.deadline_ms = adoption->call->deadline_ms,
		.done = kube_adopt_on_one,
		.ctx = adoption};
	adoption->lists[KUBE_KIND_JOB].call = kube_start(adoption->kube->cluster->client, &request);
	return true;
}

static int kube_adopt_on_one(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct adoption *adoption = ctx;
	struct json *list = json_object(), *items = json_array();

	adoption->lists[KUBE_KIND_JOB].call = NULL;
	json_set(list, "items", items);
	adoption->objects[KUBE_KIND_JOB] = list;
	if (!err_is_set(&response->error))
		json_add(items, TAKE(response->object));
	else if (response->error.id != E_KUBE_NOT_FOUND)
		err_move(&adoption->error, &response->error);
	kube_adopt_answered(adoption);
	return 0;
}

/* Before its first start and between two a JobSet has no Job. Where it cannot be asked for, all of
 * its Jobs still tell. */
static int kube_adopt_on_list(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct adoption_list *list = ctx;
	struct adoption *adoption = list->adoption;
	enum kube_kind kind = list->kind;

	list->call = NULL;
	if (kind == KUBE_KIND_JOB && response->error.id == E_KUBE_DENIED &&
		kube_adopt_query_one(adoption))
		return 0;
	adoption->objects[kind] = TAKE(response->object);
	kube_join_roles(adoption->objects[kind]);
	if (err_is_set(&response->error) && kind == KUBE_KIND_JOB)
		err_move(&adoption->error, &response->error);
	kube_adopt_answered(adoption);
	return 0;
}

/* Old clusters do not tell. */
static int on_review(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct adoption *adoption = ctx;
	adoption->review = NULL;
	adoption->user = mem_strdup(kube_who_name(response->object));
	kube_adopt_answered(adoption);
	return 0;
}

/* Of one run, or all; the first attempt of a member is in the Job of its study. */
static char *kube_adopt_selector(const char *id)
{
	static const char all[] = "app.kubernetes.io/managed-by=" KUBE_MANAGED_BY;
	char study[RUN_ID_SIZE];
	int index;

	if (!id)
		return mem_strdup(all);
	if (!kube_member_study(id, study, &index))
		return mem_printf("%s," KUBE_LABEL_RUN "=%s", all, id);
	return mem_printf("%s," KUBE_LABEL_RUN " in (%s,%s)", all, id, study);
}

int kube_adopt(struct target *target, const char *id, struct run_list *ret,
	struct target_call *call, struct err *err UNUSED)
{
	struct adoption *adoption = mem_alloc(1, sizeof(*adoption));

	*adoption = (struct adoption){.work = {kube_adopt_drop},
		.kube = target_kube_of(target),
		.call = call,
		.ret = ret,
		.id = mem_strdup(id),
		.n_open = KUBE_KINDS + 1};
	target_call_begin(call, &adoption->work);
	for (size_t i = 0; i < KUBE_KINDS; i++) {
		AUTO_FREE char *path =
			kube_kind_collection((enum kube_kind)i, adoption->kube->kube_namespace);
		AUTO_FREE char *selector = kube_adopt_selector(adoption->id);
		const char *const query[] = {"labelSelector", selector, NULL};

		adoption->lists[i] = (struct adoption_list){adoption, (enum kube_kind)i, NULL};
		adoption->lists[i].call = kube_list(adoption->kube->cluster->client, path, query,
			JOBS_MAX, call->deadline_ms, kube_adopt_on_list, &adoption->lists[i]);
	}
	AUTO_JSON struct json *body = kube_who_query();
	const struct kube_request request = {
		.method = "POST",
		.path = KUBE_WHO_PATH,
		.body = body,
		.is_idempotent = true,
		.deadline_ms = call->deadline_ms,
		.done = on_review,
		.ctx = adoption,
	};

	adoption->review = kube_start(adoption->kube->cluster->client, &request);
	return 0;
}
