/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/node_open.h"

#include <stdlib.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config.h"
#include "node/hosts.h"

struct node_hosts_open {
	struct VEC_OF(struct node_host *) hosts;
	char *ssh_config, *control_dir;
};

static void close_host(struct node_host *host)
{
	if (!host)
		return;
	node_free(host->node);
	ssh_free(host->ssh);
	free(host->name);
	free(host->root);
	free(host);
}
AUTO_POINTER(struct node_host, close_host)

static void end_hosts(struct session *session)
{
	struct node_hosts_open *hosts = TAKE(session->nodes);

	if (!hosts)
		return;
	vec_foreach (struct node_host *, host, &hosts->hosts)
		close_host(*host);
	vec_done(&hosts->hosts);
	free(hosts->ssh_config);
	free(hosts->control_dir);
	free(hosts);
}

/*
 * Settings shared by all hosts
 */

/* Seen from the file that names it, else from the caller's directory. */
static char *find_config(struct session *session, const struct config *config)
{
	const char *text = config_str(config, "ssh_config");

	if (str_empty(text))
		return NULL;
	if (text[0] == '~' && text[1] == '/' && session->dirs.home)
		return fs_join(session->dirs.home, text + 2);
	AUTO_FREE char *dir = config_base_dir(config, "ssh_config", session->env.cwd);
	return fs_join(dir, text);
}

/* Without one nothing outlives the process, which costs a login each time. */
static char *find_control_dir(struct session *session)
{
	AUTO_ERR struct err fault = {0};

	if (!session->dirs.runtime)
		return NULL;
	if (fs_private_dir(session->dirs.runtime, &fault) == 0)
		return mem_strdup(session->dirs.runtime);
	log_note("no connections are kept: %s", fault.message);
	return NULL;
}

static int get_open(struct session *session, struct node_hosts_open **ret, struct err *err)
{
	struct config *config;
	int r = session_config(session, &config, err);

	if (r == 0 && !session->nodes) {
		session->nodes = mem_alloc(1, sizeof(*session->nodes));
		*session->nodes = (struct node_hosts_open){
			.ssh_config = find_config(session, config),
			.control_dir = find_control_dir(session),
		};
		session_at_end(session, end_hosts);
	}
	*ret = session->nodes;
	return r;
}

static void say(void *ctx, const char *text, bool is_detail)
{
	const struct session *session = ctx;

	if (is_detail)
		log_note("%s", text);
	else if (session->env.say)
		session->env.say(session->env.say_ctx, text);
}

static int ask(void *ctx, const char *question, bool secret, struct buf *answer, struct err *err)
{
	const struct session *session = ctx;

	return session->env.ask(session->env.say_ctx, question, secret, answer, err);
}

/*
 * Opening a host
 */

static int open_ssh(struct session *session, const struct node_hosts_open *all,
	struct node_host *host, const char *first, struct err *err)
{
	const struct session_env *env = &session->env;
	unsigned port;
	AUTO_FREE char *destination = node_host_destination(host->name, &port);
	const struct ssh_options options = {
		.loop = session_loop(session),
		.host = destination,
		.port = port,
		.config = all->ssh_config,
		.env = env->env,
		.home = session->dirs.home,
		.control_dir = all->control_dir,
		.has_terminal = env->has_terminal,
		.accept_new_host = env->accept_new_host,
		.first_command = first,
		.say = say,
		.ask = env->ask ? ask : NULL,
		.ctx = session,
	};

	int r = ssh_open(&options, &host->ssh, err);
	if (r == 0)
		host->opener = ssh_opener(host->ssh);
	return r;
}

static int open_host(struct session *session, const struct node_hosts_open *all,
	struct node_host *host, struct err *err)
{
	const struct session_env *env = &session->env;
	AUTO_FREE char *first = NULL;

	int r = node_first_command(host->root, &first, err);
	if (r == 0 && env->open_host)
		r = env->open_host(
			env->open_host_ctx, session_loop(session), host->name, &host->opener, err);
	else if (r == 0)
		r = open_ssh(session, all, host, first, err);
	if (r < 0)
		return r;
	const struct node_options options = {
		.loop = session_loop(session),
		.name = host->name,
		.root = host->root,
		.opener = host->opener,
	};
	return node_new(&options, host->ssh ? first : NULL, &host->node, err);
}

