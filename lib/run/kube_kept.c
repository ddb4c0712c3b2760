#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "kube/runlog.h"
#include "run/attempt.h"
#include "run/target_kube.h"
#include "run/target_local.h"

/*
 * Reading what kube_keep has kept: one rank after the other.
 */

enum { NUMBER_MAX = 32 };

struct kept {
	struct target_work work;
	struct target_call *call;
	struct target_call inner; /* of the rank */
	struct loop *loop;
	struct target_log_request request;
	char *dir; /* ranks/ */
	char token[TARGET_TOKEN_SIZE];
	int rank;
};

static void drop(struct target_work *work)
{
	struct kept *kept = (struct kept *)work;

	target_call_cancel(&kept->inner);
	free(kept->dir);
	free(kept);
}

static int on_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	const struct kept *kept = ctx;

	(void)rank;
	return kept->request.events.data(
		kept->request.events.ctx, kept->rank, data, len, time_ms, err);
}

static bool read_rank(struct kept *kept);

static void on_done(struct target_call *call, int status, struct err *err)
{
	struct kept *kept = (struct kept *)((char *)call - offsetof(struct kept, inner));

	if (status == 0 && kept->request.rank < 0) {
		kept->rank++;
		if (read_rank(kept))
			return;
	}
	target_call_end(kept->call, status, err);
}

/* The next one that has said something. */
static bool read_rank(struct kept *kept)
{
	struct target_log_request request = kept->request;

	request.follow = false;
	request.events.data = on_data;
	request.events.ctx = kept;
	request.events.notice = NULL;
	for (; kept->rank < KUBE_KEEP_RANKS_MAX; kept->rank++) {
		struct local_place place = {.dir = mem_printf("%s/%d", kept->dir, kept->rank)};
		if (access(place.dir, F_OK) == 0) {
			kept->inner = (struct target_call){.done = on_done};
			local_logs_read(kept->loop, &place, &request, kept->token, &kept->inner);
			return true;
		}
		local_place_done(&place);
		if (kept->request.rank >= 0)
			break;
	}
	return false;
}

static void say_missing(const struct kept *kept)
{
	const struct target_log_events *events = &kept->request.events;
	AUTO_FREE char *path = fs_join(kept->dir, KUBE_KEPT_RESTARTS);
	AUTO_BUF struct buf text = {0};
	int64_t restarts = 0;

	if (!events->notice || kept->request.tail_lines >= 0 ||
		fs_read(path, NUMBER_MAX, &text, NULL, NULL) < 0)
		return;
	if (str_to_int(text.data, 1, INT32_MAX, "restarts", &restarts, NULL) < 0)
		return;
	AUTO_FREE char *line = kube_runlog_restarts_text(restarts);
	events->notice(events->ctx, line);
}

bool kube_kept_logs(struct target_kube *kube, const struct kube_handle *handle,
	const struct target_log_request *request, struct target_call *call)
{
	AUTO_FREE char *dir = dirs_attempt(&kube->session->dirs, handle->run_id, handle->attempt);
	AUTO_FREE char *ranks = fs_join(dir, ATTEMPT_RANKS);
	struct kept *kept;

	if (request->token || access(ranks, F_OK) < 0)
		return false;
	kept = mem_alloc(1, sizeof(*kept));
	*kept = (struct kept){
		.work = {drop},
		.call = call,
		.loop = kube->target.loop,
		.request = *request,
		.dir = TAKE(ranks),
		.rank = request->rank < 0 ? 0 : request->rank,
	};
	say_missing(kept);
	if (read_rank(kept)) {
		target_call_begin(call, &kept->work);
	} else {
		drop(&kept->work);
		target_call_end_soon(call, kube->target.loop);
	}
	return true;
}
