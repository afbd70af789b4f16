/* SPDX-License-Identifier: MIT */
/* zip and unzip of two vectors, for elements of 8 to 64 bits:
 *
 *     zip:    lo, hi    = x0 y0 x1 y1 ...
 *     unzip:  even, odd = x0 x2 ... y0 y2 ..., x1 x3 ... y1 y3 ...
 *
 * Vectors have 32, 64 or 128 bits or, called full, VEC_BYTES bytes. Those of 32 and 64 bits are the
 * lower part of one of 128; the rest holds anything. The shuffles are such that CPUs have one
 * instruction for each: within 16 bytes, or of 64-bit lanes. */
#ifndef OSW_CHANNELS_ZIP_H
#define OSW_CHANNELS_ZIP_H

#include "core/simd.h"

#include <stdint.h>

typedef uint8_t v128_x8 OSW_VECTOR(16);
typedef uint16_t v128_x16 OSW_VECTOR(16);
typedef uint32_t v128_x32 OSW_VECTOR(16);
typedef uint64_t v128_x64 OSW_VECTOR(16);
typedef float v128_f32 OSW_VECTOR(16);
typedef v128_x64 v128, v64, v32;

typedef v128 v128_memory OSW_UNALIGNED;
typedef uint64_t v64_memory OSW_UNALIGNED;
typedef uint32_t v32_memory OSW_UNALIGNED;

OSW_INLINE v32 load_v32(const void *from)
{
    return (v32)(v128_x32){*(const v32_memory *)from};
}

OSW_INLINE v64 load_v64(const void *from)
{
    return (v64){*(const v64_memory *)from};
}

OSW_INLINE v128 load_v128(const void *from)
{
    return *(const v128_memory *)from;
}

OSW_INLINE void store_v32(void *to, v32 v)
{
    *(v32_memory *)to = ((v128_x32)v)[0];
}

OSW_INLINE void store_v64(void *to, v64 v)
{
    *(v64_memory *)to = v[0];
}

OSW_INLINE void store_v128(void *to, v128 v)
{
    *(v128_memory *)to = v;
}

/* Numbers of lanes. PAIRS_k(i, n): k pairs i, n + i, i + 1, n + i + 1, ... */
#define PAIRS_1(i, n)  (i), (n) + (i)
#define PAIRS_2(i, n)  PAIRS_1(i, n), PAIRS_1((i) + 1, n)
#define PAIRS_4(i, n)  PAIRS_2(i, n), PAIRS_2((i) + 2, n)
#define PAIRS_8(i, n)  PAIRS_4(i, n), PAIRS_4((i) + 4, n)
#define PAIRS_16(i, n) PAIRS_8(i, n), PAIRS_8((i) + 8, n)
#define PAIRS_32(i, n) PAIRS_16(i, n), PAIRS_16((i) + 16, n)

/* EVERY_k(i): k lanes i, i + 2, i + 4, ... */
#define EVERY_1(i) (i)
#define EVERY_2(i) (i), (i) + 2
#define EVERY_4(i) EVERY_2(i), EVERY_2((i) + 4)
#define EVERY_8(i) EVERY_4(i), EVERY_4((i) + 8)

/* The lanes of 16 bytes from i on, the even ones before the odd ones. */
#define HALVES_8(i)  EVERY_8(i), EVERY_8((i) + 1)
#define HALVES_16(i) EVERY_4(i), EVERY_4((i) + 1)
#define HALVES_32(i) EVERY_2(i), EVERY_2((i) + 1)

/* In every 16 bytes of a vector of so many. */
#define BLOCKS_16(halves, lanes) halves(0)
#define BLOCKS_32(halves, lanes) halves(0), halves(lanes)
#define BLOCKS_64(halves, lanes) BLOCKS_32(halves, lanes), halves(2 * lanes), halves(3 * lanes)

/* Every other lane of each 16 bytes of two vectors of n lanes of 32 bits. */
#define FOURS_16(i, n) (i), (i) + 2, (n) + (i), (n) + (i) + 2
#define FOURS_32(i, n) FOURS_16(i, n), FOURS_16((i) + 4, n)
#define FOURS_64(i, n) FOURS_32(i, n), FOURS_32((i) + 8, n)

