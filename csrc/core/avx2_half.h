/* SPDX-License-Identifier: MIT */
/* Eight elements of f32, bf16 or f16 as a vector of floats: load, store and round (to nearest, ties
 * to even); the vectors of half.h. Include it inside an AVX2 region, after <immintrin.h>. */
#ifndef OSW_CORE_AVX2_HALF_H
#define OSW_CORE_AVX2_HALF_H

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

OSW_INLINE void store_rounded_f32(float *p, __m256 v)
{
    store_f32(p, v);
}

/* Around the caches, to a multiple of 32 bytes. */
OSW_INLINE void stream_rounded_f32(float *p, __m256 v)
{
    _mm256_stream_ps(p, v);
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

OSW_INLINE __m128i upper_halves(__m256 v)
{
    return narrow_16(_mm256_srli_epi32(_mm256_castps_si256(v), 16));
}

/* Values that bfloat16 can hold. */
OSW_INLINE void store_bf16(uint16_t *p, __m256 v)
{
    _mm_storeu_si128((__m128i *)p, upper_halves(v));
}

/* Rounded values in the upper halves of the lanes; the lower ones hold anything. A NaN that has
 * nothing but its lower half to tell it from infinity is lost. */
OSW_INLINE __m256i carry_bf16(__m256 v)
{
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

/* The same where a NaN may be any; it becomes quiet. */
OSW_INLINE __m256 carry_any_bf16(__m256 v)
{
    const __m256i quiet = _mm256_or_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x400000));
    const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    return _mm256_blendv_ps(_mm256_castsi256_ps(carry_bf16(v)), _mm256_castsi256_ps(quiet), nan);
}

OSW_INLINE __m256 upper_half(__m256 v)
{
    return _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)));
}

OSW_INLINE __m256 round_bf16(__m256 v)
{
    return upper_half(carry_any_bf16(v));
}

OSW_INLINE void store_rounded_bf16(uint16_t *p, __m256 v)
{
    store_bf16(p, carry_any_bf16(v));
}

OSW_INLINE void stream_rounded_bf16(uint16_t *p, __m256 v)
{
    _mm_stream_si128((__m128i *)p, upper_halves(carry_any_bf16(v)));
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

OSW_INLINE void store_rounded_f16(uint16_t *p, __m256 v)
{
    store_f16(p, v);
}

OSW_INLINE void stream_rounded_f16(uint16_t *p, __m256 v)
{
    _mm_stream_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

#endif
