/* SPDX-License-Identifier: MIT */
/* All plain-C kernels of one dtype; included once per dtype by norm_scalar.c. */
#include "norm/norm.h"

#include <stdbool.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

#include "norm/scalar_activation.h"

/* What z and dx of one channel take. */
typedef struct LOCAL(factors) {
    VALUE center, scale, shift, tilt, offset;
} LOCAL(factors);

static inline LOCAL(factors) LOCAL(factors_of)(const osw_norm *norm, int64_t c, bool gradient)
{
    LOCAL(factors) f = {(VALUE)norm->center[c], (VALUE)norm->scale[c], (VALUE)norm->shift[c], 0, 0};
    if (gradient && norm->tilt) {
        f.tilt = (VALUE)norm->tilt[c];
        f.offset = (VALUE)norm->offset[c];
    }
    return f;
}

static inline ELEMENT LOCAL(forward)(ELEMENT x, LOCAL(factors) f, osw_activation activation)
{
    const VALUE z = (LOAD(x) - f.center) * f.scale + f.shift;
    return STORE(LOCAL(activate)(z, activation));
}

/* d, the gradient of z. */
static inline VALUE LOCAL(gated)(VALUE x, VALUE dy, LOCAL(factors) f, osw_activation activation)
{
    return LOCAL(gate)(dy, (x - f.center) * f.scale + f.shift, activation);
}

static inline ELEMENT LOCAL(backward)(ELEMENT x, ELEMENT dy,
                                      LOCAL(factors) f, osw_activation activation,
                               bool centered)
{
    const VALUE d = LOCAL(gated)(LOAD(x), LOAD(dy), f, activation);
    if (!centered)
        return STORE(d * f.scale);
    return STORE(d * f.scale + ((LOAD(x) - f.center) * f.tilt + f.offset));
}

#include "norm/scalar_pixels.h"
#include "norm/scalar_planes.h"
