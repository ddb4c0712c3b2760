/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_libssh2_impl.h"

/*
 * A pass over all channels
 */

static struct ssh_channel *any_raw(struct ssh_libssh2 *ssh)
{
	for (struct ssh_channel *channel = ssh->channels; channel; channel = channel->next) {
		if (channel->raw && channel->state == SSH_CHANNEL_OPEN)
			return channel;
	}
	return NULL;
}

/* Read a flow that does not exist: libssh2 sorts the data that has come, and returns none. */
static void receive(struct ssh_libssh2 *ssh)
{
	enum { NO_FLOW = 0x7fff };
	struct ssh_channel *channel = any_raw(ssh);
	char unused[SSH_PACKET];

	if (!channel)
		return;
	ssize_t n = libssh2_channel_read_ex(channel->raw, NO_FLOW, unused, sizeof(unused));
	if (n < 0 && n != LIBSSH2_ERROR_EAGAIN)
		ssh_turn_lose(ssh, ssh_session_error(ssh, NULL));
}

static struct ssh_channel *next_to_open(struct ssh_libssh2 *ssh)
{
	for (struct ssh_channel *channel = ssh->channels; channel; channel = channel->next) {
		if (channel->state < SSH_CHANNEL_OPEN)
			return channel;
	}
	return NULL;
}

static void check_code(struct ssh_libssh2 *ssh, int code)
{
	if (code == LIBSSH2_ERROR_SOCKET_DISCONNECT || code == LIBSSH2_ERROR_SOCKET_RECV ||
		code == LIBSSH2_ERROR_SOCKET_SEND)
		ssh_turn_lose(ssh, ssh_session_error(ssh, NULL));
}

/* A type of channel that there is not must be refused (RFC 4254, section 5.1): an answer that
 * libssh2 takes and forgets, other than that to a keepalive of its own, and it reads what else has
 * come where there is no channel to read from. */
static void ping(struct ssh_libssh2 *ssh)
{
	static const char type[] = "keepalive@dlrun";
	int code;

	LIBSSH2_CHANNEL *raw = libssh2_channel_open_ex(
		ssh->session, type, sizeof(type) - 1, SSH_PACKET, SSH_PACKET, NULL, 0);
	if (raw)
		libssh2_channel_free(raw);
	ssh_session_error(ssh, &code);
	ssh->pings = !raw && code == LIBSSH2_ERROR_EAGAIN;
	if (!raw)
		check_code(ssh, code);
}

static void wake_waiting(struct ssh_libssh2 *ssh)
{
	for (struct ssh_channel *channel = ssh->channels; channel; channel = channel->next)
		channel->has_news |= channel->state == SSH_CHANNEL_WAITS;
	ssh_turn_soon(ssh);
}

static void look_at_slow_later(struct ssh_libssh2 *ssh);

/* A connection that does not answer at all is not the port's fault: an answer is asked for first.
 */
static int look_at_slow(void *ctx, struct err *err)
{
	struct ssh_libssh2 *ssh = ctx;
	int64_t since_ms = clock_ms() - ssh->opening_ms;
	bool answers = ssh->received != ssh->opening_received;

	(void)err;
	ssh->slow = NULL;
	if (since_ms < SSH_SLOW_MS || !answers)
		libssh2_keepalive_send(ssh->session, NULL);
	if (answers && since_ms >= SSH_SLOW_MS && !ssh->is_stuck) {
		ssh->is_stuck = true;
		wake_waiting(ssh);
	}
	if (answers && since_ms >= SSH_PORT_MS) {
		ssh_channel_tell_late(ssh->opening);
		ssh_turn_soon(ssh);
		return 0;
	}
	look_at_slow_later(ssh);
	return 0;
}

static void look_at_slow_later(struct ssh_libssh2 *ssh)
{
	ssh->slow = loop_add_timer(ssh->loop, clock_ms() + SSH_SLOW_LOOK_MS, look_at_slow, ssh);
}

static void begin_opening(struct ssh_libssh2 *ssh)
{
	ssh->opening = ssh->is_stuck ? NULL : next_to_open(ssh);
	if (!ssh->opening || !ssh->opening->target)
		return;
	ssh->opening_ms = clock_ms();
	ssh->opening_received = ssh->received;
	look_at_slow_later(ssh);
}

/* A response after libssh2's timeout would be taken for one to the next channel that opens. */
static void end_opening(struct ssh_libssh2 *ssh, int code)
{
	loop_remove_timer(ssh->loop, TAKE(ssh->slow));
	ssh->opening = NULL;
	ssh->is_stuck = code == LIBSSH2_ERROR_TIMEOUT;
	if (ssh->is_stuck)
		wake_waiting(ssh);
	check_code(ssh, code);
}

