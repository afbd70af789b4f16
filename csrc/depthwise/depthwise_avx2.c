/* SPDX-License-Identifier: MIT */
#include "core/target.h"
#include "depthwise/depthwise.h"

#if defined(__x86_64__)

#    include <immintrin.h>
#    include <string.h>

enum { LARGE_BYTES = 1 << 20 };

/* For images with fewer channels than a vector has lanes. */
static osw_depthwise_fn *narrow[OSW_DEPTHWISE_COUNT];

OSW_TARGET_BEGIN_AVX2

/* All bits of the lanes from `first` on are set. */
OSW_INLINE __m256 lanes_from_f32(int64_t first)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32((int)first - 1)));
}

OSW_INLINE __m256d lanes_from_f64(int64_t first)
{
    const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
    return _mm256_castsi256_pd(_mm256_cmpgt_epi64(lane, _mm256_set1_epi64x(first - 1)));
}

#    define SUFFIX  f32
#    define ELEMENT float
#    define VECTOR  __m256
#    define LANES   8
#    define V(name) _mm256_##name##_ps
#    include "depthwise/avx2_depthwise.h"

#    define SUFFIX  f64
#    define ELEMENT double
#    define VECTOR  __m256d
#    define LANES   4
#    define V(name) _mm256_##name##_pd
#    include "depthwise/avx2_depthwise.h"

OSW_TARGET_END

#    define FILL(operation, dtype)                                                                 \
        table[OSW_DEPTHWISE_##operation##_##dtype] = osw_depthwise_##operation##_##dtype##__avx2;

void osw_depthwise_fill__avx2(osw_depthwise_fn **table)
{
    osw_depthwise_fill__scalar(narrow);
    OSW_DEPTHWISE_VARIANTS(FILL)
}

#endif
