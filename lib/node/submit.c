/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "node/node_impl.h"

/*
 * Names
 */

static void node_submit_add_text(struct digest *digest, const char *text)
{
	digest_add(digest, text, strlen(text) + 1);
}

static void end_key(struct digest *digest, char out[static NODE_KEY_SIZE])
{
	uint8_t hash[SHA256_SIZE];

	digest_end(digest, hash);
	digest_done(digest);
	hex_encode(hash, (NODE_KEY_SIZE - 1) / 2, out);
}

void node_spare_key(const struct node_submit *request, char out[static NODE_KEY_SIZE])
{
	struct digest digest = {0};
	char number[24];

	*out = '\0';
	if (!request->n_spare)
		return;
	digest_begin(&digest, DIGEST_SHA256);
	snprintf(number, sizeof(number), "%u", request->strip);
	node_submit_add_text(&digest, number);
	for (size_t i = 0; i < request->n_spare && i < request->n_layers; i++) {
		node_submit_add_text(&digest, request->layers[i].hex);
		node_submit_add_text(&digest, request->layers[i].codec);
	}
	end_key(&digest, out);
}

/* Of all that is in it: the same bytes have the same name, whoever sends them. */
static void node_submit_set_name(struct node_transfer *transfer)
{
	struct digest digest = {0};

	digest_begin(&digest, DIGEST_SHA256);
	node_submit_add_text(&digest, transfer->request->run);
	vec_foreach (struct node_part, part, &transfer->parts) {
		char size[24];

		snprintf(size, sizeof(size), "%" PRIu64, part->size);
		node_submit_add_text(&digest, part->kind);
		node_submit_add_text(&digest, size);
		node_submit_add_text(&digest, part->layer ? part->layer->hex : part->data);
	}
	end_key(&digest, transfer->name);
}

/*
 * Parts
 */

static void add_part(struct node_transfer *transfer, const char *kind, const char *data,
	const struct node_layer *layer)
{
	if (!data && !layer)
		return;
	struct node_part *part = vec_push(&transfer->parts);

	*part = (struct node_part){.kind = kind,
		.data = data,
		.layer = layer,
		.size = layer ? layer->size : strlen(data)};
	transfer->total += part->size;
}

void node_transfer_init(
	struct node_transfer *transfer, const struct node_submit *request, const struct strv *kept)
{
	node_transfer_done(transfer);
	transfer->request = request;
	transfer->fd = -1;
	add_part(transfer, "job", request->job, NULL);
	add_part(transfer, "record", request->record, NULL);
	add_part(transfer, "apply", request->apply, NULL);
	for (size_t i = 0; i < request->n_layers; i++) {
		if (kept && strv_find(kept, request->layers[i].hex) >= 0)
			continue;
		add_part(transfer, "layer", NULL, &request->layers[i]);
		transfer->n_layers++;
	}
	/* Last, so that a transfer that is cut has none of them to wait with. */
	add_part(transfer, "secrets", request->secrets, NULL);
	node_submit_set_name(transfer);
}

static void close_part(struct node_transfer *transfer)
{
	if (transfer->fd >= 0)
		close(TAKE_FD(transfer->fd));
}

void node_transfer_done(struct node_transfer *transfer)
{
	/* A zero one has no descriptor, and no request either. */
	if (!transfer || !transfer->request)
		return;
	close_part(transfer);
	vec_done(&transfer->parts);
	*transfer = (struct node_transfer){.fd = -1};
}

void node_transfer_lines(const struct node_transfer *transfer, uint64_t from, struct buf *out)
{
	buf_addf(out, "transfer %s %" PRIu64 " %" PRIu64 "\n", transfer->name, transfer->total,
		from);
	vec_foreach (struct node_part, part, &transfer->parts) {
		buf_addf(out, "part %s %" PRIu64, part->kind, part->size);
		if (part->layer)
			buf_addf(out, " %s", part->layer->hex);
		buf_addc(out, '\n');
	}
}

