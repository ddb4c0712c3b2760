/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/spec.h"
#include "kube/job/preflight.h"
#include "targets/kube/target_kube.h"

/*
 * Whether a run could be in the cluster, asked in parallel while its image is made and pushed. What
 * does not answer in time counts as not known. A list of thousands of nodes is not waited for: the
 * state of a run that fits none says so, too.
 */

enum { LIST_MAX = 20000, CHECK_LIMIT_MS = 5000, LISTS_MS = 300 };

struct check;

struct asked {
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
	struct asked *asked;
	struct loop_timer *timer;
	struct strv *notes; /* the caller's */
	struct err silence; /* why there is no answer, as long as there is none */
	bool is_heard;
	size_t n_open;
	size_t n_needed; /* of those that are open: all but lists */
	int64_t deadline_ms;
};

static void drop(struct target_work *work)
{
	struct check *check = (struct check *)work;

	loop_remove_timer(check->kube->target.loop, check->timer);
	for (size_t i = 0; i < check->questions.n; i++) {
		kube_cancel(check->asked[i].call);
		json_free(check->asked[i].object);
	}
	free(check->asked);
	kube_questions_done(&check->questions);
	err_done(&check->silence);
	kube_plan_done(&check->plan);
	free(check);
}

/*
 * The verdict
 */

static void learn(struct check *check, const struct kube_reply *replies)
{
	struct target_kube *kube = check->kube;
	struct kube_surroundings found = {0};

	kube_preflight_surroundings(&check->questions, replies, &found);
	free(kube->enforced);
	kube->enforced = found.enforced ? mem_strdup(found.enforced) : NULL;
	check->plan.run.enforced = kube->enforced;
	free(kube->user);
	kube->user = found.user ? mem_strdup(found.user) : NULL;
	kube->takes_jobset = found.jobset;
	check->plan.run.jobset = found.jobset;
}

static int judge(struct check *check, struct err *err)
{
	AUTO_FREE struct kube_reply *replies = mem_alloc(check->questions.n + 1, sizeof(*replies));
	AUTO_KUBE_FINDINGS struct kube_findings findings = {0};
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};

	for (size_t i = 0; i < check->questions.n; i++)
		replies[i] = check->asked[i].reply;
	learn(check, replies);
	int r = kube_job_make(&check->plan.run, &objects, err);
	if (r < 0)
		return r;
	kube_preflight_judge(&check->plan.run, &objects, &check->questions, replies, &findings);
	if (findings.problems.n > 0)
		return err_copy(err, &findings.problems.v[0]);
	for (size_t i = 0; i < objects.notes.n; i++)
		strv_add(check->notes, objects.notes.v[i]);
	for (size_t i = 0; i < findings.notes.n; i++)
		strv_add(check->notes, findings.notes.v[i]);
	return 0;
}

/* No response, or an unknown user (401): later requests will not get through either. */
static void hear(struct check *check, struct kube_answer *answer)
{
	bool is_answer = answer->status != 0 && answer->status != 401;

	check->is_heard |= is_answer;
	if (!is_answer && !err_is_set(&check->silence))
		err_move(&check->silence, &answer->fault);
}

/* A login may take its time; who sends the Job waits for it. */
static int say_unchecked(struct check *check)
{
	char time[32];

	strv_addf(check->notes, "nothing was checked in the cluster %s: no answer within %s",
		check->kube->cluster->access.cluster, duration_text(CHECK_LIMIT_MS, time));
	return 0;
}

static void finish(struct check *check)
{
	AUTO_ERR struct err fault = {0};
	int r;

	if (check->is_heard)
		r = judge(check, &fault);
	else if (err_is_set(&check->silence))
		r = err_move(&fault, &check->silence);
	else
		r = say_unchecked(check);

	target_call_end(check->call, r, &fault);
}

/*
 * Asking
 */

/* With what is known by then. */
static int on_late(void *ctx, struct err *err)
{
	struct check *check = ctx;

	(void)err;
	check->timer = NULL;
	finish(check);
	return 0;
}

