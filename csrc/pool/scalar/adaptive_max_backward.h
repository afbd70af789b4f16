/* SPDX-License-Identifier: MIT */
/* adaptive_max_backward of one floating-point dtype. */
#include "pool/window.h"

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
