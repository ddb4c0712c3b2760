/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_libssh2_impl.h"

/* Check all channels before the loop waits again. */
static void ssh_turn_soon(struct ssh_libssh2 *ssh);
/* The same where a call has received something, which may be for other channels. */
static void ssh_turn_check(struct ssh_libssh2 *ssh);
/* libssh2 gave an error that no channel alone can have. */
static void ssh_turn_lose(struct ssh_libssh2 *ssh, const char *why);

enum { STATUS_MAX = 255 };

/* libssh2 numbers what comes besides stdout like the protocol: RFC 4254, section 5.2. */
static const int stream_ids[2] = {[CHANNEL_OUT] = 0, [CHANNEL_ERR] = 1};

static struct ssh_channel *of(struct channel *channel)
{
	return (struct ssh_channel *)channel;
}

/*
 * Opening
 */

static int ssh_libssh2_channel_fail(struct ssh_channel *channel, int code, enum err_id id,
	const char *fmt, ...) ERR_PRINTF(4, 5);
static int ssh_libssh2_channel_fail(
	struct ssh_channel *channel, int code, enum err_id id, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *text = mem_vprintf(fmt, args);
	va_end(args);
	channel->state = SSH_CHANNEL_FAILED;
	channel->has_news = true;
	err_set(&channel->error, id, "%s", text);
	return code;
}

/* The words of RFC 4254, section 5.1, as libssh2 tells them. */
static int fail_open(struct ssh_channel *channel, int code, const char *text)
{
	const char *name = channel->ssh->login.name;

	if (code == LIBSSH2_ERROR_TIMEOUT)
		return ssh_libssh2_channel_fail(channel, code,
			channel->target ? E_SSH_PORT : E_SSH_REFUSED,
			"%s does not answer whether it opens a channel", name);
	if (!channel->target)
		return ssh_libssh2_channel_fail(channel, code, E_SSH_REFUSED,
			"%s opens no further session: MaxSessions", name);
	if (strstr(text, "connect failed"))
		return ssh_libssh2_channel_fail(channel, code, E_SSH_PORT,
			"nothing answers at %s, seen from %s", channel->target, name);
	if (strstr(text, "administratively prohibited"))
		return ssh_libssh2_channel_fail(channel, code, E_SSH_REFUSED,
			"%s does not allow connections to %s: AllowTcpForwarding or PermitOpen",
			name, channel->target);
	return ssh_libssh2_channel_fail(
		channel, code, E_SSH_REFUSED, "%s does not connect to %s", name, channel->target);
}

/* Tell the owner of a channel to a port that the port does not respond; for libssh2 the channel
 * goes on opening. */
static void ssh_channel_notify_late(struct ssh_channel *channel)
{
	if (err_is_set(&channel->error))
		return;
	err_set(&channel->error, E_SSH_PORT, "%s does not answer, seen from %s", channel->target,
		channel->ssh->login.name);
	channel->has_news = true;
}

static int step_open(struct ssh_channel *channel)
{
	struct ssh_libssh2 *ssh = channel->ssh;
	const char *type = channel->target ? "direct-tcpip" : "session";
	const char *message = channel->target ? channel->message.data : NULL;
	int code;

	channel->state = SSH_CHANNEL_OPENS;
	channel->raw = libssh2_channel_open_ex(ssh->session, type, (unsigned)strlen(type),
		SSH_WINDOW, SSH_PACKET, message, (unsigned)channel->message.len);
	if (channel->raw) {
		channel->id = ssh->last_id;
		channel->state = channel->target ? SSH_CHANNEL_OPEN
				 : channel->term ? SSH_CHANNEL_TERMINAL
						 : SSH_CHANNEL_ENV;
		return 0;
	}
	const char *text = ssh_session_error(ssh, &code);
	if (code == LIBSSH2_ERROR_EAGAIN)
		return code;
	return fail_open(channel, code, text);
}

