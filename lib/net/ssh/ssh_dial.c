/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ssh/ssh_dial.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "net/http/lookup.h"

/* The next address is tried beside those that have not answered yet (RFC 8305, section 5). */
enum { AT_ONCE_MAX = 8, NEXT_AFTER_MS = 250 };

struct dial {
	struct pollfd fds[AT_ONCE_MAX];
	size_t n;
	const struct addrinfo *next;
	int64_t next_ms;
	int errnum; /* of the last that failed */
	int64_t dead_ms;
};

static void free_list(struct addrinfo **list)
{
	if (*list)
		freeaddrinfo(*list);
}

static int explain_lookup(enum ssh_waited waited, int code, const char *host, struct err *err)
{
	if (waited == SSH_WAIT_CANCELED)
		return err_set(err, E_CANCELED, "interrupted");
	if (waited == SSH_WAIT_TIMEOUT || code == EAI_AGAIN)
		return err_set(err, E_SSH_UNREACHABLE,
			"the name %s cannot be looked up now: no name server answers", host);
	return err_set(err, E_SSH_UNREACHABLE, "could not resolve host %s", host);
}

static int look_up(const char *host, uint16_t port, int family, const struct ssh_wait *wait,
	struct addrinfo **ret, struct err *err)
{
	AUTO_LOOKUP struct lookup *lookup = lookup_start(host, port, family);
	int code = 0;

	enum ssh_waited waited = ssh_wait_fd(wait, lookup_fd(lookup), POLLIN);
	if (waited == SSH_WAIT_READY)
		*ret = lookup_take(lookup, &code);
	return *ret ? 0 : explain_lookup(waited, code, host, err);
}

/*
 * Connections
 */

static void set_option(int fd, int level, int option, int value)
{
	/* Options that the system does not support are not needed to connect. */
	(void)setsockopt(fd, level, option, &value, sizeof(value));
}

static void tune(int fd, int64_t dead_ms)
{
	set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_USER_TIMEOUT
	set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)dead_ms);
#else
	(void)dead_ms;
#endif
}

static int begin_one(const struct addrinfo *address, int64_t dead_ms)
{
	AUTO_FD int fd = socket(address->ai_family,
		address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address->ai_protocol);

	if (fd < 0)
		return -errno;
	tune(fd, dead_ms);
	if (connect(fd, address->ai_addr, address->ai_addrlen) < 0 && errno != EINPROGRESS)
		return -errno;
	return TAKE_FD(fd);
}

static void begin_next(struct dial *dial)
{
	int fd = begin_one(dial->next, dial->dead_ms);

	dial->next = dial->next->ai_next;
	dial->next_ms = clock_ms() + NEXT_AFTER_MS;
	if (fd < 0) {
		dial->errnum = -fd;
		dial->next_ms = 0;
		return;
	}
	dial->fds[dial->n++] = (struct pollfd){.fd = fd, .events = POLLOUT};
}

static void drop(struct dial *dial, size_t i)
{
	close(dial->fds[i].fd);
	dial->fds[i] = dial->fds[--dial->n];
}

/* The first that is connected, or -1; those that failed are dropped. */
static int pick(struct dial *dial)
{
	for (size_t i = dial->n; i-- > 0;) {
		int errnum = 0;
		socklen_t len = sizeof(errnum);
		if (!dial->fds[i].revents)
			continue;
		getsockopt(dial->fds[i].fd, SOL_SOCKET, SO_ERROR, &errnum, &len);
		if (errnum == 0) {
			int fd = dial->fds[i].fd;
			dial->fds[i] = dial->fds[--dial->n];
			return fd;
		}
		dial->errnum = errnum;
		dial->next_ms = 0;
		drop(dial, i);
	}
	return -1;
}

static int explain(const struct dial *dial, enum ssh_waited waited, const char *host, uint16_t port,
	struct err *err)
{
	if (waited == SSH_WAIT_CANCELED)
		return err_set(err, E_CANCELED, "interrupted");
	if (dial->n > 0 || dial->errnum == 0)
		return err_set(err, E_SSH_UNREACHABLE, "%s does not answer on port %u", host, port);
	if (dial->errnum == ECONNREFUSED)
		return err_set(err, E_SSH_UNREACHABLE,
			"%s refuses connections to port %u: no ssh server listens there", host,
			port);
	return err_set_errno(
		err, E_SSH_UNREACHABLE, dial->errnum, "connecting to %s port %u", host, port);
}

static int race(struct dial *dial, const struct ssh_wait *wait, enum ssh_waited *ret_waited)
{
	int fd = -1;

	*ret_waited = SSH_WAIT_TIMEOUT;
	while (fd < 0) {
		bool more = dial->next && dial->n < AT_ONCE_MAX;
		if (more && clock_ms() >= dial->next_ms) {
			begin_next(dial);
			continue;
		}
		if (dial->n == 0)
			return -1;
		*ret_waited = ssh_wait_fds(
			wait, dial->fds, dial->n, more ? dial->next_ms : wait->deadline_ms);
		if (*ret_waited == SSH_WAIT_CANCELED || clock_ms() >= wait->deadline_ms)
			return -1;
		if (*ret_waited == SSH_WAIT_READY)
			fd = pick(dial);
	}
	return fd;
}

int ssh_dial(const char *host, uint16_t port, int family, int64_t dead_ms,
	const struct ssh_wait *wait, int *ret_fd, struct err *err)
{
	AUTO(free_list) struct addrinfo *list = NULL;
	enum ssh_waited waited;

	int r = look_up(host, port, family, wait, &list, err);
	if (r < 0)
		return r;
	struct dial dial = {.next = list, .dead_ms = dead_ms};
	int fd = race(&dial, wait, &waited);
	if (fd < 0)
		r = explain(&dial, waited, host, port, err);
	while (dial.n > 0)
		drop(&dial, dial.n - 1);
	if (fd >= 0)
		*ret_fd = fd;
	return r;
}
