/* SPDX-License-Identifier: MIT */
/* adaptive_max over planes, LANES planes at a time. */
#include "core/scratch.h"
#include "core/simd.h"
#include "pool/kernels/adaptive_windows.h"
#include "pool/kernels/below.h"
#include "pool/kernels/best.h"
#include "pool/kernels/tile.h"
#include "pool/window.h"

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "pool/kernels/amax_planes.h"
#    include "pool/kernels/interleave.h"
#endif

/* One row of maxima; `tile` begins with row `top` of the input. */
OSW_INLINE void
LOCAL(adaptive_row_of_tile)(const osw_pool *pool, int64_t h, const float *tile,
                                     int64_t top, float *to, int32_t *taps, const bool with_taps)
{
    const osw_pool_dim *width = &pool->dims[WIDTH];
    const osw_range rows = osw_adaptive(&pool->dims[HEIGHT], h);
    for (int64_t w = 0; w < width->output; w++) {
        const osw_range columns = osw_adaptive(width, w);
        const int64_t first = rows.first * width->input + columns.first;
        osw_best best = {load_f32(tile + (first - top * width->input) * LANES),
                         set1_i32((int32_t)first)};
        for (int64_t row = rows.first; row < rows.end; row++)
            for (int64_t i = columns.first; i < columns.end; i++) {
                const int64_t position = row * width->input + i;
                const float *x = tile + (position - top * width->input) * LANES;
                take(&best, load_f32(x), set1_i32((int32_t)position), with_taps);
            }
        store_f32(to + w * LANES, best.value);
        if (with_taps)
            store_i32(taps + w * LANES, best.tap);
    }
}

/* LANES planes, whose positions go to `index` if wanted. */
OSW_INLINE void LOCAL(adaptive_tiles)(const osw_pool *pool, ELEMENT *const *x, ELEMENT *const *y,
                               int32_t *const *index, const bool with_taps)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    struct {
        float tile[LANES * TILE], made[LANES * TILE];
        int32_t taps[LANES * TILE];
    } *const room = osw_scratch_outer(sizeof *room);
    float *const tile = room->tile, *const made = room->made;
    int32_t *const taps = room->taps, *taps_to[LANES];
    ELEMENT *from[LANES], *to[LANES];
    for (osw_range rows = {0, 0}; rows.first < height->output; rows.first = rows.end) {
        rows.end = rows.first + 1;
        while (rows.end < height->output &&
               adaptive_rows_fit(pool, (osw_range){rows.first, rows.end + 1}))
            rows.end++;
        const osw_range read = adaptive_rows(height, rows);
        const int64_t count = (rows.end - rows.first) * width->output;
        LOCAL(move_planes)(x, read.first * width->input, from);
        LOCAL(
            interleave)((const ELEMENT *const *)from, (read.end - read.first) * width->input, tile);
        for (int64_t h = rows.first; h < rows.end; h++) {
            const int64_t at = (h - rows.first) * width->output * LANES;
            LOCAL(adaptive_row_of_tile)(pool, h, tile, read.first, made + at, taps + at, with_taps);
        }
        LOCAL(move_planes)(y, rows.first * width->output, to);
        LOCAL(separate)(made, count, to);
        for (int i = 0; with_taps && i < LANES; i++)
            taps_to[i] = index[i] + rows.first * width->output;
        if (with_taps)
            separate_taps(taps, count, taps_to);
    }
}

static void LOCAL(adaptive_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    for (int64_t unit = begin; unit < end; unit += LANES) {
        const int64_t count = osw_min(LANES, end - unit);
        ELEMENT *x[LANES], *y[LANES];
        int32_t *index[LANES];
        LOCAL(planes_of)(&pool->input, pool->channels, 1, unit, count, x);
        LOCAL(planes_of)(&pool->output, pool->channels, 1, unit, count, y);
        if (!pool->offsets.base) {
            LOCAL(adaptive_tiles)(pool, x, y, NULL, false);
            continue;
        }
        for (int64_t i = 0; i < LANES; i++) {
            const int64_t plane = unit + osw_min(i, count - 1);
            index[i] = OSW_POOL_AT(int32_t, &pool->offsets, plane / pool->channels,
                                   plane % pool->channels, 0);
        }
        LOCAL(adaptive_tiles)(pool, x, y, index, true);
    }
}

static void KERNEL(adaptive_max_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    osw_pool_fn *exactly = below[ID_OF(adaptive_max_planes)];
    if (is_global(pool))
        LOCAL(max_of_planes)(pool, begin, end, exactly, false);
    else if (adaptive_fits(pool))
        LOCAL(adaptive_planes)(pool, begin, end);
    else
        exactly(pool, begin, end);
}