static int step_terminal(struct ssh_channel *channel)
{
	const char *term = channel->term;

	channel->resized = false;
	int r = libssh2_channel_request_pty_ex(channel->raw, term, (unsigned)strlen(term), NULL, 0,
		(int)channel->columns, (int)channel->rows, 0, 0);
	if (r == 0)
		channel->state = SSH_CHANNEL_ENV;
	else if (r != LIBSSH2_ERROR_EAGAIN)
		return ssh_libssh2_channel_fail(channel, r, E_SSH_REFUSED, "%s gives no terminal",
			channel->ssh->login.name);
	return r;
}

static int send_command(struct ssh_channel *channel)
{
	static const char request[] = "exec";
	const char *command = channel->command;

	return libssh2_channel_process_startup(
		channel->raw, request, sizeof(request) - 1, command, (unsigned)strlen(command));
}

/* Without reading: what is answered first is the variable. */
static void send_command_ahead(struct ssh_channel *channel)
{
	struct ssh_libssh2 *ssh = channel->ssh;
	size_t budget = ssh->budget;

	ssh->budget = 0;
	send_command(channel);
	ssh->budget = budget;
	channel->sent_command = true;
}

/* Whether the server takes it (AcceptEnv) is its affair. libssh2 waits for each response: the
 * command goes with the last, so that one variable takes no time. */
static int step_env(struct ssh_channel *channel)
{
	const char *const *env = channel->ssh->login.env;
	const char *pair = env ? env[channel->n_env_sent] : NULL;

	if (!pair) {
		channel->state = SSH_CHANNEL_EXEC;
		return 0;
	}
	const char *value = strchr(pair, '=') + 1;
	int r = libssh2_channel_setenv_ex(
		channel->raw, pair, (unsigned)(value - pair - 1), value, (unsigned)strlen(value));
	if (r == 0 || r == LIBSSH2_ERROR_CHANNEL_REQUEST_DENIED) {
		channel->n_env_sent++;
		return 0;
	}
	if (r != LIBSSH2_ERROR_EAGAIN)
		return ssh_libssh2_channel_fail(channel, r, E_SSH_REFUSED, "%s takes no variables",
			channel->ssh->login.name);
	if (!env[channel->n_env_sent + 1] && !channel->sent_command)
		send_command_ahead(channel);
	return r;
}

static int step_exec(struct ssh_channel *channel)
{
	int r = send_command(channel);
	if (r == 0)
		channel->state = SSH_CHANNEL_OPEN;
	else if (r != LIBSSH2_ERROR_EAGAIN)
		return ssh_libssh2_channel_fail(channel, r, E_SSH_REFUSED,
			"%s does not run commands", channel->ssh->login.name);
	return r;
}

int ssh_channel_advance(struct ssh_channel *channel)
{
	int r = 0;

	while (r == 0 && channel->state < SSH_CHANNEL_OPEN) {
		if (channel->raw && channel->is_given_up)
			r = ssh_libssh2_channel_fail(
				channel, LIBSSH2_ERROR_CHANNEL_CLOSED, E_SSH_REFUSED, "given up");
		else if (channel->state <= SSH_CHANNEL_OPENS)
			r = step_open(channel);
		else if (channel->state == SSH_CHANNEL_TERMINAL)
			r = step_terminal(channel);
		else if (channel->state == SSH_CHANNEL_ENV)
			r = step_env(channel);
		else
			r = step_exec(channel);
	}
	if (r == 0)
		channel->has_news = true;
	return r;
}

/*
 * Reading
 */

/* Always as much as that: the window that libssh2 counts is made wider with the length of a read.
 * While keys are exchanged it says one length to the other side and counts that of the read which
 * goes on, and what then seems to be too much it drops without a word. */
static ssize_t read_raw(
	struct ssh_channel *channel, enum channel_flow flow, char out[static SSH_PACKET])
{
	ssize_t n = libssh2_channel_read_ex(channel->raw, stream_ids[flow], out, SSH_PACKET);

	if (n == 0)
		channel->at_end[flow] = true;
	if (n < 0 && n != LIBSSH2_ERROR_EAGAIN)
		ssh_turn_lose(channel->ssh, ssh_session_error(channel->ssh, NULL));
	return n;
}

