/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot: a model as JSON, to be saved, sent with a bug report, and planned again by anybody.
 * An engine. Equal models are printed as equal bytes. Format, version 1; members that are left out
 * have the value in parentheses, times are RFC 3339, amounts are quantities of Kubernetes as text
 * or numbers:
 *
 *   {"dlrun_autoscale": 1, "cluster": "lab", "now": "2026-11-27T05:00:00Z",
 *    "limits": {"nodes": 100, "price": 500.0, "step": 50, "removals": 10, "idle_s": 600,
 *               "spares": 0, "boot_s": 1500, "silent_s": 3600},
 *    "shapes": {"gpu8": {"request": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": 8},
 *        "selector": {"zone": "a"},
 *        "affinity": [[{"key": "arch", "op": "In", "values": ["arm64"]}]],     (one of all of)
 *        "tolerations": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
 *        "apart": ["app=web"], "marks": ["app=web"],
 *        "unsupported": ["topologySpreadConstraints"]}},
 *    "gangs": {"ml/train": {"owner": "dlrun", "same": "zone"|"group" (anywhere), "min": 64 (all)}},
 *    "pods": [{"name": "ml/train-0", "shape": "gpu8", "node": "n1" (waits), "gang": "ml/train",
 *        "count": 1, "priority": 0, "daemon": false}],
 *    "nodes": [{"name": "n1", "instance": "i-1", "group": "gpu-a", "labels": {}, "taints": [{"key":
 *        "gpu", "value": "yes", "effect": "NoSchedule"}], "room": {"cpu": "96", …, "pods": 110},
 *        "ready": true, "cordoned": "us"|"others" (no), "created": TIME, "idle_since": TIME,
 *        "cordoned_since": TIME, "silent_since": TIME, "no_instance": false, "kept": "a reason"}],
 *    "groups": [{"id": "gpu-a", "provider": "aws", "min": 0, "max": 10, "desired": 1,
 *        "region": "us-east-1", "zone": "us-east-1a", "spot": false, "price": 32.77, "weight": 0,
 *        "boot_s": 240 (how long a machine takes to become a node; not known),
 *        "template": {"labels": {}, "taints": [], "room": {}} (nothing is bought),
 *        "instances": [{"id": "i-1", "state": "pending"|"running"|"stopping", "since": TIME,
 *            "awaited": true (false), "was": …}],
 *        "mismatches": [as in mismatch.h; the template lacks these labels and has these taints],
 *        "wait_until": TIME, "failure": "capacity", "failure_text": "…", "refused": "a reason"}],
 *    "remarks": []}
 *
 * A pod with SCALE_PODS not named in its request asks for 1; a node or template without "pods" has
 * room for 110. Members of another kind, and unknown members, are
 * errors: a misspelt one would silently do nothing.
 */
#ifndef DLRUN_CORE_AUTOSCALE_SNAPSHOT_H
#define DLRUN_CORE_AUTOSCALE_SNAPSHOT_H

#include "base/data/json.h"
#include "base/util/err.h"
#include "core/autoscale/model.h"

enum {
	SCALE_SNAPSHOT_MAX = 64 << 20, /* bytes of JSON */
	SCALE_PODS_LIMIT = 200 * 1000, /* entries; with counts 10^7 pods */
	SCALE_NODES_LIMIT = 20 * 1000,
	SCALE_GROUPS_LIMIT = 2000,
	SCALE_SHAPES_LIMIT = SCALE_PODS_LIMIT,
	/* Of values: limits (times in seconds), prices of an hour, machines of a group, weights. */
	SCALE_LIMIT_MAX = INT32_MAX,
	SCALE_PRICE_MAX = 1000 * 1000 * 1000,
	SCALE_GROUP_SIZE_MAX = 1000 * 1000,
	SCALE_WEIGHT_MAX = 10 * 1000 * 1000,
	SCALE_BOOT_MAX = 86400, /* seconds that a machine takes */
};

/* ret is as scale_model_init leaves it. Amounts that are none, negative or beyond the range make
 * their shape unsupported ("a request of cpu: 1e300"), their node or group without room, each with
 * a remark. Other errors: E_DATA, E_DATA_LIMIT, which name the member ("pods[3].shape"). */
int snapshot_read(const struct json *json, struct scale_model *ret, struct err *err);
/* The caller frees. */
struct json *snapshot_write(const struct scale_model *model);
/* A group of it, as in "groups". The caller frees. */
struct json *snapshot_write_group(const struct scale_model *model, const struct scale_group *group);

/* An amount of that resource (of scale_resource), a text or a number; up: parts of a unit count as
 * one. */
bool snapshot_amount(const struct json *json, int resource, bool up, int64_t *ret);

/* A group as in "groups", as providers report it, added to the model, its amounts too. Of instances
 * with the same id the first counts, with a remark; in a snapshot they are an error. E_DATA. */
int snapshot_read_group(const struct json *json, struct scale_model *model, struct err *err);

#endif
