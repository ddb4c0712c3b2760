/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions shared by the files behind net/ssh/ssh.h. */
#ifndef DLRUN_NET_SSH_SSH_IMPL_H
#define DLRUN_NET_SSH_SSH_IMPL_H

#include "base/util/vec.h"
#include "net/ssh/ssh.h"
#include "net/ssh/ssh_config.h"
#include "net/ssh/ssh_libssh2.h"
#include "net/ssh/ssh_openssh.h"

/* A connection by libssh2. */
struct ssh_connection {
	struct ssh *ssh;
	struct ssh_libssh2 *carrier;
	bool is_ready;
	bool has_first;           /* the first command has a session, and nobody has taken it yet */
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
	char *why;          /* why it is the OpenSSH client, or NULL */
	char *carrier_text; /* the same as a sentence */
	struct err fault;   /* for good: of a login that must not be tried again */
	bool is_known;      /* the first login has ended */
};

/* In the thread of the first connection. 1: *ret is what libssh2 logs in with, and lives as ssh
 * does; 0: the OpenSSH client it is, which has begun; a negative code. */
int ssh_resolve(struct ssh *ssh, int cancel_fd, struct ssh_libssh2_login *ret, struct err *err);
/* *ret of the above, once more, without a first command. */
void ssh_libssh2_login_of(const struct ssh *ssh, struct ssh_libssh2_login *ret);

#endif
