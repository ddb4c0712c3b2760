/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that are one request and one response of lines. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "node/node_impl.h"

enum {
	/* Layers are verified, trees removed: that may take longer than a response. */
	SLOW_MS = 10 * 60 * 1000,
	MACHINE_MS = 40 * 1000, /* tools may take 10 s each */
	GPUS_MAX = 1024,
	FIELDS_MAX = 64,
	PERCENT = 100,
};

#define LOAD_MAX 1e6

struct query {
	struct node_call call;
	union {
		struct node_gpus *gpus;
		struct node_attempts *attempts;
		struct node_freed *freed;
		struct node_machine *machine;
		struct node_fields *fields;
		enum node_withdrawn *withdrawn;
	};
	char *run, *user, *record; /* of the attempt that follows */
};

/* The request is one line that needs no words. */
static struct node_call *query_begin(struct query *query, const char *line)
{
	call_add_text(&query->call, line);
	call_begin(&query->call);
	return &query->call;
}

/*
 * Nothing but done
 */

/* "VERB RUN N", and one word more or NULL. */
static struct node_call *query_attempt(struct node *node, const char *verb, const char *run,
	int attempt, const char *more, int64_t response_ms, node_done_fn *done, void *ctx)
{
	static const struct call_ops ops = {0};
	AUTO_ERR struct err error = {0};
	struct node_call *call = call_new(node, sizeof(*call), &ops, done, ctx);
	int r = node_check_attempt(run, attempt, &error);

	call->response_ms = response_ms;
	call_add_text(call, verb);
	call_word(call, run);
	call_number(call, (uint64_t)attempt);
	if (more)
		call_word(call, more);
	call_line_end(call);
	return call_begin_checked(call, r, &error);
}

struct node_call *node_stop(
	struct node *node, const char *run, int attempt, node_done_fn *done, void *ctx)
{
	return node_stop_for(node, run, attempt, NULL, done, ctx);
}

struct node_call *node_stop_for(struct node *node, const char *run, int attempt, const char *how,
	node_done_fn *done, void *ctx)
{
	return query_attempt(node, "cancel", run, attempt, how, 0, done, ctx);
}

static int withdraw_line(struct node_call *call, struct err *err)
{
	static const char *const words[] = {
		[NODE_HAS_BEGUN] = "no", [NODE_WITHDRAWN] = "yes", [NODE_WAS_ABSENT] = "absent"};
	const char *said = call->words.n > 1 ? call->words.v[1] : NULL;

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (str_eq(said, words[i])) {
			*((struct query *)call)->withdrawn = (enum node_withdrawn)i;
			return 0;
		}
	return err_set(err, E_NODE_PROTOCOL, "the host sent an invalid answer");
}

static void withdraw_reset(struct node_call *call)
{
	*((struct query *)call)->withdrawn = NODE_HAS_BEGUN;
}

struct node_call *node_withdraw(struct node *node, const char *run, int attempt,
	enum node_withdrawn *ret, node_done_fn *done, void *ctx)
{
	static const struct call_ops ops = {
		.reset = withdraw_reset, .keys = "withdrawn", .keyed_line = withdraw_line};
	AUTO_ERR struct err error = {0};
	struct query *query = call_new(node, sizeof(*query), &ops, done, ctx);
	int r = node_check_attempt(run, attempt, &error);

	query->withdrawn = ret;
	call_attempt(&query->call, "withdraw", run, attempt);
	return call_begin_checked(&query->call, r, &error);
}

struct node_call *node_go(
	struct node *node, const char *run, int attempt, node_done_fn *done, void *ctx)
{
	return query_attempt(node, "go", run, attempt, NULL, 0, done, ctx);
}

struct node_call *node_forget(
	struct node *node, const char *run, int attempt, bool all, node_done_fn *done, void *ctx)
{
	node_attempts_done(&node->ended);
	return query_attempt(node, "forget", run, attempt, all ? "all" : NULL, SLOW_MS, done, ctx);
}

/*
 * GPUs
 */

static void gpus_reset(struct node_call *call)
{
	vec_done(((struct query *)call)->gpus);
}

static int gpus_line(struct node_call *call, struct err *err)
{
	struct query *query = (struct query *)call;
	struct node_gpu gpu;

	if (query->gpus->n >= GPUS_MAX)
		return err_set(err, E_DATA_LIMIT, "a node with more than %d GPUs", GPUS_MAX);
	int r = node_gpu_parse(&call->words, &gpu, err);
	if (r == 0)
		*vec_push(query->gpus) = gpu;
	return r;
}

