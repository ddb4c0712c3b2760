/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ssh/ssh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/env.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "base/util/vec.h"
#include "net/ssh/ssh_config.h"
#include "net/ssh/ssh_libssh2.h"
#include "net/ssh/ssh_openssh.h"

/* A connection by libssh2. */
struct ssh_connection {
	struct ssh *ssh;
	struct ssh_libssh2 *libssh2;
	bool is_ready;
	bool has_first;           /* the first command has a session, which was not taken yet */
	bool had_session;         /* which may not be over for the server yet */
	size_t n_channels, limit; /* the server refused one more than that */
};

enum ssh_stage {
	SSH_RESOLVING, /* a thread has config and openssh */
	SSH_BY_LIBSSH2,
	SSH_BY_OPENSSH,
};

struct ssh_use;
struct ssh_login;
struct ssh {
	struct ssh_options options; /* its strings are ours, but for env */
	enum ssh_stage stage;
	struct ssh_config config;
	struct strv sent_env; /* NAME=VALUE, of SendEnv and SetEnv */
	bool has_askpass;     /* a program asks, not this one */
	bool has_client;      /* an ssh is on PATH */
	struct VEC_OF(struct ssh_connection *) connections;
	struct ssh_openssh *openssh;
	struct VEC_OF(struct ssh_use *) uses;
	struct VEC_OF(struct ssh_login *) logins;
	struct loop_timer *timer;
	char *why;           /* why it is the OpenSSH client, or NULL */
	char *transport_why; /* the same as a sentence */
	struct err error;    /* for good: of a login that must not be tried again */
	bool is_known;       /* the first login has ended */
};

/*
 * Choice of the transport
 */

static bool exists(const char *path)
{
	return access(path, F_OK) == 0;
}

/* Most systems allow GSSAPI, few users have a ticket. */
static bool has_ticket(const struct ssh *ssh)
{
	char path[64];
	const char *named = env_get(ssh->options.env, "KRB5CCNAME");

	snprintf(path, sizeof(path), "/tmp/krb5cc_%u", (unsigned)getuid());
	return ssh->config.gssapi && (!str_empty(named) || exists(path));
}

/* ssh takes ID-cert.pub for ID without being told. */
static bool has_certificate(const struct ssh_config *config)
{
	for (size_t i = 0; i < config->identities.n; i++) {
		AUTO_FREE char *path = mem_printf("%s-cert.pub", config->identities.v[i]);

		if (exists(path))
			return true;
	}
	return false;
}

static bool master_lives(const struct ssh *ssh)
{
	return ssh->config.control_path && ssh_openssh_socket_lives(ssh->config.control_path);
}

static bool kept_master_lives(const struct ssh *ssh)
{
	AUTO_FREE char *path = ssh->options.has_terminal
				       ? ssh_openssh_kept(ssh->options.control_dir, &ssh->config)
				       : NULL;

	return path && ssh_openssh_socket_lives(path);
}

/* libssh2 waits for the response to each variable but the last: more than that takes longer than
 * the OpenSSH client, which waits for none. */
enum { SENT_ENV_MAX = 2 };

/* Why it is the OpenSSH client from the start, or NULL. */
static const char *reason_of(const struct ssh *ssh, bool is_whole)
{
	if (ssh->options.transport == SSH_OPENSSH)
		return "it was asked for";
	if (ssh->options.transport == SSH_LIBSSH2 || !ssh->has_client)
		return NULL;
	if (master_lives(ssh))
		return "a ControlMaster of yours is connected";
	if (ssh->config.openssh_why)
		return ssh->config.openssh_why;
	if (ssh->sent_env.n > SENT_ENV_MAX)
		return "many variables are sent (SendEnv, SetEnv)";
	if (!is_whole)
		return "the configuration names files by tokens that dlrun does not know";
	if (has_certificate(&ssh->config))
		return "the login is by a certificate";
	if (has_ticket(ssh))
		return "there is a Kerberos ticket";
	if (kept_master_lives(ssh))
		return "an earlier login by it is kept";
	return NULL;
}

