/* SPDX-License-Identifier: MIT */
/* max_backward over pixels. A vector holds channels of a position of the input. */
#include "core/simd.h"
#include "pool/kernels/below.h"
#include "pool/kernels/rounding.h"
#include "pool/kernels/sources.h"
#include "pool/window.h"

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "pool/scatter.h"
#endif

/* `total` to channels c to c + LANES of the output, zeros to the channels between. */
OSW_INLINE void LOCAL(store_step)(ELEMENT *to, int64_t c, vf32 total, int64_t step)
{
    ELEMENT *p = to + c * step;
    vf32 a, b;
    if (step == 1) {
        LOCAL(store)(p, total);
        return;
    }
    zip_f32(total, (vf32){0}, &a, &b);
    if (step == 2) {
        LOCAL(store)(p, a);
        LOCAL(store)(p + LANES, b);
        return;
    }
    vf32 quarter[4];
    zip_f32(a, (vf32){0}, &quarter[0], &quarter[1]);
    zip_f32(b, (vf32){0}, &quarter[2], &quarter[3]);
    for (int i = 0; i < 4; i++)
        LOCAL(store)(p + LANES * i, quarter[i]);
}

/* The last channels, if whole vectors would write past the last one. */
OSW_INLINE void LOCAL(store_last)(const osw_pool *pool, ELEMENT *to, int64_t c, vf32 total)
{
    float lanes[LANES];
    if (pool->channel_step == 1) {
        LOCAL(store)(to + c, total);
        return;
    }
    store_f32(lanes, total);
    for (int64_t i = 0; i < LANES; i++) {
        const int64_t first = (c + i) * pool->channel_step;
        const int64_t end = osw_min(first + pool->channel_step, pool->input_channels);
        to[first] = STORE(lanes[i]);
        for (int64_t j = first + 1; j < end; j++)
            to[j] = 0;
    }
}

/* The gradient of a vector of channels of the output at one position of the input. */
OSW_INLINE vf32 LOCAL(sum_sources)(const osw_sources *sources, int64_t c)
{
    vf32 total = (vf32){0};
    for (int k = 0; k < sources->count; k++) {
        const vi32 hit =
            load_u8_i32(sources->source[k].offsets + c) == set1_i32(sources->source[k].tap);
        const vf32 gradient = LOCAL(load)((const ELEMENT *)sources->source[k].gradient + c);
        total = LOCAL(round_moderate)(total + keep_f32(hit, gradient));
    }
    return total;
}

/* All channels of one position of the input, for any window. */
static void LOCAL(collect_position)(const osw_pool *pool, const osw_sources *sources, ELEMENT *to)
{
    const int64_t whole = pool->input_channels / pool->channel_step;
    int64_t c = 0;
    for (; c + LANES <= whole; c += LANES)
        LOCAL(store_step)(to, c, LOCAL(sum_sources)(sources, c), pool->channel_step);
    if (c == pool->channels)
        return;
    c = pool->channels - LANES;
    LOCAL(store_last)(pool, to, c, LOCAL(sum_sources)(sources, c));
}

/* Two columns of the input next to each other, the first of which is where the window of output o
 * begins: a vector of channels of each, from outputs o - before to o + after. */
OSW_INLINE void
LOCAL(sum_block)(const osw_block_rows *block, const osw_rows *rows, const vi32 *codes,
                          int64_t c, vf32 *totals, const int count, const int kernel,
                          const int stride)
{
    const int before = (kernel - 1) / stride, after = 1 / stride;
    totals[0] = totals[1] = (vf32){0};
    for (int r = 0; r < count; r++)
        for (int o = 0; o <= before + after; o++) {
            const vi32 offset =
                load_u8_i32(rows->taps[r] + block->offsets_at + o * block->offsets_step + c);
            const vf32 gradient = LOCAL(load)((const ELEMENT *)rows->at[r] + block->gradient_at +
                                       o * block->gradient_step + c);
            for (int j = 0; j < 2; j++) {
                const int tap = j + stride * (before - o);
                if (tap < 0 || tap >= kernel)
                    continue;
                const vi32 hit = offset == codes[r * kernel + tap];
                totals[j] = totals[j] + keep_f32(hit, gradient);
                if (r > 0 || tap + stride < kernel)
                    totals[j] = LOCAL(round_moderate)(totals[j]);
                OSW_KEEP(totals[j]);
            }
        }
}

