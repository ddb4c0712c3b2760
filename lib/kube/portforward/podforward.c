/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/portforward/podforward_impl.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum {
	REDIAL_MIN_MS = 100,
	REDIAL_MAX_MS = 5000,
	REDIAL_WANTED_MS = 500, /* while somebody waits */
	SAID_AGAIN_MS = 5000,   /* the same notice not more often */
	OPEN_PORTS_MAX = 64,
	SHORT_LIFE_MS = 2000, /* a tunnel that ends so early is no success */
	IDLE_MS = 60 * 1000,  /* a tunnel that is not needed is kept so long */
	LOOK_MAX_MS = 30 * 1000,
};

void forward_say(struct podforward *forward, const char *fmt, ...)
{
	int64_t now_ms = clock_ms();
	va_list args;
	char *text;

	if (!forward->options.notice)
		return;
	va_start(args, fmt);
	text = mem_vprintf(fmt, args);
	va_end(args);
	if (!str_eq(text, forward->said) || now_ms - forward->said_ms > SAID_AGAIN_MS)
		forward->options.notice(forward->options.ctx, text);
	free(forward->said);
	forward->said = text;
	forward->said_ms = now_ms;
}

/*
 * Ports that have answered
 */

static size_t find_port(const struct podforward *forward, uint16_t port)
{
	size_t i = 0;

	while (i < forward->open_ports.n && forward->open_ports.v[i] != port)
		i++;
	return i;
}

bool forward_port_is_open(const struct podforward *forward, uint16_t port)
{
	return find_port(forward, port) < forward->open_ports.n;
}

void forward_set_port(struct podforward *forward, uint16_t port, bool is_open)
{
	size_t i = find_port(forward, port);

	if (is_open && i == forward->open_ports.n && i < OPEN_PORTS_MAX)
		*vec_push(&forward->open_ports) = port;
	else if (!is_open && i < forward->open_ports.n)
		forward->open_ports.v[i] = forward->open_ports.v[--forward->open_ports.n];
}

/*
 * Tunnels
 */

static size_t count_waiting(const struct podforward *forward)
{
	size_t n = 0;

	for (size_t i = 0; i < forward->conns.n; i++)
		n += conn_waits(forward->conns.v[i]);
	return n;
}

static bool is_dialling(const struct podforward *forward)
{
	for (size_t i = 0; i < forward->tunnels.n; i++)
		if (forward->tunnels.v[i]->dial)
			return true;
	return forward->resolving || forward->redial;
}

static bool has_tunnel(const struct podforward *forward)
{
	for (size_t i = 0; i < forward->tunnels.n; i++)
		if (tunnel_takes(forward->tunnels.v[i]))
			return true;
	return false;
}

/* Dial another tunnel, as soon as the pod is known. */
static void dial(struct podforward *forward)
{
	if (is_dialling(forward) || forward->tunnels.n >= PODFORWARD_TUNNELS_MAX)
		return;
	if (forward->pod) {
		*vec_push(&forward->tunnels) = tunnel_new(forward);
		return;
	}
	forward->resolving = true;
	forward->options.resolve(forward->options.ctx, forward);
}

static int on_redial(void *ctx, struct err *err)
{
	struct podforward *forward = ctx;

	(void)err;
	forward->redial = NULL;
	if (!has_tunnel(forward) && (forward->is_wanted || count_waiting(forward)))
		dial(forward);
	return 0;
}

void forward_forget_pod(struct podforward *forward)
{
	free(TAKE(forward->pod));
	free(TAKE(forward->kube_namespace));
}

static void pause_dialling(struct podforward *forward, const struct err *fault)
{
	int64_t most_ms = count_waiting(forward) ? REDIAL_WANTED_MS : REDIAL_MAX_MS;

	err_set(&forward->fault, fault->id ? fault->id : E_KUBE_FORWARD, "%s",
		fault->message ? fault->message : "the pod cannot be reached");
	forward->redial_ms = forward->redial_ms ? 2 * forward->redial_ms : REDIAL_MIN_MS;
	if (forward->redial_ms > most_ms)
		forward->redial_ms = most_ms;
	forward_forget_pod(forward);
	loop_remove_timer(forward->options.loop, forward->redial);
	forward->redial = loop_add_timer(
		forward->options.loop, clock_ms() + forward->redial_ms, on_redial, forward);
}

