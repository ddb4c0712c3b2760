#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "kube/runlog.h"
#include "run/kube_mend.h"
#include "run/target_kube.h"

/*
 * The log of an attempt, and while its program has not begun what it waits for: that is asked for
 * now and then, and said when it has changed. What a JobSet removes on the way is kept meanwhile.
 */

/* Most programs have begun before the first look: its requests would take the connections that are
 * open from the log. */
enum { FIRST_LOOK_MS = 2500, LOOK_MS = 2000, LOOK_LIMIT_MS = 15000 };

struct following {
	struct target_work work;
	struct target_kube *kube;
	struct target_call *call;
	struct target_log_events events;
	struct kube_runlog *runlog;
	char *token; /* the caller's */
	char *handle;
	struct err refused, fault;
	struct target_call keep; /* of a JobSet, from its beginning on */
	bool is_over, keeps;
	/* what it waits for */
	struct loop_timer *timer;
	struct target_call look;
	struct target_status status;
	char *said;
	bool has_begun;
};

static void drop(struct target_work *work)
{
	struct following *following = (struct following *)work;

	kube_runlog_free(following->runlog);
	loop_remove_timer(following->kube->target.loop, following->timer);
	target_call_cancel(&following->look);
	target_call_cancel(&following->keep);
	target_status_done(&following->status);
	err_done(&following->refused);
	err_done(&following->fault);
	free(following->handle);
	free(following->said);
	free(following);
}

/*
 * Waiting
 */

static void look_later(struct following *following, int64_t ms);

static void say_status(struct following *following)
{
	const struct target_status *status = &following->status;
	const char *text = status->text;

	if (status->state == RUN_RUNNING || run_state_is_final(status->state)) {
		following->has_begun = true;
		return;
	}
	if (!text || str_eq(text, following->said))
		return;
	free(following->said);
	following->said = mem_strdup(text);
	if (following->events.notice) {
		AUTO_FREE char *line = mem_printf("%s: %s", run_state_name(status->state), text);
		following->events.notice(following->events.ctx, line);
	}
}

static void on_looked(struct target_call *call, int r, struct err *err)
{
	struct following *following =
		(struct following *)((char *)call - offsetof(struct following, look));

	if (r == 0)
		say_status(following);
	else
		err_clear(err);
	target_status_done(&following->status);
	if (!following->has_begun)
		look_later(following, LOOK_MS);
}

static int look(void *ctx, struct err *err)
{
	struct following *following = ctx;

	following->timer = NULL;
	if (following->has_begun)
		return 0;
	following->look =
		(struct target_call){.deadline_ms = clock_ms() + LOOK_LIMIT_MS, .done = on_looked};
	return kube_state(&following->kube->target, following->handle, &following->status,
		&following->look, err);
}

static void look_later(struct following *following, int64_t ms)
{
	following->timer =
		loop_add_timer(following->kube->target.loop, clock_ms() + ms, look, following);
}

/*
 * The log
 */

static void keep_token(struct following *following)
{
	AUTO_BUF struct buf token;

	buf_init(&token, 1 << 20);
	kube_runlog_token(following->runlog, &token);
	/* That of many ranks does not fit: then the log is begun anew. */
	if (token.len < TARGET_TOKEN_SIZE)
		memcpy(following->token, token.data, token.len + 1);
}

static int on_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct following *following = ctx;

	following->has_begun = true;
	return following->events.data(following->events.ctx, rank, data, len, time_ms, err);
}

static void on_notice(void *ctx, int rank, const char *text)
{
	struct following *following = ctx;

	if (!following->events.notice)
		return;
	if (rank < 0) {
		following->events.notice(following->events.ctx, text);
		return;
	}
	AUTO_FREE char *line = mem_printf("rank %d: %s", rank, text);
	following->events.notice(following->events.ctx, line);
}

static void end_both(struct following *following)
{
	AUTO_ERR struct err own = {0};
	int r;

	if (!following->is_over || following->keeps)
		return;
	/* Who has the fault ends before it is told. */
	r = err_is_set(&following->fault) ? err_move(&own, &following->fault) : 0;
	target_call_end(following->call, r, &own);
}

static int on_end(void *ctx, struct err *fault, struct err *err)
{
	struct following *following = ctx;

	(void)err;
	keep_token(following);
	following->is_over = true;
	if (err_is_set(fault)) {
		err_move(&following->fault, fault);
		following->keeps = false;
	}
	end_both(following);
	return 0;
}

static void on_kept(struct target_call *call, int r, struct err *err)
{
	struct following *following =
		(struct following *)((char *)call - offsetof(struct following, keep));

	(void)r;
	err_clear(err);
	following->keeps = false;
	end_both(following);
}

static void keep_all(struct following *following, const struct kube_handle *place)
{
	AUTO_ERR struct err err = {0};

	following->keep = (struct target_call){.done = on_kept};
	following->keeps = place->kind == KUBE_KIND_JOBSET && kube_is_own(following->kube, place) &&
			   kube_keep(&following->kube->target, following->handle, true,
				   &following->keep, &err) == 0;
}

int kube_logs(struct target *target, const char *handle, const struct target_log_request *request,
	char *token, struct target_call *call, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct kube_handle place;
	struct following *following;

	int r = kube_handle_parse(kube, handle, &place, err);
	if (r < 0 || kube_kept_logs(kube, &place, request, call))
		return r;
	following = mem_alloc(1, sizeof(*following));
	*following = (struct following){
		.work = {drop},
		.kube = kube,
		.call = call,
		.events = request->events,
		.token = token,
		.handle = mem_strdup(handle),
	};
	const struct kube_runlog_request wanted = {
		.kube_namespace = place.kube_namespace,
		.kind = place.kind,
		.name = place.name,
		.rank = request->rank,
		.tail_lines = request->tail_lines,
		.since_ms = request->since_ms,
		.follow = request->follow,
		.token = request->token,
		.events = {on_data, on_notice, on_end, following},
	};
	target_call_begin(call, &following->work);
	following->runlog = kube_runlog_start(kube->cluster->client, target->loop, &wanted);
	if (request->follow)
		keep_all(following, &place);
	if (request->follow)
		look_later(following, FIRST_LOOK_MS);
	return 0;
}