/* A hint gets pasted: `ssh` alone would read another configuration than we did. */
static void name_config(const struct node_host *host, struct err *fault)
{
	static const char ssh[] = "ssh ";
	AUTO_BUF struct buf hint = {0};

	if (!host->config || !str_starts(fault->hint ? fault->hint : "", ssh) ||
		str_starts(fault->hint, "ssh -F "))
		return;
	buf_init(&hint, 64 << 10);
	buf_adds(&hint, "ssh -F ");
	str_shell_quote(&hint, host->config);
	buf_addf(&hint, " %s", fault->hint + strlen(ssh));
	free(fault->hint);
	fault->hint = mem_strdup(hint.data);
}

/* As ssh takes a host with a port. */
static void name_port(const struct node_host *host, struct err *fault)
{
	static const char *const commands[] = {"ssh ", "ssh-copy-id "};
	unsigned port;
	AUTO_FREE char *destination = node_host_destination(host->name, &port);
	const char *hint = fault->hint, *at = hint ? strstr(hint, host->name) : NULL;

	if (!hint || str_eq(destination, host->name))
		return;
	for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
		const char *command = strstr(hint, commands[i]);
		if (!command)
			continue;
		const char *words = command + strlen(commands[i]);
		const char *name = at ? at : words, *rest = at ? at + strlen(host->name) : words;
		AUTO_BUF struct buf out = {0};
		buf_init(&out, 64 << 10);
		buf_add(&out, hint, (size_t)(words - hint));
		if (port)
			buf_addf(&out, "-p %u ", port);
		buf_add(&out, words, (size_t)(name - words));
		buf_addf(&out, "%s%s", at ? destination : "", rest);
		if (out.full)
			return;
		free(fault->hint);
		fault->hint = mem_strdup(out.data);
		return;
	}
}

void node_explain(const struct node_host *host, struct err *fault)
{
	static const struct {
		enum err_id id;
		const char *hint; /* @: the host */
	} hints[] = {
		{E_NODE_BUSY, "dlrun ps"},
		{E_NODE_CORRUPT, "dlrun gc --node @"},
		{E_NODE_DISK, "dlrun gc --node @"},
		{E_NODE_LOST, "ssh @ true"},
		{E_NODE_PROTOCOL, "ssh @ true   # says nothing by itself?"},
		{E_NODE_ROOT, "targets: {lab: {kind: ssh, hosts: [@], dir: /ANOTHER/DIRECTORY}}"},
		{E_NODE_SHELL, "ssh @ true"},
		{E_NODE_TOOL,
			"ssh @ 'command -v tar gzip sha256sum flock perl python3'   # install what it does not name; "
			"one of the last three is enough"},
		{E_SSH_CONFIG, "ssh -G @"},
		{E_SSH_HOST_KEY, "ssh @ true   # ask whoever runs it first"},
		{E_SSH_LOGIN, "ssh -v @ true"},
		{E_SSH_LOST, "ssh @ true"},
		{E_SSH_REFUSED, "ssh -v @ true"},
		{E_SSH_UNKNOWN_HOST, "ssh @ true   # shows its fingerprint, and asks"},
		{E_SSH_UNREACHABLE, "ssh -v @ true"},
	};

	if (!err_is_set(fault) || !host)
		return;
	if (fault->id != E_CANCELED && !strstr(fault->message, host->name))
		err_prefix(fault, "%s", host->name);
	for (size_t i = 0; !fault->hint && i < ARRAY_LEN(hints); i++) {
		const char *at = strchr(hints[i].hint, '@');
		int before = (int)(at ? at - hints[i].hint : (long)strlen(hints[i].hint));
		if (hints[i].id == fault->id)
			err_hint(fault, "%.*s%s%s", before, hints[i].hint, at ? host->name : "",
				at ? at + 1 : "");
	}
	name_port(host, fault);
	name_config(host, fault);
}

int node_open(struct session *session, const char *name, const char *root, struct node_host **ret,
	struct err *err)
{
	AUTO(close_host_auto) struct node_host *host = NULL;
	struct node_hosts_open *all;

	int r = get_open(session, &all, err);
	if (r < 0)
		return r;
	root = root ? root : NODE_ROOT_DEFAULT;
	vec_foreach (struct node_host *, known, &all->hosts) {
		if (str_eq((*known)->name, name) && str_eq((*known)->root, root)) {
			*ret = *known;
			return 0;
		}
	}
	host = mem_alloc(1, sizeof(*host));
	*host = (struct node_host){.name = mem_strdup(name),
		.root = mem_strdup(root),
		.config = all->ssh_config,
		.begun_ms = clock_ms()};
	r = open_host(session, all, host, err);
	if (r < 0)
		return r;
	*ret = host;
	*vec_push(&all->hosts) = TAKE(host);
	return 0;
}
