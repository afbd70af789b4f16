/* SPDX-License-Identifier: MIT */
/* bfloat16 and float16 as their bits, to float and back (to nearest, ties to even). */
#ifndef OSW_CORE_HALF_H
#define OSW_CORE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float osw_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t osw_bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float osw_float_of_bf16(uint16_t x)
{
    return osw_float_of_bits((uint32_t)x << 16);
}

/* A NaN keeps the upper part of its payload and becomes quiet if it has to be rounded. */
static inline uint16_t osw_bf16_of_float(float value)
{
    const uint32_t bits = osw_bits_of_float(value);
    if (value != value)
        return (uint16_t)(bits >> 16 | ((bits & 0xffff) ? 0x40 : 0));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A NaN keeps its payload and becomes quiet, as the CPU's conversion makes it. */
static inline float osw_float_of_f16(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16;
    const uint32_t magnitude = x & 0x7fff;
    if (magnitude > 0x7c00)
        return osw_float_of_bits(sign | 0x7fc00000 | (magnitude & 0x3ff) << 13);
    if (magnitude == 0x7c00)
        return osw_float_of_bits(sign | 0x7f800000);
    if (magnitude < 0x400)
        return osw_float_of_bits(sign | osw_bits_of_float((float)magnitude * 0x1p-24f));
    return osw_float_of_bits(sign | ((magnitude << 13) + 0x38000000));
}

static inline uint16_t osw_f16_of_float(float value)
{
    const uint32_t bits = osw_bits_of_float(value);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) /* 65520 and above round to infinity */
        return sign | 0x7c00;
    if (magnitude < 0x38800000) { /* below 2^-14: adding 0.5 leaves multiples of 2^-24 */
        const float shifted = osw_float_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (osw_bits_of_float(shifted) - 0x3f000000));
    }
    const uint32_t rounded = magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | rounded >> 13);
}

#endif
