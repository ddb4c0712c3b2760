/* SPDX-License-Identifier: Apache-2.0 */
#include "app/tensorboard/tensorboard_remote.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/forward/forwarder.h"
#include "app/tensorboard/tensorboard_words.h"
#include "base/loop/loop.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "core/config/ports.h"

enum {
	PORT = 6006,
	FIND_MS = 3000,
	PROBE_MS = 15 * 1000,
	PROBE_EVERY_MS = 200,
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

/* The command that runs it. */
struct started {
	struct target_call call;
	struct tensorboard_remote *remote;
	struct strv command;
	int status;
	bool is_over;
	struct err error;
	int stdin_fd, said_fd;   /* our ends */
	int its_stdin, its_said; /* the command's */
};

struct tensorboard_remote {
	struct tensorboard_remote_options options;
	struct loop *loop;
	struct forwarder *forwarder;
	struct candidate candidates[PORTS];
	size_t n_candidates;
	uint16_t port; /* 0: not known yet */
	bool has_responded, was_found, was_started;
	char version[TENSORBOARD_VERSION_SIZE];

	struct started started;
	struct tensorboard_output output;
	struct tensorboard_probe *probe;
	int64_t probe_next_ms;
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

	return forwarder_relay(remote->forwarder, 0, remote->port, fd, NULL, NULL, err);
}

void tensorboard_remote_link(struct tensorboard_remote *remote, struct tensorboard_link *ret)
{
	*ret = (struct tensorboard_link){.connect = connect_port, .ctx = remote};
}

/*
 * Finding
 */

static void set_version(struct tensorboard_remote *remote, const char *version)
{
	memcpy(remote->version, version, strlen(version) + 1);
}

static void on_candidate(void *ctx, const char *version)
{
	struct candidate *candidate = ctx;
	struct tensorboard_remote *remote = candidate->remote;

	candidate->is_over = true;
	if (!version || remote->has_responded)
		return;
	set_version(remote, version);
	remote->port = candidate->port;
	remote->has_responded = remote->was_found = true;
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
	return !remote->has_responded;
}

/*
 * Starting
 */

static void tensorboard_remote_on_line(void *ctx, const char *text, size_t len)
{
	struct tensorboard_remote *remote = ctx;
	struct tensorboard_line line;

	if (!remote->port && tensorboard_line_read(text, len, &line)) {
		remote->port = line.port;
		set_version(remote, line.version);
	}
	log_note("tensorboard: %s", text);
}

static void on_exec(struct target_call *call, int status, struct err *err)
{
	struct started *started = (struct started *)call;
	struct tensorboard_remote *remote = started->remote;

	started->is_over = true;
	if (status < 0)
		err_move(&started->error, err);
	if (remote->stopping)
		loop_wait_done(remote->stopping);
}

static int tensorboard_remote_make_pipes(struct started *started, struct err *err)
{
	int in[2], out[2];
	int r = os_pipe(in, 0);

	if (r == 0) {
		started->its_stdin = in[0];
		started->stdin_fd = in[1];
		r = os_pipe(out, 0);
	}
	if (r < 0)
		return err_set_errno(err, E_IO, -r, "cannot make a pipe");
	started->said_fd = out[0];
	started->its_said = out[1];
	return 0;
}

/* A pipe takes it at once. */
static int write_child(struct tensorboard_remote *remote, struct err *err)
{
	/* A host's network is everybody's. */
	bool is_fast = forwarder_target(remote->forwarder)->ops->has_own_network;
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf text = buf_with(TENSORBOARD_CHILD_MAX);

	tensorboard_child_argv(remote->options.secret, &words);
	const struct tensorboard_child child = {.words = &words, .is_fast = is_fast};
	tensorboard_child_text(&child, &text);
	return fs_write_fd(remote->started.stdin_fd, "a pipe", text.data, text.len, err);
}

static int tensorboard_remote_start(struct tensorboard_remote *remote, struct err *err)
{
	const char *const words[] = {"sh", "-c", script, "sh", tensorboard_child_loader};
	struct started *started = &remote->started;
	struct target *target = forwarder_target(remote->forwarder);

	remote->was_started = true;
	if (!target->ops->exec)
		return err_set(err, E_TARGET_UNSUPPORTED, "targets of kind %s cannot run commands",
			target->ops->kind);
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		strv_add(&started->command, words[i]);
	int r = tensorboard_remote_make_pipes(started, err);
	if (r == 0)
		r = write_child(remote, err);
	if (r < 0)
		return r;
	remote->output = (struct tensorboard_output){.loop = remote->loop,
		.fd = started->said_fd,
		.line = tensorboard_remote_on_line,
		.ctx = remote};
	tensorboard_output_start(&remote->output);
	const struct target_exec_request request = {.command = &started->command,
		.fds = {started->its_stdin, started->its_said, started->its_said}};
	started->call.done = on_exec;
	r = target->ops->exec(target, run_handle(remote->options.run), &request, &started->status,
		&started->call, err);
	started->is_over = r < 0;
	return r;
}

int tensorboard_remote_open(const struct tensorboard_remote_options *options,
	struct tensorboard_remote **ret, struct err *err)
{
	const struct run *run = options->run;
	const struct forwarder_options forwarder = {.session = options->session,
		.run = run,
		.notice = options->notice,
		.ctx = options->ctx};

