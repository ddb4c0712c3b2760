/* SPDX-License-Identifier: Apache-2.0 */
#include "app/tensorboard/tensorboard_remote.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/forward/forwarder.h"
#include "base/loop/loop.h"
#include "base/os/fs.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "core/config/ports.h"

enum {
	PORT = 6006,
	FIND_MS = 3000,
	STOP_MS = 3000,
	PORTS = PORTS_MAX + 1,
};

/* The Python of the program's TensorBoard is the one that its first line names; $1 is the loader.
 * The directory of the program may have modules that are called like those of Python. */
static const char script[] = "cd /\n"
			     "p=python3\n"
			     "t=$(command -v tensorboard) && IFS= read -r l <\"$t\" && case $l in\n"
			     "'#!'*python*) p=${l#'#!'} ;;\n"
			     "esac\n"
			     "exec $p -c \"$1\"";

/* A port that may have one. */
struct candidate {
	struct tensorboard_remote *remote;
	uint16_t port;
	struct tensorboard_probe *probe;
	bool is_over;
};

struct tensorboard_remote {
	struct tensorboard_server server;
	struct tensorboard_remote_options options;
	struct forwarder *forwarder;
	struct candidate candidates[PORTS];
	size_t n_candidates;

	/* The command that runs it. */
	struct target_call call;
	struct strv command;
	int status;
	bool was_started, is_over;
	struct err error;
	int in[2], out[2];          /* pipes: our ends are in[1] and out[0] */
	struct loop_wait *stopping; /* of tensorboard_remote_stop; or NULL */
};

static int connect_candidate(void *ctx, int fd, struct err *err)
{
	const struct candidate *candidate = ctx;

	return forwarder_relay(
		candidate->remote->forwarder, 0, candidate->port, fd, NULL, NULL, err);
}

static int connect_port(void *ctx, int fd, struct err *err)
{
	const struct tensorboard_remote *remote = ctx;

	return forwarder_relay(remote->forwarder, 0, remote->server.port, fd, NULL, NULL, err);
}

/*
 * Finding
 */

static void on_candidate(void *ctx, const char *version)
{
	struct candidate *candidate = ctx;
	struct tensorboard_server *server = &candidate->remote->server;

	candidate->is_over = true;
	if (!version || server->has_responded)
		return;
	memcpy(server->version, version, strlen(version) + 1);
	server->port = candidate->port;
	server->has_responded = server->was_found = true;
}

static void add_candidate(struct tensorboard_remote *remote, uint16_t port)
{
	struct candidate *candidate;

	for (size_t i = 0; i < remote->n_candidates; i++)
		if (remote->candidates[i].port == port)
			return;
	candidate = &remote->candidates[remote->n_candidates++];
	*candidate = (struct candidate){.remote = remote, .port = port};
}

static bool found_nothing(const struct tensorboard_remote *remote)
{
	for (size_t i = 0; i < remote->n_candidates; i++)
		if (!remote->candidates[i].is_over)
			return false;
	return !remote->server.has_responded;
}

/*
 * Starting
 */

static void on_exec(struct target_call *call, int status, struct err *err)
{
	struct tensorboard_remote *remote = CONTAINER_OF(call, struct tensorboard_remote, call);

	remote->is_over = true;
	if (status < 0)
		err_move(&remote->error, err);
	if (remote->stopping)
		loop_wait_done(remote->stopping);
}

/* A pipe takes it at once. */
static int write_child(struct tensorboard_remote *remote, struct err *err)
{
	/* A host's network is everybody's. */
	bool is_fast = forwarder_target(remote->forwarder)->ops->has_own_network;
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf text = buf_with(TENSORBOARD_CHILD_MAX);

	tensorboard_child_argv(remote->server.prefix, &words);
	const struct tensorboard_child child = {.words = &words, .is_fast = is_fast};
	tensorboard_child_text(&child, &text);
	return fs_write_fd(remote->in[1], "a pipe", text.data, text.len, err);
}

static int tensorboard_remote_start(struct tensorboard_remote *remote, struct err *err)
{
	const char *const words[] = {"sh", "-c", script, "sh", tensorboard_child_loader};
	struct target *target = forwarder_target(remote->forwarder);

	remote->was_started = true;
	if (!target->ops->exec)
		return err_set(err, E_TARGET_UNSUPPORTED, "targets of kind %s cannot run commands",
			target->ops->kind);
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		strv_add(&remote->command, words[i]);
	int r = fs_pipe(remote->in, 0, err);
	if (r == 0)
		r = fs_pipe(remote->out, 0, err);
	if (r == 0)
		r = write_child(remote, err);
	if (r < 0)
		return r;
	remote->server.said_fd = remote->out[0];
	tensorboard_server_read(&remote->server);
	const struct target_exec_request request = {.command = &remote->command,
		.fds = {remote->in[0], remote->out[1], remote->out[1]}};
	remote->call.done = on_exec;
	r = target->ops->exec(target, run_handle(remote->options.run), &request, &remote->status,
		&remote->call, err);
	remote->is_over = r < 0;
	return r;
}

