/* SPDX-License-Identifier: MIT */
#include "norm/norm.h"

osw_norm_fn *osw_norm_table[OSW_NORM_COUNT];

void osw_norm_select(osw_isa isa)
{
    osw_norm_fill__scalar(osw_norm_table);
#if defined(__x86_64__)
    if (isa >= OSW_ISA_AVX2)
        osw_norm_fill__avx2(osw_norm_table);
#else
    (void)isa;
#endif
}
