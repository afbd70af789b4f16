/* SPDX-License-Identifier: MIT */
/* avg_backward of planes with deep windows or long rows. Neighbouring positions of the input that
 * the same windows read have the same gradient, which is computed once and copied. */
#include "core/simd.h"
#include "pool/kernels/avg_windows.h"
#include "pool/kernels/below.h"
#include "pool/kernels/margin.h"
#include "pool/kernels/rounding.h"
#include "pool/window.h"

#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "pool/kernels/max_planes_strips.h"

#    include "pool/kernels/max_backward_planes_strips.h"
#endif

/* What output w of row (d, h) gives to each of its taps. */
OSW_INLINE float
LOCAL(share)(const osw_pool *pool, ELEMENT gradient, int64_t d, int64_t h, int64_t w)
{
    const float divisor = (float)osw_avg_divisor(pool, d, h, w);
    return LOAD(STORE(LOAD(gradient) / LOAD(STORE(divisor))));
}

/* Output row (d, h) of the channel over its divisors, in its slot, filled if it is not yet there.
 */
OSW_INLINE const osw_margin_row *LOCAL(share_row)(osw_margin *margin, const osw_pool *pool,
                                           const osw_row *row, int64_t d, int64_t h)
{
    const int64_t number = d * pool->dims[HEIGHT].output + h, slot = margin_slot(margin, d, h);
    osw_margin_row *to = &margin->rows[slot];
    if (margin->tag[slot] == number)
        return to;
    margin->tag[slot] = number;
    const osw_range even = even_outputs(pool, margin->from, margin->to);
    const ELEMENT *gradient = OSW_POOL_AT(const ELEMENT, &pool->grad_output, row->image,
                                          row->channel, osw_output_position(pool, d, h, 0));
    float *share = to->gradient - margin->first;
    int64_t w = margin->from;
    for (; w < even.first; w++)
        share[w] = LOCAL(share)(pool, gradient[w], d, h, w);
    if (w + LANES <= even.end) {
        const float count = LOAD(STORE((float)osw_avg_divisor(pool, d, h, w)));
        for (; w + LANES <= even.end; w += LANES)
            store_f32(share + w, LOCAL(round)(LOCAL(load)(gradient + w) / set1_f32(count)));
    }
    for (; w < margin->to; w++)
        share[w] = LOCAL(share)(pool, gradient[w], d, h, w);
    return to;
}

/* sums[i] of the columns of one remainder. */
static void LOCAL(add_columns)(const osw_met *met, const osw_remainder *remainder, float *sums,
                        int64_t columns)
{
    for (int64_t i = 0; i < columns; i += LANES) {
        vf32 total = (vf32){0};
        for (int r = 0; r < met->count; r++)
            for (int k = remainder->count - 1; k >= 0; k--) {
                const float *share = met->row[r]->gradient + remainder->at[k] + i;
                total = LOCAL(round_sum)(total + load_f32(share));
            }
        store_f32(sums + i, total);
    }
}

/* One row of the strip; the same as the row above if the same outputs read both. */
static void
LOCAL(share_line)(osw_margin *margin, const osw_pool *pool, const osw_row *row, ELEMENT *to,
                       int64_t above)
{
    osw_met met = {.count = 0};
    if (meet_outputs(margin, pool, row) && above > 0) {
        memcpy(to, to - pool->dims[WIDTH].input, (size_t)margin->columns * sizeof(ELEMENT));
        return;
    }
    for (int64_t d = margin->depth.first; d < margin->depth.end; d++)
        for (int64_t h = margin->height.first; h < margin->height.end; h++)
            met.row[met.count++] = LOCAL(share_row)(margin, pool, row, d, h);
    for (int64_t s = 0; s < margin->stride; s++)
        LOCAL(add_columns)(&met, &margin->remainders[s], margin->sums + s * margin->room,
                    osw_ceil_div(margin->columns, margin->stride));
    LOCAL(merge)(margin, to);
}

/* avg_backward of planes with steps between channels, deep windows or long rows. */
static void LOCAL(share_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (fits_margin(pool))
        LOCAL(gradient_strips)(pool, begin, end, LOCAL(share_line));
    else
        below[ID_OF(avg_backward_planes)](pool, begin, end);
}
