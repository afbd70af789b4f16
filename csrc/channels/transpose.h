/* SPDX-License-Identifier: MIT */
/* Kernels of one width of elements; included once per width. A run uses the largest vectors that
 * its columns fill; runs too short for any are left to the tier below. Four rows and more stay with
 * 128-bit vectors: to put longer ones in order costs what they save. So do elements of 64 bits: on
 * Zen 5, two rows of 12 MB take 1.5 times as long with 256 bits, and 0.87 of the time in L2. */
#include "channels/below.h"
#include "channels/channels.h"
#include "core/simd.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "channels/each_width.h"
#endif

#if WIDTH == 8
#    define FORM      v32
#    define FORM_BITS 32
#    include "channels/tile.h"
#endif

#if WIDTH < 64
#    define FORM      v64
#    define FORM_BITS 64
#    include "channels/tile.h"
#endif

#define FORM      v128
#define FORM_BITS 128
#include "channels/tile.h"

#if VEC_BYTES > 16 && WIDTH < 64
#    define FORM      full
#    define FORM_BITS (8 * VEC_BYTES)
#    include "channels/tile.h"
#endif

#if WIDTH < 64
#    include "channels/three.h"
#endif

/* Returns true after transposing the run with this kind of vector, if the columns fill one. */
#define TRY(kind, form, bits, rows)                                                                \
    if (run->columns >= (bits) / WIDTH) {                                                          \
        OSW_JOIN(LOCAL(kind), _##form)(run, image, begin, end, rows, interleave);                  \
        return true;                                                                               \
    }

/* Runs of 2, 4 or 8 rows. */
OSW_INLINE bool
LOCAL(fixed)(const osw_run *run, int64_t image, int64_t begin, int64_t end, const int rows,
                      const int interleave)
{
#if VEC_BYTES > 16 && WIDTH < 64
    if (rows == 2)
        TRY(fixed, full, 8 * VEC_BYTES, rows)
    if (rows == 2 && VEC_BYTES > 32) /* the tier below may fill 32 bytes */
        return false;
#endif
    TRY(fixed, v128, 128, rows)
#if WIDTH < 64
    TRY(fixed, v64, 64, rows)
#endif
    return false;
}

/* A column of a tile must fill whole vectors: 8 rows fill 64 bits of bytes, 4 rows 64 bits of
 * 16-bit elements. */
OSW_INLINE bool LOCAL(any)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
                    const int interleave)
{
    if (run->rows >= 8) {
#if WIDTH > 8
        TRY(any, v128, 128, 8)
#endif
#if WIDTH < 64
        TRY(any, v64, 64, 8)
#endif
    }
    if (run->rows >= 4) {
#if WIDTH > 16
        TRY(any, v128, 128, 4)
#elif WIDTH == 16
        TRY(any, v64, 64, 4)
#else
        TRY(any, v32, 32, 4)
#endif
    }
    return false;
}

#define FIXED_ROWS(name, direction, rows, interleave)                                              \
    static void KERNEL(name)(const osw_run *run, int64_t image, int64_t begin, int64_t end)        \
    {                                                                                              \
        if (!LOCAL(fixed)(run, image, begin, end, rows, interleave))                               \
            BELOW(direction, rows);                                                                \
    }
FIXED_ROWS(interleave_2, interleave, 2, 1)
FIXED_ROWS(interleave_4, interleave, 4, 1)
FIXED_ROWS(interleave_8, interleave, 8, 1)
FIXED_ROWS(deinterleave_2, deinterleave, 2, 0)
FIXED_ROWS(deinterleave_4, deinterleave, 4, 0)
FIXED_ROWS(deinterleave_8, deinterleave, 8, 0)
#undef FIXED_ROWS

static void KERNEL(interleave_ANY)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    if (!LOCAL(any)(run, image, begin, end, 1))
        BELOW(interleave, ANY);
}

static void KERNEL(deinterleave_ANY)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    if (!LOCAL(any)(run, image, begin, end, 0))
        BELOW(deinterleave, ANY);
}

#undef TRY
