/* SPDX-License-Identifier: MIT */
#include "batch/batch.h"

#ifdef OSW_TEST_TIERS /* not selected yet: see OSW_FILLS_TO_AVX2 */
#    define OSW_KERNELS "batch/kernels.h"
#    include "core/simd_avx512.h"
#endif
