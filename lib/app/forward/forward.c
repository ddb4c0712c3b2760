/* SPDX-License-Identifier: Apache-2.0 */
#include "app/forward/forward.h"

#include <stdlib.h>
#include <string.h>

#include "app/forward/forwarder.h"
#include "app/runs/refresh.h"
#include "base/loop/loop.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/context/secrets.h"
#include "core/store/store.h"
#include "net/stream/listen.h"
#include "targets/ssh/terminal.h"
#include "targets/targets.h"

enum {
	PORT_MAX = 65535,
	BEGUN_MS = 500, /* between two requests whether it has begun */
	ENDED_MS = 5000,
	REFRESH_MS = 8000,
};

int forward_port_parse(const char *text, struct forward_port *ret, struct err *err)
{
	const char *colon = strrchr(text, ':');
	AUTO_FREE char *first = mem_strndup(text, colon ? (size_t)(colon - text) : 0);
	int64_t local = 0, remote;

	if ((colon && str_to_int(first, 1, PORT_MAX, "the port here", &local, err) < 0) ||
		str_to_int(colon ? colon + 1 : text, 1, PORT_MAX, "the port of the program",
			&remote, err) < 0)
		return err_hint(err,
			"dlrun forward @ 8080:6006   # port 6006 of the newest run, at 8080 here");
	*ret = (struct forward_port){.local = (uint16_t)local, .remote = (uint16_t)remote};
	return 0;
}

struct forward {
	struct forward_options options;
	struct session *session;
	struct loop *loop;
	struct forwarder *forwarder;
	size_t n_ports;
	struct open_port *ports;
	/* While the command waits for the run to begin, and then to end. */
	struct loop_wait wait;
	struct loop_timer *turn;
	struct refresh *refresh; /* of now, in flight; or NULL */
	struct run_list now;
	bool is_notified; /* that it has not begun */
};

struct open_port {
	struct forward *forward;
	uint16_t remote;
	struct listener *listener;
};

static const struct run *run_of(const struct forward *forward)
{
	return forwarder_run(forward->forwarder);
}

static void forward_notify(const struct forward *forward, const char *text)
{
	if (forward->options.notice)
		forward->options.notice(forward->options.ctx, text);
}

static int forward_on_accept(void *ctx, int fd, const char *peer UNUSED, struct err *err UNUSED)
{
	const struct open_port *port = ctx;
	struct forward *forward = port->forward;
	AUTO_ERR struct err error = {0};

	if (forwarder_relay(forward->forwarder, forward->options.rank, port->remote, fd, NULL, NULL,
		    &error) < 0)
		forward_notify(forward, error.message);
	return 0;
}

/* Where the program's own number is not to be had (below 1024), any other one. */
static int listen_at(struct open_port *port, struct forward_port *wanted, struct err *err)
{
	struct listen_options listen = {.loop = port->forward->loop,
		.port = wanted->local ? wanted->local : wanted->remote,
		.is_exact = wanted->local != 0,
		.accept = forward_on_accept,
		.ctx = port};
	AUTO_ERR struct err error = {0};

	int r = listener_open(&listen, &port->listener, &error);
	if (r < 0 && !wanted->local) {
		err_clear(&error);
		listen.port = 0;
		r = listener_open(&listen, &port->listener, &error);
	}
	if (r == 0)
		wanted->local = listener_port(port->listener);
	else if (error.id == E_LISTEN_TAKEN)
		err_hint(&error, "dlrun forward %s %u   # at another number",
			run_id(run_of(port->forward)), wanted->remote);
	return r < 0 ? err_move(err, &error) : 0;
}

/* A program of this machine has its number itself, or would find it taken. */
static bool is_here_already(const struct forward *forward, const struct forward_port *wanted)
{
	return forwarder_target(forward->forwarder)->ops->is_here &&
	       (!wanted->local || wanted->local == wanted->remote);
}

static int listen_all(struct forward *forward, struct err *err)
{
	const struct forward_options *options = &forward->options;

	forward->ports = mem_alloc(options->n_ports + 1, sizeof(*forward->ports));
	forward->n_ports = options->n_ports;
	for (size_t i = 0; i < options->n_ports; i++) {
		struct forward_port wanted = options->ports[i];
		struct open_port *port = &forward->ports[i];

		*port = (struct open_port){.forward = forward, .remote = wanted.remote};
		if (is_here_already(forward, &wanted))
			wanted.local = wanted.remote;
		else if (listen_at(port, &wanted, err) < 0)
			return -(int)err->code;
		options->listening(options->ctx, &wanted);
	}
	return 0;
}

