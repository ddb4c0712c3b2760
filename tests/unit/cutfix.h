/* SPDX-License-Identifier: Apache-2.0 */
/* Channels that are cut behind so many bytes, both ways counted, as a connection that breaks. */
#ifndef DLRUN_TESTS_UNIT_CUTFIX_H
#define DLRUN_TESTS_UNIT_CUTFIX_H

#include <stdlib.h>

#include "base/util/mem.h"
#include "net/stream/channel.h"

struct cut_channel {
	struct channel channel;
	struct channel *inner;
	int64_t left;
};

static inline int cut_error(struct err *err)
{
	return err_set(err, E_SSH_LOST, "cut");
}

static inline ssize_t cut_count(struct cut_channel *self, ssize_t n)
{
	if (n > 0)
		self->left -= n;
	return n;
}

static inline ssize_t cut_read(
	struct channel *channel, enum channel_flow flow, void *out, size_t len, struct err *err)
{
	struct cut_channel *self = (struct cut_channel *)channel;

	if (self->left <= 0)
		return cut_error(err);
	if (len > (size_t)self->left)
		len = (size_t)self->left;
	return cut_count(self, self->inner->ops->read(self->inner, flow, out, len, err));
}

static inline ssize_t cut_write(
	struct channel *channel, const void *data, size_t len, struct err *err)
{
	struct cut_channel *self = (struct cut_channel *)channel;

	if (self->left <= 0)
		return cut_error(err);
	if (len > (size_t)self->left)
		len = (size_t)self->left;
	return cut_count(self, self->inner->ops->write(self->inner, data, len, err));
}

static inline int cut_send_eof(struct channel *channel, struct err *err)
{
	struct cut_channel *self = (struct cut_channel *)channel;

	return self->left <= 0 ? cut_error(err) : self->inner->ops->send_eof(self->inner, err);
}

static inline int cut_wait(struct channel *channel, struct channel_exit *ret, struct err *err)
{
	struct cut_channel *self = (struct cut_channel *)channel;

	return self->left <= 0 ? cut_error(err) : self->inner->ops->wait(self->inner, ret, err);
}

static inline void cut_free(struct channel *channel)
{
	struct cut_channel *self = (struct cut_channel *)channel;

	channel_free(self->inner);
	free(self);
}

static inline int cut_ready(void *ctx, struct err *err)
{
	struct cut_channel *self = ctx;

	return self->channel.events.ready(self->channel.events.ctx, err);
}

static inline struct channel_events cut_events(struct cut_channel *self)
{
	return (struct channel_events){.ready = cut_ready, .ctx = self};
}

/* The inner one is set by the caller, with cut_events. */
static inline struct cut_channel *cut_new(int64_t left, const struct channel_events *events)
{
	static const struct channel_ops ops = {.read = cut_read,
		.write = cut_write,
		.send_eof = cut_send_eof,
		.wait = cut_wait,
		.free = cut_free};
	struct cut_channel *self = mem_alloc(1, sizeof(*self));

	*self = (struct cut_channel){.channel = {.ops = &ops, .events = *events}, .left = left};
	return self;
}

#endif
