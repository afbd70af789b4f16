/* SPDX-License-Identifier: MIT */
/* What the global reductions need whatever the dtype; included by pool_avx2_max.c inside its target
 * region. */

/* The maximum of every channel of a block so far. */
typedef struct osw_lanes {
    float value[OSW_POOL_MAX_BLOCK];
    int32_t tap[OSW_POOL_MAX_BLOCK];
} osw_lanes;

typedef struct osw_ties {
    float best[OSW_POOL_MAX_BLOCK];
    float hit[OSW_POOL_MAX_BLOCK];
    float miss[OSW_POOL_MAX_BLOCK];
    int32_t count[OSW_POOL_MAX_BLOCK];
} osw_ties;

typedef struct osw_tie {
    __m256 best;
    __m256 hit;
    __m256 miss;
} osw_tie;

static inline bool is_global(const osw_pool *pool)
{
    return osw_output_plane(pool) == 1;
}

OSW_INLINE __m256i count_hits(__m256i ties, __m256 x, __m256 best)
{
    return _mm256_sub_epi32(ties, _mm256_castps_si256(_mm256_cmp_ps(x, best, _CMP_EQ_OQ)));
}

OSW_INLINE int32_t sum_ints(__m256i v)
{
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

OSW_INLINE int32_t min_int(__m256i v)
{
    __m128i least = _mm_min_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    least = _mm_min_epi32(least, _mm_shuffle_epi32(least, 0x4e));
    return _mm_cvtsi128_si32(_mm_min_epi32(least, _mm_shuffle_epi32(least, 0xb1)));
}

/* The greatest of eight numbers, in all lanes. */
OSW_INLINE __m256 max_lanes(__m256 v)
{
    v = _mm256_max_ps(v, _mm256_permute2f128_ps(v, v, 1));
    v = _mm256_max_ps(v, _mm256_shuffle_ps(v, v, 0x4e));
    return _mm256_max_ps(v, _mm256_shuffle_ps(v, v, 0xb1));
}

OSW_INLINE __m256i where(__m256 mask, __m256i v, int32_t otherwise)
{
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(_mm256_set1_epi32(otherwise)),
                                                _mm256_castsi256_ps(v), mask));
}

/* The tap that wins among all lanes of both: the last NaN, else the first of the greatest. */
OSW_INLINE int32_t best_lane(const osw_best *a, const osw_best *b)
{
    const __m256 nan_a = _mm256_cmp_ps(a->value, a->value, _CMP_UNORD_Q);
    const __m256 nan_b = _mm256_cmp_ps(b->value, b->value, _CMP_UNORD_Q);
    if (_mm256_movemask_ps(_mm256_or_ps(nan_a, nan_b))) {
        const __m256i all_ones = _mm256_set1_epi32(-1); /* ~tap: the greatest becomes the least */
        const __m256i last_a = _mm256_xor_si256(where(nan_a, a->tap, -1), all_ones);
        const __m256i last_b = _mm256_xor_si256(where(nan_b, b->tap, -1), all_ones);
        return ~min_int(_mm256_min_epi32(last_a, last_b));
    }
    const __m256 greatest = max_lanes(_mm256_max_ps(a->value, b->value));
    const __m256 equal_a = _mm256_cmp_ps(a->value, greatest, _CMP_EQ_OQ);
    const __m256 equal_b = _mm256_cmp_ps(b->value, greatest, _CMP_EQ_OQ);
    return min_int(
        _mm256_min_epi32(where(equal_a, a->tap, INT32_MAX), where(equal_b, b->tap, INT32_MAX)));
}
