/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/s3_copy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "net/s3/s3.h"

enum {
	S3_COPY_OBJECTS_MAX = 500 * 1000,
	S3_COPY_AHEAD = 8,
	S3_COPY_SMALL = 1 << 20, /* come ahead, into memory */
};

struct s3_wanted {
	const struct s3_object *object;
	struct fetch_range range;
};

/* A get of a wanted object: of the next one that the sink takes, or one ahead. */
struct s3_slot {
	struct s3_copy *copy;
	struct s3_call *call;
	size_t at; /* of wanted */
	bool is_used, is_done, is_begun, is_passed;
	struct buf content;
	struct err error;
};

struct s3_copy {
	struct s3_copy_request request;
	struct s3_address address;
	char *prefix;
	struct s3 *s3;
	struct s3_call *list;
	struct s3_objects objects;
	struct VEC_OF(struct s3_wanted) wanted;
	size_t at, ahead; /* of wanted: which the sink has next, and which is requested next */
	struct s3_slot slots[S3_COPY_AHEAD];
	struct loop_timer *timer; /* of its end */
	struct err error;
};

void s3_copy_cancel(struct s3_copy *copy)
{
	if (!copy)
		return;
	if (copy->timer)
		loop_remove_timer(copy->request.loop, copy->timer);
	err_done(&copy->error);
	s3_free(copy->s3);
	for (size_t i = 0; i < S3_COPY_AHEAD; i++) {
		buf_done(&copy->slots[i].content);
		err_done(&copy->slots[i].error);
	}
	s3_objects_done(&copy->objects);
	vec_done(&copy->wanted);
	s3_address_done(&copy->address);
	free(copy->prefix);
	free(copy);
}

static int s3_copy_due(void *ctx, struct err *err UNUSED)
{
	struct s3_copy *copy = ctx;
	AUTO_ERR struct err error = {0};

	copy->timer = NULL;
	err_move(&error, &copy->error);
	copy->request.done(copy->request.ctx, &error);
	return 0;
}

/* done frees the client, which may be in the midst of a call here. */
static int s3_copy_end(struct s3_copy *copy, struct err *error)
{
	if (copy->timer)
		return 0;
	err_move(&copy->error, error);
	copy->timer = loop_add_timer(copy->request.loop, clock_ms(), s3_copy_due, copy);
	return 0;
}

static struct fetch_item s3_copy_item(const struct s3_copy *copy, const struct s3_object *object)
{
	return (struct fetch_item){
		.path = object->key + strlen(copy->prefix),
		.mode = S_IFREG | 0644,
		.size = object->size,
		.mtime_ns = object->mtime_ms < 0 ? 0 : object->mtime_ms * 1000000,
	};
}

/*
 * Contents
 */

static int s3_copy_go_on(struct s3_copy *copy);

static bool s3_slot_is_small(const struct s3_slot *slot)
{
	return slot->copy->wanted.v[slot->at].range.len <= S3_COPY_SMALL;
}

static int s3_slot_write(struct s3_slot *slot, const void *data, size_t len, struct err *err)
{
	struct s3_copy *copy = slot->copy;
	const struct s3_wanted *wanted = &copy->wanted.v[slot->at];
	struct fetch_item item = s3_copy_item(copy, wanted->object);

	if (!slot->is_begun) {
		int r = fetch_sink_begin(copy->request.sink, &item, &wanted->range, err);

		if (r < 0)
			return r;
		slot->is_begun = true;
		slot->is_passed = r == 0;
	}
	return slot->is_passed || len == 0 ? 0
					   : fetch_sink_write(copy->request.sink, data, len, err);
}

static int s3_slot_on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct s3_slot *slot = ctx;

	if (!s3_slot_is_small(slot))
		return s3_slot_write(slot, data, len, err);
	buf_add(&slot->content, data, len);
	return buf_check(&slot->content, "an object in S3", err);
}

static int s3_slot_on_done(void *ctx, struct err *error, struct err *err UNUSED)
{
	struct s3_slot *slot = ctx;

	slot->call = NULL;
	slot->is_done = true;
	err_move(&slot->error, error);
	return s3_copy_go_on(slot->copy);
}

static void s3_slot_start(struct s3_copy *copy, struct s3_slot *slot, size_t at)
{
	const struct s3_wanted *wanted = &copy->wanted.v[at];
	struct s3_get get = {
		.bucket = copy->address.bucket,
		.key = wanted->object->key,
		.offset = wanted->range.offset,
		.max = wanted->range.len,
		.etag = wanted->object->etag,
		.data = s3_slot_on_data,
		.done = s3_slot_on_done,
		.ctx = slot,
	};

	buf_done(&slot->content);
	*slot = (struct s3_slot){.copy = copy, .at = at, .is_used = true};
	buf_init(&slot->content, S3_COPY_SMALL);
	if (wanted->range.len == 0)
		slot->is_done = true;
	else
		slot->call = s3_get(copy->s3, &get);
}

