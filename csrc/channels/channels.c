/* SPDX-License-Identifier: MIT */
#include "channels/channels.h"

osw_channels_table osw_channels;

void osw_channels_select(osw_isa isa)
{
    osw_channels_fill__scalar(&osw_channels);
#if defined(__x86_64__)
    if (isa >= OSW_ISA_AVX2)
        osw_channels_fill__avx2(&osw_channels);
#else
    (void)isa;
#endif
}
