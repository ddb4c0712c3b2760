/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ssh/ssh_openssh.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "net/ssh/ssh.h"
#include "net/ssh/ssh_openssh_words.h"
#include "net/stream/channel.h"

enum master {
	MASTER_NONE, /* no socket can be had: each channel logs in */
	MASTER_USERS,
	MASTER_OURS,
};

struct ssh_openssh {
	struct ssh_openssh_options options;
	char *host, *config, *control_dir;
	struct strv env;
	bool may_prompt; /* the user, on the terminal or by a program */
	bool is_prepared;
	enum master master;
	char *dir;    /* a temporary one of ours: logs, a private socket; NULL: none */
	char *socket; /* of the master; NULL: none */
	bool is_kept; /* the socket outlives us */
	unsigned n_logs;

	/* The login that is under way: of the client with that pid. */
	pid_t login_pid; /* 0: none */
	int64_t login_at_ms;
	char *login_log;
	struct openssh_channel *login; /* NULL: the first command's, that was not taken yet */
	struct loop_timer *timer;
	unsigned n_polls;  /* with the next one; 0: at once */
	struct err error;  /* of the last login, until it was reported */
	struct err before; /* why another transport did not log in; or none */

	struct openssh_client {
		struct child child;
		char *log;
		bool logs_in;
	} first;
	char *first_command;
};

/* The path for the messages of a client's proxy, beside the client's log. The caller frees. */
static char *ssh_openssh_proxy_log(const char *log);

/* Whether the master still has its connection. Blocks for the moment that ssh takes to ask it. */
static bool ssh_openssh_master_responds(const struct ssh_openssh *ssh);
/* Whether the child has ended; it stays to be waited for. */
static bool ssh_openssh_has_ended(pid_t pid, int *ret_code, bool *ret_signalled);
/* Append the client's messages so far; none if the file cannot be read. */
static void ssh_openssh_read_log(const char *path, struct buf *out);
/* Removes the files and frees the name. */
static void ssh_openssh_forget_log(char **log);

/* The error of ssh_words_error, or one that includes the attempt before the client. */
static void ssh_openssh_error(
	const struct ssh_openssh *ssh, const char *text, const char *said, struct err *err);
/* The channel is freed. Whether its client was still logging in; else the master, whose proxy runs
 * in the client's process group, is to go on. */
static bool ssh_openssh_forget_login(struct ssh_openssh *ssh, struct openssh_channel *channel);

static void add_option(struct strv *argv, const char *option)
{
	strv_add(argv, "-o");
	strv_add(argv, option);
}

/* A path in -o: "%" begins a token, blanks end a word. */
static void add_control_path(struct strv *argv, const char *path)
{
	AUTO_BUF struct buf out = buf_with(1024);

	buf_adds(&out, "ControlPath=\"");
	for (; *path; path++)
		buf_adds(&out, *path == '%' ? "%%" : (char[]){*path, '\0'});
	buf_adds(&out, "\"");
	add_option(argv, out.data);
}

static void add_master(const struct ssh_openssh *ssh, struct strv *argv)
{
	switch (ssh->master) {
	case MASTER_NONE:
		add_option(argv, "ControlMaster=no");
		add_option(argv, "ControlPath=none");
		return;
	case MASTER_USERS:
		add_option(argv, "ControlMaster=no");
		break;
	case MASTER_OURS:
		add_option(argv, "ControlMaster=auto");
		strv_add(argv, "-o");
		strv_addf(argv, "ControlPersist=%d",
			ssh->is_kept ? SSH_OPENSSH_KEEP_S : SSH_OPENSSH_PRIVATE_S);
		break;
	}
	add_control_path(argv, ssh->socket);
}

/* Override the user's settings for people at a terminal, which would get in the way; those for the
 * connection stay. */
static void add_manners(const struct ssh_openssh *ssh, struct strv *argv)
{
	static const char *const always[] = {"PermitLocalCommand=no", "ForwardAgent=no",
		"ForwardX11=no", "ClearAllForwardings=yes", "RemoteCommand=none", "Tunnel=no",
		"EscapeChar=none", "ServerAliveCountMax=3"};
	const struct ssh_config *config = ssh->options.resolved;

	for (size_t i = 0; i < ARRAY_LEN(always); i++)
		add_option(argv, always[i]);
	/* Older clients do not know these three. */
	if (config->has_session_type)
		add_option(argv, "SessionType=default");
	if (config->stdin_null)
		add_option(argv, "StdinNull=no");
	if (config->forks)
		add_option(argv, "ForkAfterAuthentication=no");
	if (config->keepalive_s == 0)
		add_option(argv, "ServerAliveInterval=15");
	if (config->connect_s == 0) {
		strv_add(argv, "-o");
		strv_addf(argv, "ConnectTimeout=%d", SSH_OPENSSH_CONNECT_S);
	}
}

