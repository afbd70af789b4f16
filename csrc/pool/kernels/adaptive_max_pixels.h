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

/* `vectors` vectors of channels from c on, over the positions of one window, of
 * which nothing changes when one is taken twice. */
OSW_INLINE void
LOCAL(adaptive_channels)(const osw_pool *pool, const ELEMENT *x, const osw_range *window,
                                  int64_t c, ELEMENT *y, int32_t *index, const int vectors)
{
    osw_best best[4];
    const int64_t start =
        osw_input_position(pool, window[DEPTH].first, window[HEIGHT].first, window[WIDTH].first);
    for (int v = 0; v < vectors; v++) {
        best[v].value = LOCAL(load)(x + start * pool->input.pixel_step + c + v * LANES);
        best[v].tap = set1_i32((int32_t)start);
    }
    for (int64_t d = window[DEPTH].first; d < window[DEPTH].end; d++)
        for (int64_t h = window[HEIGHT].first; h < window[HEIGHT].end; h++)
            for (int64_t w = window[WIDTH].first; w < window[WIDTH].end; w++) {
                const int64_t position = osw_input_position(pool, d, h, w);
                const ELEMENT *at = x + position * pool->input.pixel_step + c;
                const vi32 tap = set1_i32((int32_t)position);
                for (int v = 0; v < vectors; v++)
                    take(&best[v], LOCAL(load)(at + v * LANES), tap, true);
            }
    for (int v = 0; v < vectors; v++) {
        LOCAL(store)(y + c + v * LANES, best[v].value);
        if (index)
            store_i32(index + c + v * LANES, best[v].tap);
    }
}

/* Channels [first, last) of image n, at least LANES, for outputs of any size. */
static void LOCAL(adaptive_block)(const osw_pool *pool, int64_t n, int64_t first, int64_t last)
{
    const osw_pool_dim *dims = pool->dims;
    const ELEMENT *x = (const ELEMENT *)pool->input.base + osw_place(&pool->input, n, first, 0);
    const int64_t channels = last - first;
    for (int64_t p = 0; p < osw_output_plane(pool); p++) {
        const osw_row row =
            osw_row_of(p / dims[WIDTH].output, 1, dims[DEPTH].output, dims[HEIGHT].output);
        const osw_range window[] = {osw_adaptive(&dims[DEPTH], row.depth),
                                    osw_adaptive(&dims[HEIGHT], row.height),
                                    osw_adaptive(&dims[WIDTH], p % dims[WIDTH].output)};
        ELEMENT *y = (ELEMENT *)pool->output.base + osw_place(&pool->output, n, first, p);
        int32_t *index = NULL;
        if (pool->offsets.base)
            index = (int32_t *)pool->offsets.base + osw_place(&pool->offsets, n, first, p);
        int64_t c = 0;
        for (; c + 4 * LANES <= channels; c += 4 * LANES)
            LOCAL(adaptive_channels)(pool, x, window, c, y, index, 4);
        for (; c < channels; c += LANES)
            LOCAL(adaptive_channels)(pool, x, window, osw_min(c, channels - LANES), y, index, 1);
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
