/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Relays connected sockets to ports of one run: of its newest attempt, wherever that is. What
 * `forward` and `proxy` share. The target stays open, so that connections share what leads there.
 */
#ifndef DLRUN_APP_FORWARD_FORWARDER_H
#define DLRUN_APP_FORWARD_FORWARDER_H

#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"
#include "core/target/target.h"

struct forwarder;
struct forwarder_options {
	struct session *session;
	/* Borrowed, until forwarder_take brings another one; it may change. */
	const struct run *run;
	/* Called with the fate of forwarded connections: see target.h. Or NULL. */
	void (*notice)(void *ctx, const char *text);
	void *ctx;
};
/* Contacts nobody. What target_open_run fails with. */
int forwarder_open(
	const struct forwarder_options *options, struct forwarder **ret, struct err *err);
/* Connections are reset; no done is called. NULL is accepted. */
void forwarder_free(struct forwarder *forwarder);
AUTO_POINTER(struct forwarder, forwarder_free)

/* E_TARGET_UNSUPPORTED: targets of that kind forward no ports. */
int forwarder_check(const struct forwarder *forwarder, struct err *err);
/* E_USAGE: the run has no such rank. Of one that another machine began that may not be known. */
int forwarder_check_rank(const struct run *run, int rank, struct err *err);

/* The connection has ended: error tells why, if that was not orderly. Once, from the loop. */
typedef void forwarder_done_fn(void *ctx, int status, struct err *error);
/* fd is taken over, whatever is returned. E_RUN_START: there is no attempt yet; no done behind a
 * failure. done may be NULL. */
int forwarder_relay(struct forwarder *forwarder, int rank, uint16_t port, int fd,
	forwarder_done_fn *done, void *ctx, struct err *err);
/* End all of them, as done of each learns: the run has ended, and nobody will answer any more. */
void forwarder_end(struct forwarder *forwarder);
/* Connections that are relayed now. */
size_t forwarder_count(const struct forwarder *forwarder);

const struct run *forwarder_run(const struct forwarder *forwarder);
struct target *forwarder_target(const struct forwarder *forwarder);
/* The run as it is now: a new attempt has another handle. Taken over. */
void forwarder_take(struct forwarder *forwarder, struct run *run);

#endif