static int gpu_by_index(const void *a, const void *b)
{
	const struct node_gpu *x = a, *y = b;

	return (x->index > y->index) - (x->index < y->index);
}

static enum call_next gpus_ended(struct node_call *call, struct err *error)
{
	struct query *query = (struct query *)call;

	vec_sort(query->gpus, gpu_by_index);
	return call_next(call, error);
}

struct node_call *node_gpus(struct node *node, struct node_gpus *ret, node_done_fn *done, void *ctx)
{
	static const struct call_ops ops = {
		.reset = gpus_reset, .keys = "gpu", .keyed_line = gpus_line, .ended = gpus_ended};
	struct query *query = call_new(node, sizeof(*query), &ops, done, ctx);

	query->gpus = ret;
	return query_begin(query, "gpus\n");
}

/*
 * Runs
 */

static void list_reset(struct node_call *call)
{
	node_attempts_done(((struct query *)call)->attempts);
}

static void list_free(struct node_call *call)
{
	struct query *query = (struct query *)call;

	free(query->run);
	free(query->user);
	free(query->record);
}

static int list_line(struct node_call *call, struct err *err)
{
	struct query *query = (struct query *)call;
	char *const *v = call->words.v;
	struct node_attempt attempt;

	if (str_eq(v[0], "run")) {
		if (call->words.n < 3)
			return err_set(err, E_NODE_PROTOCOL, "the host sent an invalid run");
		list_free(call);
		query->run = mem_strdup(v[1]);
		query->user = mem_strdup(v[2]);
		query->record = call->words.n > 3 && *v[3] ? mem_strdup(v[3]) : NULL;
		return 0;
	}
	if (query->attempts->n >= NODE_ATTEMPTS_MAX)
		return err_set(
			err, E_DATA_LIMIT, "a node with more than %d runs", NODE_ATTEMPTS_MAX);
	int r = node_attempt_parse(&call->words, &attempt, err);
	if (r < 0)
		return r;
	if (str_eq(query->run, attempt.run)) {
		attempt.user = TAKE(query->user);
		attempt.record = TAKE(query->record);
	}
	*vec_push(query->attempts) = attempt;
	return 0;
}

struct node_call *node_list(
	struct node *node, struct node_attempts *ret, node_done_fn *done, void *ctx)
{
	static const struct call_ops ops = {.reset = list_reset,
		.keys = "run attempt",
		.keyed_line = list_line,
		.free = list_free};
	struct query *query = call_new(node, sizeof(*query), &ops, done, ctx);

	query->attempts = ret;
	return query_begin(query, "list\n");
}

/*
 * Space
 */

static void gc_reset(struct node_call *call)
{
	*((struct query *)call)->freed = (struct node_freed){0};
}

static int gc_line(struct node_call *call, struct err *err)
{
	struct node_freed *freed = ((struct query *)call)->freed;
	char *const *v = call->words.v;
	uint64_t bytes, count;

	if (call->words.n < 4 || !node_word_number(v[1], &bytes) || !node_word_number(v[2], &count))
		return err_set(
			err, E_NODE_PROTOCOL, "the host sent an invalid list of what it freed");
	if (str_starts(v[3], "layer"))
		freed->layers_bytes += bytes;
	else if (str_starts(v[3], "data"))
		freed->data_bytes += bytes;
	else
		freed->trees_bytes += bytes;
	freed->count += count;
	return 0;
}

struct node_call *node_gc(struct node *node, int64_t age_s, uint64_t keep_bytes, bool dry,
	struct node_freed *ret, node_done_fn *done, void *ctx)
{
	static const struct call_ops ops = {
		.reset = gc_reset, .keys = "freed", .keyed_line = gc_line};
	struct query *query = call_new(node, sizeof(*query), &ops, done, ctx);

	query->freed = ret;
	query->call.response_ms = SLOW_MS;
	call_add_text(&query->call, "gc");
	call_number(&query->call, age_s > 0 ? (uint64_t)age_s : 0);
	call_number(&query->call, keep_bytes);
	return query_begin(query, dry ? " dry\n" : "\n");
}

/*
 * The machine
 */

void node_machine_init(struct node_machine *machine)
{
	*machine = (struct node_machine){.load = -1, .memory_bytes = -1, .memory_free_bytes = -1};
}

void node_machine_done(struct node_machine *machine)
{
	if (!machine)
		return;
	vec_done(&machine->gpus);
	free(TAKE(machine->error));
}

static double parse_load(const char *text)
{
	double value;

	return str_to_decimal(text, &value) && value <= LOAD_MAX ? value : -1;
}

