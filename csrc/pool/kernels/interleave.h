/* SPDX-License-Identifier: MIT */
/* LANES planes side by side and back. */
#include "core/simd.h"
#include "pool/kernels/tile.h"
#include "pool/window.h"

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* `count` neighbouring elements of LANES planes, side by side. */
static void LOCAL(interleave)(const ELEMENT *const *planes, int64_t count, float *to)
{
    for (int64_t i = 0; count >= LANES && i < count; i += LANES) {
        const int64_t at = osw_min(i, count - LANES);
        vf32 v[LANES];
        for (int plane = 0; plane < LANES; plane++)
            v[plane] = LOCAL(load)(planes[plane] + at);
        transpose_f32(v);
        for (int position = 0; position < LANES; position++)
            store_f32(to + (at + position) * LANES, v[position]);
    }
    for (int64_t i = 0; count < LANES && i < count; i++)
        for (int plane = 0; plane < LANES; plane++)
            to[i * LANES + plane] = LOAD(planes[plane][i]);
}

/* The same back, values of the dtype. */
static void LOCAL(separate)(const float *from, int64_t count, ELEMENT *const *planes)
{
    for (int64_t i = 0; count >= LANES && i < count; i += LANES) {
        const int64_t at = osw_min(i, count - LANES);
        vf32 v[LANES];
        for (int position = 0; position < LANES; position++)
            v[position] = load_f32(from + (at + position) * LANES);
        transpose_f32(v);
        for (int plane = 0; plane < LANES; plane++)
            LOCAL(store)(planes[plane] + at, v[plane]);
    }
    for (int64_t i = 0; count < LANES && i < count; i++)
        for (int plane = 0; plane < LANES; plane++)
            planes[plane][i] = STORE(from[i * LANES + plane]);
}

/* The first elements of LANES planes, counted through image, channel, of which the last may stand
 * for several. */
OSW_INLINE void
LOCAL(planes_of)(const osw_pool_tensor *t, int64_t channels, int64_t step, int64_t plane,
                          int64_t count, ELEMENT **at)
{
    for (int64_t i = 0; i < LANES; i++) {
        const int64_t number = plane + osw_min(i, count - 1);
        at[i] = OSW_POOL_AT(ELEMENT, t, number / channels, number % channels * step, 0);
    }
}

OSW_INLINE void LOCAL(move_planes)(ELEMENT *const *planes, int64_t by, ELEMENT **moved)
{
    for (int i = 0; i < LANES; i++)
        moved[i] = planes[i] + by;
}
