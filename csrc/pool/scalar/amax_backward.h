/* SPDX-License-Identifier: MIT */
/* amax_backward of one floating-point dtype. */
#include "pool/scalar/units.h"

/* What a position gets that is the maximum, and what one that is not (0, or NaN). */
typedef struct LOCAL(share) {
    VALUE best[OSW_POOL_LANES];
    VALUE hit[OSW_POOL_LANES];
    VALUE miss[OSW_POOL_LANES];
} LOCAL(share);

static inline void
LOCAL(share_out)(const osw_pool *pool, int64_t image, int64_t channel, int64_t count,
                 LOCAL(share) *share)
{
    const ELEMENT *y =
        (const ELEMENT *)pool->output.base + osw_place(&pool->output, image, channel, 0);
    const ELEMENT *x =
        (const ELEMENT *)pool->input.base + osw_place(&pool->input, image, channel, 0);
    const ELEMENT *gradient =
        (const ELEMENT *)pool->grad_output.base + osw_place(&pool->grad_output, image, channel, 0);
    int32_t ties[OSW_POOL_LANES] = {0};
    for (int64_t i = 0; i < count; i++)
        share->best[i] = LOAD(y[i]);
    for (int64_t p = 0; p < osw_input_plane(pool); p++)
        for (int64_t i = 0; i < count; i++)
            ties[i] += LOAD(x[p * pool->input.pixel_step + i]) == share->best[i];
    for (int64_t i = 0; i < count; i++) {
        const VALUE n = ROUND((VALUE)ties[i]), g = LOAD(gradient[i]);
        share->hit[i] = ROUND(g / n);
        share->miss[i] = ROUND(g * 0 / n);
    }
}

static inline void LOCAL(amax_backward_unit)(const osw_pool *pool, int64_t image, int64_t channel,
                                      int64_t count)
{
    LOCAL(share) share;
    LOCAL(share_out)(pool, image, channel, count, &share);
    const ELEMENT *x =
        (const ELEMENT *)pool->input.base + osw_place(&pool->input, image, channel, 0);
    ELEMENT *target =
        (ELEMENT *)pool->grad_input.base + osw_place(&pool->grad_input, image, channel, 0);
    for (int64_t p = 0; p < osw_input_plane(pool); p++)
        for (int64_t i = 0; i < count; i++) {
            const VALUE value = LOAD(x[p * pool->input.pixel_step + i]);
            target[p * pool->grad_input.pixel_step + i] =
                STORE(value == share.best[i] ? share.hit[i] : share.miss[i]);
        }
}

UNITS(amax_backward, amax_backward_unit)