void podforward_pod(struct podforward *forward, const char *kube_namespace, const char *pod)
{
	forward_forget_pod(forward);
	forward->kube_namespace = mem_strdup(kube_namespace);
	forward->pod = mem_strdup(pod);
	forward->resolving = false;
	dial(forward);
}

void podforward_no_pod(struct podforward *forward, const struct err *fault, bool is_final)
{
	forward->resolving = false;
	if (!is_final) {
		pause_dialling(forward, fault);
		return;
	}
	forward->is_wanted = false;
	for (size_t i = 0; i < forward->conns.n; i++)
		if (conn_waits(forward->conns.v[i]))
			conn_fail(forward->conns.v[i], fault);
}

void forward_tunnel_opened(struct podforward_tunnel *tunnel)
{
	struct podforward *forward = tunnel->forward;

	err_clear(&forward->fault);
	if (forward->was_lost)
		forward_say(forward, "connected again, to pod %s", tunnel->pod);
	forward->was_lost = false;
	forward->is_wanted = true;
	forward_wake(forward);
}

/* A spare one, so that the next small request need not wait for its dial. */
void forward_tunnel_busy(struct podforward_tunnel *tunnel)
{
	struct podforward *forward = tunnel->forward;
	int64_t now_ms = clock_ms();

	for (size_t i = 0; i < forward->tunnels.n; i++)
		if (tunnel_takes(forward->tunnels.v[i]) &&
			!tunnel_is_busy(forward->tunnels.v[i], now_ms))
			return;
	dial(forward);
}

static void say_lost(struct podforward *forward, const struct podforward_tunnel *tunnel)
{
	if (has_tunnel(forward) && tunnel->conns.n == 0)
		return;
	if (!has_tunnel(forward))
		forward->was_lost = true;
	forward_say(forward, "the connection to pod %s was lost (%s); connecting again",
		tunnel->pod, tunnel->fault.message ? tunnel->fault.message : "no reason given");
}

static void bury(struct podforward *forward, struct podforward_tunnel *tunnel)
{
	while (tunnel->conns.n) {
		struct podforward_conn *conn = tunnel->conns.v[--tunnel->conns.n];

		conn_lost(conn, &tunnel->fault);
	}
	if (!tunnel->is_open || clock_ms() - tunnel->opened_ms < SHORT_LIFE_MS)
		pause_dialling(forward, &tunnel->fault);
	else
		forward->redial_ms = 0;
	tunnel_free(tunnel);
}

/* The dead ones, those that the server wants to end, and idle ones beside another. */
static void reap_tunnels(struct podforward *forward)
{
	int64_t now_ms = clock_ms();
	size_t kept = 0, usable = 0;

	for (size_t i = 0; i < forward->tunnels.n; i++)
		usable += tunnel_takes(forward->tunnels.v[i]);
	for (size_t i = 0; i < forward->tunnels.n; i++) {
		struct podforward_tunnel *tunnel = forward->tunnels.v[i];
		bool is_idle = tunnel->is_open && tunnel->conns.n == 0;

		if (tunnel->is_dead) {
			if (tunnel->is_open) {
				say_lost(forward, tunnel);
				/* The run may have another pod by now. */
				forward_forget_pod(forward);
			}
			bury(forward, tunnel);
		} else if (is_idle && (tunnel->is_closing ||
					      (usable > 1 && now_ms - tunnel->idle_ms > IDLE_MS))) {
			usable -= tunnel_takes(tunnel);
			tunnel_free(tunnel);
		} else {
			forward->tunnels.v[kept++] = tunnel;
		}
	}
	forward->tunnels.n = kept;
}

/*
 * Connections
 */

/* The one with the fewest connections; *ret_busy: even that would hold up a small request. */
static struct podforward_tunnel *best_tunnel(struct podforward *forward, bool *ret_busy)
{
	struct podforward_tunnel *best = NULL;
	int64_t now_ms = clock_ms();
	bool best_busy = true;

	for (size_t i = 0; i < forward->tunnels.n; i++) {
		struct podforward_tunnel *tunnel = forward->tunnels.v[i];

		if (!tunnel_takes(tunnel))
			continue;
		bool busy = tunnel_is_busy(tunnel, now_ms);
		bool fewer = !best || tunnel->conns.n < best->conns.n;
		if (!best || (best_busy && !busy) || (busy == best_busy && fewer)) {
			best = tunnel;
			best_busy = busy;
		}
	}
	*ret_busy = best_busy;
	return best;
}

