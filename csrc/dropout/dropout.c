/* SPDX-License-Identifier: MIT */
#include "dropout/dropout.h"

osw_dropout_table osw_dropout;

void osw_dropout_select(osw_isa isa)
{
    osw_dropout_fill__scalar(&osw_dropout);
#if defined(__x86_64__)
    if (isa >= OSW_ISA_AVX2)
        osw_dropout_fill__avx2(&osw_dropout);
#else
    (void)isa;
#endif
}
