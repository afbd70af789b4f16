/* SPDX-License-Identifier: MIT */
/* Tiles of products: as many rows of one to four vectors as registers hold the sums of, beside the
 * vectors and a factor. */
#ifndef OSW_CORE_SIMD_TILES_H
#define OSW_CORE_SIMD_TILES_H

#include "core/simd.h"

/* X(rows, vectors) for all tiles of so many vectors: up to as many rows as registers hold the sums
 * of, beside the vectors and a factor. */
#define UP_TO_3(X, vectors) X(1, vectors) X(2, vectors) X(3, vectors)
#define UP_TO_4(X, vectors) UP_TO_3(X, vectors) X(4, vectors)
#define UP_TO_6(X, vectors) UP_TO_4(X, vectors) X(5, vectors) X(6, vectors)
#define UP_TO_8(X, vectors) UP_TO_6(X, vectors) X(7, vectors) X(8, vectors)
#define UP_TO_12(X, vectors)                                                                       \
    UP_TO_8(X, vectors) X(9, vectors) X(10, vectors) X(11, vectors) X(12, vectors)

enum { MOST_VECTORS = 4 }; /* of a tile */

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

#endif