static void place(struct podforward *forward, struct podforward_conn *conn)
{
	bool is_busy;
	struct podforward_tunnel *tunnel = best_tunnel(forward, &is_busy);

	if (!tunnel || is_busy)
		dial(forward);
	/* Better behind a bulk one than behind a dial that has failed. */
	if (tunnel && is_busy && is_dialling(forward) && !forward->redial)
		return;
	if (!tunnel)
		return;
	conn_open(conn, tunnel);
	tunnel_flush(tunnel);
}

static int reap_conns(struct podforward *forward, struct err *err)
{
	size_t kept = 0;
	int r = 0;

	/* done may begin new ones, which stand behind these. */
	for (size_t i = 0; i < forward->conns.n; i++) {
		struct podforward_conn *conn = forward->conns.v[i];

		if (!conn->is_over) {
			forward->conns.v[kept++] = conn;
			continue;
		}
		if (r == 0 && conn->done)
			r = conn->done(conn->ctx, &conn->end, err);
		conn_free(conn);
	}
	forward->conns.n = kept;
	return r;
}

/*
 * Pods that end without their tunnels
 */

static bool has_stuck(const struct podforward_tunnel *tunnel, int64_t now_ms)
{
	for (size_t i = 0; i < tunnel->conns.n; i++)
		if (conn_is_stuck(tunnel->conns.v[i], now_ms))
			return true;
	return false;
}

/* Each time after a pause that is twice as long, for as long as something waits. */
static bool is_to_be_looked_at(struct podforward_tunnel *tunnel, int64_t now_ms)
{
	if (tunnel->is_dead || tunnel->gone_ms || !has_stuck(tunnel, now_ms)) {
		tunnel->looked_ms = tunnel->look_ms = 0;
		return false;
	}
	return now_ms >= tunnel->looked_ms + tunnel->look_ms;
}

static void look_at(struct podforward *forward, struct podforward_tunnel *tunnel, int64_t now_ms)
{
	tunnel->looked_ms = now_ms;
	tunnel->look_ms = tunnel->look_ms ? 2 * tunnel->look_ms : forward->options.look_ms;
	if (tunnel->look_ms > LOOK_MAX_MS)
		tunnel->look_ms = LOOK_MAX_MS;
	forward->is_looking = true;
	forward->options.look(forward->options.ctx, forward, tunnel->pod);
}

/* Leave connections that still receive data for the next check. A reader that stands still does not
 * hold up the others for ever. */
static void drop_quiet(struct podforward_tunnel *tunnel, int64_t now_ms)
{
	int64_t since_ms = tunnel->came_ms > tunnel->gone_ms ? tunnel->came_ms : tunnel->gone_ms;
	bool may_end = !tunnel_is_held(tunnel) || now_ms - since_ms >= LOOK_MAX_MS;

	for (size_t i = tunnel->conns.n; i-- > 0;)
		conn_pod_gone(tunnel->conns.v[i], may_end, now_ms);
}

/* Not after a standstill: data that came meanwhile was not read yet. */
static void drop_gone(struct podforward *forward, int64_t now_ms)
{
	if (now_ms - forward->look_due_ms >= forward->options.look_ms / 2)
		return;
	for (size_t i = 0; i < forward->tunnels.n; i++)
		if (forward->tunnels.v[i]->gone_ms && !forward->tunnels.v[i]->is_dead)
			drop_quiet(forward->tunnels.v[i], now_ms);
}

static void watch_pods(struct podforward *forward, int64_t wait_ms);

static int on_look(void *ctx, struct err *err)
{
	struct podforward *forward = ctx;
	int64_t now_ms = clock_ms();

	(void)err;
	forward->look = NULL;
	drop_gone(forward, now_ms);
	watch_pods(forward, forward->options.look_ms);
	for (size_t i = 0; i < forward->tunnels.n && !forward->is_looking; i++)
		if (is_to_be_looked_at(forward->tunnels.v[i], now_ms))
			look_at(forward, forward->tunnels.v[i], now_ms);
	return 0;
}

