/* SPDX-License-Identifier: MIT */
#include "layer_norm/layer_norm.h"

osw_layer_norm_fn *osw_layer_norm_table[OSW_LAYER_NORM_COUNT];

void osw_layer_norm_select(osw_isa isa)
{
    static void (*const fills[OSW_ISA_COUNT])(osw_layer_norm_fn **) =
        OSW_FILLS(osw_layer_norm_fill);
    for (int tier = 0; tier < OSW_ISA_COUNT; tier++)
        if (fills[tier] && osw_isa_fills((osw_isa)tier, isa))
            fills[tier](osw_layer_norm_table);
}
