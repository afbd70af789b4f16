/* SPDX-License-Identifier: MIT */
#include "core/half.h"
#include "core/target.h"
#include "pool/indices.h"
#include "pool/pool.h"
#include "pool/window.h"

#if defined(__x86_64__)

#    include <immintrin.h>
#    include <math.h>
#    include <string.h>

/* The scalar kernels, for the calls that a kernel here does not cover. */
static osw_pool_fn *fallback[OSW_POOL_COUNT];

OSW_TARGET_BEGIN_AVX2

#    include "pool/avx2_vector.h"

#    include "pool/avx2_strip.h"

#    include "pool/avx2_margin.h"

#    include "pool/avx2_reduce.h"
#    include "pool/avx2_terms.h"
#    include "pool/avx2_window.h"

#    define SUFFIX   f32
#    define ELEMENT  float
#    define LOAD(x)  (x)
#    define STORE(x) (x)
#    include "pool/avx2_types.h"

#    define SUFFIX   bf16
#    define ELEMENT  uint16_t
#    define LOAD(x)  osw_float_of_bf16(x)
#    define STORE(x) osw_bf16_of_float(x)
#    include "pool/avx2_types.h"

#    define SUFFIX   f16
#    define ELEMENT  uint16_t
#    define LOAD(x)  _cvtsh_ss(x)
#    define STORE(x) _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)
#    include "pool/avx2_types.h"

OSW_TARGET_END

#    define FILL(name, dtype)                                                                      \
        fallback[OSW_POOL_##name##_##dtype] = table[OSW_POOL_##name##_##dtype];                    \
        table[OSW_POOL_##name##_##dtype] = osw_##name##_##dtype##__avx2;

#    define FILL_DTYPE(dtype)                                                                      \
        FILL(max_planes, dtype)                                                                    \
        FILL(max_pixels, dtype)                                                                    \
        FILL(max_backward_planes, dtype)                                                           \
        FILL(max_backward_pixels, dtype)                                                           \
        FILL(adaptive_max_planes, dtype)                                                           \
        FILL(adaptive_max_pixels, dtype)                                                           \
        FILL(adaptive_max_backward_pixels, dtype)                                                  \
        FILL(amax_backward_planes, dtype)                                                          \
        FILL(amax_backward_pixels, dtype)

void osw_pool_fill__avx2(osw_pool_fn **table)
{
    FILL_DTYPE(f32)
    FILL_DTYPE(bf16)
    FILL_DTYPE(f16)
}

#endif
