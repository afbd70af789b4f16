/* SPDX-License-Identifier: MIT */
#include "linear/linear.h"

#ifdef OSW_TEST_TIERS /* not selected yet: see OSW_FILLS_TO_AVX2 */
#    define OSW_KERNELS "linear/kernels.h"
#    include "core/simd_avx512.h"
#endif
