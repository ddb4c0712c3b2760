/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that are one request and one answer of lines. */
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "node/attempts.h"
#include "node/node_impl.h"

/* Layers are verified, trees removed: that may take longer than an answer. */
enum { SLOW_MS = 10 * 60 * 1000, GPUS_MAX = 1024 };

struct ask {
	struct node_call call;
	struct node_words words;
	struct node_gpus *gpus;
	struct node_attempts *attempts;
	struct node_freed *freed;
	char *run, *user, *record; /* of the attempt that follows */
};

static void ask_free(struct node_call *call)
{
	struct ask *ask = (struct ask *)call;

	vec_done(&ask->words);
	free(ask->run);
	free(ask->user);
	free(ask->record);
}

/* A request that its words do not allow: fails by the next turn. */
static struct node_call *begin_checked(struct node_call *call, int r, struct err *fault)
{
	if (r < 0)
		call_finish(call, fault);
	else
		call_begin(call);
	return call;
}

/*
 * Nothing but done
 */

static const struct call_ops plain_ops = {.free = ask_free};

struct node_call *node_stop(
	struct node *node, const char *run, int attempt, node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err fault = {0};
	struct node_call *call = call_new(node, sizeof(struct ask), &plain_ops, done, ctx);
	int r = node_check_attempt(run, attempt, &fault);

	call_attempt(call, "cancel", run, attempt);
	return begin_checked(call, r, &fault);
}

struct node_call *node_stop_for(struct node *node, const char *run, int attempt, const char *how,
	node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err fault = {0};
	struct node_call *call = call_new(node, sizeof(struct ask), &plain_ops, done, ctx);
	int r = node_check_attempt(run, attempt, &fault);

	call_say(call, "cancel");
	call_word(call, run);
	call_number(call, (uint64_t)attempt);
	call_word(call, how);
	call_line_end(call);
	return begin_checked(call, r, &fault);
}

struct node_call *node_go(
	struct node *node, const char *run, int attempt, node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err fault = {0};
	struct node_call *call = call_new(node, sizeof(struct ask), &plain_ops, done, ctx);
	int r = node_check_attempt(run, attempt, &fault);

	call_attempt(call, "go", run, attempt);
	return begin_checked(call, r, &fault);
}

struct node_call *node_forget(
	struct node *node, const char *run, int attempt, bool all, node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err fault = {0};
	struct node_call *call = call_new(node, sizeof(struct ask), &plain_ops, done, ctx);
	int r = node_check_attempt(run, attempt, &fault);

	node_attempts_done(&node->ended);
	call->answer_ms = SLOW_MS;
	call_say(call, "forget");
	call_word(call, run);
	call_number(call, (uint64_t)attempt);
	if (all)
		call_word(call, "all");
	call_line_end(call);
	return begin_checked(call, r, &fault);
}

/*
 * GPUs
 */

static int gpus_begin(struct node_call *call, struct node_request *request, struct err *err)
{
	struct ask *ask = (struct ask *)call;

	(void)request;
	(void)err;
	vec_done(ask->gpus);
	return 0;
}

static int gpus_line(struct node_call *call, enum channel_flow flow, char *line, struct err *err)
{
	struct ask *ask = (struct ask *)call;
	struct node_gpu gpu;

	(void)flow;
	if (!str_starts(line, "gpu "))
		return 0;
	if (ask->gpus->n >= GPUS_MAX)
		return err_set(err, E_DATA_LIMIT, "a node with more than %d GPUs", GPUS_MAX);
	int r = node_words_split(line, &ask->words, err);
	if (r == 0)
		r = node_gpu_parse(&ask->words, &gpu, err);
	if (r < 0)
		return r;
	*vec_push(ask->gpus) = gpu;
	return 1;
}

static int by_index(const void *a, const void *b)
{
	const struct node_gpu *x = a, *y = b;

	return (x->index > y->index) - (x->index < y->index);
}

static enum call_next gpus_ended(struct node_call *call, struct err *fault)
{
	struct ask *ask = (struct ask *)call;

	vec_sort(ask->gpus, by_index);
	return call_next(call, fault);
}

static const struct call_ops gpus_ops = {
	.begin = gpus_begin, .line = gpus_line, .ended = gpus_ended, .free = ask_free};

struct node_call *node_gpus(struct node *node, struct node_gpus *ret, node_done_fn *done, void *ctx)
{
	struct ask *ask = call_new(node, sizeof(*ask), &gpus_ops, done, ctx);

