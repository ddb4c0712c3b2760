/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ssh/lookup.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/loop/par.h"
#include "base/os/os.h"
#include "base/util/err.h"
#include "base/util/mem.h"

/* Freed by the last of the thread and the caller. */
struct lookup {
	char *host;
	char service[8];
	int family;
	int code;
	struct addrinfo *list;
	int ended[2]; /* the thread closes [1] */
	atomic_int users;
	struct par_task *task; /* the caller's */
};

static void lookup_drop(struct lookup *lookup)
{
	if (atomic_fetch_sub(&lookup->users, 1) > 1)
		return;
	if (lookup->list)
		freeaddrinfo(lookup->list);
	close(lookup->ended[0]);
	free(lookup->host);
	free(lookup);
}

static void lookup_run(void *ctx)
{
	struct lookup *lookup = ctx;
	struct addrinfo hints = {
		.ai_family = lookup->family, .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};

	lookup->code = getaddrinfo(lookup->host, lookup->service, &hints, &lookup->list);
	/* Where there is no network but loopback, that flag hides it as well. */
	hints.ai_flags = AI_NUMERICHOST;
	if (lookup->code != 0 &&
		getaddrinfo(lookup->host, lookup->service, &hints, &lookup->list) == 0)
		lookup->code = 0;
	if (lookup->code != 0)
		lookup->list = NULL;
	close(lookup->ended[1]);
	lookup_drop(lookup);
}

struct lookup *lookup_start(const char *host, uint16_t port, int family)
{
	struct lookup *lookup = mem_alloc(1, sizeof(*lookup));

	lookup->host = mem_strdup(host);
	lookup->family = family;
	snprintf(lookup->service, sizeof(lookup->service), "%u", port);
	atomic_init(&lookup->users, 2);
	BUG_ON(os_pipe(lookup->ended, 0) < 0);
	lookup->task = par_start(lookup_run, lookup);
	return lookup;
}

int lookup_fd(const struct lookup *lookup)
{
	return lookup->ended[0];
}

struct addrinfo *lookup_take(struct lookup *lookup, int *ret_code)
{
	par_wait(TAKE(lookup->task));
	*ret_code = lookup->code;
	return TAKE(lookup->list);
}

void lookup_free(struct lookup *lookup)
{
	if (!lookup)
		return;
	if (lookup->task)
		par_leave(TAKE(lookup->task));
	lookup_drop(lookup);
}
