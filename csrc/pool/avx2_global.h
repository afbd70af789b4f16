/* SPDX-License-Identifier: MIT */
/* adaptive_max with one output a channel, and amax_backward, for one dtype;
 * included by avx2_max.h. Planes are read in vectors along the plane; pixels in groups of vectors
 * of channels, position by position. What is shorter than a vector goes to the scalar kernels. */

/* The maximum of one plane of `count` >= 8 elements: its index. */
OSW_INLINE int32_t LOCAL(plane_argmax)(const ELEMENT *x, int64_t count)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    osw_best a = {LOAD8(x), lane}, b = a;
    for (int64_t i = LANES; i < count; i += 2 * LANES) {
        const int64_t first = osw_min(i, count - LANES), second = osw_min(i + LANES, count - LANES);
        take(&a, LOAD8(x + first), _mm256_add_epi32(lane, _mm256_set1_epi32((int)first)), true);
        take(&b, LOAD8(x + second), _mm256_add_epi32(lane, _mm256_set1_epi32((int)second)), true);
    }
    return best_lane(&a, &b);
}

/* The maximum alone, in half the steps. False where it is a zero, whose sign depends on the order,
 * or a NaN. */
OSW_INLINE bool LOCAL(plane_max)(const ELEMENT *x, int64_t count, ELEMENT *y)
{
    __m256 a = LOAD8(x), b = a, nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
    for (int64_t i = LANES; i < count; i += 2 * LANES) {
        const __m256 first = LOAD8(x + osw_min(i, count - LANES));
        const __m256 second = LOAD8(x + osw_min(i + LANES, count - LANES));
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(first, second, _CMP_UNORD_Q));
        a = _mm256_max_ps(a, first);
        b = _mm256_max_ps(b, second);
    }
    const float best = _mm256_cvtss_f32(max_lanes(_mm256_max_ps(a, b)));
    *y = STORE(best);
    return best != 0 && !_mm256_movemask_ps(nan);
}

static void KERNEL(adaptive_max_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    const int64_t count = osw_input_plane(pool);
    if (!is_global(pool) || count < LANES) {
        fallback[OSW_POOL_ID_OF(adaptive_max_planes)](pool, begin, end);
        return;
    }
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t n = unit / pool->channels, c = unit % pool->channels;
        const ELEMENT *x = (const ELEMENT *)pool->input.base + osw_place(&pool->input, n, c, 0);
        ELEMENT *y = (ELEMENT *)pool->output.base + osw_place(&pool->output, n, c, 0);
        if (!pool->offsets.base && LOCAL(plane_max)(x, count, y))
            continue;
        const int32_t index = LOCAL(plane_argmax)(x, count);
        *y = x[index];
        if (pool->offsets.base)
            ((int32_t *)pool->offsets.base)[osw_place(&pool->offsets, n, c, 0)] = index;
    }
}

/* Channels [first, last) of image n, at least eight: all of a position before the next one, as they
 * lie in memory (several positions at a time, to save reloads, are read at half the speed). The
 * last vector overlaps; nothing changes when a tap is taken twice. */
static void LOCAL(pixel_argmax)(const osw_pool *pool, int64_t n, int64_t first, int64_t last)
{
    const ELEMENT *x = (const ELEMENT *)pool->input.base + osw_place(&pool->input, n, first, 0);
    ELEMENT *y = (ELEMENT *)pool->output.base + osw_place(&pool->output, n, first, 0);
    const int64_t channels = last - first, count = osw_input_plane(pool);
    const int64_t step = pool->input.pixel_step;
    osw_lanes lanes;
    for (int64_t c = 0; c < channels; c++) {
        lanes.value[c] = -INFINITY;
        lanes.tap[c] = 0;
    }
    for (int64_t p = 0; p < count; p++) {
        for (int64_t c = 0; c < channels; c += LANES) {
            c = osw_min(c, channels - LANES);
            osw_best best = {_mm256_loadu_ps(lanes.value + c), load_ints(lanes.tap + c)};
            take(&best, LOAD8(x + p * step + c), _mm256_set1_epi32((int)p), true);
            _mm256_storeu_ps(lanes.value + c, best.value);
            _mm256_storeu_si256((__m256i *)(lanes.tap + c), best.tap);
        }
    }
    for (int64_t c = 0; c < channels; c += LANES) {
        c = osw_min(c, channels - LANES);
        STORE8(y + c, _mm256_loadu_ps(lanes.value + c));
    }
    if (pool->offsets.base)
        memcpy((int32_t *)pool->offsets.base + osw_place(&pool->offsets, n, first, 0), lanes.tap,
               (size_t)channels * sizeof(int32_t));
}

