/* SPDX-License-Identifier: MIT */
#include "linear/linear.h"

#define TIER   scalar
#define EACH   "linear/scalar.h"
#define FLOATS OSW_EACH_F32 + OSW_EACH_F64 + OSW_EACH_BF16 + OSW_EACH_F16
#include "core/each_float.h"

#define FILL(operation, dtype)                                                                     \
    table[OSW_LINEAR_##operation##_##dtype] = osw_linear_##operation##_##dtype##__scalar;

void osw_linear_fill__scalar(osw_linear_fn **table)
{
    OSW_LINEAR_VARIANTS(FILL)
}
