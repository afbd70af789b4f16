/* SPDX-License-Identifier: MIT */
/* Functions of vectors of floats: exponential, logarithm, logistic and normal distribution. One
 * text for all tiers, over core/simd.h. Errors are in units of the last place of the result,
 * denormal results included; NaN and infinities give what the C library's functions give.
 * Coefficients are minimax fits (Lawson's iteration) to 40 digits of the functions. */
#ifndef OSW_CORE_SIMD_MATH_H
#define OSW_CORE_SIMD_MATH_H

#include "core/simd.h"

OSW_INLINE vf32 abs_f32(vf32 x)
{
    return (vf32)((vi32)x & set1_i32(0x7fffffff));
}

/* x = n * ln 2 + r, with |r| <= ln 2 / 2, and e^r - 1. */
typedef struct osw_reduced {
    vi32 n;
    vf32 expm1;
} osw_reduced;

/* x in [-126, 89], or NaN, of which n has no meaning. Adding 1.5 * 2^23 leaves the nearest integer
 * in the lower bits; ln 2 is split into 15 bits, so that n times them is exact, and the rest. */
OSW_INLINE osw_reduced reduce_exp_f32(vf32 x)
{
    const vf32 shifter = set1_f32(0x1.8p23f);
    const vf32 shifted = fma_f32(x, set1_f32(0x1.715476p0f), shifter);
    const vf32 n = shifted - shifter;
    vf32 r = fma_f32(n, set1_f32(-0x1.62e4p-1f), x);
    r = fma_f32(n, set1_f32(-0x1.7f7d1cp-20f), r);
    vf32 q = set1_f32(0.0013942205f);
    q = fma_f32(q, r, set1_f32(0.008368679f));
    q = fma_f32(q, r, set1_f32(0.041666385f));
    q = fma_f32(q, r, set1_f32(0.16666521f));
    q = fma_f32(q, r, set1_f32(0.5f));
    return (osw_reduced){(vi32)((vu32)(vi32)shifted - (vu32)(vi32)shifter), fma_f32(q, r * r, r)};
}

/* 2^n for n in [-126, 127]; any number for others. */
OSW_INLINE vf32 power_of_two_f32(vi32 n)
{
    return (vf32)(((vu32)n + 127) << 23);
}

/* e^x, to 1.1 ulp. The power of two comes in two factors, whose product may be denormal or
 * infinite: the result is rounded to a denormal once. */
OSW_INLINE vf32 exp_f32(vf32 x)
{
    const vf32 within = min_f32(set1_f32(89), max_f32(set1_f32(-105), x));
    const osw_reduced r = reduce_exp_f32(within);
    const vi32 half = r.n >> 1;
    const vi32 rest = (vi32)((vu32)r.n - (vu32)half);
    return (1 + r.expm1) * power_of_two_f32(half) * power_of_two_f32(rest);
}

/* e^x - 1 for x <= 0, to 1 ulp; any number for others. */
OSW_INLINE vf32 expm1_negative_f32(vf32 x)
{
    const vf32 within = min_f32(set1_f32(1), max_f32(set1_f32(-25), x));
    const osw_reduced r = reduce_exp_f32(within);
    const vf32 power = power_of_two_f32(r.n);
    return fma_f32(r.expm1, power, power - 1);
}

/* ln(1 + x) for x in [0, 1], to 1 ulp: with s = x / (2 + x) it is 2 s + R, the series of
 * 2 artanh(s), and 2 s = x - s x. So x, which is exact, carries most of the result. */
OSW_INLINE vf32 log1p_unit_f32(vf32 x)
{
    const vf32 s = x / (2 + x), square = 4 * s * s;
    vf32 q = set1_f32(0.0005473965f);
    q = fma_f32(q, square, set1_f32(0.002187393f));
    q = fma_f32(q, square, set1_f32(0.012506792f));
    q = fma_f32(q, square, set1_f32(0.083333015f));
    return fma_f32(-s, fma_f32(q * square, set1_f32(-2), x), x);
}

/* A distribution at z: its function, and 1 minus it, neither found by subtraction if it is
 * small. */
typedef struct osw_distribution {
    vf32 value, rest;
} osw_distribution;

/* 1 / (1 + e^-z), both to 3 ulp. */
OSW_INLINE osw_distribution logistic_f32(vf32 z)
{
    const vf32 e = exp_f32(-abs_f32(z));
    const vf32 large = 1 / (1 + e), small = e * large;
    const vi32 negative = z < (vf32){0};
    return (osw_distribution){select_f32(negative, small, large),
                              select_f32(negative, large, small)};
}

/* The standard normal distribution at z, and its density. */
typedef struct osw_normal {
    vf32 value, density;
} osw_normal;

/* The tail beyond y = |z| is e^(-y^2 / 2) times a smooth function, a polynomial in
 * (y - 3) / (y + 3); the square is kept in two words. Both to 6 ulp. */
OSW_INLINE osw_normal normal_f32(vf32 z)
{
    const vf32 y = min_f32(set1_f32(15), abs_f32(z)), u = (y - 3) / (y + 3);
    const vf32 square = y * y * 0.5f, beyond = fma_f32(y * 0.5f, y, -square);
    const vf32 power = exp_f32(-square);
    const vf32 decay = fma_f32(power, -beyond, power);
    vf32 q = set1_f32(5.320699e-05f);
    q = fma_f32(q, u, set1_f32(0.000115142255f));
    q = fma_f32(q, u, set1_f32(-0.00033916655f));
    q = fma_f32(q, u, set1_f32(-0.000983559f));
    q = fma_f32(q, u, set1_f32(0.0029045162f));
    q = fma_f32(q, u, set1_f32(0.0061320886f));
    q = fma_f32(q, u, set1_f32(-0.04621331f));
    q = fma_f32(q, u, set1_f32(0.12322502f));
    q = fma_f32(q, u, set1_f32(-0.20640261f));
    q = fma_f32(q, u, set1_f32(0.12151395f));
    const vf32 tail = decay * q;
    return (osw_normal){select_f32(z < (vf32){0}, tail, 1 - tail), decay * 0.398942280f};
}

#endif
