/* SPDX-License-Identifier: MIT */
/* The avx2 tier: 32-byte vectors for AVX2, FMA, F16C and BMI2. Includes the header that OSW_KERNELS
 * names in a region of that target, with contraction if OSW_CONTRACT is defined (core/target.h). */
#ifndef OSW_CORE_SIMD_AVX2_H
#define OSW_CORE_SIMD_AVX2_H

#if defined(__x86_64__)

#    define TIER      avx2
#    define VEC_BYTES 32
#    define REGISTERS 16

#    include "core/simd_before.h"

#    include <immintrin.h>

OSW_TARGET_BEGIN_AVX2
#    ifdef OSW_CONTRACT
OSW_TARGET_CONTRACT
#    endif

#    define OSW_KEEP(v) __asm__("" : "+x"(v))

/* For simd_x86.inc. */
typedef __m256 wide_ps;
typedef __m256d wide_pd;
typedef __m256i wide_i;
typedef __m128i half_i;
#    define WIDE(op)          _mm256_##op
#    define load_half(p)      _mm_loadu_si128((const half_i *)(p))
#    define store_half(p, v)  _mm_storeu_si128((half_i *)(p), v)
#    define stream_half(p, v) _mm_stream_si128((half_i *)(p), v)
#    define stream_wide(p, v) _mm256_stream_si256(p, v)
#    include "core/simd_x86.inc"

#    define select_f32 select_f32
OSW_INLINE vf32 select_f32(vi32 mask, vf32 a, vf32 b)
{
    return (vf32)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
}

#    define select_f64 select_f64
OSW_INLINE vf64 select_f64(vi64 mask, vf64 a, vf64 b)
{
    return (vf64)_mm256_blendv_pd((__m256d)b, (__m256d)a, (__m256d)mask);
}

#    define select_i32 select_i32
OSW_INLINE vi32 select_i32(vi32 mask, vi32 a, vi32 b)
{
    return (vi32)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
}

#    define select_i16 select_i16
OSW_INLINE vi16 select_i16(vi16 mask, vi16 a, vi16 b)
{
    return (vi16)_mm256_blendv_epi8((__m256i)b, (__m256i)a, (__m256i)mask);
}

/* GCC makes a blend of "& ~(a <= b)" of the language, which is two instructions. */
#    define not_le_f32 not_le_f32
OSW_INLINE vi32 not_le_f32(vf32 a, vf32 b)
{
    return (vi32)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_NLE_UQ);
}

#    define not_lt_f32 not_lt_f32
OSW_INLINE vi32 not_lt_f32(vf32 a, vf32 b)
{
    return (vi32)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_NLT_UQ);
}

#    define not_ge_f32 not_ge_f32
OSW_INLINE vi32 not_ge_f32(vf32 a, vf32 b)
{
    return (vi32)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_NGE_UQ);
}

#    define signed_like_i16 signed_like_i16
OSW_INLINE vi16 signed_like_i16(vi16 v, vi16 sign)
{
    return (vi16)_mm256_sign_epi16((__m256i)v, (__m256i)sign);
}

#    define bits_i32 bits_i32
OSW_INLINE uint32_t bits_i32(vi32 mask)
{
    return (uint32_t)_mm256_movemask_ps((__m256)mask);
}

#    define bits_i64 bits_i64
OSW_INLINE uint32_t bits_i64(vi64 mask)
{
    return (uint32_t)_mm256_movemask_pd((__m256d)mask);
}

#    define bits_i16 bits_i16
OSW_INLINE uint32_t bits_i16(vi16 mask)
{
    const __m256i m = (__m256i)mask;
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    return (uint32_t)_mm_movemask_epi8(bytes);
}

#    define any_i16 any_i16
OSW_INLINE bool any_i16(vi16 mask)
{
    return _mm256_movemask_epi8((__m256i)mask) != 0;
}

#    define load_u8_i32 load_u8_i32
OSW_INLINE vi32 load_u8_i32(const uint8_t *p)
{
    return (vi32)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

OSW_INLINE __m128i narrow_u16(vi32 v)
{
    return _mm_packus_epi32(_mm256_castsi256_si128((__m256i)v),
                            _mm256_extracti128_si256((__m256i)v, 1));
}

#    define store_u8_i32 store_u8_i32
OSW_INLINE void store_u8_i32(uint8_t *p, vi32 v)
{
    const __m128i narrow = narrow_u16(v);
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(narrow, narrow));
}

