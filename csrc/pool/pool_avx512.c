/* SPDX-License-Identifier: MIT */
#include "pool/pool.h"

#ifdef OSW_TEST_TIERS /* not selected yet: see OSW_FILLS_TO_AVX2 */
#    define OSW_KERNELS "pool/kernels.h"
#    include "core/simd_avx512.h"
#endif