static void ssh_openssh_add_words(const struct ssh_openssh *ssh, const char *log, struct strv *argv)
{
	strv_add(argv, "-E");
	strv_add(argv, log);
	if (!ssh->options.resolved->has_log_verbose) {
		add_option(argv, "LogLevel=VERBOSE");
		return;
	}
	add_option(argv, "LogLevel=ERROR");
	strv_add(argv, "-o");
	strv_addf(argv, "LogVerbose=%s", ssh_words_verbose);
}

/* Only settings stricter than accept-new are made accept-new. */
static void add_trust(const struct ssh_openssh *ssh, struct strv *argv)
{
	enum ssh_strict strict = ssh->options.resolved->strict;

	if (ssh->options.accept_new_host && (strict == SSH_STRICT_ASK || strict == SSH_STRICT_YES))
		add_option(argv, "StrictHostKeyChecking=accept-new");
}

/* A value of -o in which "%" begins a token. */
static char *escape_tokens(const char *s)
{
	AUTO_BUF struct buf out = buf_with(16 << 10);

	for (; *s; s++)
		buf_adds(&out, *s == '%' ? "%%" : (char[]){*s, '\0'});
	return buf_take(&out);
}

/* The command that ssh itself makes of ProxyJump, with messages and a timeout of its own. */
static char *jump_command(const struct ssh_openssh *ssh, const char *log)
{
	const char *jumps = ssh->options.resolved->proxy_jump;
	const char *comma = strrchr(jumps, ','), *last = comma ? comma + 1 : jumps;
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf out = buf_with(8 << 10);

	strv_add(&words, "ssh");
	if (ssh->config) {
		strv_add(&words, "-F");
		strv_add(&words, ssh->config);
	}
	strv_add(&words, "-E");
	strv_add(&words, log);
	add_option(&words, "LogLevel=ERROR");
	if (!ssh->may_prompt)
		add_option(&words, "BatchMode=yes");
	strv_add(&words, "-o");
	strv_addf(&words, "ConnectTimeout=%d", SSH_OPENSSH_CONNECT_S);
	if (comma) {
		strv_add(&words, "-J");
		strv_add_take(&words, mem_strndup(jumps, (size_t)(comma - jumps)));
	}
	str_shell_join(&out, words.v);
	AUTO_FREE char *start = escape_tokens(out.data);
	buf_reset(&out);
	buf_addf(&out, "%s -W '[%%h]:%%p' -- ", start);
	AUTO_FREE char *url = mem_printf("%s%s", strstr(last, "://") ? "" : "ssh://", last);
	str_shell_quote(&out, url);
	return buf_take(&out);
}

/* With ControlPersist ssh throws away what a proxy says: it goes to a file. */
static void add_proxy(const struct ssh_openssh *ssh, const char *log, struct strv *argv)
{
	const struct ssh_config *config = ssh->options.resolved;
	AUTO_FREE char *path = ssh_openssh_proxy_log(log);
	AUTO_FREE char *command = NULL;

	if (config->proxy_jump && !strchr(config->proxy_jump, '%')) {
		command = jump_command(ssh, path);
	} else if (config->proxy_command && !config->proxy_jump) {
		AUTO_BUF struct buf word = buf_with(8 << 10);

		str_shell_quote(&word, path);
		AUTO_FREE char *end = escape_tokens(word.data);
		command = mem_printf("%s 2>>%s", config->proxy_command, end);
	}
	if (!command)
		return;
	strv_add(argv, "-o");
	strv_addf(argv, "ProxyCommand=%s", command);
}

static void add_start(const struct ssh_openssh *ssh, struct strv *argv)
{
	strv_add(argv, "ssh");
	if (ssh->options.port)
		strv_addf(argv, "-p%u", ssh->options.port);
	if (!ssh->config)
		return;
	strv_add(argv, "-F");
	strv_add(argv, ssh->config);
}

/* The arguments of one ssh. log: its -E; logs_in: it has no master yet. */
static void ssh_openssh_argv(const struct ssh_openssh *ssh,
	const struct ssh_openssh_request *request, const char *log, bool logs_in, struct strv *ret)
{
	add_start(ssh, ret);
	strv_add(ret, request->pty ? "-tt" : "-T");
	ssh_openssh_add_words(ssh, log, ret);
	if (!ssh->may_prompt || !logs_in)
		add_option(ret, "BatchMode=yes");
	add_manners(ssh, ret);
	add_trust(ssh, ret);
	add_master(ssh, ret);
	if (logs_in)
		add_proxy(ssh, log, ret);
	if (request->host) {
		strv_add(ret, "-W");
		strv_addf(ret, strchr(request->host, ':') ? "[%s]:%u" : "%s:%u", request->host,
			request->port);
	}
	strv_add(ret, "--");
	strv_add(ret, ssh->host);
	/* Older clients look for options behind the host, too. */
	if (!request->host)
		strv_addf(ret, "%s%s", request->command[0] == '-' ? " " : "", request->command);
}

