/* SPDX-License-Identifier: Apache-2.0 */
#include "node/machine.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "node/attempts.h"
#include "node/node_impl.h"

/* Tools may take 10 s each. */
enum { ANSWER_MS = 40 * 1000, GPUS_MAX = 1024, PERCENT = 100 };

#define LOAD_MAX 1e6

struct ask {
	struct node_call call;
	struct node_words words;
	struct node_machine *machine;
};

static void ask_free(struct node_call *call)
{
	vec_done(&((struct ask *)call)->words);
}

void node_machine_init(struct node_machine *machine)
{
	*machine = (struct node_machine){.load = -1, .memory_bytes = -1, .memory_free_bytes = -1};
}

void node_machine_done(struct node_machine *machine)
{
	if (!machine)
		return;
	vec_done(&machine->gpus);
	free(machine->fault);
	machine->fault = NULL;
}

/*
 * The engine
 */

/* "3.14", and nothing else that strtod takes. */
static double parse_load(const char *text)
{
	char *end;
	double value;

	if (!*text || text[strspn(text, "0123456789.")])
		return -1;
	value = strtod(text, &end);
	return *end || !isfinite(value) || value > LOAD_MAX ? -1 : value;
}

/* -1: not known. */
static int64_t parse_number(const char *text)
{
	uint64_t value;

	return node_word_number(text, &value) && value <= INT64_MAX ? (int64_t)value : -1;
}

static void take_memory(const struct node_words *words, struct node_machine *machine)
{
	if (words->n < 3)
		return;
	machine->memory_bytes = parse_number(words->v[1]);
	machine->memory_free_bytes = parse_number(words->v[2]);
}

static void take_cpus(const struct node_words *words, struct node_machine *machine)
{
	int64_t cpus = words->n > 1 ? parse_number(words->v[1]) : -1;

	if (cpus > 0 && cpus <= INT_MAX)
		machine->cpus = (unsigned)cpus;
}

static void take_meter(const struct node_words *words, struct node_machine *machine)
{
	char *const *v = words->v;
	int64_t index, busy, power;

	if (words->n < 6)
		return;
	index = parse_number(v[2]);
	busy = parse_number(v[3]);
	power = parse_number(v[5]);
	vec_foreach (struct node_meter, meter, &machine->gpus) {
		if (meter->gpu.index != index || !str_eq(meter->gpu.vendor, v[1]))
			continue;
		meter->busy = busy < 0 || busy > PERCENT ? -1 : (double)busy / PERCENT;
		meter->memory_used_bytes = parse_number(v[4]);
		meter->power_w = power < 0 ? -1 : (double)power / 1000;
	}
}

static int take_gpu(const struct node_words *words, struct node_machine *machine, struct err *err)
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
		return take_gpu(words, machine, err);
	if (str_eq(key, "meter"))
		take_meter(words, machine);
	else if (str_eq(key, "memory"))
		take_memory(words, machine);
	else if (str_eq(key, "cpus"))
		take_cpus(words, machine);
	else if (str_eq(key, "load") && words->n > 1)
		machine->load = parse_load(words->v[1]);
	else if (str_eq(key, "fault") && words->n > 1 && !machine->fault)
		machine->fault = mem_strdup(words->v[1]);
	return 0;
}

/*
 * The request
 */

static int machine_begin(struct node_call *call, struct node_request *request, struct err *err)
{
	struct ask *ask = (struct ask *)call;

	(void)request;
	(void)err;
	node_machine_done(ask->machine);
	node_machine_init(ask->machine);
	return 0;
}

static int machine_line(struct node_call *call, enum channel_flow flow, char *line, struct err *err)
{
	static const char *const keys[] = {"load ", "memory ", "cpus ", "gpu ", "meter ", "fault "};
	struct ask *ask = (struct ask *)call;
	size_t i = 0;

	(void)flow;
	while (i < ARRAY_LEN(keys) && !str_starts(line, keys[i]))
		i++;
	if (i == ARRAY_LEN(keys))
		return 0;
	int r = node_words_split(line, &ask->words, err);
	if (r == 0)
		r = node_machine_line(&ask->words, ask->machine, err);
	return r < 0 ? r : 1;
}

static const struct call_ops machine_ops = {
	.begin = machine_begin, .line = machine_line, .free = ask_free};

struct node_call *node_machine(
	struct node *node, struct node_machine *ret, node_done_fn *done, void *ctx)
{
	struct ask *ask = call_new(node, sizeof(*ask), &machine_ops, done, ctx);

	ask->machine = ret;
	ask->call.answer_ms = ANSWER_MS;
	call_say(&ask->call, "machine\n");
	call_begin(&ask->call);
	return &ask->call;
}
