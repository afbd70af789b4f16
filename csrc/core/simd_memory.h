/* SPDX-License-Identifier: MIT */
/* To and from memory, and the rounding on the way; part of core/simd.h. */
#ifndef OSW_CORE_SIMD_MEMORY_H
#define OSW_CORE_SIMD_MEMORY_H

#include "core/half.h"
#include "core/simd_lanes.h"
#include "core/simd_types.h"
#include "core/target.h"

#include <stdint.h>
#include <string.h>

/* Whole vectors, at any address. */
#define OSW_MEMORY(load, store, type, vector)                                                      \
    OSW_INLINE vector load(const type *p)                                                          \
    {                                                                                              \
        return *(const vector##_memory *)p;                                                        \
    }                                                                                              \
    OSW_INLINE void store(type *p, vector v)                                                       \
    {                                                                                              \
        *(vector##_memory *)p = v;                                                                 \
    }
OSW_MEMORY(load_f32, store_f32, float, vf32)
OSW_MEMORY(load_f64, store_f64, double, vf64)
OSW_MEMORY(load_i32, store_i32, void, vi32)
OSW_MEMORY(load_u8, store_u8, uint8_t, vu8)
OSW_MEMORY(load_i16, store_i16, void, vi16)

/* LANES unsigned elements as integers, and integers of that range as elements. */
#ifndef load_u8_i32
OSW_INLINE vi32 load_u8_i32(const uint8_t *p)
{
    return __builtin_convertvector(*(const vu8_quarter_memory *)p, vi32);
}
#endif

/* Two bytes per lane, as integers of 16 bits in the order of memory. */
#ifndef load_u8_pairs
OSW_INLINE vi32 load_u8_pairs(const uint8_t *p)
{
    return (vi32) __builtin_convertvector(*(const vu8_half_memory *)p, vu16);
}
#endif

#ifndef store_u8_i32
OSW_INLINE void store_u8_i32(uint8_t *p, vi32 v)
{
    *(vu8_quarter_memory *)p = __builtin_convertvector(v, vu8_quarter);
}
#endif

#ifndef load_u16_i32
OSW_INLINE vi32 load_u16_i32(const uint16_t *p)
{
    return __builtin_convertvector(*(const vu16_half_memory *)p, vi32);
}
#endif

#ifndef store_u16_i32
OSW_INLINE void store_u16_i32(uint16_t *p, vi32 v)
{
    *(vu16_half_memory *)p = __builtin_convertvector(v, vu16_half);
}
#endif

#ifndef load_bf16
OSW_INLINE vf32 load_bf16(const uint16_t *p)
{
    return (vf32)(load_u16_i32(p) << 16);
}
#endif

#ifndef load_f16
OSW_INLINE vf32 load_f16(const uint16_t *p)
{
    vf32 v = {0};
    for (int i = 0; i < LANES; i++)
        v[i] = osw_float_of_f16(p[i]);
    return v;
}
#endif

/* The upper halves of the lanes as integers. */
OSW_INLINE vi32 upper_half_i32(vf32 v)
{
    return (vi32)((vu32)v >> 16);
}

/* Values that bfloat16 can hold. */
#ifndef store_bf16
OSW_INLINE void store_bf16(uint16_t *p, vf32 v)
{
    store_u16_i32(p, upper_half_i32(v));
}
#endif

/* Rounded values in the upper halves of the lanes; the lower ones hold anything. A NaN that differs
 * from infinity in its lower half only is lost. */
OSW_INLINE vf32 carry_bf16(vf32 v)
{
    const vu32 bits = (vu32)v;
    return (vf32)(bits + 0x7fff + (bits >> 16 & 1));
}

/* The same for any NaN; it becomes quiet. */
#ifndef carry_any_bf16
OSW_INLINE vf32 carry_any_bf16(vf32 v)
{
    return select_f32(v != v, (vf32)((vi32)v | 0x400000), carry_bf16(v));
}
#endif

/* Round to the values of a dtype, to nearest, ties to even. */
OSW_INLINE vf32 round_f32(vf32 v)
{
    return v;
}

OSW_INLINE vf64 round_f64(vf64 v)
{
    return v;
}

OSW_INLINE vf32 round_bf16(vf32 v)
{
    return (vf32)((vu32)carry_any_bf16(v) & 0xffff0000);
}

#ifndef round_f16
OSW_INLINE vf32 round_f16(vf32 v)
{
    for (int i = 0; i < LANES; i++)
        v[i] = osw_float_of_f16(osw_f16_of_float(v[i]));
    return v;
}
#endif

/* One element to float and back, rounded. */
OSW_INLINE float widen_one_f32(float x)
{
    return x;
}

OSW_INLINE float narrow_one_f32(float v)
{
    return v;
}

OSW_INLINE float widen_one_bf16(uint16_t x)
{
    return osw_float_of_bf16(x);
}

OSW_INLINE uint16_t narrow_one_bf16(float v)
{
    return osw_bf16_of_float(v);
}

#ifndef widen_one_f16
OSW_INLINE float widen_one_f16(uint16_t x)
{
    return osw_float_of_f16(x);
}

OSW_INLINE uint16_t narrow_one_f16(float v)
{
    return osw_f16_of_float(v);
}
#endif

/* A double is as wide as its values. */
OSW_INLINE double widen_one_f64(double x)
{
    return x;
}

OSW_INLINE double narrow_one_f64(double v)
{
    return v;
}

/* Rounds, whether the dtype can hold the values or not. */
#ifndef store_f16
OSW_INLINE void store_f16(uint16_t *p, vf32 v)
{
    for (int i = 0; i < LANES; i++)
        p[i] = osw_f16_of_float(v[i]);
}
#endif

#define store_rounded_f32 store_f32
#define store_rounded_f64 store_f64
#define store_rounded_f16 store_f16
OSW_INLINE void store_rounded_bf16(uint16_t *p, vf32 v)
{
    store_bf16(p, carry_any_bf16(v));
}

/* The same of lanes that are not NaN, or NaN with an empty lower half. */
#define store_number_f32 store_f32
#define store_number_f16 store_f16
OSW_INLINE void store_number_bf16(uint16_t *p, vf32 v)
{
    store_bf16(p, carry_bf16(v));
}

/* The same, but ties may go away from zero. */
#define store_near_f32 store_f32
#define store_near_f16 store_f16
OSW_INLINE void store_near_bf16(uint16_t *p, vf32 v)
{
    store_bf16(p, (vf32)((vu32)v + 0x8000));
}

/* Two elements per lane: `low` in the lower halves, `high` in the upper ones. */
OSW_INLINE void store_near_pairs_bf16(uint16_t *p, vf32 low, vf32 high)
{
    const vu32 lower = ((vu32)low + 0x8000) >> 16, upper = ((vu32)high + 0x8000) & 0xffff0000;
    *(vi32_memory *)p = (vi32)(lower | upper);
}

/* 2 LANES elements, one vector behind the other. */
#ifndef store_near_two_bf16
OSW_INLINE void store_near_two_bf16(uint16_t *p, vf32 first, vf32 second)
{
    store_near_bf16(p, first);
    store_near_bf16(p + LANES, second);
}
#endif

/* store_rounded around the caches, to a multiple of the bytes written; stream_fence() before the
 * output is returned. */
#ifndef stream_rounded_f32
#    define stream_rounded_f32 store_f32
#endif

#ifndef stream_u16_i32
#    define stream_u16_i32 store_u16_i32
#endif

OSW_INLINE void stream_rounded_bf16(uint16_t *p, vf32 v)
{
    stream_u16_i32(p, upper_half_i32(carry_any_bf16(v)));
}

#ifndef stream_rounded_f16
#    define stream_rounded_f16 store_f16
#endif

#ifndef stream_i32
#    define stream_i32 store_i32
#endif

#ifndef stream_fence
OSW_INLINE void stream_fence(void)
{
}
#endif

/* Of three vectors' elements v[k] becomes elements k, k + 3, k + 6, ... */
#ifndef unzip3_u8
OSW_INLINE void unzip3_u8(const uint8_t *p, vu8 v[3])
{
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < VEC_BYTES; i++)
            v[k][i] = p[3 * i + k];
}
#endif

#ifndef unzip3_u8_i32
OSW_INLINE void unzip3_u8_i32(const uint8_t *p, vi32 v[3])
{
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < LANES; i++)
            v[k][i] = p[3 * i + k];
}
#endif