	ask->gpus = ret;
	call_say(&ask->call, "gpus\n");
	call_begin(&ask->call);
	return &ask->call;
}

/*
 * Runs
 */

static int list_begin(struct node_call *call, struct node_request *request, struct err *err)
{
	struct ask *ask = (struct ask *)call;

	(void)request;
	(void)err;
	node_attempts_done(ask->attempts);
	return 0;
}

static int take_run(struct ask *ask, struct err *err)
{
	if (ask->words.n < 3)
		return err_set(err, E_NODE_PROTOCOL, "the host sent an invalid run");
	free(ask->run);
	free(ask->user);
	free(ask->record);
	ask->run = mem_strdup(ask->words.v[1]);
	ask->user = mem_strdup(ask->words.v[2]);
	ask->record = ask->words.n > 3 && *ask->words.v[3] ? mem_strdup(ask->words.v[3]) : NULL;
	return 1;
}

static int take_attempt(struct ask *ask, struct err *err)
{
	struct node_attempt attempt;

	if (ask->attempts->n >= NODE_ATTEMPTS_MAX)
		return err_set(
			err, E_DATA_LIMIT, "a node with more than %d runs", NODE_ATTEMPTS_MAX);
	int r = node_attempt_parse(&ask->words, &attempt, err);
	if (r < 0)
		return r;
	if (str_eq(ask->run, attempt.run)) {
		attempt.user = TAKE(ask->user);
		attempt.record = TAKE(ask->record);
	}
	*vec_push(ask->attempts) = attempt;
	return 1;
}

static int list_line(struct node_call *call, enum channel_flow flow, char *line, struct err *err)
{
	struct ask *ask = (struct ask *)call;
	bool is_run = str_starts(line, "run ");

	(void)flow;
	if (!is_run && !str_starts(line, "attempt "))
		return 0;
	int r = node_words_split(line, &ask->words, err);
	if (r < 0)
		return r;
	return is_run ? take_run(ask, err) : take_attempt(ask, err);
}

static const struct call_ops list_ops = {.begin = list_begin, .line = list_line, .free = ask_free};

struct node_call *node_list(
	struct node *node, struct node_attempts *ret, node_done_fn *done, void *ctx)
{
	struct ask *ask = call_new(node, sizeof(*ask), &list_ops, done, ctx);

	ask->attempts = ret;
	call_say(&ask->call, "list\n");
	call_begin(&ask->call);
	return &ask->call;
}

/*
 * Space
 */

static int gc_begin(struct node_call *call, struct node_request *request, struct err *err)
{
	struct ask *ask = (struct ask *)call;

	(void)request;
	(void)err;
	*ask->freed = (struct node_freed){0};
	return 0;
}

static int gc_line(struct node_call *call, enum channel_flow flow, char *line, struct err *err)
{
	struct ask *ask = (struct ask *)call;
	struct node_freed *freed = ask->freed;
	uint64_t bytes, count;

	(void)flow;
	if (!str_starts(line, "freed "))
		return 0;
	int r = node_words_split(line, &ask->words, err);
	if (r < 0)
		return r;
	char *const *v = ask->words.v;
	if (ask->words.n < 4 || !node_word_number(v[1], &bytes) || !node_word_number(v[2], &count))
		return err_set(
			err, E_NODE_PROTOCOL, "the host sent an invalid list of what it freed");
	if (str_starts(v[3], "layer"))
		freed->layers_bytes += bytes;
	else if (str_starts(v[3], "data"))
		freed->data_bytes += bytes;
	else
		freed->trees_bytes += bytes;
	freed->count += count;
	return 1;
}

static const struct call_ops gc_ops = {.begin = gc_begin, .line = gc_line, .free = ask_free};

struct node_call *node_gc(struct node *node, int64_t age_s, uint64_t keep_bytes, bool dry,
	struct node_freed *ret, node_done_fn *done, void *ctx)
{
	struct ask *ask = call_new(node, sizeof(*ask), &gc_ops, done, ctx);

	ask->freed = ret;
	ask->call.answer_ms = SLOW_MS;
	call_say(&ask->call, "gc");
	call_number(&ask->call, age_s > 0 ? (uint64_t)age_s : 0);
	call_number(&ask->call, keep_bytes);
	if (dry)
		call_word(&ask->call, "dry");
	call_line_end(&ask->call);
	call_begin(&ask->call);
	return &ask->call;
}
