/* SPDX-License-Identifier: Apache-2.0 */
/* The insides of ssh_libssh2.c*.c. */
#ifndef DLRUN_NET_SSH_SSH_LIBSSH2_IMPL_H
#define DLRUN_NET_SSH_SSH_LIBSSH2_IMPL_H

#include <stdatomic.h>

#include "base/loop/task.h"
#include "base/util/clock.h"
#include "net/ssh/ssh_keys.h"
#include "net/ssh/ssh_libssh2.h"
#include "net/ssh/ssh_libssh2_lib.h"

enum {
	SSH_WINDOW = 2 << 20,     /* of a channel: 14 MB/s at 150 ms */
	SSH_PACKET = 32 << 10,    /* RFC 4253, section 6.1 */
	SSH_OUT_HIGH = 256 << 10, /* no channel adds more while that much waits to be sent */
	SSH_OUT_MAX = 8 << 20,    /* with what libssh2 says by itself */
	SSH_TURN_MAX = 256 << 10, /* bytes received between two checks of everything else */
	SSH_ALLOC_MAX = 1 << 20,  /* nothing that libssh2 asks for is larger */
	SSH_IDENTITIES_MAX = 32,
	SSH_AGENT_LIST_MS = 5000,
	SSH_AGENT_SIGN_MS = 60000, /* the user may have to confirm, or to touch something */
	SSH_RSA_BITS = 1024,       /* the least that OpenSSH takes where nothing is said */
	SSH_UNANSWERED_MAX = 3,    /* keepalives */
	SSH_SLOW_MS = 3000,        /* a port that does not answer holds up no others any longer */
	SSH_PORT_MS = 10000,       /* and is given up */
	SSH_SLOW_POLL_MS = 1000,
	SSH_POLL_MS = 2000,  /* between two checks whether this machine has slept */
	SSH_WOKEN_MS = 5000, /* the response that a connection from before gets the time for */
};

/* Waiting within the thread that logs in. */
struct ssh_wait {
	int cancel;          /* its other end is closed when the login is not wanted any more */
	int64_t deadline_ms; /* of clock_ms() */
};

enum ssh_channel_state {
	SSH_CHANNEL_WAITS, /* for its turn to be opened */
	SSH_CHANNEL_OPENS,
	SSH_CHANNEL_TERMINAL, /* is asked for */
	SSH_CHANNEL_ENV,      /* variables are sent, and the command with the last */
	SSH_CHANNEL_EXEC,     /* the command is begun */
	SSH_CHANNEL_OPEN,
	SSH_CHANNEL_FAILED,
};

struct ssh_channel {
	struct channel base;
	struct ssh_libssh2 *ssh;
	struct ssh_channel *next; /* of ssh->channels */
	LIBSSH2_CHANNEL *raw;
	uint32_t id;
	enum ssh_channel_state state;
	struct err error; /* of SSH_CHANNEL_FAILED */
	char *command;    /* NULL: to a port */
	char *term;       /* NULL: no terminal */
	unsigned columns, rows;
	size_t n_env_sent;  /* of login.env */
	bool sent_command;  /* ahead of the response to the last variable */
	char *target;       /* for texts: "localhost port 6006" */
	struct buf message; /* what a direct-tcpip open says, RFC 4254, section 7.2 */
	bool resized;

	char *ahead[2]; /* read already, to know whether there is something */
	size_t ahead_at[2], ahead_len[2];
	bool at_end[2], end_reported[2];
	char *out; /* taken, and not passed to libssh2 yet */
	size_t out_at, out_len;
	bool wants_eof, sent_eof;

	bool has_status; /* exit-status has come */
	/* Operations whose last result was CHANNEL_AGAIN. */
	bool wants_read[2], wants_write, wants_end;
	bool has_news, is_given_up, to_notify;
};

struct ssh_message {
	struct ssh_message *next;
	char *text;
	bool is_detail;
};

struct ssh_libssh2 {
	struct loop *loop;
	struct ssh_libssh2_login login; /* all strings are ours */
	struct ssh_libssh2_events events;
	struct task *task;
	int cancel[2]; /* closing [1] ends the thread's waiting */

	/* The thread's until it has ended, the loop's then. */
	int fd;
	LIBSSH2_SESSION *session;
	struct buf out; /* encrypted, not taken by the socket yet */
	size_t out_at;
	size_t budget;     /* bytes that may be received now */
	uint64_t received; /* in all */
	bool is_lost;      /* nothing can be received any more */
	bool is_ended;     /* what libssh2 waits for never comes: it frees */
	char *lost_why;
	/* The host's key that is trusted, from then on. libssh2 takes any other in a later key
	 * exchange (RFC 4253, section 9). */
	struct buf trusted;
	uint32_t last_id; /* of the channel that was confirmed last */
	struct ssh_channel *channels;
	struct ssh_channel *first; /* of login.first_command */

