/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/target/fetch_sink.h"
#include "targets/ssh/target_gang.h"

/*
 * The results of a run on a node: a list of what there is, then in one stream what the sink wants
 * of it. A stream that is cut goes on where it was.
 */

enum { TRIES_MAX = 5, TICK_MS = 2000 };

struct fetching {
	struct node_work base;
	struct fetch_sink *sink;
	char *prefix;    /* of paths here; NULL: none */
	struct buf name; /* a path with it */
	/* Asked with the list: of a run that has ended nothing changes any more. */
	struct node_call *look;
	struct strv names;
	struct node_attempts found;
	bool has_ended;
	struct node_files_scope scope;
	char *only; /* the sink's, without the prefix; or NULL */
	struct node_files files;
	struct VEC_OF(struct node_want) wanted;
	size_t first; /* of wanted: where the present stream began */
	size_t at;    /* of wanted: the file that comes; only with has_file */
	bool has_file;
	struct fetch_item item;
	bool is_passed;   /* the sink does not want it after all */
	uint64_t written; /* of what was asked for of the file */
	int tries;
};

static void release(struct node_work *work)
{
	struct fetching *fetching = (struct fetching *)work;

	node_cancel(fetching->look);
	strv_done(&fetching->names);
	node_attempts_done(&fetching->found);
	node_files_done(&fetching->files);
	vec_done(&fetching->wanted);
	free(fetching->only);
	free(fetching->prefix);
	buf_done(&fetching->name);
	free(fetching);
}

/* Valid until the next one. */
static const char *name_of(struct fetching *fetching, const struct node_file *file)
{
	if (!fetching->prefix)
		return file->path;
	buf_reset(&fetching->name);
	buf_addf(&fetching->name, "%s%s", fetching->prefix, file->path);
	return fetching->name.data;
}

static void describe(
	struct fetching *fetching, const struct node_file *file, struct fetch_item *ret)
{
	static const mode_t kinds[] = {['d'] = S_IFDIR, ['f'] = S_IFREG, ['l'] = S_IFLNK};
	mode_t kind = (size_t)file->kind < ARRAY_LEN(kinds) ? kinds[(size_t)file->kind] : 0;

	*ret = (struct fetch_item){
		.path = name_of(fetching, file),
		.mode = kind | (mode_t)(file->mode & 07777),
		.size = file->kind == 'l' && file->target ? strlen(file->target) : file->size,
		.mtime_ns = file->mtime_ms * 1000000,
		.changing = !fetching->has_ended && clock_wall_ms() - file->mtime_ms < TICK_MS,
		.target = file->target,
	};
}

/*
 * The stream
 */

static int end_file(struct fetching *fetching, struct err *err)
{
	if (!fetching->has_file)
		return 0;
	fetching->has_file = false;
	if (fetching->is_passed)
		return 0;
	/* A file that is shorter than was requested has been truncated since. */
	fetching->item.changing |= fetching->written < fetching->wanted.v[fetching->at].len;
	return fetch_sink_end(fetching->sink, &fetching->item, err);
}

static int on_begin(void *ctx, size_t i, uint64_t size, struct err *err)
{
	struct fetching *fetching = ctx;
	size_t at = fetching->first + i;
	int r;

	(void)size;
	/* The rest of one that was cut. */
	if (fetching->has_file && at == fetching->at)
		return 0;
	r = end_file(fetching, err);
	if (r < 0)
		return r;
	const struct node_want *want = &fetching->wanted.v[at];
	const struct fetch_range range = {want->offset, want->len};
	describe(fetching, want->file, &fetching->item);
	r = fetch_sink_begin(fetching->sink, &fetching->item, &range, err);
	if (r < 0)
		return r;
	fetching->is_passed = r == 0;
	fetching->at = at;
	fetching->has_file = true;
	fetching->written = 0;
	return 0;
}

static int on_data(void *ctx, size_t i, const void *data, size_t len, struct err *err)
{
	struct fetching *fetching = ctx;

	(void)i;
	fetching->written += len;
	return fetching->is_passed ? 0 : fetch_sink_write(fetching->sink, data, len, err);
}

static void get(struct fetching *fetching);

static int on_got(void *ctx, int status, struct err *fault, struct err *err)
{
	struct fetching *fetching = ctx;

	(void)err;
	fetching->base.asked = NULL;
	if (status < 0 && fault->code == ERR_NET && fetching->tries++ < TRIES_MAX) {
		err_clear(fault);
		get(fetching);
		return 0;
	}
	if (status == 0)
		status = end_file(fetching, fault);
	return node_work_end(&fetching->base, status, fault);
}

