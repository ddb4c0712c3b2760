/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of the OpenSSH client itself, apart from the command's stderr: the file of its -E. They
 * are in English in any locale (the client sets LC_CTYPE only). An engine.
 */
#ifndef DLRUN_NET_SSH_SSH_OPENSSH_WORDS_H
#define DLRUN_NET_SSH_SSH_OPENSSH_WORDS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/err.h"

enum { SSH_WORDS_MAX = 64 << 10 }; /* bytes that are read */

/* Functions of the client (OpenSSH 8.5 and newer) whose words are wanted at LogLevel ERROR, which
 * keeps the server's banner out of stderr. */
extern const char ssh_words_verbose[]; /* for -o LogVerbose= */

struct ssh_words {
	bool has_open;        /* logged in, or a running master took the session */
	bool has_exit_status; /* the command's own, of which 255 may be one */
	bool has_exit_signal; /* killed by a signal, which is not reported */
	bool master_is_gone;  /* it, or the command by a signal */
};
void ssh_words_read(const char *text, size_t len, struct ssh_words *ret);

/* Of a client that ended with 255 by itself: one of the E_SSH_… ids, with its words as evidence.
 * said: its stderr before the login, where words of a proxy stand. */
int ssh_words_error(const char *text, const char *said, const char *host, struct err *err);

#endif