static void ssh_libssh2_channel_read_ahead(struct ssh_channel *channel, enum channel_flow flow)
{
	if (channel->ahead_len[flow] > 0 || channel->at_end[flow])
		return;
	if (!channel->ahead[flow])
		channel->ahead[flow] = mem_alloc(1, SSH_PACKET);
	ssize_t n = read_raw(channel, flow, channel->ahead[flow]);
	channel->ahead_at[flow] = 0;
	channel->ahead_len[flow] = n > 0 ? (size_t)n : 0;
}

static ssize_t take_ahead(
	struct ssh_channel *channel, enum channel_flow flow, void *out, size_t len)
{
	size_t n = len < channel->ahead_len[flow] ? len : channel->ahead_len[flow];

	memcpy(out, channel->ahead[flow] + channel->ahead_at[flow], n);
	channel->ahead_at[flow] += n;
	channel->ahead_len[flow] -= n;
	return (ssize_t)n;
}

/* 0, or why nothing can be done with the channel now. */
static int ssh_libssh2_channel_check(struct ssh_channel *channel, struct err *err)
{
	if (err_is_set(&channel->error))
		return err_copy(err, &channel->error);
	if (channel->state == SSH_CHANNEL_OPEN)
		return 0;
	return ssh_libssh2_is_lost(channel->ssh) ? err_copy(err, &channel->ssh->error)
						 : CHANNEL_AGAIN;
}

static ssize_t op_read(
	struct channel *base, enum channel_flow flow, void *out, size_t len, struct err *err)
{
	struct ssh_channel *channel = of(base);
	int r = ssh_libssh2_channel_check(channel, err);
	ssize_t n = LIBSSH2_ERROR_EAGAIN;

	if (r == CHANNEL_AGAIN)
		channel->wants_read[flow] = true;
	if (r < 0)
		return r;
	if (channel->ahead_len[flow] > 0)
		return take_ahead(channel, flow, out, len);
	if (len < SSH_PACKET)
		ssh_libssh2_channel_read_ahead(channel, flow);
	else if (!channel->at_end[flow])
		n = read_raw(channel, flow, out);
	ssh_turn_check(channel->ssh);
	if (channel->ahead_len[flow] > 0)
		return take_ahead(channel, flow, out, len);
	if (n > 0)
		return n;
	if (channel->at_end[flow]) {
		channel->end_reported[flow] = true;
		return 0;
	}
	if (ssh_libssh2_is_lost(channel->ssh))
		return err_copy(err, &channel->ssh->error);
	channel->wants_read[flow] = true;
	return CHANNEL_AGAIN;
}

static ssize_t op_read_port(
	struct channel *base, enum channel_flow flow, void *out, size_t len, struct err *err)
{
	if (flow == CHANNEL_OUT)
		return op_read(base, flow, out, len, err);
	of(base)->at_end[flow] = of(base)->end_reported[flow] = true;
	return 0;
}

/*
 * Writing
 */

/* The other side has closed the channel: nothing reads there. */
static bool is_closed(struct ssh_channel *channel)
{
	return channel->raw && libssh2_channel_eof(channel->raw) &&
	       libssh2_channel_wait_closed(channel->raw) == 0;
}

static void flush_out(struct ssh_channel *channel)
{
	while (channel->out_len > 0) {
		ssize_t n = libssh2_channel_write_ex(
			channel->raw, 0, channel->out + channel->out_at, channel->out_len);
		if (n > 0) {
			channel->out_at += (size_t)n;
			channel->out_len -= (size_t)n;
			continue;
		}
		if (n < 0 && n != LIBSSH2_ERROR_EAGAIN)
			ssh_turn_lose(channel->ssh, ssh_session_error(channel->ssh, NULL));
		return;
	}
}

/* Pass on what has been taken. */
static void ssh_channel_flush(struct ssh_channel *channel)
{
	if (channel->state != SSH_CHANNEL_OPEN || ssh_libssh2_is_lost(channel->ssh))
		return;
	flush_out(channel);
	if (channel->wants_eof && !channel->sent_eof && channel->out_len == 0)
		channel->sent_eof = libssh2_channel_send_eof(channel->raw) == 0;
	if (channel->resized)
		channel->resized =
			libssh2_channel_request_pty_size_ex(channel->raw, (int)channel->columns,
				(int)channel->rows, 0, 0) == LIBSSH2_ERROR_EAGAIN;
}

