/* SPDX-License-Identifier: MIT */
/* adaptive_max over pixels. */
#include "core/simd.h"
#include "pool/kernels/adaptive_windows.h"
#include "pool/kernels/below.h"
#include "pool/kernels/best.h"
#include "pool/window.h"

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "pool/kernels/amax_pixels.h"
#endif

/* `count` positions from `position` on, one after the other in a row, of all channels; of the last
 * vector, which overlaps, nothing changes when a position is taken twice. */
OSW_INLINE void LOCAL(take_positions)(const osw_pool *pool, osw_best *best, const ELEMENT *x,
                               int64_t channels, int64_t position, const int count)
{
    const int64_t step = pool->input.pixel_step;
    for (int64_t i = 0; i < channels; i += LANES) {
        const ELEMENT *at = x + position * step + osw_min(i, channels - LANES);
        osw_best one = best[i / LANES];
        for (int k = 0; k < count; k++)
            take(&one, LOCAL(load)(at + k * step), set1_i32((int32_t)(position + k)), true);
        best[i / LANES] = one;
    }
}

/* One window of `channels` channels, at least LANES. Several positions of short pixels are taken
 * together, which spares the state; long ones one after the other, as they lie in memory: Zen 4,
 * 256 channels, 1.5 times as fast in float32. In 16 bits the state of narrow vectors weighs more.
 */
OSW_INLINE void
LOCAL(adaptive_window)(const osw_pool *pool, const ELEMENT *x, const osw_range *window,
                                int64_t channels, ELEMENT *y, int32_t *index)
{
    enum { SHORT = 256 / (int)sizeof(ELEMENT), TOGETHER = 4 };
    const bool together =
        pool->input.pixel_step <= SHORT || (sizeof(ELEMENT) == 2 && VEC_BYTES < 64);
    osw_best best[OSW_POOL_MAX_BLOCK / LANES];
    const int64_t start =
        osw_input_position(pool, window[DEPTH].first, window[HEIGHT].first, window[WIDTH].first);
    for (int64_t i = 0; i < channels; i += LANES) {
        const int64_t c = osw_min(i, channels - LANES);
        best[i / LANES] =
            (osw_best){
                LOCAL(load)(x + start * pool->input.pixel_step + c), set1_i32((int32_t)start)};
    }
    for (int64_t d = window[DEPTH].first; d < window[DEPTH].end; d++)
        for (int64_t h = window[HEIGHT].first; h < window[HEIGHT].end; h++) {
            int64_t p = osw_input_position(pool, d, h, window[WIDTH].first);
            const int64_t end = p + window[WIDTH].end - window[WIDTH].first;
            for (; together && p + TOGETHER <= end; p += TOGETHER)
                LOCAL(take_positions)(pool, best, x, channels, p, TOGETHER);
            for (; p < end; p++)
                LOCAL(take_positions)(pool, best, x, channels, p, 1);
        }
    for (int64_t i = 0; i < channels; i += LANES) {
        const int64_t c = osw_min(i, channels - LANES);
        LOCAL(store)(y + c, best[i / LANES].value);
        if (index)
            store_i32(index + c, best[i / LANES].tap);
    }
}

/* Channels [first, last) of image n, at least LANES, for outputs of any size. */
static void LOCAL(adaptive_block)(const osw_pool *pool, int64_t n, int64_t first, int64_t last)
{
    const osw_pool_dim *dims = pool->dims;
    const ELEMENT *x = OSW_POOL_AT(const ELEMENT, &pool->input, n, first, 0);
    for (int64_t p = 0; p < osw_output_plane(pool); p++) {
        const osw_row row =
            osw_row_of(p / dims[WIDTH].output, 1, dims[DEPTH].output, dims[HEIGHT].output);
        const osw_range window[] = {osw_adaptive(&dims[DEPTH], row.depth),
                                    osw_adaptive(&dims[HEIGHT], row.height),
                                    osw_adaptive(&dims[WIDTH], p % dims[WIDTH].output)};
        ELEMENT *y = OSW_POOL_AT(ELEMENT, &pool->output, n, first, p);
        int32_t *index = NULL;
        if (pool->offsets.base)
            index = OSW_POOL_AT(int32_t, &pool->offsets, n, first, p);
        LOCAL(adaptive_window)(pool, x, window, last - first, y, index);
    }
}

static void KERNEL(adaptive_max_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_block block = osw_block_of(pool, unit);
        if (is_global(pool) && (pool->offsets.base ? LOCAL(max_of_pixels)(pool, &block, FIRST)
                                                   : LOCAL(max_of_pixels)(pool, &block, VALUES)))
            continue;
        if (block.end - block.first >= LANES)
            LOCAL(adaptive_block)(pool, block.image, block.first, block.end);
        else
            below[ID_OF(adaptive_max_pixels)](pool, unit, unit + 1);
    }
}
