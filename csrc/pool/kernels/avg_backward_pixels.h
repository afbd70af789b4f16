/* SPDX-License-Identifier: MIT */
/* avg_backward over pixels. Neighbouring positions of the input that the same windows read have the
 * same gradient, which is computed once and copied. */
#include "core/scratch.h"
#include "core/simd.h"
#include "pool/kernels/avg_windows.h"
#include "pool/kernels/below.h"
#include "pool/kernels/rounding.h"
#include "pool/window.h"

#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* Output row (d, h) in its slot, filled if it is not yet there. */
static const float *LOCAL(ring_row)(osw_ring *ring, const osw_pool *pool, int64_t d, int64_t h)
{
    const int64_t width = pool->dims[WIDTH].output, channels = ring->channels;
    const int64_t slot = d % ring->slots_depth * ring->slots_height + h % ring->slots_height;
    const int64_t number = d * pool->dims[HEIGHT].output + h;
    float *share = ring->share + slot * width * channels;
    if (ring->tag[slot] == number)
        return share;
    ring->tag[slot] = number;
    const ELEMENT *gradient = OSW_POOL_AT(const ELEMENT, &pool->grad_output, ring->image,
                                          ring->first, osw_output_position(pool, d, h, 0));
    for (int64_t w = 0; w < width; w++, gradient += pool->grad_output.pixel_step) {
        const float count = LOAD(STORE((float)osw_avg_divisor(pool, d, h, w)));
        for (int64_t i = 0; i < channels; i += LANES) {
            const int64_t c = osw_min(i, channels - LANES);
            const vf32 quotient = LOCAL(load)(gradient + c) / set1_f32(count);
            store_f32(share + w * channels + c, LOCAL(round)(quotient));
        }
    }
    return share;
}

/* Sums of `vectors` vectors of channels over the outputs of `columns` in all slots. */
OSW_INLINE void
LOCAL(sum_shares)(const osw_slots *slots, osw_range columns, int64_t channels, int64_t c,
                           ELEMENT *to, const int vectors)
{
    vf32 total[4];
    for (int v = 0; v < vectors; v++)
        total[v] = (vf32){0};
    for (int slot = 0; slot < slots->count; slot++)
        for (int64_t w = columns.first; w < columns.end; w++)
            for (int v = 0; v < vectors; v++) {
                const float *share = slots->at[slot] + w * channels + c + v * LANES;
                total[v] = LOCAL(round_sum)(total[v] + load_f32(share));
            }
    for (int v = 0; v < vectors; v++)
        LOCAL(store)(to + c + v * LANES, total[v]);
}

/* The block's channels of one position; what lies between them is zero. */
OSW_INLINE void
LOCAL(share_position)(const osw_ring *ring, const osw_pool *pool, const osw_slots *slots,
                               osw_range columns, ELEMENT *to)
{
    const int64_t step = pool->channel_step, channels = ring->channels;
    ELEMENT dense[OSW_POOL_MAX_BLOCK], *made = step == 1 ? to : dense;
    int64_t c = 0;
    for (; c + 4 * LANES <= channels; c += 4 * LANES)
        LOCAL(sum_shares)(slots, columns, channels, c, made, 4);
    for (; c < channels; c += LANES)
        LOCAL(sum_shares)(slots, columns, channels, osw_min(c, channels - LANES), made, 1);
    if (step == 1)
        return;
    memset(to, 0, (size_t)ring_inputs(ring, pool) * sizeof(ELEMENT));
    for (c = 0; c < channels; c++)
        to[c * step] = dense[c];
}

/* The block's channels of one row of the input. */
static void
LOCAL(share_pixels)(osw_ring *ring, const osw_pool *pool, const osw_row *row, ELEMENT *to)
{
    const osw_pool_dim *width = &pool->dims[WIDTH];
    const osw_range depth = outputs_of(&pool->dims[DEPTH], row->depth);
    const osw_range height = outputs_of(&pool->dims[HEIGHT], row->height);
    const int64_t step = pool->grad_input.pixel_step;
    const size_t bytes = (size_t)ring_inputs(ring, pool) * sizeof(ELEMENT);
    osw_slots slots = {.count = 0};
    for (int64_t d = depth.first; d < depth.end; d++)
        for (int64_t h = height.first; h < height.end; h++)
            slots.at[slots.count++] = LOCAL(ring_row)(ring, pool, d, h);
    osw_range before = {-1, -1};
    for (int64_t w = 0; w < width->input; w++, to += step) {
        const osw_range columns = outputs_of(width, w);
        if (same_range(columns, before)) {
            memcpy(to, to - step, bytes);
            continue;
        }
        before = columns;
        LOCAL(share_position)(ring, pool, &slots, columns, to);
    }
}

/* Rows [begin, end) of one image, for a block of channels. */
static void LOCAL(share_image)(osw_ring *ring, const osw_pool *pool, int64_t begin, int64_t end)
{
    const bool whole = ring_inputs(ring, pool) == pool->grad_input.pixel_step;
    const int64_t length = pool->dims[WIDTH].input * pool->grad_input.pixel_step;
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_row row = osw_input_row(pool, 1, unit);
        ELEMENT *to =
            OSW_POOL_AT(ELEMENT, &pool->grad_input, row.image, ring->first * pool->channel_step,
                        osw_input_position(pool, row.depth, row.height, 0));
        if (whole && unit > begin && as_row_before(pool, &row))
            memcpy(to, to - length, (size_t)length * sizeof(ELEMENT));
        else
            LOCAL(share_pixels)(ring, pool, &row, to);
    }
}

static void KERNEL(avg_backward_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (!fits_ring(pool)) {
        below[ID_OF(avg_backward_pixels)](pool, begin, end);
        return;
    }
    const int64_t rows = pool->dims[DEPTH].input * pool->dims[HEIGHT].input;
    const int64_t block = ring_channels(pool);
    osw_ring *const ring = osw_scratch_outer(sizeof *ring);
    for (int64_t unit = begin; unit < end;) {
        const int64_t next = osw_min(end, (unit / rows + 1) * rows);
        for (int64_t i = 0; i < pool->channels; i += block) {
            const int64_t count = osw_min(osw_max(LANES, pool->channels - i), block);
            begin_ring(ring, pool, unit / rows, osw_min(i, pool->channels - count), count);
            LOCAL(share_image)(ring, pool, unit, next);
        }
        unit = next;
    }
}
