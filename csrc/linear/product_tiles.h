/* SPDX-License-Identifier: MIT */
/* Tiles of a product with packed panels: sums of a few rows and one to four vectors of columns in
 * registers. Included once per dtype that sums are taken in. */
#include "core/simd.h"
#include "linear/tiles.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* Sums of all terms to c, on top of what `start` and `row_start` hold. */
OSW_INLINE void LOCAL(finish_tile)(const int rows, const int vectors, const osw_tile *t,
                            VECTOR sums[MOST_ROWS][MOST_VECTORS])
{
    const int64_t start_row = t->start_row, c_row = t->c_row, last = t->last;
    const ELEMENT *const start = t->start, *const row_start = t->row_start;
    ELEMENT *const c = t->c;
    const bool whole = last == VLANES;
    if (start) {
        OSW_UNROLL
        for (int m = 0; m < rows; m++) {
            OSW_UNROLL
            for (int v = 0; v < vectors; v++) {
                const ELEMENT *from = start + m * start_row + v * VLANES;
                sums[m][v] += v < vectors - 1 || whole ? LOCAL(load)(from) : LOCAL(load_first)(from, last);
            }
        }
    }
    if (row_start) {
        OSW_UNROLL
        for (int m = 0; m < rows; m++) {
            OSW_UNROLL
            for (int v = 0; v < vectors; v++)
                sums[m][v] += LOCAL(set1)(row_start[m]);
        }
    }
    OSW_UNROLL
    for (int m = 0; m < rows; m++) {
        OSW_UNROLL
        for (int v = 0; v < vectors; v++) {
            ELEMENT *const to = c + m * c_row + v * VLANES;
            if (v < vectors - 1 || whole)
                LOCAL(store)(to, sums[m][v]);
            else
                LOCAL(store_first)(to, sums[m][v], last);
        }
    }
}

OSW_INLINE void LOCAL(multiply_tile)(const int rows, const int vectors, const osw_tile *t)
{
    const ELEMENT *run = t->a, *panel = t->panel;
    const int64_t a_row = t->a_row, a_term = t->a_term, panel_step = t->panel_step;
    const char *ahead = t->ahead.at ? t->ahead.at : t->panel;
    const int64_t ahead_step = t->ahead.step;
    int64_t runs = t->runs;
    VECTOR sums[MOST_ROWS][MOST_VECTORS];
    OSW_UNROLL
    for (int m = 0; m < rows; m++) {
        OSW_UNROLL
        for (int v = 0; v < vectors; v++)
            sums[m][v] = (VECTOR){0};
    }
    do {
        const ELEMENT *a = run;
        for (int64_t d = t->terms; d > 0; d--) {
            VECTOR bs[MOST_VECTORS];
            OSW_UNROLL
            for (int v = 0; v < vectors; v++)
                bs[v] = LOCAL(load)(panel + v * VLANES);
            prefetch_far(ahead);
            ahead += ahead_step;
            OSW_UNROLL
            for (int m = 0; m < rows; m++) {
                const VECTOR as = LOCAL(set1)(a[m * a_row]);
                OSW_UNROLL
                for (int v = 0; v < vectors; v++)
                    sums[m][v] = LOCAL(fma)(as, bs[v], sums[m][v]);
            }
            panel += panel_step;
            a += a_term;
        }
        run += t->a_run;
    } while (--runs > 0);
    LOCAL(finish_tile)(rows, vectors, t, sums);
}

#define TILE(rows, vectors)                                                                        \
    static void LOCAL(tile_##rows##x##vectors)(const osw_tile *t)                                  \
    {                                                                                              \
        LOCAL(multiply_tile)(rows, vectors, t);                                                    \
    }
#define TILE_NAME(rows, vectors) LOCAL(tile_##rows##x##vectors),
TILES_1(TILE)
TILES_2(TILE)
TILES_3(TILE)
TILES_4(TILE)
static osw_tile_fn *const LOCAL(tiles)[MOST_VECTORS][MOST_ROWS] = {
    {TILES_1(TILE_NAME)}, {TILES_2(TILE_NAME)}, {TILES_3(TILE_NAME)}, {TILES_4(TILE_NAME)}};

/* Columns [0, columns) of b, `terms` long, with zeros up to whole vectors. */
static void
LOCAL(pack)(const ELEMENT *b, int64_t b_term, int64_t terms, int64_t columns, int64_t width,
                 ELEMENT *panel)
{
    const int64_t whole = columns / VLANES * VLANES;
    for (int64_t d = 0; d < terms; d++, b += b_term, panel += width) {
        for (int64_t j = 0; j < whole; j += VLANES)
            LOCAL(store)(panel + j, LOCAL(load)(b + j));
        if (whole < width)
            LOCAL(store)(panel + whole, LOCAL(load_first)(b + whole, columns - whole));
    }
}

static void LOCAL(pack_transposed)(const ELEMENT *b, int64_t b_term, int64_t terms, int64_t columns,
                            int64_t width, ELEMENT *panel)
{
    const int64_t squares = columns / VLANES * VLANES, long_terms = terms / VLANES * VLANES;
    for (int64_t j = 0; j < squares; j += VLANES)
        for (int64_t d = 0; d < long_terms; d += VLANES) {
            VECTOR square[VLANES];
            OSW_UNROLL
            for (int i = 0; i < VLANES; i++)
                square[i] = LOCAL(load)(b + (j + i) * b_term + d);
            LOCAL(transpose)(square);
            OSW_UNROLL
            for (int i = 0; i < VLANES; i++)
                LOCAL(store)(panel + (d + i) * width + j, square[i]);
        }
    for (int64_t d = 0; d < terms; d++)
        for (int64_t j = d < long_terms ? squares : 0; j < width; j++)
            panel[d * width + j] = j < columns ? b[j * b_term + d] : 0;
}