#ifndef unzip3_f32
OSW_INLINE void unzip3_f32(const float *p, vf32 v[3])
{
    vi32 whole[3];
    memcpy(whole, p, sizeof whole);
    for (int k = 0; k < 3; k++) {
        vi32 lanes;
        for (int i = 0; i < LANES; i++)
            lanes[i] = whole[(3 * i + k) / LANES][(3 * i + k) % LANES];
        v[k] = (vf32)lanes;
    }
}
#endif

/* Elements [0, n) in the first lanes, 0 in the others. */
#define OSW_LOAD_FIRST(load_first, load, type, vector)                                             \
    OSW_INLINE vector load_first(const type *p, int64_t n)                                         \
    {                                                                                              \
        type room[sizeof(vector) / sizeof((vector){0}[0])] = {0};                                  \
        memcpy(room, p, (size_t)n * sizeof *p);                                                    \
        return load(room);                                                                         \
    }
#ifndef load_first_f32
OSW_LOAD_FIRST(load_first_f32, load_f32, float, vf32)
#endif

#ifndef load_first_f64
OSW_LOAD_FIRST(load_first_f64, load_f64, double, vf64)
#endif

#ifndef load_first_u16_i32
OSW_LOAD_FIRST(load_first_u16_i32, load_u16_i32, uint16_t, vi32)
#endif

