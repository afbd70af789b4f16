/* SPDX-License-Identifier: MIT */
#include "pool/pool.h"

/* On Zen 5 0.79 to 1.1 of the speed of avx2. */
#define WITHOUT_MAX_BACKWARD_PIXELS_F32

#define OSW_KERNELS "pool/kernels.h"
#include "core/simd_avx512.h"
