/* SPDX-License-Identifier: MIT */
/* What the kernels of a tier share whatever the dtype. */
#ifndef OSW_DEPTHWISE_BELOW_H
#define OSW_DEPTHWISE_BELOW_H

#include "core/names.h"
#include "core/simd.h"
#include "depthwise/depthwise.h"

#include <stdint.h>

enum { LARGE_BYTES = 1 << 20, HUGE_BYTES = 1 << 24 };

/* The kernels of the tier below, for what `leaves` contains. */
static osw_depthwise_fn *below[OSW_DEPTHWISE_COUNT];

#define ID_OF(name) OSW_JOIN(OSW_DEPTHWISE_##name##_, SUFFIX)

OSW_INLINE vi32 first_lanes_f32(int64_t n)
{
    return first_lanes_i32(n);
}

OSW_INLINE vi64 first_lanes_f64(int64_t n)
{
    return first_lanes_i64(n);
}

#endif
