/* SPDX-License-Identifier: MIT */
#include "dropout/dropout.h"

#define OSW_KERNELS "dropout/kernels.h"
#include "core/simd_avx512.h"
