/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh.h"
#include "net/ssh/ssh_dial.h"
#include "net/ssh/ssh_libssh2_impl.h"

/* A server with too many logins under way (MaxStartups of sshd_config(5)) closes some at once. */
enum { TRIES_MAX = 3, TRY_AGAIN_MS = 700 };
/* Timeout of the connection, and of the server's first line: no response comes any later. */
enum { FIRST_ANSWER_MS = 9000 };

static int64_t answer_ms(const struct ssh_libssh2 *ssh)
{
	return ssh->login.connect_ms > 0 ? ssh->login.connect_ms : FIRST_ANSWER_MS;
}

static int dial(struct ssh_libssh2 *ssh, struct err *err)
{
	const struct ssh_libssh2_login *login = &ssh->login;
	int64_t dead_ms = login->keepalive_ms * SSH_UNANSWERED_MAX;

	ssh->wait.deadline_ms = clock_ms() + answer_ms(ssh);
	int r = ssh_dial(
		login->hostname, login->port, login->family, dead_ms, &ssh->wait, &ssh->fd, err);
	if (r < 0)
		return r;
	ssh_libssh2_say(ssh, true, "connected to %s port %u", login->hostname, login->port);
	ssh->wait.deadline_ms = clock_ms() + answer_ms(ssh);
	return 0;
}

static int step_handshake(struct ssh_libssh2 *ssh, void *arg)
{
	(void)arg;
	return libssh2_session_handshake(ssh->session, ssh->fd);
}

static int handshake(struct ssh_libssh2 *ssh)
{
	int64_t all_ms = clock_ms() + SSH_LOGIN_MS;
	int r = ssh_session_run(ssh, step_handshake, NULL);

	if (r != LIBSSH2_ERROR_TIMEOUT || !libssh2_session_banner_get(ssh->session))
		return r;
	ssh->wait.deadline_ms = all_ms;
	return ssh_session_run(ssh, step_handshake, NULL);
}

static bool is_ssh(struct ssh_libssh2 *ssh)
{
	const char *banner = libssh2_session_banner_get(ssh->session);

	return banner && str_starts(banner, "SSH-");
}

/* Nothing that is ssh has come: no other client would do better. */
static int fail_silent(struct ssh_libssh2 *ssh, int r, struct err *err)
{
	const struct ssh_libssh2_login *login = &ssh->login;

	if (r == LIBSSH2_ERROR_TIMEOUT)
		return err_set(err, E_SSH_UNREACHABLE,
			"%s accepts connections to port %u, but says nothing", login->hostname,
			login->port);
	if (libssh2_session_banner_get(ssh->session))
		return err_set(err, E_SSH_UNREACHABLE,
			"what listens on port %u of %s is not an SSH server", login->port,
			login->hostname);
	return err_set(err, E_SSH_UNREACHABLE,
		"%s closes connections to port %u before it says anything", login->hostname,
		login->port);
}

static int fail_handshake(struct ssh_libssh2 *ssh, int r, struct err *err)
{
	AUTO_FREE char *why = str_shown(ssh_session_error(ssh, NULL));

	if (r == SSH_STEP_CANCELED)
		return err_set(err, E_CANCELED, "interrupted");
	if (!is_ssh(ssh))
		return fail_silent(ssh, r, err);
	ssh_libssh2_fall_back(ssh,
		"libssh2 %s and the server did not agree how to speak (%s): it may have an RSA "
		"key only",
		libssh2_version(0), why);
	return err_set(err, E_SSH_LOGIN, "%s and libssh2 have no algorithms in common (%s)",
		ssh->login.name, why);
}

static void note_methods(struct ssh_libssh2 *ssh)
{
	static const int kinds[] = {LIBSSH2_METHOD_KEX, LIBSSH2_METHOD_HOSTKEY,
		LIBSSH2_METHOD_CRYPT_CS, LIBSSH2_METHOD_MAC_CS};
	AUTO_BUF struct buf text = {0};

	buf_init(&text, 512);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		const char *name = libssh2_session_methods(ssh->session, kinds[i]);
		buf_addf(&text, "%s%s", i > 0 ? ", " : "", name ? name : "?");
	}
	ssh_libssh2_say(ssh, true, "agreed: %s", text.data);
}

/* 1: closed before anything was said, may be tried again. */
static int connect_once(struct ssh_libssh2 *ssh, const char *types, struct err *err)
{
	int r = dial(ssh, err);
	if (r < 0)
		return r;
	r = ssh_session_begin(ssh, types, err);
	if (r < 0)
		return r;
	r = handshake(ssh);
	if (r == 0) {
		note_methods(ssh);
		ssh->wait.deadline_ms = clock_ms() + SSH_LOGIN_MS;
		return 0;
	}
	bool is_silent = ssh->is_lost && !libssh2_session_banner_get(ssh->session);
	r = fail_handshake(ssh, r, err);
	return is_silent ? 1 : r;
}

static int shake_hands(struct ssh_libssh2 *ssh, const char *types, struct err *err)
{
	for (int i = 0;; i++) {
		int r = connect_once(ssh, types, err);
		if (r <= 0)
			return r;
		ssh_session_end(ssh);
		if (i + 1 == TRIES_MAX)
			return -(int)err->code;
		ssh->wait.deadline_ms = clock_ms() + answer_ms(ssh);
		if (ssh_wait_fds(&ssh->wait, NULL, 0, clock_ms() + TRY_AGAIN_MS) ==
			SSH_WAIT_CANCELED)
			return err_set(err, E_CANCELED, "interrupted");
		err_clear(err);
	}
}

static int step_first(struct ssh_libssh2 *ssh, void *arg)
{
	(void)arg;
	return ssh_channel_advance(ssh->first);
}

/* An error of the first command itself is left to the caller that takes the channel. */
static int begin_first(struct ssh_libssh2 *ssh, struct err *err)
{
	if (!ssh->login.first_command)
		return 0;
	ssh->first = ssh_channel_new(ssh);
	ssh_channel_set_command(ssh->first, ssh->login.first_command, NULL);
	int r = ssh_session_run(ssh, step_first, NULL);
	if (r == SSH_STEP_CANCELED)
		return err_set(err, E_CANCELED, "interrupted");
	if (r == LIBSSH2_ERROR_TIMEOUT || ssh->is_lost)
		return err_set(err, E_SSH_LOST, "%s has logged in, and then stopped answering",
			ssh->login.name);
	return 0;
}

int ssh_libssh2_work(struct ssh_libssh2 *ssh, struct err *err)
{
	ssh->end = SSH_LIBSSH2_FAILED;
	int r = ssh_libssh2_load(err);
	if (r < 0) {
		ssh_libssh2_fall_back(ssh, "libssh2 is not installed");
		return r;
	}
	AUTO_FREE char *types = ssh_libssh2_host_key_types(ssh);
	if (!types)
		return err_set(err, E_SSH_LOGIN, "the key of %s cannot be checked by libssh2",
			ssh->login.name);
	r = shake_hands(ssh, types, err);
	if (r == 0)
		r = ssh_libssh2_trust(ssh, err);
	if (r == 0)
		r = ssh_libssh2_auth(ssh, err);
	if (r == 0)
		r = begin_first(ssh, err);
	if (r == 0)
		ssh->end = SSH_LIBSSH2_READY;
	return r;
}
