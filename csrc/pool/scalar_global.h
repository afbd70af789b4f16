/* SPDX-License-Identifier: MIT */
/* adaptive_max, its backward and amax_backward of one floating-point dtype; included like
 * scalar_max.h, after it. A unit is a plane, or a block of channels of an image. */

/* One window of `count` channels of one image, from `channel` on. */
static inline void LOCAL(adaptive_window)(const osw_pool *pool, int64_t image, int64_t channel,
                                          int64_t count, const int64_t *o, LOCAL(lanes) * lanes)
{
    const osw_range d = osw_adaptive(&pool->dims[DEPTH], o[DEPTH]);
    const osw_range h = osw_adaptive(&pool->dims[HEIGHT], o[HEIGHT]);
    const osw_range w = osw_adaptive(&pool->dims[WIDTH], o[WIDTH]);
    const ELEMENT *x =
        (const ELEMENT *)pool->input.base + osw_place(&pool->input, image, channel, 0);
    for (int64_t i = 0; i < count; i++) {
        lanes->best[i] = LOWEST;
        lanes->tap[i] = (int32_t)osw_input_position(pool, d.first, h.first, w.first);
    }
    for (int64_t id = d.first; id < d.end; id++)
        for (int64_t ih = h.first; ih < h.end; ih++)
            for (int64_t iw = w.first; iw < w.end; iw++) {
                const int64_t position = osw_input_position(pool, id, ih, iw);
                LOCAL(apply)
                (lanes, 0, count, x + osw_place(&pool->input, 0, 0, position), 1,
                 (int32_t)position);
            }
}

static inline void LOCAL(adaptive_unit)(const osw_pool *pool, int64_t image, int64_t channel,
                                        int64_t count)
{
    LOCAL(lanes) lanes;
    const int64_t plane = osw_output_plane(pool);
    for (int64_t position = 0; position < plane; position++) {
        const osw_row row = osw_row_of(position / pool->dims[WIDTH].output, 1,
                                       pool->dims[DEPTH].output, pool->dims[HEIGHT].output);
        const int64_t o[] = {row.depth, row.height, position % pool->dims[WIDTH].output};
        LOCAL(adaptive_window)(pool, image, channel, count, o, &lanes);
        LOCAL(put)
        (pool, &lanes, count, osw_place(&pool->output, image, channel, position),
         osw_place(&pool->offsets, image, channel, position));
    }
}

static inline void LOCAL(adaptive_backward_unit)(const osw_pool *pool, int64_t image,
                                                 int64_t channel, int64_t count)
{
    ELEMENT *target =
        (ELEMENT *)pool->grad_input.base + osw_place(&pool->grad_input, image, channel, 0);
    const int64_t step = pool->grad_input.pixel_step;
    const int64_t plane = osw_input_plane(pool);
    if (count == 1 && step == 1)
        memset(target, 0, (size_t)plane * sizeof(ELEMENT));
    else
        for (int64_t p = 0; p < plane; p++)
            memset(target + p * step, 0, (size_t)count * sizeof(ELEMENT));
    for (int64_t p = 0; p < osw_output_plane(pool); p++) {
        const ELEMENT *gradient = (const ELEMENT *)pool->grad_output.base +
                                  osw_place(&pool->grad_output, image, channel, p);
        const int32_t *index =
            (const int32_t *)pool->offsets.base + osw_place(&pool->offsets, image, channel, p);
        for (int64_t i = 0; i < count; i++) {
            if (index[i] < 0 || index[i] >= plane)
                continue;
            ELEMENT *t = target + index[i] * step + i;
            *t = STORE(LOAD(*t) + LOAD(gradient[i]));
        }
    }
}

/* What a position gets that is the maximum, and what one that is not (0, or NaN). */
typedef struct LOCAL(share) {
    VALUE best[OSW_POOL_LANES];
    VALUE hit[OSW_POOL_LANES];
    VALUE miss[OSW_POOL_LANES];
} LOCAL(share);

static inline void LOCAL(share_out)(const osw_pool *pool, int64_t image, int64_t channel,
                                    int64_t count, LOCAL(share) * share)
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

static inline void LOCAL(amax_unit)(const osw_pool *pool, int64_t image, int64_t channel,
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
UNITS(adaptive_max_backward, LOCAL(adaptive_backward_unit))
UNITS(amax_backward, LOCAL(amax_unit))

#undef JOIN_KERNEL
#undef UNITS
