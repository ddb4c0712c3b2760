/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "targets/kube/kube_archive.h"
#include "targets/kube/target_kube.h"

/*
 * The log of an attempt in a cluster, taken to its archive here without being shown.
 */

struct keeping {
	struct target_work work;
	struct target_call *call;
	struct kube_runlog *runlog;
	struct kube_archive *archive;
	const struct target_kube *kube;
	struct kube_handle handle;
	bool follows, is_kept;
};

/* Behind the ceiling its size is kept. */
static int on_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct keeping *keeping = ctx;
	int r = kube_archive_add(keeping->archive, rank, data, len, time_ms, err);

	return r < 0 ? r : 0;
}

static void on_gap(void *ctx, int rank, const char *text)
{
	struct keeping *keeping = ctx;

	kube_archive_gap(keeping->archive, rank, text, NULL);
}

static int finish(struct keeping *keeping, struct err *err)
{
	keeping->is_kept = true;
	return kube_archive_finish(keeping->archive, err);
}

/* The log kept so far is complete if the run was cancelled: no more will come. */
static bool are_last_words(const struct keeping *keeping)
{
	return keeping->follows && !keeping->is_kept && !kube_archive_is_empty(keeping->archive) &&
	       kube_is_cancelled(keeping->kube, &keeping->handle);
}

static void drop(struct target_work *work)
{
	struct keeping *keeping = (struct keeping *)work;

	if (are_last_words(keeping))
		finish(keeping, NULL);
	kube_archive_free(keeping->archive);
	kube_runlog_free(keeping->runlog);
	free(keeping);
}

static int on_end(void *ctx, struct err *fault, struct err *err)
{
	struct keeping *keeping = ctx;
	AUTO_ERR struct err failure = {0};
	int r = err_is_set(fault) ? err_move(&failure, fault) : finish(keeping, &failure);

	(void)err;
	target_call_end(keeping->call, r, &failure);
	return 0;
}

int kube_keep(struct target *target, const char *handle, bool follow, struct target_call *call,
	struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct kube_archive *archive;
	struct kube_handle place;
	struct keeping *keeping;
	AUTO_BUF struct buf token;

	buf_init(&token, KUBE_ARCHIVE_TOKENS_MAX);
	int r = kube_handle_parse(kube, handle, &place, err);
	if (r < 0)
		return r;
	AUTO_FREE char *dir = dirs_attempt(&kube->session->dirs, place.run_id, place.attempt);
	r = kube_archive_open(dir, KUBE_ARCHIVE_MAX, &archive, err);
	if (r > 0)
		target_call_end_soon(call, target->loop);
	if (r != 0)
		return r < 0 ? r : 0;
	keeping = mem_alloc(1, sizeof(*keeping));
	*keeping = (struct keeping){
		.work = {drop},
		.call = call,
		.kube = kube,
		.handle = place,
		.archive = archive,
		.follows = follow,
	};
	kept_places_token(kube_archive_places(archive), &token);
	const struct kube_runlog_request wanted = {
		.kube_namespace = place.kube_namespace,
		.kind = place.kind,
		.name = place.name,
		.rank = -1,
		.tail_lines = -1,
		.follow = follow,
		.has_ended = !follow,
		.token = token.data,
		.events = {.data = on_data, .gap = on_gap, .end = on_end, .ctx = keeping},
	};
	target_call_begin(call, &keeping->work);
	keeping->runlog = kube_runlog_start(kube->cluster->client, target->loop, &wanted);
	kube_archive_watch(archive, target->loop, keeping->runlog);
	return 0;
}
