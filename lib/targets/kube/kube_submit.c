/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "targets/kube/kube_mend.h"

/*
 * Making the objects of an attempt, in the order of job.h: what its pods need, then the Job,
 * which is the commit point, then ownership. Each request can be repeated: an object of that name
 * that carries this run's labels is the one that an earlier try has made.
 */

enum { BEFORE_MAX = 3 };

struct submit;

/* An object to create. */
struct creation {
	struct submit *submit;
	const struct json *object;
	char *path; /* of the collection */
	struct kube_call *call;
	struct err refusal; /* that came after tries without an answer */
	bool is_job;
};

struct submit {
	struct target_work work;
	struct target_kube *kube;
	struct target_call *call;
	struct kube_plan plan;
	struct kube_objects objects;
	struct creation creations[BEFORE_MAX + 1];
	size_t n_before;
	size_t n_open;
	struct err fault;
	struct json *job; /* as the server has it */
	bool is_unadopted;
	bool is_unsure; /* whether the cluster has the Job */
	struct kube_mend *mend;
};

static void submit_free(struct submit *submit)
{
	for (size_t i = 0; i < ARRAY_LEN(submit->creations); i++) {
		kube_cancel(submit->creations[i].call);
		free(submit->creations[i].path);
		err_done(&submit->creations[i].refusal);
	}
	kube_mend_cancel(submit->mend);
	kube_plan_done(&submit->plan);
	kube_objects_done(&submit->objects);
	json_free(submit->job);
	err_done(&submit->fault);
	free(submit);
}

static void drop(struct target_work *work)
{
	submit_free((struct submit *)work);
}

static void finish(struct submit *submit)
{
	struct target_call *call = submit->call;
	AUTO_ERR struct err fault = {0};
	int r = err_is_set(&submit->fault) ? -(int)submit->fault.code : 0;

	if (r < 0)
		err_move(&fault, &submit->fault);
	target_call_end(call, r, &fault);
}

/*
 * Ownership: with the Job its Secret and Service go, too
 */

static void on_stopped(void *ctx, struct err *fault)
{
	struct submit *submit = ctx;

	err_clear(fault); /* who looks at the run next repeats it */
	submit->mend = NULL;
	finish(submit);
}

/* A cancel in the meantime found no Job to remove: remove it now. */
static void adopted_all(struct submit *submit)
{
	const struct kube_mend_request request = {
		.handle = &submit->plan.handle,
		.what = KUBE_MEND_JOB | KUBE_MEND_PARTS,
		.in_foreground = true,
		.deadline_ms = submit->call->deadline_ms,
		.done = on_stopped,
		.ctx = submit,
	};

	if (!submit->is_unadopted)
		kube_note_accepted(submit->kube, &submit->plan.handle, true);
	if (kube_is_cancelled(submit->kube, &submit->plan.handle))
		submit->mend = kube_mend_start(submit->kube, &request);
	else
		finish(submit);
}

static int on_adopted(void *ctx, struct kube_answer *answer, struct err *err)
{
	struct creation *creation = ctx;
	struct submit *submit = creation->submit;

	(void)err;
	creation->call = NULL;
	submit->is_unadopted |= err_is_set(&answer->fault);
	if (--submit->n_open == 0)
		adopted_all(submit);
	return 0;
}

static void adopt_all(struct submit *submit)
{
	const struct json *list[BEFORE_MAX];
	size_t n = kube_objects_adopt(&submit->objects, list);
	AUTO_JSON struct json *owner = n > 0 ? kube_job_owner(submit->job) : NULL;

	for (size_t i = 0; i < n; i++) {
		AUTO_FREE char *path = kube_object_path(list[i]);
		struct creation *creation = &submit->creations[i];
		const struct kube_request request = {
			.method = "PATCH",
			.path = path,
			.body = owner,
			.content_type = "application/merge-patch+json",
			.is_idempotent = true,
			.deadline_ms = submit->call->deadline_ms,
			.done = on_adopted,
			.ctx = creation,
		};
		creation->submit = submit;
		submit->n_open++;
		creation->call = kube_start(submit->kube->cluster->client, &request);
	}
	if (n == 0)
		adopted_all(submit);
}

static void accepted(struct submit *submit)
{
	/* Without it a Job that is removed by others would look like one that never was. */
	kube_note_accepted(submit->kube, &submit->plan.handle, false);
	adopt_all(submit);
}

/*
 * Creating
 */

static void create(
	struct creation *creation, struct submit *submit, const struct json *object, bool is_job);

