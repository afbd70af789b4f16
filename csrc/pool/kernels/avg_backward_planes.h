/* SPDX-License-Identifier: MIT */
/* avg_backward over planes, LANES planes at a time. */
#include "core/scratch.h"
#include "core/simd.h"
#include "pool/kernels/avg_windows.h"
#include "pool/kernels/rounding.h"
#include "pool/kernels/tile.h"
#include "pool/window.h"

#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "pool/kernels/interleave.h"
#    include "pool/kernels/max_planes_strips.h"

#    include "pool/kernels/max_backward_planes_strips.h"

#    include "pool/kernels/avg_backward_planes_strips.h"
#endif

/* The gradients of LANES outputs over their divisors, in place. */
OSW_INLINE void LOCAL(share_tile)(const osw_pool *pool, int64_t d, osw_range rows, float *tile)
{
    for (int64_t h = rows.first; h < rows.end; h++)
        for (int64_t w = 0; w < pool->dims[WIDTH].output; w++, tile += LANES) {
            const float divisor = LOAD(STORE((float)osw_avg_divisor(pool, d, h, w)));
            const vf32 share = load_f32(tile) / set1_f32(divisor);
            store_f32(tile, LOCAL(round)(share));
        }
}

/* One row of the gradient of the input; `shares` begin with row `top` of the output. */
OSW_INLINE void
LOCAL(gather_row_of_tile)(const osw_pool *pool, osw_range rows, const osw_columns *columns,
                                   const float *shares, int64_t top, float *to)
{
    const int64_t inputs = pool->dims[WIDTH].input, outputs = pool->dims[WIDTH].output;
    vf32 total = (vf32){0};
    for (int64_t w = 0; w < inputs; w++, to += LANES) {
        if (!columns->same[w]) {
            const int64_t first = columns->first[w], end = columns->end[w];
            const float *share = shares + ((rows.first - top) * outputs + first) * LANES;
            total = (vf32){0};
            for (int64_t row = rows.first; row < rows.end; row++, share += outputs * LANES)
                for (int64_t i = 0; i < end - first; i++)
                    total = LOCAL(round_sum)(total + load_f32(share + i * LANES));
        }
        store_f32(to, total);
    }
}

/* Rows of slice d of the gradients of LANES inputs, which fit a tile; `y` those of the outputs. */
static void
LOCAL(gather_tile)(const osw_pool *pool, int64_t d, osw_range rows, const osw_columns *columns,
                        ELEMENT *const *y, ELEMENT *const *x)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    const osw_range read = rows_reading(height, rows);
    const int64_t od = depth_reading(&pool->dims[DEPTH], d);
    float *const shares = osw_scratch_outer(2 * LANES * TILE * sizeof(float));
    float *const made = shares + LANES * TILE;
    ELEMENT *from[LANES], *to[LANES];
    if (od >= 0 && read.first < read.end) {
        LOCAL(move_planes)(y, osw_output_position(pool, od, read.first, 0), from);
        LOCAL(
            interleave)((const ELEMENT *const *)from, (read.end - read.first) * width->output, shares);
        LOCAL(share_tile)(pool, od, read, shares);
        for (int64_t h = rows.first; h < rows.end; h++)
            LOCAL(gather_row_of_tile)(pool, outputs_of(height, h), columns, shares, read.first,
                               made + (h - rows.first) * width->input * LANES);
    } else {
        memset(made, 0, (size_t)((rows.end - rows.first) * width->input) * LANES * sizeof(float));
    }
    LOCAL(move_planes)(x, osw_input_position(pool, d, rows.first, 0), to);
    LOCAL(separate)(made, (rows.end - rows.first) * width->input, to);
}

/* The rows of the range of LANES inputs; `y` of the outputs. */
static void LOCAL(gather_tiles)(const osw_pool *pool, osw_range range, const osw_columns *columns,
                         ELEMENT *const *y, ELEMENT *const *x)
{
    const int64_t height = pool->dims[HEIGHT].input, most = tile_inputs(pool);
    for (int64_t row = range.first; row < range.end;) {
        const int64_t d = row / height, h = row % height;
        const int64_t next = osw_min(osw_min(h + most, height), h + range.end - row);
        LOCAL(gather_tile)(pool, d, (osw_range){h, next}, columns, y, x);
        row += next - h;
    }
}

/* Planes counted through image, input channel, whose `count` rows of the range are to be written;
 * those between the channels of the output are zero. */
static void
LOCAL(gather_planes)(const osw_pool *pool, int64_t plane, int64_t count, osw_range range,
                          const osw_columns *columns)
{
    const int64_t width = pool->dims[WIDTH].input;
    ELEMENT *x[LANES], *y[LANES];
    int found = 0;
    for (int64_t i = plane; i < plane + count; i++) {
        const int64_t n = i / pool->input_channels, c = i % pool->input_channels;
        ELEMENT *to = OSW_POOL_AT(ELEMENT, &pool->grad_input, n, c, 0);
        if (c % pool->channel_step != 0) {
            memset(to + range.first * width, 0,
                   (size_t)((range.end - range.first) * width) * sizeof(ELEMENT));
            continue;
        }
        y[found] = OSW_POOL_AT(ELEMENT, &pool->grad_output, n, c / pool->channel_step, 0);
        x[found++] = to;
        if (found == LANES) {
            LOCAL(gather_tiles)(pool, range, columns, y, x);
            found = 0;
        }
    }
    for (int i = found; found > 0 && i < LANES; i++) {
        x[i] = x[found - 1];
        y[i] = y[found - 1];
    }
    if (found > 0)
        LOCAL(gather_tiles)(pool, range, columns, y, x);
}

static void KERNEL(avg_backward_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (!fits_tile(pool)) {
        LOCAL(share_planes)(pool, begin, end);
        return;
    }
    const int64_t rows = pool->dims[DEPTH].input * pool->dims[HEIGHT].input;
    osw_columns *const columns = osw_scratch_inner(sizeof *columns);
    set_columns(columns, &pool->dims[WIDTH]);
    for (int64_t unit = begin; unit < end;) {
        osw_range range;
        const int64_t most = LANES * osw_min(pool->channel_step, pool->input_channels);
        const int64_t count = next_planes(unit, end, rows, most, &range);
        LOCAL(gather_planes)(pool, unit / rows, count, range, columns);
        unit += count * (range.end - range.first);
    }
}
