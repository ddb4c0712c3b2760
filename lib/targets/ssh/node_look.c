/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/node_look.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { AT_ONCE_MAX = 32, INTERRUPT_LOOK_MS = 200 };

/*
 * Asking
 */

struct watch;

struct question {
	struct watch *watch;
	struct node_look *look;
	struct node_call *asked;
	const struct node_facts *facts; /* true once they have come */
};

struct watch {
	struct session *session;
	struct question *questions;
	size_t n, n_begun, n_open;
	const volatile int *interrupted;
	struct loop_timer *end, *tick;
	int64_t settle_ms;
};

static void begin_some(struct watch *watch);

static int on_end(void *ctx, struct err *err)
{
	struct watch *watch = ctx;

	(void)err;
	watch->end = NULL;
	loop_stop(session_loop(watch->session));
	return 0;
}

/* Once a host has responded, do not wait the whole time for hosts that hang. */
static void settle(struct watch *watch)
{
	struct loop *loop = session_loop(watch->session);

	if (watch->settle_ms < 0)
		return;
	loop_remove_timer(loop, watch->end);
	watch->end = loop_add_timer(loop, clock_ms() + watch->settle_ms, on_end, watch);
	watch->settle_ms = -1;
}

static void end_one(struct question *question, struct err *fault)
{
	struct watch *watch = question->watch;

	node_explain(question->look->opened, fault);
	if (err_is_set(fault))
		err_move(&question->look->fault, fault);
	else
		settle(watch);
	watch->n_open--;
	begin_some(watch);
	if (watch->n_open == 0)
		loop_stop(session_loop(watch->session));
}

static int on_gpus(void *ctx, int status, struct err *fault, struct err *err)
{
	struct question *question = ctx;

	(void)err;
	question->asked = NULL;
	question->look->has_gpus = status == 0;
	end_one(question, fault);
	return 0;
}

static int on_hello(void *ctx, int status, struct err *fault, struct err *err)
{
	struct question *question = ctx;
	struct node_look *look = question->look;

	(void)err;
	question->asked = NULL;
	if (status == 0) {
		look->facts = question->facts;
		look->answer_ms = clock_ms() - look->opened->begun_ms;
	}
	if (status < 0 || !look->gpus_too) {
		end_one(question, fault);
		return 0;
	}
	question->asked = node_gpus(look->opened->node, &look->gpus, on_gpus, question);
	return 0;
}

static void begin_some(struct watch *watch)
{
	while (watch->n_begun < watch->n && watch->n_open < AT_ONCE_MAX) {
		struct question *question = &watch->questions[watch->n_begun++];
		struct node_look *look = question->look;

		look->answer_ms = -1;
		if (node_open(watch->session, look->host, look->root, &look->opened, &look->fault) <
			0)
			continue;
		watch->n_open++;
		question->asked =
			node_hello(look->opened->node, &question->facts, on_hello, question);
	}
}

static int on_tick(void *ctx, struct err *err)
{
	struct watch *watch = ctx;

	if (*watch->interrupted)
		return err_set(err, E_CANCELED, "interrupted");
	watch->tick = loop_add_timer(
		session_loop(watch->session), clock_ms() + INTERRUPT_LOOK_MS, on_tick, watch);
	return 0;
}

static int wait_all(struct watch *watch, int64_t limit_ms, struct err *err)
{
	struct loop *loop = session_loop(watch->session);
	int r = 0;

	begin_some(watch);
	if (limit_ms >= 0)
		watch->end = loop_add_timer(loop, clock_ms() + limit_ms, on_end, watch);
	if (watch->interrupted)
		r = on_tick(watch, err);
	if (r == 0 && watch->n_open > 0)
		r = loop_run(loop, err);
	loop_remove_timer(loop, watch->end);
	loop_remove_timer(loop, watch->tick);
	return r;
}

