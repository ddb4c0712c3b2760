/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ssh/ssh.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "net/ssh/ssh_impl.h"

enum { CONNECTIONS_MAX = 16 };

/* A channel as it is handed out. Until it can be opened it has no inner one. */
struct ssh_use {
	struct channel channel;
	struct ssh *ssh;
	char *command, *host, *term; /* command or host is NULL */
	struct channel_pty pty;      /* with term only */
	uint16_t port;
	struct channel *inner;
	struct ssh_connection *connection; /* of libssh2, else NULL */
	bool is_open, has_eof, to_tell;
	struct err fault;
};

struct ssh_login {
	struct ssh *ssh;
	struct channel *channel;
	ssh_login_fn *done;
	void *ctx;
};

static int due(void *ctx, struct err *err);

/* Have a look at everything from the loop. */
static void look_soon(struct ssh *ssh)
{
	if (!ssh->timer)
		ssh->timer = loop_add_timer(ssh->options.loop, clock_ms(), due, ssh);
}

static void say(const struct ssh *ssh, bool is_detail, const char *text)
{
	if (ssh->options.say)
		ssh->options.say(ssh->options.ctx, text, is_detail);
}

/*
 * Faults
 */

static void fail_use(struct ssh_use *use, const struct err *fault)
{
	err_copy(&use->fault, fault);
	use->to_tell = true;
	look_soon(use->ssh);
}

/* All that wait. What a person must mend first is not tried again. */
static void fail_waiting(struct ssh *ssh, const struct err *fault)
{
	vec_foreach (struct ssh_use *, use, &ssh->uses)
		if (!(*use)->inner && !err_is_set(&(*use)->fault))
			fail_use(*use, fault);
	if (fault->code == ERR_AUTH || fault->code == ERR_CONFIG)
		err_copy(&ssh->fault, fault);
}

/*
 * Connections by libssh2
 */

static void drop_connection(struct ssh *ssh, struct ssh_connection *connection)
{
	for (size_t i = 0; i < ssh->connections.n; i++) {
		if (ssh->connections.v[i] != connection)
			continue;
		ssh->connections.v[i] = ssh->connections.v[--ssh->connections.n];
		ssh_libssh2_free(connection->carrier);
		free(connection);
		return;
	}
}

static void tell_carrier(struct ssh *ssh)
{
	AUTO_FREE char *text =
		ssh->stage == SSH_BY_OPENSSH
			? mem_printf("%s is reached by the OpenSSH client, because %s",
				  ssh->options.host, ssh->why)
			: mem_printf("%s is reached by libssh2", ssh->options.host);

	if (!ssh->is_known) {
		trace_note(TRACE_SSH, "%s", text);
		say(ssh, true, text);
	}
	ssh->is_known = true;
}

static void tell_no_client(const struct ssh *ssh, struct err *fault)
{
	if (ssh->has_client)
		return;
	err_evidence(fault, "there is no ssh client on PATH: its configuration was not read");
	err_hint(fault, "command -v ssh   # install openssh-client, or correct PATH");
}

/* Where there is no OpenSSH client to fall back on, or it may not be. */
static void fail_fallback(struct ssh *ssh, const char *why, struct err *fault)
{
	err_evidence(fault, "libssh2 alone does not get in: %s", why);
	tell_no_client(ssh, fault);
	fail_waiting(ssh, fault);
}

static void fall_back(struct ssh *ssh, const char *why, struct err *fault)
{
	bool has_begun = ssh->why != NULL;

	if (ssh->options.carrier == SSH_LIBSSH2 || !ssh->has_client) {
		fail_fallback(ssh, why, fault);
		return;
	}
	if (!has_begun) {
		ssh->why = mem_strdup(why);
		ssh_openssh_follow(ssh->openssh, fault);
		ssh_openssh_begin(ssh->openssh, ssh->options.first_command);
	}
	ssh->stage = SSH_BY_OPENSSH;
	free(ssh->carrier_text);
	ssh->carrier_text = mem_printf("the OpenSSH client: %s", ssh->why);
	tell_carrier(ssh);
}

