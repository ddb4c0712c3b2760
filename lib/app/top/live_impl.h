/* SPDX-License-Identifier: Apache-2.0 */
/* Between the parts of live.c. */
#ifndef DLRUN_APP_TOP_LIVE_IMPL_H
#define DLRUN_APP_TOP_LIVE_IMPL_H

#include "app/top/live.h"
#include "core/target/target.h"
#include "host/gpu.h"
#include "host/usage.h"
#include "targets/kube/kube_open.h"
#include "targets/ssh/node_open.h"

enum { LIVE_PLACES_MAX = 500, LIVE_RUNS_MAX = 200 };

/* Lists that are requested from a cluster. */
enum live_list { LIVE_NODES, LIVE_PODS, LIVE_METRICS, LIVE_LISTS };

enum live_kind { LIVE_LOCAL, LIVE_HOST, LIVE_CLUSTER };

/* Machines that are asked together: one, or the nodes of a cluster. */
struct live_place {
	struct live *live;
	enum live_kind kind;
	char *target;
	char *host, *root;              /* of a host */
	char *context, *kube_namespace; /* of a cluster */
	struct node_host *opened;       /* the session's */
	struct node_call *asked;
	struct node_machine node;
	struct kube_cluster *cluster; /* the session's */
	struct kube_call *calls[LIVE_LISTS];
	struct json *answers[LIVE_LISTS];
	size_t n_open;
	int64_t begun_ms, next_ms;
	struct machine_list shown;
};

/* A run that is looked at. */
struct live_run {
	struct target_call call; /* first */
	struct live *live;
	char *id, *handle;
	struct target *target;
	struct json *came, *seen;
	bool is_open;
	int64_t begun_ms, next_ms;
};

struct live {
	struct session *session;
	struct VEC_OF(struct live_place *) places;
	struct VEC_OF(struct live_run *) runs;
	size_t n_open;
	bool is_waited_for, gpus_known;
	struct gpu_list gpus; /* of this machine */
	struct gpu_meter *meter;
};

/* Called when a place or run has responded, or could not be queried. */
void live_ended(struct live *live);

void live_place_free(struct live_place *place);
void live_place_begin(struct live_place *place);
/* This machine. */
void live_local(struct live *live, const struct live_place *place, const struct run_list *runs,
	struct machine *ret);

#endif
