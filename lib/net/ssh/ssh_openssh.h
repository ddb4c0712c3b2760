/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An SSH host by the OpenSSH client: each channel is an `ssh` of its own, and a control socket
 * (ssh_config(5), ControlMaster) saves all but the first the login. Only net/ssh/ssh.c uses this.
 *
 * A running ControlMaster of the user's own is used as it is. Else dlrun starts one: in control_dir
 * it outlives the process (SSH_OPENSSH_KEEP_S), elsewhere it ends with it.
 */
#ifndef DLRUN_NET_SSH_SSH_OPENSSH_H
#define DLRUN_NET_SSH_SSH_OPENSSH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/err.h"
#include "net/ssh/ssh_config.h"
#include "net/stream/channel.h"

enum {
	SSH_OPENSSH_CONNECT_S = 8,
	SSH_OPENSSH_KEEP_S = 8 * 3600, /* idle, then the kept master ends */
	SSH_OPENSSH_PRIVATE_S = 300,   /* the same for one whose process was killed */
};

struct ssh_openssh_options {
	struct loop *loop;
	const struct ssh_config *resolved; /* lives as long */
	const char *host, *config;         /* as in struct ssh_options; copied */
	unsigned port;
	const char *const *env;
	const char *control_dir; /* copied */
	bool has_terminal, accept_new_host;
	/* On the loop: what a channel waited for may have come (ssh_openssh_open). */
	int (*changed)(void *ctx, struct err *err);
	void *ctx;
};

struct ssh_openssh;
/* Neither needs the loop to run, nor its thread. */
struct ssh_openssh *ssh_openssh_new(const struct ssh_openssh_options *options);
/* Checks control sockets and logs in with the first command; failure is reported by channels. */
void ssh_openssh_begin(struct ssh_openssh *ssh, const char *first_command);
/* Another transport's login failed with `before`: it becomes part of the error of a refusal. */
void ssh_openssh_follow(struct ssh_openssh *ssh, const struct err *before);
/* All channels have been freed. NULL is accepted. */
void ssh_openssh_free(struct ssh_openssh *ssh);

/* Whether ssh asks by SSH_ASKPASS (ssh(1), ENVIRONMENT), not on the terminal. */
bool ssh_openssh_has_askpass(const char *const *env, bool has_terminal);
/* Connects to the Unix socket at path, without waiting: 0, or -errno. */
int ssh_socket_probe(const char *path);
/* Whether a process listens at path. */
bool ssh_openssh_socket_lives(const char *path);
/* Where a master of ours for that login is kept; NULL: nowhere. The caller frees. */
char *ssh_openssh_kept(const char *control_dir, const struct ssh_config *config);

/* *ret NULL: a login is under way, try again when changed is called. A negative code: that login
 * has failed, for all that waited for it, or there is no ssh client (E_RUN_EXEC). host NULL: a
 * command. */
struct ssh_openssh_request {
	const char *command;
	const struct channel_pty *pty;
	const char *host;
	uint16_t port;
	const struct channel_events *events;
};
int ssh_openssh_open(struct ssh_openssh *ssh, const struct ssh_openssh_request *request,
	struct channel **ret, struct err *err);
/* The error has reached all that waited: the next call of open begins another login. */
void ssh_openssh_forget_error(struct ssh_openssh *ssh);

#endif
