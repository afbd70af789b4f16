/* SPDX-License-Identifier: MIT */
/* All kernels of a tier, and the function that puts them into the table; double is left to the tier
 * below. */
#include "core/simd.h"
#include "layer_norm/layer_norm.h"

#define FLOATS OSW_EACH_F32 + OSW_EACH_BF16 + OSW_EACH_F16
#define EACH   "layer_norm/rows.h"
#include "core/each_float.h"

#define FILL(operation, dtype)                                                                     \
    table[OSW_LAYER_NORM_##operation##_##dtype] = TIERED(osw_layer_norm_##operation##_##dtype);

#define FILL_DTYPE(dtype)                                                                          \
    FILL(forward, dtype)                                                                           \
    FILL(backward, dtype)

void TIERED(osw_layer_norm_fill)(osw_layer_norm_fn **table)
{
    FILL_DTYPE(f32)
    FILL_DTYPE(bf16)
    FILL_DTYPE(f16)
}
