/* SPDX-License-Identifier: MIT */
/* All kernels of a tier, and the function that puts them into the table. They support every size:
 * nothing is left to the tier below. */
#include "core/simd.h"
#include "pointwise/pointwise.h"

#define FLOATS OSW_EACH_F32 + OSW_EACH_F64
#define EACH   "linear/product_tiles.h"
#include "core/each_float.h"

#define EACH "linear/product.h"
#include "core/each_float.h"

#define EACH "pointwise/maps.h"
#include "core/each_float.h"

#define EACH "pointwise/grad_weight.h"
#include "core/each_float.h"

#define FILL(operation, dtype)                                                                     \
    table[OSW_POINTWISE_##operation##_##dtype] = TIERED(osw_pointwise_##operation##_##dtype);

void TIERED(osw_pointwise_fill)(osw_pointwise_fn **table)
{
    OSW_POINTWISE_VARIANTS(FILL)
}