	if (run_state_is_final(run_state(run))) {
		err_set(err, E_RUN_ENDED, "%s has ended (%s): nothing can run beside it",
			run_id(run), run_state_name(run_state(run)));
		return err_hint(err, "dlrun tensorboard %s", run_id(run));
	}
	AUTO(tensorboard_remote_free_auto)
	struct tensorboard_remote *remote = mem_alloc(1, sizeof(*remote));
	*remote = (struct tensorboard_remote){.options = *options,
		.loop = session_loop(options->session),
		.started = {.remote = remote,
			.is_over = true,
			.stdin_fd = -1,
			.said_fd = -1,
			.its_stdin = -1,
			.its_said = -1}};
	int r = forwarder_open(&forwarder, &remote->forwarder, err);
	if (r == 0)
		r = forwarder_check(remote->forwarder, err);
	if (r < 0)
		return r;
	struct ports ports;

	ports_from_json(json_get(remote->options.run->doc, "ports"), &ports);
	for (size_t i = 0; i < ports.n; i++)
		add_candidate(remote, ports.v[i]);
	add_candidate(remote, PORT);
	for (size_t i = 0; i < remote->n_candidates; i++) {
		struct candidate *candidate = &remote->candidates[i];
		const struct tensorboard_link link = {connect_candidate, candidate};

		candidate->probe = tensorboard_probe_start(
			remote->loop, &link, "", candidate->port, FIND_MS, on_candidate, candidate);
	}
	*ret = TAKE(remote);
	return 0;
}

/*
 * Stopping
 */

/* Closing its standard input ends TensorBoard; wait for the end of the command, so that the close
 * has arrived there. */
static void tensorboard_remote_stop(struct tensorboard_remote *remote)
{
	struct started *started = &remote->started;
	struct loop_wait wait = {
		.loop = remote->loop, .n_open = 1, .deadline_ms = clock_ms() + STOP_MS};

	if (started->stdin_fd >= 0)
		close(TAKE_FD(started->stdin_fd));
	if (started->is_over)
		return;
	remote->stopping = &wait;
	loop_wait_run(&wait, NULL);
	remote->stopping = NULL;
	if (!started->is_over)
		target_call_cancel(&started->call);
}

static void close_fds(struct started *started)
{
	const int fds[] = {
		started->stdin_fd, started->said_fd, started->its_stdin, started->its_said};

	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

void tensorboard_remote_free(struct tensorboard_remote *remote)
{
	if (!remote)
		return;
	for (size_t i = 0; i < remote->n_candidates; i++)
		tensorboard_probe_free(remote->candidates[i].probe);
	tensorboard_probe_free(remote->probe);
	tensorboard_remote_stop(remote);
	tensorboard_output_done(&remote->output);
	close_fds(&remote->started);
	forwarder_free(remote->forwarder);
	strv_done(&remote->started.command);
	err_done(&remote->started.error);
	free(remote);
}

static int fail_over(struct tensorboard_remote *remote, struct err *err)
{
	const char *id = run_id(remote->options.run);
	AUTO_FREE char *install = mem_printf("dlrun exec %s -- python3 -m pip install", id);
	AUTO_FREE char *path = mem_printf("inside %s", id);
	const struct tensorboard_who who = {
		.path = path, .version = remote->version, .install = install, .plot = id};

	if (err_is_set(&remote->started.error))
		return err_move(err, &remote->started.error);
	tensorboard_output_drain(&remote->output);
	if (!remote->has_responded)
		return tensorboard_explain(
			remote->output.said.data, remote->output.said.len, &who, err);
	AUTO_FREE char *last =
		tensorboard_last_line(remote->output.said.data, remote->output.said.len);
	err_set(err, E_TENSORBOARD_ENDED, "TensorBoard in %s has ended", id);
	if (last)
		err_evidence(err, "%s", last);
	return err_hint(err, "dlrun tensorboard %s   # here, without --remote", id);
}

static void tensorboard_remote_on_probed(void *ctx, const char *version)
{
	struct tensorboard_remote *remote = ctx;

	remote->has_responded = version != NULL;
	remote->probe_next_ms = clock_ms() + PROBE_EVERY_MS;
}

static void tensorboard_remote_probe(struct tensorboard_remote *remote)
{
	struct tensorboard_link link;

	if (!remote->port || clock_ms() < remote->probe_next_ms)
		return;
	tensorboard_probe_free(remote->probe);
	tensorboard_remote_link(remote, &link);
	remote->probe_next_ms = INT64_MAX;
	remote->probe = tensorboard_probe_start(remote->loop, &link, remote->options.secret,
		remote->port, PROBE_MS, tensorboard_remote_on_probed, remote);
}

int tensorboard_remote_poll(struct tensorboard_remote *remote, struct err *err)
{
	if (remote->was_found)
		return 1;
	if (!remote->was_started) {
		int r = found_nothing(remote) ? tensorboard_remote_start(remote, err) : 0;

		return r < 0 ? r : 0;
	}
	if (remote->started.is_over)
		return fail_over(remote, err);
	if (!remote->has_responded)
		tensorboard_remote_probe(remote);
	return remote->has_responded;
}

const char *tensorboard_remote_version(const struct tensorboard_remote *remote)
{
	return remote->version;
}

uint16_t tensorboard_remote_port(const struct tensorboard_remote *remote)
{
	return remote->port;
}

bool tensorboard_remote_was_found(const struct tensorboard_remote *remote)
{
	return remote->was_found;
}
