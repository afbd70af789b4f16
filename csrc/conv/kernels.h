/* SPDX-License-Identifier: MIT */
/* All kernels of a tier, and the function that puts them into the table. */
#include "conv/ahead.h"
#include "conv/below.h"
#include "conv/conv.h"
#include "conv/reach.h"
#include "core/simd.h"
#include "linear/tiles.h"

#define FLOATS OSW_EACH_F32 + OSW_EACH_F64
#define EACH   "linear/outer.h"
#include "core/each_float.h"

#define EACH "conv/grad_weight.h"
#include "core/each_float.h"

#define EACH "linear/product_tiles.h"
#include "core/each_float.h"

#define EACH "conv/panels.h"
#include "core/each_float.h"

#define EACH "conv/forward.h"
#include "core/each_float.h"

#define FILL(operation, dtype)                                                                     \
    below[OSW_CONV_##operation##_##dtype] = table[OSW_CONV_##operation##_##dtype];                 \
    table[OSW_CONV_##operation##_##dtype] = TIERED(osw_conv_##operation##_##dtype);

void TIERED(osw_conv_fill)(osw_conv_fn **table)
{
    OSW_CONV_VARIANTS(FILL)
}
