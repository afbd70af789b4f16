/* SPDX-License-Identifier: MIT */
#include "depthwise/depthwise.h"

#include <string.h>

#define SUFFIX  f32
#define ELEMENT float
#include "depthwise/scalar_depthwise.h"

#define SUFFIX  f64
#define ELEMENT double
#include "depthwise/scalar_depthwise.h"

#define FILL(operation, dtype)                                                                     \
    table[OSW_DEPTHWISE_##operation##_##dtype] = osw_depthwise_##operation##_##dtype##__scalar;

void osw_depthwise_fill__scalar(osw_depthwise_fn **table)
{
    OSW_DEPTHWISE_VARIANTS(FILL)
}
