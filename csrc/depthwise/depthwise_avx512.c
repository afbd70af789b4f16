/* SPDX-License-Identifier: MIT */
#include "depthwise/depthwise.h"

/* On Zen 5, windows of one row or column whose pixels are not whole vectors have 0.82 to 1.05 of
 * the speed of avx2: every load and store crosses a line of the cache. Others 1.0 to 1.8. */
#define OSW_LEAVES_SPLIT_LINES

#define OSW_KERNELS "depthwise/kernels.h"
#include "core/simd_avx512.h"
