/* SPDX-License-Identifier: MIT */
/* The avx512 tier: 64-byte vectors for AVX-512 F, BW, DQ and VL, and all of the avx2 tier; see
 * core/simd_avx2.h. What is missing here compiles well from the language: comparisons and
 * selections use mask registers. */
#ifndef OSW_CORE_SIMD_AVX512_H
#define OSW_CORE_SIMD_AVX512_H

#if defined(__x86_64__)

#    define TIER      avx512
#    define VEC_BYTES 64
#    define REGISTERS 32

#    include "core/simd_before.h"

#    include <immintrin.h>

OSW_TARGET_BEGIN_AVX512
#    ifdef OSW_CONTRACT
OSW_TARGET_CONTRACT
#    endif

#    define OSW_KEEP(v) __asm__("" : "+v"(v))

/* For simd_x86.inc. */
typedef __m512 wide_ps;
typedef __m512d wide_pd;
typedef __m512i wide_i;
typedef __m256i half_i;
#    define WIDE(op)          _mm512_##op
#    define load_half(p)      _mm256_loadu_si256((const half_i *)(p))
#    define store_half(p, v)  _mm256_storeu_si256((half_i *)(p), v)
#    define stream_half(p, v) _mm256_stream_si256((half_i *)(p), v)
#    define stream_wide(p, v) _mm512_stream_si512(p, v)
#    include "core/simd_x86.inc"

#    ifdef __clang__
#        define select_f32 select_f32
OSW_INLINE vf32 select_f32(vi32 mask, vf32 a, vf32 b)
{
    return (vf32)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), (__m512)b, (__m512)a);
}

#        define select_f64 select_f64
OSW_INLINE vf64 select_f64(vi64 mask, vf64 a, vf64 b)
{
    return (vf64)_mm512_mask_blend_pd(_mm512_movepi64_mask((__m512i)mask), (__m512d)b, (__m512d)a);
}

#        define select_i32 select_i32
OSW_INLINE vi32 select_i32(vi32 mask, vi32 a, vi32 b)
{
    return (vi32)_mm512_mask_blend_epi32(_mm512_movepi32_mask((__m512i)mask), (__m512i)b,
                                         (__m512i)a);
}

#        define select_i16 select_i16
OSW_INLINE vi16 select_i16(vi16 mask, vi16 a, vi16 b)
{
    return (vi16)_mm512_mask_blend_epi16(_mm512_movepi16_mask((__m512i)mask), (__m512i)b,
                                         (__m512i)a);
}
#    endif

#    define bits_i32 bits_i32
OSW_INLINE uint32_t bits_i32(vi32 mask)
{
    return _mm512_movepi32_mask((__m512i)mask);
}

#    define bits_i64 bits_i64
OSW_INLINE uint32_t bits_i64(vi64 mask)
{
    return _mm512_movepi64_mask((__m512i)mask);
}

#    define bits_i16 bits_i16
OSW_INLINE uint32_t bits_i16(vi16 mask)
{
    return _mm512_movepi16_mask((__m512i)mask);
}

#    define lanes_of_bits_i32 lanes_of_bits_i32
OSW_INLINE vi32 lanes_of_bits_i32(uint32_t bits)
{
    return (vi32)_mm512_movm_epi32((__mmask16)bits);
}

#    define load_u8_i32 load_u8_i32
OSW_INLINE vi32 load_u8_i32(const uint8_t *p)
{
    return (vi32)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

#    define store_u8_i32 store_u8_i32
OSW_INLINE void store_u8_i32(uint8_t *p, vi32 v)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)v));
}

#    define store_u16_i32 store_u16_i32
OSW_INLINE void store_u16_i32(uint16_t *p, vi32 v)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16((__m512i)v));
}

/* One shuffle each, which moves the halves to their place. */
#    define load_bf16 load_bf16
OSW_INLINE vf32 load_bf16(const uint16_t *p)
{
    static const uint16_t lower[32] = {0, 0, 0, 1, 0, 2,  0, 3,  0, 4,  0, 5,  0, 6,  0, 7,
                                       0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0, 13, 0, 14, 0, 15};
    const __m512i v = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)p));
    return (vf32)_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, _mm512_loadu_si512(lower), v);
}

#    define store_bf16 store_bf16
OSW_INLINE void store_bf16(uint16_t *p, vf32 v)
{
    static const uint16_t upper[32] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    const __m512i halves = _mm512_permutexvar_epi16(_mm512_loadu_si512(upper), (__m512i)v);
    _mm256_storeu_si256((__m256i *)p, _mm512_castsi512_si256(halves));
}

OSW_INLINE vf32 carry_bf16(vf32 v); /* simd_memory.h */