/*
 * The thread
 */

static struct ssh_config_location ssh_location_of(const struct ssh *ssh)
{
	const char *const *env = ssh->options.env;
	const char *user = env_get(env, "LOGNAME");

	return (struct ssh_config_location){.home = ssh->options.home,
		.host = ssh->options.host,
		.local_user = user ? user : env_get(env, "USER"),
		.env = env};
}

/* Whether all names of files are known. */
static int ssh_read_config(struct ssh *ssh, int cancel_fd, bool *ret_whole, struct err *err)
{
	const struct ssh_config_location location = ssh_location_of(ssh);
	const struct ssh_config_call call = {.host = ssh->options.host,
		.port = ssh->options.port,
		.config = ssh->options.config,
		.env = ssh->options.env,
		.cancel_fd = cancel_fd};
	AUTO_ERR struct err error = {0};

	ssh->has_client = true;
	int r = ssh_config_read(&call, &ssh->config, &error);
	if (r < 0 && error.id != E_RUN_EXEC)
		return err_move(err, &error);
	if (r < 0) {
		ssh->has_client = false;
		ssh_config_default(&location, &ssh->config);
		if (ssh->options.port)
			ssh->config.port = (uint16_t)ssh->options.port;
	}
	*ret_whole = ssh_config_expand(&ssh->config, &location);
	return 0;
}

static const char *const *ssh_list_of(const struct strv *strv)
{
	return (const char *const *)strv->v;
}

static enum ssh_strict ssh_strict_of(const struct ssh *ssh)
{
	enum ssh_strict strict = ssh->config.strict;
	bool is_stricter = strict == SSH_STRICT_ASK || strict == SSH_STRICT_YES;

	return ssh->options.accept_new_host && is_stricter ? SSH_STRICT_ACCEPT_NEW : strict;
}

/* IdentityAgent, or what the variable says where nothing was said. "none" turns it off. */
static const char *agent_of(const struct ssh *ssh)
{
	if (ssh->config.no_agent)
		return NULL;
	return ssh->config.agent ? ssh->config.agent : env_get(ssh->options.env, "SSH_AUTH_SOCK");
}

/* The login of libssh2, without a first command. */
static void ssh_libssh2_login_of(const struct ssh *ssh, struct ssh_libssh2_login *ret)
{
	const struct ssh_config *config = &ssh->config;

	*ret = (struct ssh_libssh2_login){.name = ssh->options.host,
		.hostname = config->hostname,
		.user = config->user,
		.port = config->port,
		.family = config->family,
		.connect_ms =
			config->connect_s ? config->connect_s * 1000 : SSH_OPENSSH_CONNECT_S * 1000,
		.keepalive_ms = config->keepalive_s * 1000,
		.key_alias = config->key_alias,
		.strict = ssh_strict_of(ssh),
		.hash_known_hosts = config->hash_known_hosts,
		.user_known_hosts = ssh_list_of(&config->user_known_hosts),
		.global_known_hosts = ssh_list_of(&config->global_known_hosts),
		.identities = ssh_list_of(&config->identities),
		.identities_only = config->identities_only,
		.agent = agent_of(ssh),
		.kex = config->kex,
		.ciphers = config->ciphers,
		.macs = config->macs,
		.host_key_types = config->host_key_types,
		.user_key_types = config->user_key_types,
		.rsa_bits = config->rsa_bits,
		.env = ssh_list_of(&ssh->sent_env),
		.has_askpass = ssh->has_askpass};
}

/* In the thread of the first connection. 1: *ret is what libssh2 logs in with, and lives as ssh
 * does; 0: the OpenSSH client it is, which has begun; a negative code. */
static int ssh_resolve(
	struct ssh *ssh, int cancel_fd, struct ssh_libssh2_login *ret, struct err *err)
{
	bool is_whole = false;
	int r = ssh_read_config(ssh, cancel_fd, &is_whole, err);

