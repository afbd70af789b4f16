/* SPDX-License-Identifier: MIT */
#include "pointwise/pointwise.h"

#define TIER   scalar
#define EACH   "pointwise/scalar.h"
#define FLOATS OSW_EACH_F32 + OSW_EACH_F64
#include "core/each_float.h"

#define FILL(operation, dtype)                                                                     \
    table[OSW_POINTWISE_##operation##_##dtype] = osw_pointwise_##operation##_##dtype##__scalar;

void osw_pointwise_fill__scalar(osw_pointwise_fn **table)
{
    OSW_POINTWISE_VARIANTS(FILL)
}