#    define store_u16_i32 store_u16_i32
OSW_INLINE void store_u16_i32(uint16_t *p, vi32 v)
{
    _mm_storeu_si128((__m128i *)p, narrow_u16(v));
}

/* Each half of the vector holds 16 bytes that begin with, or end with, those of four times three.
 */
#    define unzip3_u8_i32 unzip3_u8_i32
OSW_INLINE void unzip3_u8_i32(const uint8_t *p, vi32 v[3])
{
    const __m128i head = _mm_loadu_si128((const __m128i *)p);
    const __m128i tail = _mm_loadu_si128((const __m128i *)(p + 8));
    const __m256i all = _mm256_inserti128_si256(_mm256_castsi128_si256(head), tail, 1);
    const __m256i from = _mm256_setr_epi32(~0xff, ~0xfc, ~0xf9, ~0xf6, ~0xfb, ~0xf8, ~0xf5, ~0xf2);
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i next = _mm256_add_epi32(from, one);
    v[0] = (vi32)_mm256_shuffle_epi8(all, from);
    v[1] = (vi32)_mm256_shuffle_epi8(all, next);
    v[2] = (vi32)_mm256_shuffle_epi8(all, _mm256_add_epi32(next, one));
}

/* 16 bytes and, in the upper half, the 16 that lie 48 further on. */
OSW_INLINE __m256i load_bytes_48(const uint8_t *p)
{
    const __m128i low = _mm_loadu_si128((const __m128i *)p);
    const __m128i high = _mm_loadu_si128((const __m128i *)(p + 48));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* In a, b and c every third byte is of one channel, in each of the three at other places: two
 * blends gather the channel, a shuffle puts it in order. */
#    define unzip3_u8 unzip3_u8
OSW_INLINE void unzip3_u8(const uint8_t *p, vu8 v[3])
{
    const __m256i a = load_bytes_48(p), b = load_bytes_48(p + 16), c = load_bytes_48(p + 32);
    const __m256i first = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1));
    const __m256i second = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0));
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14, 1, 4, 7, 10, 13));
    const __m256i one = _mm256_set1_epi8(1), wrap = _mm256_set1_epi8(15);
    const __m256i next = _mm256_and_si256(_mm256_add_epi8(order, one), wrap);
    const __m256i last = _mm256_and_si256(_mm256_add_epi8(next, one), wrap);
    const __m256i x = _mm256_blendv_epi8(_mm256_blendv_epi8(b, a, first), c, second);
    const __m256i y = _mm256_blendv_epi8(_mm256_blendv_epi8(c, a, second), b, first);
    const __m256i z = _mm256_blendv_epi8(_mm256_blendv_epi8(a, b, second), c, first);
    v[0] = (vu8)_mm256_shuffle_epi8(x, order);
    v[1] = (vu8)_mm256_shuffle_epi8(y, next);
    v[2] = (vu8)_mm256_shuffle_epi8(z, last);
}

OSW_INLINE __m256 load_halves(const float *low, const float *high)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}

/* a, b and c are called x y z; of four times three in a half: x0 y0 z0 x1, y1 z1 x2 y2, z2 x3 y3 z3
 */
#    define unzip3_f32 unzip3_f32
OSW_INLINE void unzip3_f32(const float *p, vf32 v[3])
{
    const __m256 a = load_halves(p, p + 12);
    const __m256 b = load_halves(p + 4, p + 16);
    const __m256 c = load_halves(p + 8, p + 20);
    const __m256 xy = _mm256_shuffle_ps(b, c, _MM_SHUFFLE(2, 1, 3, 2)); /* x2 y2 x3 y3 */
    const __m256 yz = _mm256_shuffle_ps(a, b, _MM_SHUFFLE(1, 0, 2, 1)); /* y0 z0 y1 z1 */
    v[0] = (vf32)_mm256_shuffle_ps(a, xy, _MM_SHUFFLE(2, 0, 3, 0));
    v[1] = (vf32)_mm256_shuffle_ps(yz, xy, _MM_SHUFFLE(3, 1, 2, 0));
    v[2] = (vf32)_mm256_shuffle_ps(yz, c, _MM_SHUFFLE(3, 0, 3, 1));
}

#    define stream_u16_i32 stream_u16_i32
OSW_INLINE void stream_u16_i32(uint16_t *p, vi32 v)
{
    _mm_stream_si128((__m128i *)p, narrow_u16(v));
}