/* `ssh -O check` or exit. */
static void ssh_openssh_control_argv(
	const struct ssh_openssh *ssh, const char *what, const char *path, struct strv *ret)
{
	add_start(ssh, ret);
	strv_add(ret, "-O");
	strv_add(ret, what);
	/* Without these ssh would log in itself where a master does not respond. */
	add_option(ret, "BatchMode=yes");
	add_option(ret, "ProxyCommand=false");
	add_control_path(ret, path);
	strv_add(ret, "--");
	strv_add(ret, ssh->host);
}

enum {
	HELD_MAX = 16 << 10, /* of stderr before the login; more is dropped */
	POLL_MIN_MS = 1,
	POLL_MAX_MS = 32,
	EXIT_OWN = 255, /* the client's own failure, or the command's status */
};

/* How the client ended: known when it has. */
enum outcome { RUNS, ENDED, FAILED };

struct openssh_channel {
	struct channel channel;
	struct ssh_openssh *ssh;
	struct channel *child;
	pid_t pid;
	char *log;
	/* Until it has logged in, what comes by stderr is a proxy's, not the command's. */
	bool is_open;
	struct buf held;
	size_t held_at;
	bool child_ended[2], flow_ended[2];
	struct loop_timer *timer;
	unsigned n_polls; /* with the next one */
	enum outcome outcome;
	struct channel_exit end;
	struct err error;
};

static struct openssh_channel *self_of(struct channel *channel)
{
	return (struct openssh_channel *)channel;
}

static int openssh_channel_notify(void *ctx, struct err *err)
{
	struct openssh_channel *self = ctx;

	/* The channel may be freed in there. */
	return self->channel.events.ready(self->channel.events.ctx, err);
}

static int openssh_channel_poll_again(void *ctx, struct err *err)
{
	struct openssh_channel *self = ctx;

	self->timer = NULL;
	return openssh_channel_notify(self, err);
}

static void openssh_channel_poll_later(struct openssh_channel *self)
{
	if (self->timer)
		return;
	self->timer = loop_add_timer(self->ssh->options.loop,
		clock_ms() + backoff_ms(self->n_polls++, POLL_MIN_MS, POLL_MAX_MS),
		openssh_channel_poll_again, self);
}

/*
 * The outcome
 */

static void ssh_openssh_set_exit(struct openssh_channel *self, int code, const char *signal_name)
{
	self->outcome = ENDED;
	self->end.known = true;
	self->end.code = code;
	snprintf(self->end.signal, sizeof(self->end.signal), "%s", signal_name);
}

static ssize_t read_child(struct openssh_channel *self, enum channel_flow flow, void *out,
	size_t len, struct err *err)
{
	if (self->child_ended[flow])
		return 0;
	ssize_t n = self->child->ops->read(self->child, flow, out, len, err);
	self->child_ended[flow] = n == 0;
	return n;
}

static void set_error(struct openssh_channel *self, const char *text)
{
	self->outcome = FAILED;
	if (!self->is_open) {
		AUTO_FREE char *proxy = ssh_openssh_proxy_log(self->log);
		char chunk[1024];
		ssize_t n;

		/* Messages of a proxy may not have been read yet. */
		while ((n = read_child(self, CHANNEL_ERR, chunk, sizeof(chunk), NULL)) > 0)
			buf_add(&self->held, chunk, (size_t)n);
		ssh_openssh_read_log(proxy, &self->held);
	}
	ssh_openssh_error(self->ssh, text, self->is_open ? NULL : self->held.data, &self->error);
}

static void ssh_openssh_read_words(
	struct openssh_channel *self, struct buf *text, struct ssh_words *ret)
{
	buf_init(text, SSH_WORDS_MAX);
	ssh_openssh_read_log(self->log, text);
	ssh_words_read(text->data, text->len, ret);
	self->is_open |= ret->has_open;
}

/* 255 is the command's own status where the client, or its master, has been told one. A command
 * that a signal ended has none, and a connection that was lost has none. */
static void openssh_classify_255(struct openssh_channel *self)
{
	const struct ssh_openssh *ssh = self->ssh;
	AUTO_BUF struct buf text = {0};
	struct ssh_words words;

	ssh_openssh_read_words(self, &text, &words);
	if (words.has_exit_status)
		ssh_openssh_set_exit(self, EXIT_OWN, "");
	else if (words.has_exit_signal)
		ssh_openssh_set_exit(self, 0, "?");
	else if (words.master_is_gone && ssh_openssh_master_responds(ssh))
		ssh_openssh_set_exit(self, 0, "?");
	else
		set_error(self, text.data);
}

