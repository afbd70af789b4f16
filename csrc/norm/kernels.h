/* SPDX-License-Identifier: MIT */
/* All kernels of a tier, and the function that puts them into the table; double is left to the tier
 * below. */
#include "core/simd.h"
#include "norm/below.h"
#include "norm/norm.h"

#define FLOATS OSW_EACH_F32 + OSW_EACH_BF16 + OSW_EACH_F16

#define EACH "norm/pixels.h"
#include "core/each_float.h"

#define EACH "norm/planes.h"
#include "core/each_float.h"

#define FILL(name, dtype)                                                                          \
    below[OSW_NORM_##name##_##dtype] = table[OSW_NORM_##name##_##dtype];                           \
    table[OSW_NORM_##name##_##dtype] = TIERED(osw_##name##_##dtype);

#define FILL_DTYPE(dtype)                                                                          \
    FILL(moments_planes, dtype)                                                                    \
    FILL(moments_pixels, dtype)                                                                    \
    FILL(reduce_planes, dtype)                                                                     \
    FILL(reduce_pixels, dtype)                                                                     \
    FILL(apply_planes, dtype)                                                                      \
    FILL(apply_pixels, dtype)                                                                      \
    FILL(gradient_planes, dtype)                                                                   \
    FILL(gradient_pixels, dtype)

void TIERED(osw_norm_fill)(osw_norm_fn **table)
{
    FILL_DTYPE(f32)
#ifdef WITHOUT_REDUCE_PLANES_F32
    table[OSW_NORM_reduce_planes_f32] = below[OSW_NORM_reduce_planes_f32];
#endif
    FILL_DTYPE(bf16)
    FILL_DTYPE(f16)
}
