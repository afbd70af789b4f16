/* SPDX-License-Identifier: MIT */
/* Tiles of one width and one kind of vector; included by transpose.h with FORM, the kind's name in
 * zip.h, and FORM_BITS defined.
 *
 * A tile is COLUMNS columns of 2, 4 or 8 rows, one vector a row. Zipping rows k and k + rows / 2,
 * log2(rows) times over, turns it into the wide order; unzipping turns it back. `rows` is a
 * constant at every call. */
#include "channels/below.h"
#include "channels/channels.h"
#include "channels/zip.h"
#include "core/prefetch.h"
#include "core/simd.h"

#include <stdint.h>

#ifndef SUFFIX
#    include "channels/each_width.h"
#endif
#ifndef FORM
#    define FORM      v128
#    define FORM_BITS 128
#endif

#define TILE(name) OSW_JOIN(LOCAL(name), OSW_JOIN(_, FORM))
#define COLUMNS    (FORM_BITS / WIDTH)

/* Addresses of one pixel of a run, and the prefetch of those that follow. */
OSW_INLINE ELEMENT *TILE(locate)(const osw_run *run, int64_t image, int64_t pixel, ELEMENT **narrow,
                                 const int rows)
{
    char *wide = osw_at(&run->wide, image, pixel);
    for (int i = 0; i < rows; i++)
        narrow[i] = (ELEMENT *)osw_at(&run->narrow[i], image, pixel);
    if (osw_prefetch_ahead) {
        const int64_t row_bytes = run->columns * (int64_t)sizeof(ELEMENT);
        prefetch_ahead(wide, row_bytes * rows);
        for (int i = 0; i < rows; i++)
            prefetch_ahead((const char *)narrow[i], row_bytes);
    }
    return (ELEMENT *)wide;
}

/* v: row by row on entry, in wide order on return. */
OSW_INLINE void TILE(zip_tile)(FORM *v, const int rows)
{
    FORM t[MAX_TILE_ROWS];
    const int half = rows / 2;
    for (int streams = rows; streams > 1; streams /= 2) {
        for (int i = 0; i < half; i++)
            TILE(zip)(v[i], v[half + i], &t[2 * i], &t[2 * i + 1]);
        for (int i = 0; i < rows; i++)
            v[i] = t[i];
    }
}

/* The inverse of zip_tile. */
OSW_INLINE void TILE(unzip_tile)(FORM *v, const int rows)
{
    FORM t[MAX_TILE_ROWS];
    const int half = rows / 2;
    for (int streams = 1; streams < rows; streams *= 2) {
        for (int i = 0; i < half; i++)
            TILE(unzip)(v[2 * i], v[2 * i + 1], &t[i], &t[half + i]);
        for (int i = 0; i < rows; i++)
            v[i] = t[i];
    }
}

/* Columns j to j + COLUMNS of a pixel. The wide side of a tile is dense if the run has as many rows
 * as the tile (stride == rows); otherwise its columns lie `stride` elements apart and a column is a
 * whole number of vectors. */
OSW_INLINE void TILE(zip_columns)(ELEMENT *wide, ELEMENT *const *narrow, int64_t j, int64_t stride,
                                  const int rows)
{
    FORM v[MAX_TILE_ROWS];
    for (int i = 0; i < rows; i++)
        v[i] = OSW_JOIN(load_, FORM)(narrow[i] + j);
    TILE(zip_tile)(v, rows);
    for (int i = 0; i < rows; i++)
        OSW_JOIN(store_, FORM)(wide + (j + i * COLUMNS / rows) * stride + i * COLUMNS % rows, v[i]);
}

OSW_INLINE void TILE(unzip_columns)(const ELEMENT *wide, ELEMENT *const *narrow, int64_t j,
                                    int64_t stride, const int rows)
{
    FORM v[MAX_TILE_ROWS];
    for (int i = 0; i < rows; i++)
        v[i] = OSW_JOIN(load_, FORM)(wide + (j + i * COLUMNS / rows) * stride + i * COLUMNS % rows);
    TILE(unzip_tile)(v, rows);
    for (int i = 0; i < rows; i++)
        OSW_JOIN(store_, FORM)(narrow[i] + j, v[i]);
}

/* All columns of a pixel, at least COLUMNS; the last tile overlaps the one before. */
OSW_INLINE void TILE(pixel)(ELEMENT *wide, ELEMENT *const *narrow, int64_t columns, int64_t stride,
                            const int rows, const int interleave)
{
    int64_t next;
    for (int64_t j = 0; j < columns; j = next) {
        next = j + COLUMNS;
        const int64_t first = next <= columns ? j : columns - COLUMNS;
        if (interleave)
            TILE(zip_columns)(wide, narrow, first, stride, rows);
        else
            TILE(unzip_columns)(wide, narrow, first, stride, rows);
    }
}

/* Runs of exactly `rows` rows. */
OSW_INLINE void TILE(fixed)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
                            const int rows, const int interleave)
{
    ELEMENT *narrow[MAX_TILE_ROWS];
    for (int64_t p = begin; p < end; p++) {
        ELEMENT *wide = TILE(locate)(run, image, p, narrow, rows);
        TILE(pixel)(wide, narrow, run->columns, rows, rows, interleave);
    }
}

/* Runs of `rows` rows or more: tiles of `rows` rows, the last one overlapping the one before. */
OSW_INLINE void TILE(any)(const osw_run *run, int64_t image, int64_t begin, int64_t end,
                          const int rows, const int interleave)
{
    ELEMENT *narrow[MAX_TILE_ROWS];
    for (int64_t p = begin; p < end; p++) {
        ELEMENT *wide = (ELEMENT *)osw_at(&run->wide, image, p);
        for (int64_t row = 0; row < run->rows; row += rows) {
            const int64_t i = row + rows <= run->rows ? row : run->rows - rows;
            for (int k = 0; k < rows; k++)
                narrow[k] = (ELEMENT *)osw_at(&run->narrow[i + k], image, p);
            TILE(pixel)(wide + i, narrow, run->columns, run->rows, rows, interleave);
        }
    }
}

#undef TILE
#undef COLUMNS
#undef FORM
#undef FORM_BITS
