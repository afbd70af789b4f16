/* SPDX-License-Identifier: MIT */
#include "dropout/dropout.h"

#ifdef OSW_TEST_TIERS /* not selected yet: see OSW_FILLS_TO_AVX2 */
#    define OSW_KERNELS "dropout/kernels.h"
#    include "core/simd_avx512.h"
#endif
