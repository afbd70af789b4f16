/* SPDX-License-Identifier: MIT */
#include "core/half.h"
#include "core/scratch.h"
#include "core/target.h"
#include "linear/linear.h"

#if defined(__x86_64__)

#    include <immintrin.h>
#    include <stdalign.h>
#    include <stdbool.h>
#    include <string.h>

OSW_TARGET_BEGIN_AVX2

#    include "core/avx2_half.h"
#    include "linear/avx2_vector.h"

#    define SUFFIX   f32
#    define ELEMENT  float
#    define SUM      float
#    define LOAD(x)  (x)
#    define STORE(x) (x)
#    define VECTOR   __m256
#    define LANES    8
#    define V(name)  _mm256_##name##_ps
#    include "linear/kernels.h"

#    define SUFFIX   f64
#    define ELEMENT  double
#    define SUM      double
#    define LOAD(x)  (x)
#    define STORE(x) (x)
#    define VECTOR   __m256d
#    define LANES    4
#    define V(name)  _mm256_##name##_pd
#    include "linear/kernels.h"

#    define HALF

#    define SUFFIX   bf16
#    define ELEMENT  uint16_t
#    define SUM      float
#    define LOAD(x)  osw_float_of_bf16(x)
#    define STORE(x) osw_bf16_of_float(x)
#    define VECTOR   __m256
#    define LANES    8
#    define V(name)  _mm256_##name##_ps
#    include "linear/kernels.h"

#    define SUFFIX   f16
#    define ELEMENT  uint16_t
#    define SUM      float
#    define LOAD(x)  _cvtsh_ss(x)
#    define STORE(x) _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)
#    define VECTOR   __m256
#    define LANES    8
#    define V(name)  _mm256_##name##_ps
#    include "linear/kernels.h"

OSW_TARGET_END

#    define FILL(operation, dtype)                                                                 \
        table[OSW_LINEAR_##operation##_##dtype] = osw_linear_##operation##_##dtype##__avx2;

void osw_linear_fill__avx2(osw_linear_fn **table)
{
    OSW_LINEAR_VARIANTS(FILL)
}

#endif