static int libssh2_done(
	void *ctx, enum ssh_libssh2_end end, const char *why, struct err *fault, struct err *err)
{
	struct ssh_connection *connection = ctx;
	struct ssh *ssh = connection->ssh;

	(void)err;
	if (ssh->stage == SSH_RESOLVING)
		ssh->stage = SSH_BY_LIBSSH2;
	if (end == SSH_LIBSSH2_READY) {
		connection->is_ready = true;
		tell_carrier(ssh);
	} else if (end == SSH_LIBSSH2_FALLBACK) {
		fall_back(ssh, why, fault);
	} else {
		tell_no_client(ssh, fault);
		fail_waiting(ssh, fault);
	}
	if (!connection->is_ready)
		drop_connection(ssh, connection);
	look_soon(ssh);
	return 0;
}

static void libssh2_say(void *ctx, const char *text, bool is_detail)
{
	const struct ssh_connection *connection = ctx;

	say(connection->ssh, is_detail, text);
}

static int libssh2_ask(
	void *ctx, const char *question, bool secret, struct buf *answer, struct err *err)
{
	const struct ssh *ssh = ((struct ssh_connection *)ctx)->ssh;
	const struct ssh_options *options = &ssh->options;

	if (ssh->config.batch_mode || ssh->has_askpass)
		return 0;
	return options->ask(options->ctx, question, secret, answer, err);
}

static int libssh2_resolve(void *ctx, int cancel_fd, struct ssh_libssh2_login *ret,
	const char **ret_why, struct err *err)
{
	struct ssh *ssh = ((struct ssh_connection *)ctx)->ssh;
	int r = ssh_resolve(ssh, cancel_fd, ret, err);

	if (r == 0)
		*ret_why = ssh->why;
	return r;
}

static void add_connection(struct ssh *ssh)
{
	struct ssh_connection *connection = mem_alloc(1, sizeof(*connection));
	struct ssh_libssh2_login login;
	const struct ssh_libssh2_events events = {.done = libssh2_done,
		.say = libssh2_say,
		.ask = ssh->options.ask ? libssh2_ask : NULL,
		.resolve = libssh2_resolve,
		.ctx = connection};
	bool is_known = ssh->config.hostname != NULL;

	*connection = (struct ssh_connection){.ssh = ssh,
		.limit = SIZE_MAX,
		.has_first = !is_known && ssh->options.first_command};
	*vec_push(&ssh->connections) = connection;
	if (is_known)
		ssh_libssh2_login_of(ssh, &login);
	connection->carrier =
		ssh_libssh2_start(ssh->options.loop, is_known ? &login : NULL, &events);
}

static bool takes_no_more(const struct ssh_connection *connection)
{
	return ssh_libssh2_is_lost(connection->carrier) ||
	       ssh_libssh2_is_stuck(connection->carrier);
}

/* The first command goes on, and is not begun twice. */
static bool is_of_no_use(const struct ssh_connection *connection)
{
	return connection->n_channels == 0 &&
	       (!connection->has_first || ssh_libssh2_is_lost(connection->carrier));
}

/* A connection that takes another channel, or NULL. *ret_wait: one is not ready yet. */
static struct ssh_connection *find_connection(struct ssh *ssh, bool *ret_wait)
{
	*ret_wait = false;
	for (size_t i = ssh->connections.n; i-- > 0;) {
		struct ssh_connection *connection = ssh->connections.v[i];

		if (connection->is_ready && takes_no_more(connection)) {
			if (is_of_no_use(connection))
				drop_connection(ssh, connection);
			continue;
		}
		if (connection->is_ready && connection->n_channels < connection->limit)
			return connection;
		*ret_wait |= !connection->is_ready;
	}
	return NULL;
}

/*
 * Opening
 */

static int inner_ready(void *ctx, struct err *err);

/* The connection that has begun the use already, or NULL. */
static struct ssh_connection *take_first(const struct ssh_use *use)
{
	struct ssh *ssh = use->ssh;

	if (use->term || !str_eq(use->command, ssh->options.first_command))
		return NULL;
	for (size_t i = 0; i < ssh->connections.n; i++) {
		struct ssh_connection *connection = ssh->connections.v[i];

		if (!connection->has_first || !connection->is_ready)
			continue;
		connection->has_first = false;
		return connection;
	}
	return NULL;
}

static void open_by_libssh2(struct ssh_use *use)
{
	const struct channel_events events = {inner_ready, use};
	bool must_wait = false;
	struct ssh_connection *connection = use->command ? take_first(use) : NULL;

	if (!connection)
		connection = find_connection(use->ssh, &must_wait);

	if (!connection) {
		if (!must_wait && use->ssh->connections.n < CONNECTIONS_MAX)
			add_connection(use->ssh);
		return;
	}
	use->connection = connection;
	connection->n_channels++;
	use->inner = use->command ? ssh_libssh2_command(connection->carrier, use->command,
					    use->term ? &use->pty : NULL, &events)
				  : ssh_libssh2_connect(
					    connection->carrier, use->host, use->port, &events);
}