static bool ssh_libssh2_channel_is_writable(const struct ssh_channel *channel)
{
	const struct ssh_libssh2 *ssh = channel->ssh;

	return channel->out_len == 0 && ssh->out.len - ssh->out_at < SSH_OUT_HIGH;
}

static ssize_t op_write(struct channel *base, const void *data, size_t len, struct err *err)
{
	struct ssh_channel *channel = of(base);
	int r = ssh_libssh2_channel_check(channel, err);

	if (r == 0 && ssh_libssh2_is_lost(channel->ssh))
		r = err_copy(err, &channel->ssh->error);
	if (r == CHANNEL_AGAIN || (r == 0 && !ssh_libssh2_channel_is_writable(channel))) {
		channel->wants_write = true;
		return CHANNEL_AGAIN;
	}
	if (r < 0)
		return r;
	/* A command that has ended reads no more; its end is reported by wait. */
	if (channel->at_end[CHANNEL_OUT] && is_closed(channel))
		return (ssize_t)len;
	if (!channel->out)
		channel->out = mem_alloc(1, SSH_PACKET);
	size_t n = len < SSH_PACKET ? len : SSH_PACKET;
	memcpy(channel->out, data, n);
	channel->out_at = 0;
	channel->out_len = n;
	ssh_channel_flush(channel);
	ssh_turn_check(channel->ssh);
	return (ssize_t)n;
}

static int op_send_eof(struct channel *base, struct err *err)
{
	struct ssh_channel *channel = of(base);
	int r = ssh_libssh2_channel_check(channel, err);

	if (r < 0 && r != CHANNEL_AGAIN)
		return r;
	channel->wants_eof = !channel->term;
	ssh_channel_flush(channel);
	ssh_turn_check(channel->ssh);
	return 0;
}

/*
 * The end
 */

/* Other systems have longer ones: 256 must not become a 0 of this one. */
static int narrow_status(int status)
{
	return status >= 0 && status <= STATUS_MAX ? status : STATUS_MAX;
}

static void read_exit(struct ssh_channel *channel, struct channel_exit *ret)
{
	struct channel_exit found = {0};
	char *signal = NULL;
	size_t len = 0;

	/* libssh2 says 0 for a death by a signal, and for no status at all. */
	libssh2_channel_get_exit_signal(channel->raw, &signal, &len, NULL, NULL, NULL, NULL);
	if (signal && len > 0 && len < sizeof(found.signal) && str_is_plain(signal)) {
		memcpy(found.signal, signal, len);
		found.known = true;
	} else if (!signal && channel->has_status) {
		found.code = narrow_status(libssh2_channel_get_exit_status(channel->raw));
		found.known = true;
	}
	if (signal)
		libssh2_free(channel->ssh->session, signal);
	*ret = found;
}

static int op_wait(struct channel *base, struct channel_exit *ret, struct err *err)
{
	struct ssh_channel *channel = of(base);
	int r = ssh_libssh2_channel_check(channel, err);

	if (r == 0 && channel->end_reported[CHANNEL_OUT] && channel->end_reported[CHANNEL_ERR] &&
		is_closed(channel)) {
		read_exit(channel, ret);
		return 1;
	}
	if (r == 0 && ssh_libssh2_is_lost(channel->ssh))
		r = err_copy(err, &channel->ssh->error);
	if (r < 0 && r != CHANNEL_AGAIN)
		return r;
	channel->wants_end = true;
	return 0;
}

static void op_resize(struct channel *base, unsigned columns, unsigned rows)
{
	struct ssh_channel *channel = of(base);

	channel->columns = columns;
	channel->rows = rows;
	channel->resized = channel->term != NULL;
	if (channel->state == SSH_CHANNEL_OPEN)
		ssh_turn_soon(channel->ssh);
}

/* A channel that has begun to open is opened first, and closed then. */
static void op_free(struct channel *base)
{
	struct ssh_channel *channel = of(base);

	channel->is_given_up = true;
	channel->out_len = 0;
	if (channel->state == SSH_CHANNEL_WAITS)
		channel->state = SSH_CHANNEL_FAILED;
	ssh_turn_soon(channel->ssh);
}

