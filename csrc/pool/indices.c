/* SPDX-License-Identifier: MIT */
#include "pool/indices.h"

#include "pool/window.h"

/* From the first tap of a window to this one, which may lie far behind the input. */
static int64_t distance_of(const osw_pool *pool, int64_t tap)
{
    const osw_pool_dim *dims = pool->dims;
    const osw_row row = osw_row_of(tap, 1, dims[HEIGHT].kernel, dims[WIDTH].kernel);
    return osw_input_position(pool, row.image * dims[DEPTH].dilation,
                              row.depth * dims[HEIGHT].dilation, row.height * dims[WIDTH].dilation);
}

void osw_pool_distances(const osw_pool *pool, int64_t *distance, int64_t count)
{
    for (int64_t tap = 0; tap < count; tap++)
        distance[tap] = distance_of(pool, tap);
}

/* First tap of a window as a position, which may lie before the input. */
static int64_t window_start(const osw_pool *pool, const osw_row *row, int64_t w)
{
    const osw_pool_dim *dims = pool->dims;
    return osw_input_position(pool, osw_taps(&dims[DEPTH], row->depth).start,
                              osw_taps(&dims[HEIGHT], row->height).start,
                              osw_taps(&dims[WIDTH], w).start);
}

static int64_t tap_at(const osw_pool *pool, int64_t at)
{
    return pool->wide ? ((const int32_t *)pool->offsets.base)[at]
                      : ((const uint8_t *)pool->offsets.base)[at];
}

static void write_row(const osw_pool_indices *work, const osw_row *row, int64_t w, int64_t channels)
{
    const osw_pool *pool = work->pool;
    const osw_pool_dim *dims = pool->dims;
    const int64_t taps = dims[DEPTH].kernel * dims[HEIGHT].kernel * dims[WIDTH].kernel;
    const int64_t start = window_start(pool, row, w);
    const int64_t position = osw_output_position(pool, row->depth, row->height, w);
    const int64_t from = osw_place(&pool->offsets, row->image, row->channel, position);
    int64_t *to = OSW_POOL_AT(int64_t, &work->indices, row->image, row->channel, position);
    for (int64_t c = 0; c < channels; c++) {
        const int64_t tap = tap_at(pool, from + c);
        if (tap < 0 || tap >= taps)
            to[c] = -1;
        else
            to[c] = start + (work->distance ? work->distance[tap] : distance_of(pool, tap));
    }
}

void osw_pool_write_indices(const osw_pool_indices *work, int64_t begin, int64_t end)
{
    const osw_pool *pool = work->pool;
    const int64_t counted = work->pixels ? 1 : pool->channels;
    const int64_t channels = work->pixels ? pool->channels : 1;
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_row row = osw_output_row(pool, counted, unit);
        for (int64_t w = 0; w < pool->dims[WIDTH].output; w++)
            write_row(work, &row, w, channels);
    }
}
