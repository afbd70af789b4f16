/* SPDX-License-Identifier: MIT */
/* What the kernels of a tier share whatever the dtype: the tier below, and the sizes of tiles. */
#ifndef OSW_CONV_BELOW_H
#define OSW_CONV_BELOW_H

#include "conv/conv.h"
#include "core/ints.h"
#include "core/names.h"
#include "core/simd.h"
#include "core/simd_tiles.h"

#include <stdint.h>

/* The kernels of the tier below, for fewer channels than a vector has lanes. */
static osw_conv_fn *below[OSW_CONV_COUNT];

#define ID_OF(name) OSW_JOIN(OSW_CONV_##name##_, SUFFIX)

/* Shrink [*begin, *end) to the output places whose tap t is inside of the image. */
static inline void keep_inside(const osw_conv_axis *axis, int64_t t, int64_t *begin, int64_t *end)
{
    const int64_t before =
        axis->padding - t * axis->dilation; /* output place 0 lies so far outside */
    if (before > 0)
        *begin = osw_max_int(*begin, osw_ceil(before, axis->stride));
    const int64_t places = axis->size + before;
    *end = places > 0 ? osw_min_int(*end, osw_ceil(places, axis->stride)) : *begin;
}

enum { FEW_CHANNELS = 64 };

/* Vectors of the next tiles if so many are left: no single one behind others. With few registers
 * two, whose tiles have the most rows, or four if there are no more rows than theirs. */
static inline int64_t tile_vectors(int64_t left, int64_t rows)
{
    if (REGISTERS == 32 || rows <= tile_rows[MOST_VECTORS])
        return left <= MOST_VECTORS ? left : left % 3 == 1 || left == 8 ? 4 : 3;
    return left <= 3 ? left : 2;
}

#endif