static const struct channel_ops command_ops = {.read = op_read,
	.write = op_write,
	.send_eof = op_send_eof,
	.wait = op_wait,
	.resize = op_resize,
	.free = op_free};

static const struct channel_ops port_ops = {.read = op_read_port,
	.write = op_write,
	.send_eof = op_send_eof,
	.wait = op_wait,
	.free = op_free};

/*
 * Queries of the turn
 */

void ssh_channel_has_status(struct ssh_libssh2 *ssh, uint32_t id)
{
	for (struct ssh_channel *channel = ssh->channels; channel; channel = channel->next) {
		if (channel->raw && channel->id == id)
			channel->has_status = true;
	}
}

static bool is_readable(struct ssh_channel *channel, enum channel_flow flow)
{
	if (!channel->wants_read[flow])
		return false;
	ssh_libssh2_channel_read_ahead(channel, flow);
	return channel->ahead_len[flow] > 0 || channel->at_end[flow];
}

static bool ssh_libssh2_channel_is_over(struct ssh_channel *channel)
{
	return channel->at_end[CHANNEL_OUT] && channel->at_end[CHANNEL_ERR] && is_closed(channel);
}

/* Whether its owner has something to do; reads ahead for that. */
static bool ssh_channel_is_ready(struct ssh_channel *channel)
{
	bool ready = channel->has_news;

	if (channel->is_given_up)
		return false;
	if (channel->state == SSH_CHANNEL_OPEN) {
		ready |= is_readable(channel, CHANNEL_OUT);
		ready |= is_readable(channel, CHANNEL_ERR);
		ready |= channel->wants_write && ssh_libssh2_channel_is_writable(channel);
		ready |= channel->wants_end && ssh_libssh2_channel_is_over(channel);
	}
	if (!ready)
		return false;
	channel->has_news = false;
	channel->wants_read[0] = channel->wants_read[1] = false;
	channel->wants_write = channel->wants_end = false;
	return true;
}

/*
 * Life
 */

struct ssh_channel *ssh_channel_new(struct ssh_libssh2 *ssh)
{
	struct ssh_channel *channel = mem_alloc(1, sizeof(*channel));
	struct ssh_channel **last = &ssh->channels;

	channel->ssh = ssh;
	channel->base.ops = &command_ops;
	while (*last)
		last = &(*last)->next;
	*last = channel;
	return channel;
}

static void ssh_channel_destroy(struct ssh_channel *channel)
{
	struct ssh_channel **at = &channel->ssh->channels;

	while (*at != channel)
		at = &(*at)->next;
	*at = channel->next;
	free(channel->command);
	free(channel->term);
	free(channel->target);
	buf_done(&channel->message);
	free(channel->ahead[0]);
	free(channel->ahead[1]);
	free(channel->out);
	err_done(&channel->error);
	free(channel);
}

void ssh_channel_set_command(
	struct ssh_channel *channel, const char *command, const struct channel_pty *pty)
{
	channel->command = mem_strdup(command);
	if (!pty)
		return;
	channel->term = mem_strdup(pty->term);
	channel->columns = pty->columns;
	channel->rows = pty->rows;
}

static struct ssh_channel *ssh_libssh2_channel_take_first(
	struct ssh_libssh2 *ssh, const char *command, const struct channel_pty *pty)
{
	struct ssh_channel *first = ssh->first;

	if (!first || pty || !str_eq(first->command, command))
		return NULL;
	ssh->first = NULL;
	first->has_news = true;
	return first;
}

struct channel *ssh_libssh2_command(struct ssh_libssh2 *ssh, const char *command,
	const struct channel_pty *pty, const struct channel_events *events)
{
	struct ssh_channel *channel = ssh_libssh2_channel_take_first(ssh, command, pty);

	if (!channel) {
		channel = ssh_channel_new(ssh);
		ssh_channel_set_command(channel, command, pty);
	}
	channel->base.events = *events;
	ssh_turn_soon(ssh);
	return &channel->base;
}

