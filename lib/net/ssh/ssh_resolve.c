/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/os/env.h"
#include "base/util/auto.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_impl.h"

/*
 * Choice of the carrier
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

/* libssh2 waits for the answer to each variable but the last: more than that takes longer than the
 * OpenSSH client, which waits for none. */
enum { SENT_ENV_MAX = 2 };

/* Why it is the OpenSSH client from the start, or NULL. */
static const char *reason_of(const struct ssh *ssh, bool is_whole)
{
	if (ssh->options.carrier == SSH_OPENSSH)
		return "it was asked for";
	if (ssh->options.carrier == SSH_LIBSSH2 || !ssh->has_client)
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

static struct ssh_config_place place_of(const struct ssh *ssh)
{
	const char *const *env = ssh->options.env;
	const char *user = env_get(env, "LOGNAME");

	return (struct ssh_config_place){.home = ssh->options.home,
		.host = ssh->options.host,
		.local_user = user ? user : env_get(env, "USER"),
		.env = env};
}

/* Whether all names of files are known. */
static int read_config(struct ssh *ssh, int cancel_fd, bool *ret_whole, struct err *err)
{
	const struct ssh_config_place place = place_of(ssh);
	const struct ssh_config_call call = {.host = ssh->options.host,
		.port = ssh->options.port,
		.config = ssh->options.config,
		.env = ssh->options.env,
		.cancel_fd = cancel_fd};
	AUTO_ERR struct err fault = {0};

	ssh->has_client = true;
	int r = ssh_config_read(&call, &ssh->config, &fault);
	if (r < 0 && fault.id != E_RUN_EXEC)
		return err_move(err, &fault);
	if (r < 0) {
		ssh->has_client = false;
		ssh_config_default(&place, &ssh->config);
		if (ssh->options.port)
			ssh->config.port = (uint16_t)ssh->options.port;
	}
	*ret_whole = ssh_config_expand(&ssh->config, &place);
	return 0;
}

static const char *const *list_of(const struct strv *strv)
{
	return (const char *const *)strv->v;
}

static enum ssh_strict strict_of(const struct ssh *ssh)
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

void ssh_libssh2_login_of(const struct ssh *ssh, struct ssh_libssh2_login *ret)
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
		.strict = strict_of(ssh),
		.hash_known_hosts = config->hash_known_hosts,
		.user_known_hosts = list_of(&config->user_known_hosts),
		.global_known_hosts = list_of(&config->global_known_hosts),
		.identities = list_of(&config->identities),
		.identities_only = config->identities_only,
		.agent = agent_of(ssh),
		.kex = config->kex,
		.ciphers = config->ciphers,
		.macs = config->macs,
		.host_key_types = config->host_key_types,
		.user_key_types = config->user_key_types,
		.rsa_bits = config->rsa_bits,
		.env = list_of(&ssh->sent_env),
		.has_askpass = ssh->has_askpass};
}

int ssh_resolve(struct ssh *ssh, int cancel_fd, struct ssh_libssh2_login *ret, struct err *err)
{
	bool is_whole = false;
	int r = read_config(ssh, cancel_fd, &is_whole, err);

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
