/* SPDX-License-Identifier: MIT */
/* amax_backward for one dtype; included by avx2_max.h. Where the forward pass has noted the
 * position of a maximum that is alone, the input is not read again. */

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

/* What positions get that are not the maximum. */
OSW_INLINE ELEMENT LOCAL(missed)(ELEMENT gradient, int32_t position)
{
    return position == OSW_POOL_NOWHERE ? STORE(NAN) : STORE(LOAD(gradient) * 0);
}

/* Hits of one channel of pixels whose maximum is not alone, from position `first` on. */
static void LOCAL(share_hits)(const ELEMENT *x, int64_t x_step, VALUE best, int64_t first,
                              int64_t count, ELEMENT gradient, ELEMENT *to, int64_t to_step)
{
    int32_t ties = 0;
    for (int64_t p = first; p < count; p++)
        ties += LOAD(x[p * x_step]) == best;
    const ELEMENT hit = STORE(LOAD(gradient) / LOAD(STORE((VALUE)ties)));
    for (int64_t p = first; p < count; p++)
        if (LOAD(x[p * x_step]) == best)
            to[p * to_step] = hit;
}

/* The same as pixel_ties, from the positions of the maxima. */
static void LOCAL(pixel_hits)(const osw_pool *pool, int64_t n, int64_t first, int64_t last)
{
    const ELEMENT *x = (const ELEMENT *)pool->input.base + osw_place(&pool->input, n, first, 0);
    const ELEMENT *y = (const ELEMENT *)pool->output.base + osw_place(&pool->output, n, first, 0);
    const ELEMENT *gradient =
        (const ELEMENT *)pool->grad_output.base + osw_place(&pool->grad_output, n, first, 0);
    const int32_t *position =
        (const int32_t *)pool->offsets.base + osw_place(&pool->offsets, n, first, 0);
    ELEMENT *to = (ELEMENT *)pool->grad_input.base + osw_place(&pool->grad_input, n, first, 0);
    const int64_t channels = last - first, count = osw_input_plane(pool);
    const int64_t x_step = pool->input.pixel_step, to_step = pool->grad_input.pixel_step;
    ELEMENT missed[OSW_POOL_MAX_BLOCK];
    for (int64_t c = 0; c < channels; c++)
        missed[c] = LOCAL(missed)(gradient[c], position[c]);
    for (int64_t p = 0; p < count; p++)
        memcpy(to + p * to_step, missed, (size_t)channels * sizeof(ELEMENT));
    for (int64_t c = 0; c < channels; c++) {
        if (position[c] >= 0 && position[c] < count)
            to[position[c] * to_step + c] = gradient[c];
        else if (position[c] < 0 && ~position[c] < count)
            LOCAL(share_hits)
        (x + c, x_step, LOAD(y[c]), ~position[c], count, gradient[c], to + c, to_step);
    }
}

/* Maxima of a block that are not alone are looked for one by one only where they are few. */
static bool LOCAL(mostly_alone)(const osw_pool *pool, const osw_block *block)
{
    enum { FEW = 4 };
    if (!pool->offsets.base)
        return false;
    const int32_t *position = (const int32_t *)pool->offsets.base +
                              osw_place(&pool->offsets, block->image, block->first, 0);
    int64_t shared = 0;
    for (int64_t c = 0; c < block->end - block->first; c++)
        shared += position[c] < 0;
    return shared * FEW <= block->end - block->first;
}

static void KERNEL(amax_backward_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_block block = osw_block_of(pool, unit);
        if (LOCAL(mostly_alone)(pool, &block))
            LOCAL(pixel_hits)(pool, block.image, block.first, block.end);
        else if (block.end - block.first >= LANES)
            LOCAL(pixel_ties)(pool, block.image, block.first, block.end);
        else
            fallback[OSW_POOL_ID_OF(amax_backward_pixels)](pool, unit, unit + 1);
    }
}

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

/* Everything but the one hit of a plane, of which there may be none. */
OSW_INLINE void LOCAL(plane_hit)(int32_t position, ELEMENT gradient, ELEMENT *to, int64_t count)
{
    const __m256 missed = _mm256_set1_ps(LOAD(LOCAL(missed)(gradient, position)));
    for (int64_t i = 0; i < count; i += LANES)
        STORE8(to + osw_min(i, count - LANES), missed);
    if (position >= 0 && position < count)
        to[position] = gradient;
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
        const ELEMENT gradient =
            ((const ELEMENT *)pool->grad_output.base)[osw_place(&pool->grad_output, n, c, 0)];
        ELEMENT *to = (ELEMENT *)pool->grad_input.base + osw_place(&pool->grad_input, n, c, 0);
        const int32_t position =
            pool->offsets.base
                ? ((const int32_t *)pool->offsets.base)[osw_place(&pool->offsets, n, c, 0)]
                : -1;
        if (position >= 0 || position == OSW_POOL_NOWHERE)
            LOCAL(plane_hit)(position, gradient, to, count);
        else
            LOCAL(plane_ties)
        ((const ELEMENT *)pool->input.base + osw_place(&pool->input, n, c, 0),
         ((const ELEMENT *)pool->output.base)[osw_place(&pool->output, n, c, 0)], gradient, to,
         count);
    }
}
