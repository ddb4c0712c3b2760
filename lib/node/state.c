/* SPDX-License-Identifier: Apache-2.0 */
/* The states of attempts: questions of one turn of the loop are one request. */
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "node/attempts.h"
#include "node/node_impl.h"

/* Of one request: its line stays far below 64 KiB. */
enum { NAMES_MAX = 400 };

struct question;
struct questions VEC_OF(struct question *);
struct batches VEC_OF(struct node_batch *);

struct node_batch {
	struct node_call call;
	struct node_words words;
	size_t n_names;
	bool is_said;
	struct questions questions; /* NULL: forgotten */
	struct node_attempts answers;
};

/* A request of one caller; it may be spread over several batches. */
struct question {
	struct node_call call;
	struct strv names;
	struct node_attempts *ret;
	size_t n_batches; /* that have not ended */
	struct batches batches;
};

/*
 * A question
 */

static void forget_question(struct node_batch *batch, const struct question *question)
{
	for (size_t i = 0; i < batch->questions.n; i++)
		if (batch->questions.v[i] == question)
			batch->questions.v[i] = NULL;
}

static void question_free(struct node_call *call)
{
	struct question *question = (struct question *)call;

	for (size_t i = 0; i < question->batches.n; i++)
		forget_question(question->batches.v[i], question);
	vec_done(&question->batches);
	strv_done(&question->names);
}

static const struct call_ops question_ops = {.free = question_free};

static void forget_batch(struct question *question, const struct node_batch *batch)
{
	size_t n = 0;

	for (size_t i = 0; i < question->batches.n; i++)
		if (question->batches.v[i] != batch)
			question->batches.v[n++] = question->batches.v[i];
	question->batches.n = n;
}

static void take_answers(struct question *question, const struct node_attempts *answers)
{
	vec_foreach (struct node_attempt, answer, answers) {
		AUTO_FREE char *name = mem_printf("%s/%d", answer->run, answer->attempt);

		if (strv_find(&question->names, name) >= 0)
			node_attempt_copy(answer, vec_push(question->ret));
	}
}

/*
 * A batch
 */

static int batch_begin(struct node_call *call, struct node_request *request, struct err *err)
{
	struct node_batch *batch = (struct node_batch *)call;

	(void)request;
	(void)err;
	/* Later questions miss this batch. */
	if (call->node->batch == batch)
		call->node->batch = NULL;
	if (!batch->is_said)
		call_line_end(call);
	batch->is_said = true;
	node_attempts_done(&batch->answers);
	return 0;
}

static int batch_line(struct node_call *call, enum channel_flow flow, char *line, struct err *err)
{
	struct node_batch *batch = (struct node_batch *)call;
	struct node_attempt attempt;

	(void)flow;
	if (!str_starts(line, "attempt "))
		return 0;
	if (batch->answers.n >= NODE_ATTEMPTS_MAX)
		return err_set(err, E_DATA_LIMIT, "the host sent too many attempts");
	int r = node_words_split(line, &batch->words, err);
	if (r == 0)
		r = node_attempt_parse(&batch->words, &attempt, err);
	if (r < 0)
		return r;
	*vec_push(&batch->answers) = attempt;
	return 1;
}

static void batch_free(struct node_call *call)
{
	struct node_batch *batch = (struct node_batch *)call;

	for (size_t i = 0; i < batch->questions.n; i++)
		if (batch->questions.v[i])
			forget_batch(batch->questions.v[i], batch);
	if (call->node->batch == batch)
		call->node->batch = NULL;
	vec_done(&batch->words);
	vec_done(&batch->questions);
	node_attempts_done(&batch->answers);
}

static void answer(struct node_batch *batch, struct question *question, const struct err *fault)
{
	if (err_is_set(fault) && !err_is_set(&question->call.fault))
		err_copy(&question->call.fault, fault);
	take_answers(question, &batch->answers);
	if (--question->n_batches == 0)
		call_finish(&question->call, NULL);
}

static void batch_over(struct node_call *call, const struct err *fault)
{
	struct node_batch *batch = (struct node_batch *)call;

	for (size_t i = 0; i < batch->questions.n; i++)
		if (batch->questions.v[i])
			answer(batch, batch->questions.v[i], fault);
}

static const struct call_ops batch_ops = {
	.begin = batch_begin, .line = batch_line, .over = batch_over, .free = batch_free};

static struct node_batch *batch_of(struct node *node)
{
	if (node->batch && node->batch->n_names < NAMES_MAX)
		return node->batch;
	struct node_batch *batch = call_new(node, sizeof(*batch), &batch_ops, NULL, NULL);

	call_say(&batch->call, "state");
	node->batch = batch;
	call_begin_later(&batch->call);
	return batch;
}

static void join(struct node_batch *batch, struct question *question, const char *name)
{
	bool is_new =
		question->batches.n == 0 || question->batches.v[question->batches.n - 1] != batch;

	call_word(&batch->call, name);
	batch->n_names++;
	if (!is_new)
		return;
	*vec_push(&batch->questions) = question;
	*vec_push(&question->batches) = batch;
	question->n_batches++;
}

/*
 * Ended attempts
 */

/* Of one command. */
enum { ENDED_MAX = 256 };

bool node_state_is_final(const char *state)
{
	static const char *const finals[] = {"succeeded", "failed", "cancelled", "lost"};

	for (size_t i = 0; i < ARRAY_LEN(finals); i++)
		if (str_eq(state, finals[i]))
			return true;
	return false;
}

static const struct node_attempt *find_ended(const struct node *node, const char *name)
{
	vec_foreach (struct node_attempt, attempt, &node->ended) {
		AUTO_FREE char *known = mem_printf("%s/%d", attempt->run, attempt->attempt);

		if (str_eq(known, name))
			return attempt;
	}
	return NULL;
}

void node_keep_end(struct node *node, const struct node_attempt *attempt)
{
	AUTO_FREE char *name = mem_printf("%s/%d", attempt->run, attempt->attempt);

	if (node_state_is_final(attempt->state) && node->ended.n < ENDED_MAX &&
		!find_ended(node, name))
		node_attempt_copy(attempt, vec_push(&node->ended));
}

/* All that is asked for is known. */
static bool answer_ended(
	const struct node *node, const struct strv *names, struct node_attempts *ret)
{
	for (size_t i = 0; i < names->n; i++)
		if (!find_ended(node, names->v[i]))
			return false;
	for (size_t i = 0; i < names->n; i++)
		node_attempt_copy(find_ended(node, names->v[i]), vec_push(ret));
	return true;
}

struct node_call *node_state(struct node *node, const struct strv *names, struct node_attempts *ret,
	node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err fault = {0};
	struct question *question = call_new(node, sizeof(*question), &question_ops, done, ctx);

	question->ret = ret;
	node_attempts_done(ret);
	for (size_t i = 0; i < names->n; i++) {
		char run[NODE_NAME_SIZE];
		int attempt;

		if (node_attempt_name(names->v[i], run, &attempt))
			continue;
		AUTO_FREE char *shown = str_shown(names->v[i]);

		err_set(&fault, E_USAGE, "\"%s\" is not an attempt of a run", shown);
		call_finish(&question->call, &fault);
		return &question->call;
	}
	strv_copy(&question->names, names);
	bool is_known = answer_ended(node, names, ret);
	for (size_t i = 0; i < names->n && !is_known; i++)
		join(batch_of(node), question, names->v[i]);
	if (!question->n_batches)
		call_finish(&question->call, NULL);
	return &question->call;
}
