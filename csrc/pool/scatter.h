/* SPDX-License-Identifier: MIT */
/* max_backward of one dtype, the other way round: zeros first, then every output adds its gradient
 * where its offset says. Included with the macros of max.h. This takes fewer steps than collecting
 * if windows have many taps; over a whole plane also if there are fewer outputs than inputs, as
 * long as the plane stays in cache. */
#include "core/scratch.h"
#include "pool/indices.h"
#include "pool/window.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* Whether a gradient can be scattered: without dilation each window has a valid tap. */
static inline bool LOCAL(can_scatter)(const osw_pool *pool)
{
    for (int i = 0; i < OSW_POOL_DIMS; i++)
        if (pool->dims[i].dilation != 1)
            return false;
    return count_taps(pool) <= OSW_POOL_TABLE_TAPS;
}

/* Whether whole planes are scattered: windows that overlap. */
static inline bool LOCAL(scatters)(const osw_pool *pool)
{
    bool overlap = false;
    for (int i = 0; i < OSW_POOL_DIMS; i++)
        overlap = overlap || pool->dims[i].kernel > pool->dims[i].stride;
    const int64_t plane = osw_input_plane(pool);
    const bool fewer =
        2 * osw_output_plane(pool) <= plane && plane * (int64_t)sizeof(ELEMENT) <= SCATTER_BYTES;
    return LOCAL(can_scatter)(pool) && overlap && (fewer || count_taps(pool) > FEW_TAPS);
}

/* Distances by tap, as many as numbers of a byte at least; beyond any image for taps that do not
 * exist. They stay until this memory is asked for again. */
static inline const int64_t *LOCAL(scatter_distances)(const osw_pool *pool, int64_t unit)
{
    const int64_t taps = count_taps(pool);
    int64_t *const distance = osw_scratch_inner(OSW_POOL_TABLE_TAPS * sizeof *distance);
    osw_pool_distances(pool, distance, taps);
    for (int64_t i = 0; i < taps; i++)
        distance[i] *= unit;
    for (int64_t i = taps; i <= UINT8_MAX; i++)
        distance[i] = INT64_MIN / 2;
    return distance;
}

/* Elements of the gradient of the input that are written: `size` from `to` on. */
typedef struct LOCAL(target) {
    ELEMENT *to;
    int64_t at, size;        /* `at`: elements between the first of the image and `to` */
    const int64_t *distance; /* by tap, in elements */
    int64_t taps;
} LOCAL(target);

/* `count` outputs whose windows begin `start`, `start + step`, ... elements behind target->to, and
 * the same of the planes behind, so many in all. */
static inline void
LOCAL(scatter_outputs)(const osw_pool *pool, const LOCAL(target) *target,
                                   const ELEMENT *gradient, int64_t offsets, int64_t count,
                                   int64_t start, int64_t step, const bool wide, const int planes)
{
    const int64_t to_step = pool->grad_input.channel_step,
                  from_step = pool->grad_output.channel_step,
                  offset_step = pool->offsets.channel_step;
    const uint64_t size = (uint64_t)target->size, taps = (uint64_t)target->taps;
    const uint8_t *narrow = (const uint8_t *)pool->offsets.base + (wide ? 0 : offsets);
    const int32_t *all = (const int32_t *)pool->offsets.base + (wide ? offsets : 0);
    const int64_t *distance = target->distance;
    ELEMENT *to = target->to;
    for (int64_t i = 0; i < count; i++, start += step)
        for (int p = 0; p < planes; p++) {
            const int64_t tap = wide ? all[p * offset_step + i] : narrow[p * offset_step + i];
            if (wide && (uint64_t)tap >= taps)
                continue;
            const uint64_t at = (uint64_t)(start + distance[tap]);
            ELEMENT *const place = to + p * to_step + at;
            if (at < size)
                *place = STORE(LOAD(*place) + LOAD(gradient[p * from_step + i]));
        }
}

/* The same for outputs that lie one behind the other, from column w of a row on. */
static inline void
LOCAL(scatter_from)(const osw_pool *pool, const LOCAL(target) *target, const osw_row *row,
                                int64_t w, int64_t count, int64_t start, int64_t step,
                                const int planes)
{
    const int64_t position = osw_output_position(pool, row->depth, row->height, w);
    const ELEMENT *gradient =
        OSW_POOL_AT(const ELEMENT, &pool->grad_output, row->image, row->channel, position);
    const int64_t offsets = osw_place(&pool->offsets, row->image, row->channel, position);
    if (pool->wide)
        LOCAL(scatter_outputs)(pool, target, gradient, offsets, count, start, step, true, planes);
    else
        LOCAL(scatter_outputs)(pool, target, gradient, offsets, count, start, step, false, planes);
}

