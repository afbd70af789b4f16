/* SPDX-License-Identifier: MIT */
#include "pool/pool.h"

osw_pool_fn *osw_pool_table[OSW_POOL_COUNT];

void osw_pool_select(osw_isa isa)
{
    static void (*const fills[OSW_ISA_COUNT])(osw_pool_fn **) = OSW_FILLS(osw_pool_fill);
    for (int tier = 0; tier < OSW_ISA_COUNT; tier++)
        if (fills[tier] && osw_isa_fills((osw_isa)tier, isa))
            fills[tier](osw_pool_table);
}
