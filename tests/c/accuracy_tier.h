/* SPDX-License-Identifier: MIT */
/* What accuracy.c runs on the vectors of a tier. */
#include "core/simd_math.h"

#include <stdint.h>
#include <stdio.h>

/* Distance from the truth in units of the last place of a float of its size. */
static double units(float got, double want)
{
    if (got != got || want != want)
        return (got != got) == (want != want) ? 0 : INFINITY;
    if (isinf(got) || isinf((float)want))
        return got == (float)want ? 0 : INFINITY;
    int exponent;
    frexp(want, &exponent);
    const double unit = ldexp(1, exponent < -125 ? -149 : exponent - 24);
    return fabs((double)got - want) / unit;
}

typedef struct osw_case {
    const char *name;
    double low, high; /* arguments; a NaN too, where both are infinite */
    double allowed;
} osw_case;

enum { EXP, EXPM1, LOG1P, LOGISTIC, LOGISTIC_REST, NORMAL, DENSITY, CASES };

static const osw_case cases[CASES] = {
    [EXP] = {"exp", -INFINITY, INFINITY, 1.1},
    [EXPM1] = {"expm1", -INFINITY, 0, 1},
    [LOG1P] = {"log1p", 0, 1, 2},
    [LOGISTIC] = {"logistic", -INFINITY, INFINITY, 3},
    [LOGISTIC_REST] = {"1 - logistic", -INFINITY, INFINITY, 3},
    [NORMAL] = {"normal distribution", -INFINITY, INFINITY, 6},
    [DENSITY] = {"normal density", -13, 13, 4},
};

static vf32 ours(int function, vf32 x)
{
    switch (function) {
    case EXP:
        return exp_f32(x);
    case EXPM1:
        return expm1_negative_f32(x);
    case LOG1P:
        return log1p_unit_f32(x);
    case LOGISTIC:
        return logistic_f32(x).value;
    case LOGISTIC_REST:
        return logistic_f32(x).rest;
    case NORMAL:
        return normal_f32(x).value;
    default:
        return normal_f32(x).density;
    }
}

static double truth(int function, double x)
{
    switch (function) {
    case EXP:
        return exp(x);
    case EXPM1:
        return expm1(x);
    case LOG1P:
        return log1p(x);
    case LOGISTIC:
        return 1 / (1 + exp(-x));
    case LOGISTIC_REST:
        return 1 / (1 + exp(x));
    case NORMAL:
        return erfc(x * -0.70710678118654752440) / 2;
    default:
        return exp(-x * x / 2) * 0.39894228040143267794;
    }
}

static bool belongs(const osw_case *c, float x)
{
    return x != x ? isinf(c->low) && isinf(c->high) : x >= c->low && x <= c->high;
}

static bool TIERED(accuracy)(uint64_t step, uint64_t first)
{
    bool good = true;
    for (int function = 0; function < CASES; function++) {
        const osw_case *c = &cases[function];
        double worst = 0;
        float at = 0;
        for (uint64_t bits = first; bits < 0x100000000; bits += step * LANES) {
            float x[LANES], y[LANES];
            for (int i = 0; i < LANES; i++)
                x[i] = osw_float_of_bits((uint32_t)(bits + (uint64_t)i * step));
            store_f32(y, ours(function, load_f32(x)));
            for (int i = 0; i < LANES; i++) {
                const double error = belongs(c, x[i]) ? units(y[i], truth(function, x[i])) : 0;
                if (error > worst) {
                    worst = error;
                    at = x[i];
                }
            }
        }
        printf("%s: %.3f units at %.9g\n", c->name, worst, (double)at);
        good = good && worst <= c->allowed;
    }
    return good;
}