OSW_INLINE __m256i first_mask_i32(int64_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}

#    define load_first_f32 load_first_f32
OSW_INLINE vf32 load_first_f32(const float *p, int64_t n)
{
    return (vf32)_mm256_maskload_ps(p, first_mask_i32(n));
}

#    define load_first_f64 load_first_f64
OSW_INLINE vf64 load_first_f64(const double *p, int64_t n)
{
    const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
    return (vf64)_mm256_maskload_pd(p, _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), lane));
}

/* Masked stores are slow on AMD: stores of 4, 2 and 1 elements. */
#    define store_first_f32 store_first_f32
OSW_INLINE void store_first_f32(float *p, vf32 v, int64_t n)
{
    if (n == LANES) {
        _mm256_storeu_ps(p, (__m256)v);
        return;
    }
    __m128 half = _mm256_castps256_ps128((__m256)v);
    if (n & 4) {
        _mm_storeu_ps(p, half);
        half = _mm256_extractf128_ps((__m256)v, 1);
        p += 4;
    }
    if (n & 2) {
        _mm_storel_pi((__m64 *)p, half);
        half = _mm_movehl_ps(half, half);
        p += 2;
    }
    if (n & 1)
        _mm_store_ss(p, half);
}

#    define store_first_f64 store_first_f64
OSW_INLINE void store_first_f64(double *p, vf64 v, int64_t n)
{
    if (n == LANES_64) {
        _mm256_storeu_pd(p, (__m256d)v);
        return;
    }
    __m128d half = _mm256_castpd256_pd128((__m256d)v);
    if (n & 2) {
        _mm_storeu_pd(p, half);
        half = _mm256_extractf128_pd((__m256d)v, 1);
        p += 2;
    }
    if (n & 1)
        _mm_store_sd(p, half);
}

OSW_INLINE __m128i load_first_16(const uint16_t *p, int64_t n)
{
    __m128i v = _mm_setzero_si128();
    if (n == LANES)
        return _mm_loadu_si128((const __m128i *)p);
    if (n & 1)
        v = _mm_cvtsi32_si128(p[n - 1]);
    if (n & 2) {
        int32_t two;
        memcpy(&two, p + (n & 4), sizeof two);
        v = _mm_insert_epi32(_mm_slli_si128(v, 4), two, 0);
    }
    if (n & 4)
        v = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)p), v);
    return v;
}

#    define load_first_u16_i32 load_first_u16_i32
OSW_INLINE vi32 load_first_u16_i32(const uint16_t *p, int64_t n)
{
    return (vi32)_mm256_cvtepu16_epi32(load_first_16(p, n));
}

#    define load_first_f16 load_first_f16
OSW_INLINE vf32 load_first_f16(const uint16_t *p, int64_t n)
{
    return (vf32)_mm256_cvtph_ps(load_first_16(p, n));
}

OSW_INLINE void store_first_16(uint16_t *p, __m128i v, int64_t n)
{
    if (n == LANES) {
        _mm_storeu_si128((__m128i *)p, v);
        return;
    }
    if (n & 4) {
        _mm_storel_epi64((__m128i *)p, v);
        v = _mm_unpackhi_epi64(v, v);
        p += 4;
    }
    if (n & 2) {
        const int32_t two = _mm_cvtsi128_si32(v);
        memcpy(p, &two, sizeof two);
        v = _mm_srli_si128(v, 4);
        p += 2;
    }
    if (n & 1)
        *p = (uint16_t)_mm_extract_epi16(v, 0);
}

#    define store_first_u16_i32 store_first_u16_i32
OSW_INLINE void store_first_u16_i32(uint16_t *p, vi32 v, int64_t n)
{
    store_first_16(p, narrow_u16(v), n);
}

#    define store_first_f16 store_first_f16
OSW_INLINE void store_first_f16(uint16_t *p, vf32 v, int64_t n)
{
    store_first_16(p, narrow_f16(v), n);
}

#    define add_as_doubles add_as_doubles
OSW_INLINE void add_as_doubles(double *to, vf32 v)
{
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1));
    _mm256_storeu_pd(to, _mm256_add_pd(_mm256_loadu_pd(to), low));
    _mm256_storeu_pd(to + 4, _mm256_add_pd(_mm256_loadu_pd(to + 4), high));
}