static void open_by_openssh(struct ssh_use *use)
{
	const struct channel_events events = {inner_ready, use};
	const struct ssh_openssh_request request = {.command = use->command,
		.pty = use->term ? &use->pty : NULL,
		.host = use->host,
		.port = use->port,
		.events = &events};
	AUTO_ERR struct err fault = {0};

	if (ssh_openssh_open(use->ssh->openssh, &request, &use->inner, &fault) < 0)
		fail_waiting(use->ssh, &fault);
}

static void try_open(struct ssh_use *use)
{
	struct ssh *ssh = use->ssh;

	if (use->inner || err_is_set(&use->fault) || ssh->stage == SSH_RESOLVING)
		return;
	if (err_is_set(&ssh->fault))
		fail_use(use, &ssh->fault);
	else if (ssh->stage == SSH_BY_OPENSSH)
		open_by_openssh(use);
	else
		open_by_libssh2(use);
	if (use->inner)
		trace_note(TRACE_SSH, "%s: channel %p opens, %s%s", ssh->options.host, (void *)use,
			use->command ? "a command" : "to ", use->command ? "" : use->host);
	if (use->inner && use->has_eof)
		use->inner->ops->send_eof(use->inner, NULL);
}

/* All that failed meanwhile are told, one in each turn: any of them may be freed in there. */
static int tell_one(struct ssh *ssh, struct err *err)
{
	for (size_t i = 0; i < ssh->uses.n; i++) {
		struct ssh_use *use = ssh->uses.v[i];

		if (!use->to_tell)
			continue;
		use->to_tell = false;
		look_soon(ssh);
		return use->channel.events.ready(use->channel.events.ctx, err);
	}
	return 0;
}

static int due(void *ctx, struct err *err)
{
	struct ssh *ssh = ctx;

	ssh->timer = NULL;
	for (size_t i = 0; i < ssh->uses.n; i++)
		try_open(ssh->uses.v[i]);
	/* Before that it is the thread's. */
	if (ssh->stage == SSH_BY_OPENSSH)
		ssh_openssh_forget_fault(ssh->openssh);
	return tell_one(ssh, err);
}

static int openssh_changed(void *ctx, struct err *err)
{
	(void)err;
	look_soon(ctx);
	return 0;
}

/* Before it is a port that does not answer. */
static bool is_held_up(const struct ssh_use *use)
{
	const struct ssh_connection *connection = use->connection;

	return ssh_libssh2_waits(use->inner) && ssh_libssh2_is_stuck(connection->carrier);
}

static void leave_connection(struct ssh_use *use)
{
	channel_free(TAKE(use->inner));
	use->connection->n_channels--;
	use->connection = NULL;
	look_soon(use->ssh);
}

/* MaxSessions: another connection has room, unless a new one has not even for one. */
static bool goes_elsewhere(struct ssh_use *use)
{
	struct ssh_connection *connection = use->connection;
	AUTO_ERR struct err fault = {0};

	if (use->is_open || !connection)
		return false;
	if (is_held_up(use)) {
		leave_connection(use);
		return true;
	}
	if (!use->command)
		return false;
	int r = ssh_libssh2_is_open(use->inner, &fault);
	size_t others = connection->n_channels - 1 + connection->has_first;
	use->is_open = r > 0;
	connection->had_session |= use->is_open;
	if (r >= 0 || fault.id != E_SSH_REFUSED || (others == 0 && !connection->had_session))
		return false;
	leave_connection(use);
	connection->limit = connection->n_channels;
	if (others == 0)
		drop_connection(use->ssh, connection);
	return true;
}

static int inner_ready(void *ctx, struct err *err)
{
	struct ssh_use *use = ctx;

	if (goes_elsewhere(use))
		return 0;
	/* The channel may be freed in there. */
	return use->channel.events.ready(use->channel.events.ctx, err);
}

/*
 * Channels
 */

static struct ssh_use *use_of(struct channel *channel)
{
	return (struct ssh_use *)channel;
}

