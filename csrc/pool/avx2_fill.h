/* SPDX-License-Identifier: MIT */
/* How the AVX2 files put their kernels into the table. */
#ifndef OSW_POOL_AVX2_FILL_H
#define OSW_POOL_AVX2_FILL_H

#include "pool/pool.h"

void osw_pool_fill_max__avx2(osw_pool_fn **table);
void osw_pool_fill_backward__avx2(osw_pool_fn **table);

#define OSW_POOL_FILL_DTYPE(name, dtype)                                                           \
    fallback[OSW_POOL_##name##_##dtype] = table[OSW_POOL_##name##_##dtype];                        \
    table[OSW_POOL_##name##_##dtype] = osw_##name##_##dtype##__avx2;

/* The kernels of one operation and form, and what they replace. */
#define OSW_POOL_FILL(name)                                                                        \
    OSW_POOL_FILL_DTYPE(name, f32)                                                                 \
    OSW_POOL_FILL_DTYPE(name, bf16)                                                                \
    OSW_POOL_FILL_DTYPE(name, f16)

#endif
