/* SPDX-License-Identifier: MIT */
/* Compiled once per tier, with SIMD the name of its header. */
#include "primitives.h"

#define OSW_KERNELS "primitives_tier.h"
#include SIMD
