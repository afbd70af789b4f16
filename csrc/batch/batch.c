/* SPDX-License-Identifier: MIT */
#include "batch/batch.h"

osw_batch_fn *osw_batch_table[OSW_BATCH_COUNT];

void osw_batch_select(osw_isa isa)
{
    static void (*const fills[OSW_ISA_COUNT])(osw_batch_fn **) = OSW_FILLS(osw_batch_fill);
    for (int tier = 0; tier < OSW_ISA_COUNT; tier++)
        if (fills[tier] && osw_isa_fills((osw_isa)tier, isa))
            fills[tier](osw_batch_table);
}
