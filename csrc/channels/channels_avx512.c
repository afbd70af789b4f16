/* SPDX-License-Identifier: MIT */
#include "channels/channels.h"

#ifdef OSW_TEST_TIERS /* not selected: see channels.c */
#    define OSW_KERNELS "channels/kernels.h"
#    include "core/simd_avx512.h"
#endif
