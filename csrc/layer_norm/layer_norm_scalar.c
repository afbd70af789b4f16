/* SPDX-License-Identifier: MIT */
#include "core/half.h"
#include "layer_norm/layer_norm.h"

#include <math.h>
#include <stddef.h>

#define TIER   scalar
#define EACH   "layer_norm/scalar_rows.inc"
#define FLOATS OSW_EACH_F32 + OSW_EACH_F64 + OSW_EACH_BF16 + OSW_EACH_F16
#include "core/each_float.h"

#define FILL(operation, dtype)                                                                     \
    table[OSW_LAYER_NORM_##operation##_##dtype] = osw_layer_norm_##operation##_##dtype##__scalar;

void osw_layer_norm_fill__scalar(osw_layer_norm_fn **table)
{
    OSW_LAYER_NORM_VARIANTS(FILL)
}
