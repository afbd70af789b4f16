/* SPDX-License-Identifier: MIT */
#include "norm/norm.h"

#define OSW_KERNELS "norm/kernels.h"
#include "core/simd_avx2.h"
