/* SPDX-License-Identifier: MIT */
/* All kernels of a tier, and the function that puts them into the table; moves of 16 bits are left
 * to the tier below. */
#include "batch/batch.h"
#include "batch/below.h"
#include "batch/move.h"
#include "core/simd.h"

#define FLOATS OSW_EACH_F32 + OSW_EACH_BF16 + OSW_EACH_F16
#define EACH   "batch/normalize.h"
#include "core/each_float.h"

#include "batch/pairs.h"

#define FILL(operation, dtype)                                                                     \
    below[OSW_BATCH_##operation##_##dtype] = table[OSW_BATCH_##operation##_##dtype];               \
    table[OSW_BATCH_##operation##_##dtype] = TIERED(osw_##operation##_##dtype);

void TIERED(osw_batch_fill)(osw_batch_fn **table)
{
    OSW_BATCH_NORMALIZE(FILL, f32)
    OSW_BATCH_NORMALIZE(FILL, bf16)
    OSW_BATCH_NORMALIZE(FILL, f16)
    single_planes = table[OSW_BATCH_normalize_planes_u8_bf16];
    single_pixels = table[OSW_BATCH_normalize_pixels_u8_bf16];
    table[OSW_BATCH_normalize_planes_u8_bf16] = TIERED(osw_normalize_planes_u8_pairs);
    table[OSW_BATCH_normalize_pixels_u8_bf16] = TIERED(osw_normalize_pixels_u8_pairs);
    FILL(move_planes, x8)
    FILL(move_planes, x32)
    FILL(move_pixels, x8)
    FILL(stream_pixels, x8)
}
