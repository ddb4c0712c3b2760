/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carries connected sockets to ports of one run: of its newest attempt, wherever that is. What
 * `forward` and `proxy` share. The target stays open, so that connections share what leads there.
 */
#ifndef DLRUN_APP_FORWARD_CARRIER_H
#define DLRUN_APP_FORWARD_CARRIER_H

#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"
#include "core/target/target.h"

struct carrier;
struct carrier_options {
	struct session *session;
	/* Borrowed, until carrier_take brings another one; it may change. */
	const struct run *run;
	/* Called with the fate of forwarded connections: see target.h. Or NULL. */
	void (*notice)(void *ctx, const char *text);
	void *ctx;
};
/* Asks nobody. What target_open_run fails with. */
int carrier_open(const struct carrier_options *options, struct carrier **ret, struct err *err);
/* Connections are reset; nobody is told. NULL is accepted. */
void carrier_free(struct carrier *carrier);
AUTO_POINTER(struct carrier, carrier_free)

/* E_TARGET_UNSUPPORTED: nothing can be carried to targets of that kind. */
int carrier_check(const struct carrier *carrier, struct err *err);
/* E_USAGE: the run has no such rank. Of one that another machine began that may not be known. */
int carrier_check_rank(const struct run *run, int rank, struct err *err);

/* The connection has ended: fault tells why, if that was not orderly. Once, from the loop. */
typedef void carrier_done_fn(void *ctx, int status, struct err *error);
/* fd is the carrier's, whatever is returned. E_RUN_START: there is no attempt yet; no done behind a
 * failure. done may be NULL. */
int carrier_carry(struct carrier *carrier, int rank, uint16_t port, int fd, carrier_done_fn *done,
	void *ctx, struct err *err);
/* End all of them, as done of each is told: the run has ended, and nobody will answer any more.
 * From outside of the loop. */
void carrier_end(struct carrier *carrier);
/* Connections that are carried now. */
size_t carrier_count(const struct carrier *carrier);

const struct run *carrier_run(const struct carrier *carrier);
struct target *carrier_target(const struct carrier *carrier);
/* The run as it is now: a new attempt has another handle. Taken over. */
void carrier_take(struct carrier *carrier, struct run *run);
/* Ask for that; runs the loop (runs_find). */
int carrier_poll(struct carrier *carrier, struct err *err);

#endif
