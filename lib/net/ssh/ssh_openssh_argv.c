/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_openssh_impl.h"

static void add_option(struct strv *argv, const char *option)
{
	strv_add(argv, "-o");
	strv_add(argv, option);
}

/* A path in -o: "%" begins a token, blanks end a word. */
static void add_control_path(struct strv *argv, const char *path)
{
	AUTO_BUF struct buf out = {0};

	buf_init(&out, 1024);
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

static void add_words(const struct ssh_openssh *ssh, const char *log, struct strv *argv)
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
	AUTO_BUF struct buf out = {0};

	buf_init(&out, 16 << 10);
	for (; *s; s++)
		buf_adds(&out, *s == '%' ? "%%" : (char[]){*s, '\0'});
	return buf_take(&out);
}

/* The command that ssh itself makes of ProxyJump, with words and patience of its own. */
static char *jump_command(const struct ssh_openssh *ssh, const char *log)
{
	const char *jumps = ssh->options.resolved->proxy_jump;
	const char *comma = strrchr(jumps, ','), *last = comma ? comma + 1 : jumps;
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf out = {0};

	strv_add(&words, "ssh");
	if (ssh->config) {
		strv_add(&words, "-F");
		strv_add(&words, ssh->config);
	}
	strv_add(&words, "-E");
	strv_add(&words, log);
	add_option(&words, "LogLevel=ERROR");
	if (!ssh->can_ask)
		add_option(&words, "BatchMode=yes");
	strv_add(&words, "-o");
	strv_addf(&words, "ConnectTimeout=%d", SSH_OPENSSH_CONNECT_S);
	if (comma) {
		strv_add(&words, "-J");
		strv_add_take(&words, mem_strndup(jumps, (size_t)(comma - jumps)));
	}
	buf_init(&out, 8 << 10);
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
		AUTO_BUF struct buf word = {0};

		buf_init(&word, 8 << 10);
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

void ssh_openssh_argv(const struct ssh_openssh *ssh, const struct ssh_openssh_request *request,
	const char *log, bool logs_in, struct strv *ret)
{
	add_start(ssh, ret);
	strv_add(ret, request->pty ? "-tt" : "-T");
	add_words(ssh, log, ret);
	if (!ssh->can_ask || !logs_in)
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

void ssh_openssh_control_argv(
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
