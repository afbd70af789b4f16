/* SPDX-License-Identifier: MIT */
/* Lanes change places, and reductions over them; part of core/simd.h. */
#ifndef OSW_CORE_SIMD_ORDER_H
#define OSW_CORE_SIMD_ORDER_H

#include "core/simd_lanes.h"
#include "core/simd_memory.h"
#include "core/simd_types.h"
#include "core/target.h"

#include <stdint.h>

/* lo, hi = a0 b0 a1 b1 ... */
#ifndef zip_f32
OSW_INLINE void zip_f32(vf32 a, vf32 b, vf32 *lo, vf32 *hi)
{
    vf32 low = {0}, high = {0};
    for (int i = 0; i < LANES / 2; i++) {
        low[2 * i] = a[i];
        low[2 * i + 1] = b[i];
        high[2 * i] = a[LANES / 2 + i];
        high[2 * i + 1] = b[LANES / 2 + i];
    }
    *lo = low;
    *hi = high;
}
#endif

/* a0 a2 ... b0 b2 ..., and a1 a3 ... b1 b3 ..., in the order that costs least on the tier;
 * in_order_*(v, 2) puts it right. Of two such vectors even_f32 selects every fourth lane of four,
 * and in_order_*(v, 4) puts that right. */
#ifndef even_f32
OSW_INLINE vf32 even_f32(vf32 a, vf32 b)
{
    vf32 v = {0};
    for (int i = 0; i < LANES / 2; i++) {
        v[i] = a[2 * i];
        v[LANES / 2 + i] = b[2 * i];
    }
    return v;
}

OSW_INLINE vf32 odd_f32(vf32 a, vf32 b)
{
    vf32 v = {0};
    for (int i = 0; i < LANES / 2; i++) {
        v[i] = a[2 * i + 1];
        v[LANES / 2 + i] = b[2 * i + 1];
    }
    return v;
}

OSW_INLINE vi32 in_order_i32(vi32 v, const int step)
{
    (void)step;
    return v;
}
#endif

OSW_INLINE vf32 in_order_f32(vf32 v, const int step)
{
    return (vf32)in_order_i32((vi32)v, step);
}

OSW_INLINE void unzip_f32(vf32 a, vf32 b, vf32 *even, vf32 *odd)
{
    *even = in_order_f32(even_f32(a, b), 2);
    *odd = in_order_f32(odd_f32(a, b), 2);
}

/* Lanes 2i and 2i + 1 change places. */
#ifndef swap_pairs_i32
OSW_INLINE vi32 swap_pairs_i32(vi32 v)
{
    return (vi32)((vu64)v >> 32 | (vu64)v << 32);
}
#endif

/* v[i][j] = v[j][i], a square of vectors. */
#define OSW_TRANSPOSE(transpose, vector, lanes)                                                    \
    OSW_INLINE void transpose(vector v[lanes])                                                     \
    {                                                                                              \
        vector columns[lanes];                                                                     \
        for (int i = 0; i < lanes; i++)                                                            \
            for (int j = 0; j < lanes; j++)                                                        \
                columns[j][i] = v[i][j];                                                           \
        for (int i = 0; i < lanes; i++)                                                            \
            v[i] = columns[i];                                                                     \
    }
#ifndef transpose_f32
OSW_TRANSPOSE(transpose_f32, vf32, LANES)
#endif

#ifndef transpose_f64
OSW_TRANSPOSE(transpose_f64, vf64, LANES_64)
#endif

/* The greatest of all lanes, in all lanes; numbers, not NaN. */
#ifndef max_lanes_f32
OSW_INLINE vf32 max_lanes_f32(vf32 v)
{
    float most = v[0];
    for (int i = 1; i < LANES; i++)
        most = v[i] > most ? v[i] : most;
    return set1_f32(most);
}
#endif

#ifndef max_lanes_i16
OSW_INLINE vi16 max_lanes_i16(vi16 v)
{
    int16_t most = v[0];
    for (int i = 1; i < LANES_16; i++)
        most = v[i] > most ? v[i] : most;
    return set1_i16(most);
}
#endif

#ifndef sum_lanes_i32
OSW_INLINE int32_t sum_lanes_i32(vi32 v)
{
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += v[i];
    return sum;
}
#endif

/* out[j] = sum of the lanes of v[j], j < 4; the order of additions differs by tier. */
#define OSW_SUM4(sum4, vector, type, lanes)                                                        \
    OSW_INLINE void sum4(const vector v[4], type out[4])                                           \
    {                                                                                              \
        for (int j = 0; j < 4; j++) {                                                              \
            out[j] = v[j][0];                                                                      \
            for (int i = 1; i < lanes; i++)                                                        \
                out[j] += v[j][i];                                                                 \
        }                                                                                          \
    }
#ifndef sum4_f32
OSW_SUM4(sum4_f32, vf32, float, LANES)
#endif

#ifndef sum4_f64
OSW_SUM4(sum4_f64, vf64, double, LANES_64)
#endif

#endif
