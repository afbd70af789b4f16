/* SPDX-License-Identifier: MIT */
/* Lane by lane: masks, selection, arithmetic; part of core/simd.h. */
#ifndef OSW_CORE_SIMD_LANES_H
#define OSW_CORE_SIMD_LANES_H

#include "core/simd_types.h"
#include "core/target.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* The same value in all lanes; of the integer types too, -0.0 stays -0.0. */
#define OSW_SET1(set1, vector, type)                                                               \
    OSW_INLINE vector set1(type s)                                                                 \
    {                                                                                              \
        return s - (vector){0};                                                                    \
    }
OSW_SET1(set1_f32, vf32, float)
OSW_SET1(set1_f64, vf64, double)
OSW_SET1(set1_i16, vi16, int16_t)
OSW_SET1(set1_i32, vi32, int32_t)
OSW_SET1(set1_i64, vi64, int64_t)

OSW_INLINE vf32 f32_of_i32(vi32 v)
{
    return __builtin_convertvector(v, vf32);
}

/* 0, 1, 2, ... */
OSW_INLINE vi32 lane_numbers_i32(void)
{
    static const int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return *(const vi32_memory *)numbers;
}

OSW_INLINE vi64 lane_numbers_i64(void)
{
    static const int64_t numbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    return (vi64) * (const vi32_memory *)numbers;
}

/* Masks of lanes [0, n), and of lanes [lanes - n, lanes). */
OSW_INLINE vi32 first_lanes_i32(int64_t n)
{
    return lane_numbers_i32() < set1_i32((int32_t)n);
}

OSW_INLINE vi64 first_lanes_i64(int64_t n)
{
    return (vi64)(lane_numbers_i64() < set1_i64(n));
}

OSW_INLINE vi32 last_lanes_i32(int64_t n)
{
    return lane_numbers_i32() >= set1_i32(LANES - (int32_t)n);
}

OSW_INLINE vi64 last_lanes_i64(int64_t n)
{
    return (vi64)(lane_numbers_i64() >= set1_i64(LANES_64 - n));
}

/* The same by the type of the values. */
#define first_lanes_f32 first_lanes_i32
#define first_lanes_f64 first_lanes_i64
#define last_lanes_f32  last_lanes_i32
#define last_lanes_f64  last_lanes_i64

/* v if the mask is set, else 0. */
OSW_INLINE vf32 keep_f32(vi32 mask, vf32 v)
{
    return (vf32)((vi32)v & mask);
}

OSW_INLINE vf64 keep_f64(vi64 mask, vf64 v)
{
    return (vf64)((vi64)v & mask);
}

/* a if the mask is set, else b. GCC for AVX-512 makes a blend by mask register of the loop, and of
 * nothing else that C can express; unrolled before it is vectorised, the loop stays one of scalars.
 */
#if defined(__x86_64__) && !defined(__clang__)
#    define OSW_SELECTED(vector, bits)                                                             \
        vector r;                                                                                  \
        OSW_NOT_UNROLLED                                                                           \
        for (int i = 0; i < (int)(sizeof r / sizeof r[0]); i++)                                    \
            r[i] = mask[i] ? a[i] : b[i];                                                          \
        return r
#else
#    define OSW_SELECTED(vector, bits) return (vector)(((bits)a & mask) | ((bits)b & ~mask))
#endif
#define OSW_SELECT(select, vector, bits)                                                           \
    OSW_INLINE vector select(bits mask, vector a, vector b)                                        \
    {                                                                                              \
        OSW_SELECTED(vector, bits);                                                                \
    }

#ifndef select_f32
OSW_SELECT(select_f32, vf32, vi32)
#endif

#ifndef select_f64
OSW_SELECT(select_f64, vf64, vi64)
#endif

#ifndef select_i16
OSW_SELECT(select_i16, vi16, vi16)
#endif

#ifndef select_i32
OSW_SELECT(select_i32, vi32, vi32)
#endif

