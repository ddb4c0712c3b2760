/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions shared by the files of the OpenSSH client's carrier. */
#ifndef DLRUN_NET_SSH_SSH_OPENSSH_IMPL_H
#define DLRUN_NET_SSH_SSH_OPENSSH_IMPL_H

#include "base/util/buf.h"
#include "base/util/vec.h"
#include "net/ssh/ssh_openssh.h"
#include "net/ssh/ssh_openssh_words.h"
#include "net/stream/channel_child.h"

enum master {
	MASTER_NONE, /* no socket can be had: each channel logs in */
	MASTER_USERS,
	MASTER_OURS,
};

struct ssh_openssh {
	struct ssh_openssh_options options;
	char *host, *config, *control_dir;
	struct strv env;
	bool can_ask; /* a person, on the terminal or by a program */
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
	struct openssh_channel *login; /* NULL: the first command's, that nobody has taken yet */
	struct loop_timer *timer;
	int64_t pause_ms;
	struct err fault;  /* of the last login, until it was told */
	struct err before; /* why another carrier did not get in; or none */

	struct openssh_client {
		struct child child;
		char *log;
		bool logs_in;
	} first;
	char *first_command;
};

/* The path for the messages of a client's proxy, beside the client's log. The caller frees. */
char *ssh_openssh_proxy_log(const char *log);
/* The words of one ssh. log: its -E; logs_in: it has no master yet. */
void ssh_openssh_argv(const struct ssh_openssh *ssh, const struct ssh_openssh_request *request,
	const char *log, bool logs_in, struct strv *ret);
/* `ssh -O check` or exit. */
void ssh_openssh_control_argv(
	const struct ssh_openssh *ssh, const char *what, const char *path, struct strv *ret);

/* Whether the master still has its connection. Blocks for the moment that ssh takes to ask it. */
bool ssh_openssh_master_answers(const struct ssh_openssh *ssh);
/* Whether the child has ended; it stays to be waited for. */
bool ssh_openssh_has_ended(pid_t pid, int *ret_code, bool *ret_signalled);
/* Append the client's messages so far; none if the file cannot be read. */
void ssh_openssh_read_log(const char *path, struct buf *out);
/* Removes the files and frees the name. */
void ssh_openssh_forget_log(char **log);

struct channel *ssh_openssh_channel(struct ssh_openssh *ssh, struct openssh_client *client,
	const struct ssh_openssh_request *request);
/* The error of ssh_words_fault, or one that includes the attempt before the client. */
void ssh_openssh_fault(
	const struct ssh_openssh *ssh, const char *text, const char *said, struct err *err);
/* Fail the channel with a copy of that error, unless it has ended. */
void ssh_openssh_fail(struct openssh_channel *channel, const struct err *fault);
/* The channel is freed. Whether its client was still logging in; else the master, whose proxy runs
 * in the client's process group, is to go on. */
bool ssh_openssh_forget_login(struct ssh_openssh *ssh, struct openssh_channel *channel);

#endif