	if (r < 0)
		return r;
	ssh_config_env(&ssh->config, ssh->options.env, &ssh->sent_env);
	ssh->has_askpass = ssh->has_client && !ssh->config.batch_mode &&
			   ssh_openssh_has_askpass(ssh->options.env, ssh->options.has_terminal);
	const char *why = reason_of(ssh, is_whole);
	if (why) {
		ssh->why = mem_strdup(why);
		ssh_openssh_begin(ssh->openssh, ssh->options.first_command);
		return 0;
	}
	ssh_libssh2_login_of(ssh, ret);
	ret->first_command = ssh->options.first_command;
	return 1;
}

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
	bool is_open, has_eof, to_notify;
	struct err error;
};

struct ssh_login {
	struct ssh *ssh;
	struct channel *channel;
	ssh_login_fn *done;
	void *ctx;
};

static int ssh_on_wake(void *ctx, struct err *err);

/* Let ssh_on_wake check everything, from the loop. */
static void ssh_wake(struct ssh *ssh)
{
	if (!ssh->timer)
		ssh->timer = loop_add_timer(ssh->options.loop, clock_ms(), ssh_on_wake, ssh);
}

static void ssh_print(const struct ssh *ssh, bool is_detail, const char *text)
{
	if (ssh->options.print)
		ssh->options.print(ssh->options.ctx, text, is_detail);
}

/*
 * Errors
 */

static void fail_use(struct ssh_use *use, const struct err *error)
{
	err_copy(&use->error, error);
	use->to_notify = true;
	ssh_wake(use->ssh);
}

/* All that wait. What the user must repair first is not tried again. */
static void fail_waiting(struct ssh *ssh, const struct err *error)
{
	vec_foreach (struct ssh_use *, use, &ssh->uses)
		if (!(*use)->inner && !err_is_set(&(*use)->error))
			fail_use(*use, error);
	if (error->code == ERR_AUTH || error->code == ERR_CONFIG)
		err_copy(&ssh->error, error);
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
		ssh_libssh2_free(connection->libssh2);
		free(connection);
		return;
	}
}

static void ssh_note_transport(struct ssh *ssh)
{
	AUTO_FREE char *text =
		ssh->stage == SSH_BY_OPENSSH
			? mem_printf("%s is reached by the OpenSSH client, because %s",
				  ssh->options.host, ssh->why)
			: mem_printf("%s is reached by libssh2", ssh->options.host);

	if (!ssh->is_known) {
		trace_note(TRACE_SSH, "%s", text);
		ssh_print(ssh, true, text);
	}
	ssh->is_known = true;
}

static void ssh_add_no_client(const struct ssh *ssh, struct err *error)
{
	if (ssh->has_client)
		return;
	err_evidence(error, "there is no ssh client on PATH: its configuration was not read");
	err_hint(error, "command -v ssh   # install openssh-client, or correct PATH");
}

static void fall_back(struct ssh *ssh, const char *why, struct err *error)
{
	bool has_begun = ssh->why != NULL;

	if (ssh->options.transport == SSH_LIBSSH2 || !ssh->has_client) {
		err_evidence(error, "libssh2 alone does not get in: %s", why);
		ssh_add_no_client(ssh, error);
		fail_waiting(ssh, error);
		return;
	}
	if (!has_begun) {
		ssh->why = mem_strdup(why);
		ssh_openssh_follow(ssh->openssh, error);
		ssh_openssh_begin(ssh->openssh, ssh->options.first_command);
	}
	ssh->stage = SSH_BY_OPENSSH;
	REPLACE(ssh->transport_why, mem_printf("the OpenSSH client: %s", ssh->why));
	ssh_note_transport(ssh);
}

static int libssh2_done(void *ctx, enum ssh_libssh2_end end, const char *why, struct err *error,
	struct err *err UNUSED)
{
	struct ssh_connection *connection = ctx;
	struct ssh *ssh = connection->ssh;

