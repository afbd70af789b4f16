/* SPDX-License-Identifier: MIT */
/* The neon tier: 16-byte vectors for AArch64, whose NEON every CPU of that kind has; see
 * core/simd_avx2.h. Comparisons, selections, shifts and bf16 compile well from the language. */
#ifndef OSW_CORE_SIMD_NEON_H
#define OSW_CORE_SIMD_NEON_H

#if defined(__aarch64__)

#    define TIER      neon
#    define VEC_BYTES 16
#    define REGISTERS 32

#    include "core/simd_before.h"

#    include <arm_neon.h>

OSW_TARGET_BEGIN_BASELINE
#    ifdef OSW_CONTRACT
OSW_TARGET_CONTRACT
#    endif

#    define OSW_KEEP(v) __asm__("" : "+w"(v))

#    define fma_f32 fma_f32
OSW_INLINE vf32 fma_f32(vf32 a, vf32 b, vf32 c)
{
    return (vf32)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}

#    define fma_f64 fma_f64
OSW_INLINE vf64 fma_f64(vf64 a, vf64 b, vf64 c)
{
    return (vf64)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}

#    define max_i16 max_i16
OSW_INLINE vi16 max_i16(vi16 a, vi16 b)
{
    return (vi16)vmaxq_s16((int16x8_t)a, (int16x8_t)b);
}

#    define min_i16 min_i16
OSW_INLINE vi16 min_i16(vi16 a, vi16 b)
{
    return (vi16)vminq_s16((int16x8_t)a, (int16x8_t)b);
}

#    define abs_i16 abs_i16
OSW_INLINE vi16 abs_i16(vi16 v)
{
    return (vi16)vabsq_s16((int16x8_t)v);
}

#    define bits_i32 bits_i32
OSW_INLINE uint32_t bits_i32(vi32 mask)
{
    const uint32x4_t each = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32((uint32x4_t)mask, each));
}

#    define bits_i64 bits_i64
OSW_INLINE uint32_t bits_i64(vi64 mask)
{
    return (uint32_t)((mask[0] & 1) | (mask[1] & 2));
}

#    define bits_i16 bits_i16
OSW_INLINE uint32_t bits_i16(vi16 mask)
{
    const uint16x8_t each = {1, 2, 4, 8, 16, 32, 64, 128};
    return vaddvq_u16(vandq_u16((uint16x8_t)mask, each));
}

#    define any_i32 any_i32
OSW_INLINE bool any_i32(vi32 mask)
{
    return vmaxvq_u32((uint32x4_t)mask) != 0;
}

#    define any_i16 any_i16
OSW_INLINE bool any_i16(vi16 mask)
{
    return vmaxvq_u16((uint16x8_t)mask) != 0;
}

#    define unzip3_u8 unzip3_u8
OSW_INLINE void unzip3_u8(const uint8_t *p, vu8 v[3])
{
    const uint8x16x3_t all = vld3q_u8(p);
    for (int k = 0; k < 3; k++)
        v[k] = (vu8)all.val[k];
}

/* An index of 0xff, as all but the lowest byte of a lane have, gives 0. */
#    define unzip3_u8_i32 unzip3_u8_i32
OSW_INLINE void unzip3_u8_i32(const uint8_t *p, vi32 v[3])
{
    uint32_t last;
    memcpy(&last, p + 8, sizeof last);
    const uint8x16_t all = vcombine_u8(vld1_u8(p), vreinterpret_u8_u32(vdup_n_u32(last)));
    const uint32x4_t from = {~0xffu, ~0xfcu, ~0xf9u, ~0xf6u};
    for (unsigned k = 0; k < 3; k++)
        v[k] = (vi32)vqtbl1q_u8(all, vreinterpretq_u8_u32(vaddq_u32(from, vdupq_n_u32(k))));
}

#    define unzip3_f32 unzip3_f32
OSW_INLINE void unzip3_f32(const float *p, vf32 v[3])
{
    const float32x4x3_t all = vld3q_f32(p);
    for (int k = 0; k < 3; k++)
        v[k] = (vf32)all.val[k];
}

#    define load_u16_i32 load_u16_i32
OSW_INLINE vi32 load_u16_i32(const uint16_t *p)
{
    return (vi32)vmovl_u16(vld1_u16(p));
}

#    define store_u16_i32 store_u16_i32
OSW_INLINE void store_u16_i32(uint16_t *p, vi32 v)
{
    vst1_u16(p, vmovn_u32((uint32x4_t)v));
}