/* An old client reports no exits: only its complaints, if there are any. */
static void openssh_classify_255_blind(struct openssh_channel *self)
{
	AUTO_BUF struct buf text = {0};
	struct ssh_words words;

	ssh_openssh_read_words(self, &text, &words);
	set_error(self, text.data);
	bool is_silent = self->error.n_evidence == 0 && self->is_open;
	if (!is_silent)
		return;
	err_clear(&self->error);
	ssh_openssh_set_exit(self, EXIT_OWN, "");
}

/* The channel of the child waits for it once both of its flows have ended. */
static bool openssh_channel_has_ended(
	struct openssh_channel *self, int *ret_code, bool *ret_signalled)
{
	struct channel_exit end = {0};

	if (!self->child_ended[CHANNEL_OUT] || !self->child_ended[CHANNEL_ERR])
		return ssh_openssh_has_ended(self->pid, ret_code, ret_signalled);
	if (self->child->ops->wait(self->child, &end, NULL) == 0)
		return false;
	*ret_signalled = !end.known || *end.signal;
	*ret_code = end.code;
	return true;
}

static bool ssh_openssh_evaluate(struct openssh_channel *self)
{
	int code = 0;
	bool signalled = false;

	if (self->outcome != RUNS)
		return true;
	if (!openssh_channel_has_ended(self, &code, &signalled))
		return false;
	if (signalled) {
		self->outcome = FAILED;
		err_set(&self->error, E_SSH_LOST, "the ssh client for %s was killed",
			self->ssh->host);
	} else if (code != EXIT_OWN) {
		ssh_openssh_set_exit(self, code, "");
	} else if (self->ssh->options.resolved->has_log_verbose) {
		openssh_classify_255(self);
	} else {
		openssh_classify_255_blind(self);
	}
	return true;
}

/*
 * Reading
 */

static bool openssh_channel_check_open(struct openssh_channel *self)
{
	AUTO_BUF struct buf text = {0};
	struct ssh_words words;

	if (self->is_open)
		return true;
	ssh_openssh_read_words(self, &text, &words);
	/* The held output is a proxy's: drop it. */
	if (self->is_open)
		self->held_at = self->held.len;
	return self->is_open;
}

/* The end of a flow, but of a client that has failed, which is known in a moment: then that. */
static ssize_t end_of_flow(struct openssh_channel *self, enum channel_flow flow, struct err *err)
{
	if (!ssh_openssh_evaluate(self) &&
		backoff_ms(self->n_polls, POLL_MIN_MS, POLL_MAX_MS) < POLL_MAX_MS) {
		openssh_channel_poll_later(self);
		return CHANNEL_AGAIN;
	}
	if (self->outcome == FAILED)
		return err_copy(err, &self->error);
	self->flow_ended[flow] = true;
	return 0;
}

/* Whether nothing more comes now: hold what there is. */
static ssize_t hold_errors(struct openssh_channel *self, void *out, size_t len, struct err *err)
{
	ssize_t n;

	while ((n = read_child(self, CHANNEL_ERR, out, len, err)) > 0) {
		if (openssh_channel_check_open(self))
			return n;
		buf_add(&self->held, out, (size_t)n);
	}
	return n;
}

/* Of a client that ended well without a word about its login what was held is the command's. */
static size_t give_held(struct openssh_channel *self, void *out, size_t len)
{
	if (self->held_at == 0)
		openssh_channel_check_open(self);
	size_t n = self->held.len - self->held_at;
	if (n > len)
		n = len;
	memcpy(out, self->held.data + self->held_at, n);
	self->held_at += n;
	return n;
}

static ssize_t read_errors(struct openssh_channel *self, void *out, size_t len, struct err *err)
{
	ssize_t n = self->is_open ? read_child(self, CHANNEL_ERR, out, len, err)
				  : hold_errors(self, out, len, err);

	if (n != 0)
		return n;
	n = end_of_flow(self, CHANNEL_ERR, err);
	if (n != 0)
		return n;
	size_t given = self->outcome == ENDED ? give_held(self, out, len) : 0;
	self->flow_ended[CHANNEL_ERR] = given == 0;
	return (ssize_t)given;
}

static ssize_t openssh_read(
	struct channel *channel, enum channel_flow flow, void *out, size_t len, struct err *err)
{
	struct openssh_channel *self = self_of(channel);

	if (self->outcome == FAILED)
		return err_copy(err, &self->error);
	if (self->flow_ended[flow])
		return 0;
	if (flow == CHANNEL_ERR)
		return read_errors(self, out, len, err);
	ssize_t n = read_child(self, flow, out, len, err);
	return n != 0 ? n : end_of_flow(self, flow, err);
}