/* -1: not known. */
static int64_t query_parse_number(const char *text)
{
	uint64_t value;

	return node_word_number(text, &value) && value <= INT64_MAX ? (int64_t)value : -1;
}

static void machine_meter(const struct node_words *words, struct node_machine *machine)
{
	char *const *v = words->v;
	int64_t index, busy, power;

	if (words->n < 6)
		return;
	index = query_parse_number(v[2]);
	busy = query_parse_number(v[3]);
	power = query_parse_number(v[5]);
	vec_foreach (struct node_meter, meter, &machine->gpus) {
		if (meter->gpu.index != index || !str_eq(meter->gpu.vendor, v[1]))
			continue;
		meter->busy = busy < 0 || busy > PERCENT ? -1 : (double)busy / PERCENT;
		meter->memory_used_bytes = query_parse_number(v[4]);
		meter->power_w = power < 0 ? -1 : (double)power / 1000;
	}
}

static int machine_gpu(
	const struct node_words *words, struct node_machine *machine, struct err *err)
{
	struct node_meter meter = {.busy = -1, .power_w = -1, .memory_used_bytes = -1};

	if (machine->gpus.n >= GPUS_MAX)
		return err_set(err, E_DATA_LIMIT, "a node with more than %d GPUs", GPUS_MAX);
	int r = node_gpu_parse(words, &meter.gpu, err);
	if (r == 0)
		*vec_push(&machine->gpus) = meter;
	return r;
}

int node_machine_line(const struct node_words *words, struct node_machine *machine, struct err *err)
{
	const char *key = words->n ? words->v[0] : "";

	if (str_eq(key, "gpu"))
		return machine_gpu(words, machine, err);
	if (str_eq(key, "meter")) {
		machine_meter(words, machine);
	} else if (str_eq(key, "memory") && words->n > 2) {
		machine->memory_bytes = query_parse_number(words->v[1]);
		machine->memory_free_bytes = query_parse_number(words->v[2]);
	} else if (str_eq(key, "cpus") && words->n > 1) {
		int64_t cpus = query_parse_number(words->v[1]);
		if (cpus > 0 && cpus <= INT_MAX)
			machine->cpus = (unsigned)cpus;
	} else if (str_eq(key, "load") && words->n > 1) {
		machine->load = parse_load(words->v[1]);
	} else if (str_eq(key, "fault") && words->n > 1 && !machine->error) {
		machine->error = mem_strdup(words->v[1]);
	}
	return 0;
}

static void machine_reset(struct node_call *call)
{
	struct node_machine *machine = ((struct query *)call)->machine;

	node_machine_done(machine);
	node_machine_init(machine);
}

static int machine_line(struct node_call *call, struct err *err)
{
	return node_machine_line(&call->words, ((struct query *)call)->machine, err);
}

struct node_call *node_machine(
	struct node *node, struct node_machine *ret, node_done_fn *done, void *ctx)
{
	static const struct call_ops ops = {.reset = machine_reset,
		.keys = "load memory cpus gpu meter fault",
		.keyed_line = machine_line};
	struct query *query = call_new(node, sizeof(*query), &ops, done, ctx);

	query->machine = ret;
	query->call.response_ms = MACHINE_MS;
	return query_begin(query, "machine\n");
}

static void describe_reset(struct node_call *call)
{
	node_fields_done(((struct query *)call)->fields);
}

static int describe_line(struct node_call *call, struct err *err)
{
	struct node_fields *fields = ((struct query *)call)->fields;
	const struct node_words *words = &call->words;

	if (words->n != 3 || fields->n >= FIELDS_MAX)
		return err_set(err, E_NODE_PROTOCOL, "the host sent an invalid answer");
	*vec_push(fields) = (struct node_field){
		.key = mem_strdup(words->v[1]), .value = mem_strdup(words->v[2])};
	return 0;
}

struct node_call *node_describe(
	struct node *node, struct node_fields *ret, node_done_fn *done, void *ctx)
{
	static const struct call_ops ops = {
		.reset = describe_reset, .keys = "is", .keyed_line = describe_line};
	struct query *query = call_new(node, sizeof(*query), &ops, done, ctx);

	query->fields = ret;
	query->call.response_ms = MACHINE_MS;
	return query_begin(query, "describe\n");
}

/*
 * States of attempts: questions of one turn of the loop are one request
 */

/* Of one request: its line stays far below 64 KiB. */
enum { NAMES_MAX = 400 };

