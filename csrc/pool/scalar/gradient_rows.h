/* SPDX-License-Identifier: MIT */
/* The walk over grad_input that the backward of max and of avg share; included like max.h.
 * Lanes are neighbouring positions of a row in planes, channels of a position in pixels. */

/* Adds what positions [from, to) of a row get to sum[0, to - from); `row` holds the channel of the
 * input, which is one that counts. */
typedef void LOCAL(sum_strip)(const osw_pool *pool, const osw_row *row, int64_t from, int64_t to,
                       VALUE *sum);

/* Adds what `count` channels of the output, from channel c on, give to position w of a row. */
typedef void LOCAL(sum_position)(const osw_pool *pool, const osw_row *row, int64_t w, int64_t c,
                          int64_t count, VALUE *sum);

static inline void LOCAL(write_planes)(const osw_pool *pool, int64_t begin, int64_t end,
                                       LOCAL(sum_strip) *add)
{
    VALUE sum[OSW_POOL_LANES];
    const int64_t width = pool->dims[WIDTH].input;
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_row row = osw_input_row(pool, pool->input_channels, unit);
        const int64_t position = osw_input_position(pool, row.depth, row.height, 0);
        ELEMENT *target = (ELEMENT *)pool->grad_input.base +
                          osw_place(&pool->grad_input, row.image, row.channel, position);
        const bool skipped = row.channel % pool->channel_step != 0;
        for (int64_t from = 0; from < width; from += OSW_POOL_LANES) {
            const int64_t to = osw_min(from + OSW_POOL_LANES, width);
            memset(sum, 0, sizeof sum);
            if (!skipped)
                add(pool, &row, from, to, sum);
            for (int64_t i = from; i < to; i++)
                target[i] = STORE(sum[i - from]);
        }
    }
}

static inline void LOCAL(write_pixels)(const osw_pool *pool, int64_t begin, int64_t end,
                                       LOCAL(sum_position) *add)
{
    VALUE sum[OSW_POOL_LANES];
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_row row = osw_input_row(pool, 1, unit);
        for (int64_t w = 0; w < pool->dims[WIDTH].input; w++) {
            const int64_t position = osw_input_position(pool, row.depth, row.height, w);
            ELEMENT *target = (ELEMENT *)pool->grad_input.base +
                              osw_place(&pool->grad_input, row.image, 0, position);
            if (pool->channel_step > 1)
                memset(target, 0, (size_t)pool->input_channels * sizeof(ELEMENT));
            for (int64_t c = 0; c < pool->channels; c += OSW_POOL_LANES) {
                const int64_t count = osw_min(OSW_POOL_LANES, pool->channels - c);
                memset(sum, 0, sizeof sum);
                add(pool, &row, w, c, count, sum);
                for (int64_t i = 0; i < count; i++)
                    target[(c + i) * pool->channel_step] = STORE(sum[i]);
            }
        }
    }
}