void node_transfer_seek(struct node_transfer *transfer, uint64_t from)
{
	close_part(transfer);
	transfer->at = from;
}

/* The part that holds the next byte, and where that is in it. NULL: the end. */
static const struct node_part *find_part(const struct node_transfer *transfer, uint64_t *ret_at)
{
	uint64_t start = 0;

	vec_foreach (struct node_part, part, &transfer->parts) {
		if (transfer->at < start + part->size) {
			*ret_at = transfer->at - start;
			return part;
		}
		start += part->size;
	}
	return NULL;
}

static int node_submit_open_layer(
	struct node_transfer *transfer, const struct node_part *part, uint64_t at, struct err *err)
{
	int fd = part->layer->open(part->layer->ctx, err);

	if (fd < 0)
		return fd;
	transfer->fd = fd;
	if (at && lseek(fd, (off_t)at, SEEK_SET) < 0)
		return err_set_errno(err, E_IO, errno, "cannot read layer %.12s", part->layer->hex);
	return 0;
}

static ssize_t read_layer(struct node_transfer *transfer, const struct node_part *part, uint64_t at,
	void *out, size_t len, struct err *err)
{
	ssize_t n;

	if (transfer->fd < 0) {
		int r = node_submit_open_layer(transfer, part, at, err);
		if (r < 0)
			return r;
	}
	do
		n = read(transfer->fd, out, len);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_set_errno(err, E_IO, errno, "cannot read layer %.12s", part->layer->hex);
	if (n == 0)
		return err_set(err, E_IO_CHANGED, "layer %.12s became shorter while it was sent",
			part->layer->hex);
	if (at + (uint64_t)n == part->size)
		close_part(transfer);
	return n;
}

ssize_t node_transfer_read(struct node_transfer *transfer, void *out, size_t len, struct err *err)
{
	uint64_t at = 0;
	const struct node_part *part = find_part(transfer, &at);
	ssize_t n;

	if (!part)
		return 0;
	if (len > part->size - at)
		len = (size_t)(part->size - at);
	if (part->layer) {
		n = read_layer(transfer, part, at, out, len, err);
	} else {
		memcpy(out, part->data + at, len);
		n = (ssize_t)len;
	}
	if (n > 0)
		transfer->at += (uint64_t)n;
	return n;
}

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

static void node_submit_free(struct node_call *call)
{
	node_transfer_done(&((struct submit *)call)->transfer);
}

static void print_tree(struct submit *submit)
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
	if (request->pool) {
		buf_adds(text, "pool");
		node_word_add(text, request->pool);
		buf_addc(text, '\n');
	}
}

static int submit_begin(
	struct node_call *call, struct node_request *request, struct err *err UNUSED)
{
	struct submit *submit = (struct submit *)call;
	const struct node_handshake *handshake = node_conn_handshake(call->conn);
	uint64_t from;

	node_transfer_init(&submit->transfer, submit->request,
		submit->sends_all ? NULL : &handshake->facts.layers);
	from = submit->from_start ? 0 : node_handshake_partial(handshake, submit->transfer.name);
	if (from > submit->transfer.total)
		from = 0;
	node_transfer_seek(&submit->transfer, from);
	submit->ret->spare =
		*submit->spare && strv_find(&handshake->facts.spares, submit->spare) >= 0;
	submit->ret->layers_sent = (unsigned)submit->transfer.n_layers;
	buf_reset(&call->text);
	call_attempt(call, "submit", submit->request->run, submit->request->attempt);
	node_transfer_lines(&submit->transfer, from, &call->text);
	print_tree(submit);
	request->response_ms = UNPACK_MS;
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

static int submit_line(struct node_call *call UNUSED, enum channel_flow flow UNUSED, char *line,
	struct err *err UNUSED)
{
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

static enum call_next submit_ended(struct node_call *call, struct err *error)
{
	struct submit *submit = (struct submit *)call;

