/* SPDX-License-Identifier: MIT */
/* amax_backward over planes. If the forward pass has noted the
 * position of a maximum that is alone, the input is not read again. */
#include "core/simd.h"
#include "pool/kernels/below.h"
#include "pool/kernels/ties.h"
#include "pool/window.h"

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "pool/kernels/tie_shares.h"
#endif

OSW_INLINE void LOCAL(plane_ties)(const ELEMENT *x, ELEMENT best, ELEMENT gradient, ELEMENT *to,
                           int64_t count)
{
    osw_tie tie = {.best = set1_f32(LOAD(best))};
    vi32 ties = (vi32){0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        ties = count_hits(ties, LOCAL(load)(x + i), tie.best);
    int32_t total = sum_lanes_i32(ties);
    for (; i < count; i++)
        total += LOAD(x[i]) == LOAD(best);
    LOCAL(tie_share)(&tie, set1_f32(LOAD(gradient)), set1_i32(total));
    for (i = 0; i < count; i += LANES) {
        i = osw_min(i, count - LANES);
        LOCAL(store)(to + i, tie_pick(&tie, LOCAL(load)(x + i)));
    }
}

/* Everything but the one hit of a plane, of which there may be none. */
OSW_INLINE void LOCAL(plane_hit)(int32_t position, ELEMENT gradient, ELEMENT *to, int64_t count)
{
    const vf32 missed = set1_f32(LOAD(LOCAL(missed)(gradient, position)));
    for (int64_t i = 0; i < count; i += LANES)
        LOCAL(store)(to + osw_min(i, count - LANES), missed);
    if (position >= 0 && position < count)
        to[position] = gradient;
}

static void KERNEL(amax_backward_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    const int64_t count = osw_input_plane(pool);
    if (count < LANES) {
        below[ID_OF(amax_backward_planes)](pool, begin, end);
        return;
    }
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t n = unit / pool->channels, c = unit % pool->channels;
        const ELEMENT gradient =
            ((const ELEMENT *)pool->grad_output.base)[osw_place(&pool->grad_output, n, c, 0)];
        ELEMENT *to = OSW_POOL_AT(ELEMENT, &pool->grad_input, n, c, 0);
        const int32_t position =
            pool->offsets.base
                ? ((const int32_t *)pool->offsets.base)[osw_place(&pool->offsets, n, c, 0)]
                : -1;
        if (position >= 0 || position == OSW_POOL_NOWHERE)
            LOCAL(plane_hit)(position, gradient, to, count);
        else
            LOCAL(
                plane_ties)(OSW_POOL_AT(const ELEMENT, &pool->input, n, c, 0),
                       ((const ELEMENT *)pool->output.base)[osw_place(&pool->output, n, c, 0)],
                       gradient, to, count);
    }
}