/*
 * The rest
 */

static ssize_t openssh_write(struct channel *channel, const void *data, size_t len, struct err *err)
{
	struct openssh_channel *self = self_of(channel);

	if (self->outcome == FAILED)
		return err_copy(err, &self->error);
	return self->child->ops->write(self->child, data, len, err);
}

static int openssh_send_eof(struct channel *channel, struct err *err)
{
	struct openssh_channel *self = self_of(channel);

	if (self->outcome == FAILED)
		return err_copy(err, &self->error);
	return self->child->ops->send_eof(self->child, err);
}

static int openssh_wait(struct channel *channel, struct channel_exit *ret, struct err *err)
{
	struct openssh_channel *self = self_of(channel);

	if (self->outcome == FAILED)
		return err_copy(err, &self->error);
	if (!self->flow_ended[CHANNEL_OUT] || !self->flow_ended[CHANNEL_ERR])
		return 0;
	if (!ssh_openssh_evaluate(self)) {
		openssh_channel_poll_later(self);
		return 0;
	}
	if (self->outcome == FAILED)
		return err_copy(err, &self->error);
	*ret = self->end;
	return 1;
}

static void openssh_resize(struct channel *channel, unsigned columns, unsigned rows)
{
	struct openssh_channel *self = self_of(channel);

	self->child->ops->resize(self->child, columns, rows);
}

static void openssh_free(struct channel *channel)
{
	struct openssh_channel *self = self_of(channel);

	if (!ssh_openssh_forget_login(self->ssh, self))
		channel_child_alone(self->child);
	loop_remove_timer(self->ssh->options.loop, self->timer);
	channel_free(self->child);
	ssh_openssh_forget_log(&self->log);
	buf_done(&self->held);
	err_done(&self->error);
	free(self);
}

static const struct channel_ops openssh_ops = {
	.read = openssh_read,
	.write = openssh_write,
	.send_eof = openssh_send_eof,
	.wait = openssh_wait,
	.resize = openssh_resize,
	.free = openssh_free,
};

/* Fail the channel with a copy of that error, unless it has ended. */
static void ssh_openssh_fail(struct openssh_channel *channel, const struct err *error)
{
	if (channel->outcome != RUNS)
		return;
	channel->outcome = FAILED;
	err_copy(&channel->error, error);
	openssh_channel_poll_later(channel);
}

static struct channel *openssh_channel_new(struct ssh_openssh *ssh, struct openssh_client *client,
	const struct ssh_openssh_request *request)
{
	struct openssh_channel *self = mem_alloc(1, sizeof(*self));

	self->channel = (struct channel){.ops = &openssh_ops, .events = *request->events};
	self->ssh = ssh;
	self->pid = client->child.pid;
	self->log = TAKE(client->log);
	self->is_open = !client->logs_in;
	self->n_polls = 1;
	buf_init(&self->held, HELD_MAX);
	self->child = channel_of_child(ssh->options.loop, &client->child,
		&(struct channel_events){openssh_channel_notify, self});
	return &self->channel;
}

enum {
	CONTROL_MS = 2000, /* ssh -O */
	LOGIN_POLL_MIN_MS = 4,
	LOGIN_POLL_MAX_MS = 64,
	SOCKET_MAX = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1,
	SOCKET_SUFFIX = 18, /* what ssh appends while it makes one */
};

/*
 * Checking
 */

int ssh_socket_probe(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (strlen(path) > SOCKET_MAX)
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, strlen(path) + 1);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	int r = connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
	close(fd);
	return r;
}

bool ssh_openssh_socket_lives(const char *path)
{
	return ssh_socket_probe(path) == 0;
}

static bool ssh_openssh_has_ended(pid_t pid, int *ret_code, bool *ret_signalled)
{
	siginfo_t info = {0};

	if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0) {
		/* ECHILD: the child has been waited for already. */
		*ret_signalled = false;
		*ret_code = 255;
		return errno == ECHILD;
	}
	if (info.si_pid == 0)
		return false;
	*ret_signalled = info.si_code != CLD_EXITED;
	*ret_code = info.si_status;
	return true;
}

static void ssh_openssh_read_log(const char *path, struct buf *out)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	while (fd >= 0) {
		char chunk[4096];
		ssize_t n = read(fd, chunk, sizeof(chunk));

		if (n <= 0)
			return;
		buf_add(out, chunk, (size_t)n);
	}
}

static char *ssh_openssh_proxy_log(const char *log)
{
	return mem_printf("%s-proxy", log);
}

static void ssh_openssh_forget_log(char **log)
{
	if (!*log)
		return;
	AUTO_FREE char *proxy = ssh_openssh_proxy_log(*log);

	unlink(*log);
	unlink(proxy);
	free(TAKE(*log));
}

