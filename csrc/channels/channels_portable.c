/* SPDX-License-Identifier: MIT */
#include "channels/channels.h"

#define OSW_KERNELS "channels/kernels.h"
#include "core/simd_portable.h"