struct question;
struct questions VEC_OF(struct question *);
struct batches VEC_OF(struct node_batch *);

struct node_batch {
	struct node_call call;
	size_t n_names;
	bool is_said;
	struct questions questions; /* NULL: forgotten */
	struct node_attempts responses;
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

/*
 * A batch
 */

static void batch_reset(struct node_call *call)
{
	struct node_batch *batch = (struct node_batch *)call;

	/* Later questions miss this batch. */
	if (call->node->batch == batch)
		call->node->batch = NULL;
	if (!batch->is_said)
		call_line_end(call);
	batch->is_said = true;
	node_attempts_done(&batch->responses);
}

static int batch_line(struct node_call *call, struct err *err)
{
	struct node_batch *batch = (struct node_batch *)call;
	struct node_attempt attempt;

	if (batch->responses.n >= NODE_ATTEMPTS_MAX)
		return err_set(err, E_DATA_LIMIT, "the host sent too many attempts");
	int r = node_attempt_parse(&call->words, &attempt, err);
	if (r == 0)
		*vec_push(&batch->responses) = attempt;
	return r;
}

static void query_batch_free(struct node_call *call)
{
	struct node_batch *batch = (struct node_batch *)call;

	for (size_t i = 0; i < batch->questions.n; i++)
		if (batch->questions.v[i])
			forget_batch(batch->questions.v[i], batch);
	if (call->node->batch == batch)
		call->node->batch = NULL;
	vec_done(&batch->questions);
	node_attempts_done(&batch->responses);
}

static void question_response(
	struct node_batch *batch, struct question *question, const struct err *error)
{
	if (err_is_set(error) && !err_is_set(&question->call.error))
		err_copy(&question->call.error, error);
	vec_foreach (struct node_attempt, response, &batch->responses) {
		AUTO_FREE char *name = mem_printf("%s/%d", response->run, response->attempt);

		if (strv_find(&question->names, name) >= 0)
			node_attempt_copy(response, vec_push(question->ret));
	}
	if (--question->n_batches == 0)
		call_finish(&question->call, NULL);
}

static void batch_over(struct node_call *call, const struct err *error)
{
	struct node_batch *batch = (struct node_batch *)call;

	for (size_t i = 0; i < batch->questions.n; i++)
		if (batch->questions.v[i])
			question_response(batch, batch->questions.v[i], error);
}

static const struct call_ops batch_ops = {.reset = batch_reset,
	.keys = "attempt",
	.keyed_line = batch_line,
	.over = batch_over,
	.free = query_batch_free};

static struct node_batch *batch_of(struct node *node)
{
	if (node->batch && node->batch->n_names < NAMES_MAX)
		return node->batch;
	struct node_batch *batch = call_new(node, sizeof(*batch), &batch_ops, NULL, NULL);

	call_add_text(&batch->call, "state");
	node->batch = batch;
	call_begin_later(&batch->call);
	return batch;
}

static void question_join(struct node_batch *batch, struct question *question, const char *name)
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
static bool response_ended(
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
	AUTO_ERR struct err error = {0};
	struct question *question = call_new(node, sizeof(*question), &question_ops, done, ctx);

	question->ret = ret;
	node_attempts_done(ret);
	for (size_t i = 0; i < names->n; i++) {
		char run[NODE_NAME_SIZE];
		int attempt;

		if (node_attempt_name(names->v[i], run, &attempt))
			continue;
		AUTO_FREE char *shown = str_shown(names->v[i]);

		err_set(&error, E_USAGE, "\"%s\" is not an attempt of a run", shown);
		call_finish(&question->call, &error);
		return &question->call;
	}
	strv_copy(&question->names, names);
	bool is_known = response_ended(node, names, ret);
	for (size_t i = 0; i < names->n && !is_known; i++)
		question_join(batch_of(node), question, names->v[i]);
	if (!question->n_batches)
		call_finish(&question->call, NULL);
	return &question->call;
}

struct node_call *node_state_as(struct node *node, const char *run, int attempt, const char *as,
	struct node_attempts *ret, node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err error = {0};
	struct question *question = call_new(node, sizeof(*question), &question_ops, done, ctx);
	AUTO_FREE char *word = mem_printf("%s/%d:%s", run, attempt, as);

	question->ret = ret;
	node_attempts_done(ret);
	if (node_check_attempt(run, attempt, &error) < 0) {
		call_finish(&question->call, &error);
		return &question->call;
	}
	strv_addf(&question->names, "%s/%d", run, attempt);
	question_join(batch_of(node), question, word);
	return &question->call;
}
