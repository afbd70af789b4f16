/* SPDX-License-Identifier: MIT */
/* All kernels of a tier, and the function that puts them into the table. They support every size:
 * nothing is left to the tier below. */
#include "core/simd.h"
#include "linear/linear.h"

#define FLOATS OSW_EACH_F32 + OSW_EACH_F64
#define EACH   "linear/product_tiles.h"
#include "core/each_float.h"

#define EACH "linear/product.h"
#include "core/each_float.h"

#define EACH "linear/outer.h"
#include "core/each_float.h"

#define EACH "linear/weight_passes.h"
#include "core/each_float.h"

#undef FLOATS
#define FLOATS OSW_EACH_BF16 + OSW_EACH_F16
#define EACH   "linear/half_product.h"
#include "core/each_float.h"

#undef FLOATS
#define FLOATS OSW_EACH_F32 + OSW_EACH_F64 + OSW_EACH_BF16 + OSW_EACH_F16
#define EACH   "linear/dot.h"
#include "core/each_float.h"

#define EACH "linear/combine.h"
#include "core/each_float.h"

#define EACH "linear/forward.h"
#include "core/each_float.h"

#define EACH "linear/grad_input.h"
#include "core/each_float.h"

#define EACH "linear/grad_weight.h"
#include "core/each_float.h"

#define FILL(operation, dtype)                                                                     \
    table[OSW_LINEAR_##operation##_##dtype] = TIERED(osw_linear_##operation##_##dtype);

void TIERED(osw_linear_fill)(osw_linear_fn **table)
{
    OSW_LINEAR_VARIANTS(FILL)
}