	if (ssh->stage == SSH_RESOLVING)
		ssh->stage = SSH_BY_LIBSSH2;
	if (end == SSH_LIBSSH2_READY) {
		connection->is_ready = true;
		ssh_note_transport(ssh);
	} else if (end == SSH_LIBSSH2_FALLBACK) {
		fall_back(ssh, why, error);
	} else {
		ssh_add_no_client(ssh, error);
		fail_waiting(ssh, error);
	}
	if (!connection->is_ready)
		drop_connection(ssh, connection);
	ssh_wake(ssh);
	return 0;
}

static void libssh2_print(void *ctx, const char *text, bool is_detail)
{
	const struct ssh_connection *connection = ctx;

	ssh_print(connection->ssh, is_detail, text);
}

static int libssh2_prompt(
	void *ctx, const char *question, bool secret, struct buf *answer, struct err *err)
{
	const struct ssh *ssh = ((struct ssh_connection *)ctx)->ssh;
	const struct ssh_options *options = &ssh->options;

	if (ssh->config.batch_mode || ssh->has_askpass)
		return 0;
	return options->prompt(options->ctx, question, secret, answer, err);
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
		.print = libssh2_print,
		.prompt = ssh->options.prompt ? libssh2_prompt : NULL,
		.resolve = libssh2_resolve,
		.ctx = connection};
	bool is_known = ssh->config.hostname != NULL;

	*connection = (struct ssh_connection){.ssh = ssh,
		.limit = SIZE_MAX,
		.has_first = !is_known && ssh->options.first_command};
	*vec_push(&ssh->connections) = connection;
	if (is_known)
		ssh_libssh2_login_of(ssh, &login);
	connection->libssh2 =
		ssh_libssh2_start(ssh->options.loop, is_known ? &login : NULL, &events);
}