/*
 * Stopping
 */

/* Closing its standard input ends TensorBoard; wait for the end of the command, so that the close
 * has arrived there. */
static void tensorboard_remote_stop(struct tensorboard_remote *remote)
{
	struct loop_wait wait = {
		.loop = remote->server.loop, .n_open = 1, .deadline_ms = clock_ms() + STOP_MS};

	if (remote->in[1] >= 0)
		close(TAKE_FD(remote->in[1]));
	if (remote->is_over)
		return;
	remote->stopping = &wait;
	loop_wait_run(&wait, NULL);
	remote->stopping = NULL;
	if (!remote->is_over)
		target_call_cancel(&remote->call);
}

static void tensorboard_remote_free(struct tensorboard_server *server)
{
	struct tensorboard_remote *remote = (struct tensorboard_remote *)server;
	const int fds[] = {remote->in[0], remote->out[0], remote->out[1]};

	for (size_t i = 0; i < remote->n_candidates; i++)
		tensorboard_probe_free(remote->candidates[i].probe);
	tensorboard_remote_stop(remote);
	tensorboard_server_done(server);
	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	forwarder_free(remote->forwarder);
	strv_done(&remote->command);
	err_done(&remote->error);
	free(remote);
}

static int fail_over(struct tensorboard_remote *remote, struct err *err)
{
	const char *id = run_id(remote->options.run);
	AUTO_FREE char *install = mem_printf("dlrun exec %s -- python3 -m pip install", id);
	AUTO_FREE char *path = mem_printf("inside %s", id);
	AUTO_FREE char *ended = mem_printf("in %s has ended", id);
	AUTO_FREE char *hint = mem_printf("dlrun tensorboard %s   # here, without --remote", id);
	const struct tensorboard_who who = {
		.path = path, .version = remote->server.version, .install = install, .plot = id};

	if (err_is_set(&remote->error))
		return err_move(err, &remote->error);
	return tensorboard_server_fail(&remote->server, &who, ended, hint, err);
}

/* A TensorBoard that was found, not started, is not polled again. */
static int tensorboard_remote_poll(struct tensorboard_server *server, struct err *err)
{
	struct tensorboard_remote *remote = (struct tensorboard_remote *)server;

	if (server->was_found)
		return 1;
	if (!remote->was_started)
		return found_nothing(remote) ? tensorboard_remote_start(remote, err) : 0;
	if (remote->is_over)
		return fail_over(remote, err);
	return tensorboard_server_probe(server);
}

int tensorboard_remote_open(const struct tensorboard_remote_options *options,
	struct tensorboard_server **ret, struct err *err)
{
	const struct run *run = options->run;
	const struct forwarder_options forwarder = {.session = options->session,
		.run = run,
		.notice = options->notice,
		.ctx = options->ctx};
	struct ports ports;

	if (run_state_is_final(run_state(run))) {
		err_set(err, E_RUN_ENDED, "%s has ended (%s): nothing can run beside it",
			run_id(run), run_state_name(run_state(run)));
		return err_hint(err, "dlrun tensorboard %s", run_id(run));
	}
	struct tensorboard_remote *remote = mem_alloc(1, sizeof(*remote));
	*remote = (struct tensorboard_remote){.server = {.poll = tensorboard_remote_poll,
						      .free = tensorboard_remote_free,
						      .loop = session_loop(options->session),
						      .link = {connect_port, remote},
						      .prefix = options->secret},
		.options = *options,
		.is_over = true,
		.in = {-1, -1},
		.out = {-1, -1}};
	int r = forwarder_open(&forwarder, &remote->forwarder, err);
	if (r == 0)
		r = forwarder_check(remote->forwarder, err);
	if (r < 0) {
		tensorboard_remote_free(&remote->server);
		return r;
	}
	ports_from_json(json_get(run->doc, "ports"), &ports);
	for (size_t i = 0; i < ports.n; i++)
		add_candidate(remote, ports.v[i]);
	add_candidate(remote, PORT);
	for (size_t i = 0; i < remote->n_candidates; i++) {
		struct candidate *candidate = &remote->candidates[i];
		const struct tensorboard_link link = {connect_candidate, candidate};

		candidate->probe = tensorboard_probe_start(remote->server.loop, &link, "",
			candidate->port, FIND_MS, on_candidate, candidate);
	}
	*ret = &remote->server;
	return 0;
}
