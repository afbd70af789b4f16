/* SPDX-License-Identifier: MIT */
/* The maximum of whole planes for one dtype: adaptive_max with one output a channel, and amax;
 * included by avx2_max.h. Planes are read in vectors along the plane; pixels in vectors of
 * channels, position by position. What is shorter than a vector, and what has a NaN, goes to the
 * scalar kernels. */

/* The greatest key of one plane of at least a vector, in all lanes; false if it has a NaN. */
OSW_INLINE bool LOCAL(plane_best)(const ELEMENT *x, int64_t count, __m256i *best)
{
    __m256i a = KEY(load_keys)(x), b = a;
    __m256i seen = KEY(watch_keys)(_mm256_setzero_si256(), a);
    for (int64_t i = KEYS; i < count; i += 2 * KEYS) {
        const __m256i first = KEY(load_keys)(x + osw_min(i, count - KEYS));
        const __m256i second = KEY(load_keys)(x + osw_min(i + KEYS, count - KEYS));
        seen = KEY(watch_keys)(KEY(watch_keys)(seen, first), second);
        a = KEY(max_keys)(a, first);
        b = KEY(max_keys)(b, second);
    }
    *best = KEY(greatest)(KEY(max_keys)(a, b));
    return !KEY(saw_nan)(seen, *best, KEY_INFINITY);
}

/* A bit for every key among up to CHUNK, at least a vector of them, that equals the best. */
OSW_INLINE uint64_t LOCAL(equal_keys)(const ELEMENT *x, int64_t count, __m256i best)
{
    uint64_t mask = 0;
    for (int64_t i = 0; i < count; i += KEYS) {
        const int64_t at = osw_min(i, count - KEYS);
        mask |= KEY(mask_of)(KEY(equal)(KEY(load_keys)(x + at), best)) << at;
    }
    return mask;
}

/* The first position of the best key. */
OSW_INLINE int32_t LOCAL(plane_position)(const ELEMENT *x, int64_t count, __m256i best)
{
    for (int64_t i = 0;; i += CHUNK) {
        const int64_t at = osw_min(i, count - KEYS);
        const uint64_t mask = LOCAL(equal_keys)(x + at, osw_min(CHUNK, count - at), best);
        if (mask)
            return (int32_t)(at + __builtin_ctzll(mask));
    }
}

/* What amax notes of a plane. In planes of several chunks that costs more than it saves. */
OSW_INLINE int32_t LOCAL(plane_note)(const ELEMENT *x, int64_t count, __m256i best)
{
    if (count > CHUNK)
        return OSW_POOL_SOMEWHERE;
    const uint64_t mask = LOCAL(equal_keys)(x, count, best);
    const int32_t first = (int32_t)__builtin_ctzll(mask);
    return (mask & (mask - 1)) ? ~first : first;
}

/* One plane; false if it has a NaN. */
OSW_INLINE bool LOCAL(plane_max)(const ELEMENT *x, int64_t count, ELEMENT *y, int32_t *position,
                                 const bool ties)
{
    __m256i best;
    if (!LOCAL(plane_best)(x, count, &best))
        return false;
    if (position)
        *position =
            ties ? LOCAL(plane_note)(x, count, best) : LOCAL(plane_position)(x, count, best);
    /* Of two zeros the first counts, and the sign of the best key is that of any. */
    const __m256i zero = KEY(equal)(best, _mm256_setzero_si256());
    if (_mm256_movemask_epi8(zero)) {
        *y = x[LOCAL(plane_position)(x, count, best)];
        return true;
    }
    const __m256i element = KEY(elements_of)(best);
    memcpy(y, &element, sizeof(ELEMENT));
    return true;
}

OSW_INLINE void LOCAL(max_of_planes)(const osw_pool *pool, int64_t begin, int64_t end,
                                     osw_pool_fn *exactly, const bool ties)
{
    const int64_t count = osw_input_plane(pool);
    if (count < KEYS) {
        exactly(pool, begin, end);
        return;
    }
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t n = unit / pool->channels, c = unit % pool->channels;
        const ELEMENT *x = (const ELEMENT *)pool->input.base + osw_place(&pool->input, n, c, 0);
        ELEMENT *y = (ELEMENT *)pool->output.base + osw_place(&pool->output, n, c, 0);
        int32_t *position = NULL;
        if (pool->offsets.base)
            position = (int32_t *)pool->offsets.base + osw_place(&pool->offsets, n, c, 0);
        if (!LOCAL(plane_max)(x, count, y, position, ties))
            exactly(pool, unit, unit + 1);
    }
}

