/* SPDX-License-Identifier: MIT */
/* adaptive_max and its backward with one output a channel, and amax_backward, for one dtype;
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
        const int32_t index = LOCAL(plane_argmax)(x, count);
        ((ELEMENT *)pool->output.base)[osw_place(&pool->output, n, c, 0)] = x[index];
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

static void LOCAL(pixel_scatter)(const osw_pool *pool, int64_t n, int64_t first, int64_t last)
{
    const ELEMENT *gradient =
        (const ELEMENT *)pool->grad_output.base + osw_place(&pool->grad_output, n, first, 0);
    const int32_t *index =
        (const int32_t *)pool->offsets.base + osw_place(&pool->offsets, n, first, 0);
    ELEMENT *to = (ELEMENT *)pool->grad_input.base + osw_place(&pool->grad_input, n, first, 0);
    const int64_t channels = last - first, count = osw_input_plane(pool);
    for (int64_t p = 0; p < count; p++, to += pool->grad_input.pixel_step) {
        const __m256i position = _mm256_set1_epi32((int)p);
        for (int64_t c = 0; c < channels; c += LANES) {
            c = osw_min(c, channels - LANES);
            const __m256i hit = _mm256_cmpeq_epi32(load_ints(index + c), position);
            const __m256 chosen = _mm256_and_ps(LOAD8(gradient + c), _mm256_castsi256_ps(hit));
            STORE8(to + c, _mm256_add_ps(chosen, _mm256_setzero_ps()));
        }
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
#define PIXEL_UNITS(operation, block_function, covered)                                            \
    static void KERNEL(operation)(const osw_pool *pool, int64_t begin, int64_t end)                \
    {                                                                                              \
        for (int64_t unit = begin; unit < end; unit++) {                                           \
            const osw_block block = osw_block_of(pool, unit);                                      \
            if (covered && block.end - block.first >= LANES)                                       \
                block_function(pool, block.image, block.first, block.end);                         \
            else                                                                                   \
                fallback[OSW_POOL_ID_OF(operation)](pool, unit, unit + 1);                         \
        }                                                                                          \
    }

PIXEL_UNITS(adaptive_max_pixels, LOCAL(pixel_argmax), is_global(pool))
PIXEL_UNITS(adaptive_max_backward_pixels, LOCAL(pixel_scatter), is_global(pool))
PIXEL_UNITS(amax_backward_pixels, LOCAL(pixel_ties), true)

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