/* libssh2 opens one at a time. */
static void open_channels(struct ssh_libssh2 *ssh)
{
	if (ssh->pings)
		ping(ssh);
	while (!err_is_set(&ssh->fault) && !ssh->pings) {
		if (!ssh->opening)
			begin_opening(ssh);
		if (!ssh->opening)
			return;
		int r = ssh_channel_advance(ssh->opening);
		if (r == LIBSSH2_ERROR_EAGAIN)
			return;
		end_opening(ssh, r);
	}
}

/* Whether nothing of it is left. */
static bool close_channel(struct ssh_channel *channel)
{
	if (channel == channel->ssh->opening)
		return false;
	return !channel->raw || libssh2_channel_free(channel->raw) != LIBSSH2_ERROR_EAGAIN;
}

static void close_channels(struct ssh_libssh2 *ssh)
{
	for (struct ssh_channel *channel = ssh->channels, *next; channel; channel = next) {
		next = channel->next;
		if (channel->is_given_up && close_channel(channel))
			ssh_channel_destroy(channel);
	}
}

static void flush_channels(struct ssh_libssh2 *ssh)
{
	for (struct ssh_channel *channel = ssh->channels; channel; channel = channel->next) {
		if (!channel->is_given_up)
			ssh_channel_flush(channel);
	}
}

static struct ssh_channel *take_told(struct ssh_libssh2 *ssh)
{
	for (struct ssh_channel *channel = ssh->channels; channel; channel = channel->next) {
		if (channel->to_tell) {
			channel->to_tell = false;
			return channel;
		}
	}
	return NULL;
}

/* Owners may free channels, open others, and free the connection. */
static int tell(struct ssh_libssh2 *ssh, const bool *freed, struct err *err)
{
	struct ssh_channel *told;
	int r = 0;

	for (struct ssh_channel *channel = ssh->channels; channel; channel = channel->next)
		channel->to_tell = channel != ssh->first && ssh_channel_is_ready(channel);
	while (r == 0 && (told = take_told(ssh))) {
		if (!told->is_given_up && told->base.events.ready)
			r = told->base.events.ready(told->base.events.ctx, err);
		if (*freed)
			return r;
	}
	return r;
}

static int turn(struct ssh_libssh2 *ssh, struct err *err)
{
	bool freed = false;

	ssh->budget = SSH_TURN_MAX;
	/* Until the end of this function only. */
	/* cppcheck-suppress autoVariables */
	ssh->freed = &freed;
	ssh_session_flush(ssh);
	receive(ssh);
	open_channels(ssh);
	flush_channels(ssh);
	close_channels(ssh);
	if (ssh->is_lost && !err_is_set(&ssh->fault))
		ssh_turn_lose(ssh, ssh->lost_why);
	ssh->received_seen = ssh->received;
	int r = tell(ssh, &freed, err);
	if (freed)
		return r < 0 ? r : 0;
	ssh->freed = NULL;
	/* Looking at one flow takes in what has come for all, also for those looked at before. */
	if (!err_is_set(&ssh->fault))
		ssh_turn_check(ssh);
	return r < 0 ? r : 0;
}

/*
 * When
 */

static int run_soon(void *ctx, struct err *err)
{
	struct ssh_libssh2 *ssh = ctx;

	ssh->soon = NULL;
	return turn(ssh, err);
}

void ssh_turn_soon(struct ssh_libssh2 *ssh)
{
	if (!ssh->soon)
		ssh->soon = loop_add_timer(ssh->loop, clock_ms(), run_soon, ssh);
}

void ssh_turn_check(struct ssh_libssh2 *ssh)
{
	if (ssh->received != ssh->received_seen || ssh->is_lost)
		ssh_turn_soon(ssh);
}

static short prepare(void *ctx)
{
	const struct ssh_libssh2 *ssh = ctx;

	return ssh_session_has_output(ssh) ? POLLIN | POLLOUT : POLLIN;
}

/* The server asks whether we are there, or is not there itself: libssh2 reads that only while it
 * reads something else. */
static int dispatch(void *ctx, short revents, struct err *err)
{
	struct ssh_libssh2 *ssh = ctx;

	if ((revents & ~POLLOUT) && !any_raw(ssh) && !ssh->opening)
		ssh->pings = true;
	return turn(ssh, err);
}

static const struct loop_fd_ops fd_ops = {.prepare = prepare, .dispatch = dispatch};

static void add_keepalive(struct ssh_libssh2 *ssh);