/* A masked operation in place of one and a selection. */
#    define carry_any_bf16 carry_any_bf16
OSW_INLINE vf32 carry_any_bf16(vf32 v)
{
    const __m512i bits = (__m512i)v;
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    const __m512i carried = (__m512i)carry_bf16(v);
    return (vf32)_mm512_mask_or_epi32(carried, nan, bits, _mm512_set1_epi32(0x400000));
}

/* The upper halves of both vectors in one shuffle. */
#    define store_near_two_bf16 store_near_two_bf16
OSW_INLINE void store_near_two_bf16(uint16_t *p, vf32 first, vf32 second)
{
    static const uint16_t upper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                       23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                       45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i a = _mm512_add_epi32((__m512i)first, half);
    const __m512i b = _mm512_add_epi32((__m512i)second, half);
    _mm512_storeu_si512(p, _mm512_permutex2var_epi16(a, _mm512_loadu_si512(upper), b));
}

/* 16 bytes in each quarter, those of the next one 48 further on. */
OSW_INLINE __m512i load_bytes_48(const uint8_t *p)
{
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + 48)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + 96)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(p + 144)), 3);
}

/* As that of avx2. */
#    define unzip3_u8 unzip3_u8
OSW_INLINE void unzip3_u8(const uint8_t *p, vu8 v[3])
{
    const __m512i a = load_bytes_48(p), b = load_bytes_48(p + 16), c = load_bytes_48(p + 32);
    const __mmask64 first = 0x9249924992499249, second = 0x2492249224922492;
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14, 1, 4, 7, 10, 13));
    const __m512i one = _mm512_set1_epi8(1), wrap = _mm512_set1_epi8(15);
    const __m512i next = _mm512_and_si512(_mm512_add_epi8(order, one), wrap);
    const __m512i last = _mm512_and_si512(_mm512_add_epi8(next, one), wrap);
    const __m512i x = _mm512_mask_blend_epi8(second, _mm512_mask_blend_epi8(first, b, a), c);
    const __m512i y = _mm512_mask_blend_epi8(first, _mm512_mask_blend_epi8(second, c, a), b);
    const __m512i z = _mm512_mask_blend_epi8(first, _mm512_mask_blend_epi8(second, a, b), c);
    v[0] = (vu8)_mm512_shuffle_epi8(x, order);
    v[1] = (vu8)_mm512_shuffle_epi8(y, next);
    v[2] = (vu8)_mm512_shuffle_epi8(z, last);
}

/* Each quarter of the vector holds the bytes of four times three, and four more. */
#    define unzip3_u8_i32 unzip3_u8_i32
OSW_INLINE void unzip3_u8_i32(const uint8_t *p, vi32 v[3])
{
    const __m512i words = _mm512_setr_epi32(0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11);
    const __m512i all = _mm512_permutexvar_epi32(words, _mm512_maskz_loadu_epi32(0xfff, p));
    const __m512i from = _mm512_broadcast_i32x4(_mm_setr_epi32(~0xff, ~0xfc, ~0xf9, ~0xf6));
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i next = _mm512_add_epi32(from, one);
    v[0] = (vi32)_mm512_shuffle_epi8(all, from);
    v[1] = (vi32)_mm512_shuffle_epi8(all, next);
    v[2] = (vi32)_mm512_shuffle_epi8(all, _mm512_add_epi32(next, one));
}

/* Lanes 3i + k of the 48: those of the first two vectors, then those of the third. */
#    define unzip3_f32 unzip3_f32
OSW_INLINE void unzip3_f32(const float *p, vf32 v[3])
{
    const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16), c = _mm512_loadu_ps(p + 32);
    const __m512i third = _mm512_set1_epi32(16), one = _mm512_set1_epi32(1);
    __m512i lanes = _mm512_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45);
    for (int k = 0; k < 3; k++) {
        const __mmask16 late = _mm512_cmpge_epi32_mask(lanes, _mm512_set1_epi32(32));
        const __m512 early = _mm512_permutex2var_ps(a, lanes, b);
        v[k] = (vf32)_mm512_mask_permutexvar_ps(early, late, _mm512_sub_epi32(lanes, third), c);
        lanes = _mm512_add_epi32(lanes, one);
    }
}

#    define stream_u16_i32 stream_u16_i32
OSW_INLINE void stream_u16_i32(uint16_t *p, vi32 v)
{
    _mm256_stream_si256((__m256i *)p, _mm512_cvtepi32_epi16((__m512i)v));
}

/* Bits [0, n), n <= 16. */
OSW_INLINE __mmask16 first_bits(int64_t n)
{
    return (__mmask16)_bzhi_u32(0xffff, (unsigned)n);
}

