/* SPDX-License-Identifier: MIT */
#include "layer_norm/layer_norm.h"

#define OSW_KERNELS "layer_norm/kernels.h"
#include "core/simd_avx512.h"
