/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autoscale.yaml: what the autoscaler of one cluster may do. An engine. Its owner is who runs the
 * cluster, so it is no part of dlrun.yaml. dlrun-autoscale(5) describes the keys:
 *
 *   cluster: lab                 # a group is ours when its provider says it is this cluster's
 *   every: 15s                   # between two turns; 15 s by default, 1 s to 1 h
 *   limits: {nodes: 100, price: 500, step: 50, removals: 10, idle: 10m, spares: 0, boot: 25m,
 *     silent: 1h}                # as in a snapshot
 *   providers:                   # at least one, 16 at most
 *     - aws: {regions: [us-east-1, us-west-2]}      # in the order of preference
 *     - exec: [/etc/dlrun/clusterapi, --verbose]    # a program and its arguments
 *   groups:                      # the first pattern that an id matches (fnmatch), for each key
 *     "gpu-*": {weight: -1, price: 3.2, max: 10, refuse: "kept for the exam"}
 *   prices: {p4d.24xlarge: 32.77}     # of an hour, by the label node.kubernetes.io/instance-type
 *   spot_prices: {p4d.24xlarge: 9.83}
 *   metrics: 9090                # port of /metrics for Prometheus; none by default
 *   notify: [program, argument]  # gets each notice as a line of JSON on its standard input
 */
#ifndef DLRUN_CORE_AUTOSCALE_SETTINGS_H
#define DLRUN_CORE_AUTOSCALE_SETTINGS_H

#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/autoscale/model.h"

enum { SETTINGS_PROVIDERS_MAX = 16, SETTINGS_GROUPS_MAX = 1000, SETTINGS_PRICES_MAX = 2000 };

struct scale_settings;

/* path names the text in errors "PATH:LINE:COLUMN: …". E_SCALE_SETTINGS, with the near match of an
 * unknown key as hint; E_CONFIG_SYNTAX of what is no YAML. */
int settings_parse(const char *text, size_t len, const char *path, struct scale_settings **ret,
	struct err *err);
void settings_free(struct scale_settings *settings);
AUTO_POINTER(struct scale_settings, settings_free)
#define AUTO_SETTINGS AUTO(settings_free_auto)

const char *settings_cluster(const struct scale_settings *settings);
const struct scale_limits *settings_limits(const struct scale_settings *settings);
int64_t settings_every_ms(const struct scale_settings *settings);
/* 1 to 65535; 0: none. */
int settings_metrics_port(const struct scale_settings *settings);
/* The words of a program; NULL: none. */
const struct strv *settings_notify(const struct scale_settings *settings);

struct settings_provider {
	enum { SETTINGS_AWS, SETTINGS_EXEC } kind;
	struct strv words; /* the regions of aws, the program and arguments of exec; at least one */
};
struct settings_providers VEC_OF(struct settings_provider);
const struct settings_providers *settings_providers(const struct scale_settings *settings);

/* Change a group that a provider reported to what groups: and the prices say of it: its weight,
 * price, maximum (never above the provider's) and refused. */
void settings_apply(const struct scale_settings *settings, struct scale_group *group);
/* A remark on each pattern of groups: that is none of the model's: it may be misspelt. */
void settings_unmatched(const struct scale_settings *settings, struct scale_model *model);

#endif
