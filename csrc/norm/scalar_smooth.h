/* SPDX-License-Identifier: MIT */
/* The activations without a bend, by the C library's functions of doubles, and their derivatives.
 */
#ifndef OSW_NORM_SCALAR_SMOOTH_H
#define OSW_NORM_SCALAR_SMOOTH_H

#include "norm/norm.h"

#include <math.h>
#include <stdbool.h>

static inline double osw_logistic(double z)
{
    const double e = exp(-fabs(z));
    return (z < 0 ? e : 1) / (1 + e);
}

/* The normal distribution. */
static inline double osw_normal_at(double z)
{
    return 0.5 * erfc(z * -0.70710678118654752440);
}

static inline double osw_normal_density(double z)
{
    return exp(-0.5 * z * z) * 0.39894228040143267794;
}

/* The argument of the logistic function in gelu_tanh, over z; with 3 for `power`, its derivative.
 */
static inline double osw_tanh_argument(double z, double power)
{
    return 1.59576912160573071176 * (1 + power * 0.044715 * z * z);
}

/* tanh(ln(1 + e^z)); with `rest`, 1 minus it. */
static inline double osw_mish_factor(double z, bool rest)
{
    const double e = exp(-fabs(z)), square = e * e, twice = e + e;
    const double value = z < 0 ? square + twice : 1 + twice;
    const double other = z < 0 ? 2 : square + square;
    return (rest ? other : value) / (value + other);
}

static inline double osw_softplus(double z, double beta, double threshold)
{
    const double u = z * beta;
    return u > threshold ? z : ((u < 0 ? 0 : u) + log1p(exp(-fabs(u)))) / beta;
}

static inline double osw_smooth(double z, osw_activation f)
{
    switch (f.kind) {
    case OSW_SIGMOID:
        return osw_logistic(z);
    case OSW_SILU:
        return z * osw_logistic(z);
    case OSW_ELU:
        return z < 0 ? f.a * expm1(z) : z;
    case OSW_GELU:
        return z * osw_normal_at(z);
    case OSW_GELU_TANH:
        return z * osw_logistic(z * osw_tanh_argument(z, 1));
    case OSW_MISH:
        return z * osw_mish_factor(z, false);
    case OSW_SOFTPLUS:
        return osw_softplus(z, f.a, f.b);
    default:
        return z;
    }
}

static inline double osw_smooth_slope(double z, osw_activation f)
{
    double s;
    switch (f.kind) {
    case OSW_SIGMOID:
        return osw_logistic(z) * osw_logistic(-z);
    case OSW_SILU:
        return osw_logistic(z) * (1 + z * osw_logistic(-z));
    case OSW_ELU:
        return z > 0 ? 1 : f.a * exp(z);
    case OSW_GELU:
        return osw_normal_at(z) + z * osw_normal_density(z);
    case OSW_GELU_TANH:
        s = z * osw_tanh_argument(z, 1);
        return osw_logistic(s) * (1 + z * osw_tanh_argument(z, 3) * osw_logistic(-s));
    case OSW_MISH:
        s = osw_mish_factor(z, false);
        return s + z * osw_logistic(z) * osw_mish_factor(z, true) * (1 + s);
    case OSW_SOFTPLUS:
        return z * f.a > f.b ? 1 : osw_logistic(z * f.a);
    default:
        return 1;
    }
}

#endif
