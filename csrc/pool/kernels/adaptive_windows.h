/* SPDX-License-Identifier: MIT */
/* The windows of adaptive pools. */
#ifndef OSW_POOL_ADAPTIVE_WINDOWS_H
#define OSW_POOL_ADAPTIVE_WINDOWS_H

#include "pool/kernels/tile.h"
#include "pool/window.h"

static inline bool is_global(const osw_pool *pool)
{
    return osw_output_plane(pool) == 1;
}

/* Rows of the input that output rows of an adaptive pool read. */
static inline osw_range adaptive_rows(const osw_pool_dim *height, osw_range rows)
{
    return (osw_range){osw_adaptive(height, rows.first).first,
                       osw_adaptive(height, rows.end - 1).end};
}

/* Whether output rows of an adaptive pool, and what they read, fit a tile. */
static inline bool adaptive_rows_fit(const osw_pool *pool, osw_range rows)
{
    const osw_range read = adaptive_rows(&pool->dims[HEIGHT], rows);
    return (read.end - read.first) * pool->dims[WIDTH].input <= TILE &&
           (rows.end - rows.first) * pool->dims[WIDTH].output <= TILE;
}

/* Planes of which every output row fits a tile. */
static inline bool adaptive_fits(const osw_pool *pool)
{
    bool fits = pool->dims[DEPTH].input == 1 && pool->dims[DEPTH].output == 1;
    for (int64_t h = 0; fits && h < pool->dims[HEIGHT].output; h++)
        fits = adaptive_rows_fit(pool, (osw_range){h, h + 1});
    return fits;
}

#endif
