/* SPDX-License-Identifier: MIT */
#include "batch/batch.h"

/* On Zen 5 0.71 to 0.85 of the speed of avx2, on Emerald Rapids 0.97 to 0.99. */
#define WITHOUT_NORMALIZE_PLANES_U8_F32

#define OSW_KERNELS "batch/kernels.h"
#include "core/simd_avx512.h"
