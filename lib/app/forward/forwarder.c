/* SPDX-License-Identifier: Apache-2.0 */
#include "app/forward/forwarder.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/util/mem.h"
#include "targets/targets.h"

/* A connection that is forwarded. */
struct connection {
	struct target_call call;
	struct forwarder *forwarder;
	struct connection *next, **at;
	forwarder_done_fn *done;
	void *ctx;
};

struct forwarder {
	struct target *target;
	const struct run *run;
	struct run *taken; /* what run points to; or NULL: it is borrowed */
	struct connection *connections;
	size_t n_connections;
};

static struct connection *link_connection(struct forwarder *forwarder)
{
	struct connection *connection = mem_alloc(1, sizeof(*connection));

	*connection = (struct connection){.forwarder = forwarder,
		.next = forwarder->connections,
		.at = &forwarder->connections};
	if (connection->next)
		connection->next->at = &connection->next;
	forwarder->connections = connection;
	forwarder->n_connections++;
	return connection;
}

static void unlink_connection(struct connection *connection)
{
	*connection->at = connection->next;
	if (connection->next)
		connection->next->at = connection->at;
	connection->forwarder->n_connections--;
	free(connection);
}

static void forwarder_on_end(struct target_call *call, int status, struct err *err)
{
	struct connection ended = *(struct connection *)call;

	unlink_connection((struct connection *)call);
	if (ended.done)
		ended.done(ended.ctx, status, err);
}

int forwarder_relay(struct forwarder *forwarder, int rank, uint16_t port, int fd,
	forwarder_done_fn *done, void *ctx, struct err *err)
{
	const char *handle = run_handle(forwarder->run);
	struct connection *connection;

	int r = forwarder_check(forwarder, err);
	if (r == 0 && !handle)
		r = err_set(err, E_RUN_START, "%s has not begun yet", run_id(forwarder->run));
	if (r < 0) {
		close(fd);
		return r;
	}
	connection = link_connection(forwarder);
	connection->call.done = forwarder_on_end;
	connection->done = done;
	connection->ctx = ctx;
	r = forwarder->target->ops->relay(
		forwarder->target, handle, rank, port, fd, &connection->call, err);
	if (r < 0)
		unlink_connection(connection);
	return r;
}

/* A target call that is given up calls no done, so it is called here. */
static void end_connection(struct connection *connection)
{
	const struct run *run = connection->forwarder->run;
	AUTO_ERR struct err error = {0};

	err_set(&error, E_RUN_ENDED, "%s has ended (%s)", run_id(run),
		run_state_name(run_state(run)));
	target_call_cancel(&connection->call);
	forwarder_on_end(&connection->call, -(int)error.code, &error);
}

void forwarder_end(struct forwarder *forwarder)
{
	while (forwarder->connections)
		end_connection(forwarder->connections);
}

int forwarder_open(const struct forwarder_options *options, struct forwarder **ret, struct err *err)
{
	AUTO(forwarder_free_auto) struct forwarder *forwarder = mem_alloc(1, sizeof(*forwarder));

	*forwarder = (struct forwarder){.run = options->run};
	int r = target_open_run(options->session, options->run, &forwarder->target, err);
	if (r < 0)
		return r;
	forwarder->target->notice = options->notice;
	forwarder->target->notice_ctx = options->ctx;
	*ret = TAKE(forwarder);
	return 0;
}

void forwarder_free(struct forwarder *forwarder)
{
	if (!forwarder)
		return;
	while (forwarder->connections) {
		target_call_cancel(&forwarder->connections->call);
		unlink_connection(forwarder->connections);
	}
	run_free(forwarder->taken);
	target_free(forwarder->target);
	free(forwarder);
}

int forwarder_check(const struct forwarder *forwarder, struct err *err)
{
	if (forwarder->target->ops->relay)
		return 0;
	return err_set(err, E_TARGET_UNSUPPORTED, "targets of kind %s cannot forward ports",
		forwarder->target->ops->kind);
}

int forwarder_check_rank(const struct run *run, int rank, struct err *err)
{
	int64_t n = json_get_int(json_get(run->doc, "resources"), "nodes", 0);

	if (n <= 0 || rank < n)
		return 0;
	if (n > 1)
		return err_set(
			err, E_USAGE, "%s has the ranks 0 to %lld", run_id(run), (long long)n - 1);
	return err_set(err, E_USAGE, "%s has only rank 0", run_id(run));
}

size_t forwarder_count(const struct forwarder *forwarder)
{
	return forwarder->n_connections;
}

const struct run *forwarder_run(const struct forwarder *forwarder)
{
	return forwarder->run;
}

struct target *forwarder_target(const struct forwarder *forwarder)
{
	return forwarder->target;
}

void forwarder_take(struct forwarder *forwarder, struct run *run)
{
	run_free(forwarder->taken);
	forwarder->run = forwarder->taken = run;
}
