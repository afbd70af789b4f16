/* SPDX-License-Identifier: MIT */
/* All kernels of a tier, and the function that puts them into the table; double is left to the tier
 * below. */
#include "core/simd.h"
#include "dropout/below.h"
#include "dropout/draw.h"
#include "dropout/dropout.h"

#define FLOATS OSW_EACH_F32 + OSW_EACH_BF16 + OSW_EACH_F16
#define EACH   "dropout/apply.h"
#include "core/each_float.h"

void TIERED(osw_dropout_fill)(osw_dropout_table *table)
{
    below = *table;
    table->draw = TIERED(osw_draw_mask);
    table->apply[OSW_F32] = TIERED(osw_apply_mask_f32);
    table->apply[OSW_BF16] = TIERED(osw_apply_mask_bf16);
    table->apply[OSW_F16] = TIERED(osw_apply_mask_f16);
}