static void wait_until(struct check *check, int64_t end_ms)
{
	struct loop *loop = check->kube->target.loop;

	loop_remove_timer(loop, check->timer);
	check->timer = loop_add_timer(loop, end_ms, on_late, check);
}

static bool is_needed(const struct check *check, const struct asked *asked)
{
	return !check->questions.v[asked - check->asked].is_list;
}

static void ask(struct check *check, size_t i);

static void ask_rights(struct check *check, const struct asked *asked)
{
	size_t n = check->questions.n;

	kube_preflight_ask_rights(&check->plan.run, &check->questions.v[asked - check->asked],
		&asked->reply, &check->questions);
	for (size_t i = n; i < check->questions.n; i++)
		ask(check, i);
}

static int on_answer(void *ctx, struct kube_answer *answer, struct err *err)
{
	struct asked *asked = ctx;
	struct check *check = asked->check;

	(void)err;
	asked->call = NULL;
	asked->object = TAKE(answer->object);
	asked->reply = (struct kube_reply){answer->status, asked->object};
	hear(check, answer);
	check->n_open--;
	if (is_needed(check, asked))
		check->n_needed--;
	ask_rights(check, asked);
	if (check->n_open == 0)
		finish(check);
	else if (check->n_needed == 0 && is_needed(check, asked))
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

static void ask(struct check *check, size_t i)
{
	const struct kube_question *question = &check->questions.v[i];
	struct kube_client *client = check->kube->cluster->client;
	struct asked *asked = &check->asked[i];
	struct kube_request request = request_of(question, check->deadline_ms);

	request.done = on_answer;
	request.ctx = asked;
	asked->check = check;
	check->n_open++;
	if (!question->is_list)
		check->n_needed++;
	if (question->is_list)
		asked->call = kube_list(client, question->path, NULL, LIST_MAX, check->deadline_ms,
			on_answer, asked);
	else
		asked->call = kube_start(client, &request);
}

int kube_check(struct target *target, const struct target_job *job, struct strv *ret_notes,
	struct target_call *call, struct err *err)
{
	struct check *check = mem_alloc(1, sizeof(*check));
	size_t n;

	*check = (struct check){.work = {drop},
		.kube = target_kube_of(target),
		.call = call,
		.notes = ret_notes,
		.deadline_ms = clock_ms() + CHECK_LIMIT_MS};
	int r = kube_plan_make(check->kube, job, &check->plan, err);
	if (r < 0) {
		drop(&check->work);
		return r;
	}
	kube_preflight_ask(&check->plan.run, &check->questions);
	n = check->questions.n;
	check->asked = mem_alloc(n + KUBE_RIGHTS_MAX, sizeof(*check->asked));
	target_call_begin(call, &check->work);
	wait_until(check, check->deadline_ms);
	for (size_t i = 0; i < n; i++)
		ask(check, i);
	return 0;
}

/* Without a response in time support for JobSets is not known: a Job is used then. */
int kube_learn(struct target *target, const struct target_wish *wish, struct strv *ret_notes,
	struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	AUTO_KUBE_QUESTIONS struct kube_questions questions = {0};
	AUTO_ERR struct err fault = {0};
	const struct kube_run run = {
		.run_id = wish->run_id,
		.job = wish->run_id,
		.kube_namespace = kube->kube_namespace,
		.nodes = wish->spec->resources.nodes,
		.retries = wish->spec->world.retries,
	};

	(void)ret_notes;
	(void)err;
	kube_preflight_ask_jobset(&run, &questions);
	if (questions.n == 0)
		return 0;
	struct kube_request request = request_of(&questions.v[0], clock_ms() + CHECK_LIMIT_MS);
	int r = kube_ask(kube->cluster->client, &request, NULL, NULL, &fault);
	/* E_KUBE_EXISTS: the JobSet of an earlier attempt. */
	kube->takes_jobset = r == 0 || fault.id == E_KUBE_EXISTS;
	return 0;
}