#    define load_first_f32 load_first_f32
OSW_INLINE vf32 load_first_f32(const float *p, int64_t n)
{
    return (vf32)_mm512_maskz_loadu_ps(first_bits(n), p);
}

#    define load_first_f64 load_first_f64
OSW_INLINE vf64 load_first_f64(const double *p, int64_t n)
{
    return (vf64)_mm512_maskz_loadu_pd((__mmask8)first_bits(n), p);
}

#    define load_first_u16_i32 load_first_u16_i32
OSW_INLINE vi32 load_first_u16_i32(const uint16_t *p, int64_t n)
{
    return (vi32)_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_bits(n), p));
}

#    define load_first_f16 load_first_f16
OSW_INLINE vf32 load_first_f16(const uint16_t *p, int64_t n)
{
    return (vf32)_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_bits(n), p));
}

#    define store_first_f32 store_first_f32
OSW_INLINE void store_first_f32(float *p, vf32 v, int64_t n)
{
    _mm512_mask_storeu_ps(p, first_bits(n), (__m512)v);
}

#    define store_first_f64 store_first_f64
OSW_INLINE void store_first_f64(double *p, vf64 v, int64_t n)
{
    _mm512_mask_storeu_pd(p, (__mmask8)first_bits(n), (__m512d)v);
}

#    define store_first_u16_i32 store_first_u16_i32
OSW_INLINE void store_first_u16_i32(uint16_t *p, vi32 v, int64_t n)
{
    _mm256_mask_storeu_epi16(p, first_bits(n), _mm512_cvtepi32_epi16((__m512i)v));
}

#    define store_first_f16 store_first_f16
OSW_INLINE void store_first_f16(uint16_t *p, vf32 v, int64_t n)
{
    _mm256_mask_storeu_epi16(p, first_bits(n), narrow_f16(v));
}

OSW_INLINE __m256 low_half_ps(vf32 v)
{
    return _mm512_castps512_ps256((__m512)v);
}

OSW_INLINE __m256 high_half_ps(vf32 v)
{
    return _mm512_extractf32x8_ps((__m512)v, 1);
}

#    define add_as_doubles add_as_doubles
OSW_INLINE void add_as_doubles(double *to, vf32 v)
{
    const __m512d low = _mm512_cvtps_pd(low_half_ps(v)), high = _mm512_cvtps_pd(high_half_ps(v));
    _mm512_storeu_pd(to, _mm512_add_pd(_mm512_loadu_pd(to), low));
    _mm512_storeu_pd(to + 8, _mm512_add_pd(_mm512_loadu_pd(to + 8), high));
}

#    define zip_f32 zip_f32
OSW_INLINE void zip_f32(vf32 a, vf32 b, vf32 *lo, vf32 *hi)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    *lo = (vf32)_mm512_permutex2var_ps((__m512)a, low, (__m512)b);
    *hi = (vf32)_mm512_permutex2var_ps((__m512)a, high, (__m512)b);
}

#    define even_f32 even_f32
OSW_INLINE vf32 even_f32(vf32 a, vf32 b)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return (vf32)_mm512_permutex2var_ps((__m512)a, even, (__m512)b);
}

OSW_INLINE vf32 odd_f32(vf32 a, vf32 b)
{
    const __m512i odd =
        _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return (vf32)_mm512_permutex2var_ps((__m512)a, odd, (__m512)b);
}

OSW_INLINE vi32 in_order_i32(vi32 v, const int step)
{
    (void)step;
    return v;
}

#    define swap_pairs_i32 swap_pairs_i32
OSW_INLINE vi32 swap_pairs_i32(vi32 v)
{
    return (vi32)_mm512_shuffle_epi32((__m512i)v, _MM_PERM_CDAB);
}

