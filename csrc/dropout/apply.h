/* SPDX-License-Identifier: MIT */
/* What a mask keeps, times the scale; included once per dtype. */
#include "core/simd.h"
#include "dropout/below.h"
#include "dropout/dropout.h"

#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

static void KERNEL(apply_mask)(const void *input, const uint8_t *mask, double scale, void *output,
                       int64_t begin, int64_t end)
{
    const ELEMENT *x = input;
    ELEMENT *y = output;
    const vf32 factor = set1_f32((float)scale);
    int64_t i = begin;
    for (; i + STEP <= end; i += STEP) {
        const uint32_t bits = mask_bits(mask, i);
        OSW_UNROLL
        for (int at = 0; at < STEP; at += LANES) {
            const vf32 kept = keep_f32(lanes_of_bits_i32(bits >> at), factor);
            /* A NaN among products of bfloat16 numbers has an empty lower half. */
            LOCAL(store_number)(
                y + i + at, LOCAL(load)(x + i + at) * kept);
        }
    }
    if (i < end)
        below.apply[OSW_JOIN(DTYPE_, SUFFIX)](input, mask, scale, output, i, end);
}