static void add_string(struct buf *out, const char *s)
{
	uint8_t len[4];

	put_be32(len, (uint32_t)strlen(s));
	buf_add(out, len, sizeof(len));
	buf_adds(out, s);
}

static void ssh_libssh2_channel_add_number(struct buf *out, uint32_t value)
{
	uint8_t bytes[4];

	put_be32(bytes, value);
	buf_add(out, bytes, sizeof(bytes));
}

struct channel *ssh_libssh2_connect(struct ssh_libssh2 *ssh, const char *host, uint16_t port,
	const struct channel_events *events)
{
	struct ssh_channel *channel = ssh_channel_new(ssh);

	channel->base.ops = &port_ops;
	channel->base.events = *events;
	channel->target = mem_printf("%s port %u", host, port);
	buf_init(&channel->message, 1024);
	add_string(&channel->message, host);
	ssh_libssh2_channel_add_number(&channel->message, port);
	/* The originator's address: none that the server could reach. */
	add_string(&channel->message, "127.0.0.1");
	ssh_libssh2_channel_add_number(&channel->message, 0);
	ssh_turn_soon(ssh);
	return &channel->base;
}

bool ssh_libssh2_waits(const struct channel *channel)
{
	return ((const struct ssh_channel *)channel)->state == SSH_CHANNEL_WAITS;
}

int ssh_libssh2_is_open(struct channel *channel, struct err *err)
{
	int r = ssh_libssh2_channel_check(of(channel), err);

	return r == 0 ? 1 : r == CHANNEL_AGAIN ? 0 : r;
}

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
static void ssh_libssh2_channel_receive(struct ssh_libssh2 *ssh)
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

static void check_code(struct ssh_libssh2 *ssh, int code)
{
	if (code == LIBSSH2_ERROR_SOCKET_DISCONNECT || code == LIBSSH2_ERROR_SOCKET_RECV ||
		code == LIBSSH2_ERROR_SOCKET_SEND)
		ssh_turn_lose(ssh, ssh_session_error(ssh, NULL));
}

/* A type of channel that there is not must be refused (RFC 4254, section 5.1): a response that
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

static void check_slow_later(struct ssh_libssh2 *ssh);

/* A connection that does not answer at all is not the port's error: a response is asked for first.
 */
static int check_slow(void *ctx, struct err *err UNUSED)
{
	struct ssh_libssh2 *ssh = ctx;
	int64_t since_ms = clock_ms() - ssh->opening_ms;
	bool responses = ssh->received != ssh->opening_received;

	ssh->slow = NULL;
	if (since_ms < SSH_SLOW_MS || !responses)
		libssh2_keepalive_send(ssh->session, NULL);
	if (responses && since_ms >= SSH_SLOW_MS && !ssh->is_stuck) {
		ssh->is_stuck = true;
		wake_waiting(ssh);
	}
	if (responses && since_ms >= SSH_PORT_MS) {
		ssh_channel_notify_late(ssh->opening);
		ssh_turn_soon(ssh);
		return 0;
	}
	check_slow_later(ssh);
	return 0;
}

static void check_slow_later(struct ssh_libssh2 *ssh)
{
	ssh->slow = loop_add_timer(ssh->loop, clock_ms() + SSH_SLOW_POLL_MS, check_slow, ssh);
}

static void begin_opening(struct ssh_libssh2 *ssh)
{
	ssh->opening = ssh->is_stuck ? NULL : ssh->channels;
	while (ssh->opening && ssh->opening->state >= SSH_CHANNEL_OPEN)
		ssh->opening = ssh->opening->next;
	if (!ssh->opening || !ssh->opening->target)
		return;
	ssh->opening_ms = clock_ms();
	ssh->opening_received = ssh->received;
	check_slow_later(ssh);
}

