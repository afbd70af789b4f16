/* SPDX-License-Identifier: MIT */
#include "conv/conv.h"

#include <string.h>

#define TIER   scalar
#define FLOATS OSW_EACH_F32 + OSW_EACH_F64
#define EACH   "conv/scalar.h"
#include "core/each_float.h"

#define FILL(operation, dtype)                                                                     \
    table[OSW_CONV_##operation##_##dtype] = osw_conv_##operation##_##dtype##__scalar;

void osw_conv_fill__scalar(osw_conv_fn **table)
{
    OSW_CONV_VARIANTS(FILL)
}
