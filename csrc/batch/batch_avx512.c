/* SPDX-License-Identifier: MIT */
#include "batch/batch.h"

/* On Zen 5 0.6 of the speed of avx2 (1.5 times in the first cache: three streams of whole lines to
 * memory are slow there, plane by plane too), on Emerald Rapids 0.97 to 0.99. */
#define WITHOUT_NORMALIZE_PLANES_U8_F32

#define OSW_KERNELS "batch/kernels.h"
#include "core/simd_avx512.h"
