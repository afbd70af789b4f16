/* SPDX-License-Identifier: MIT */
#include "channels/channels.h"

osw_channels_table osw_channels;

void osw_channels_select(osw_isa isa)
{
    static void (*const fills[OSW_ISA_COUNT])(osw_channels_table *) =
        OSW_FILLS_TO_AVX2(osw_channels_fill);
    for (int tier = 0; tier < OSW_ISA_COUNT; tier++)
        if (fills[tier] && osw_isa_fills((osw_isa)tier, isa))
            fills[tier](&osw_channels);
}
