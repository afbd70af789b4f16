/* SPDX-License-Identifier: MIT */
#include "linear/linear.h"

#define OSW_KERNELS "linear/kernels.h"
#include "core/simd_avx512.h"
