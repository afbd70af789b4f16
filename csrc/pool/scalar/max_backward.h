/* SPDX-License-Identifier: MIT */
/* max_backward of one floating-point dtype; included like max.h.
 *
 * Every position of the input collects the gradient of the outputs whose offset names it, in
 * row-major order, so that the taps run backwards. */

/* sum[i * step] += gradient[i] where offset i is `tap`, 0 <= i < count */
static inline void
LOCAL(collect)(const osw_pool *pool, VALUE *restrict sum, int64_t step, int64_t count,
                           int64_t gradient_at, int64_t offsets_at, int32_t tap)
{
    const ELEMENT *gradient = (const ELEMENT *)pool->grad_output.base + gradient_at;
    if (pool->wide) {
        const int32_t *offsets = (const int32_t *)pool->offsets.base + offsets_at;
        for (int64_t i = 0; i < count; i++)
            if (offsets[i] == tap)
                sum[i * step] = ROUND(sum[i * step] + LOAD(gradient[i]));
        return;
    }
    const uint8_t *offsets = (const uint8_t *)pool->offsets.base + offsets_at;
    for (int64_t i = 0; i < count; i++)
        if (offsets[i] == tap)
            sum[i * step] = ROUND(sum[i * step] + LOAD(gradient[i]));
}

/* Positions [from, to) of one row of a channel. */
static inline void LOCAL(gradient_strip)(const osw_pool *pool, const osw_row *row, int64_t from,
                                  int64_t to, VALUE *sum)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    const int64_t channel = row->channel / pool->channel_step;
    const osw_range columns = osw_taps_meeting(dim, from, to);
    osw_walk walk = osw_walk_begin(pool, row);
    while (osw_walk_next(&walk)) {
        for (int64_t w = columns.end - 1; w >= columns.first; w--) {
            const osw_range range = osw_outputs(dim, w, from, to);
            const int64_t position = osw_output_position(pool, walk.od, walk.oh, range.first);
            const int64_t column = range.first * dim->stride - dim->padding + w * dim->dilation;
            if (range.first < range.end)
                LOCAL(collect)(pool, sum + column - from, dim->stride, range.end - range.first,
                        osw_place(&pool->grad_output, row->image, channel, position),
                        osw_place(&pool->offsets, row->image, channel, position),
                        osw_tap(pool, walk.kd, walk.kh, w));
        }
    }
}

static void LOCAL(collect_rows)(const osw_pool *pool, int64_t begin, int64_t end)
{
    LOCAL(write_planes)(pool, begin, end, LOCAL(gradient_strip));
}

static void KERNEL(max_backward_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    LOCAL(scatter_rows)(pool, begin, end, LOCAL(collect_rows));
}

/* `count` channels of the output, from channel c on, at input position (depth, height, w). */
static inline void
LOCAL(gradient_position)(const osw_pool *pool, const osw_row *row, int64_t w, int64_t c,
                                     int64_t count, VALUE *sum)
{
    const osw_range columns = osw_taps_meeting(&pool->dims[WIDTH], w, w + 1);
    osw_walk walk = osw_walk_begin(pool, row);
    while (osw_walk_next(&walk)) {
        for (int64_t kw = columns.end - 1; kw >= columns.first; kw--) {
            const int64_t ow = osw_output_of(&pool->dims[WIDTH], w, kw);
            const int64_t position = osw_output_position(pool, walk.od, walk.oh, ow);
            if (ow >= 0)
                LOCAL(
                    collect)(pool, sum, 1, count, osw_place(&pool->grad_output, row->image, c, position),
                        osw_place(&pool->offsets, row->image, c, position),
                        osw_tap(pool, walk.kd, walk.kh, kw));
        }
    }
}

static void KERNEL(max_backward_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    LOCAL(write_pixels)(pool, begin, end, LOCAL(gradient_position));
}
