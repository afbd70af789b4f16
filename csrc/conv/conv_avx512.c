/* SPDX-License-Identifier: MIT */
#include "conv/conv.h"

#define OSW_KERNELS "conv/kernels.h"
#include "core/simd_avx512.h"