static void KERNEL(adaptive_max_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    osw_pool_fn *exactly = fallback[OSW_POOL_ID_OF(adaptive_max_planes)];
    if (is_global(pool))
        LOCAL(max_of_planes)(pool, begin, end, exactly, false);
    else if (adaptive_fits(pool))
        LOCAL(adaptive_planes)(pool, begin, end);
    else
        exactly(pool, begin, end);
}

static void KERNEL(amax_planes)(const osw_pool *pool, int64_t begin, int64_t end)
{
    LOCAL(max_of_planes)(pool, begin, end, fallback[OSW_POOL_ID_OF(amax_planes)], true);
}

/* The best key of every channel of a block so far, its first position and its last. */
typedef struct LOCAL(state) {
    ELEMENT best[OSW_POOL_MAX_BLOCK];
    POSITION first[OSW_POOL_MAX_BLOCK];
    POSITION last[OSW_POOL_MAX_BLOCK];
} LOCAL(state);

/* `count` positions from p on of one vector of channels; x is channel 0 of the first. */
OSW_INLINE __m256i LOCAL(take_keys)(LOCAL(state) * state, int64_t c, const ELEMENT *x, int64_t step,
                                    int64_t p, __m256i seen, const int found, const int count)
{
    __m256i best = load_any(state->best + c), first = best, last = best;
    if (found != VALUES)
        first = load_any(state->first + c);
    if (found == FIRST_AND_LAST)
        last = load_any(state->last + c);
    for (int k = 0; k < count; k++) {
        const __m256i keys = KEY(load_keys)(x + k * step + c), at = KEY(all_positions)(p + k);
        if (found != VALUES)
            first = _mm256_blendv_epi8(first, at, KEY(above)(keys, best));
        if (found == FIRST_AND_LAST)
            last = _mm256_blendv_epi8(at, last, KEY(above)(best, keys));
        best = KEY(max_keys)(best, keys);
        seen = KEY(watch_keys)(seen, keys);
    }
    store_any(state->best + c, best);
    if (found != VALUES)
        store_any(state->first + c, first);
    if (found == FIRST_AND_LAST)
        store_any(state->last + c, last);
    return seen;
}

/* The same of all channels, of which the last vector overlaps: nothing changes when a position is
 * taken twice. */
OSW_INLINE __m256i LOCAL(take_pixels)(LOCAL(state) * state, int64_t channels, const ELEMENT *x,
                                      int64_t step, int64_t p, __m256i seen, const int found,
                                      const int count)
{
    int64_t c = 0;
    for (; c + KEYS <= channels; c += KEYS)
        seen = LOCAL(take_keys)(state, c, x, step, p, seen, found, count);
    if (c < channels)
        seen = LOCAL(take_keys)(state, channels - KEYS, x, step, p, seen, found, count);
    return seen;
}

/* All positions of `channels` channels, at least a vector. Several short ones are taken together,
 * which spares the state; long ones are read faster one after the other, as they lie in memory. */
OSW_INLINE bool LOCAL(pass_pixels)(const osw_pool *pool, const ELEMENT *x, int64_t channels,
                                   LOCAL(state) * state, const int found)
{
    enum { SHORT = 256 / (int)sizeof(ELEMENT), TOGETHER = 4 };
    const int64_t count = osw_input_plane(pool), step = pool->input.pixel_step;
    __m256i seen = _mm256_setzero_si256(), best = seen;
    for (int64_t i = 0; i < channels; i += KEYS) {
        const int64_t c = osw_min(i, channels - KEYS);
        store_any(state->best + c, KEY(load_keys)(x + c));
        seen = KEY(watch_keys)(seen, KEY(load_keys)(x + c));
    }
    memset(state->first, 0, (size_t)channels * sizeof *state->first);
    memset(state->last, 0, (size_t)channels * sizeof *state->last);
    int64_t p = 1;
    for (; step <= SHORT && p + TOGETHER <= count; p += TOGETHER)
        seen = LOCAL(take_pixels)(state, channels, x + p * step, step, p, seen, found, TOGETHER);
    for (; p < count; p++)
        seen = LOCAL(take_pixels)(state, channels, x + p * step, step, p, seen, found, 1);
    for (int64_t i = 0; i < channels; i += KEYS)
        best = KEY(max_keys)(best, load_any(state->best + osw_min(i, channels - KEYS)));
    return !KEY(saw_nan)(seen, best, KEY_INFINITY);
}

