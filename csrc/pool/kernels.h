/* SPDX-License-Identifier: MIT */
/* All kernels of a tier, and the function that puts them into the table; double, integers and the
 * backward of adaptive_max are left to the tier below. */
#include "core/scratch.h"
#include "core/simd.h"
#include "pool/kernels/below.h"
#include "pool/pool.h"

#define EACH   "pool/kernels/each.h"
#define FLOATS OSW_EACH_F32 + OSW_EACH_BF16 + OSW_EACH_F16
#include "core/each_float.h"

#define FILL(name, dtype)                                                                          \
    below[OSW_POOL_##name##_##dtype] = table[OSW_POOL_##name##_##dtype];                           \
    table[OSW_POOL_##name##_##dtype] = TIERED(osw_##name##_##dtype);

#define FILL_DTYPE(dtype)                                                                          \
    FILL(max_planes, dtype)                                                                        \
    FILL(max_pixels, dtype)                                                                        \
    FILL(max_backward_planes, dtype)                                                               \
    FILL(max_backward_pixels, dtype)                                                               \
    FILL(avg_planes, dtype)                                                                        \
    FILL(avg_pixels, dtype)                                                                        \
    FILL(avg_backward_planes, dtype)                                                               \
    FILL(avg_backward_pixels, dtype)                                                               \
    FILL(adaptive_max_planes, dtype)                                                               \
    FILL(adaptive_max_pixels, dtype)                                                               \
    FILL(amax_planes, dtype)                                                                       \
    FILL(amax_pixels, dtype)                                                                       \
    FILL(amax_backward_planes, dtype)                                                              \
    FILL(amax_backward_pixels, dtype)

void TIERED(osw_pool_fill)(osw_pool_fn **table)
{
    FILL_DTYPE(f32)
#ifdef WITHOUT_MAX_BACKWARD_PIXELS_F32
    table[OSW_POOL_max_backward_pixels_f32] = below[OSW_POOL_max_backward_pixels_f32];
#endif
    FILL_DTYPE(bf16)
    FILL_DTYPE(f16)
}