void forward_free(struct forward *forward)
{
	if (!forward)
		return;
	for (size_t i = 0; i < forward->n_ports; i++)
		listener_free(forward->ports[i].listener);
	free(forward->ports);
	loop_remove_timer(forward->loop, forward->turn);
	refresh_cancel(forward->refresh);
	run_list_done(&forward->now);
	forwarder_free(forward->forwarder);
	free(forward);
}

static int forward_new(struct session *session, const struct run *run,
	const struct forward_options *options, struct forward **ret, struct err *err)
{
	AUTO(forward_free_auto) struct forward *forward = mem_alloc(1, sizeof(*forward));

	*forward = (struct forward){
		.options = *options, .session = session, .loop = session_loop(session)};
	const struct forwarder_options forwarder = {
		.session = session, .run = run, .notice = options->notice, .ctx = options->ctx};
	int r = forwarder_open(&forwarder, &forward->forwarder, err);
	if (r == 0)
		r = forwarder_check(forward->forwarder, err);
	if (r < 0)
		return r;
	*ret = TAKE(forward);
	return 0;
}

int forward_open(struct session *session, const struct run *run,
	const struct forward_options *options, struct forward **ret, struct err *err)
{
	AUTO(forward_free_auto) struct forward *forward = NULL;

	int r = forward_new(session, run, options, &forward, err);
	if (r == 0)
		r = listen_all(forward, err);
	if (r == 0)
		*ret = TAKE(forward);
	return r;
}

/*
 * The run
 */

/* The hint is the caller's. */
static int forward_fail_ended(const struct run *run, const char *so, struct err *err)
{
	return err_set(err, E_RUN_ENDED, "%s has ended (%s): %s", run_id(run),
		run_state_name(run_state(run)), so);
}

static int forward_check_rank(const struct run *run, int rank, struct err *err)
{
	int r = forwarder_check_rank(run, rank, err);

	return r < 0 ? err_prefix(err, "--rank %d", rank) : 0;
}

static int forward_on_turn(void *ctx, struct err *err);

static void forward_refresh_in(struct forward *forward, int64_t ms)
{
	forward->turn = loop_add_timer(forward->loop, clock_ms() + ms, forward_on_turn, forward);
}

static void forward_notify_waits(struct forward *forward)
{
	const struct run *run = run_of(forward);

	if (forward->is_notified)
		return;
	AUTO_FREE char *text = mem_printf(
		"%s is %s; waiting for it to run", run_id(run), run_state_name(run_state(run)));
	forward_notify(forward, text);
	forward->is_notified = true;
}

static int forward_check_begun(const struct run *run, struct err *err)
{
	if (!run_state_is_final(run_state(run)))
		return 0;
	forward_fail_ended(run, "its ports are closed", err);
	return err_hint(err, "dlrun submit --from %s", run_id(run));
}

/* Without ports the beginning is all that is waited for. */
static int forward_until_begun(struct forward *forward, struct err *err)
{
	enum run_state state = run_state(run_of(forward));

	if (state != RUN_RUNNING && !run_state_is_final(state)) {
		forward_notify_waits(forward);
		forward_refresh_in(forward, BEGUN_MS);
		return 0;
	}
	if (forward->options.n_ports == 0) {
		loop_wait_done(&forward->wait);
		return 0;
	}
	int r = forward_check_begun(run_of(forward), err);
	if (r == 0)
		r = listen_all(forward, err);
	if (r == 0)
		forward_refresh_in(forward, ENDED_MS);
	return r;
}

static void forward_until_ended(struct forward *forward)
{
	const struct run *run = run_of(forward);

	if (!run_state_is_final(run_state(run))) {
		forward_refresh_in(forward, ENDED_MS);
		return;
	}
	AUTO_FREE char *text =
		mem_printf("%s has ended (%s)", run_id(run), run_state_name(run_state(run)));
	forward_notify(forward, text);
	loop_wait_done(&forward->wait);
}

/* While ports are open, a target that cannot be reached now says nothing about the run. */
static int forward_on_refreshed(void *ctx, int status, struct err *err)
{
	struct forward *forward = ctx;

	forward->refresh = NULL;
	if (status == 0)
		forwarder_take(forward->forwarder, TAKE(forward->now.v[0]));
	run_list_done(&forward->now);
	if (!forward->ports)
		return status < 0 ? status : forward_until_begun(forward, err);
	err_clear(err);
	forward_until_ended(forward);
	return 0;
}

