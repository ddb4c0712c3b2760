/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/preflight.h"
#include "targets/kube/kube_record_read.h"
#include "targets/kube/target_kube.h"

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
	char *id;                                     /* or NULL: all of this user */
	struct kube_call *lists[KUBE_KINDS], *review; /* lists: or the first attempt alone */
	struct json *objects[KUBE_KINDS];
	char *user; /* as the cluster calls this one; or NULL */
	struct err fault;
	size_t n_open;
};

static void drop(struct target_work *work)
{
	struct adoption *adoption = (struct adoption *)work;

	for (size_t i = 0; i < KUBE_KINDS; i++) {
		kube_cancel(adoption->lists[i]);
		json_free(adoption->objects[i]);
	}
	kube_cancel(adoption->review);
	err_done(&adoption->fault);
	free(adoption->user);
	free(adoption->id);
	free(adoption);
}

static bool is_own(const struct run *run)
{
	return json_get_bool(json_get(run->doc, "adopted"), "own", false);
}

/* A label says less than the annotation. */
static void keep_own(struct run_list *runs)
{
	size_t n = 0;

	for (size_t i = 0; i < runs->n; i++) {
		if (is_own(runs->v[i]))
			runs->v[n++] = runs->v[i];
		else
			run_free(runs->v[i]);
	}
	runs->n = n;
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
	if (!adoption->id)
		keep_own(adoption->ret);
	if (!adoption->id || adoption->ret->n)
		return 0;
	err_set(err, E_RUN_NOT_FOUND, "there is no run '%s' in namespace %s of target %s",
		adoption->id, place.kube_namespace, target->name);
	return err_hint(err, "kubectl -n %s get jobs -l app.kubernetes.io/managed-by=dlrun",
		place.kube_namespace);
}

static void answered(struct adoption *adoption)
{
	AUTO_ERR struct err fault = {0};
	int r;

	if (--adoption->n_open > 0)
		return;
	if (err_is_set(&adoption->fault))
		r = err_move(&fault, &adoption->fault);
	else
		r = read_runs(adoption, &fault);
	target_call_end(adoption->call, r, &fault);
}

static int on_one(void *ctx, struct kube_answer *answer, struct err *err);

/* A user who may not list Jobs may still be allowed to get one by its name. */
static bool ask_one(struct adoption *adoption)
{
	AUTO_FREE char *path = NULL;

	if (!adoption->id)
		return false;
	path = kube_kind_path(KUBE_KIND_JOB, adoption->kube->kube_namespace, adoption->id);
	const struct kube_request request = {.method = "GET",
		.path = path,
		.deadline_ms = adoption->call->deadline_ms,
		.done = on_one,
		.ctx = adoption};
	adoption->lists[KUBE_KIND_JOB] = kube_start(adoption->kube->cluster->client, &request);
	return true;
}

static int on_one(void *ctx, struct kube_answer *answer, struct err *err)
{
	struct adoption *adoption = ctx;
	struct json *list = json_object(), *items = json_array();

	(void)err;
	adoption->lists[KUBE_KIND_JOB] = NULL;
	json_set(list, "items", items);
	adoption->objects[KUBE_KIND_JOB] = list;
	if (!err_is_set(&answer->fault))
		json_add(items, TAKE(answer->object));
	else if (answer->fault.id != E_KUBE_NOT_FOUND)
		err_move(&adoption->fault, &answer->fault);
	answered(adoption);
	return 0;
}

static int on_list(struct adoption *adoption, enum kube_kind kind, struct kube_answer *answer)
{
	adoption->lists[kind] = NULL;
	if (kind == KUBE_KIND_JOB && answer->fault.id == E_KUBE_DENIED && ask_one(adoption))
		return 0;
	adoption->objects[kind] = TAKE(answer->object);
	if (err_is_set(&answer->fault) && kind == KUBE_KIND_JOB)
		err_move(&adoption->fault, &answer->fault);
	answered(adoption);
	return 0;
}

static int on_jobs(void *ctx, struct kube_answer *answer, struct err *err)
{
	(void)err;
	return on_list(ctx, KUBE_KIND_JOB, answer);
}

/* Before its first start and between two a JobSet has no Job. Where it cannot be asked for, all of
 * its Jobs still tell. */
static int on_jobsets(void *ctx, struct kube_answer *answer, struct err *err)
{
	(void)err;
	return on_list(ctx, KUBE_KIND_JOBSET, answer);
}

/* Old clusters do not tell. */
static int on_review(void *ctx, struct kube_answer *answer, struct err *err)
{
	struct adoption *adoption = ctx;
	(void)err;
	adoption->review = NULL;
	adoption->user = mem_strdup(kube_who_name(answer->object));
	answered(adoption);
	return 0;
}

static void ask_who(struct adoption *adoption, int64_t deadline_ms)
{
	AUTO_JSON struct json *body = kube_who_ask();
	const struct kube_request request = {
		.method = "POST",
		.path = KUBE_WHO_PATH,
		.body = body,
		.is_idempotent = true,
		.deadline_ms = deadline_ms,
		.done = on_review,
		.ctx = adoption,
	};

	adoption->review = kube_start(adoption->kube->cluster->client, &request);
}

static void ask_list(struct adoption *adoption, enum kube_kind kind, int64_t deadline_ms)
{
	static kube_done_fn *const done[KUBE_KINDS] = {
		[KUBE_KIND_JOB] = on_jobs, [KUBE_KIND_JOBSET] = on_jobsets};
	AUTO_FREE char *path = kube_kind_collection(kind, adoption->kube->kube_namespace);
	AUTO_FREE char *selector =
		adoption->id
			? mem_printf("app.kubernetes.io/managed-by=dlrun," KUBE_LABEL_RUN "=%s",
				  adoption->id)
			: mem_strdup("app.kubernetes.io/managed-by=dlrun");
	const char *const query[] = {"labelSelector", selector, NULL};

	adoption->lists[kind] = kube_list(adoption->kube->cluster->client, path, query, JOBS_MAX,
		deadline_ms, done[kind], adoption);
}

int kube_adopt(struct target *target, const char *id, struct run_list *ret,
	struct target_call *call, struct err *err)
{
	struct adoption *adoption = mem_alloc(1, sizeof(*adoption));

	(void)err;
	*adoption = (struct adoption){.work = {drop},
		.kube = target_kube_of(target),
		.call = call,
		.ret = ret,
		.id = mem_strdup(id),
		.n_open = KUBE_KINDS + 1};
	target_call_begin(call, &adoption->work);
	for (size_t i = 0; i < KUBE_KINDS; i++)
		ask_list(adoption, (enum kube_kind)i, call->deadline_ms);
	ask_who(adoption, call->deadline_ms);
	return 0;
}
