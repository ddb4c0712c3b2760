/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "node/node_impl.h"
#include "node/transfer.h"

/* Layers are verified and unpacked behind the last byte. */
enum { UNPACK_MS = 10 * 60 * 1000, HEALS_MAX = 3 };

struct submit {
	struct node_call call;
	const struct node_submit *request;
	struct node_submitted *ret;
	struct node_transfer transfer;
	char spare[NODE_KEY_SIZE];
	bool from_start; /* what is there of the transfer does not fit */
	bool sends_all;  /* layers that were said to be there are not */
	int n_heals;
};

static void submit_free(struct node_call *call)
{
	node_transfer_done(&((struct submit *)call)->transfer);
}

static void say_tree(struct submit *submit)
{
	const struct node_submit *request = submit->request;
	struct buf *text = &submit->call.text;

	for (size_t i = 0; i < request->n_layers; i++)
		buf_addf(text, "tree %s %s\n", request->layers[i].hex, request->layers[i].codec);
	buf_addf(text, "strip %u\n", request->strip);
	if (*submit->spare)
		buf_addf(text, "spare %s %zu\n", submit->spare, request->n_spare);
	buf_addf(text, "need %" PRIu64 "\n", request->need_bytes);
	if (request->tool)
		buf_addf(text, "tool %s\n", request->tool);
}

static int submit_begin(struct node_call *call, struct node_request *request, struct err *err)
{
	struct submit *submit = (struct submit *)call;
	const struct node_hello *hello = node_talk_hello(call->talk);
	uint64_t from;

	(void)err;
	node_transfer_init(&submit->transfer, submit->request,
		submit->sends_all ? NULL : &hello->facts.layers);
	from = submit->from_start ? 0 : node_hello_partial(hello, submit->transfer.name);
	if (from > submit->transfer.total)
		from = 0;
	node_transfer_seek(&submit->transfer, from);
	submit->ret->spare = *submit->spare && strv_find(&hello->facts.spares, submit->spare) >= 0;
	submit->ret->layers_sent = (unsigned)submit->transfer.n_layers;
	buf_reset(&call->text);
	call_attempt(call, "submit", submit->request->run, submit->request->attempt);
	node_transfer_lines(&submit->transfer, from, &call->text);
	say_tree(submit);
	request->answer_ms = UNPACK_MS;
	return 0;
}

static ssize_t submit_payload(struct node_call *call, void *out, size_t len, struct err *err)
{
	struct submit *submit = (struct submit *)call;
	const struct node_submit *request = submit->request;
	size_t got = 0;

	while (got < len) {
		ssize_t n =
			node_transfer_read(&submit->transfer, (char *)out + got, len - got, err);

		if (n < 0)
			return n;
		if (n == 0)
			break;
		got += (size_t)n;
	}
	if (got && request->progress)
		request->progress(request->ctx, submit->transfer.at, submit->transfer.total);
	return (ssize_t)got;
}

static int submit_line(struct node_call *call, enum channel_flow flow, char *line, struct err *err)
{
	(void)call;
	(void)flow;
	(void)err;
	return str_starts(line, "accepted ");
}

/* The node does not have what it said a moment ago: send everything in question again. */
static bool heal(struct submit *submit, enum node_class class)
{
	if (class != NODE_CLASS_GONE && class != NODE_CLASS_MISSING && class != NODE_CLASS_CORRUPT)
		return false;
	if (submit->n_heals++ >= HEALS_MAX)
		return false;
	submit->from_start = true;
	submit->sends_all = submit->sends_all || class == NODE_CLASS_MISSING;
	return true;
}

static enum call_next submit_ended(struct node_call *call, struct err *fault)
{
	struct submit *submit = (struct submit *)call;

	if (err_is_set(fault) && heal(submit, node_talk_class(call->talk)))
		return CALL_AGAIN;
	/* A transfer that was begun anew may go on where it is cut next. */
	if (err_is_set(fault) && fault->code == ERR_NET)
		submit->from_start = false;
	return call_next(call, fault);
}

static void submit_over(struct node_call *call, const struct err *fault)
{
	(void)fault;
	((struct submit *)call)->ret->bytes_sent = call->sent;
}

static const struct call_ops submit_ops = {
	.begin = submit_begin,
	.line = submit_line,
	.payload = submit_payload,
	.ended = submit_ended,
	.over = submit_over,
	.free = submit_free,
};

static int check_layer(const struct node_layer *layer, struct err *err)
{
	static const char *const codecs[] = {"gzip", "zstd", "none"};
	AUTO_FREE char *shown = str_shown(layer->codec ? layer->codec : "");

	if (!node_name_is_good(layer->hex))
		return err_set(err, E_BUG, "a layer without a name");
	for (size_t i = 0; i < ARRAY_LEN(codecs); i++)
		if (str_eq(layer->codec, codecs[i]))
			return 0;
	return err_set(err, E_BUG, "a layer is compressed by \"%s\"", shown);
}

static int check(const struct node_submit *request, struct err *err)
{
	int r = node_check_attempt(request->run, request->attempt, err);

	for (size_t i = 0; i < request->n_layers && r == 0; i++)
		r = check_layer(&request->layers[i], err);
	return r;
}

struct node_call *node_submit(struct node *node, const struct node_submit *request,
	struct node_submitted *ret, node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err fault = {0};
	struct submit *submit = call_new(node, sizeof(*submit), &submit_ops, done, ctx);

	*ret = (struct node_submitted){0};
	submit->request = request;
	submit->ret = ret;
	node_spare_key(request, submit->spare);
	if (check(request, &fault) < 0)
		call_finish(&submit->call, &fault);
	else
		call_begin(&submit->call);
	return &submit->call;
}