/* half: of the number of lanes */
#define ZIP(form, width, half)                                                                     \
    OSW_INLINE void zip_x##width##_##form(form x, form y, form *lo, form *hi)                      \
    {                                                                                              \
        const form##_x##width a = (form##_x##width)x, b = (form##_x##width)y;                      \
        *lo = (form)__builtin_shufflevector(a, b, PAIRS_##half(0, 2 * half));                      \
        *hi = (form)__builtin_shufflevector(a, b, PAIRS_##half(half, 2 * half));                   \
    }

/* As numbers of float: for integers gcc makes more instructions of the same shuffle. */
#define UNZIP_32(form, bytes, lanes, quarter)                                                      \
    OSW_INLINE void unzip_x32_##form(form x, form y, form *even, form *odd)                        \
    {                                                                                              \
        const form##_f32 a = (form##_f32)x, b = (form##_f32)y;                                     \
        *even = (form)__builtin_shufflevector(a, b, FOURS_##bytes(0, lanes));                      \
        *odd = (form)__builtin_shufflevector(a, b, FOURS_##bytes(1, lanes));                       \
        *even = __builtin_shufflevector(*even, *even, EVERY_##quarter(0), EVERY_##quarter(1));     \
        *odd = __builtin_shufflevector(*odd, *odd, EVERY_##quarter(0), EVERY_##quarter(1));        \
    }

#define UNZIP_64(form, half)                                                                       \
    OSW_INLINE void unzip_x64_##form(form x, form y, form *even, form *odd)                        \
    {                                                                                              \
        *even = __builtin_shufflevector(x, y, EVERY_##half(0));                                    \
        *odd = __builtin_shufflevector(x, y, EVERY_##half(1));                                     \
    }

/* lanes: of 16 bytes */
#define HALVES(form, bytes, width, lanes)                                                          \
    OSW_INLINE form halves_x##width##_##form(form v)                                               \
    {                                                                                              \
        const form##_x##width a = (form##_x##width)v;                                              \
        return (form)__builtin_shufflevector(a, a, BLOCKS_##bytes(HALVES_##width, lanes));         \
    }

#define UNZIP(form, width)                                                                         \
    OSW_INLINE void unzip_x##width##_##form(form x, form y, form *even, form *odd)                 \
    {                                                                                              \
        unzip_x64_##form(halves_x##width##_##form(x), halves_x##width##_##form(y), even, odd);     \
    }

ZIP(v128, 8, 8)
ZIP(v128, 16, 4)
ZIP(v128, 32, 2)
ZIP(v128, 64, 1)
HALVES(v128, 16, 8, 16)
HALVES(v128, 16, 16, 8)
HALVES(v128, 16, 32, 4)
UNZIP_64(v128, 2)
UNZIP_32(v128, 16, 4, 1)
UNZIP(v128, 8)
UNZIP(v128, 16)

/* Both results in one vector of 128 bits, then the upper one moved down. */
#define SHORTER(width)                                                                             \
    OSW_INLINE void zip_x##width##_v64(v64 x, v64 y, v64 *lo, v64 *hi)                             \
    {                                                                                              \
        v128 unused;                                                                               \
        zip_x##width##_v128(x, y, lo, &unused);                                                    \
        *hi = __builtin_shufflevector(*lo, *lo, 1, 1);                                             \
    }                                                                                              \
                                                                                                   \
    OSW_INLINE void unzip_x##width##_v64(v64 x, v64 y, v64 *even, v64 *odd)                        \
    {                                                                                              \
        *even = halves_x##width##_v128(__builtin_shufflevector(x, y, 0, 2));                       \
        *odd = __builtin_shufflevector(*even, *even, 1, 1);                                        \
    }

SHORTER(8)
SHORTER(16)
SHORTER(32)

OSW_INLINE void zip_x8_v32(v32 x, v32 y, v32 *lo, v32 *hi)
{
    v128 unused;
    zip_x8_v128(x, y, lo, &unused);
    *hi = *lo >> 32;
}

OSW_INLINE void unzip_x8_v32(v32 x, v32 y, v32 *even, v32 *odd)
{
    const v128_x32 both = __builtin_shufflevector((v128_x32)x, (v128_x32)y, 0, 4, 1, 5);
    const v128_x8 a = (v128_x8)both;
    *even = (v32)__builtin_shufflevector(a, a, 0, 2, 4, 6, 1, 3, 5, 7, 0, 2, 4, 6, 1, 3, 5, 7);
    *odd = *even >> 32;
}

#if VEC_BYTES > 16

typedef vu8 full_x8;
typedef vu16 full_x16;
typedef vu32 full_x32;
typedef vu64 full_x64;
typedef vf32 full_f32;
typedef vu64 full;
typedef full full_memory OSW_UNALIGNED;

OSW_INLINE full load_full(const void *from)
{
    return *(const full_memory *)from;
}

OSW_INLINE void store_full(void *to, full v)
{
    *(full_memory *)to = v;
}

#    if VEC_BYTES == 32
ZIP(full, 8, 16)
ZIP(full, 16, 8)
ZIP(full, 32, 4)
HALVES(full, 32, 8, 16)
HALVES(full, 32, 16, 8)
UNZIP_64(full, 4)
UNZIP_32(full, 32, 8, 2)
#    else
ZIP(full, 8, 32)
ZIP(full, 16, 16)
ZIP(full, 32, 8)
HALVES(full, 64, 8, 16)
HALVES(full, 64, 16, 8)
UNZIP_64(full, 8)
UNZIP_32(full, 64, 16, 4)
#    endif
UNZIP(full, 8)
UNZIP(full, 16)

#endif

/* Groups of four elements lose their last one and close up; spread is the inverse, with any value
 * in the gaps. */
OSW_INLINE v128 close_x8(v128 v)
{
    const v128_x8 a = (v128_x8)v;
    return (v128)__builtin_shufflevector(a, a, 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 3, 3, 3);
}

OSW_INLINE v128 spread_x8(v128 v)
{
    const v128_x8 a = (v128_x8)v;
    return (v128)__builtin_shufflevector(a, a, 0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11);
}

OSW_INLINE v128 close_x16(v128 v)
{
    const v128_x16 a = (v128_x16)v;
    return (v128)__builtin_shufflevector(a, a, 0, 1, 2, 4, 5, 6, 3, 3);
}

OSW_INLINE v128 spread_x16(v128 v)
{
    const v128_x16 a = (v128_x16)v;
    return (v128)__builtin_shufflevector(a, a, 0, 1, 2, 2, 3, 4, 5, 5);
}

OSW_INLINE v128 close_x32(v128 v)
{
    return v;
}

OSW_INLINE v128 spread_x32(v128 v)
{
    return v;
}

#endif
