/* SPDX-License-Identifier: MIT */
#include "depthwise/depthwise.h"

#define OSW_KERNELS "depthwise/kernels.h"
#include "core/simd_avx512.h"