#    define zip_f32 zip_f32
OSW_INLINE void zip_f32(vf32 a, vf32 b, vf32 *lo, vf32 *hi)
{
    const __m256 even = _mm256_unpacklo_ps((__m256)a, (__m256)b);
    const __m256 odd = _mm256_unpackhi_ps((__m256)a, (__m256)b);
    *lo = (vf32)_mm256_permute2f128_ps(even, odd, 0x20);
    *hi = (vf32)_mm256_permute2f128_ps(even, odd, 0x31);
}

#    define even_f32 even_f32
OSW_INLINE vf32 even_f32(vf32 a, vf32 b)
{
    return (vf32)_mm256_shuffle_ps((__m256)a, (__m256)b, 0x88);
}

OSW_INLINE vf32 odd_f32(vf32 a, vf32 b)
{
    return (vf32)_mm256_shuffle_ps((__m256)a, (__m256)b, 0xdd);
}

OSW_INLINE vi32 in_order_i32(vi32 v, const int step)
{
    if (step == 1)
        return v;
    if (step == 2)
        return (vi32)_mm256_permute4x64_epi64((__m256i)v, 0xd8);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return (vi32)_mm256_permutevar8x32_epi32((__m256i)v, order);
}

#    define swap_pairs_i32 swap_pairs_i32
OSW_INLINE vi32 swap_pairs_i32(vi32 v)
{
    return (vi32)_mm256_shuffle_epi32((__m256i)v, 0xb1);
}

#    define transpose_f32 transpose_f32
OSW_INLINE void transpose_f32(vf32 v[LANES])
{
    __m256 pairs[8], quads[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps((__m256)v[i], (__m256)v[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps((__m256)v[i], (__m256)v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = (vf32)_mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
        v[i + 4] = (vf32)_mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
    }
}

#    define transpose_f64 transpose_f64
OSW_INLINE void transpose_f64(vf64 v[LANES_64])
{
    __m256d t[4];
    for (int i = 0; i < 4; i += 2) {
        t[i] = _mm256_unpacklo_pd((__m256d)v[i], (__m256d)v[i + 1]);
        t[i + 1] = _mm256_unpackhi_pd((__m256d)v[i], (__m256d)v[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        v[i] = (vf64)_mm256_permute2f128_pd(t[i], t[2 + i], 0x20);
        v[2 + i] = (vf64)_mm256_permute2f128_pd(t[i], t[2 + i], 0x31);
    }
}

#    define max_lanes_f32 max_lanes_f32
OSW_INLINE vf32 max_lanes_f32(vf32 v)
{
    __m256 m = (__m256)v;
    m = _mm256_max_ps(m, _mm256_permute2f128_ps(m, m, 1));
    m = _mm256_max_ps(m, _mm256_shuffle_ps(m, m, 0x4e));
    return (vf32)_mm256_max_ps(m, _mm256_shuffle_ps(m, m, 0xb1));
}

/* From the top the numbers are unsigned, of which there is an instruction for the least. */
#    define max_lanes_i16 max_lanes_i16
OSW_INLINE vi16 max_lanes_i16(vi16 v)
{
    const __m128i half =
        _mm_max_epi16(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    const __m128i top = _mm_set1_epi16(0x7fff);
    const __m128i least = _mm_minpos_epu16(_mm_sub_epi16(top, half));
    return (vi16)_mm256_broadcastw_epi16(_mm_sub_epi16(top, least));
}

#    define sum_lanes_i32 sum_lanes_i32
OSW_INLINE int32_t sum_lanes_i32(vi32 v)
{
    __m128i sum =
        _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

#    define sum4_f32 sum4_f32
OSW_INLINE void sum4_f32(const vf32 v[4], float out[4])
{
    const __m256 low = _mm256_hadd_ps((__m256)v[0], (__m256)v[1]);
    const __m256 high = _mm256_hadd_ps((__m256)v[2], (__m256)v[3]);
    const __m256 halves = _mm256_hadd_ps(low, high);
    _mm_storeu_ps(out,
                  _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
}

#    define sum4_f64 sum4_f64
OSW_INLINE void sum4_f64(const vf64 v[4], double out[4])
{
    const __m256d low = _mm256_hadd_pd((__m256d)v[0], (__m256d)v[1]);
    const __m256d high = _mm256_hadd_pd((__m256d)v[2], (__m256d)v[3]);
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
