/* SPDX-License-Identifier: MIT */
#include "linear/linear.h"

#include <string.h>

#define SUFFIX  f32
#define ELEMENT float
#include "linear/scalar_linear.h"

#define SUFFIX  f64
#define ELEMENT double
#include "linear/scalar_linear.h"

#define FILL(operation, dtype)                                                                     \
    table[OSW_LINEAR_##operation##_##dtype] = osw_linear_##operation##_##dtype##__scalar;

void osw_linear_fill__scalar(osw_linear_fn **table)
{
    OSW_LINEAR_VARIANTS(FILL)
}
