/* SPDX-License-Identifier: MIT */
/* The floating-point types that kernels are made for. */
#ifndef OSW_CORE_DTYPE_H
#define OSW_CORE_DTYPE_H

#include <stdint.h>

typedef enum osw_dtype { OSW_F32, OSW_F64, OSW_BF16, OSW_F16, OSW_DTYPE_COUNT } osw_dtype;

/* Bytes of an element. */
static inline int64_t osw_dtype_bytes(osw_dtype dtype)
{
    return dtype == OSW_F64 ? 8 : dtype == OSW_F32 ? 4 : 2;
}

/* Bytes of a number that kernels compute an element with: 16 bits are computed in float32. */
static inline int64_t osw_dtype_value_bytes(osw_dtype dtype)
{
    return dtype == OSW_F64 ? 8 : 4;
}

/* The dtype of DLPack's type code (2: float, 4: bfloat16), bits and lanes; OSW_DTYPE_COUNT for any
 * other. */
static inline osw_dtype osw_dtype_of_dlpack(uint8_t code, uint8_t bits, uint16_t lanes)
{
    if (lanes == 1 && code == 2)
        return bits == 32 ? OSW_F32 : bits == 64 ? OSW_F64 : bits == 16 ? OSW_F16 : OSW_DTYPE_COUNT;
    return lanes == 1 && code == 4 && bits == 16 ? OSW_BF16 : OSW_DTYPE_COUNT;
}

#endif