/* 1: ask the inner one. */
static int has_inner(struct ssh_use *use, struct err *err)
{
	if (err_is_set(&use->fault))
		return err_copy(err, &use->fault);
	return use->inner != NULL;
}

static ssize_t use_read(
	struct channel *channel, enum channel_flow flow, void *out, size_t len, struct err *err)
{
	struct ssh_use *use = use_of(channel);
	int r = has_inner(use, err);

	if (r <= 0)
		return r < 0 ? r : CHANNEL_AGAIN;
	return use->inner->ops->read(use->inner, flow, out, len, err);
}

static ssize_t use_write(struct channel *channel, const void *data, size_t len, struct err *err)
{
	struct ssh_use *use = use_of(channel);
	int r = has_inner(use, err);

	if (r <= 0)
		return r < 0 ? r : CHANNEL_AGAIN;
	return use->inner->ops->write(use->inner, data, len, err);
}

static int use_send_eof(struct channel *channel, struct err *err)
{
	struct ssh_use *use = use_of(channel);
	int r = has_inner(use, err);

	use->has_eof = true;
	return r <= 0 ? r : use->inner->ops->send_eof(use->inner, err);
}

static int use_wait(struct channel *channel, struct channel_exit *ret, struct err *err)
{
	struct ssh_use *use = use_of(channel);
	int r = has_inner(use, err);

	return r <= 0 ? r : use->inner->ops->wait(use->inner, ret, err);
}

static void use_resize(struct channel *channel, unsigned columns, unsigned rows)
{
	struct ssh_use *use = use_of(channel);

	use->pty.columns = columns;
	use->pty.rows = rows;
	if (use->inner && use->inner->ops->resize)
		use->inner->ops->resize(use->inner, columns, rows);
}

static void forget_use(struct ssh *ssh, const struct ssh_use *use)
{
	size_t i = 0;

	while (ssh->uses.v[i] != use)
		i++;
	memmove(&ssh->uses.v[i], &ssh->uses.v[i + 1], (ssh->uses.n - i - 1) * sizeof(*ssh->uses.v));
	ssh->uses.n--;
}

static void use_free(struct channel *channel)
{
	struct ssh_use *use = use_of(channel);

	trace_note(TRACE_SSH, "%s: channel %p closed", use->ssh->options.host, (void *)use);
	channel_free(use->inner);
	if (use->connection)
		use->connection->n_channels--;
	forget_use(use->ssh, use);
	/* There may be room for one that waits. */
	if (use->ssh->uses.n > 0)
		look_soon(use->ssh);
	free(use->command);
	free(use->host);
	free(use->term);
	err_done(&use->fault);
	free(use);
}

static const struct channel_ops use_ops = {
	.read = use_read,
	.write = use_write,
	.send_eof = use_send_eof,
	.wait = use_wait,
	.resize = use_resize,
	.free = use_free,
};

static struct ssh_use *new_use(struct ssh *ssh, const struct channel_events *events)
{
	struct ssh_use *use = mem_alloc(1, sizeof(*use));

	use->channel = (struct channel){.ops = &use_ops, .events = *events};
	use->ssh = ssh;
	*vec_push(&ssh->uses) = use;
	look_soon(ssh);
	return use;
}

struct channel *ssh_command(struct ssh *ssh, const char *command, const struct channel_pty *pty,
	const struct channel_events *events)
{
	struct ssh_use *use = new_use(ssh, events);

	use->command = mem_strdup(command);
	if (pty) {
		use->pty = *pty;
		use->pty.term = use->term = mem_strdup(pty->term ? pty->term : "dumb");
	}
	return &use->channel;
}

struct channel *ssh_connect(
	struct ssh *ssh, const char *host, uint16_t port, const struct channel_events *events)
{
	struct ssh_use *use = new_use(ssh, events);

	use->host = mem_strdup(host);
	use->port = port;
	return &use->channel;
}

static struct channel *open_command(void *ctx, const char *command, const struct channel_pty *pty,
	const struct channel_events *events)
{
	return ssh_command(ctx, command, pty, events);
}

static struct channel *open_connect(
	void *ctx, const char *host, uint16_t port, const struct channel_events *events)
{
	return ssh_connect(ctx, host, port, events);
}

struct channel_opener ssh_opener(struct ssh *ssh)
{
	return (struct channel_opener){
		.command = open_command, .connect = open_connect, .ctx = ssh};
}

