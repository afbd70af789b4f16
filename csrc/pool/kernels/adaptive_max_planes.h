/* SPDX-License-Identifier: MIT */
/* adaptive_max over planes for outputs of any size, eight planes at a time, for one dtype; included
 * by avx2_max.h. */

/* One row of maxima; `tile` begins with row `top` of the input. */
OSW_INLINE void LOCAL(adaptive_row_of_eight)(const osw_pool *pool, int64_t h, const float *tile,
                                             int64_t top, float *to, int32_t *taps,
                                             const bool with_taps)
{
    const osw_pool_dim *width = &pool->dims[WIDTH];
    const osw_range rows = osw_adaptive(&pool->dims[HEIGHT], h);
    for (int64_t w = 0; w < width->output; w++) {
        const osw_range columns = osw_adaptive(width, w);
        const int64_t first = rows.first * width->input + columns.first;
        osw_best best = {_mm256_loadu_ps(tile + (first - top * width->input) * 8),
                         _mm256_set1_epi32((int32_t)first)};
        for (int64_t row = rows.first; row < rows.end; row++)
            for (int64_t i = columns.first; i < columns.end; i++) {
                const int64_t position = row * width->input + i;
                const float *x = tile + (position - top * width->input) * 8;
                take(&best, _mm256_loadu_ps(x), _mm256_set1_epi32((int32_t)position), with_taps);
            }
        _mm256_storeu_ps(to + w * 8, best.value);
        if (with_taps)
            _mm256_storeu_si256((__m256i *)(taps + w * 8), best.tap);
    }
}

/* Eight planes, whose positions go to `index` where wanted. */
OSW_INLINE void LOCAL(adaptive_eight)(const osw_pool *pool, ELEMENT *const *x, ELEMENT *const *y,
                                      int32_t *const *index, const bool with_taps)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    struct {
        float tile[8 * OCTET_TILE], made[8 * OCTET_TILE];
        int32_t taps[8 * OCTET_TILE];
    } *const room = osw_scratch_outer(sizeof *room);
    float *const tile = room->tile, *const made = room->made;
    int32_t *const taps = room->taps, *taps_to[8];
    ELEMENT *from[8], *to[8];
    for (osw_range rows = {0, 0}; rows.first < height->output; rows.first = rows.end) {
        rows.end = rows.first + 1;
        while (rows.end < height->output &&
               adaptive_rows_fit(pool, (osw_range){rows.first, rows.end + 1}))
            rows.end++;
        const osw_range read = adaptive_rows(height, rows);
        const int64_t count = (rows.end - rows.first) * width->output;
        LOCAL(move_planes)(x, read.first * width->input, from);
        LOCAL(interleave)
        ((const ELEMENT *const *)from, (read.end - read.first) * width->input, tile);
        for (int64_t h = rows.first; h < rows.end; h++) {
            const int64_t at = (h - rows.first) * width->output * 8;
            LOCAL(adaptive_row_of_eight)
            (pool, h, tile, read.first, made + at, taps + at, with_taps);
        }
        LOCAL(move_planes)(y, rows.first * width->output, to);
        LOCAL(separate)(made, count, to);
        for (int i = 0; with_taps && i < 8; i++)
            taps_to[i] = index[i] + rows.first * width->output;
        if (with_taps)
            separate_taps(taps, count, taps_to);
    }
}

static void LOCAL(adaptive_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    for (int64_t unit = begin; unit < end; unit += 8) {
        const int64_t count = osw_min(8, end - unit);
        ELEMENT *x[8], *y[8];
        int32_t *index[8];
        LOCAL(eight_planes)(&pool->input, pool->channels, 1, unit, count, x);
        LOCAL(eight_planes)(&pool->output, pool->channels, 1, unit, count, y);
        if (!pool->offsets.base) {
            LOCAL(adaptive_eight)(pool, x, y, NULL, false);
            continue;
        }
        for (int64_t i = 0; i < 8; i++) {
            const int64_t plane = unit + osw_min(i, count - 1);
            index[i] = (int32_t *)pool->offsets.base +
                       osw_place(&pool->offsets, plane / pool->channels, plane % pool->channels, 0);
        }
        LOCAL(adaptive_eight)(pool, x, y, index, true);
    }
}