/* The slot's object as a whole to the sink. One that was replaced or removed since it was listed is
 * as a file that cannot be read. */
static int s3_slot_deliver(struct s3_slot *slot, struct err *err)
{
	struct s3_copy *copy = slot->copy;
	struct fetch_item item = s3_copy_item(copy, copy->wanted.v[slot->at].object);
	int r = 0;

	slot->is_used = false;
	item.changing = slot->error.id == E_S3_CHANGED || slot->error.id == E_S3_NOT_FOUND;
	if (err_is_set(&slot->error) && !item.changing)
		return err_move(err, &slot->error);
	if (!item.changing && s3_slot_is_small(slot))
		r = s3_slot_write(slot, slot->content.data, slot->content.len, err);
	if (item.changing)
		fetch_sink_unread(copy->request.sink, item.path, EIO);
	if (r == 0 && slot->is_begun && !slot->is_passed)
		r = fetch_sink_end(copy->request.sink, &item, err);
	err_clear(&slot->error);
	return r;
}

static struct s3_slot *s3_copy_slot(struct s3_copy *copy, size_t at)
{
	for (size_t i = 0; i < S3_COPY_AHEAD; i++)
		if (copy->slots[i].is_used && copy->slots[i].at == at)
			return &copy->slots[i];
	return NULL;
}

/* Requests for those that come next: a large one when it is the sink's turn. */
static void s3_copy_request_ahead(struct s3_copy *copy)
{
	for (size_t i = 0; i < S3_COPY_AHEAD && copy->ahead < copy->wanted.n; i++) {
		if (copy->slots[i].is_used)
			continue;
		if (copy->ahead != copy->at &&
			copy->wanted.v[copy->ahead].range.len > S3_COPY_SMALL)
			return;
		s3_slot_start(copy, &copy->slots[i], copy->ahead++);
	}
}

static int s3_copy_go_on(struct s3_copy *copy)
{
	AUTO_ERR struct err error = {0};

	while (!copy->timer) {
		s3_copy_request_ahead(copy);
		if (copy->at == copy->wanted.n)
			return s3_copy_end(copy, &error);
		struct s3_slot *slot = s3_copy_slot(copy, copy->at);
		if (!slot || !slot->is_done)
			return 0;
		int r = s3_slot_deliver(slot, &error);
		if (r < 0)
			return s3_copy_end(copy, &error);
		copy->at++;
	}
	return 0;
}

/*
 * The list
 */

static int s3_copy_take(struct s3_copy *copy, const struct s3_object *object, struct err *err)
{
	struct fetch_sink *sink = copy->request.sink;
	struct fetch_item item = s3_copy_item(copy, object);
	struct fetch_range range = {0};
	size_t len = strlen(item.path);

	/* Consoles make such objects for directories. */
	if (len == 0 || item.path[len - 1] == '/')
		return 0;
	if (!fetch_path_is_proper(item.path)) {
		fetch_sink_unread(sink, item.path, EINVAL);
		return 0;
	}
	if (!fetch_sink_names(sink, item.path))
		return 0;
	int r = fetch_sink_wants(sink, &item, &range, err);
	if (r > 0)
		*vec_push(&copy->wanted) = (struct s3_wanted){.object = object, .range = range};
	return r < 0 ? r : 0;
}

static int s3_copy_listed(void *ctx, struct err *error, struct err *err UNUSED)
{
	struct s3_copy *copy = ctx;
	int r = err_is_set(error) ? -(int)error->code : 0;

	copy->list = NULL;
	for (size_t i = 0; r == 0 && i < copy->objects.n; i++)
		r = s3_copy_take(copy, &copy->objects.v[i], error);
	return r < 0 ? s3_copy_end(copy, error) : s3_copy_go_on(copy);
}

int s3_copy_start(const struct s3_copy_request *request, struct s3_copy **ret, struct err *err)
{
	struct s3_copy *copy = mem_alloc(1, sizeof(*copy));
	int r = s3_address_parse(request->address, &copy->address, err);

	copy->request = *request;
	/* Keys are about to be here. */
	os_protect_memory();
	if (r == 0)
		r = s3_open(request->loop, request->http, request->env, &copy->s3, err);
	if (r < 0) {
		s3_copy_cancel(copy);
		return r;
	}
	copy->prefix = mem_printf("%s%s", copy->address.key, *copy->address.key ? "/" : "");
	copy->list = s3_list(copy->s3, copy->address.bucket, copy->prefix, S3_COPY_OBJECTS_MAX,
		&copy->objects, s3_copy_listed, copy);
	*ret = copy;
	return 0;
}
