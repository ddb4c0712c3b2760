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
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh.h"
#include "net/ssh/ssh_openssh_impl.h"

enum {
	CONTROL_MS = 2000, /* ssh -O */
	LOOK_MIN_MS = 4,
	LOOK_MAX_MS = 64,
	SOCKET_MAX = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1,
	SOCKET_SUFFIX = 18, /* what ssh appends while it makes one */
};

/*
 * Looking
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

bool ssh_openssh_has_ended(pid_t pid, int *ret_code, bool *ret_signalled)
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

void ssh_openssh_read_log(const char *path, struct buf *out)
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

char *ssh_openssh_proxy_log(const char *log)
{
	return mem_printf("%s-proxy", log);
}

void ssh_openssh_forget_log(char **log)
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
	AUTO_BUF struct buf out = {0};
	AUTO_BUF struct buf said = {0};
	int status = 0;

	buf_init(&out, 1024);
	buf_init(&said, 1024);
	ssh_openssh_control_argv(ssh, what, path, &argv);
	const struct child_spec spec = {
		.argv = (const char *const *)argv.v, .env = (const char *const *)ssh->env.v};
	return child_capture(&spec, CONTROL_MS, -1, &out, &said, &status, NULL) == 0 &&
	       WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* A master that is about to end may still listen, but it does not respond. */
bool ssh_openssh_master_answers(const struct ssh_openssh *ssh)
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
static bool make_dir(struct ssh_openssh *ssh)
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