static int forward_on_turn(void *ctx, struct err *err)
{
	struct forward *forward = ctx;
	struct run *run = NULL;
	struct store *store;

	int r = session_store(forward->session, &store, err);
	if (r == 0)
		r = store_resolve(store, run_id(run_of(forward)), &run, err);
	if (r < 0)
		return forward_on_refreshed(forward, r, err);
	*vec_push(&forward->now) = run;
	forward->refresh = refresh_start(
		forward->session, &forward->now, REFRESH_MS, forward_on_refreshed, forward);
	return 0;
}

static int forward_run(struct forward *forward, struct err *err)
{
	forward->wait = (struct loop_wait){
		.loop = forward->loop, .n_open = 1, .interrupted = forward->options.interrupted};
	forward_refresh_in(forward, 0);
	return loop_wait_run(&forward->wait, err);
}

int run_forward(struct session *session, const struct run *run,
	const struct forward_options *options, struct err *err)
{
	AUTO(forward_free_auto) struct forward *forward = NULL;

	int r = forward_check_rank(run, options->rank, err);
	if (r == 0)
		r = forward_new(session, run, options, &forward, err);
	return r < 0 ? r : forward_run(forward, err);
}

int run_terminal(struct session *session, const struct run *run,
	const struct target_exec_request *request, int *ret_status, const volatile int *interrupted,
	struct err *err)
{
	const struct forward_options options = {.interrupted = interrupted};
	AUTO(forward_free_auto) struct forward *forward = NULL;
	struct target_exec_request inside = *request;
	AUTO_STRV struct strv words = {0};

	int r = forward_new(session, run, &options, &forward, err);
	if (r == 0)
		r = forward_run(forward, err);
	if (r == 0)
		r = forward_check_begun(run_of(forward), err);
	if (r < 0)
		return r;
	r = terminal_words(run_of(forward), &words, err);
	inside.command = &words;
	inside.is_shell = true;
	return r < 0 ? r
		     : target_exec(forwarder_target(forward->forwarder),
			       run_handle(run_of(forward)), &inside, ret_status, interrupted, err);
}

int run_wait_begun(struct session *session, const struct run *run,
	const struct forward_options *options, struct run **ret, struct err *err)
{
	AUTO(forward_free_auto) struct forward *forward = NULL;
	struct forward_options only = *options;
	enum run_state state = run_state(run);

	only.n_ports = 0;
	if (run_state_is_final(state) || state == RUN_RUNNING || state == RUN_UNKNOWN)
		return 0;
	int r = forward_check_rank(run, options->rank, err);
	if (r == 0)
		r = forward_new(session, run, &only, &forward, err);
	if (r == 0)
		r = forward_run(forward, err);
	return r < 0 ? r : runs_find(session, run_id(run), ret, err);
}

/* Where a container was around the program, its files went with it. */
static bool keeps_tree(const struct run *run)
{
	const struct json *target = json_get(run->doc, "target");

	return !target_ops_recorded(run)->needs_image && !json_get_str(target, "runtime");
}

int run_exec(struct session *session, const struct run *run,
	const struct target_exec_request *request, int *ret_status, const volatile int *interrupted,
	struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;

	bool is_final = run_state_is_final(run_state(run));
	if (is_final && !keeps_tree(run)) {
		forward_fail_ended(run, "its container is gone, and its tree with it", err);
		return err_hint(err,
			"dlrun checkout %s %s   # its code; its results: dlrun fetch %s",
			run_id(run), run_id(run), run_id(run));
	}
	AUTO_STRV struct strv secrets = {0};
	struct target_exec_request inside = *request;
	AUTO_ERR struct err error = {0};
	int r = forward_check_rank(run, request->rank, err);
	if (r == 0) {
		/* Of a run's secrets those that have a value here. */
		AUTO_STRV struct strv names = {0}, missing = {0};

		r = words_get(run->spec, "secrets", &names, err);
		if (r == 0 && names.n > 0)
			r = secrets_again(session, run, &names, &secrets, &missing, err);
		if (secrets.n > 0)
			os_protect_memory();
	}
	if (r == 0)
		r = target_open_run(session, run, &target, err);
	if (r < 0)
		return r;
	inside.secret_env = &secrets;
	r = target_exec(target, run_handle(run), &inside, ret_status, interrupted, &error);
	if (r == 0)
		return 0;
	if (!is_final || (error.id != E_RUN_ENDED && error.id != E_NODE_FAILED))
		return err_move(err, &error);
	forward_fail_ended(run, "its tree is gone", err);
	return err_hint(err, "dlrun checkout %s %s", run_id(run), run_id(run));
}
