/* The one element of a small tensorflow.TensorProto (core/framework/tensor.proto). */
#ifndef DLRUN_RUN_TFTENSOR_H
#define DLRUN_RUN_TFTENSOR_H

#include <stdbool.h>

#include "run/protobuf.h"

/* false: it has not exactly one, or one that is no number. */
bool tftensor_scalar(struct protobuf tensor, double *ret);

#endif
