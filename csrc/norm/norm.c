/* SPDX-License-Identifier: MIT */
#include "norm/norm.h"

osw_norm_fn *osw_norm_table[OSW_NORM_COUNT];

void osw_norm_select(osw_isa isa)
{
    static void (*const fills[OSW_ISA_COUNT])(osw_norm_fn **) = OSW_FILLS(osw_norm_fill);
    for (int tier = 0; tier < OSW_ISA_COUNT; tier++)
        if (fills[tier] && osw_isa_fills((osw_isa)tier, isa))
            fills[tier](osw_norm_table);
}