/* libssh2 opens one at a time. */
static void open_channels(struct ssh_libssh2 *ssh)
{
	if (ssh->pings)
		ping(ssh);
	while (!err_is_set(&ssh->error) && !ssh->pings) {
		if (!ssh->opening)
			begin_opening(ssh);
		if (!ssh->opening)
			return;
		int r = ssh_channel_advance(ssh->opening);
		if (r == LIBSSH2_ERROR_EAGAIN)
			return;
		loop_remove_timer(ssh->loop, TAKE(ssh->slow));
		ssh->opening = NULL;
		/* A response after libssh2's timeout would be taken for one to the next channel
		 * that opens. */
		ssh->is_stuck = r == LIBSSH2_ERROR_TIMEOUT;
		if (ssh->is_stuck)
			wake_waiting(ssh);
		check_code(ssh, r);
	}
}

static void close_channels(struct ssh_libssh2 *ssh)
{
	for (struct ssh_channel *channel = ssh->channels, *next; channel; channel = next) {
		next = channel->next;
		if (!channel->is_given_up || channel == ssh->opening)
			continue;
		if (!channel->raw || libssh2_channel_free(channel->raw) != LIBSSH2_ERROR_EAGAIN)
			ssh_channel_destroy(channel);
	}
}

static struct ssh_channel *ssh_libssh2_channel_next_to_notify(struct ssh_libssh2 *ssh)
{
	for (struct ssh_channel *channel = ssh->channels; channel; channel = channel->next) {
		if (channel->to_notify) {
			channel->to_notify = false;
			return channel;
		}
	}
	return NULL;
}

/* Owners may free channels, open others, and free the connection. */
static int ssh_libssh2_channel_notify(struct ssh_libssh2 *ssh, const bool *freed, struct err *err)
{
	struct ssh_channel *next;
	int r = 0;

	for (struct ssh_channel *channel = ssh->channels; channel; channel = channel->next)
		channel->to_notify = channel != ssh->first && ssh_channel_is_ready(channel);
	while (r == 0 && (next = ssh_libssh2_channel_next_to_notify(ssh))) {
		if (!next->is_given_up && next->base.events.ready)
			r = next->base.events.ready(next->base.events.ctx, err);
		if (*freed)
			return r;
	}
	return r;
}

static int ssh_libssh2_channel_turn(struct ssh_libssh2 *ssh, struct err *err)
{
	bool freed = false;

	ssh->budget = SSH_TURN_MAX;
	/* Until the end of this function only. */
	/* cppcheck-suppress autoVariables */
	ssh->freed = &freed;
	ssh_session_flush(ssh);
	ssh_libssh2_channel_receive(ssh);
	open_channels(ssh);
	for (struct ssh_channel *channel = ssh->channels; channel; channel = channel->next)
		if (!channel->is_given_up)
			ssh_channel_flush(channel);
	close_channels(ssh);
	if (ssh->is_lost && !err_is_set(&ssh->error))
		ssh_turn_lose(ssh, ssh->lost_why);
	ssh->received_seen = ssh->received;
	int r = ssh_libssh2_channel_notify(ssh, &freed, err);
	if (freed)
		return r < 0 ? r : 0;
	ssh->freed = NULL;
	/* Checking one flow takes in what has come for all, also for those checked before. */
	if (!err_is_set(&ssh->error))
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
	return ssh_libssh2_channel_turn(ssh, err);
}

static void ssh_turn_soon(struct ssh_libssh2 *ssh)
{
	if (!ssh->soon)
		ssh->soon = loop_add_timer(ssh->loop, clock_ms(), run_soon, ssh);
}

static void ssh_turn_check(struct ssh_libssh2 *ssh)
{
	if (ssh->received != ssh->received_seen || ssh->is_lost)
		ssh_turn_soon(ssh);
}

static short ssh_libssh2_channel_prepare(void *ctx)
{
	const struct ssh_libssh2 *ssh = ctx;

	return ssh_session_has_output(ssh) ? POLLIN | POLLOUT : POLLIN;
}

/* The server asks whether we are there, or is not there itself: libssh2 reads that only while it
 * reads something else. */
static int ssh_libssh2_channel_dispatch(void *ctx, short revents, struct err *err)
{
	struct ssh_libssh2 *ssh = ctx;

	if ((revents & ~POLLOUT) && !any_raw(ssh) && !ssh->opening)
		ssh->pings = true;
	return ssh_libssh2_channel_turn(ssh, err);
}

