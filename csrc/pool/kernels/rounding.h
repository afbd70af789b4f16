/* SPDX-License-Identifier: MIT */
/* Sums of values of a dtype, rounded to it, and pairs of vectors stored lane by lane. */
#ifndef OSW_POOL_ROUNDING_H
#define OSW_POOL_ROUNDING_H

#include "core/simd.h"

/* Round a sum of two values of the dtype. */
#define round_sum_f32 round_f32
#define round_sum_f16 round_f16

/* A NaN that comes of such a sum has nothing in the bits that go, so that it stays one. */
OSW_INLINE vf32 round_sum_bf16(vf32 v)
{
    return (vf32)((vu32)carry_bf16(v) & 0xffff0000);
}

/* The same for sums of magnitude below 2^110, of bfloat16 in fewer steps: next to 1.5 * 2^16 times
 * its power of two, a float has the precision of bfloat16. A sum too small to be normal is exact
 * already. */
#define round_moderate_f32 round_f32
#define round_moderate_f16 round_f16
OSW_INLINE vf32 round_moderate_bf16(vf32 v)
{
    const vf32 power = keep_f32(set1_i32((int32_t)0xff800000), v);
    const vf32 scale = set1_f32(0x1.8p16f);
    return fma_f32(power, -scale, fma_f32(power, scale, v));
}

/* Whether `count` values are below 2^100, so that the sum of any 64 is below 2^110. */
OSW_INLINE bool all_moderate_bf16(const uint16_t *p, int64_t count)
{
    enum { MAGNITUDE = 0x7fff, TOO_LARGE = (100 + 127) << 7 };
    vi16 most = {0};
    int64_t i = 0;
    for (; i + LANES_16 <= count; i += LANES_16)
        most = max_i16(most, load_i16(p + i) & set1_i16(MAGNITUDE));
    bool moderate = !any_i16(most > set1_i16(TOO_LARGE - 1));
    for (; i < count; i++)
        moderate = moderate && (p[i] & MAGNITUDE) < TOO_LARGE;
    return moderate;
}

/* Sums of the others are rounded alike, whatever their magnitude. */
#define all_moderate_f32 all_rounded_alike
#define all_moderate_f16 all_rounded_alike
OSW_INLINE bool all_rounded_alike(const void *p, int64_t count)
{
    (void)p, (void)count;
    return true;
}

/* Store x0 y0 x1 y1 ..., values of the dtype; around the caches if `stream`, to a multiple of
 * VEC_BYTES. */
#define STORE_ZIP(store_zip, type, store, stream_rounded)                                          \
    OSW_INLINE void store_zip(type *p, vf32 x, vf32 y, const bool stream)                          \
    {                                                                                              \
        vf32 low, high;                                                                            \
        zip_f32(x, y, &low, &high);                                                                \
        if (stream) {                                                                              \
            stream_rounded(p, low);                                                                \
            stream_rounded(p + LANES, high);                                                       \
        } else {                                                                                   \
            store(p, low);                                                                         \
            store(p + LANES, high);                                                                \
        }                                                                                          \
    }
STORE_ZIP(store_zip_f32, float, store_f32, stream_rounded_f32)
STORE_ZIP(store_zip_f16, uint16_t, store_f16, stream_rounded_f16)

OSW_INLINE void store_zip_bf16(uint16_t *p, vf32 x, vf32 y, const bool stream)
{
    const vi32 pairs = upper_half_i32(x) | (vi32)y;
    if (stream)
        stream_i32(p, pairs);
    else
        store_i32(p, pairs);
}

#endif
