/* SPDX-License-Identifier: MIT */
/* The running maximum of every lane of a vector of floats, and its tap. */
#ifndef OSW_POOL_BEST_H
#define OSW_POOL_BEST_H

#include "core/simd.h"

typedef struct osw_best {
    vf32 value;
    vi32 tap;
} osw_best;

/* A greater value wins, and so does a NaN. */
OSW_INLINE void take(osw_best *best, vf32 value, vi32 tap, const bool with_taps)
{
    const vi32 wins = (value > best->value) | (value != value);
    best->value = select_f32(wins, value, best->value);
    if (with_taps)
        best->tap = select_i32(wins, tap, best->tap);
}

/* Lanes that even_f32 or odd_f32 took put in order; 1: they are. */
OSW_INLINE void in_order(osw_best *best, const int step)
{
    best->value = in_order_f32(best->value, step);
    best->tap = in_order_i32(best->tap, step);
}

/* Where the bits are the same. */
OSW_INLINE vi32 same_lanes(vf32 a, vf32 b)
{
    return (vi32)a == (vi32)b;
}

#endif