static const struct loop_fd_ops fd_ops = {
	.prepare = ssh_libssh2_channel_prepare, .dispatch = ssh_libssh2_channel_dispatch};

static void add_keepalive(struct ssh_libssh2 *ssh);

static void ssh_libssh2_channel_ping(struct ssh_libssh2 *ssh)
{
	/* While a channel opens: its response stays with libssh2, some hundred bytes each. */
	if (ssh->opening)
		libssh2_keepalive_send(ssh->session, NULL);
	else
		ssh->pings = true;
	ssh_turn_soon(ssh);
}

/* Request a response if nothing has come for keepalive_ms. Whether the connection is lost. */
static bool ssh_libssh2_channel_is_silent(struct ssh_libssh2 *ssh, int64_t now_ms)
{
	char byte;

	if (ssh->received != ssh->received_before ||
		recv(ssh->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) {
		ssh->unanswered = 0;
	} else if (ssh->unanswered >= SSH_UNANSWERED_MAX) {
		return true;
	} else {
		ssh_libssh2_channel_ping(ssh);
		ssh->unanswered++;
	}
	ssh->received_before = ssh->received;
	ssh->ping_ms = now_ms + ssh->login.keepalive_ms;
	return false;
}

static int keep_alive(void *ctx, struct err *err)
{
	struct ssh_libssh2 *ssh = ctx;
	int64_t now_ms = clock_ms(), before_ms = ssh->woke_ms;

	ssh->keepalive = NULL;
	ssh->woke_ms = loop_woke_ms(ssh->loop);
	if (ssh->woke_ms != before_ms) {
		/* This machine has slept: what was connected before is mostly dead. Data that has
		 * arrived before, and waits to be read, is no response. */
		ssh->budget = SSH_TURN_MAX;
		ssh_libssh2_channel_receive(ssh);
		ssh_libssh2_channel_ping(ssh);
		ssh->unanswered = SSH_UNANSWERED_MAX;
		ssh->received_before = ssh->received;
		ssh->ping_ms = now_ms + SSH_WOKEN_MS;
	} else if (now_ms >= ssh->ping_ms && ssh_libssh2_channel_is_silent(ssh, now_ms)) {
		ssh_turn_lose(ssh, "no answer for too long");
		return ssh_libssh2_channel_turn(ssh, err);
	}
	if (!err_is_set(&ssh->error))
		add_keepalive(ssh);
	return 0;
}

static void add_keepalive(struct ssh_libssh2 *ssh)
{
	int64_t poll_ms = clock_ms() + SSH_POLL_MS;

	ssh->keepalive = loop_add_timer(
		ssh->loop, ssh->ping_ms < poll_ms ? ssh->ping_ms : poll_ms, keep_alive, ssh);
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
	ssh->ping_ms = clock_ms() + ssh->login.keepalive_ms;
	ssh->woke_ms = loop_woke_ms(ssh->loop);
	ssh->source = loop_add_fd(ssh->loop, ssh->fd, &fd_ops, ssh);
	add_keepalive(ssh);
}

static void ssh_turn_lose(struct ssh_libssh2 *ssh, const char *why)
{
	AUTO_FREE char *shown = str_shown(why);

	if (err_is_set(&ssh->error))
		return;
	err_set(&ssh->error, E_SSH_LOST, "the connection to %s was lost (%s)", ssh->login.name,
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

void ssh_turn_end(struct ssh_libssh2 *ssh)
{
	if (ssh->freed)
		*ssh->freed = true;
	/* Close the channels and disconnect as far as that does not block. */
	if (ssh->source && !err_is_set(&ssh->error) && !ssh->is_lost) {
		close_channels(ssh);
		libssh2_session_disconnect_ex(
			ssh->session, SSH_DISCONNECT_BY_APPLICATION, "done", "");
		ssh_session_flush(ssh);
	}
	loop_remove_fd(ssh->loop, ssh->source);
	loop_remove_timer(ssh->loop, ssh->soon);
	loop_remove_timer(ssh->loop, ssh->keepalive);
	loop_remove_timer(ssh->loop, ssh->slow);
	ssh->opening = NULL;
	while (ssh->channels)
		ssh_channel_destroy(ssh->channels);
}
