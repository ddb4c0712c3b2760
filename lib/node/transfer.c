/* SPDX-License-Identifier: Apache-2.0 */
#include "node/transfer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/*
 * Names
 */

static void add_text(struct digest *digest, const char *text)
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
	add_text(&digest, number);
	for (size_t i = 0; i < request->n_spare && i < request->n_layers; i++) {
		add_text(&digest, request->layers[i].hex);
		add_text(&digest, request->layers[i].codec);
	}
	end_key(&digest, out);
}

/* Of all that is in it: the same bytes have the same name, whoever sends them. */
static void set_name(struct node_transfer *transfer)
{
	struct digest digest = {0};

	digest_begin(&digest, DIGEST_SHA256);
	add_text(&digest, transfer->request->run);
	vec_foreach (struct node_part, part, &transfer->parts) {
		char size[24];

		snprintf(size, sizeof(size), "%" PRIu64, part->size);
		add_text(&digest, part->kind);
		add_text(&digest, size);
		add_text(&digest, part->layer ? part->layer->hex : part->data);
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
	set_name(transfer);
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

static int open_layer(
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
		int r = open_layer(transfer, part, at, err);
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