/* Whether ssh -O does it. */
static bool control(const struct ssh_openssh *ssh, const char *what, const char *path)
{
	AUTO_STRV struct strv argv = {0};
	AUTO_BUF struct buf out = buf_with(1024);
	AUTO_BUF struct buf said = buf_with(1024);
	int status = 0;

	ssh_openssh_control_argv(ssh, what, path, &argv);
	const struct proc_capture_spec spec = {.argv = (const char *const *)argv.v,
		.env = (const char *const *)ssh->env.v,
		.timeout_ms = CONTROL_MS,
		.errors = &said,
		.drops = true,
		.cancel_fd = -1};
	return proc_capture_with(&spec, &out, &status, NULL) == 0 && WIFEXITED(status) &&
	       WEXITSTATUS(status) == 0;
}

/* A master that is about to end may still listen, but it does not respond. */
static bool ssh_openssh_master_responds(const struct ssh_openssh *ssh)
{
	return ssh->socket && ssh_openssh_socket_lives(ssh->socket) &&
	       control(ssh, "check", ssh->socket);
}

/*
 * Places
 */

static bool make_dir_in(struct ssh_openssh *ssh, const char *base)
{
	if (!base || base[0] != '/' || strlen(base) > 64 || strpbrk(base, "\"$"))
		return false;
	AUTO_FREE char *dir = mem_printf("%s/dlrun-ssh-XXXXXX", base);
	if (!mkdtemp(dir))
		return false;
	ssh->dir = TAKE(dir);
	return true;
}

/* A directory left by a crash goes with the login session, or with the next boot. */
static bool ssh_openssh_make_dir(struct ssh_openssh *ssh)
{
	const char *const *env = (const char *const *)ssh->env.v;

	return ssh->dir || make_dir_in(ssh, env_get(env, "XDG_RUNTIME_DIR")) ||
	       make_dir_in(ssh, env_get(env, "TMPDIR")) || make_dir_in(ssh, "/tmp");
}

static bool fits(const char *path)
{
	return strlen(path) + SOCKET_SUFFIX <= SOCKET_MAX && !strpbrk(path, "\"$");
}

char *ssh_openssh_kept(const char *control_dir, const struct ssh_config *config)
{
	if (!control_dir)
		return NULL;
	AUTO_FREE char *path = mem_printf("%s/%.20s", control_dir, config->id);
	return fits(path) ? TAKE(path) : NULL;
}

static void choose_own_master(struct ssh_openssh *ssh)
{
	AUTO_FREE char *kept = NULL;

	if (ssh->options.has_terminal)
		kept = ssh_openssh_kept(ssh->control_dir, ssh->options.resolved);
	free(TAKE(ssh->socket));
	ssh->is_kept = kept != NULL;
	ssh->master = MASTER_OURS;
	ssh->socket = ssh->is_kept ? TAKE(kept) : mem_printf("%s/master", ssh->dir);
}

static void choose_master(struct ssh_openssh *ssh)
{
	const char *users = ssh->options.resolved->control_path;

	if (users && ssh_openssh_socket_lives(users) && control(ssh, "check", users)) {
		ssh->master = MASTER_USERS;
		ssh->socket = mem_strdup(users);
	} else {
		choose_own_master(ssh);
	}
}

static int ssh_openssh_prepare(struct ssh_openssh *ssh, struct err *err)
{
	if (ssh->is_prepared)
		return 0;
	if (!ssh_openssh_make_dir(ssh))
		return fs_error(err, errno, "cannot make a directory for ssh in /tmp");
	choose_master(ssh);
	ssh->is_prepared = true;
	return 0;
}

/*
 * Clients
 */

static int start_client(struct ssh_openssh *ssh, const struct ssh_openssh_request *request,
	bool logs_in, struct openssh_client *ret, struct err *err)
{
	AUTO_FREE char *log = mem_printf("%s/log-%u", ssh->dir, ssh->n_logs++);
	AUTO_STRV struct strv argv = {0};

	ssh_openssh_argv(ssh, request, log, logs_in, &argv);
	const struct child_spec spec = {.argv = (const char *const *)argv.v,
		.env = (const char *const *)ssh->env.v,
		.pty = request->pty,
		.keeps_terminal = ssh->options.has_terminal && logs_in};
	int r = child_start(&spec, &ret->child, err);
	if (r < 0)
		return r;
	ret->log = TAKE(log);
	ret->logs_in = logs_in;
	return 0;
}

static void drop_client(struct openssh_client *client)
{
	child_end(&client->child);
	ssh_openssh_forget_log(&client->log);
}

/* Whether the next client must log in. A master may end at any time; the user's is not begun anew.
 */
