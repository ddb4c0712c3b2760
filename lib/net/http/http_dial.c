/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/http/http_impl.h"
#include "net/http/lookup.h"

/*
 * The connection of a first request begins before libcurl is there, whose loading takes as long as
 * many a round trip. libcurl opens its socket to the same address and gets this one. What does not
 * succeed here is left to libcurl, which then says why.
 */

enum {
	OTHER_AFTER_MS = 250, /* an address of the other family beside it (RFC 8305 section 5) */
	GIVE_UP_MS = 3000,
	ADDRESSES_MAX = 8, /* are told to libcurl */
};

/* An attempt to connect; at most two: to the first address of each family. */
struct attempt {
	struct http_dial *dial;
	const struct addrinfo *address;
	int fd;
	struct loop_fd *source;
};

struct http_dial {
	struct http_call *call;
	struct loop *loop;
	int64_t start_ms, over_ms;
	bool is_over, is_left;
	bool is_name;
	struct lookup *lookup;
	struct loop_fd *answer; /* of it */
	struct addrinfo *list;
	struct attempt attempts[2];
	size_t n_attempts;
	struct loop_timer *timer; /* the second attempt, then the end */
	const struct addrinfo *reached;
	int fd; /* connected, or -1 */
};

static void drop_attempt(struct attempt *attempt)
{
	loop_remove_fd(attempt->dial->loop, TAKE(attempt->source));
	if (attempt->fd >= 0)
		close(attempt->fd);
	attempt->fd = -1;
}

static void stop(struct http_dial *dial)
{
	loop_remove_fd(dial->loop, TAKE(dial->answer));
	lookup_free(TAKE(dial->lookup));
	loop_remove_timer(dial->loop, TAKE(dial->timer));
	for (size_t i = 0; i < dial->n_attempts; i++)
		drop_attempt(&dial->attempts[i]);
}

static int end(struct http_dial *dial, struct err *err)
{
	stop(dial);
	dial->is_over = true;
	dial->over_ms = clock_ms();
	return http_call_dialled(dial->call, err);
}

/*
 * Attempts
 */

static bool is_pending(const struct http_dial *dial)
{
	for (size_t i = 0; i < dial->n_attempts; i++)
		if (dial->attempts[i].fd >= 0)
			return true;
	return false;
}

static short prepare_attempt(void *ctx)
{
	(void)ctx;
	return POLLOUT;
}

static int begin_other(struct http_dial *dial, struct err *err);

/* Not by a second connect: that one is libcurl's, whose 7.88 does not believe that there is a
 * connection, and Linux says so once. */
static int dispatch_attempt(void *ctx, short revents, struct err *err)
{
	struct attempt *attempt = ctx;
	struct http_dial *dial = attempt->dial;
	socklen_t len = sizeof(int);
	int errnum = 0;

	(void)revents;
	getsockopt(attempt->fd, SOL_SOCKET, SO_ERROR, &errnum, &len);
	if (errnum == 0) {
		dial->fd = attempt->fd;
		dial->reached = attempt->address;
		attempt->fd = -1;
		return end(dial, err);
	}
	drop_attempt(attempt);
	return begin_other(dial, err);
}

static const struct loop_fd_ops attempt_ops = {prepare_attempt, dispatch_attempt};

static void begin_attempt(struct http_dial *dial, const struct addrinfo *address)
{
	struct attempt *attempt = &dial->attempts[dial->n_attempts++];
	int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	*attempt = (struct attempt){.dial = dial, .address = address, .fd = fd};
	if (fd < 0)
		return;
	if (connect(fd, address->ai_addr, address->ai_addrlen) < 0 && errno != EINPROGRESS)
		drop_attempt(attempt);
	else
		attempt->source = loop_add_fd(dial->loop, fd, &attempt_ops, attempt);
}

static int give_up(void *ctx, struct err *err)
{
	struct http_dial *dial = ctx;

	dial->timer = NULL;
	return end(dial, err);
}

static void set_timer(struct http_dial *dial, int64_t wait_ms, loop_timer_fn *fn)
{
	loop_remove_timer(dial->loop, dial->timer);
	dial->timer = loop_add_timer(dial->loop, dial->start_ms + wait_ms, fn, dial);
}

static const struct addrinfo *find_other(const struct http_dial *dial)
{
	const struct addrinfo *other = dial->list;

	while (other && other->ai_family == dial->list->ai_family)
		other = other->ai_next;
	return dial->n_attempts < ARRAY_LEN(dial->attempts) ? other : NULL;
}

/* The first one takes long, or has failed. */
static int begin_other(struct http_dial *dial, struct err *err)
{
	const struct addrinfo *other = find_other(dial);

	if (other)
		begin_attempt(dial, other);
	if (!is_pending(dial))
		return end(dial, err);
	set_timer(dial, GIVE_UP_MS, give_up);
	return 0;
}

static int other_due(void *ctx, struct err *err)
{
	struct http_dial *dial = ctx;

	dial->timer = NULL;
	return begin_other(dial, err);
}

