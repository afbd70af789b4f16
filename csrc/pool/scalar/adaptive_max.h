/* SPDX-License-Identifier: MIT */
/* adaptive_max of one floating-point dtype; included after max.h. */
#include "pool/scalar/units.h"

/* One window of one plane. */
static inline void
LOCAL(adaptive_one)(const osw_pool *pool, const ELEMENT *x, const osw_range *window,
                    LOCAL(lanes) *lanes)
{
    VALUE best = lanes->best[0];
    int32_t tap = lanes->tap[0];
    for (int64_t d = window[DEPTH].first; d < window[DEPTH].end; d++)
        for (int64_t h = window[HEIGHT].first; h < window[HEIGHT].end; h++) {
            const int64_t row = osw_input_position(pool, d, h, 0);
            for (int64_t w = window[WIDTH].first; w < window[WIDTH].end; w++) {
                const VALUE value = LOAD(x[(row + w) * pool->input.pixel_step]);
                if (value > best || IS_NAN(value)) {
                    best = value;
                    tap = (int32_t)(row + w);
                }
            }
        }
    lanes->best[0] = best;
    lanes->tap[0] = tap;
}

/* One window of `count` channels of one image; x is channel 0 of them. */
static inline void LOCAL(adaptive_window)(const osw_pool *pool, const ELEMENT *x, int64_t count,
                                   const osw_range *window, LOCAL(lanes) *lanes)
{
    for (int64_t i = 0; i < count; i++) {
        lanes->best[i] = LOWEST;
        lanes->tap[i] = (int32_t)osw_input_position(pool, window[DEPTH].first, window[HEIGHT].first,
                                                    window[WIDTH].first);
    }
    if (count == 1) {
        LOCAL(adaptive_one)(pool, x, window, lanes);
        return;
    }
    for (int64_t d = window[DEPTH].first; d < window[DEPTH].end; d++)
        for (int64_t h = window[HEIGHT].first; h < window[HEIGHT].end; h++)
            for (int64_t w = window[WIDTH].first; w < window[WIDTH].end; w++) {
                const int64_t position = osw_input_position(pool, d, h, w);
                LOCAL(apply)(lanes, 0, count, x + osw_place(&pool->input, 0, 0, position), 1,
                      (int32_t)position);
            }
}

static inline void LOCAL(adaptive_unit)(const osw_pool *pool, int64_t image, int64_t channel,
                                 int64_t count)
{
    const osw_pool_dim *dims = pool->dims;
    const ELEMENT *x =
        (const ELEMENT *)pool->input.base + osw_place(&pool->input, image, channel, 0);
    LOCAL(lanes) lanes;
    for (int64_t d = 0; d < dims[DEPTH].output; d++)
        for (int64_t h = 0; h < dims[HEIGHT].output; h++) {
            osw_range window[OSW_POOL_DIMS] = {osw_adaptive(&dims[DEPTH], d),
                                               osw_adaptive(&dims[HEIGHT], h)};
            for (int64_t w = 0; w < dims[WIDTH].output; w++) {
                const int64_t position = osw_output_position(pool, d, h, w);
                window[WIDTH] = osw_adaptive(&dims[WIDTH], w);
                LOCAL(adaptive_window)(pool, x, count, window, &lanes);
                LOCAL(put)(pool, &lanes, count, osw_place(&pool->output, image, channel, position),
                    osw_place(&pool->offsets, image, channel, position));
            }
        }
}

UNITS(adaptive_max, adaptive_unit)