	if (err_is_set(error) && heal(submit, node_conn_info(call->conn)->class))
		return CALL_AGAIN;
	/* A transfer that was begun anew may go on where it is cut next. */
	if (err_is_set(error) && error->code == ERR_NET)
		submit->from_start = false;
	return call_next(call, error);
}

static void submit_over(struct node_call *call, const struct err *error UNUSED)
{
	((struct submit *)call)->ret->bytes_sent = call->sent;
}

static const struct call_ops submit_ops = {
	.begin = submit_begin,
	.line = submit_line,
	.payload = submit_payload,
	.ended = submit_ended,
	.over = submit_over,
	.free = node_submit_free,
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

static int node_submit_check(const struct node_submit *request, struct err *err)
{
	int r = node_check_attempt(request->run, request->attempt, err);

	for (size_t i = 0; i < request->n_layers && r == 0; i++)
		r = check_layer(&request->layers[i], err);
	return r;
}

struct node_call *node_submit(struct node *node, const struct node_submit *request,
	struct node_submitted *ret, node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err error = {0};
	struct submit *submit = call_new(node, sizeof(*submit), &submit_ops, done, ctx);

	*ret = (struct node_submitted){0};
	submit->request = request;
	submit->ret = ret;
	node_spare_key(request, submit->spare);
	return call_begin_checked(&submit->call, node_submit_check(request, &error), &error);
}

/* Content-addressed data. */

/* Time to unpack the data and make it durable, after the last byte. */
enum { DATA_UNPACK_MS = 10 * 60 * 1000 };

struct data {
	struct node_call call;
	int (*open)(void *ctx, struct err *err);
	void *open_ctx;
	struct node_fd input;
	int fd; /* -1: it is not wanted, or not yet */
};

static void close_input(struct data *data)
{
	node_fd_done(&data->input);
	if (data->fd >= 0)
		close(TAKE_FD(data->fd));
}

static void data_free(struct node_call *call)
{
	close_input((struct data *)call);
}

static int data_begin(struct node_call *call, struct node_request *request, struct err *err UNUSED)
{
	close_input((struct data *)call);
	request->response_ms = DATA_UNPACK_MS;
	return 0;
}

static void on_input(void *ctx)
{
	struct data *data = ctx;

	if (data->call.conn)
		node_conn_wake(data->call.conn);
}

static int data_line(
	struct node_call *call, enum channel_flow flow UNUSED, char *line, struct err *err)
{
	struct data *data = (struct data *)call;

	if (str_starts(line, "have "))
		return 1;
	if (!str_starts(line, "want ") || data->fd >= 0)
		return 0;
	data->fd = data->open(data->open_ctx, err);
	if (data->fd < 0)
		return data->fd;
	node_fd_init(&data->input, call->node->options.loop, data->fd, POLLIN, on_input, data);
	node_conn_wake(call->conn);
	return 1;
}

static ssize_t data_payload(struct node_call *call, void *out, size_t len, struct err *err)
{
	struct data *data = (struct data *)call;

	return data->fd < 0 ? CHANNEL_AGAIN : node_fd_read(&data->input, out, len, err);
}

static const struct call_ops data_ops = {
	.begin = data_begin, .line = data_line, .payload = data_payload, .free = data_free};

struct node_call *node_data(struct node *node, const char *key,
	int (*open)(void *ctx, struct err *err), void *open_ctx, node_done_fn *done, void *ctx)
{
	struct data *data = call_new(node, sizeof(*data), &data_ops, done, ctx);
	AUTO_ERR struct err error = {0};

	data->fd = -1;
	data->open = open;
	data->open_ctx = open_ctx;
	call_add_text(&data->call, "data");
	call_word(&data->call, key);
	call_line_end(&data->call);
	int r = node_name_is_good(key) ? 0 : err_set(&error, E_BUG, "data without a name");
	return call_begin_checked(&data->call, r, &error);
}