/* Best keys as elements; a zero takes its sign from the first one of its channel. */
OSW_INLINE void LOCAL(store_best)(const osw_pool *pool, const ELEMENT *x, int64_t channels,
                                  const LOCAL(state) * state, ELEMENT *y)
{
    for (int64_t i = 0; i < channels; i += KEYS) {
        const int64_t c = osw_min(i, channels - KEYS);
        const __m256i keys = _mm256_loadu_si256((const __m256i *)(state->best + c));
        _mm256_storeu_si256((__m256i *)(y + c), KEY(elements_of)(keys));
        if (!KEY(lost_sign)(keys))
            continue;
        for (int64_t lane = c; lane < c + KEYS; lane++) {
            const ELEMENT *zero = x + lane;
            while (state->best[lane] == 0 && LOAD(*zero) != 0)
                zero += pool->input.pixel_step;
            if (state->best[lane] == 0)
                y[lane] = *zero;
        }
    }
}

/* The first positions, inverted where there are others. */
OSW_INLINE void LOCAL(store_positions)(const LOCAL(state) * state, int64_t channels, int32_t *to,
                                       const int found)
{
    for (int64_t i = 0; i < channels; i += LANES) {
        const int64_t c = osw_min(i, channels - LANES);
        __m256i first = KEY(eight_positions)(state->first, c);
        if (found == FIRST_AND_LAST) {
            const __m256i last = KEY(eight_positions)(state->last, c);
            const __m256i alone = _mm256_cmpeq_epi32(first, last);
            first = _mm256_xor_si256(first, _mm256_andnot_si256(alone, _mm256_set1_epi32(-1)));
        }
        _mm256_storeu_si256((__m256i *)(to + c), first);
    }
}

/* One block of channels; false where it is too short, has a NaN, or too many positions. */
OSW_INLINE bool LOCAL(max_of_pixels)(const osw_pool *pool, const osw_block *block, const int found)
{
    const int64_t channels = block->end - block->first, n = block->image, c = block->first;
    const ELEMENT *x = (const ELEMENT *)pool->input.base + osw_place(&pool->input, n, c, 0);
    ELEMENT *y = (ELEMENT *)pool->output.base + osw_place(&pool->output, n, c, 0);
    const bool countable = sizeof(POSITION) > 2 || osw_input_plane(pool) <= UINT16_MAX;
    LOCAL(state) state;
    if (channels < KEYS || !countable || !LOCAL(pass_pixels)(pool, x, channels, &state, found))
        return false;
    LOCAL(store_best)(pool, x, channels, &state, y);
    if (found != VALUES)
        LOCAL(store_positions)
    (&state, channels, (int32_t *)pool->offsets.base + osw_place(&pool->offsets, n, c, 0), found);
    return true;
}

static void KERNEL(adaptive_max_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_block block = osw_block_of(pool, unit);
        if (is_global(pool) && (pool->offsets.base ? LOCAL(max_of_pixels)(pool, &block, FIRST)
                                                   : LOCAL(max_of_pixels)(pool, &block, VALUES)))
            continue;
        if (block.end - block.first >= LANES)
            LOCAL(adaptive_block)(pool, block.image, block.first, block.end);
        else
            fallback[OSW_POOL_ID_OF(adaptive_max_pixels)](pool, unit, unit + 1);
    }
}

static void KERNEL(amax_pixels)(const osw_pool *pool, int64_t begin, int64_t end)
{
    for (int64_t unit = begin; unit < end; unit++) {
        const osw_block block = osw_block_of(pool, unit);
        if (!LOCAL(max_of_pixels)(pool, &block, FIRST_AND_LAST))
            fallback[OSW_POOL_ID_OF(amax_pixels)](pool, unit, unit + 1);
    }
}