static void created_all(struct submit *submit)
{
	if (err_is_set(&submit->fault) && !submit->is_unsure)
		kube_note_refused(submit->kube, &submit->plan.handle);
	if (err_is_set(&submit->fault))
		finish(submit);
	else if (submit->job)
		accepted(submit);
	else
		create(&submit->creations[BEFORE_MAX], submit, submit->objects.job, true);
}

static void created(struct creation *creation, struct json *take)
{
	struct submit *submit = creation->submit;

	if (creation->is_job && take)
		submit->job = TAKE(take);
	json_free(take);
	if (--submit->n_open == 0)
		created_all(submit);
}

static bool is_unsure(const struct err *fault)
{
	return fault->id == E_KUBE_UNREACHABLE || fault->id == E_KUBE_SERVER ||
	       fault->id == E_KUBE_BUSY || fault->id == E_KUBE_ANSWER;
}

static void fail(struct creation *creation, struct err *fault)
{
	creation->submit->is_unsure |= creation->is_job && is_unsure(fault);
	if (!err_is_set(&creation->submit->fault))
		err_move(&creation->submit->fault, fault);
	created(creation, NULL);
}

static bool is_ours(const struct submit *submit, const struct json *object)
{
	const struct json *labels = json_get(json_get(object, "metadata"), "labels");
	AUTO_FREE char *attempt = mem_printf("%d", submit->plan.run.attempt);

	return str_eq(json_get_str(labels, KUBE_LABEL_RUN), submit->plan.run.run_id) &&
	       str_eq(json_get_str(labels, KUBE_LABEL_ATTEMPT), attempt);
}

static int on_looked(void *ctx, struct kube_answer *answer, struct err *err)
{
	struct creation *creation = ctx;

	(void)err;
	creation->call = NULL;
	if (err_is_set(&answer->fault)) {
		creation->submit->is_unsure |= creation->is_job && is_unsure(&answer->fault);
		fail(creation,
			err_is_set(&creation->refusal) ? &creation->refusal : &answer->fault);
	} else if (is_ours(creation->submit, answer->object)) {
		created(creation, TAKE(answer->object));
	} else {
		AUTO_FREE char *path = kube_object_path(creation->object);
		AUTO_ERR struct err fault = {0};
		err_set(&fault, E_KUBE_EXISTS, "%s belongs to somebody else", path);
		err_hint(&fault, "kubectl get --raw %s", path);
		fail(creation, &fault);
	}
	return 0;
}

/* An object that is refused or exists already may have been created by an earlier try whose
 * response was lost. */
static void look(struct creation *creation)
{
	AUTO_FREE char *path = kube_object_path(creation->object);
	const struct kube_request request = {
		.method = "GET",
		.path = path,
		.deadline_ms = creation->submit->call->deadline_ms,
		.done = on_looked,
		.ctx = creation,
	};

	creation->call = kube_start(creation->submit->kube->cluster->client, &request);
}

static int on_created(void *ctx, struct kube_answer *answer, struct err *err)
{
	struct creation *creation = ctx;

	(void)err;
	creation->call = NULL;
	if (!err_is_set(&answer->fault)) {
		created(creation, TAKE(answer->object));
		return 0;
	}
	if (answer->fault.id != E_KUBE_EXISTS)
		err_move(&creation->refusal, &answer->fault);
	/* An earlier try may have had an effect that nobody was told of. */
	if (creation->is_job && is_unsure(&creation->refusal))
		fail(creation, &creation->refusal);
	else
		look(creation);
	return 0;
}

static void create(
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

int kube_submit(struct target *target, const struct target_job *job, struct target_call *call,
	struct err *err)
{
	struct submit *submit = mem_alloc(1, sizeof(*submit));
	const struct json *before[BEFORE_MAX];

	*submit = (struct submit){.work = {drop}, .kube = target_kube_of(target), .call = call};
	int r = kube_plan_make(submit->kube, job, &submit->plan, err);
	if (r == 0)
		r = kube_job_make(&submit->plan.run, &submit->objects, err);
	if (r < 0) {
		submit_free(submit);
		return r;
	}
	r = kube_note_sending(submit->kube, &submit->plan.handle, err);
	if (r < 0) {
		submit_free(submit);
		return r;
	}
	submit->n_before = kube_objects_before(&submit->objects, before);
	target_call_begin(call, &submit->work);
	for (size_t i = 0; i < submit->n_before; i++)
		create(&submit->creations[i], submit, before[i], false);
	if (submit->n_before == 0)
		create(&submit->creations[BEFORE_MAX], submit, submit->objects.job, true);
	return 0;
}
