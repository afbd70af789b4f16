/* SPDX-License-Identifier: MIT */
/* What the kernels of a tier share whatever the dtype. */
#ifndef OSW_DROPOUT_BELOW_H
#define OSW_DROPOUT_BELOW_H

#include "core/simd.h"
#include "dropout/dropout.h"

#include <stdint.h>

/* Elements whose bits are looked at together: whole bytes of the mask. */
enum { STEP = LANES > 8 ? LANES : 8 };

/* The dtype of a suffix. */
#define DTYPE_f32  OSW_F32
#define DTYPE_bf16 OSW_BF16
#define DTYPE_f16  OSW_F16

/* The kernels of the tier below, for what is left over. */
static osw_dropout_table below;

/* The bits of STEP elements from element i on. */
OSW_INLINE uint32_t mask_bits(const uint8_t *mask, int64_t i)
{
    const uint32_t first = mask[i / 8];
    return STEP == 8 ? first : first | (uint32_t)mask[i / 8 + 1] << 8;
}

#endif
