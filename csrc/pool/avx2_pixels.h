/* SPDX-License-Identifier: MIT */
/* max and max_backward over pixels for one dtype; included by avx2_types.h. A vector holds eight
 * channels of a position; the taps of a window are read where they lie. */

/* One vector of channels; count is a constant in the calls that matter. */
OSW_INLINE osw_best LOCAL(window_max)(const osw_window *window, int64_t c, const int count,
                                      const int step, const bool with_taps)
{
    osw_best best = {LOCAL(load_step)((const ELEMENT *)window->taps[0].at, c, step),
                     _mm256_set1_epi32(window->taps[0].tap)};
    for (int k = 1; k < count; k++)
        take(&best, LOCAL(load_step)((const ELEMENT *)window->taps[k].at, c, step),
             _mm256_set1_epi32(window->taps[k].tap), with_taps);
    restore(&best, step);
    return best;
}

OSW_INLINE osw_best LOCAL(window_last)(const osw_window *window, int64_t c, int64_t step)
{
    osw_best best = {LOCAL(load_last)((const ELEMENT *)window->taps[0].at, c, step),
                     _mm256_set1_epi32(window->taps[0].tap)};
    for (int k = 1; k < window->count; k++)
        take(&best, LOCAL(load_last)((const ELEMENT *)window->taps[k].at, c, step),
             _mm256_set1_epi32(window->taps[k].tap), true);
    return best;
}

/* All channels of one position. */
OSW_INLINE void LOCAL(window_position)(const osw_pool *pool, const osw_window *window, ELEMENT *y,
                                       uint8_t *taps, const int count, const int step)
{
    const int64_t whole = pool->input_channels / step;
    int64_t c = 0;
    for (; c + LANES <= whole; c += LANES) {
        const osw_best best = taps ? LOCAL(window_max)(window, c, count, step, true)
                                   : LOCAL(window_max)(window, c, count, step, false);
        STORE8(y + c, best.value);
        if (taps)
            store_taps(taps + c, best.tap);
    }
    if (c == pool->channels)
        return;
    c = pool->channels - LANES;
    const osw_best best = step == 1 ? LOCAL(window_max)(window, c, count, 1, true)
                                    : LOCAL(window_last)(window, c, step);
    STORE8(y + c, best.value);
    if (taps)
        store_taps(taps + c, best.tap);
}

OSW_INLINE void LOCAL(window_steps)(const osw_pool *pool, const osw_window *window, ELEMENT *y,
                                    uint8_t *taps, const int count)
{
    if (pool->channel_step == 1)
        LOCAL(window_position)(pool, window, y, taps, count, 1);
    else if (pool->channel_step == 2)
        LOCAL(window_position)(pool, window, y, taps, count, 2);
    else
        LOCAL(window_position)(pool, window, y, taps, count, 4);
}

OSW_INLINE void LOCAL(window_row)(const osw_pool *pool, const osw_row *row)
{
    osw_rows rows;
    osw_window window;
    const int64_t step = pool->input.pixel_step * (int64_t)sizeof(ELEMENT);
    set_input_rows(&rows, pool, row, sizeof(ELEMENT));
    for (int64_t w = 0; w < pool->dims[WIDTH].output; w++) {
        const int64_t position = osw_output_position(pool, row->depth, row->height, w);
        ELEMENT *y =
            (ELEMENT *)pool->output.base + osw_place(&pool->output, row->image, 0, position);
        uint8_t *taps = NULL;
        if (pool->offsets.base)
            taps =
                (uint8_t *)pool->offsets.base + osw_place(&pool->offsets, row->image, 0, position);
        set_window(&window, &pool->dims[WIDTH], &rows, w, step);
        if (window.count == 9)
            LOCAL(window_steps)(pool, &window, y, taps, 9);
        else if (window.count == 4)
            LOCAL(window_steps)(pool, &window, y, taps, 4);
        else
            LOCAL(window_steps)(pool, &window, y, taps, window.count);
    }
}

static void KERNEL(max_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (!fits_window(pool)) {
        fallback[OSW_POOL_ID_OF(max_pixels)](pool, begin, end);
        return;
    }
    if (fits_compact(pool)) {
        LOCAL(compact_units)(pool, begin, end);
        return;
    }
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_row row = osw_output_row(pool, 1, unit);
        LOCAL(window_row)(pool, &row);
    }
}