/* Comparisons that are true if an operand is NaN: !(a <= b) and the like. */
#ifndef not_le_f32
OSW_INLINE vi32 not_le_f32(vf32 a, vf32 b)
{
    return ~(a <= b);
}
#endif

#ifndef not_lt_f32
OSW_INLINE vi32 not_lt_f32(vf32 a, vf32 b)
{
    return ~(a < b);
}
#endif

#ifndef not_ge_f32
OSW_INLINE vi32 not_ge_f32(vf32 a, vf32 b)
{
    return ~(a >= b);
}
#endif

/* a > b ? a : b, and a < b ? a : b: b if one is NaN or both are zero. */
#ifndef max_f32
OSW_INLINE vf32 max_f32(vf32 a, vf32 b)
{
    return select_f32(a > b, a, b);
}
#endif

#ifndef min_f32
OSW_INLINE vf32 min_f32(vf32 a, vf32 b)
{
    return select_f32(a < b, a, b);
}
#endif

#ifndef max_i16
OSW_INLINE vi16 max_i16(vi16 a, vi16 b)
{
    return select_i16(a > b, a, b);
}
#endif

#ifndef min_i16
OSW_INLINE vi16 min_i16(vi16 a, vi16 b)
{
    return select_i16(a < b, a, b);
}
#endif

/* |v|; -32768 stays. */
#ifndef abs_i16
OSW_INLINE vi16 abs_i16(vi16 v)
{
    const vi16 sign = v >> 15;
    return (v ^ sign) - sign;
}
#endif

/* v, negated if `sign` is negative; if `sign` is 0, v is 0. */
#ifndef signed_like_i16
OSW_INLINE vi16 signed_like_i16(vi16 v, vi16 sign)
{
    const vi16 negative = sign >> 15;
    return (v ^ negative) - negative;
}
#endif

/* a * b + c, rounded once, on every tier. */
#ifndef fma_f32
OSW_INLINE vf32 fma_f32(vf32 a, vf32 b, vf32 c)
{
    vf32 r = {0};
    for (int i = 0; i < LANES; i++)
        r[i] = fmaf(a[i], b[i], c[i]);
    return r;
}
#endif

#ifndef fma_f64
OSW_INLINE vf64 fma_f64(vf64 a, vf64 b, vf64 c)
{
    vf64 r;
    for (int i = 0; i < LANES_64; i++)
        r[i] = fma(a[i], b[i], c[i]);
    return r;
}
#endif

/* Bit i: mask lane i. */
#define OSW_BITS(name, vector, lanes)                                                              \
    OSW_INLINE uint32_t name(vector mask)                                                          \
    {                                                                                              \
        uint32_t bits = 0;                                                                         \
        for (int i = 0; i < lanes; i++)                                                            \
            bits |= (uint32_t)(mask[i] & 1) << i;                                                  \
        return bits;                                                                               \
    }
#ifndef bits_i32
OSW_BITS(bits_i32, vi32, LANES)
#endif

#ifndef bits_i64
OSW_BITS(bits_i64, vi64, LANES_64)
#endif

#ifndef bits_i16
OSW_BITS(bits_i16, vi16, LANES_16)
#endif

/* The mask whose lane i is bit i. */
#ifndef lanes_of_bits_i32
OSW_INLINE vi32 lanes_of_bits_i32(uint32_t bits)
{
    const vi32 each = 1 << lane_numbers_i32();
    return (set1_i32((int32_t)bits) & each) == each;
}
#endif

/* Whether any lane is set. */
#ifndef any_i32
OSW_INLINE bool any_i32(vi32 mask)
{
    return bits_i32(mask) != 0;
}
#endif

#ifndef any_i16
OSW_INLINE bool any_i16(vi16 mask)
{
    return bits_i16(mask) != 0;
}
#endif

/* The value stays in a register from here on: GCC loads it again for every use, or moves a chain of
 * sums to where the last one is used. */
#ifndef OSW_KEEP
#    define OSW_KEEP(v) ((void)(v))
#endif

#endif
