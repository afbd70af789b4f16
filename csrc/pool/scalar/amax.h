/* SPDX-License-Identifier: MIT */
/* amax of one floating-point dtype; included after adaptive_max.h. */
#include "pool/scalar/units.h"

/* As adaptive_unit with one window; then the maxima that are not alone are marked. */
static inline void
LOCAL(amax_unit)(const osw_pool *pool, int64_t image, int64_t channel, int64_t count)
{
    const ELEMENT *x =
        (const ELEMENT *)pool->input.base + osw_place(&pool->input, image, channel, 0);
    const int64_t plane = osw_input_plane(pool);
    LOCAL(lanes) lanes;
    bool alone[OSW_POOL_LANES];
    for (int64_t i = 0; i < count; i++) {
        lanes.best[i] = LOWEST;
        lanes.tap[i] = 0;
        alone[i] = true;
    }
    for (int64_t p = 0; p < plane; p++)
        LOCAL(apply)(&lanes, 0, count, x + p * pool->input.pixel_step, 1, (int32_t)p);
    for (int64_t p = 0; p < plane; p++)
        for (int64_t i = 0; i < count; i++)
            if (LOAD(x[p * pool->input.pixel_step + i]) == lanes.best[i] && p != lanes.tap[i])
                alone[i] = false;
    for (int64_t i = 0; i < count; i++)
        lanes.tap[i] = IS_NAN(lanes.best[i]) ? OSW_POOL_NOWHERE
                       : alone[i] ? lanes.tap[i]
                                  : ~lanes.tap[i];
    LOCAL(put)(pool, &lanes, count, osw_place(&pool->output, image, channel, 0),
        osw_place(&pool->offsets, image, channel, 0));
}

UNITS(amax, amax_unit)
