/* SPDX-License-Identifier: MIT */
/* Kernels for three rows of elements below 64 bits; included once per width, after tile.h for
 * vectors of 128 bits.
 *
 * Three rows are four with a gap that is closed after the zip. The last vector of a tile writes or
 * reads four bytes too many. What follows writes them again, so tiles end SPARE columns before the
 * end of the run. */
#include "channels/below.h"
#include "channels/channels.h"
#include "channels/zip.h"
#include "core/simd.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "channels/each_width.h"
#    include "channels/tile.h"
#endif

#define SPARE         2
#define COLUMNS       (128 / WIDTH)
#define OF_TILE(name) OSW_JOIN(LOCAL(name), _v128)

OSW_INLINE void LOCAL(zip_three)(ELEMENT *wide, ELEMENT *const *narrow, int64_t j)
{
    v128 v[MAX_TILE_ROWS];
    for (int i = 0; i < 3; i++)
        v[i] = load_v128(narrow[i] + j);
    v[3] = v[2];
    OF_TILE(zip_tile)(v, 4);
    for (int i = 0; i < 4; i++)
        store_v128(wide + 3 * j + 3 * COLUMNS / 4 * i, LOCAL(close)(v[i]));
}

OSW_INLINE void LOCAL(unzip_three)(const ELEMENT *wide, ELEMENT *const *narrow, int64_t j)
{
    v128 v[MAX_TILE_ROWS];
    for (int i = 0; i < 4; i++)
        v[i] = LOCAL(spread)(load_v128(wide + 3 * j + 3 * COLUMNS / 4 * i));
    OF_TILE(unzip_tile)(v, 4);
    for (int i = 0; i < 3; i++)
        store_v128(narrow[i] + j, v[i]);
}

/* The SPARE columns of a pixel behind the tiles, from column j on. */
OSW_INLINE void LOCAL(spare_of_three)(ELEMENT *wide, ELEMENT *const *narrow, int64_t j,
                               const int interleave)
{
    for (int at = 0; at < 3 * SPARE; at++) {
        ELEMENT *one = &narrow[at % 3][j + at / 3];
        if (interleave)
            wide[3 * j + at] = *one;
        else
            *one = wide[3 * j + at];
    }
}

OSW_INLINE bool LOCAL(three)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
                      const int interleave)
{
    const int64_t tiled = run->columns - SPARE;
    if (tiled < COLUMNS)
        return false;
    ELEMENT *narrow[MAX_TILE_ROWS];
    int64_t next;
    for (int64_t p = begin; p < end; p++) {
        ELEMENT *wide = OF_TILE(locate)(run, image, p, narrow, 3);
        for (int64_t j = 0; j < tiled; j = next) {
            next = j + COLUMNS;
            const int64_t first = next <= tiled ? j : tiled - COLUMNS;
            if (interleave)
                LOCAL(zip_three)(wide, narrow, first);
            else
                LOCAL(unzip_three)(wide, narrow, first);
        }
        LOCAL(spare_of_three)(wide, narrow, tiled, interleave);
    }
    return true;
}

static void KERNEL(interleave_3)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    if (!LOCAL(three)(run, image, begin, end, 1))
        BELOW(interleave, 3);
}

static void KERNEL(deinterleave_3)(const osw_run *run, int64_t image, int64_t begin, int64_t end)
{
    if (!LOCAL(three)(run, image, begin, end, 0))
        BELOW(deinterleave, 3);
}

#undef SPARE
#undef COLUMNS
#undef OF_TILE