/* All channels of all blocks of one row of the input. */
OSW_INLINE void
LOCAL(collect_blocks)(const osw_pool *pool, osw_block_rows *block, const osw_rows *rows,
                               ELEMENT *to, const int count, const int kernel, const int stride)
{
    const int64_t whole = pool->input_channels / pool->channel_step;
    const int64_t pitch = pool->grad_input.pixel_step, last = pool->channels - LANES;
    vi32 codes[12];
    vf32 totals[2];
    for (int r = 0; r < count; r++)
        for (int k = 0; k < kernel; k++)
            codes[r * kernel + k] = set1_i32(rows->tap[r] + k);
    for (int64_t b = 0; b < block->count; b++) {
        int64_t c = 0;
        for (; c + LANES <= whole; c += LANES) {
            LOCAL(sum_block)(block, rows, codes, c, totals, count, kernel, stride);
            LOCAL(store_step)(to, c, totals[0], pool->channel_step);
            LOCAL(store_step)(to + pitch, c, totals[1], pool->channel_step);
        }
        if (c != pool->channels) {
            LOCAL(sum_block)(block, rows, codes, last, totals, count, kernel, stride);
            LOCAL(store_last)(pool, to, last, totals[0]);
            LOCAL(store_last)(pool, to + pitch, last, totals[1]);
        }
        to += 2 * pitch;
        block->gradient_at += 2 / stride * block->gradient_step;
        block->offsets_at += 2 / stride * block->offsets_step;
    }
}

OSW_INLINE void
LOCAL(collect_rows)(const osw_pool *pool, osw_block_rows *block, const osw_rows *rows,
                             ELEMENT *to, const int kernel, const int stride)
{
    if (rows->count == 1)
        LOCAL(collect_blocks)(pool, block, rows, to, 1, kernel, stride);
    else if (rows->count == 2)
        LOCAL(collect_blocks)(pool, block, rows, to, 2, kernel, stride);
    else if (rows->count == 3)
        LOCAL(collect_blocks)(pool, block, rows, to, 3, kernel, stride);
    else
        LOCAL(collect_blocks)(pool, block, rows, to, 4, kernel, stride);
}

/* The columns of a row that lie in whole blocks. Returns which these are. */
OSW_INLINE osw_range LOCAL(row_blocks)(const osw_pool *pool, const osw_rows *rows, ELEMENT *row)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    osw_block_rows block;
    if (rows->count < 1 || rows->count > 4 || !set_block_rows(&block, pool))
        return (osw_range){0, 0};
    ELEMENT *to = row + block.columns.first * pool->grad_input.pixel_step;
    if (dim->kernel == 2)
        LOCAL(collect_rows)(pool, &block, rows, to, 2, 2);
    else if (dim->stride == 1)
        LOCAL(collect_rows)(pool, &block, rows, to, 3, 1);
    else
        LOCAL(collect_rows)(pool, &block, rows, to, 3, 2);
    return block.columns;
}

static void LOCAL(collect_row)(const osw_pool *pool, const osw_row *row)
{
    osw_rows rows;
    osw_sources sources;
    osw_range range = {0, 0};
    const int64_t position = osw_input_position(pool, row->depth, row->height, 0);
    ELEMENT *to = OSW_POOL_AT(ELEMENT, &pool->grad_input, row->image, 0, position);
    set_output_rows(&rows, pool, row, sizeof(ELEMENT));
    const osw_range done = LOCAL(row_blocks)(pool, &rows, to);
    for (int64_t w = 0; w < pool->dims[WIDTH].input; w++) {
        if (w >= done.first && w < done.end)
            continue;
        set_sources(&sources, pool, &rows, w, &range, sizeof(ELEMENT));
        LOCAL(collect_position)(pool, &sources, to + w * pool->grad_input.pixel_step);
    }
}

/* Whether sums of the gradients of an image can be rounded in few steps. */
static bool LOCAL(is_moderate)(const osw_pool *pool, int64_t image)
{
    const osw_pool_tensor *t = &pool->grad_output;
    const ELEMENT *gradient = OSW_POOL_AT(const ELEMENT, t, image, 0, 0);
    const int64_t positions = osw_output_plane(pool);
    if (t->pixel_step == pool->channels)
        return LOCAL(all_moderate)(gradient, positions * pool->channels);
    for (int64_t i = 0; i < positions; i++)
        if (!LOCAL(all_moderate)(gradient + i * t->pixel_step, pool->channels))
            return false;
    return true;
}

static void KERNEL(max_backward_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (count_taps(pool) > FEW_TAPS && LOCAL(can_scatter)(pool)) {
        LOCAL(scatter_pixels)(pool, begin, end);
        return;
    }
    const int64_t rows = pool->dims[DEPTH].input * pool->dims[HEIGHT].input;
    for (int64_t unit = begin; unit < end;) {
        const int64_t last = osw_min(end, unit - unit % rows + rows);
        if (!fits_window(pool) || !LOCAL(is_moderate)(pool, unit / rows)) {
            below[ID_OF(max_backward_pixels)](pool, unit, last);
            unit = last;
        }
        for (; unit < last; unit++) {
            const osw_row row = osw_input_row(pool, 1, unit);
            LOCAL(collect_row)(pool, &row);
        }
    }
}
