/* SPDX-License-Identifier: MIT */
/* avg_backward of one dtype; included after gradient_rows.h. */
#include "pool/window.h"

/* Positions [from, to) of one row of a channel; outputs in row-major order, as in max_backward. */
static inline void
LOCAL(share_strip)(const osw_pool *pool, const osw_row *row, int64_t from, int64_t to,
                               VALUE *sum)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    const osw_pool_tensor *t = &pool->grad_output;
    const int64_t channel = row->channel / pool->channel_step;
    const osw_range columns = osw_taps_meeting(dim, from, to);
    osw_walk walk = osw_walk_begin(pool, row);
    while (osw_walk_next(&walk)) {
        const ELEMENT *gradient =
            (const ELEMENT *)t->base +
            osw_place(t, row->image, channel, osw_output_position(pool, walk.od, walk.oh, 0));
        for (int64_t w = columns.end - 1; w >= columns.first; w--) {
            const osw_range range = osw_outputs(dim, w, from, to);
            for (int64_t ow = range.first; ow < range.end; ow++) {
                VALUE *s = sum + ow * dim->stride - dim->padding + w - from;
                const VALUE divisor = ROUND((VALUE)osw_avg_divisor(pool, walk.od, walk.oh, ow));
                *s = ROUND(*s + ROUND(DIVIDE(LOAD(gradient[ow]), divisor)));
            }
        }
    }
}

static void KERNEL(avg_backward_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    LOCAL(write_planes)(pool, begin, end, LOCAL(share_strip));
}

static inline void
LOCAL(share_position)(const osw_pool *pool, const osw_row *row, int64_t w, int64_t c,
                                  int64_t count, VALUE *sum)
{
    const osw_pool_tensor *t = &pool->grad_output;
    const osw_range columns = osw_taps_meeting(&pool->dims[WIDTH], w, w + 1);
    osw_walk walk = osw_walk_begin(pool, row);
    while (osw_walk_next(&walk)) {
        for (int64_t kw = columns.end - 1; kw >= columns.first; kw--) {
            const int64_t ow = osw_output_of(&pool->dims[WIDTH], w, kw);
            if (ow < 0)
                continue;
            const VALUE divisor = ROUND((VALUE)osw_avg_divisor(pool, walk.od, walk.oh, ow));
            const ELEMENT *gradient =
                (const ELEMENT *)t->base +
                osw_place(t, row->image, c, osw_output_position(pool, walk.od, walk.oh, ow));
            for (int64_t i = 0; i < count; i++)
                sum[i] = ROUND(sum[i] + ROUND(DIVIDE(LOAD(gradient[i]), divisor)));
        }
    }
}

static void KERNEL(avg_backward_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    LOCAL(write_pixels)(pool, begin, end, LOCAL(share_position));
}
