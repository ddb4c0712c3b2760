/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The user's ssh-agent (draft-ietf-sshm-ssh-agent), asked within time limits: it may wait for a
 * person who confirms, or be forwarded by a connection that is dead. Blocks; for a thread.
 */
#ifndef DLRUN_NET_SSH_SSH_AGENT_H
#define DLRUN_NET_SSH_SSH_AGENT_H

#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "net/ssh/ssh_wait.h"

enum {
	SSH_AGENT_MESSAGE_MAX = 256 << 10,
	SSH_AGENT_KEYS_MAX = 256,
	SSH_AGENT_LIST_MS = 5000,
	SSH_AGENT_SIGN_MS = 60000, /* a person may have to confirm, or to touch something */
};

struct ssh_agent_key {
	char *type;
	struct buf blob; /* RFC 4253, section 6.6 */
	char *comment;   /* as the agent has it: any bytes */
};

struct ssh_agent;
/* Connect and read the list of keys. E_IO: nothing listens at path, invalid response, timeout. */
int ssh_agent_open(
	const char *path, const struct ssh_wait *wait, struct ssh_agent **ret, struct err *err);
void ssh_agent_free(struct ssh_agent *agent); /* NULL is accepted */
AUTO_POINTER(struct ssh_agent, ssh_agent_free)
#define AUTO_SSH_AGENT AUTO(ssh_agent_free_auto)

/* Of the agent, in its order. */
size_t ssh_agent_n_keys(const struct ssh_agent *agent);
const struct ssh_agent_key *ssh_agent_key(const struct ssh_agent *agent, size_t i);

enum { SSH_AGENT_RSA_SHA2_256 = 2, SSH_AGENT_RSA_SHA2_512 = 4 };
/* Sign data by a key: *ret (any buffer or zero) becomes the signature (RFC 4253, section 6.6:
 * format and bytes). E_IO, also when it refuses. */
int ssh_agent_sign(struct ssh_agent *agent, const struct ssh_agent_key *key, const void *data,
	size_t len, uint32_t flags, const struct ssh_wait *wait, struct buf *ret, struct err *err);

#endif
