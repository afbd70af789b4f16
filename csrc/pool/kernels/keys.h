/* SPDX-License-Identifier: MIT */
/* Keys stand for the elements of a vector of 32 bytes where only their order matters: floats
 * themselves; 16-bit floats as integers, sign and magnitude turned into two's complement, which
 * makes both zeros 0 and takes no conversion. A NaN is no key: `watch_keys` notices it. Included
 * inside a target region, after rounding.h. */

/* Lanes of keys, as many as there are elements of the dtype in a vector. */
#define KEYS (32 / (int)sizeof(ELEMENT))

/* Elements whose comparison fits a mask of 64 bits. */
enum { CHUNK = 64 };

/* What a pass over pixels finds out beside the maximum: positions of it. */
enum { VALUES, FIRST, FIRST_AND_LAST };

OSW_INLINE __m256i load_any(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

OSW_INLINE void store_any(void *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

OSW_INLINE __m256i load_keys_f32(const float *p)
{
    return _mm256_castps_si256(_mm256_loadu_ps(p));
}

/* The greater keys, of two equal ones the first. */
OSW_INLINE __m256i max_keys_f32(__m256i first, __m256i second)
{
    return _mm256_castps_si256(max_first(_mm256_castsi256_ps(first), _mm256_castsi256_ps(second)));
}

OSW_INLINE __m256i above_f32(__m256i a, __m256i b)
{
    return _mm256_castps_si256(
        _mm256_cmp_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), _CMP_GT_OQ));
}

OSW_INLINE __m256i equal_f32(__m256i a, __m256i b)
{
    return _mm256_castps_si256(
        _mm256_cmp_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), _CMP_EQ_OQ));
}

/* `seen` starts as zeros. */
OSW_INLINE __m256i watch_keys_f32(__m256i seen, __m256i keys)
{
    const __m256 v = _mm256_castsi256_ps(keys);
    return _mm256_or_si256(seen, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
}

/* Whether a NaN was among the keys that were seen. best: their maximum; infinity: its key, of
 * 16-bit floats. */
OSW_INLINE bool saw_nan_f32(__m256i seen, __m256i best, int16_t infinity)
{
    (void)best, (void)infinity;
    return _mm256_movemask_ps(_mm256_castsi256_ps(seen)) != 0;
}

/* The greatest key, in all lanes. */
OSW_INLINE __m256i greatest_f32(__m256i keys)
{
    return _mm256_castps_si256(max_lanes(_mm256_castsi256_ps(keys)));
}

/* A bit a lane. */
OSW_INLINE uint64_t mask_of_f32(__m256i mask)
{
    return (uint64_t)_mm256_movemask_ps(_mm256_castsi256_ps(mask));
}

/* Keys other than zero as elements. */
OSW_INLINE __m256i elements_of_f32(__m256i keys)
{
    return keys;
}

/* Whether a zero among the keys may have lost its sign. */
OSW_INLINE bool lost_sign_f32(__m256i keys)
{
    (void)keys;
    return false;
}

OSW_INLINE __m256i all_positions_f32(int64_t p)
{
    return _mm256_set1_epi32((int)p);
}

OSW_INLINE __m256i load_keys_16(const uint16_t *p)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)p);
    return _mm256_sign_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x7fff)), x);
}

/* A positive NaN shows in the maximum, a negative one in the minimum. */
OSW_INLINE bool saw_nan_16(__m256i seen, __m256i best, int16_t infinity)
{
    const __m256i high = _mm256_cmpgt_epi16(best, _mm256_set1_epi16(infinity));
    const __m256i low = _mm256_cmpgt_epi16(_mm256_set1_epi16((int16_t)-infinity), seen);
    return _mm256_movemask_epi8(_mm256_or_si256(high, low)) != 0;
}

OSW_INLINE __m256i greatest_16(__m256i keys)
{
    const __m128i half =
        _mm_max_epi16(_mm256_castsi256_si128(keys), _mm256_extracti128_si256(keys, 1));
    /* From the top the keys are unsigned, of which there is an instruction for the least. */
    const __m128i top = _mm_set1_epi16(0x7fff);
    const __m128i least = _mm_minpos_epu16(_mm_sub_epi16(top, half));
    return _mm256_broadcastw_epi16(_mm_sub_epi16(top, least));
}

OSW_INLINE uint64_t mask_of_16(__m256i mask)
{
    const __m128i narrow =
        _mm_packs_epi16(_mm256_castsi256_si128(mask), _mm256_extracti128_si256(mask, 1));
    return (uint64_t)(uint32_t)_mm_movemask_epi8(narrow);
}

OSW_INLINE __m256i elements_of_16(__m256i keys)
{
    const __m256i sign = _mm256_and_si256(keys, _mm256_set1_epi16((int16_t)0x8000));
    return _mm256_or_si256(_mm256_abs_epi16(keys), sign);
}

OSW_INLINE bool lost_sign_16(__m256i keys)
{
    return _mm256_movemask_epi8(_mm256_cmpeq_epi16(keys, _mm256_setzero_si256())) != 0;
}

OSW_INLINE __m256i max_keys_16(__m256i first, __m256i second)
{
    return _mm256_max_epi16(first, second);
}

OSW_INLINE __m256i above_16(__m256i a, __m256i b)
{
    return _mm256_cmpgt_epi16(a, b);
}

OSW_INLINE __m256i equal_16(__m256i a, __m256i b)
{
    return _mm256_cmpeq_epi16(a, b);
}

OSW_INLINE __m256i watch_keys_16(__m256i seen, __m256i keys)
{
    return _mm256_min_epi16(seen, keys);
}

OSW_INLINE __m256i all_positions_16(int64_t p)
{
    return _mm256_set1_epi16((int16_t)p);
}

/* Positions in the lanes of keys, as int32, from lane `lane` on, eight of them. */
OSW_INLINE __m256i eight_positions_f32(const void *positions, int64_t lane)
{
    return load_ints((const int32_t *)positions + lane);
}

OSW_INLINE __m256i eight_positions_16(const void *positions, int64_t lane)
{
    return _mm256_cvtepu16_epi32(
        _mm_loadu_si128((const __m128i *)((const uint16_t *)positions + lane)));
}
