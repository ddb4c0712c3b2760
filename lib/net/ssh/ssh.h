/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SSH to one host, as the user's own `ssh HOST` would log in there: commands, terminals and TCP
 * connections, as channels (channel.h).
 *
 * `ssh -G -- HOST` says what the configuration makes of the name. libssh2 is the transport where it
 * can log in; for everything else (RSA user keys and RSA-only host keys before libssh2 1.11, FIDO
 * keys, GSSAPI, keyboard-interactive, ProxyCommand, ProxyJump, certificates, a control socket that
 * lives, no key that works) the OpenSSH client is, for the same channels. So whatever `ssh HOST
 * true` can do, this can.
 *
 * Everything is begun at once and goes on without the loop until a channel is wanted: a thread (or
 * the OpenSSH client) logs in while the caller does something else.
 */
#ifndef DLRUN_NET_SSH_SSH_H
#define DLRUN_NET_SSH_SSH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "net/stream/channel.h"

enum {
	SSH_LOGIN_MS = 15000,     /* without what a user takes to answer */
	SSH_KEEPALIVE_MS = 15000, /* three without a response: the connection is lost */
	SSH_ANSWER_MAX = 4096,    /* bytes of an answer of the user */
};

enum ssh_transport { SSH_ANY, SSH_LIBSSH2, SSH_OPENSSH };

struct ssh_options {
	struct loop *loop;
	const char *host;   /* as the user wrote it: HOST, USER@HOST, an alias of the config */
	unsigned port;      /* 0: what the config says */
	const char *config; /* for ssh -F; NULL: the user's own */
	/* Of children: PATH, HOME, SSH_AUTH_SOCK, …; not NULL, lives as long as the ssh. */
	const char *const *env;
	const char *home; /* for ~ in paths */
	/* A checked 0700 directory for the control sockets of our own OpenSSH clients; NULL: none
	 * are kept after the end of the process. Used only with has_terminal. */
	const char *control_dir;
	bool has_terminal;            /* the OpenSSH client may ask on /dev/tty */
	bool accept_new_host;         /* a host that is not known yet is taken and remembered */
	enum ssh_transport transport; /* SSH_ANY but for tests */
	/* Begun as soon as the login is done, even while the loop does not run; the first
	 * command that is equal takes it. NULL: none. */
	const char *first_command;
	/* A sentence for people: what is waited for, which transport it is and why (is_detail). On
	 * the loop, as prompt; the ssh is not freed in either. */
	void (*print)(void *ctx, const char *text, bool is_detail);
	/* A question to the user: whether to trust a host key (its text has host, type and
	 * fingerprint), a passphrase (secret). 1: answered; 0: there is no user, or no. NULL:
	 * no user, nor is there one with BatchMode. The answer is wiped after its use. */
	int (*prompt)(
		void *ctx, const char *question, bool secret, struct buf *answer, struct err *err);
	void *ctx;
};

struct ssh;
/* Strings of options are copied, but for env. E_USAGE: a name that begins with "-", is empty, or
 * has control characters or spaces; nothing else fails here. */
int ssh_open(const struct ssh_options *options, struct ssh **ret, struct err *err);
/* All channels have been freed. A control socket of ours stays for its time. NULL is accepted. */
void ssh_free(struct ssh *ssh);

/* Channels: see channel.h. What fails the login fails all of them: E_SSH_CONFIG,
 * E_SSH_UNREACHABLE (name, route, refused, silent), E_SSH_HOST_KEY (changed, revoked),
 * E_SSH_UNKNOWN_HOST, E_SSH_LOGIN (no key that is accepted), E_SSH_LOST (a connection that was
 * there). E_SSH_REFUSED: the server does not open this channel (MaxSessions,
 * AllowTcpForwarding); a further connection is made for commands before that is said. E_SSH_PORT:
 * nothing answers where the server tried to connect to. */
struct channel *ssh_command(struct ssh *ssh, const char *command, const struct channel_pty *pty,
	const struct channel_events *events);
struct channel *ssh_connect(
	struct ssh *ssh, const char *host, uint16_t port, const struct channel_events *events);
struct channel_opener ssh_opener(struct ssh *ssh);

/* For doctor and -v, after the first channel is open or has failed: which transport it is, or
 * SSH_ANY, and one sentence why ("the OpenSSH client: the only key is an RSA key"). */
enum ssh_transport ssh_transport(const struct ssh *ssh, const char **ret_why);

/* The host name that the configuration connects to; NULL: not known before the first channel is
 * open. */
const char *ssh_hostname(const struct ssh *ssh);

/* A login for itself, for doctor: done is called on the loop when it is there or has failed. */
typedef int ssh_login_fn(void *ctx, struct err *error, struct err *err);
void ssh_login(struct ssh *ssh, ssh_login_fn *done, void *ctx);

#endif
