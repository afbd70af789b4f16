/* SPDX-License-Identifier: MIT */
/* Vectors of eight: load, store and round for f32, bf16 and f16; included inside a
 * target region. All arithmetic is done on floats. */

#define LANES 8

/* GCC moves a chain of sums down to where the last one is used, and spills all of their terms. */
#define KEEP_IN_PLACE(sum) __asm__("" : "+x"(sum))

OSW_INLINE __m256 load_f32(const float *p)
{
    return _mm256_loadu_ps(p);
}

OSW_INLINE void store_f32(float *p, __m256 v)
{
    _mm256_storeu_ps(p, v);
}

OSW_INLINE __m256 round_f32(__m256 v)
{
    return v;
}

/* Round a sum of two values of the dtype. */
OSW_INLINE __m256 round_sum_f32(__m256 v)
{
    return v;
}

OSW_INLINE __m256 load_bf16(const uint16_t *p)
{
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* Eight numbers below 2^16, one a lane, as 16-bit elements. */
OSW_INLINE __m128i narrow_16(__m256i v)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

/* For values that bfloat16 can hold. */
OSW_INLINE void store_bf16(uint16_t *p, __m256 v)
{
    const __m256i bits = _mm256_srli_epi32(_mm256_castps_si256(v), 16);
    _mm_storeu_si128((__m128i *)p, narrow_16(bits));
}

/* To nearest, ties to even; a NaN becomes quiet. */
OSW_INLINE __m256 round_bf16(__m256 v)
{
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    const __m256 chosen =
        _mm256_blendv_ps(_mm256_castsi256_ps(sum), _mm256_castsi256_ps(quiet), nan);
    return _mm256_and_ps(chosen, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)));
}

/* A NaN that comes of such a sum has nothing in the bits that go, so that it stays one. */
OSW_INLINE __m256 round_sum_bf16(__m256 v)
{
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    return _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32((int)0xffff0000)));
}

OSW_INLINE __m256 load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

OSW_INLINE void store_f16(uint16_t *p, __m256 v)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

OSW_INLINE __m256 round_f16(__m256 v)
{
    return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

OSW_INLINE __m256 round_sum_f16(__m256 v)
{
    return round_f16(v);
}

/* The running maximum of eight lanes, and its tap. */
typedef struct osw_best {
    __m256 value;
    __m256i tap;
} osw_best;

/* A greater value wins, and so does a NaN. */
OSW_INLINE void take(osw_best *best, __m256 value, __m256i tap, const bool with_taps)
{
    const __m256 greater = _mm256_cmp_ps(value, best->value, _CMP_GT_OQ);
    const __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    const __m256 wins = _mm256_or_ps(greater, nan);
    best->value = _mm256_blendv_ps(best->value, value, wins);
    if (with_taps)
        best->tap = _mm256_castps_si256(
            _mm256_blendv_ps(_mm256_castsi256_ps(best->tap), _mm256_castsi256_ps(tap), wins));
}

OSW_INLINE void store_taps(uint8_t *p, __m256i tap)
{
    const __m128i narrow = narrow_16(tap);
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(narrow, narrow));
}

OSW_INLINE __m256i load_taps(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

OSW_INLINE __m256i load_ints(const int32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* x0 x2 ... y0 y2 ... and x1 x3 ... y1 y3 ... */
OSW_INLINE void unzip(__m256 x, __m256 y, __m256 *even, __m256 *odd)
{
    const __m256d e = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0x88));
    const __m256d o = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0xdd));
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(e, 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(o, 0xd8));
}

/* x0 y0 x1 y1 ... */
OSW_INLINE void zip(__m256 x, __m256 y, __m256 *low, __m256 *high)
{
    const __m256 a = _mm256_unpacklo_ps(x, y), b = _mm256_unpackhi_ps(x, y);
    *low = _mm256_permute2f128_ps(a, b, 0x20);
    *high = _mm256_permute2f128_ps(a, b, 0x31);
}