/* Data received of the interrupted file is not requested again. */
static void shorten(struct fetching *fetching)
{
	struct node_want *want = &fetching->wanted.v[fetching->at];

	want->offset += fetching->written;
	want->len -= fetching->written;
	fetching->written = 0;
}

/* From the file on that was cut, or the first one. */
static void get(struct fetching *fetching)
{
	const struct node_get_events events = {on_begin, on_data, fetching};

	if (fetching->has_file) {
		shorten(fetching);
		fetching->first = fetching->at;
	}
	fetching->base.asked = node_get(fetching->base.host->node, fetching->base.handle.run_id,
		&fetching->scope, fetching->wanted.v + fetching->first,
		fetching->wanted.n - fetching->first, &events, on_got, fetching);
}

/*
 * The list
 */

static int offer(struct fetching *fetching, const struct node_file *file, struct err *err)
{
	struct fetch_range range = {0};
	struct fetch_item item;

	describe(fetching, file, &item);
	if (!fetch_sink_names(fetching->sink, item.path))
		return 0;
	if (file->kind == 'd')
		return fetch_sink_dir(fetching->sink, item.path, item.mode, err);
	if (file->kind == 'l')
		return fetch_sink_link(fetching->sink, &item, err);
	int r = fetch_sink_wants(fetching->sink, &item, &range, err);
	if (r > 0)
		*vec_push(&fetching->wanted) = (struct node_want){file, range.offset, range.len};
	return r < 0 ? r : 0;
}

static int offer_all(struct fetching *fetching)
{
	AUTO_ERR struct err failure = {0};
	struct err *fault = &failure;
	int status = 0;

	for (size_t i = 0; status == 0 && i < fetching->files.n; i++)
		status = offer(fetching, &fetching->files.v[i], fault);
	if (status < 0 || fetching->wanted.n == 0)
		return node_work_end(&fetching->base, status, fault);
	get(fetching);
	return 0;
}

static int on_listed(void *ctx, int status, struct err *fault, struct err *err)
{
	struct fetching *fetching = ctx;

	(void)err;
	fetching->base.asked = NULL;
	if (status < 0)
		return node_work_end(&fetching->base, status, fault);
	return fetching->look ? 0 : offer_all(fetching);
}

static int on_looked(void *ctx, int status, struct err *fault, struct err *err)
{
	struct fetching *fetching = ctx;

	(void)fault;
	(void)err;
	fetching->look = NULL;
	fetching->has_ended = status == 0 && fetching->found.n &&
			      run_state_is_final(run_state_find(fetching->found.v[0].state));
	return fetching->base.asked ? 0 : offer_all(fetching);
}

/* false: what the sink wants is on another host. */
static bool set_scope(struct fetching *fetching)
{
	const char *prefix = fetching->prefix ? fetching->prefix : "";
	const struct fetch_sink *sink = fetching->sink;

	fetching->scope.like = sink->like;
	if (!sink->only)
		return true;
	if (!str_starts(sink->only, prefix))
		return false;
	fetching->only = mem_strdup(sink->only + strlen(prefix));
	fetching->scope.path = fetching->only;
	return true;
}

int node_fetch_rank(struct target *target, const char *handle, const char *prefix,
	struct fetch_sink *sink, struct target_call *call, struct err *err)
{
	struct fetching *fetching = mem_alloc(1, sizeof(*fetching));

	*fetching = (struct fetching){
		.base = {.release = release}, .sink = sink, .prefix = mem_strdup(prefix)};
	buf_init(&fetching->name, 1 << 20);
	if (!set_scope(fetching)) {
		release(&fetching->base);
		target_call_end_soon(call, target->loop);
		return 0;
	}
	int r = node_work_begin(target, handle, &fetching->base, call, err);
	if (r < 0)
		return r;
	fetching->scope.attempt = sink->from_tree ? fetching->base.handle.attempt : 0;
	strv_addf(&fetching->names, "%s/%d", fetching->base.handle.run_id,
		fetching->base.handle.attempt);
	fetching->look = node_state(
		fetching->base.host->node, &fetching->names, &fetching->found, on_looked, fetching);
	fetching->base.asked = node_files(fetching->base.host->node, fetching->base.handle.run_id,
		&fetching->scope, &fetching->files, on_listed, fetching);
	return 0;
}

int target_node_fetch(struct target *target, const char *handle, struct fetch_sink *sink,
	struct target_call *call, struct err *err)
{
	if (node_handle_is_gang(handle))
		return target_gang_fetch(target, handle, sink, call, err);
	return node_fetch_rank(target, handle, NULL, sink, call, err);
}