int node_look_all(struct session *session, struct node_look *looks, size_t n, int64_t limit_ms,
	int64_t settle_ms, const volatile int *interrupted, struct err *err)
{
	AUTO_FREE struct question *questions = mem_alloc(n + 1, sizeof(*questions));
	struct watch watch = {.session = session,
		.questions = questions,
		.n = n,
		.interrupted = interrupted,
		.settle_ms = settle_ms};

	for (size_t i = 0; i < n; i++)
		questions[i] = (struct question){.watch = &watch, .look = &looks[i]};
	int r = wait_all(&watch, limit_ms, err);
	for (size_t i = 0; i < n; i++) {
		bool is_late = questions[i].asked || i >= watch.n_begun;
		node_cancel(questions[i].asked);
		if (is_late && !looks[i].facts)
			err_set(&looks[i].fault, E_TARGET_SILENT, "%s did not answer in time",
				looks[i].host);
	}
	return r;
}

void node_look_done(struct node_look *look)
{
	if (!look)
		return;
	err_done(&look->fault);
	vec_done(&look->gpus);
	*look = (struct node_look){0};
}

/*
 * Showing
 */

size_t node_look_free_gpus(const struct node_look *look)
{
	size_t n = 0;

	vec_foreach (const struct node_gpu, gpu, &look->gpus)
		n += !gpu->used && !*gpu->holder;
	return n;
}

static void add_gpus(const struct node_look *look, struct buf *out)
{
	if (!look->has_gpus)
		return;
	if (look->gpus.n == 0)
		buf_adds(out, ", no GPUs");
	else
		buf_addf(out, ", %zu of %zu GPUs free (%s)", node_look_free_gpus(look),
			look->gpus.n, look->gpus.v[0].model);
}

char *node_look_text(const struct node_look *look)
{
	const struct node_facts *facts = look->facts;
	AUTO_BUF struct buf out = {0};
	char size[16];

	if (!facts)
		return mem_strdup(err_is_set(&look->fault) ? look->fault.message : "");
	buf_init(&out, 4096);
	buf_addf(&out, "%s %s", facts->system, facts->machine);
	add_gpus(look, &out);
	if (facts->cpus)
		buf_addf(&out, ", %u CPUs", facts->cpus);
	if (facts->memory_bytes)
		buf_addf(&out, ", %s of memory", str_size(facts->memory_bytes, size));
	if (facts->free_bytes != NODE_FREE_UNKNOWN)
		buf_addf(&out, ", %s of disk free", str_size(facts->free_bytes, size));
	return buf_take(&out);
}

static struct json *gpus_json(const struct node_look *look)
{
	struct json *list = json_array();

	vec_foreach (const struct node_gpu, gpu, &look->gpus) {
		struct json *json = json_object();
		json_set_int(json, "index", gpu->index);
		json_set_str(json, "vendor", gpu->vendor);
		json_set_str(json, "model", gpu->model);
		json_set_int(json, "memory_bytes", (int64_t)gpu->memory_bytes);
		json_set_bool(json, "used", gpu->used);
		json_set_str(json, "holder", *gpu->holder ? gpu->holder : NULL);
		json_add(list, json);
	}
	return list;
}

void node_look_to_json(const struct node_look *look, struct json *json)
{
	const struct node_facts *facts = look->facts;

	json_set_str(json, "host", look->host);
	json_set_bool(json, "reachable", facts != NULL);
	if (!facts)
		return;
	json_set_str(json, "system", facts->system);
	json_set_str(json, "machine", facts->machine);
	json_set_str(json, "launch", facts->launch);
	json_set_int(json, "cpus", facts->cpus);
	json_set_int(json, "memory_bytes", (int64_t)facts->memory_bytes);
	if (facts->free_bytes == NODE_FREE_UNKNOWN)
		json_set(json, "free_bytes", json_null());
	else
		json_set_int(json, "free_bytes", (int64_t)facts->free_bytes);
	json_set_int(json, "answer_ms", look->answer_ms);
	json_set(json, "gpus", look->has_gpus ? gpus_json(look) : json_null());
}

void node_look_offer(const struct node_look *look, struct node_offer *ret)
{
	const struct node_facts *facts = look->facts;

	*ret = (struct node_offer){.host = look->host, .answered = facts != NULL, .load = -1};
	if (!facts) {
		ret->why_not = look->fault.message;
		return;
	}
	ret->gpus = (unsigned)look->gpus.n;
	ret->gpus_free = (unsigned)node_look_free_gpus(look);
	ret->cpus = facts->cpus;
	ret->memory_bytes = ret->memory_free_bytes = facts->memory_bytes;
	ret->disk_free_bytes = facts->free_bytes;
}
