/* SPDX-License-Identifier: MIT */
#include "chain/chain.h"

#define OSW_KERNELS "chain/kernels.h"
#include "core/simd_portable.h"