static bool needs_login(struct ssh_openssh *ssh)
{
	if (ssh->master == MASTER_NONE)
		return true;
	if (ssh_openssh_socket_lives(ssh->socket))
		return false;
	if (ssh->master == MASTER_USERS)
		choose_own_master(ssh);
	return !ssh_openssh_socket_lives(ssh->socket);
}

/*
 * The login that the others wait for
 */

static void end_login(struct ssh_openssh *ssh)
{
	ssh->login_pid = 0;
	ssh->login = NULL;
	free(TAKE(ssh->login_log));
	loop_remove_timer(ssh->options.loop, ssh->timer);
	ssh->timer = NULL;
}

/* The client of the login has ended: did it get that far? Then it is the socket that cannot be had.
 */
static void openssh_classify_login(struct ssh_openssh *ssh, int code, bool signalled)
{
	AUTO_BUF struct buf text = buf_with(SSH_WORDS_MAX);
	AUTO_BUF struct buf said = buf_with(SSH_WORDS_MAX);
	AUTO_FREE char *proxy = ssh_openssh_proxy_log(ssh->login_log);
	struct ssh_words words;

	ssh_openssh_read_log(ssh->login_log, &text);
	ssh_openssh_read_log(proxy, &said);
	ssh_words_read(text.data, text.len, &words);
	if (words.has_open || (!signalled && code != 255))
		ssh->master = MASTER_NONE;
	else
		ssh_openssh_error(ssh, text.data, said.data, &ssh->error);
}

/* The error of the attempt before the client says more than the client's refusal alone. */
static void ssh_openssh_error(
	const struct ssh_openssh *ssh, const char *text, const char *said, struct err *err)
{
	AUTO_ERR struct err error = {0};

	ssh_words_error(text, said, ssh->host, &error);
	if (error.id != ssh->before.id || error.id != E_SSH_LOGIN || !str_empty(said)) {
		err_move(err, &error);
		return;
	}
	err_copy(err, &ssh->before);
	for (size_t i = 0; i < error.n_evidence; i++)
		err_evidence(err, "%s", error.evidence[i]);
	err_hint(err, "%s", error.hint);
}

void ssh_openssh_follow(struct ssh_openssh *ssh, const struct err *before)
{
	err_clear(&ssh->before);
	err_copy(&ssh->before, before);
}

static bool is_too_late(const struct ssh_openssh *ssh)
{
	return !ssh->may_prompt && clock_ms() - ssh->login_at_ms > SSH_LOGIN_MS;
}

static void give_up_login(struct ssh_openssh *ssh)
{
	kill(ssh->login_pid, SIGTERM);
	err_set(&ssh->error, E_SSH_UNREACHABLE, "%s did not answer within %d s", ssh->host,
		SSH_LOGIN_MS / 1000);
	err_hint(&ssh->error, "ssh -v %s true", ssh->host);
	if (ssh->login)
		ssh_openssh_fail(ssh->login, &ssh->error);
}

/* Whether the login is over, one way or the other. */
static bool openssh_login_is_over(struct ssh_openssh *ssh)
{
	int code = 0;
	bool signalled = false;

	if (ssh->master == MASTER_OURS && ssh_openssh_socket_lives(ssh->socket))
		return true;
	if (ssh_openssh_has_ended(ssh->login_pid, &code, &signalled)) {
		openssh_classify_login(ssh, code, signalled);
		return true;
	}
	if (!is_too_late(ssh))
		return false;
	give_up_login(ssh);
	return true;
}

static int openssh_login_poll_again(void *ctx, struct err *err);

static void openssh_login_poll_later(struct ssh_openssh *ssh)
{
	if (ssh->timer)
		return;
	ssh->timer = loop_add_timer(ssh->options.loop,
		clock_ms() + backoff_ms(ssh->n_polls, LOGIN_POLL_MIN_MS, LOGIN_POLL_MAX_MS),
		openssh_login_poll_again, ssh);
	ssh->n_polls++;
}

static int openssh_login_poll_again(void *ctx, struct err *err)
{
	struct ssh_openssh *ssh = ctx;

	ssh->timer = NULL;
	if (ssh->login_pid && !openssh_login_is_over(ssh)) {
		openssh_login_poll_later(ssh);
		return 0;
	}
	end_login(ssh);
	/* The transport may be freed in there. */
	return ssh->options.changed(ssh->options.ctx, err);
}

static void begin_login(struct ssh_openssh *ssh, const struct openssh_client *client)
{
	if (!client->logs_in || ssh->master == MASTER_NONE)
		return;
	ssh->login_pid = client->child.pid;
	ssh->login_at_ms = clock_ms();
	ssh->n_polls = 1;
	ssh->login_log = mem_strdup(client->log);
}

