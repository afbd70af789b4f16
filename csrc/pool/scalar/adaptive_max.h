/* SPDX-License-Identifier: MIT */
/* adaptive_max and amax with their backwards of one floating-point dtype; included like
 * max.h, after it. A unit is a plane, or a block of channels of an image. */

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

/* Zeros to `count` channels of one image, from `channel` on. */
static inline void LOCAL(clear)(const osw_pool *pool, int64_t image, int64_t channel, int64_t count)
{
    const osw_pool_tensor *t = &pool->grad_input;
    ELEMENT *target = (ELEMENT *)t->base + osw_place(t, image, channel, 0);
    const int64_t plane = osw_input_plane(pool);
    if (t->pixel_step == count) {
        memset(target, 0, (size_t)(plane * count) * sizeof(ELEMENT));
        return;
    }
    for (int64_t p = 0; p < plane; p++)
        memset(target + p * t->pixel_step, 0, (size_t)count * sizeof(ELEMENT));
}

/* Every output adds its gradient where its index says. */
static inline void LOCAL(adaptive_scatter)(const osw_pool *pool, int64_t image, int64_t channel,
                                    int64_t count)
{
    ELEMENT *target =
        (ELEMENT *)pool->grad_input.base + osw_place(&pool->grad_input, image, channel, 0);
    const int64_t step = pool->grad_input.pixel_step;
    const uint64_t plane = (uint64_t)osw_input_plane(pool);
    for (int64_t p = 0; p < osw_output_plane(pool); p++) {
        const ELEMENT *gradient = (const ELEMENT *)pool->grad_output.base +
                                  osw_place(&pool->grad_output, image, channel, p);
        const int32_t *index =
            (const int32_t *)pool->offsets.base + osw_place(&pool->offsets, image, channel, p);
        for (int64_t i = 0; i < count; i++) {
            if ((uint64_t)index[i] >= plane)
                continue;
            ELEMENT *t = target + index[i] * step + i;
            *t = STORE(LOAD(*t) + LOAD(gradient[i]));
        }
    }
}

/* Planes that lie one behind the other are cleared together, as many as stay in cache. */
static void KERNEL(adaptive_max_backward_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    const int64_t plane = osw_input_plane(pool), channels = pool->channels;
    const int64_t step = pool->grad_input.channel_step;
    const int64_t most = osw_max(1, SCATTER_BYTES / (plane * (int64_t)sizeof(ELEMENT)));
    for (int64_t unit = begin; unit < end;) {
        const int64_t n = unit / channels, c = unit % channels;
        const int64_t wanted = osw_min(osw_min(most, end - unit), channels - c);
        const int64_t count = channels == 1 || step == plane ? wanted : 1;
        ELEMENT *target = (ELEMENT *)pool->grad_input.base + osw_place(&pool->grad_input, n, c, 0);
        memset(target, 0, (size_t)(count * plane) * sizeof(ELEMENT));
        for (int64_t i = 0; i < count; i++)
            LOCAL(adaptive_scatter)(pool, n, c + i, 1);
        unit += count;
    }
}

static void KERNEL(adaptive_max_backward_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_block block = osw_block_of(pool, unit);
        LOCAL(clear)(pool, block.image, block.first, block.end - block.first);
        LOCAL(adaptive_scatter)(pool, block.image, block.first, block.end - block.first);
    }
}

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

#define UNITS(operation, unit_function)                                                            \
    static void JOIN_KERNEL(operation, _planes)(const osw_pool *pool, int64_t begin, int64_t end)  \
    {                                                                                              \
        for (int64_t unit = begin; unit < end; unit++)                                             \
            unit_function(pool, unit / pool->channels, unit % pool->channels, 1);                  \
    }                                                                                              \
                                                                                                   \
    static void JOIN_KERNEL(operation, _pixels)(const osw_pool *pool, int64_t begin, int64_t end)  \
    {                                                                                              \
        for (int64_t unit = begin; unit < end; unit++) {                                           \
            const osw_block block = osw_block_of(pool, unit);                                      \
            for (int64_t c = block.first; c < block.end; c += OSW_POOL_LANES)                      \
                unit_function(pool, block.image, c, osw_min(OSW_POOL_LANES, block.end - c));       \
        }                                                                                          \
    }

#define JOIN_KERNEL(operation, form) KERNEL(operation##form)

UNITS(adaptive_max, LOCAL(adaptive_unit))
UNITS(amax, LOCAL(amax_unit))
UNITS(amax_backward, LOCAL(amax_backward_unit))

#undef JOIN_KERNEL
#undef UNITS
