/* SPDX-License-Identifier: MIT */
#include "pointwise/pointwise.h"

#define OSW_KERNELS "pointwise/kernels.h"
#include "core/simd_neon.h"