static void begin_first(struct http_dial *dial)
{
	int64_t ms = clock_ms() - dial->start_ms;

	begin_attempt(dial, dial->list);
	if (is_pending(dial))
		ms += OTHER_AFTER_MS;
	set_timer(dial, ms < GIVE_UP_MS ? ms : GIVE_UP_MS, other_due);
}

/*
 * Addresses
 */

static short prepare_answer(void *ctx)
{
	(void)ctx;
	return POLLIN;
}

static int dispatch_answer(void *ctx, short revents, struct err *err)
{
	struct http_dial *dial = ctx;
	int code;

	(void)revents;
	dial->list = lookup_take(dial->lookup, &code);
	loop_remove_fd(dial->loop, TAKE(dial->answer));
	lookup_free(TAKE(dial->lookup));
	if (!dial->list)
		return end(dial, err);
	begin_first(dial);
	return 0;
}

static void look_up(struct http_dial *dial, const struct url *url)
{
	static const struct loop_fd_ops ops = {prepare_answer, dispatch_answer};

	dial->is_name = true;
	dial->lookup = lookup_start(url->host, url->port, AF_UNSPEC);
	dial->answer = loop_add_fd(dial->loop, lookup_fd(dial->lookup), &ops, dial);
	set_timer(dial, GIVE_UP_MS, give_up);
}

static void parse(struct http_dial *dial, const struct url *url)
{
	const struct addrinfo hints = {
		.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
	char port[8];

	snprintf(port, sizeof(port), "%u", url->port);
	if (getaddrinfo(url->host, port, &hints, &dial->list) != 0)
		dial->list = NULL;
}

struct http_dial *http_dial_start(struct http_call *call)
{
	struct http_dial *dial = mem_alloc(1, sizeof(*dial));

	*dial = (struct http_dial){
		.call = call, .loop = call->http->loop, .start_ms = clock_ms(), .fd = -1};
	parse(dial, &call->url);
	if (dial->list)
		begin_first(dial);
	else
		look_up(dial, &call->url);
	return dial;
}

bool http_dial_is_over(const struct http_dial *dial)
{
	return dial->is_over;
}

bool http_dial_is_connected(const struct http_dial *dial)
{
	return dial->fd >= 0;
}

void http_dial_leave(struct http_dial *dial)
{
	dial->is_left = true;
}

bool http_dial_is_left(const struct http_dial *dial)
{
	return dial->is_left;
}

int64_t http_dial_start_ms(const struct http_dial *dial)
{
	return dial->start_ms;
}

int64_t http_dial_ms(const struct http_dial *dial)
{
	return dial->over_ms - dial->start_ms;
}

/* Nothing has been sent yet: readable means that the connection has ended. */
static bool is_lost(const struct http_dial *dial)
{
	struct pollfd pollfd = {.fd = dial->fd, .events = POLLIN};

	return poll(&pollfd, 1, 0) != 0 || loop_woke_ms(dial->loop) > dial->start_ms;
}

int http_dial_take(struct http_dial *dial, const struct sockaddr *address, socklen_t len)
{
	const struct addrinfo *reached = dial->reached;
	int fd = dial->fd;

	if (fd < 0 || is_lost(dial) || len != reached->ai_addrlen ||
		memcmp(address, reached->ai_addr, len) != 0)
		return -1;
	dial->fd = -1;
	return fd;
}

/* libcurl does not take those with a scope. */
static bool add_address(struct buf *out, const struct addrinfo *address)
{
	char text[NI_MAXHOST];

	if (getnameinfo(address->ai_addr, address->ai_addrlen, text, sizeof(text), NULL, 0,
		    NI_NUMERICHOST) != 0 ||
		strchr(text, '%'))
		return false;
	buf_addf(out, address->ai_family == AF_INET6 ? "[%s]" : "%s", text);
	return true;
}

/* Of the family of the one that was reached: libcurl may begin with the other one. */
static void add_others(const struct http_dial *dial, struct buf *out)
{
	const struct addrinfo *reached = dial->reached;
	size_t n = 1;

	for (const struct addrinfo *other = dial->list; other && n < ADDRESSES_MAX;
		other = other->ai_next, n++) {
		if (other == reached || other->ai_family != reached->ai_family)
			continue;
		size_t len = out->len;
		buf_addc(out, ',');
		if (!add_address(out, other))
			buf_truncate(out, len);
	}
}

char *http_dial_resolve(const struct http_dial *dial)
{
	const struct url *url = &dial->call->url;
	AUTO_BUF struct buf out = {0};

	if (!dial->is_name || !dial->reached)
		return NULL;
	buf_init(&out, 4096);
	buf_addf(&out, "+%s:%u:", url->host, url->port);
	if (!add_address(&out, dial->reached))
		return NULL;
	add_others(dial, &out);
	return buf_take(&out);
}

void http_dial_free(struct http_dial *dial)
{
	if (!dial)
		return;
	stop(dial);
	if (dial->fd >= 0)
		close(dial->fd);
	if (dial->list)
		freeaddrinfo(dial->list);
	free(dial);
}