#    define load_f16 load_f16
OSW_INLINE vf32 load_f16(const uint16_t *p)
{
    return (vf32)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

OSW_INLINE uint16x4_t narrow_f16(vf32 v)
{
    return vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v));
}

#    define store_f16 store_f16
OSW_INLINE void store_f16(uint16_t *p, vf32 v)
{
    vst1_u16(p, narrow_f16(v));
}

#    define round_f16 round_f16
OSW_INLINE vf32 round_f16(vf32 v)
{
    return (vf32)vcvt_f32_f16(vreinterpret_f16_u16(narrow_f16(v)));
}

#    define add_as_doubles add_as_doubles
OSW_INLINE void add_as_doubles(double *to, vf32 v)
{
    vst1q_f64(to, vaddq_f64(vld1q_f64(to), vcvt_f64_f32(vget_low_f32((float32x4_t)v))));
    vst1q_f64(to + 2, vaddq_f64(vld1q_f64(to + 2), vcvt_high_f64_f32((float32x4_t)v)));
}

#    define zip_f32 zip_f32
OSW_INLINE void zip_f32(vf32 a, vf32 b, vf32 *lo, vf32 *hi)
{
    *lo = (vf32)vzip1q_f32((float32x4_t)a, (float32x4_t)b);
    *hi = (vf32)vzip2q_f32((float32x4_t)a, (float32x4_t)b);
}

#    define even_f32 even_f32
OSW_INLINE vf32 even_f32(vf32 a, vf32 b)
{
    return (vf32)vuzp1q_f32((float32x4_t)a, (float32x4_t)b);
}

OSW_INLINE vf32 odd_f32(vf32 a, vf32 b)
{
    return (vf32)vuzp2q_f32((float32x4_t)a, (float32x4_t)b);
}

OSW_INLINE vi32 in_order_i32(vi32 v, const int step)
{
    (void)step;
    return v;
}

#    define swap_pairs_i32 swap_pairs_i32
OSW_INLINE vi32 swap_pairs_i32(vi32 v)
{
    return (vi32)vrev64q_s32((int32x4_t)v);
}

#    define transpose_f64 transpose_f64
OSW_INLINE void transpose_f64(vf64 v[LANES_64])
{
    const float64x2_t a = (float64x2_t)v[0], b = (float64x2_t)v[1];
    v[0] = (vf64)vtrn1q_f64(a, b);
    v[1] = (vf64)vtrn2q_f64(a, b);
}

#    define transpose_f32 transpose_f32
OSW_INLINE void transpose_f32(vf32 v[LANES])
{
    vf32 a, b, c, d;
    zip_f32(v[0], v[2], &a, &b);
    zip_f32(v[1], v[3], &c, &d);
    zip_f32(a, c, &v[0], &v[1]);
    zip_f32(b, d, &v[2], &v[3]);
}

#    define max_lanes_f32 max_lanes_f32
OSW_INLINE vf32 max_lanes_f32(vf32 v)
{
    return (vf32)vdupq_n_f32(vmaxvq_f32((float32x4_t)v));
}

#    define max_lanes_i16 max_lanes_i16
OSW_INLINE vi16 max_lanes_i16(vi16 v)
{
    return (vi16)vdupq_n_s16(vmaxvq_s16((int16x8_t)v));
}

#    define sum_lanes_i32 sum_lanes_i32
OSW_INLINE int32_t sum_lanes_i32(vi32 v)
{
    return vaddvq_s32((int32x4_t)v);
}

#    define sum4_f32 sum4_f32
OSW_INLINE void sum4_f32(const vf32 v[4], float out[4])
{
    const float32x4_t low = vpaddq_f32((float32x4_t)v[0], (float32x4_t)v[1]);
    const float32x4_t high = vpaddq_f32((float32x4_t)v[2], (float32x4_t)v[3]);
    vst1q_f32(out, vpaddq_f32(low, high));
}

#    define sum4_f64 sum4_f64
OSW_INLINE void sum4_f64(const vf64 v[4], double out[4])
{
    vst1q_f64(out, vpaddq_f64((float64x2_t)v[0], (float64x2_t)v[1]));
    vst1q_f64(out + 2, vpaddq_f64((float64x2_t)v[2], (float64x2_t)v[3]));
}

#    include "core/simd.h"
#    ifdef OSW_KERNELS
#        include OSW_KERNELS
#    endif

OSW_TARGET_END

#endif
#endif
