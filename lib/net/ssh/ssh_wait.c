/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ssh/ssh_wait.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/util/clock.h"

enum { FDS_MAX = 8 };

static int ms_until(int64_t at_ms)
{
	int64_t left = at_ms - clock_ms();

	if (left <= 0)
		return 0;
	return left > INT_MAX ? INT_MAX : (int)left;
}

enum ssh_waited ssh_wait_fds(
	const struct ssh_wait *wait, struct pollfd *fds, size_t n, int64_t at_ms)
{
	struct pollfd all[FDS_MAX + 1];
	int64_t until = at_ms < wait->deadline_ms ? at_ms : wait->deadline_ms;
	int found;

	BUG_ON(n > FDS_MAX);
	if (n > 0)
		memcpy(all, fds, n * sizeof(*fds));
	all[n] = (struct pollfd){.fd = wait->cancel, .events = POLLIN};
	do {
		found = poll(all, n + 1, ms_until(until));
	} while (found < 0 && errno == EINTR);
	if (n > 0)
		memcpy(fds, all, n * sizeof(*fds));
	if (all[n].revents)
		return SSH_WAIT_CANCELED;
	return found > 0 ? SSH_WAIT_READY : SSH_WAIT_TIMEOUT;
}

enum ssh_waited ssh_wait_fd(const struct ssh_wait *wait, int fd, short events)
{
	struct pollfd one = {.fd = fd, .events = events};

	return ssh_wait_fds(wait, &one, 1, wait->deadline_ms);
}