/* Four rows turned within each quarter: v[j] then holds column 4q + j of them in quarter q. */
OSW_INLINE void transpose_quarters(__m512 v[4])
{
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(v[0], v[1]));
    const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(v[0], v[1]));
    const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(v[2], v[3]));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(v[2], v[3]));
    v[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    v[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    v[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    v[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
}

#    define transpose_f32 transpose_f32
OSW_INLINE void transpose_f32(vf32 v[LANES])
{
    __m512 rows[16];
    for (int i = 0; i < 16; i++)
        rows[i] = (__m512)v[i];
    for (int i = 0; i < 16; i += 4)
        transpose_quarters(rows + i);
    for (int j = 0; j < 4; j++) {
        const __m512 a = _mm512_shuffle_f32x4(rows[j], rows[4 + j], 0x88);
        const __m512 b = _mm512_shuffle_f32x4(rows[j], rows[4 + j], 0xdd);
        const __m512 c = _mm512_shuffle_f32x4(rows[8 + j], rows[12 + j], 0x88);
        const __m512 d = _mm512_shuffle_f32x4(rows[8 + j], rows[12 + j], 0xdd);
        v[j] = (vf32)_mm512_shuffle_f32x4(a, c, 0x88);
        v[8 + j] = (vf32)_mm512_shuffle_f32x4(a, c, 0xdd);
        v[4 + j] = (vf32)_mm512_shuffle_f32x4(b, d, 0x88);
        v[12 + j] = (vf32)_mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

#    define transpose_f64 transpose_f64
OSW_INLINE void transpose_f64(vf64 v[LANES_64])
{
    __m512d t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm512_unpacklo_pd((__m512d)v[i], (__m512d)v[i + 1]);
        t[i + 1] = _mm512_unpackhi_pd((__m512d)v[i], (__m512d)v[i + 1]);
    }
    for (int j = 0; j < 2; j++) {
        const __m512d a = _mm512_shuffle_f64x2(t[j], t[2 + j], 0x88);
        const __m512d b = _mm512_shuffle_f64x2(t[j], t[2 + j], 0xdd);
        const __m512d c = _mm512_shuffle_f64x2(t[4 + j], t[6 + j], 0x88);
        const __m512d d = _mm512_shuffle_f64x2(t[4 + j], t[6 + j], 0xdd);
        v[j] = (vf64)_mm512_shuffle_f64x2(a, c, 0x88);
        v[4 + j] = (vf64)_mm512_shuffle_f64x2(a, c, 0xdd);
        v[2 + j] = (vf64)_mm512_shuffle_f64x2(b, d, 0x88);
        v[6 + j] = (vf64)_mm512_shuffle_f64x2(b, d, 0xdd);
    }
}

#    define max_lanes_f32 max_lanes_f32
OSW_INLINE vf32 max_lanes_f32(vf32 v)
{
    __m512 m = (__m512)v;
    m = _mm512_max_ps(m, _mm512_shuffle_f32x4(m, m, 0x4e));
    m = _mm512_max_ps(m, _mm512_shuffle_f32x4(m, m, 0xb1));
    m = _mm512_max_ps(m, _mm512_shuffle_ps(m, m, 0x4e));
    return (vf32)_mm512_max_ps(m, _mm512_shuffle_ps(m, m, 0xb1));
}

/* From the top the numbers are unsigned, of which there is an instruction for the least. */
#    define max_lanes_i16 max_lanes_i16
OSW_INLINE vi16 max_lanes_i16(vi16 v)
{
    const __m256i half = _mm256_max_epi16(_mm512_castsi512_si256((__m512i)v),
                                          _mm512_extracti64x4_epi64((__m512i)v, 1));
    const __m128i quarter =
        _mm_max_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i top = _mm_set1_epi16(0x7fff);
    const __m128i least = _mm_minpos_epu16(_mm_sub_epi16(top, quarter));
    return (vi16)_mm512_broadcastw_epi16(_mm_sub_epi16(top, least));
}

#    define sum_lanes_i32 sum_lanes_i32
OSW_INLINE int32_t sum_lanes_i32(vi32 v)
{
    return _mm512_reduce_add_epi32((__m512i)v);
}

#    define sum4_f32 sum4_f32
OSW_INLINE void sum4_f32(const vf32 v[4], float out[4])
{
    __m256 half[4];
    for (int i = 0; i < 4; i++)
        half[i] = _mm256_add_ps(low_half_ps(v[i]), high_half_ps(v[i]));
    const __m256 low = _mm256_hadd_ps(half[0], half[1]), high = _mm256_hadd_ps(half[2], half[3]);
    const __m256 sums = _mm256_hadd_ps(low, high);
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
}

#    define sum4_f64 sum4_f64
OSW_INLINE void sum4_f64(const vf64 v[4], double out[4])
{
    __m256d half[4];
    for (int i = 0; i < 4; i++)
        half[i] = _mm256_add_pd(_mm512_castpd512_pd256((__m512d)v[i]),
                                _mm512_extractf64x4_pd((__m512d)v[i], 1));
    const __m256d low = _mm256_hadd_pd(half[0], half[1]), high = _mm256_hadd_pd(half[2], half[3]);
    const __m256d crossed = _mm256_permute2f128_pd(low, high, 0x21);
    _mm256_storeu_pd(out, _mm256_add_pd(crossed, _mm256_blend_pd(low, high, 0xc)));
}

#    include "core/simd.h"
#    ifdef OSW_KERNELS
#        include OSW_KERNELS
#    endif

OSW_TARGET_END

#endif
#endif
