/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A TCP connection to one of the addresses of a host, whichever answers first. Blocks; for a
 * thread.
 */
#ifndef DLRUN_NET_SSH_SSH_DIAL_H
#define DLRUN_NET_SSH_SSH_DIAL_H

#include <stdint.h>

#include "base/util/err.h"
#include "net/ssh/ssh_wait.h"

/* family: AF_UNSPEC, AF_INET, AF_INET6. The socket does not block, sends at once, and fails when
 * what it sent is not confirmed for dead_ms. E_SSH_UNREACHABLE, E_CANCELED. */
int ssh_dial(const char *host, uint16_t port, int family, int64_t dead_ms,
	const struct ssh_wait *wait, int *ret_fd, struct err *err);

#endif
