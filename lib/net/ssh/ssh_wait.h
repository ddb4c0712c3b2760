/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting within the thread that logs in: for a descriptor, until a time, and no longer than the
 * login is wanted.
 */
#ifndef DLRUN_NET_SSH_SSH_WAIT_H
#define DLRUN_NET_SSH_SSH_WAIT_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/err.h"

struct ssh_wait {
	int cancel;          /* its other end is closed when the login is not wanted any more */
	int64_t deadline_ms; /* of clock_ms() */
};

enum ssh_waited { SSH_WAIT_READY, SSH_WAIT_TIMEOUT, SSH_WAIT_CANCELED };
/* Until one of fds (8 at most) is ready, the deadline or at_ms, whatever comes first. revents are
 * set. */
enum ssh_waited ssh_wait_fds(
	const struct ssh_wait *wait, struct pollfd *fds, size_t n, int64_t at_ms);
/* Of one, until the deadline. */
enum ssh_waited ssh_wait_fd(const struct ssh_wait *wait, int fd, short events);

#endif
