/* SPDX-License-Identifier: MIT */
#include "dropout/dropout.h"

osw_dropout_table osw_dropout;

void osw_dropout_select(osw_isa isa)
{
    static void (*const fills[OSW_ISA_COUNT])(osw_dropout_table *) = OSW_FILLS(osw_dropout_fill);
    for (int tier = 0; tier < OSW_ISA_COUNT; tier++)
        if (fills[tier] && osw_isa_fills((osw_isa)tier, isa))
            fills[tier](&osw_dropout);
}