/* `vectors` vectors of channels from c on, over the positions of one window, of
 * which nothing changes when one is taken twice. */
OSW_INLINE void LOCAL(adaptive_channels)(const osw_pool *pool, const ELEMENT *x,
                                         const osw_range *window, int64_t c, ELEMENT *y,
                                         int32_t *index, const int vectors)
{
    osw_best best[4];
    const int64_t start =
        osw_input_position(pool, window[DEPTH].first, window[HEIGHT].first, window[WIDTH].first);
    for (int v = 0; v < vectors; v++) {
        best[v].value = LOAD8(x + start * pool->input.pixel_step + c + v * LANES);
        best[v].tap = _mm256_set1_epi32((int32_t)start);
    }
    for (int64_t d = window[DEPTH].first; d < window[DEPTH].end; d++)
        for (int64_t h = window[HEIGHT].first; h < window[HEIGHT].end; h++)
            for (int64_t w = window[WIDTH].first; w < window[WIDTH].end; w++) {
                const int64_t position = osw_input_position(pool, d, h, w);
                const ELEMENT *at = x + position * pool->input.pixel_step + c;
                const __m256i tap = _mm256_set1_epi32((int32_t)position);
                for (int v = 0; v < vectors; v++)
                    take(&best[v], LOAD8(at + v * LANES), tap, true);
            }
    for (int v = 0; v < vectors; v++) {
        STORE8(y + c + v * LANES, best[v].value);
        if (index)
            _mm256_storeu_si256((__m256i *)(index + c + v * LANES), best[v].tap);
    }
}

/* Channels [first, last) of image n, at least eight, for outputs of any size. */
static void LOCAL(adaptive_block)(const osw_pool *pool, int64_t n, int64_t first, int64_t last)
{
    const osw_pool_dim *dims = pool->dims;
    const ELEMENT *x = (const ELEMENT *)pool->input.base + osw_place(&pool->input, n, first, 0);
    const int64_t channels = last - first;
    for (int64_t p = 0; p < osw_output_plane(pool); p++) {
        const osw_row row =
            osw_row_of(p / dims[WIDTH].output, 1, dims[DEPTH].output, dims[HEIGHT].output);
        const osw_range window[] = {osw_adaptive(&dims[DEPTH], row.depth),
                                    osw_adaptive(&dims[HEIGHT], row.height),
                                    osw_adaptive(&dims[WIDTH], p % dims[WIDTH].output)};
        ELEMENT *y = (ELEMENT *)pool->output.base + osw_place(&pool->output, n, first, p);
        int32_t *index = NULL;
        if (pool->offsets.base)
            index = (int32_t *)pool->offsets.base + osw_place(&pool->offsets, n, first, p);
        int64_t c = 0;
        for (; c + 4 * LANES <= channels; c += 4 * LANES)
            LOCAL(adaptive_channels)(pool, x, window, c, y, index, 4);
        for (; c < channels; c += LANES)
            LOCAL(adaptive_channels)
        (pool, x, window, osw_min(c, channels - LANES), y, index, 1);
    }
}

/* What positions get that are the maximum, and what the others get. */
OSW_INLINE void LOCAL(tie_share)(osw_tie *tie, __m256 gradient, __m256i ties)
{
    const __m256 count = ROUND8(_mm256_cvtepi32_ps(ties));
    const __m256 zero = ROUND8(_mm256_mul_ps(gradient, _mm256_setzero_ps()));
    tie->hit = ROUND8(_mm256_div_ps(gradient, count));
    tie->miss = ROUND8(_mm256_div_ps(zero, count));
}

OSW_INLINE __m256 LOCAL(tie_pick)(const osw_tie *tie, __m256 x)
{
    return _mm256_blendv_ps(tie->miss, tie->hit, _mm256_cmp_ps(x, tie->best, _CMP_EQ_OQ));
}

/* Ties of the channels at one position. */
OSW_INLINE void LOCAL(add_ties)(const ELEMENT *x, osw_ties *ties, int64_t channels)
{
    int64_t c = 0;
    for (; c + LANES <= channels; c += LANES) {
        const __m256 best = _mm256_loadu_ps(ties->best + c);
        const __m256i count = count_hits(load_ints(ties->count + c), LOAD8(x + c), best);
        _mm256_storeu_si256((__m256i *)(ties->count + c), count);
    }
    for (; c < channels; c++)
        ties->count[c] += LOAD(x[c]) == ties->best[c];
}