OSW_INLINE vf32 load_first_bf16(const uint16_t *p, int64_t n)
{
    return (vf32)(load_first_u16_i32(p, n) << 16);
}

#ifndef load_first_f16
OSW_LOAD_FIRST(load_first_f16, load_f16, uint16_t, vf32)
#endif

/* The first n lanes, rounded. */
#define OSW_STORE_FIRST(store_first, store, type, vector)                                          \
    OSW_INLINE void store_first(type *p, vector v, int64_t n)                                      \
    {                                                                                              \
        type room[sizeof v / sizeof v[0]];                                                         \
        store(room, v);                                                                            \
        memcpy(p, room, (size_t)n * sizeof *p);                                                    \
    }
#ifndef store_first_f32
OSW_STORE_FIRST(store_first_f32, store_f32, float, vf32)
#endif

#ifndef store_first_f64
OSW_STORE_FIRST(store_first_f64, store_f64, double, vf64)
#endif

#ifndef store_first_u16_i32
OSW_STORE_FIRST(store_first_u16_i32, store_u16_i32, uint16_t, vi32)
#endif

OSW_INLINE void store_first_bf16(uint16_t *p, vf32 v, int64_t n)
{
    store_first_u16_i32(p, upper_half_i32(carry_any_bf16(v)), n);
}

#ifndef store_first_f16
OSW_STORE_FIRST(store_first_f16, store_f16, uint16_t, vf32)
#endif

/* to[i] += v[i] for all LANES */
#ifndef add_as_doubles
OSW_INLINE void add_as_doubles(double *to, vf32 v)
{
    for (int i = 0; i < LANES; i++)
        to[i] += (double)v[i];
}
#endif

/* Ask for the cache line at p: into L1, into L2. */
OSW_INLINE void prefetch_near(const void *p)
{
    __builtin_prefetch(p, 0, 3);
}

OSW_INLINE void prefetch_far(const void *p)
{
    __builtin_prefetch(p, 0, 2);
}

#endif
