/* SPDX-License-Identifier: MIT */
/* Planes read LANES at a time, side by side, so that a vector holds one position of each and no row
 * is too short for it. */
#ifndef OSW_POOL_TILE_H
#define OSW_POOL_TILE_H

#include "core/simd.h"
#include "pool/window.h"

/* Positions of a plane that are worked on together: of eight planes they take 32 KiB. */
enum { TILE = 1024 };

/* The tap of `count` positions of LANES planes, as integers of each plane. */
OSW_INLINE void separate_taps(const int32_t *from, int64_t count, int32_t *const *planes)
{
    for (int64_t i = 0; count >= LANES && i < count; i += LANES) {
        const int64_t at = osw_min(i, count - LANES);
        vf32 v[LANES];
        for (int position = 0; position < LANES; position++)
            v[position] = (vf32)load_i32(from + (at + position) * LANES);
        transpose_f32(v);
        for (int plane = 0; plane < LANES; plane++)
            store_i32(planes[plane] + at, (vi32)v[plane]);
    }
    for (int64_t i = 0; count < LANES && i < count; i++)
        for (int plane = 0; plane < LANES; plane++)
            planes[plane][i] = from[i * LANES + plane];
}

#endif
