/* SPDX-License-Identifier: MIT */
/* What the kernels of a tier share whatever the dtype: the tier below, and the sizes of tiles. */
#ifndef OSW_CONV_BELOW_H
#define OSW_CONV_BELOW_H

#include "conv/conv.h"
#include "core/ints.h"
#include "core/names.h"
#include "core/simd.h"

#include <stdint.h>

/* The kernels of the tier below, for fewer channels than a vector has lanes. */
static osw_conv_fn *below[OSW_CONV_COUNT];

#define ID_OF(name) OSW_JOIN(OSW_CONV_##name##_, SUFFIX)

OSW_INLINE vi32 last_lanes_f32(int64_t n)
{
    return last_lanes_i32(n);
}

OSW_INLINE vi64 last_lanes_f64(int64_t n)
{
    return last_lanes_i64(n);
}

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

/* X(rows, vectors) for all tiles of so many vectors: up to as many rows as registers hold the sums
 * of, beside the vectors and a factor. */
#define UP_TO_3(X, vectors) X(1, vectors) X(2, vectors) X(3, vectors)
#define UP_TO_4(X, vectors) UP_TO_3(X, vectors) X(4, vectors)
#define UP_TO_6(X, vectors) UP_TO_4(X, vectors) X(5, vectors) X(6, vectors)
#define UP_TO_8(X, vectors) UP_TO_6(X, vectors) X(7, vectors) X(8, vectors)
#define UP_TO_12(X, vectors)                                                                       \
    UP_TO_8(X, vectors) X(9, vectors) X(10, vectors) X(11, vectors) X(12, vectors)

enum { MOST_VECTORS = 4, FEW_CHANNELS = 64 };
#if (REGISTERS) == 32
#    define TILES_1(X) UP_TO_12(X, 1)
#    define TILES_2(X) UP_TO_12(X, 2)
#    define TILES_3(X) UP_TO_8(X, 3)
#    define TILES_4(X) UP_TO_6(X, 4)
enum { MOST_ROWS = 12 };
#else
#    define TILES_1(X) UP_TO_8(X, 1)
#    define TILES_2(X) UP_TO_6(X, 2)
#    define TILES_3(X) UP_TO_4(X, 3)
#    define TILES_4(X) UP_TO_3(X, 4)
enum { MOST_ROWS = 8 };
#endif

/* The most rows of a tile, by its vectors. */
#define ONE_TILE(rows, vectors) +1
static const int tile_rows[MOST_VECTORS + 1] = {0, TILES_1(ONE_TILE), TILES_2(ONE_TILE),
                                                TILES_3(ONE_TILE), TILES_4(ONE_TILE)};

/* Vectors of the next tiles if so many are left: no single one behind others. With few registers
 * two, whose tiles have the most rows, or four if there are no more rows than theirs. */
static inline int64_t tile_vectors(int64_t left, int64_t rows)
{
    if (REGISTERS == 32 || rows <= tile_rows[MOST_VECTORS])
        return left <= MOST_VECTORS ? left : left % 3 == 1 || left == 8 ? 4 : 3;
    return left <= 3 ? left : 2;
}

#endif
