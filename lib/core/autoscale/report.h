/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan as JSON and as text, and what-ifs. An engine.
 */
#ifndef DLRUN_CORE_AUTOSCALE_REPORT_H
#define DLRUN_CORE_AUTOSCALE_REPORT_H

#include "base/data/json.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "core/autoscale/plan.h"

/* {"actions": [{"do": "grow", "group": "gpu-a", "from": 1, "to": 9, "pods": 64, "why": "…"},
 * …],  "placements": [{"pod": "ml/train", "pods": 64, "on":
 * "free"|"cordoned"|"coming"|"new"|null, "node": …,  "group": …}], "not_helped": [{"shape": …,
 * "gang": …, "pods": n, "reasons": [{"group": …, "text":  …}]}], "bound": {…}, "waiting": n,
 * "helped": n, "nodes_after": n, "price_after": x, "remarks": []}. The caller frees. */
struct json *plan_json(const struct scale_model *model, const struct scale_plan *plan);
/* For people: what would be done, one line each, then who is not helped and why, then nodes, price
 * and the distance from the bound. */
void plan_text(const struct scale_model *model, const struct scale_plan *plan, struct buf *out);

/* Pods that are asked about: "16 x 8 GPUs", "study of 200 x 8 GPUs, 64 CPUs, 512Gi", "3 x
 * nvidia.com/gpu=4, cpu=16": "study of N" are N separate pods, "N x" alone a gang of N. Added
 * to the model as waiting. E_USAGE. */
int whatif_add(const char *text, struct scale_model *model, struct err *err);
/* Find what the plan has for each of these demands, whose pods are the model's last:
 * [{"demand": "16 x 8 GPUs", "pods": 16, "helped": 16, "nodes": 16, "shared_nodes": 0, "price":
 * 524.32, "ready_in_s": 240}]. "nodes": new ones that only have its pods; "price" of these, for an
 * hour; "ready_in_s": until the last machine that it waits for is there. What is not known is left
 * out. The caller frees. */
struct json *whatif_json(
	const struct strv *demands, const struct scale_model *model, const struct scale_plan *plan);
/* Lines for people with the same, which are to stand below the plan. */
void whatif_text(const struct strv *demands, const struct scale_model *model,
	const struct scale_plan *plan, struct buf *out);

#endif
