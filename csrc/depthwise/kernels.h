/* SPDX-License-Identifier: MIT */
/* All kernels of a tier, and the function that puts them into the table. */
#include "core/simd.h"
#include "depthwise/below.h"
#include "depthwise/depthwise.h"

#define FLOATS OSW_EACH_F32 + OSW_EACH_F64 + OSW_EACH_BF16 + OSW_EACH_F16
#define EACH   "depthwise/rows.h"
#include "core/each_float.h"

#define FILL(operation, dtype)                                                                     \
    below[OSW_DEPTHWISE_##operation##_##dtype] = table[OSW_DEPTHWISE_##operation##_##dtype];       \
    table[OSW_DEPTHWISE_##operation##_##dtype] = TIERED(osw_depthwise_##operation##_##dtype);

void TIERED(osw_depthwise_fill)(osw_depthwise_fn **table)
{
    OSW_DEPTHWISE_VARIANTS(FILL)
}
