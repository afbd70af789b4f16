/* SPDX-License-Identifier: MIT */
#include "depthwise/depthwise.h"

#include <string.h>

#define TIER   scalar
#define FLOATS OSW_EACH_F32 + OSW_EACH_F64 + OSW_EACH_BF16 + OSW_EACH_F16
#define EACH   "depthwise/scalar.h"
#include "core/each_float.h"

#define FILL(operation, dtype)                                                                     \
    table[OSW_DEPTHWISE_##operation##_##dtype] = osw_depthwise_##operation##_##dtype##__scalar;

void osw_depthwise_fill__scalar(osw_depthwise_fn **table)
{
    OSW_DEPTHWISE_VARIANTS(FILL)
}
