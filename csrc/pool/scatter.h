/* SPDX-License-Identifier: MIT */
/* max_backward over a whole plane of one dtype, the other way round: zeros first, then every output
 * adds its gradient where its offset says. Included with the macros of max.h. With fewer
 * outputs than inputs this takes fewer steps than collecting, as long as the plane stays in cache.
 */
#include "pool/indices.h"
#include "pool/window.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* Whether to scatter: overlapping windows, with uint8 offsets and no dilation (so that each has a
 * valid tap). */
static inline bool LOCAL(scatters)(const osw_pool *pool)
{
    bool overlap = false;
    for (int i = 0; i < OSW_POOL_DIMS; i++) {
        if (pool->dims[i].dilation != 1)
            return false;
        overlap = overlap || pool->dims[i].kernel > pool->dims[i].stride;
    }
    const int64_t plane = osw_input_plane(pool);
    return overlap && !pool->wide && 2 * osw_output_plane(pool) <= plane &&
           plane * (int64_t)sizeof(ELEMENT) <= SCATTER_BYTES;
}

/* Input channel `channel`; distance[tap] from the start of a window, beyond any plane for taps that
 * do not exist. */
static inline void LOCAL(scatter)(const osw_pool *pool, int64_t image, int64_t channel,
                           const int64_t *distance)
{
    const osw_pool_dim *dims = pool->dims;
    const uint64_t size = (uint64_t)osw_input_plane(pool);
    const int64_t from = channel / pool->channel_step;
    const ELEMENT *gradient =
        (const ELEMENT *)pool->grad_output.base + osw_place(&pool->grad_output, image, from, 0);
    const uint8_t *offsets =
        (const uint8_t *)pool->offsets.base + osw_place(&pool->offsets, image, from, 0);
    ELEMENT *plane =
        (ELEMENT *)pool->grad_input.base + osw_place(&pool->grad_input, image, channel, 0);
    memset(plane, 0, size * sizeof(ELEMENT));
    if (channel % pool->channel_step != 0)
        return;
    for (int64_t d = 0; d < dims[DEPTH].output; d++) {
        for (int64_t h = 0; h < dims[HEIGHT].output; h++) {
            int64_t start = osw_input_position(pool, d * dims[DEPTH].stride - dims[DEPTH].padding,
                                               h * dims[HEIGHT].stride - dims[HEIGHT].padding,
                                               -dims[WIDTH].padding);
            for (int64_t w = 0; w < dims[WIDTH].output; w++, start += dims[WIDTH].stride) {
                const uint64_t at = (uint64_t)(start + distance[*offsets++]);
                const VALUE value = LOAD(*gradient++);
                if (at < size)
                    plane[at] = STORE(LOAD(plane[at]) + value);
            }
        }
    }
}

/* Rows [begin, end) of the input: whole planes are scattered if that is faster, the rest goes to
 * `collect`. */
static inline void LOCAL(scatter_rows)(const osw_pool *pool, int64_t begin, int64_t end,
                                osw_pool_fn *collect)
{
    const int64_t rows = pool->dims[DEPTH].input * pool->dims[HEIGHT].input;
    const int64_t first = osw_ceil_div(begin, rows), last = end / rows;
    if (!LOCAL(scatters)(pool) || first >= last) {
        collect(pool, begin, end);
        return;
    }
    int64_t distance[UINT8_MAX + 1];
    for (int i = 0; i <= UINT8_MAX; i++)
        distance[i] = INT64_MIN / 2;
    osw_pool_distances(pool, distance,
                       pool->dims[DEPTH].kernel * pool->dims[HEIGHT].kernel *
                           pool->dims[WIDTH].kernel);
    collect(pool, begin, first * rows);
    for (int64_t plane = first; plane < last; plane++)
        LOCAL(scatter)(pool, plane / pool->input_channels, plane % pool->input_channels, distance);
    collect(pool, last * rows, end);
}
