/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of a run's metrics stands for it where there is room for one.
 */
#ifndef DLRUN_CORE_RECORD_METRIC_H
#define DLRUN_CORE_RECORD_METRIC_H

#include "base/data/json.h"
#include "base/util/buf.h"

/* Of "metrics" in dlrun/run/v1: "loss", else one that is called like a loss, those of training
 * before those of validation, else the first; NULL: there is none. Its name is json_key. */
const struct json *metric_main(const struct json *metrics);

/* "2.31", "nan": its value with at most 4 digits. */
void metric_value(const struct json *metric, struct buf *out);
/* "loss 2.31"; a name of more than width characters loses its beginning (with "…"). */
void metric_text(const struct json *metric, size_t width, struct buf *out);

#endif
