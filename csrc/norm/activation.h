/* SPDX-License-Identifier: MIT */
/* What z and dx of a vector of values depend on, and what a kernel makes of it. */
#ifndef OSW_NORM_ACTIVATION_H
#define OSW_NORM_ACTIVATION_H

#include "core/prefetch.h"
#include "core/simd.h"
#include "norm/functions.h"
#include "norm/norm.h"

enum { FACTORS = 5 };

typedef struct osw_factors {
    vf32 center, scale, shift, tilt, offset;
} osw_factors;

/* What a kernel adds up, or writes. */
typedef enum osw_mode { MOMENTS, REDUCE, APPLY, GRADIENT, SCALED_GRADIENT } osw_mode;

/* How many of the factors a mode uses: the first ones. */
OSW_INLINE int factor_count(const osw_mode mode)
{
    static const int counts[] = {
        [MOMENTS] = 1, [REDUCE] = 3, [APPLY] = 3, [SCALED_GRADIENT] = 3, [GRADIENT] = FACTORS};
    return counts[mode];
}

OSW_INLINE vf32 z_of(vf32 centered, const osw_factors *f)
{
    return fma_f32(centered, f->scale, f->shift);
}

/* The value that a writing kernel stores; dy counts for a gradient only. */
OSW_INLINE vf32 written(vf32 x, vf32 dy, const osw_factors *f, const osw_mode mode,
                        const osw_activation activation)
{
    const vf32 centered = x - f->center;
    if (mode == APPLY)
        return activate(z_of(centered, f), activation);
    const vf32 d = gate(dy, z_of(centered, f), activation);
    if (mode == SCALED_GRADIENT)
        return d * f->scale;
    return fma_f32(d, f->scale, fma_f32(centered, f->tilt, f->offset));
}

/* What a value gives to the first sum; its product with x - center goes to the second. */
OSW_INLINE vf32 summand(vf32 centered, vf32 dy, const osw_factors *f, const osw_mode mode,
                        const osw_activation activation)
{
    return mode == MOMENTS ? centered : gate(dy, z_of(centered, f), activation);
}

OSW_INLINE void prefetch_ahead(const void *at)
{
    prefetch_near((const char *)at + osw_prefetch_ahead);
}

#endif
