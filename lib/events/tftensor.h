/* SPDX-License-Identifier: Apache-2.0 */
/* The one element of a small tensorflow.TensorProto (core/framework/tensor.proto). */
#ifndef DLRUN_EVENTS_TFTENSOR_H
#define DLRUN_EVENTS_TFTENSOR_H

#include <stdbool.h>

#include "events/protobuf.h"

/* false: it has not exactly one, or one that is no number. */
bool tftensor_scalar(struct protobuf tensor, double *ret);

#endif
