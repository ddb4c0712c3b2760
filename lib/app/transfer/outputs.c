/* SPDX-License-Identifier: Apache-2.0 */
#include "app/transfer/outputs.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/target/fetch_sink.h"
#include "core/target/target_work.h"

/* Sink for lists and reads: notes the files that are offered, or takes the content of one file. */
struct outputs_call {
	struct fetch_sink sink;
	struct target_call call;
	struct loop *loop;
	struct loop_timer *timer; /* of what failed at once */
	struct err error;
	outputs_done_fn *done;
	void *ctx;
	char *path;
	/* A list. */
	struct outputs_files *files; /* NULL: a file is read */
	size_t max;
	/* A file. */
	struct fetch_range range; /* that is asked for */
	bool is_found;
	int unread_errnum;
	int (*data)(void *ctx, const void *data, size_t len, struct err *err);
};

static struct outputs_call *outputs_call_of(struct fetch_sink *sink)
{
	return (struct outputs_call *)sink;
}

void outputs_cancel(struct outputs_call *call)
{
	if (!call)
		return;
	target_call_cancel(&call->call);
	loop_remove_timer(call->loop, call->timer);
	err_done(&call->error);
	free(call->path);
	free(call);
}

static int outputs_wants(struct fetch_sink *sink, const struct fetch_item *item,
	struct fetch_range *ret, struct err *err)
{
	struct outputs_call *call = outputs_call_of(sink);

	if (!fetch_path_is_proper(item->path))
		return 0;
	if (call->files) {
		if (call->files->n >= call->max)
			return err_set(err, E_DATA_LIMIT, "the results are more than %zu files",
				call->max);
		*vec_push(call->files) =
			(struct outputs_file){mem_strdup(item->path), item->size, item->mtime_ns};
		return 0;
	}
	call->is_found = true;
	if (call->range.offset >= item->size || call->range.len == 0)
		return 0;
	*ret = call->range;
	if (ret->len > item->size - ret->offset)
		ret->len = item->size - ret->offset;
	return 1;
}

static int outputs_begin(struct fetch_sink *sink UNUSED, const struct fetch_item *item UNUSED,
	const struct fetch_range *range UNUSED, struct err *err UNUSED)
{
	return 1;
}

/* A connection that is cut goes on behind what was handed on. */
static int outputs_write(struct fetch_sink *sink, const void *data, size_t len, struct err *err)
{
	struct outputs_call *call = outputs_call_of(sink);

	call->range.offset += len;
	call->range.len -= len < call->range.len ? len : call->range.len;
	return call->data(call->ctx, data, len, err);
}

static int outputs_end(struct fetch_sink *sink UNUSED, const struct fetch_item *item UNUSED,
	struct err *err UNUSED)
{
	return 0;
}

static void outputs_unread(struct fetch_sink *sink, const char *path, int errnum)
{
	if (str_eq(sink->only, path))
		outputs_call_of(sink)->unread_errnum = errnum;
}

static const struct fetch_sink_ops outputs_ops = {
	.wants = outputs_wants,
	.begin = outputs_begin,
	.write = outputs_write,
	.end = outputs_end,
	.unread = outputs_unread,
};

static int outputs_by_path(const void *a, const void *b)
{
	return strcmp(
		((const struct outputs_file *)a)->path, ((const struct outputs_file *)b)->path);
}

static int no_such_file(const struct outputs_call *call, struct err *err)
{
	AUTO_FREE char *shown = str_shown(call->path);

	return err_set(err, E_FETCH_PATH, "no file of the results is called '%s'", shown);
}

static int outputs_check(const struct outputs_call *call, struct err *err)
{
	if (call->files || (call->is_found && !call->unread_errnum))
		return 0;
	if (!call->unread_errnum)
		return no_such_file(call, err);
	AUTO_FREE char *shown = str_shown(call->path);
	return err_set_errno(
		err, E_IO_READ, call->unread_errnum, "'%s' of the results cannot be read", shown);
}

static void outputs_finish(struct outputs_call *call, int status, struct err *error)
{
	outputs_done_fn *done = call->done;
	void *ctx = call->ctx;

	if (call->files)
		vec_sort(call->files, outputs_by_path);
	if (status == 0)
		status = outputs_check(call, error);
	outputs_cancel(call);
	done(ctx, status, error);
}

static void outputs_on_done(struct target_call *call, int status, struct err *err)
{
	AUTO_ERR struct err error = {0};

	if (status < 0)
		err_move(&error, err);
	outputs_finish(CONTAINER_OF(call, struct outputs_call, call), status, &error);
}

static int outputs_on_failed(void *ctx, struct err *err UNUSED)
{
	struct outputs_call *call = ctx;
	AUTO_ERR struct err error = {0};

	call->timer = NULL;
	err_move(&error, &call->error);
	outputs_finish(call, -(int)error.code, &error);
	return 0;
}

static void outputs_start(struct outputs_call *call, struct target *target, const char *handle)
{
	int r = 0;

	call->call = (struct target_call){.done = outputs_on_done};
	call->loop = target->loop;
	call->sink.ops = &outputs_ops;
	if (call->path && !fetch_path_is_proper(call->path))
		r = no_such_file(call, &call->error);
	else if (!target->ops->fetch)
		r = err_set(&call->error, E_TARGET_UNSUPPORTED,
			"targets of kind %s have no results", target->ops->kind);
	else
		r = target->ops->fetch(target, handle, &call->sink, &call->call, &call->error);
	if (r < 0)
		call->timer = loop_add_timer(call->loop, 0, outputs_on_failed, call);
}

struct outputs_call *outputs_list(struct target *target, const char *handle, const char *path,
	enum outputs_effort effort, size_t max, struct outputs_files *ret, outputs_done_fn *done,
	void *ctx)
{
	struct outputs_call *call = mem_alloc(1, sizeof(*call));

	*call = (struct outputs_call){.done = done,
		.ctx = ctx,
		.path = mem_strdup(path),
		.files = ret,
		.max = max < OUTPUTS_FILES_MAX ? max : OUTPUTS_FILES_MAX};
	call->sink.only = call->path;
	call->sink.is_brief = effort == OUTPUTS_BRIEF;
	outputs_start(call, target, handle);
	return call;
}

int outputs_list_now(struct target *target, const char *handle, struct fetch_paths *paths,
	bool from_tree, const volatile int *interrupted, struct outputs_files *ret, struct err *err)
{
	struct outputs_call call = {
		.sink = {.ops = &outputs_ops, .paths = paths, .from_tree = from_tree},
		.files = ret,
		.max = OUTPUTS_FILES_MAX,
	};
	int r = target_fetch(target, handle, &call.sink, interrupted, err);

	vec_sort(ret, outputs_by_path);
	return r;
}

struct outputs_call *outputs_read(struct target *target, const char *handle, const char *path,
	uint64_t offset, uint64_t max,
	int (*data)(void *ctx, const void *data, size_t len, struct err *err),
	outputs_done_fn *done, void *ctx)
{
	struct outputs_call *call = mem_alloc(1, sizeof(*call));

	*call = (struct outputs_call){.done = done,
		.ctx = ctx,
		.path = mem_strdup(path),
		.range = {offset, max},
		.data = data};
	call->sink.only = call->path;
	outputs_start(call, target, handle);
	return call;
}