/* Input channels from `channel` on. */
static inline void LOCAL(scatter)(const osw_pool *pool,
                                  LOCAL(target) *target, int64_t image, int64_t channel,
                           const int planes)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t columns = dims[WIDTH].output;
    osw_row row = {.image = image, .channel = channel / pool->channel_step};
    target->to = OSW_POOL_AT(ELEMENT, &pool->grad_input, image, channel, 0);
    for (int p = 0; p < planes; p++)
        memset(target->to + p * pool->grad_input.channel_step, 0,
               (size_t)target->size * sizeof(ELEMENT));
    if (channel % pool->channel_step != 0)
        return;
    for (row.depth = 0; row.depth < dims[DEPTH].output; row.depth++) {
        for (row.height = 0; row.height < dims[HEIGHT].output; row.height++) {
            const int64_t start = osw_input_position(
                pool, row.depth * dims[DEPTH].stride - dims[DEPTH].padding,
                row.height * dims[HEIGHT].stride - dims[HEIGHT].padding, -dims[WIDTH].padding);
            LOCAL(scatter_from)(pool, target, &row, 0, columns, start, dims[WIDTH].stride, planes);
        }
    }
}

/* Rows [begin, end) of the input: whole planes are scattered if that is faster, the rest goes to
 * `collect`. Sums of 16 bits, of which each waits for the last one to be rounded, are taken of two
 * planes in turn: on Zen 5 1.1 to 1.4 times as fast, those of floats 0.65 to 1.1. */
static inline void LOCAL(scatter_rows)(const osw_pool *pool, int64_t begin, int64_t end,
                                osw_pool_fn *collect)
{
    const int64_t rows = pool->dims[DEPTH].input * pool->dims[HEIGHT].input;
    const int64_t first = osw_ceil_div(begin, rows), last = end / rows;
    if (!LOCAL(scatters)(pool) || first >= last) {
        collect(pool, begin, end);
        return;
    }
    collect(pool, begin, first * rows);
    LOCAL(target) target = {.size = osw_input_plane(pool),
                     .distance = LOCAL(scatter_distances)(pool, 1),
                     .taps = count_taps(pool)};
    const int64_t channels = pool->input_channels;
    const bool pairs = sizeof(ELEMENT) == 2 && pool->channel_step == 1;
    for (int64_t plane = first; plane < last; plane++) {
        const int64_t image = plane / channels, channel = plane % channels;
        if (pairs && channel + 1 < channels && plane + 1 < last) {
            LOCAL(scatter)(pool, &target, image, channel, 2);
            plane++;
        } else {
            LOCAL(scatter)(pool, &target, image, channel, 1);
        }
    }
    collect(pool, last * rows, end);
}

/* Rows [first, end) of the input of one image, counted through its slices. */
static inline void LOCAL(scatter_image)(const osw_pool *pool,
                                        LOCAL(target) *target, int64_t image, int64_t first,
                                 int64_t end)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t pitch = pool->grad_input.pixel_step, height = dims[HEIGHT].input;
    target->at = first * dims[WIDTH].input * pitch;
    target->size = (end - first) * dims[WIDTH].input * pitch;
    target->to = OSW_POOL_AT(ELEMENT, &pool->grad_input, image, 0, first * dims[WIDTH].input);
    for (int64_t at = 0; at < target->size; at += pitch)
        memset(target->to + at, 0, (size_t)pool->input_channels * sizeof(ELEMENT));
    osw_row row = {.image = image};
    for (row.depth = 0; row.depth < dims[DEPTH].output; row.depth++) {
        const int64_t d = row.depth * dims[DEPTH].stride - dims[DEPTH].padding;
        for (row.height = 0; row.height < dims[HEIGHT].output; row.height++) {
            const int64_t h = row.height * dims[HEIGHT].stride - dims[HEIGHT].padding;
            if ((d + dims[DEPTH].kernel - 1) * height + h + dims[HEIGHT].kernel <= first ||
                d * height + h >= end)
                continue;
            int64_t start =
                osw_input_position(pool, d, h, -dims[WIDTH].padding) * pitch - target->at;
            for (int64_t w = 0; w < dims[WIDTH].output; w++) {
                LOCAL(
                    scatter_from)(pool, target, &row, w, pool->channels, start, pool->channel_step, 1);
                start += dims[WIDTH].stride * pitch;
            }
        }
    }
}

/* Rows [begin, end) of the input, counted through image, depth and height. */
static inline void LOCAL(scatter_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t rows = dims[DEPTH].input * dims[HEIGHT].input;
    LOCAL(target) target = {.distance = LOCAL(scatter_distances)(pool, pool->grad_input.pixel_step),
                     .taps = count_taps(pool)};
    for (int64_t unit = begin; unit < end;) {
        const int64_t first = unit % rows, last = osw_min(rows, first + end - unit);
        LOCAL(scatter_image)(pool, &target, unit / rows, first, last);
        unit += last - first;
    }
}
