/* SPDX-License-Identifier: MIT */
/* avg of one dtype; included like max.h. The lanes are those of max. */

/* Row `row` of the input that tap (d, h) of the spans names, in a channel whose plane is given. */
static inline const ELEMENT *LOCAL(avg_row)(const osw_pool *pool, const ELEMENT *plane,
                                     const osw_span *taps, int64_t d, int64_t h)
{
    return plane +
           osw_place(&pool->input, 0, 0,
                     osw_input_position(pool, taps[DEPTH].start + d, taps[HEIGHT].start + h, 0));
}

/* sum[i] += x[i * step] */
static inline void
LOCAL(add)(VALUE *restrict sum, const ELEMENT *restrict x, int64_t step, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        sum[i] += LOAD(x[i * step]);
}

static inline void
LOCAL(avg_strip)(const osw_pool *pool, const ELEMENT *plane, const osw_span *taps,
                             int64_t from, int64_t to, VALUE *sum)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    const osw_range columns = osw_taps_of(dim, from, to);
    for (int64_t d = taps[DEPTH].first; d < taps[DEPTH].end; d++) {
        for (int64_t h = taps[HEIGHT].first; h < taps[HEIGHT].end; h++) {
            const ELEMENT *row = LOCAL(avg_row)(pool, plane, taps, d, h);
            for (int64_t w = columns.first; w < columns.end; w++) {
                const osw_range range = osw_outputs(dim, w, 0, dim->input);
                const int64_t first = osw_max(range.first, from), end = osw_min(range.end, to);
                if (first < end)
                    LOCAL(add)(sum + first - from, row + first * dim->stride - dim->padding + w,
                        dim->stride, end - first);
            }
        }
    }
}

static void KERNEL(avg_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    VALUE sum[OSW_POOL_LANES];
    const int64_t width = pool->dims[WIDTH].output;
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_row row = osw_output_row(pool, pool->channels, unit);
        const osw_span taps[] = {osw_taps(&pool->dims[DEPTH], row.depth),
                                 osw_taps(&pool->dims[HEIGHT], row.height)};
        const ELEMENT *plane =
            (const ELEMENT *)pool->input.base +
            osw_place(&pool->input, row.image, row.channel * pool->channel_step, 0);
        ELEMENT *y = (ELEMENT *)pool->output.base +
                     osw_place(&pool->output, row.image, row.channel,
                               osw_output_position(pool, row.depth, row.height, 0));
        for (int64_t from = 0; from < width; from += OSW_POOL_LANES) {
            const int64_t to = osw_min(from + OSW_POOL_LANES, width);
            memset(sum, 0, sizeof sum);
            LOCAL(avg_strip)(pool, plane, taps, from, to, sum);
            for (int64_t w = from; w < to; w++)
                y[w] = STORE(
                    DIVIDE(sum[w - from], (VALUE)osw_avg_divisor(pool, row.depth, row.height, w)));
        }
    }
}

static inline void
LOCAL(avg_position)(const osw_pool *pool, const ELEMENT *image, const osw_span *taps,
                                int64_t c, int64_t count, VALUE *sum)
{
    for (int64_t d = taps[DEPTH].first; d < taps[DEPTH].end; d++) {
        for (int64_t h = taps[HEIGHT].first; h < taps[HEIGHT].end; h++) {
            const ELEMENT *row = LOCAL(avg_row)(pool, image, taps, d, h);
            for (int64_t w = taps[WIDTH].first; w < taps[WIDTH].end; w++)
                LOCAL(
                    add)(sum,
                    row + osw_place(&pool->input, 0, c * pool->channel_step, taps[WIDTH].start + w),
                    pool->channel_step, count);
        }
    }
}

static void KERNEL(avg_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    VALUE sum[OSW_POOL_LANES];
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_row row = osw_output_row(pool, 1, unit);
        osw_span taps[OSW_POOL_DIMS] = {osw_taps(&pool->dims[DEPTH], row.depth),
                                        osw_taps(&pool->dims[HEIGHT], row.height)};
        const ELEMENT *image =
            (const ELEMENT *)pool->input.base + osw_place(&pool->input, row.image, 0, 0);
        for (int64_t w = 0; w < pool->dims[WIDTH].output; w++) {
            taps[WIDTH] = osw_taps(&pool->dims[WIDTH], w);
            const VALUE divisor = (VALUE)osw_avg_divisor(pool, row.depth, row.height, w);
            ELEMENT *y = (ELEMENT *)pool->output.base +
                         osw_place(&pool->output, row.image, 0,
                                   osw_output_position(pool, row.depth, row.height, w));
            for (int64_t c = 0; c < pool->channels; c += OSW_POOL_LANES) {
                const int64_t count = osw_min(OSW_POOL_LANES, pool->channels - c);
                memset(sum, 0, sizeof sum);
                LOCAL(avg_position)(pool, image, taps, c, count, sum);
                for (int64_t i = 0; i < count; i++)
                    y[c + i] = STORE(DIVIDE(sum[i], divisor));
            }
        }
    }
}