static void LOCAL(pixel_ties)(const osw_pool *pool, int64_t n, int64_t first, int64_t last)
{
    const ELEMENT *x = (const ELEMENT *)pool->input.base + osw_place(&pool->input, n, first, 0);
    const ELEMENT *y = (const ELEMENT *)pool->output.base + osw_place(&pool->output, n, first, 0);
    const ELEMENT *gradient =
        (const ELEMENT *)pool->grad_output.base + osw_place(&pool->grad_output, n, first, 0);
    ELEMENT *to = (ELEMENT *)pool->grad_input.base + osw_place(&pool->grad_input, n, first, 0);
    const int64_t channels = last - first, count = osw_input_plane(pool);
    const int64_t step = pool->input.pixel_step;
    osw_ties ties;
    for (int64_t c = 0; c < channels; c++) {
        ties.best[c] = LOAD(y[c]);
        ties.count[c] = 0;
    }
    for (int64_t p = 0; p < count; p++)
        LOCAL(add_ties)(x + p * step, &ties, channels);
    for (int64_t c = 0; c < channels; c += LANES) {
        osw_tie tie;
        c = osw_min(c, channels - LANES);
        LOCAL(tie_share)(&tie, LOAD8(gradient + c), load_ints(ties.count + c));
        _mm256_storeu_ps(ties.hit + c, tie.hit);
        _mm256_storeu_ps(ties.miss + c, tie.miss);
    }
    for (int64_t p = 0; p < count; p++)
        for (int64_t c = 0; c < channels; c += LANES) {
            c = osw_min(c, channels - LANES);
            const osw_tie tie = {_mm256_loadu_ps(ties.best + c), _mm256_loadu_ps(ties.hit + c),
                                 _mm256_loadu_ps(ties.miss + c)};
            STORE8(to + p * pool->grad_input.pixel_step + c,
                   LOCAL(tie_pick)(&tie, LOAD8(x + p * step + c)));
        }
}

/* A unit is a block of channels; blocks shorter than a vector go to the scalar kernel. */
#define PIXEL_UNITS(operation, block_function)                                                     \
    static void KERNEL(operation)(const osw_pool *pool, int64_t begin, int64_t end)                \
    {                                                                                              \
        for (int64_t unit = begin; unit < end; unit++) {                                           \
            const osw_block block = osw_block_of(pool, unit);                                      \
            if (block.end - block.first >= LANES)                                                  \
                block_function(pool, block.image, block.first, block.end);                         \
            else                                                                                   \
                fallback[OSW_POOL_ID_OF(operation)](pool, unit, unit + 1);                         \
        }                                                                                          \
    }

static void LOCAL(adaptive_any)(const osw_pool *pool, int64_t n, int64_t first, int64_t last)
{
    if (is_global(pool))
        LOCAL(pixel_argmax)(pool, n, first, last);
    else
        LOCAL(adaptive_block)(pool, n, first, last);
}

PIXEL_UNITS(adaptive_max_pixels, LOCAL(adaptive_any))
PIXEL_UNITS(amax_backward_pixels, LOCAL(pixel_ties))

#undef PIXEL_UNITS

OSW_INLINE void LOCAL(plane_ties)(const ELEMENT *x, ELEMENT best, ELEMENT gradient, ELEMENT *to,
                                  int64_t count)
{
    osw_tie tie = {.best = _mm256_set1_ps(LOAD(best))};
    __m256i ties = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        ties = count_hits(ties, LOAD8(x + i), tie.best);
    int32_t total = sum_ints(ties);
    for (; i < count; i++)
        total += LOAD(x[i]) == LOAD(best);
    LOCAL(tie_share)(&tie, _mm256_set1_ps(LOAD(gradient)), _mm256_set1_epi32(total));
    for (i = 0; i < count; i += LANES) {
        i = osw_min(i, count - LANES);
        STORE8(to + i, LOCAL(tie_pick)(&tie, LOAD8(x + i)));
    }
}

static void KERNEL(amax_backward_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    const int64_t count = osw_input_plane(pool);
    if (count < LANES) {
        fallback[OSW_POOL_ID_OF(amax_backward_planes)](pool, begin, end);
        return;
    }
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t n = unit / pool->channels, c = unit % pool->channels;
        LOCAL(plane_ties)
        ((const ELEMENT *)pool->input.base + osw_place(&pool->input, n, c, 0),
         ((const ELEMENT *)pool->output.base)[osw_place(&pool->output, n, c, 0)],
         ((const ELEMENT *)pool->grad_output.base)[osw_place(&pool->grad_output, n, c, 0)],
         (ELEMENT *)pool->grad_input.base + osw_place(&pool->grad_input, n, c, 0), count);
    }
}
