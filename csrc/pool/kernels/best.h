/* SPDX-License-Identifier: MIT */
/* The running maximum of every lane of a vector of floats, and its tap. */
#ifndef OSW_POOL_BEST_H
#define OSW_POOL_BEST_H

#include "core/simd.h"

typedef struct osw_best {
    vf32 value;
    vi32 tap;
} osw_best;

/* A greater value wins, and so does a NaN. The maximum by max_f32 is the same one: if
 * comparisons go to mask registers, by which to select takes longest, the next tap does not wait
 * for them (Zen 5: 1.2 times faster, 1.7 without taps). Elsewhere it is an instruction more if taps
 * are wanted. */
OSW_INLINE void take(osw_best *best, vf32 value, vi32 tap, const bool with_taps)
{
    const vi32 is_nan = value != value, wins = (value > best->value) | is_nan;
    if (with_taps)
        best->tap = select_i32(wins, tap, best->tap);
    if (with_taps && VEC_BYTES < 64)
        best->value = select_f32(wins, value, best->value);
    else
        best->value = select_f32(is_nan, value, max_f32(value, best->value));
}

/* Lanes that even_f32 or odd_f32 selected, put in order; 1: they are. */
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