enum ssh_carrier ssh_carrier(const struct ssh *ssh, const char **ret_why)
{
	if (ssh->stage == SSH_BY_OPENSSH) {
		*ret_why = ssh->carrier_text;
		return SSH_OPENSSH;
	}
	*ret_why = "libssh2";
	return ssh->is_known ? SSH_LIBSSH2 : SSH_ANY;
}

/*
 * Logins for themselves
 */

static void free_login(struct ssh_login *login)
{
	struct ssh *ssh = login->ssh;

	for (size_t i = 0; i < ssh->logins.n; i++)
		if (ssh->logins.v[i] == login)
			ssh->logins.v[i] = ssh->logins.v[--ssh->logins.n];
	channel_free(login->channel);
	free(login);
}

static void skip_flow(struct channel *channel, enum channel_flow flow)
{
	char chunk[1024];

	while (channel->ops->read(channel, flow, chunk, sizeof(chunk), NULL) > 0)
		;
}

/* However the command ended: there was somebody who ran it. */
static int login_ready(void *ctx, struct err *err)
{
	struct ssh_login *login = ctx;
	struct channel_exit end;
	AUTO_ERR struct err fault = {0};

	skip_flow(login->channel, CHANNEL_OUT);
	skip_flow(login->channel, CHANNEL_ERR);
	int r = login->channel->ops->wait(login->channel, &end, &fault);
	if (r == 0)
		return 0;
	if (fault.id == E_SSH_REFUSED)
		err_clear(&fault);
	ssh_login_fn *done = login->done;
	void *done_ctx = login->ctx;
	free_login(login);
	return done(done_ctx, &fault, err);
}

void ssh_login(struct ssh *ssh, ssh_login_fn *done, void *ctx)
{
	struct ssh_login *login = mem_alloc(1, sizeof(*login));

	*login = (struct ssh_login){.ssh = ssh, .done = done, .ctx = ctx};
	*vec_push(&ssh->logins) = login;
	login->channel =
		ssh_command(ssh, "true", NULL, &(struct channel_events){login_ready, login});
	login->channel->ops->send_eof(login->channel, NULL);
}

const char *ssh_hostname(const struct ssh *ssh)
{
	return ssh->config.hostname;
}

/*
 * All of it
 */

static void copy_options(struct ssh_options *to, const struct ssh_options *from)
{
	*to = *from;
	to->host = mem_strdup(from->host);
	to->config = mem_strdup(from->config);
	to->home = mem_strdup(from->home ? from->home : "/");
	to->control_dir = mem_strdup(from->control_dir);
	to->first_command = mem_strdup(from->first_command);
}

static void free_string(const char *s)
{
	free((char *)(uintptr_t)s);
}

static void free_options(struct ssh_options *options)
{
	free_string(options->host);
	free_string(options->config);
	free_string(options->home);
	free_string(options->control_dir);
	free_string(options->first_command);
}

int ssh_open(const struct ssh_options *options, struct ssh **ret, struct err *err)
{
	int r = ssh_config_check_host(options->host, err);

	if (r < 0)
		return r;
	struct ssh *ssh = mem_alloc(1, sizeof(*ssh));
	copy_options(&ssh->options, options);
	ssh->openssh = ssh_openssh_new(&(struct ssh_openssh_options){.loop = options->loop,
		.resolved = &ssh->config,
		.host = options->host,
		.port = options->port,
		.config = options->config,
		.env = options->env,
		.control_dir = options->control_dir,
		.has_terminal = options->has_terminal,
		.accept_new_host = options->accept_new_host,
		.changed = openssh_changed,
		.ctx = ssh});
	add_connection(ssh);
	*ret = ssh;
	return 0;
}

void ssh_free(struct ssh *ssh)
{
	if (!ssh)
		return;
	while (ssh->logins.n > 0)
		free_login(ssh->logins.v[0]);
	BUG_ON(ssh->uses.n > 0);
	while (ssh->connections.n > 0)
		drop_connection(ssh, ssh->connections.v[0]);
	ssh_openssh_free(ssh->openssh);
	loop_remove_timer(ssh->options.loop, ssh->timer);
	vec_done(&ssh->connections);
	vec_done(&ssh->uses);
	vec_done(&ssh->logins);
	ssh_config_done(&ssh->config);
	strv_done(&ssh->sent_env);
	free(ssh->why);
	free(ssh->carrier_text);
	err_done(&ssh->fault);
	free_options(&ssh->options);
	free(ssh);
}
