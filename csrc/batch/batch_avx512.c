/* SPDX-License-Identifier: MIT */
#include "batch/batch.h"

#define OSW_KERNELS "batch/kernels.h"
#include "core/simd_avx512.h"
