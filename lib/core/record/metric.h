/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The main metric of a run: the one to show where there is room for only one.
 */
#ifndef DLRUN_CORE_RECORD_METRIC_H
#define DLRUN_CORE_RECORD_METRIC_H

#include "base/data/json.h"
#include "base/util/buf.h"

/* Choose from "metrics" in dlrun/run/v1: "loss", else one that is called like a loss, those of
 * training before those of validation, else the first; NULL: there is none. Its name is
 * json_key. */
const struct json *metric_main(const struct json *metrics);

/* Add the value with at most 4 digits: "2.31", "nan". */
void metric_value(const struct json *metric, struct buf *out);
/* Add name and value: "loss 2.31"; a name of more than width characters loses its beginning (with
 * "…"). */
void metric_text(const struct json *metric, size_t width, struct buf *out);

#endif
