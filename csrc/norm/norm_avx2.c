/* SPDX-License-Identifier: MIT */
#include "core/prefetch.h"
#include "core/target.h"
#include "norm/norm.h"

#if defined(__x86_64__)

#    include <immintrin.h>
#    include <stdbool.h>
#    include <string.h>

enum {
    SHORT_PATTERN = 256,
    STRIP = 1024,           /* values: five factors and two sums take 28 KiB */
    STRIP_ROW = STRIP + 16, /* so that arrays of a strip do not meet in the same sets of L1 */
    FLUSH_PATTERNS = 64,    /* additions to one float before it goes on in double */
    AHEAD_BYTES = 4096,
    STREAM_VALUES = 512, /* of a plane, so that its edges are few */
};

/* The scalar kernels, for what is too small for vectors. */
static osw_norm_fn *fallback[OSW_NORM_COUNT];

OSW_TARGET_BEGIN_AVX2

#    include "core/avx2_half.h"
#    include "norm/avx2_vector.h"

#    define SUFFIX  f32
#    define ELEMENT float
#    include "norm/avx2_types.h"

#    define SUFFIX  bf16
#    define ELEMENT uint16_t
#    include "norm/avx2_types.h"

#    define SUFFIX  f16
#    define ELEMENT uint16_t
#    include "norm/avx2_types.h"

OSW_TARGET_END

#    define FILL(name, dtype)                                                                      \
        fallback[OSW_NORM_##name##_##dtype] = table[OSW_NORM_##name##_##dtype];                    \
        table[OSW_NORM_##name##_##dtype] = osw_##name##_##dtype##__avx2;

#    define FILL_DTYPE(dtype)                                                                      \
        FILL(moments_planes, dtype)                                                                \
        FILL(moments_pixels, dtype)                                                                \
        FILL(reduce_planes, dtype)                                                                 \
        FILL(reduce_pixels, dtype)                                                                 \
        FILL(apply_planes, dtype)                                                                  \
        FILL(apply_pixels, dtype)                                                                  \
        FILL(gradient_planes, dtype)                                                               \
        FILL(gradient_pixels, dtype)

void osw_norm_fill__avx2(osw_norm_fn **table)
{
    FILL_DTYPE(f32)
    FILL_DTYPE(bf16)
    FILL_DTYPE(f16)
}

#endif
