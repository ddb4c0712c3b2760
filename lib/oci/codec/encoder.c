/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/codec/codec.h"

#include <stdlib.h>
#include <string.h>

#include "base/loop/par.h"
#include "base/util/mem.h"
#include "oci/codec/encoder_chunk.h"

/* A ring of pieces: one is being filled, those behind it are being packed, and the oldest is
 * written out when its place is needed. Where pieces end depends on the input alone. */
enum { SLOTS_MAX = 9 };

struct slot {
	struct chunk chunk;
	struct par_task *task; /* packs it; NULL: it is packed */
	bool full;             /* in work or packed, not written out */
};

struct encoder {
	enum codec codec;
	codec_out_fn *out;
	void *out_ctx;
	codec_tap_fn *tap;
	void *tap_ctx;
	struct par_task *tap_task;
	const struct chunk *tap_chunk;
	struct slot slots[SLOTS_MAX];
	size_t n_slots;
	size_t fill; /* the slot that takes input */
	bool incompressible;
	uint64_t size_in;
};

struct encoder *encoder_new_width(enum codec codec, unsigned width, codec_out_fn *out, void *ctx)
{
	struct encoder *encoder = mem_alloc(1, sizeof(*encoder));

	encoder->codec = codec;
	encoder->out = out;
	encoder->out_ctx = ctx;
	encoder->n_slots = width <= 1 ? 1 : width + 1U;
	if (encoder->n_slots > SLOTS_MAX)
		encoder->n_slots = SLOTS_MAX;
	return encoder;
}

struct encoder *encoder_new(enum codec codec, codec_out_fn *out, void *ctx)
{
	return encoder_new_width(codec, par_width(), out, ctx);
}

void encoder_set_tap(struct encoder *encoder, codec_tap_fn *tap, void *ctx)
{
	encoder->tap = tap;
	encoder->tap_ctx = ctx;
}

void encoder_set_incompressible(struct encoder *encoder, bool incompressible)
{
	encoder->incompressible = incompressible;
}

static void finish_task(struct par_task **task)
{
	par_wait(*task);
	*task = NULL;
}

/* Write a packed piece out; its slot is free then. */
static int drain(struct encoder *encoder, struct slot *slot, struct err *err)
{
	int r = 0;

	if (!slot->full)
		return 0;
	finish_task(&slot->task);
	if (encoder->tap_chunk == &slot->chunk)
		finish_task(&encoder->tap_task);
	slot->full = false;
	if (slot->chunk.out_len)
		r = encoder->out(encoder->out_ctx, slot->chunk.out, slot->chunk.out_len, err);
	slot->chunk.in_len = 0;
	return r;
}

static void run_pack(void *ctx)
{
	chunk_pack(ctx);
}

static void run_tap(void *ctx)
{
	struct encoder *encoder = ctx;

	encoder->tap(encoder->tap_ctx, encoder->tap_chunk->in, encoder->tap_chunk->in_len);
}

/* The piece has all its input: pack it, beside the caller unless alone, and go to the next slot. */
static void dispatch(struct encoder *encoder, bool alone)
{
	struct slot *slot = &encoder->slots[encoder->fill];

	/* The piece before was seen, so slots cannot be filled again too early. */
	finish_task(&encoder->tap_task);
	encoder->tap_chunk = &slot->chunk;
	slot->full = true;
	if (encoder->tap && alone)
		run_tap(encoder);
	else if (encoder->tap)
		encoder->tap_task = par_start(run_tap, encoder);
	if (alone || encoder->codec == CODEC_NONE)
		run_pack(&slot->chunk);
	else
		slot->task = par_start(run_pack, &slot->chunk);
	encoder->fill = (encoder->fill + 1) % encoder->n_slots;
}

/* The slot to fill, empty or with room. */
static int slot_for(struct encoder *encoder, struct slot **ret, struct err *err)
{
	struct slot *slot = &encoder->slots[encoder->fill];
	bool alone = encoder->n_slots == 1;

	if (!slot->full && slot->chunk.in_len &&
		(slot->chunk.in_len == chunk_room(encoder->codec) ||
			slot->chunk.store != encoder->incompressible)) {
		dispatch(encoder, alone);
		slot = &encoder->slots[encoder->fill];
	}
	int r = drain(encoder, slot, err);
	if (r)
		return r;
	if (!slot->chunk.in)
		chunk_init(&slot->chunk, encoder->codec);
	if (slot->chunk.in_len == 0)
		slot->chunk.store = encoder->incompressible;
	*ret = slot;
	return 0;
}

int encoder_write(struct encoder *encoder, const void *data, size_t len, struct err *err)
{
	const uint8_t *at = data;
	size_t room = chunk_room(encoder->codec);

	while (len) {
		struct slot *slot;
		int r = slot_for(encoder, &slot, err);
		if (r)
			return r;
		size_t n = room - slot->chunk.in_len;
		if (n > len)
			n = len;
		memcpy(slot->chunk.in + slot->chunk.in_len, at, n);
		slot->chunk.in_len += n;
		encoder->size_in += n;
		at += n;
		len -= n;
	}
	return 0;
}

int encoder_end(struct encoder *encoder, struct err *err)
{
	struct slot *slot;

	if (encoder->size_in == 0) {
		int r = slot_for(encoder, &slot, err);
		if (r)
			return r;
	}
	/* A short stream is not worth a thread. */
	dispatch(encoder, encoder->size_in <= chunk_room(encoder->codec));
	for (size_t i = 0; i < encoder->n_slots; i++) {
		int r = drain(
			encoder, &encoder->slots[(encoder->fill + i) % encoder->n_slots], err);
		if (r)
			return r;
	}
	finish_task(&encoder->tap_task);
	return 0;
}

void encoder_free(struct encoder *encoder)
{
	if (!encoder)
		return;
	finish_task(&encoder->tap_task);
	for (size_t i = 0; i < encoder->n_slots; i++) {
		finish_task(&encoder->slots[i].task);
		chunk_done(&encoder->slots[i].chunk);
	}
	free(encoder);
}