/* A connection that takes another channel, or NULL. *ret_wait: one is not ready yet. */
static struct ssh_connection *find_connection(struct ssh *ssh, bool *ret_wait)
{
	*ret_wait = false;
	for (size_t i = ssh->connections.n; i-- > 0;) {
		struct ssh_connection *connection = ssh->connections.v[i];

		bool is_lost = connection->is_ready && ssh_libssh2_is_lost(connection->libssh2);

		if (is_lost ||
			(connection->is_ready && ssh_libssh2_is_stuck(connection->libssh2))) {
			/* The first command goes on, and is not begun twice. */
			if (connection->n_channels == 0 && (!connection->has_first || is_lost))
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
static struct ssh_connection *ssh_take_first(const struct ssh_use *use)
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
	struct ssh_connection *connection = use->command ? ssh_take_first(use) : NULL;

	if (!connection)
		connection = find_connection(use->ssh, &must_wait);

	if (!connection) {
		if (!must_wait && use->ssh->connections.n < CONNECTIONS_MAX)
			add_connection(use->ssh);
		return;
	}
	use->connection = connection;
	connection->n_channels++;
	use->inner = use->command ? ssh_libssh2_command(connection->libssh2, use->command,
					    use->term ? &use->pty : NULL, &events)
				  : ssh_libssh2_connect(
					    connection->libssh2, use->host, use->port, &events);
}

static void open_by_openssh(struct ssh_use *use)
{
	const struct channel_events events = {inner_ready, use};
	const struct ssh_openssh_request request = {.command = use->command,
		.pty = use->term ? &use->pty : NULL,
		.host = use->host,
		.port = use->port,
		.events = &events};
	AUTO_ERR struct err error = {0};

	if (ssh_openssh_open(use->ssh->openssh, &request, &use->inner, &error) < 0)
		fail_waiting(use->ssh, &error);
}

static void try_open(struct ssh_use *use)
{
	struct ssh *ssh = use->ssh;

	if (use->inner || err_is_set(&use->error) || ssh->stage == SSH_RESOLVING)
		return;
	if (err_is_set(&ssh->error))
		fail_use(use, &ssh->error);
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

/* The owners of channels that failed meanwhile are notified, one in each turn: any of the channels
 * may be freed in there. */
static int ssh_notify_next(struct ssh *ssh, struct err *err)
{
	for (size_t i = 0; i < ssh->uses.n; i++) {
		struct ssh_use *use = ssh->uses.v[i];

		if (!use->to_notify)
			continue;
		use->to_notify = false;
		ssh_wake(ssh);
		return use->channel.events.ready(use->channel.events.ctx, err);
	}
	return 0;
}

static int ssh_on_wake(void *ctx, struct err *err)
{
	struct ssh *ssh = ctx;

	ssh->timer = NULL;
	for (size_t i = 0; i < ssh->uses.n; i++)
		try_open(ssh->uses.v[i]);
	/* Before that it is the thread's. */
	if (ssh->stage == SSH_BY_OPENSSH)
		ssh_openssh_forget_error(ssh->openssh);
	return ssh_notify_next(ssh, err);
}

static int openssh_changed(void *ctx, struct err *err UNUSED)
{
	ssh_wake(ctx);
	return 0;
}

static void leave_connection(struct ssh_use *use)
{
	channel_free(TAKE(use->inner));
	use->connection->n_channels--;
	use->connection = NULL;
	ssh_wake(use->ssh);
}

/* MaxSessions: another connection has room, unless a new one has not even for one. */
static bool goes_elsewhere(struct ssh_use *use)
{
	struct ssh_connection *connection = use->connection;
	AUTO_ERR struct err error = {0};

	if (use->is_open || !connection)
		return false;
	/* Before it is a port that does not answer. */
	if (ssh_libssh2_waits(use->inner) && ssh_libssh2_is_stuck(connection->libssh2)) {
		leave_connection(use);
		return true;
	}
	if (!use->command)
		return false;
	int r = ssh_libssh2_is_open(use->inner, &error);
	size_t others = connection->n_channels - 1 + connection->has_first;
	use->is_open = r > 0;
	connection->had_session |= use->is_open;
	if (r >= 0 || error.id != E_SSH_REFUSED || (others == 0 && !connection->had_session))
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
	if (err_is_set(&use->error))
		return err_copy(err, &use->error);
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

static void use_free(struct channel *channel)
{
	struct ssh_use *use = use_of(channel);
	struct ssh *ssh = use->ssh;
	size_t i = 0;

	trace_note(TRACE_SSH, "%s: channel %p closed", ssh->options.host, (void *)use);
	channel_free(use->inner);
	if (use->connection)
		use->connection->n_channels--;
	while (ssh->uses.v[i] != use)
		i++;
	memmove(&ssh->uses.v[i], &ssh->uses.v[i + 1], (ssh->uses.n - i - 1) * sizeof(*ssh->uses.v));
	ssh->uses.n--;
	/* There may be room for one that waits. */
	if (ssh->uses.n > 0)
		ssh_wake(ssh);
	free(use->command);
	free(use->host);
	free(use->term);
	err_done(&use->error);
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
	ssh_wake(ssh);
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

enum ssh_transport ssh_transport(const struct ssh *ssh, const char **ret_why)
{
	if (ssh->stage == SSH_BY_OPENSSH) {
		*ret_why = ssh->transport_why;
		return SSH_OPENSSH;
	}
	*ret_why = "libssh2";
	return ssh->is_known ? SSH_LIBSSH2 : SSH_ANY;
}

/*
 * Logins for themselves
 */

static void ssh_free_login(struct ssh_login *login)
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

/* However the command ended: something there ran it. */
static int login_ready(void *ctx, struct err *err)
{
	struct ssh_login *login = ctx;
	struct channel_exit end;
	AUTO_ERR struct err error = {0};

	skip_flow(login->channel, CHANNEL_OUT);
	skip_flow(login->channel, CHANNEL_ERR);
	int r = login->channel->ops->wait(login->channel, &end, &error);
	if (r == 0)
		return 0;
	if (error.id == E_SSH_REFUSED)
		err_clear(&error);
	ssh_login_fn *done = login->done;
	void *done_ctx = login->ctx;
	ssh_free_login(login);
	return done(done_ctx, &error, err);
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
		ssh_free_login(ssh->logins.v[0]);
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
	free(ssh->transport_why);
	err_done(&ssh->error);
	free_options(&ssh->options);
	free(ssh);
}
