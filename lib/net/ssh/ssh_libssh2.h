/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An SSH connection (RFC 4251 to 4254) by libssh2, which is loaded when the first one is begun.
 * Only net/ssh/ssh.c uses this.
 *
 * A thread of its own connects, checks the host's key, logs in and begins the first command, so
 * that this goes on while the loop does not run. Then the loop has the connection and the channels
 * on it.
 */
#ifndef DLRUN_NET_SSH_SSH_LIBSSH2_H
#define DLRUN_NET_SSH_SSH_LIBSSH2_H

#include <stdbool.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "net/stream/channel.h"

/* StrictHostKeyChecking, of ssh_config(5). A key that has changed is refused by all of them. */
enum ssh_strict {
	SSH_STRICT_ASK,
	SSH_STRICT_YES,
	SSH_STRICT_ACCEPT_NEW, /* also for --accept-new-host */
	SSH_STRICT_OFF,        /* "no", "off": as ACCEPT_NEW */
};

/* The result of `ssh -G` for a name. Paths are absolute; lists end with NULL, NULL is an empty
 * one. Copied by ssh_libssh2_start. */
struct ssh_libssh2_login {
	const char *name;     /* as the user wrote it, for texts */
	const char *hostname; /* to connect to */
	const char *user;
	uint16_t port;
	int family;            /* AddressFamily: AF_UNSPEC, AF_INET, AF_INET6 */
	int64_t connect_ms;    /* ConnectTimeout; 0: SSH_LOGIN_MS */
	int64_t keepalive_ms;  /* ServerAliveInterval; 0: SSH_KEEPALIVE_MS */
	const char *key_alias; /* HostKeyAlias; NULL: none */
	enum ssh_strict strict;
	bool hash_known_hosts;
	const char *const *user_known_hosts; /* "none" has been left out */
	const char *const *global_known_hosts;
	const char *const *identities; /* IdentityFile; those that do not exist are passed over */
	bool identities_only;
	const char *agent; /* path of its socket; NULL: none */
	/* Algorithms with commas between, the preferred ones first: KexAlgorithms, Ciphers, MACs,
	 * HostKeyAlgorithms, PubkeyAcceptedAlgorithms. NULL: all. */
	const char *kex, *ciphers, *macs, *host_key_types, *user_key_types;
	int rsa_bits;           /* RequiredRSASize; 0: the usual */
	const char *const *env; /* NAME=VALUE, sent to the server with each command */
	/* A program asks, which the OpenSSH client starts: the user is not asked here. */
	bool has_askpass;
	/* Begun by the thread behind the login; the first command without a terminal that is
	 * equal takes it. NULL: none. */
	const char *first_command;
};

enum ssh_libssh2_end {
	SSH_LIBSSH2_READY,   /* logged in: channels open */
	SSH_LIBSSH2_FAILED,  /* for good: the OpenSSH client would fail as well, or must not try */
	SSH_LIBSSH2_FALLBACK /* the OpenSSH client may be able to */
};

struct ssh_libssh2_events {
	/* Once, on the loop. error: of FAILED one of E_SSH_UNREACHABLE, E_SSH_HOST_KEY (changed,
	 * revoked), E_SSH_UNKNOWN_HOST, E_SSH_LOST, E_CANCELED; of FALLBACK E_SSH_LOGIN or another,
	 * to be reported where there is no OpenSSH client. why: of FALLBACK, for people, after
	 * "because" ("libssh2 1.10.0 can use none of the keys (1 RSA)"). The connection may be
	 * freed in it. A negative return ends loop_run. */
	int (*done)(void *ctx, enum ssh_libssh2_end end, const char *why, struct err *error,
		struct err *err);
	/* As in struct ssh_options; both may be NULL. */
	void (*print)(void *ctx, const char *text, bool is_detail);
	int (*prompt)(
		void *ctx, const char *question, bool secret, struct buf *answer, struct err *err);
	/* In the thread, where start was given no login, before all else. 1: *ret (copied) is what
	 * to log in with; 0: FALLBACK, *ret_why lives as ctx does; a negative code: FAILED.
	 * cancel_fd is at its end when the connection is freed. */
	int (*resolve)(void *ctx, int cancel_fd, struct ssh_libssh2_login *ret,
		const char **ret_why, struct err *err);
	void *ctx;
};

struct ssh_libssh2;
/* Begins at once; what fails is reported by done. events is copied. login NULL: events->resolve. */
struct ssh_libssh2 *ssh_libssh2_start(struct loop *loop, const struct ssh_libssh2_login *login,
	const struct ssh_libssh2_events *events);
/* All channels have been freed. Ends a login that is under way. NULL is accepted. */
void ssh_libssh2_free(struct ssh_libssh2 *ssh);

/* Behind READY. The channel waits for its turn and opens; what it fails with comes by read, write
 * and wait: E_SSH_REFUSED (this channel only), E_SSH_LOST (all of them, now and later). */
struct channel *ssh_libssh2_command(struct ssh_libssh2 *ssh, const char *command,
	const struct channel_pty *pty, const struct channel_events *events);
struct channel *ssh_libssh2_connect(struct ssh_libssh2 *ssh, const char *host, uint16_t port,
	const struct channel_events *events);
/* 1: it is open (and may have ended); 0: not yet; a negative code: see above. */
int ssh_libssh2_is_open(struct channel *channel, struct err *err);
/* Nothing that is not open yet opens on this connection for a while, if ever: channels open one
 * after the other, and a port does not answer. The channels that wait become ready. */
bool ssh_libssh2_is_stuck(const struct ssh_libssh2 *ssh);
/* Whether the channel has not begun to open: the server does not know of it. */
bool ssh_libssh2_waits(const struct channel *channel);

/* Whether the connection has been lost since. */
bool ssh_libssh2_is_lost(const struct ssh_libssh2 *ssh);

#endif
