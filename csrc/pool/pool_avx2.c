/* SPDX-License-Identifier: MIT */
#include "pool/pool.h"

#define OSW_KERNELS "pool/kernels.h"
#include "core/simd_avx2.h"
