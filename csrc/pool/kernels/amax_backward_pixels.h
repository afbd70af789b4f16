/* SPDX-License-Identifier: MIT */
/* amax_backward over pixels. If the forward pass has noted the
 * position of a maximum that is alone, the input is not read again. */
#include "core/simd.h"
#include "pool/kernels/below.h"
#include "pool/kernels/ties.h"
#include "pool/window.h"

#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "pool/kernels/tie_shares.h"
#endif

/* Ties of the channels at one position. */
OSW_INLINE void LOCAL(add_ties)(const ELEMENT *x, osw_ties *ties, int64_t channels)
{
    int64_t c = 0;
    for (; c + LANES <= channels; c += LANES) {
        const vf32 best = load_f32(ties->best + c);
        const vi32 count = count_hits(load_i32(ties->count + c), LOCAL(load)(x + c), best);
        store_i32(ties->count + c, count);
    }
    for (; c < channels; c++)
        ties->count[c] += LOAD(x[c]) == ties->best[c];
}

static void LOCAL(pixel_ties)(const osw_pool *pool, int64_t n, int64_t first, int64_t last)
{
    const ELEMENT *x = OSW_POOL_AT(const ELEMENT, &pool->input, n, first, 0);
    const ELEMENT *y = OSW_POOL_AT(const ELEMENT, &pool->output, n, first, 0);
    const ELEMENT *gradient = OSW_POOL_AT(const ELEMENT, &pool->grad_output, n, first, 0);
    ELEMENT *to = OSW_POOL_AT(ELEMENT, &pool->grad_input, n, first, 0);
    const int64_t channels = last - first, count = osw_input_plane(pool);
    const int64_t step = pool->input.pixel_step;
    osw_ties ties;
    for (int64_t c = 0; c < channels; c++) {
        ties.best[c] = LOAD(y[c]);
        ties.count[c] = 0;
    }
    for (int64_t p = 0; p < count; p++)
        LOCAL(add_ties)(x + p * step, &ties, channels);
    for (int64_t c = 0; c < channels; c += LANES) {
        osw_tie tie;
        c = osw_min(c, channels - LANES);
        LOCAL(tie_share)(&tie, LOCAL(load)(gradient + c), load_i32(ties.count + c));
        store_f32(ties.hit + c, tie.hit);
        store_f32(ties.miss + c, tie.miss);
    }
    for (int64_t p = 0; p < count; p++)
        for (int64_t c = 0; c < channels; c += LANES) {
            c = osw_min(c, channels - LANES);
            const osw_tie tie = {load_f32(ties.best + c), load_f32(ties.hit + c),
                                 load_f32(ties.miss + c)};
            LOCAL(
                store)(to + p * pool->grad_input.pixel_step + c, tie_pick(&tie,
                                                                          LOCAL(
                                                                              load)(x + p * step + c)));
        }
}

/* Hits of one channel of pixels whose maximum is not alone, from position `first` on. */
static void
LOCAL(share_hits)(const ELEMENT *x, int64_t x_step, VALUE best, int64_t first, int64_t count,
                       ELEMENT gradient, ELEMENT *to, int64_t to_step)
{
    int32_t ties = 0;
    for (int64_t p = first; p < count; p++)
        ties += LOAD(x[p * x_step]) == best;
    const ELEMENT hit = STORE(LOAD(gradient) / LOAD(STORE((VALUE)ties)));
    for (int64_t p = first; p < count; p++)
        if (LOAD(x[p * x_step]) == best)
            to[p * to_step] = hit;
}

/* The same as pixel_ties, from the positions of the maxima. */
static void LOCAL(pixel_hits)(const osw_pool *pool, int64_t n, int64_t first, int64_t last)
{
    const ELEMENT *x = OSW_POOL_AT(const ELEMENT, &pool->input, n, first, 0);
    const ELEMENT *y = OSW_POOL_AT(const ELEMENT, &pool->output, n, first, 0);
    const ELEMENT *gradient = OSW_POOL_AT(const ELEMENT, &pool->grad_output, n, first, 0);
    const int32_t *position = OSW_POOL_AT(const int32_t, &pool->offsets, n, first, 0);
    ELEMENT *to = OSW_POOL_AT(ELEMENT, &pool->grad_input, n, first, 0);
    const int64_t channels = last - first, count = osw_input_plane(pool);
    const int64_t x_step = pool->input.pixel_step, to_step = pool->grad_input.pixel_step;
    ELEMENT missed[OSW_POOL_MAX_BLOCK];
    for (int64_t c = 0; c < channels; c++)
        missed[c] = LOCAL(missed)(gradient[c], position[c]);
    for (int64_t p = 0; p < count; p++)
        memcpy(to + p * to_step, missed, (size_t)channels * sizeof(ELEMENT));
    for (int64_t c = 0; c < channels; c++) {
        if (position[c] >= 0 && position[c] < count)
            to[position[c] * to_step + c] = gradient[c];
        else if (position[c] < 0 && ~position[c] < count)
            LOCAL(share_hits)(x + c, x_step, LOAD(y[c]), ~position[c], count, gradient[c], to + c,
                       to_step);
    }
}

static void KERNEL(amax_backward_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_block block = osw_block_of(pool, unit);
        if (mostly_alone(pool, &block))
            LOCAL(pixel_hits)(pool, block.image, block.first, block.end);
        else if (block.end - block.first >= LANES)
            LOCAL(pixel_ties)(pool, block.image, block.first, block.end);
        else
            below[ID_OF(amax_backward_pixels)](pool, unit, unit + 1);
    }
}