/* The gradient of eight channels of the output at one position of the input. */
OSW_INLINE __m256 LOCAL(sum_sources)(const osw_sources *sources, int64_t c, const int count)
{
    __m256 total = _mm256_setzero_ps();
    for (int k = 0; k < count; k++) {
        const __m256i hit = _mm256_cmpeq_epi32(load_taps(sources->source[k].offsets + c),
                                               _mm256_set1_epi32(sources->source[k].tap));
        const __m256 gradient = LOAD8((const ELEMENT *)sources->source[k].gradient + c);
        total = _mm256_add_ps(total, _mm256_and_ps(gradient, _mm256_castsi256_ps(hit)));
        if (k > 0)
            total = ROUND8(total);
    }
    return total;
}

/* `total` to channels c to c + 8 of the output, zeros to the channels between. */
OSW_INLINE void LOCAL(store_step)(ELEMENT *to, int64_t c, __m256 total, const int step)
{
    ELEMENT *p = to + c * step;
    __m256 a, b;
    if (step == 1) {
        STORE8(p, total);
        return;
    }
    zip(total, _mm256_setzero_ps(), &a, &b);
    if (step == 2) {
        STORE8(p, a);
        STORE8(p + 8, b);
        return;
    }
    __m256 quarter[4];
    zip(a, _mm256_setzero_ps(), &quarter[0], &quarter[1]);
    zip(b, _mm256_setzero_ps(), &quarter[2], &quarter[3]);
    for (int i = 0; i < 4; i++)
        STORE8(p + 8 * i, quarter[i]);
}

/* The last channels, where whole vectors would write past the last one. */
OSW_INLINE void LOCAL(store_last)(const osw_pool *pool, ELEMENT *to, int64_t c, __m256 total)
{
    float lanes[LANES];
    _mm256_storeu_ps(lanes, total);
    for (int64_t i = 0; i < LANES; i++) {
        const int64_t first = (c + i) * pool->channel_step;
        const int64_t end = osw_min(first + pool->channel_step, pool->input_channels);
        to[first] = STORE(lanes[i]);
        for (int64_t j = first + 1; j < end; j++)
            to[j] = 0;
    }
}

OSW_INLINE void LOCAL(collect_position)(const osw_pool *pool, const osw_sources *sources,
                                        ELEMENT *to, const int count, const int step)
{
    const int64_t whole = pool->input_channels / step;
    int64_t c = 0;
    for (; c + LANES <= whole; c += LANES)
        LOCAL(store_step)(to, c, LOCAL(sum_sources)(sources, c, count), step);
    if (c == pool->channels)
        return;
    c = pool->channels - LANES;
    LOCAL(store_last)(pool, to, c, LOCAL(sum_sources)(sources, c, count));
}

OSW_INLINE void LOCAL(collect_steps)(const osw_pool *pool, const osw_sources *sources, ELEMENT *to,
                                     const int count)
{
    if (pool->channel_step == 1)
        LOCAL(collect_position)(pool, sources, to, count, 1);
    else if (pool->channel_step == 2)
        LOCAL(collect_position)(pool, sources, to, count, 2);
    else
        LOCAL(collect_position)(pool, sources, to, count, 4);
}

OSW_INLINE void LOCAL(collect_count)(const osw_pool *pool, const osw_sources *sources, ELEMENT *to)
{
    switch (sources->count) {
    case 1:
        LOCAL(collect_steps)(pool, sources, to, 1);
        break;
    case 2:
        LOCAL(collect_steps)(pool, sources, to, 2);
        break;
    case 4:
        LOCAL(collect_steps)(pool, sources, to, 4);
        break;
    case 9:
        LOCAL(collect_steps)(pool, sources, to, 9);
        break;
    default:
        LOCAL(collect_steps)(pool, sources, to, sources->count);
    }
}

static void KERNEL(max_backward_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    if (!fits_window(pool)) {
        fallback[OSW_POOL_ID_OF(max_backward_pixels)](pool, begin, end);
        return;
    }
    osw_sources sources;
    osw_rows rows;
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_row row = osw_input_row(pool, 1, unit);
        osw_range range = {0, 0};
        set_output_rows(&rows, pool, &row, sizeof(ELEMENT));
        for (int64_t w = 0; w < pool->dims[WIDTH].input; w++) {
            const int64_t position = osw_input_position(pool, row.depth, row.height, w);
            ELEMENT *to = (ELEMENT *)pool->grad_input.base +
                          osw_place(&pool->grad_input, row.image, 0, position);
            set_sources(&sources, pool, &rows, w, &range, sizeof(ELEMENT));
            LOCAL(collect_count)(pool, &sources, to);
        }
    }
}
