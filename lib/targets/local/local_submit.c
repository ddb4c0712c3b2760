/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "core/attempt/attempt.h"
#include "core/record/reply.h"
#include "core/record/spec.h"
#include "targets/local/target_local.h"

/*
 * Starting an attempt on this machine: its directory, then its supervisor, then its word.
 */

static void add_all(struct strv *to, const struct strv *from)
{
	for (size_t i = 0; from && i < from->n; i++)
		env_set(to, from->v[i], false);
}

/* Add the defaults of an earlier attempt that no record has: the remote of the repository. */
static void add_earlier(const struct attempt_place *place, struct strv *defaults)
{
	AUTO(attempt_job_done) struct attempt_job earlier = {0};
	AUTO_FREE char *dir = attempt_sibling(place->dir, place->attempt - 1);

	if (place->attempt < 2 || attempt_job_read(dir, &earlier, NULL) < 0)
		return;
	for (size_t i = 0; i < earlier.defaults.n; i++)
		env_set(defaults, earlier.defaults.v[i], true);
}

static void set_env(const struct attempt_place *place, const struct target_job *job,
	const char *outputs, struct attempt_job *ret)
{
	add_all(&ret->env, job->env);
	strv_addf(&ret->env, "DLRUN_RUN_ID=%s", place->run_id);
	strv_addf(&ret->env, "DLRUN_OUTPUT_DIR=%s", outputs);
	strv_add(&ret->env, "DLRUN_NODE_ADDRS=" ATTEMPT_ADDRESS);
	strv_add(&ret->env, "DLRUN_GPUS_PER_NODE=0");
	attempt_job_place(ret, place->dir);
	add_all(&ret->defaults, job->default_env);
	strv_add(&ret->defaults, "MASTER_ADDR=" ATTEMPT_ADDRESS);
	strv_add(&ret->defaults, "NNODES=1");
	strv_add(&ret->defaults, "NODE_RANK=0");
	add_earlier(place, &ret->defaults);
}

/* Set the environment of the code, which is in the specification only. */
static int set_world(const struct target_job *job, struct attempt_job *ret, struct err *err)
{
	AUTO_SPEC struct spec spec = {0};

	if (!job->spec)
		return 0;
	int r = spec_from_json(job->spec, &spec, err);
	if (r == 0)
		world_copy(&ret->world, &spec.world);
	if (r == 0)
		ret->limits = (struct os_limits){.memory_bytes = spec.resources.memory_bytes,
			.cpus_milli = spec.resources.cpus_milli};
	return r;
}

static int write_job(struct target_local *local, const struct attempt_place *place,
	const struct target_job *job, struct err *err)
{
	const struct dirs *dirs = &local->session->dirs;
	AUTO(attempt_job_done)
	struct attempt_job out = {
		.run_id = mem_strdup(place->run_id),
		.attempt = place->attempt,
		.shell = job->shell,
		.cwd = mem_strdup(job->cwd),
		.layout = dirs_layout(dirs),
		.image = mem_strdup(job->image->manifest.digest),
		.spares = dirs_spares(dirs),
		.setups = dirs_setups(dirs),
		.outputs = dirs_outputs(dirs, place->run_id),
		.tree_bytes = job->tree_bytes,
		.timeout_ms = job->timeout_ms,
		.grace_ms = job->grace_ms,
		.cgroup = true,
	};

	strv_copy(&out.command, job->command);
	set_env(place, job, out.outputs, &out);
	int r = set_world(job, &out, err);
	if (r == 0)
		r = attempt_make_dirs(place->dir, out.outputs, err);
	return r < 0 ? r : attempt_job_write(place->dir, &out, err);
}

/*
 * Waiting for the supervisor's word
 */

struct start {
	struct target_work work;
	struct target_call *call;
	struct target_local *local;
	struct attempt_place place;
	struct strv env;
	bool scope;
	int fd;
	struct loop_fd *source;
	struct loop_timer *timer;
	char line[REPLY_MAX];
	size_t len;
};

static void stop_listening(struct start *start)
{
	loop_remove_fd(start->local->target.loop, start->source);
	start->source = NULL;
	auto_fd(&start->fd);
	start->fd = -1;
}

static void drop_start(struct target_work *work)
{
	struct start *start = (struct start *)work;

	loop_remove_timer(start->local->target.loop, start->timer);
	stop_listening(start);
	attempt_place_done(&start->place);
	strv_done(&start->env);
	free(start);
}

static int begin(struct start *start, struct err *err);

static void answered(struct start *start)
{
	AUTO_ERR struct err err = {0};
	int r;

	stop_listening(start);
	/* No manager to make the scope: the supervisor has not been started at all. */
	if (start->scope && start->len == 0) {
		start->scope = false;
		r = begin(start, &err);
		if (r == 0)
			return;
	} else {
		r = reply_parse(start->line, start->len, "the supervisor", NULL, &err);
	}
	target_call_end(start->call, r, &err);
}

static short want_answer(void *ctx)
{
	(void)ctx;
	return POLLIN;
}

static int on_answer(void *ctx, short revents, struct err *err)
{
	struct start *start = ctx;
	ssize_t n = read(start->fd, start->line + start->len, sizeof(start->line) - start->len);

	(void)revents;
	(void)err;
	if (n < 0 && errno == EINTR)
		return 0;
	if (n > 0)
		start->len += (size_t)n;
	if (n <= 0 || start->len == sizeof(start->line) || memchr(start->line, '\n', start->len))
		answered(start);
	return 0;
}

static int begin(struct start *start, struct err *err)
{
	static const struct loop_fd_ops ops = {want_answer, on_answer};
	int r = local_start(
		start->local, &start->place, &start->env, start->scope, &start->fd, err);

	if (r < 0 && start->scope) {
		/* There is no systemd-run on PATH. */
		start->scope = false;
		err_clear(err);
		r = local_start(start->local, &start->place, &start->env, false, &start->fd, err);
	}
	if (r == 0)
		start->source = loop_add_fd(start->local->target.loop, start->fd, &ops, start);
	return r;
}

static int on_deadline(void *ctx, struct err *err)
{
	struct start *start = ctx;
	AUTO_ERR struct err late = {0};

	(void)err;
	err_set(&late, E_RUN_START, "the supervisor of %s did not answer in time",
		start->place.run_id);
	target_call_end(start->call, -(int)late.code, &late);
	return 0;
}

int local_submit(struct target *target, const struct target_job *job, struct target_call *call,
	struct err *err)
{
	struct target_local *local = target_local_of(target);
	struct start *start = mem_alloc(1, sizeof(*start));

	*start = (struct start){.work = {drop_start}, .call = call, .local = local, .fd = -1};
	target_call_begin(call, &start->work);
	int r = local_place_find(local, job->handle, &start->place, err);
	if (r == 0)
		r = write_job(local, &start->place, job, err);
	if (r == 0) {
		for (const char *const *e = local->session->env.env; e && *e; e++)
			strv_add(&start->env, *e);
		add_all(&start->env, job->secret_env);
		start->scope = local_has_scope(local);
		r = begin(start, err);
	}
	if (r < 0) {
		target_call_cancel(call);
		return r;
	}
	if (call->deadline_ms)
		start->timer = loop_add_timer(target->loop, call->deadline_ms, on_deadline, start);
	return 0;
}