static bool has_input(const struct ssh_libssh2 *ssh)
{
	char byte;

	return recv(ssh->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

static void ask_for_answer(struct ssh_libssh2 *ssh)
{
	/* While a channel opens: its answer stays with libssh2, some hundred bytes each. */
	if (ssh->opening)
		libssh2_keepalive_send(ssh->session, NULL);
	else
		ssh->pings = true;
	ssh_turn_soon(ssh);
}

/* Whether this machine has slept: what was connected before is mostly dead. */
static bool has_slept(struct ssh_libssh2 *ssh)
{
	int64_t before_ms = ssh->woke_ms;

	ssh->woke_ms = loop_woke_ms(ssh->loop);
	return ssh->woke_ms != before_ms;
}

/* Data that has arrived before, and waits to be read, is no response. */
static void ask_behind_sleep(struct ssh_libssh2 *ssh, int64_t now_ms)
{
	ssh->budget = SSH_TURN_MAX;
	receive(ssh);
	ask_for_answer(ssh);
	ssh->unanswered = SSH_UNANSWERED_MAX;
	ssh->received_before = ssh->received;
	ssh->ask_ms = now_ms + SSH_WOKEN_MS;
}

/* Request a response if nothing has come for keepalive_ms. Whether the connection is lost. */
static bool misses_answer(struct ssh_libssh2 *ssh, int64_t now_ms)
{
	if (ssh->received != ssh->received_before || has_input(ssh)) {
		ssh->unanswered = 0;
	} else if (ssh->unanswered >= SSH_UNANSWERED_MAX) {
		return true;
	} else {
		ask_for_answer(ssh);
		ssh->unanswered++;
	}
	ssh->received_before = ssh->received;
	ssh->ask_ms = now_ms + ssh->login.keepalive_ms;
	return false;
}

static int keep_alive(void *ctx, struct err *err)
{
	struct ssh_libssh2 *ssh = ctx;
	int64_t now_ms = clock_ms();

	ssh->keepalive = NULL;
	if (has_slept(ssh)) {
		ask_behind_sleep(ssh, now_ms);
	} else if (now_ms >= ssh->ask_ms && misses_answer(ssh, now_ms)) {
		ssh_turn_lose(ssh, "no answer for too long");
		return turn(ssh, err);
	}
	if (!err_is_set(&ssh->fault))
		add_keepalive(ssh);
	return 0;
}

static void add_keepalive(struct ssh_libssh2 *ssh)
{
	int64_t look_ms = clock_ms() + SSH_LOOK_MS;

	ssh->keepalive = loop_add_timer(
		ssh->loop, ssh->ask_ms < look_ms ? ssh->ask_ms : look_ms, keep_alive, ssh);
}

/*
 * Beginning and end
 */

void ssh_turn_begin(struct ssh_libssh2 *ssh)
{
	/* Keepalives are sent by us alone, when due: 2 s is the least that libssh2 accepts. */
	libssh2_keepalive_config(ssh->session, 1, 2);
	ssh->budget = SSH_TURN_MAX;
	ssh->received_before = ssh->received;
	ssh->ask_ms = clock_ms() + ssh->login.keepalive_ms;
	ssh->woke_ms = loop_woke_ms(ssh->loop);
	ssh->source = loop_add_fd(ssh->loop, ssh->fd, &fd_ops, ssh);
	add_keepalive(ssh);
}

void ssh_turn_lose(struct ssh_libssh2 *ssh, const char *why)
{
	AUTO_FREE char *shown = str_shown(why);

	if (err_is_set(&ssh->fault))
		return;
	err_set(&ssh->fault, E_SSH_LOST, "the connection to %s was lost (%s)", ssh->login.name,
		shown);
	ssh->is_lost = true;
	ssh->opening = NULL;
	loop_remove_timer(ssh->loop, TAKE(ssh->slow));
	ssh->pings = false;
	loop_remove_fd(ssh->loop, TAKE(ssh->source));
	loop_remove_timer(ssh->loop, TAKE(ssh->keepalive));
	for (struct ssh_channel *channel = ssh->channels; channel; channel = channel->next)
		channel->has_news = true;
	ssh_turn_soon(ssh);
}

/* Close the channels and disconnect as far as that does not block. */
static void say_goodbye(struct ssh_libssh2 *ssh)
{
	if (err_is_set(&ssh->fault) || ssh->is_lost)
		return;
	close_channels(ssh);
	libssh2_session_disconnect_ex(ssh->session, SSH_DISCONNECT_BY_APPLICATION, "done", "");
	ssh_session_flush(ssh);
}

void ssh_turn_end(struct ssh_libssh2 *ssh)
{
	if (ssh->freed)
		*ssh->freed = true;
	if (ssh->source)
		say_goodbye(ssh);
	loop_remove_fd(ssh->loop, ssh->source);
	loop_remove_timer(ssh->loop, ssh->soon);
	loop_remove_timer(ssh->loop, ssh->keepalive);
	loop_remove_timer(ssh->loop, ssh->slow);
	ssh->opening = NULL;
	while (ssh->channels)
		ssh_channel_destroy(ssh->channels);
}
