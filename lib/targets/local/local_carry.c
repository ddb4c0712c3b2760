/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "net/stream/pump.h"
#include "net/stream/stream.h"
#include "targets/local/target_local.h"

/* A port that is not open yet is tried again for so long. */
enum { HOLD_MS = 10 * 1000, RETRY_MS = 100 };

struct carry {
	struct target_work work;
	struct target_call *call;
	struct loop *loop;
	uint16_t port;
	int fd; /* the caller's side, until the pump has it */
	int64_t begun_ms;
	bool is_v6; /* the next try is */
	struct loop_timer *timer;
	struct pump *pump;
};

static void drop(struct target_work *work)
{
	struct carry *carry = (struct carry *)work;

	loop_remove_timer(carry->loop, carry->timer);
	pump_cancel(carry->pump);
	if (carry->fd >= 0)
		close(carry->fd);
	free(carry);
}

static int on_pumped(void *ctx, struct pump_end *end, struct err *err)
{
	struct carry *carry = ctx;

	(void)err;
	carry->pump = NULL;
	target_call_end_pumped(carry->call, end);
	return 0;
}

/* Loopback connects at once, so a non-blocking connect gains nothing. */
static int connect_once(const struct carry *carry)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET,
		.sin_port = htons(carry->port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6,
		.sin6_port = htons(carry->port),
		.sin6_addr = IN6ADDR_LOOPBACK_INIT};
	AUTO_FD int fd = socket(carry->is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return -1;
	r = carry->is_v6 ? connect(fd, (struct sockaddr *)&v6, sizeof(v6))
			 : connect(fd, (struct sockaddr *)&v4, sizeof(v4));
	return r == 0 ? TAKE_FD(fd) : -1;
}

static int on_try(void *ctx, struct err *err)
{
	struct carry *carry = ctx;
	AUTO_ERR struct err fault = {0};

	(void)err;
	carry->timer = NULL;
	int fd = connect_once(carry);
	if (fd < 0) {
		carry->is_v6 = !carry->is_v6;
		fd = connect_once(carry);
	}
	if (fd >= 0) {
		const struct pump_options options = {.loop = carry->loop,
			.a = stream_from_fd(TAKE_FD(carry->fd)),
			.b = stream_from_fd(fd),
			.done = on_pumped,
			.ctx = carry};

		carry->pump = pump_start(&options);
	} else if (clock_ms() - carry->begun_ms < HOLD_MS) {
		carry->timer = loop_add_timer(carry->loop, clock_ms() + RETRY_MS, on_try, carry);
	} else {
		int r = err_set(&fault, E_KUBE_FORWARD, "nothing listens on port %u of the program",
			carry->port);

		target_call_end(carry->call, r, &fault);
	}
	return 0;
}

int local_carry(struct target *target, const char *handle, int rank, uint16_t port, int fd,
	struct target_call *call, struct err *err)
{
	AUTO_ATTEMPT_PLACE struct attempt_place place = {0};
	struct carry *carry;

	(void)rank;
	int r = local_place_find(target_local_of(target), handle, &place, err);
	if (r == 0 && place.foreign)
		r = err_set(
			err, E_TARGET_UNSUPPORTED, "%s belongs to another machine", place.run_id);
	if (r < 0) {
		close(fd);
		return r;
	}
	carry = mem_alloc(1, sizeof(*carry));
	*carry = (struct carry){.work = {drop},
		.call = call,
		.loop = target->loop,
		.port = port,
		.fd = fd,
		.begun_ms = clock_ms()};
	target_call_begin(call, &carry->work);
	carry->timer = loop_add_timer(target->loop, 0, on_try, carry);
	return 0;
}