	/* The thread's. */
	struct ssh_wait wait;
	struct ssh_known known;
	int64_t agent_ms; /* timeout of a transfer from or to the agent */
	struct buf why;
	enum ssh_libssh2_end end;
	struct buf tried; /* names of keys that were not accepted, for people */

	_Atomic(struct ssh_message *)
		messages; /* of the thread, for the loop; the last one first */

	/* The loop's. */
	struct loop_fd *source;
	struct loop_timer *keepalive, *soon;
	unsigned unanswered;
	int64_t ping_ms;             /* when to ask for a response, or to miss the last one */
	int64_t woke_ms;             /* loop_woke_ms() of the last check */
	uint64_t received_before;    /* when it was last checked whether a response came */
	uint64_t received_seen;      /* when everything was last checked */
	bool pings;                  /* a response is waited for as for a channel that opens */
	struct ssh_channel *opening; /* of those that are opened one after the other */
	struct loop_timer *slow;     /* checks it, while it is one to a port */
	int64_t opening_ms;          /* since when */
	uint64_t opening_received;   /* what had come before a response was asked for beside it */
	bool is_stuck;    /* it is the port that does not answer, or its response is late */
	bool *freed;      /* set when it is freed within its own turn */
	struct err error; /* E_SSH_LOST */
};

void ssh_session_flush(struct ssh_libssh2 *ssh);
static inline bool ssh_session_has_output(const struct ssh_libssh2 *ssh)
{
	return ssh->out.len > ssh->out_at;
}
/* The text of libssh2's last error; of the session. */
const char *ssh_session_error(struct ssh_libssh2 *ssh, int *ret_code);

/* In the thread: call step until it gives something else than LIBSSH2_ERROR_EAGAIN.
 * LIBSSH2_ERROR_TIMEOUT at the deadline, LIBSSH2_ERROR_SOCKET_DISCONNECT when the connection is
 * lost, SSH_STEP_CANCELED. */
enum { SSH_STEP_CANCELED = -1000 };
typedef int ssh_step_fn(struct ssh_libssh2 *ssh, void *arg);
int ssh_session_run(struct ssh_libssh2 *ssh, ssh_step_fn *step, void *arg);

/* ssh_libssh2.c, for the thread */
void ssh_libssh2_print(struct ssh_libssh2 *ssh, bool is_detail, const char *fmt, ...)
	ERR_PRINTF(3, 4);
/* Prompt the user. 1: answered; 0: no user or no answer; a negative code. The time that it takes
 * does not count. */
int ssh_libssh2_prompt(struct ssh_libssh2 *ssh, const char *question, bool secret,
	struct buf *answer, struct err *err);
bool ssh_libssh2_may_prompt(const struct ssh_libssh2 *ssh);
/* End with FALLBACK: why is what follows "because". The error is for where there is no OpenSSH. */
void ssh_libssh2_fall_back(struct ssh_libssh2 *ssh, const char *fmt, ...) ERR_PRINTF(2, 3);

/* ssh_libssh2_auth.c: which types of host keys to ask for, for the caller to free; NULL: none
 * that is known can be used (ssh->end is set). Whether the key that was shown is trusted. */
char *ssh_libssh2_host_key_types(struct ssh_libssh2 *ssh);
int ssh_libssh2_trust(struct ssh_libssh2 *ssh, struct err *err);
static inline unsigned ssh_libssh2_rsa_bits(const struct ssh_libssh2 *ssh)
{
	return ssh->login.rsa_bits > 0 ? (unsigned)ssh->login.rsa_bits : SSH_RSA_BITS;
}
int ssh_libssh2_auth(struct ssh_libssh2 *ssh, struct err *err);

/* ssh_libssh2_channel.c */
struct ssh_channel *ssh_channel_new(struct ssh_libssh2 *ssh);
/* Open it as far as that goes now: 0 when it is open, LIBSSH2_ERROR_EAGAIN, another code with
 * state FAILED. */
int ssh_channel_advance(struct ssh_channel *channel);
void ssh_channel_set_command(
	struct ssh_channel *channel, const char *command, const struct channel_pty *pty);
/* exit-status has come for the channel of that number. */
void ssh_channel_has_status(struct ssh_libssh2 *ssh, uint32_t id);

/* The same file, on the loop. */
void ssh_turn_begin(struct ssh_libssh2 *ssh);
void ssh_turn_end(struct ssh_libssh2 *ssh);

#endif
