/* SPDX-License-Identifier: MIT */
#include "pool/pool.h"

#include "pool/avx2_fill.h"

osw_pool_fn *osw_pool_table[OSW_POOL_COUNT];

void osw_pool_select(osw_isa isa)
{
    osw_pool_fill__scalar(osw_pool_table);
#if defined(__x86_64__)
    if (isa >= OSW_ISA_AVX2) {
        osw_pool_fill_max__avx2(osw_pool_table);
        osw_pool_fill_backward__avx2(osw_pool_table);
    }
#else
    (void)isa;
#endif
}
