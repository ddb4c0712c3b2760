#include "net/ssh_dial.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/par.h"

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

/*
 * Addresses. getaddrinfo cannot be told to end: a thread of its own asks, and is left to itself
 * when nobody wants the answer any more.
 */

struct lookup {
	char *host;
	char service[8];
	int family;
	int result;
	struct addrinfo *list;
	int ended[2]; /* the thread closes [1] */
	atomic_int users;
};

static void drop_lookup(struct lookup *lookup)
{
	if (atomic_fetch_sub(&lookup->users, 1) > 1)
		return;
	free_list(&lookup->list);
	close(lookup->ended[0]);
	free(lookup->host);
	free(lookup);
}

static void ask_names(void *ctx)
{
	struct lookup *lookup = ctx;
	struct addrinfo hints = {
		.ai_family = lookup->family, .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};

	lookup->result = getaddrinfo(lookup->host, lookup->service, &hints, &lookup->list);
	/* Where there is no network but loopback, that flag hides it as well. */
	hints.ai_flags = AI_NUMERICHOST;
	if (lookup->result != 0 &&
		getaddrinfo(lookup->host, lookup->service, &hints, &lookup->list) == 0)
		lookup->result = 0;
	if (lookup->result != 0)
		lookup->list = NULL;
	close(lookup->ended[1]);
	drop_lookup(lookup);
}

static struct lookup *new_lookup(const char *host, uint16_t port, int family)
{
	struct lookup *lookup = mem_alloc(1, sizeof(*lookup));

	lookup->host = mem_strdup(host);
	lookup->family = family;
	snprintf(lookup->service, sizeof(lookup->service), "%u", port);
	atomic_init(&lookup->users, 2);
	BUG_ON(os_pipe(lookup->ended, 0) < 0);
	return lookup;
}

static int explain_lookup(
	const struct lookup *lookup, enum ssh_waited waited, const char *host, struct err *err)
{
	if (waited == SSH_WAIT_CANCELED)
		return err_set(err, E_CANCELED, "interrupted");
	if (waited == SSH_WAIT_TIMEOUT || lookup->result == EAI_AGAIN)
		return err_set(err, E_SSH_UNREACHABLE,
			"the name %s cannot be looked up now: no name server answers", host);
	return err_set(err, E_SSH_UNREACHABLE, "no address is known for the name %s", host);
}

static int look_up(const char *host, uint16_t port, int family, const struct ssh_wait *wait,
	struct addrinfo **ret, struct err *err)
{
	struct lookup *lookup = new_lookup(host, port, family);
	struct par_task *asks = par_start(ask_names, lookup);
	int r = 0;

	enum ssh_waited waited = ssh_wait_fd(wait, lookup->ended[0], POLLIN);
	if (waited != SSH_WAIT_READY) {
		par_leave(asks);
		r = explain_lookup(lookup, waited, host, err);
	} else {
		par_wait(asks);
		*ret = TAKE(lookup->list);
		r = *ret ? 0 : explain_lookup(lookup, waited, host, err);
	}
	drop_lookup(lookup);
	return r;
}

/*
 * Connections
 */

static void set_option(int fd, int level, int option, int value)
{
	/* What a system does not know is not needed to connect. */
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
