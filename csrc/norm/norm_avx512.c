/* SPDX-License-Identifier: MIT */
#include "norm/norm.h"

/* On Zen 5 it has 0.69 to 0.78 of the speed of avx2 for planes of 96 x 96 and 112 x 112 (backward
 * of 19 to 25 MB), and is level for smaller ones. */
#define WITHOUT_REDUCE_PLANES_F32

#define OSW_KERNELS "norm/kernels.h"
#include "core/simd_avx512.h"