static bool ssh_openssh_forget_login(struct ssh_openssh *ssh, struct openssh_channel *channel)
{
	if (!ssh->login || ssh->login != channel)
		return false;
	/* The next one that waits begins another: from the loop, not from within this call. */
	bool is_over = openssh_login_is_over(ssh);
	end_login(ssh);
	ssh->n_polls = 0;
	openssh_login_poll_later(ssh);
	return !is_over;
}

/*
 * Opening
 */

static bool is_first(const struct ssh_openssh *ssh, const struct ssh_openssh_request *request)
{
	return ssh->first.child.pid > 0 && !request->host && !request->pty &&
	       str_eq(ssh->first_command, request->command);
}

static struct channel *take_client(struct ssh_openssh *ssh, struct openssh_client *client,
	const struct ssh_openssh_request *request)
{
	bool is_login = ssh->login_pid && client->child.pid == ssh->login_pid;
	struct channel *channel = openssh_channel_new(ssh, client, request);

	if (is_login)
		ssh->login = (struct openssh_channel *)channel;
	return channel;
}

int ssh_openssh_open(struct ssh_openssh *ssh, const struct ssh_openssh_request *request,
	struct channel **ret, struct err *err)
{
	struct openssh_client client = {0};
	int r = ssh_openssh_prepare(ssh, err);

	*ret = NULL;
	if (r < 0)
		return r;
	if (is_first(ssh, request)) {
		*ret = take_client(ssh, &ssh->first, request);
		if (ssh->login_pid)
			openssh_login_poll_later(ssh);
		return 0;
	}
	if (err_is_set(&ssh->error))
		return err_move(err, &ssh->error);
	if (ssh->login_pid) {
		openssh_login_poll_later(ssh);
		return 0;
	}
	r = start_client(ssh, request, needs_login(ssh), &client, err);
	if (r < 0)
		return r;
	begin_login(ssh, &client);
	if (ssh->login_pid)
		openssh_login_poll_later(ssh);
	*ret = take_client(ssh, &client, request);
	return 0;
}

void ssh_openssh_begin(struct ssh_openssh *ssh, const char *first_command)
{
	const struct ssh_openssh_request request = {.command = first_command};

	if (ssh_openssh_prepare(ssh, &ssh->error) < 0 || !first_command)
		return;
	if (start_client(ssh, &request, needs_login(ssh), &ssh->first, &ssh->error) < 0)
		return;
	ssh->first_command = mem_strdup(first_command);
	begin_login(ssh, &ssh->first);
}

void ssh_openssh_forget_error(struct ssh_openssh *ssh)
{
	err_clear(&ssh->error);
}

bool ssh_openssh_has_askpass(const char *const *env, bool has_terminal)
{
	const char *require = env_get(env, "SSH_ASKPASS_REQUIRE");
	bool has_display =
		!str_empty(env_get(env, "DISPLAY")) || !str_empty(env_get(env, "WAYLAND_DISPLAY"));
	bool prefers = require && strcasecmp(require, "prefer") == 0;

	if (require && strcasecmp(require, "never") == 0)
		return false;
	if (require && strcasecmp(require, "force") == 0)
		return true;
	return has_display && (prefers || !has_terminal) && !str_empty(env_get(env, "SSH_ASKPASS"));
}

static void copy_env(struct ssh_openssh *ssh, const char *const *env)
{
	for (size_t i = 0; env[i]; i++)
		strv_add(&ssh->env, env[i]);
	ssh->may_prompt = ssh->options.has_terminal || ssh_openssh_has_askpass(env, false);
	if (!ssh->may_prompt)
		env_set(&ssh->env, "SSH_ASKPASS_REQUIRE=never", false);
}

struct ssh_openssh *ssh_openssh_new(const struct ssh_openssh_options *options)
{
	struct ssh_openssh *ssh = mem_alloc(1, sizeof(*ssh));

	ssh->options = *options;
	ssh->host = mem_strdup(options->host);
	ssh->config = mem_strdup(options->config);
	ssh->control_dir = mem_strdup(options->control_dir);
	copy_env(ssh, options->env);
	return ssh;
}

void ssh_openssh_free(struct ssh_openssh *ssh)
{
	if (!ssh)
		return;
	ssh->first.child.is_alone = !ssh->login_pid || openssh_login_is_over(ssh);
	end_login(ssh);
	drop_client(&ssh->first);
	if (ssh->master == MASTER_OURS && !ssh->is_kept && ssh->socket &&
		ssh_openssh_socket_lives(ssh->socket))
		control(ssh, "exit", ssh->socket);
	if (ssh->dir)
		fs_remove_tree(AT_FDCWD, ssh->dir, NULL);
	free(ssh->dir);
	free(ssh->socket);
	err_done(&ssh->before);
	free(ssh->host);
	free(ssh->config);
	free(ssh->control_dir);
	free(ssh->first_command);
	strv_done(&ssh->env);
	err_done(&ssh->error);
	free(ssh);
}