static int prepare(struct ssh_openssh *ssh, struct err *err)
{
	if (ssh->is_prepared)
		return 0;
	if (!make_dir(ssh))
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
static void judge_login(struct ssh_openssh *ssh, int code, bool signalled)
{
	AUTO_BUF struct buf text = {0};
	AUTO_BUF struct buf said = {0};
	AUTO_FREE char *proxy = ssh_openssh_proxy_log(ssh->login_log);
	struct ssh_words words;

	buf_init(&text, SSH_WORDS_MAX);
	buf_init(&said, SSH_WORDS_MAX);
	ssh_openssh_read_log(ssh->login_log, &text);
	ssh_openssh_read_log(proxy, &said);
	ssh_words_read(text.data, text.len, &words);
	if (words.has_open || (!signalled && code != 255))
		ssh->master = MASTER_NONE;
	else
		ssh_openssh_fault(ssh, text.data, said.data, &ssh->fault);
}

/* The error of the attempt before the client says more than the client's refusal alone. */
void ssh_openssh_fault(
	const struct ssh_openssh *ssh, const char *text, const char *said, struct err *err)
{
	AUTO_ERR struct err fault = {0};

	ssh_words_fault(text, said, ssh->host, &fault);
	if (fault.id != ssh->before.id || fault.id != E_SSH_LOGIN || !str_empty(said)) {
		err_move(err, &fault);
		return;
	}
	err_copy(err, &ssh->before);
	for (size_t i = 0; i < fault.n_evidence; i++)
		err_evidence(err, "%s", fault.evidence[i]);
	err_hint(err, "%s", fault.hint);
}

void ssh_openssh_follow(struct ssh_openssh *ssh, const struct err *before)
{
	err_clear(&ssh->before);
	err_copy(&ssh->before, before);
}

static bool is_too_late(const struct ssh_openssh *ssh)
{
	return !ssh->can_ask && clock_ms() - ssh->login_at_ms > SSH_LOGIN_MS;
}

static void give_up_login(struct ssh_openssh *ssh)
{
	kill(ssh->login_pid, SIGTERM);
	err_set(&ssh->fault, E_SSH_UNREACHABLE, "%s did not answer within %d s", ssh->host,
		SSH_LOGIN_MS / 1000);
	err_hint(&ssh->fault, "ssh -v %s true", ssh->host);
	if (ssh->login)
		ssh_openssh_fail(ssh->login, &ssh->fault);
}

/* Whether the login is over, one way or the other. */
static bool look_at_login(struct ssh_openssh *ssh)
{
	int code = 0;
	bool signalled = false;

	if (ssh->master == MASTER_OURS && ssh_openssh_socket_lives(ssh->socket))
		return true;
	if (ssh_openssh_has_ended(ssh->login_pid, &code, &signalled)) {
		judge_login(ssh, code, signalled);
		return true;
	}
	if (!is_too_late(ssh))
		return false;
	give_up_login(ssh);
	return true;
}

static int look_again(void *ctx, struct err *err);

static void look_later(struct ssh_openssh *ssh)
{
	if (ssh->timer)
		return;
	ssh->timer = loop_add_timer(ssh->options.loop, clock_ms() + ssh->pause_ms, look_again, ssh);
	if (ssh->pause_ms < LOOK_MAX_MS)
		ssh->pause_ms *= 2;
}

static int look_again(void *ctx, struct err *err)
{
	struct ssh_openssh *ssh = ctx;

	ssh->timer = NULL;
	if (ssh->login_pid && !look_at_login(ssh)) {
		look_later(ssh);
		return 0;
	}
	end_login(ssh);
	/* The carrier may be freed in there. */
	return ssh->options.changed(ssh->options.ctx, err);
}

static void begin_login(struct ssh_openssh *ssh, const struct openssh_client *client)
{
	if (!client->logs_in || ssh->master == MASTER_NONE)
		return;
	ssh->login_pid = client->child.pid;
	ssh->login_at_ms = clock_ms();
	ssh->pause_ms = LOOK_MIN_MS;
	ssh->login_log = mem_strdup(client->log);
}

bool ssh_openssh_forget_login(struct ssh_openssh *ssh, struct openssh_channel *channel)
{
	if (!ssh->login || ssh->login != channel)
		return false;
	/* The next one that waits begins another: from the loop, not from within this call. */
	bool is_over = look_at_login(ssh);
	end_login(ssh);
	ssh->pause_ms = 0;
	look_later(ssh);
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
	struct channel *channel = ssh_openssh_channel(ssh, client, request);

	if (is_login)
		ssh->login = (struct openssh_channel *)channel;
	return channel;
}

int ssh_openssh_open(struct ssh_openssh *ssh, const struct ssh_openssh_request *request,
	struct channel **ret, struct err *err)
{
	struct openssh_client client = {0};
	int r = prepare(ssh, err);

	*ret = NULL;
	if (r < 0)
		return r;
	if (is_first(ssh, request)) {
		*ret = take_client(ssh, &ssh->first, request);
		if (ssh->login_pid)
			look_later(ssh);
		return 0;
	}
	if (err_is_set(&ssh->fault))
		return err_move(err, &ssh->fault);
	if (ssh->login_pid) {
		look_later(ssh);
		return 0;
	}
	r = start_client(ssh, request, needs_login(ssh), &client, err);
	if (r < 0)
		return r;
	begin_login(ssh, &client);
	if (ssh->login_pid)
		look_later(ssh);
	*ret = take_client(ssh, &client, request);
	return 0;
}

void ssh_openssh_begin(struct ssh_openssh *ssh, const char *first_command)
{
	const struct ssh_openssh_request request = {.command = first_command};

	if (prepare(ssh, &ssh->fault) < 0 || !first_command)
		return;
	if (start_client(ssh, &request, needs_login(ssh), &ssh->first, &ssh->fault) < 0)
		return;
	ssh->first_command = mem_strdup(first_command);
	begin_login(ssh, &ssh->first);
}

void ssh_openssh_forget_fault(struct ssh_openssh *ssh)
{
	err_clear(&ssh->fault);
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
	ssh->can_ask = ssh->options.has_terminal || ssh_openssh_has_askpass(env, false);
	if (!ssh->can_ask)
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
	ssh->first.child.is_alone = !ssh->login_pid || look_at_login(ssh);
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
	err_done(&ssh->fault);
	free(ssh);
}
