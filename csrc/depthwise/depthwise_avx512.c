/* SPDX-License-Identifier: MIT */
#include "depthwise/depthwise.h"

/* On Zen 5, windows of 3 x 3 whose pixels are not whole vectors have 0.7 to 0.95 of the speed of
 * avx2, those of one row or column 0.84 to 1.04: every load and store crosses a line of the cache.
 * Whole ones 0.95 to 1.3, windows of 5 x 5 1.0 to 1.8, and of stride 2 beyond L3 1.2 to 1.6. */
#define OSW_LEAVES_SPLIT_LINES

#define OSW_KERNELS "depthwise/kernels.h"
#include "core/simd_avx512.h"
