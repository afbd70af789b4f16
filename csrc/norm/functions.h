/* SPDX-License-Identifier: MIT */
/* The activations of a vector of floats, and gradients through them. */
#ifndef OSW_NORM_FUNCTIONS_H
#define OSW_NORM_FUNCTIONS_H

#include "core/simd.h"
#include "core/simd_math.h"
#include "norm/norm.h"

/* A NaN stays, and so does -0.0 if a bound is 0. */
OSW_INLINE vf32 clamp_f32(vf32 z, vf32 low, vf32 high)
{
    return min_f32(high, max_f32(low, z));
}

OSW_INLINE vf32 clamp6(vf32 z)
{
    return clamp_f32(z, (vf32){0}, set1_f32(6));
}

/* The argument of the logistic function in gelu_tanh, over z; with 3 for `power`, its derivative.
 */
OSW_INLINE vf32 tanh_argument(vf32 z, const float power)
{
    return fma_f32(z * z, set1_f32(power * 0.0713548162f), set1_f32(1.59576912f));
}

/* tanh(ln(1 + e^z)) and 1 minus it, by the powers of e^-|z|. */
OSW_INLINE osw_distribution mish_factor(vf32 z, vf32 e)
{
    const vi32 negative = z < (vf32){0};
    const vf32 square = e * e, twice = e + e;
    const vf32 value = select_f32(negative, square + twice, 1 + twice);
    const vf32 rest = select_f32(negative, set1_f32(2), square + square);
    const vf32 whole = 1 / (value + rest);
    return (osw_distribution){value * whole, rest * whole};
}

/* z / (1 + e^-z), with no more roundings than that has. */
OSW_INLINE vf32 silu(vf32 z)
{
    const vf32 e = exp_f32(-abs_f32(z));
    return select_f32(z < (vf32){0}, z * e, z) / (1 + e);
}

OSW_INLINE vf32 softplus(vf32 z, vf32 beta, vf32 threshold)
{
    const vf32 u = z * beta;
    const vf32 grown = max_f32((vf32){0}, u) + log1p_unit_f32(exp_f32(-abs_f32(u)));
    return select_f32(u > threshold, z, grown / beta);
}

/* Functions of a vector that the loops of kernels call: every one is compiled once per tier. */
OSW_OUTLINE vf32 activate_called(vf32 z, const osw_activation *activation)
{
    const vf32 a = set1_f32((float)activation->a), b = set1_f32((float)activation->b);
    switch (activation->kind) {
    case OSW_HARDSIGMOID:
        return clamp6(z + 3) * (1.0f / 6);
    case OSW_SIGMOID:
        return logistic_f32(z).value;
    case OSW_ELU:
        return select_f32(z < (vf32){0}, a * expm1_negative_f32(z), z);
    case OSW_GELU:
        return z * normal_f32(z).value;
    case OSW_GELU_TANH:
        return z * logistic_f32(z * tanh_argument(z, 1)).value;
    case OSW_MISH:
        return z * mish_factor(z, exp_f32(-abs_f32(z))).value;
    case OSW_SOFTPLUS:
        return softplus(z, a, b);
    default:
        return z;
    }
}

OSW_INLINE vf32 activate(vf32 z, const osw_activation activation)
{
    switch (activation.kind) {
    case OSW_RELU:
        return max_f32((vf32){0}, z);
    case OSW_HARDTANH:
        return clamp_f32(z, set1_f32((float)activation.a), set1_f32((float)activation.b));
    case OSW_HARDSWISH:
        return z * clamp6(z + 3) * (1.0f / 6);
    case OSW_LEAKY_RELU:
        return select_f32(z > (vf32){0}, z, z * (float)activation.a);
    case OSW_SILU:
        return silu(z);
    case OSW_CALLED:
        return activate_called(z, activation.called);
    default:
        return z;
    }
}

/* f'(z) where f is z times a logistic function of `inner`, which `slope` is the derivative of. */
OSW_INLINE vf32 product_slope(vf32 z, vf32 inner, vf32 slope)
{
    const osw_distribution s = logistic_f32(inner);
    return s.value * fma_f32(z * slope, s.rest, set1_f32(1));
}

OSW_INLINE vf32 gelu_slope(vf32 z)
{
    const osw_normal p = normal_f32(z);
    return fma_f32(z, p.density, p.value);
}

OSW_INLINE vf32 mish_slope(vf32 z)
{
    const vf32 e = exp_f32(-abs_f32(z));
    const osw_distribution t = mish_factor(z, e);
    const vf32 s = select_f32(z < (vf32){0}, e, set1_f32(1)) / (1 + e);
    return fma_f32(z * s, t.rest * (1 + t.value), t.value);
}

OSW_INLINE vf32 sigmoid_slope(vf32 z)
{
    const osw_distribution s = logistic_f32(z);
    return s.value * s.rest;
}

OSW_OUTLINE vf32 gate_called(vf32 dy, vf32 z, const osw_activation *activation)
{
    const vf32 a = set1_f32((float)activation->a), b = set1_f32((float)activation->b);
    switch (activation->kind) {
    case OSW_HARDSIGMOID:
        return keep_f32((z > set1_f32(-3)) & (z < set1_f32(3)), dy * (1.0f / 6));
    case OSW_SIGMOID:
        return dy * sigmoid_slope(z);
    case OSW_ELU:
        return select_f32(z > (vf32){0}, dy, dy * (a * exp_f32(z)));
    case OSW_GELU:
        return dy * gelu_slope(z);
    case OSW_GELU_TANH:
        return dy * product_slope(z, z * tanh_argument(z, 1), tanh_argument(z, 3));
    case OSW_MISH:
        return dy * mish_slope(z);
    case OSW_SOFTPLUS:
        return select_f32(z * a > b, dy, dy * logistic_f32(z * a).value);
    default:
        return dy;
    }
}

/* dy * f'(z) */
OSW_INLINE vf32 gate(vf32 dy, vf32 z, const osw_activation activation)
{
    switch (activation.kind) {
    case OSW_RELU:
        return keep_f32(not_le_f32(z, (vf32){0}), dy);
    case OSW_HARDTANH: {
        const vf32 low = set1_f32((float)activation.a), high = set1_f32((float)activation.b);
        return keep_f32(not_le_f32(z, low) & not_ge_f32(z, high), dy);
    }
    case OSW_HARDSWISH: {
        const vf32 slope = fma_f32(z, set1_f32(1.0f / 3), set1_f32(0.5f));
        const vf32 d = select_f32(not_lt_f32(z, set1_f32(3)), dy, dy * slope);
        return keep_f32(not_le_f32(z, set1_f32(-3)), d);
    }
    case OSW_LEAKY_RELU:
        return select_f32(z > (vf32){0}, dy, dy * (float)activation.a);
    case OSW_SILU:
        return dy * product_slope(z, z, set1_f32(1));
    case OSW_CALLED:
        return gate_called(dy, z, activation.called);
    default:
        return dy;
    }
}

#endif
