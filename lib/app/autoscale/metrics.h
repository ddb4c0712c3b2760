/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics of the autoscaler for Prometheus: counters that live as long as the process, and the last
 * turn, as text (exposition format 0.0.4). metrics_print and the counters are an engine;
 * metrics_serve responds to `GET /metrics` from anybody who reaches this machine (httpd.h,
 * `address`).
 */
#ifndef DLRUN_APP_AUTOSCALE_METRICS_H
#define DLRUN_APP_AUTOSCALE_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "app/autoscale/turn.h"
#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "core/autoscale/plan.h"

enum { METRICS_MAX = 4 << 20 };

struct metrics_group {
	char *id;
	int64_t bought, ended; /* machines */
	int64_t failures[SCALE_FAILED_OTHER + 1];
};
/* All zero to begin with. */
struct metrics {
	int64_t turns, failed;
	int64_t took_ms;    /* of the last turn */
	int64_t success_ms; /* wall clock, of the last one that did not fail */
	int64_t lost_notices;
	char *model; /* what was last printed of model and plan; or NULL */
	/* SCALE_GROUPS_LIMIT at most; later ones are not counted. */
	struct metrics_groups VEC_OF(struct metrics_group) groups;
};
void metrics_done(struct metrics *metrics);
#define AUTO_METRICS AUTO(metrics_done)

/* A turn has ended; now_ms: wall clock. */
void metrics_turn(struct metrics *metrics, int64_t took_ms, int64_t now_ms, bool failed);
void metrics_event(struct metrics *metrics, const struct turn_event *event);
/* The text: counters, and model and plan of the last turn. Both are NULL where it failed: what was
 * printed of the one before is repeated. Groups of the model get their counters. Where all groups
 * do not fit into METRICS_MAX, what is of single groups is left out. */
void metrics_print(struct metrics *metrics, const char *cluster, const struct scale_model *model,
	const struct scale_plan *plan, struct buf *out);

struct metrics_server;
/* Listens at that port (0: any) of all addresses when it returns. E_LISTEN_TAKEN, E_LISTEN. */
int metrics_serve(struct loop *loop, int port, struct metrics_server **ret, struct err *err);
/* The text that it responds with from now on is taken. Empty at first. */
void metrics_server_set(struct metrics_server *server, struct buf *take_text);
int metrics_server_port(const struct metrics_server *server);
/* NULL is accepted. */
void metrics_server_free(struct metrics_server *server);
AUTO_POINTER(struct metrics_server, metrics_server_free)
#define AUTO_METRICS_SERVER AUTO(metrics_server_free_auto)

#endif