static void watch_pods(struct podforward *forward, int64_t wait_ms)
{
	if (forward->look || !forward->options.look || forward->conns.n == 0)
		return;
	forward->look_due_ms = clock_ms() + wait_ms;
	forward->look =
		loop_add_timer(forward->options.loop, forward->look_due_ms, on_look, forward);
}

void podforward_looked(struct podforward *forward, const char *pod, bool is_gone)
{
	forward->is_looking = false;
	for (size_t i = 0; is_gone && i < forward->tunnels.n; i++) {
		struct podforward_tunnel *tunnel = forward->tunnels.v[i];

		if (tunnel->is_dead || !tunnel->is_open || !str_eq(tunnel->pod, pod))
			continue;
		if (str_eq(forward->pod, pod))
			tunnel_leave(tunnel);
		tunnel->is_closing = true;
		tunnel->gone_ms = clock_ms();
	}
	if (!is_gone)
		return;
	/* Soon, but behind what is here already and is read in a few turns. */
	loop_remove_timer(forward->options.loop, TAKE(forward->look));
	watch_pods(forward, forward->options.look_ms / 4);
}

/*
 * Turns
 */

static int on_turn(void *ctx, struct err *err)
{
	struct podforward *forward = ctx;

	forward->turn = NULL;
	reap_tunnels(forward);
	int r = reap_conns(forward, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < forward->conns.n; i++)
		if (conn_waits(forward->conns.v[i]))
			place(forward, forward->conns.v[i]);
	if (!has_tunnel(forward) && (forward->is_wanted || count_waiting(forward)))
		dial(forward);
	return 0;
}

void forward_wake(struct podforward *forward)
{
	if (!forward->turn)
		forward->turn = loop_add_timer(forward->options.loop, 0, on_turn, forward);
}

struct podforward_conn *podforward_carry(struct podforward *forward, int fd, uint16_t port,
	int (*done)(void *ctx, struct podforward_end *end, struct err *err), void *ctx)
{
	struct podforward_conn *conn;

	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	conn = conn_new(forward, fd, port);
	conn->done = done;
	conn->ctx = ctx;
	*vec_push(&forward->conns) = conn;
	watch_pods(forward, forward->options.look_ms);
	if (forward->conns.n > PODFORWARD_CONNECTIONS_MAX) {
		AUTO_ERR struct err fault = {0};

		err_set(&fault, E_KUBE_FORWARD, "there are %d connections already",
			PODFORWARD_CONNECTIONS_MAX);
		conn_fail(conn, &fault);
	}
	/* A connection waits now: redial sooner. */
	if (forward->redial && forward->redial_ms > REDIAL_WANTED_MS) {
		loop_remove_timer(forward->options.loop, forward->redial);
		forward->redial_ms = REDIAL_WANTED_MS;
		forward->redial = loop_add_timer(
			forward->options.loop, clock_ms() + REDIAL_MIN_MS, on_redial, forward);
	}
	forward_wake(forward);
	return conn;
}

void podforward_cancel(struct podforward_conn *conn)
{
	if (!conn)
		return;
	conn->done = NULL;
	conn_drop(conn);
}

struct podforward *podforward_new(const struct podforward_options *options)
{
	struct podforward *forward = mem_alloc(1, sizeof(*forward));

	forward->options = *options;
	if (!forward->options.hold_ms)
		forward->options.hold_ms = PODFORWARD_HOLD_MS;
	if (!forward->options.look_ms)
		forward->options.look_ms = PODFORWARD_LOOK_MS;
	return forward;
}

void podforward_free(struct podforward *forward)
{
	if (!forward)
		return;
	loop_remove_timer(forward->options.loop, forward->turn);
	loop_remove_timer(forward->options.loop, forward->redial);
	loop_remove_timer(forward->options.loop, forward->look);
	for (size_t i = 0; i < forward->conns.n; i++)
		conn_free(forward->conns.v[i]);
	for (size_t i = 0; i < forward->tunnels.n; i++)
		tunnel_free(forward->tunnels.v[i]);
	vec_done(&forward->conns);
	vec_done(&forward->tunnels);
	vec_done(&forward->open_ports);
	forward_forget_pod(forward);
	err_clear(&forward->fault);
	free(forward->said);
	free(forward);
}
