/* SPDX-License-Identifier: MIT */
/* avg over planes, LANES planes at a time. */
#include "core/scratch.h"
#include "core/simd.h"
#include "pool/kernels/avg_windows.h"
#include "pool/kernels/below.h"
#include "pool/kernels/tile.h"
#include "pool/window.h"

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "pool/kernels/interleave.h"
#endif

/* One row of averages; `tile` begins with row `top` of the input. */
OSW_INLINE void
LOCAL(avg_row_of_tile)(const osw_pool *pool, int64_t d, int64_t h, const float *tile,
                                int64_t top, float *to)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    const osw_range rows = rows_read(height, (osw_range){h, h + 1});
    for (int64_t w = 0; w < width->output; w++, to += LANES) {
        const osw_range columns = inputs_of(width, w);
        vf32 sum = (vf32){0};
        for (int64_t row = rows.first; row < rows.end; row++) {
            const float *x = tile + ((row - top) * width->input + columns.first) * LANES;
            for (int64_t i = columns.first; i < columns.end; i++, x += LANES)
                sum = sum + load_f32(x);
        }
        const float divisor = (float)osw_avg_divisor(pool, d, h, w);
        store_f32(to, LOCAL(round)(sum / set1_f32(divisor)));
    }
}

/* Rows [rows.first, rows.end) of slice d of LANES outputs, which fit a tile. */
static void LOCAL(avg_tile)(const osw_pool *pool, int64_t d, osw_range rows, ELEMENT *const *x,
                     ELEMENT *const *y)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    const osw_range read = rows_read(height, rows);
    float *const tile = osw_scratch_outer(2 * LANES * TILE * sizeof(float));
    float *const made = tile + LANES * TILE;
    ELEMENT *from[LANES], *to[LANES];
    LOCAL(
        move_planes)(x, osw_input_position(pool, d * pool->dims[DEPTH].stride, read.first, 0), from);
    LOCAL(interleave)((const ELEMENT *const *)from, (read.end - read.first) * width->input, tile);
    for (int64_t h = rows.first; h < rows.end; h++)
        LOCAL(avg_row_of_tile)(pool, d, h, tile, read.first,
                        made + (h - rows.first) * width->output * LANES);
    LOCAL(move_planes)(y, osw_output_position(pool, d, rows.first, 0), to);
    LOCAL(separate)(made, (rows.end - rows.first) * width->output, to);
}

static void KERNEL(avg_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (!fits_tile(pool)) {
        below[ID_OF(avg_planes)](pool, begin, end);
        return;
    }
    const int64_t height = pool->dims[HEIGHT].output, rows = pool->dims[DEPTH].output * height;
    const int64_t most = tile_outputs(pool);
    for (int64_t unit = begin; unit < end;) {
        osw_range range;
        const int64_t count = next_planes(unit, end, rows, LANES, &range);
        ELEMENT *x[LANES], *y[LANES];
        LOCAL(planes_of)(&pool->input, pool->channels, pool->channel_step, unit / rows, count, x);
        LOCAL(planes_of)(&pool->output, pool->channels, 1, unit / rows, count, y);
        for (int64_t row = range.first; row < range.end;) {
            const int64_t d = row / height, h = row % height;
            const int64_t next = osw_min(osw_min(h + most, height), h + range.end - row);
            LOCAL(avg_tile)(pool, d, (osw_range){h, next}, x, y);
            row += next - h;
        }
        unit += count * (range.end - range.first);
    }
}
