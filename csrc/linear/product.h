/* SPDX-License-Identifier: MIT */
/* A matrix product c = start + a b with one of its factors, b, packed in panels of one to four
 * vectors of columns. A panel stays in L1 while the rows of a block of a pass. Included once per
 * dtype that sums are taken in. */
#include "core/ints.h"
#include "core/scratch.h"
#include "core/simd.h"
#include "linear/tiles.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* Sums of all terms to c, on top of what `start` holds. */
OSW_INLINE void LOCAL(finish_tile)(const int rows, const int vectors, const osw_tile *t,
                            VECTOR sums[MOST_ROWS][MOST_VECTORS])
{
    const bool whole = t->last == VLANES;
    OSW_UNROLL
    for (int m = 0; m < rows; m++) {
        const ELEMENT *start = (const ELEMENT *)t->start + m * t->start_row;
        ELEMENT *c = (ELEMENT *)t->c + m * t->c_row;
        OSW_UNROLL
        for (int v = 0; v < vectors; v++) {
            const bool full = v < vectors - 1 || whole;
            if (t->start)
                sums[m][v] +=
                    full ? LOCAL(load)(start + v * VLANES) : LOCAL(load_first)(start + v * VLANES, t->last);
            if (full)
                LOCAL(store)(c + v * VLANES, sums[m][v]);
            else
                LOCAL(store_first)(c + v * VLANES, sums[m][v], t->last);
        }
    }
}

OSW_INLINE void LOCAL(multiply_tile)(const int rows, const int vectors, const osw_tile *t)
{
    const ELEMENT *a = t->a, *panel = t->panel;
    const int64_t a_row = t->a_row, a_term = t->a_term, panel_step = t->panel_step;
    VECTOR sums[MOST_ROWS][MOST_VECTORS];
    OSW_UNROLL
    for (int m = 0; m < rows; m++) {
        OSW_UNROLL
        for (int v = 0; v < vectors; v++)
            sums[m][v] = (VECTOR){0};
    }
    for (int64_t d = t->terms; d > 0; d--) {
        VECTOR bs[MOST_VECTORS];
        OSW_UNROLL
        for (int v = 0; v < vectors; v++)
            bs[v] = LOCAL(load)(panel + v * VLANES);
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

/* Bring into L1 the rows that the next tile reads, all of them at once. */
static void LOCAL(ask_rows)(const ELEMENT *a, int64_t rows, int64_t a_row, int64_t terms)
{
    for (int64_t m = 0; m < rows; m++)
        for (int64_t d = 0; d < terms * (int64_t)sizeof(ELEMENT); d += 64)
            prefetch_near((const char *)(a + m * a_row) + d);
}

/* Rows [m, end) of c, from column j on, terms [d, d + terms), by one panel. */
static void
LOCAL(multiply_panel)(const osw_product *p, int64_t m, int64_t end, int64_t j, int64_t vectors,
                           int64_t last, int64_t d, int64_t terms, const ELEMENT *panel,
                           int64_t panel_step)
{
    const bool adds = d > 0 || p->adds;
    const ELEMENT *start = adds ? p->c : p->start, *a = p->a;
    const int64_t start_row = adds ? p->c_row : 0, most = tile_rows[vectors];
    const bool asks = p->asks && j == 0;
    for (; m < end; m += most) {
        if (asks)
            LOCAL(
                ask_rows)(a + (m + most) * p->a_row + d, osw_min_int(end - m - most, most), p->a_row,
                     terms);
        const osw_tile tile = {
            .terms = terms,
            .a = a + m * p->a_row + d * p->a_term,
            .a_row = p->a_row,
            .a_term = p->a_term,
            .panel = panel,
            .panel_step = panel_step,
            .start = start ? start + m * start_row + j : NULL,
            .start_row = start_row,
            .c = (ELEMENT *)p->c + m * p->c_row + j,
            .c_row = p->c_row,
            .last = last,
        };
        LOCAL(tiles)[vectors - 1][osw_min_int(end - m, most) - 1](&tile);
    }
}

/* Columns [j, j + columns) of c, terms [d, d + terms). b is packed, then all rows pass; for few
 * rows whole vectors of it are read where they lie. */
static void LOCAL(multiply_columns)(const osw_product *p, int64_t j, int64_t columns, int64_t d,
                             int64_t terms, ELEMENT *panels)
{
    const int64_t row_bytes = osw_max_int(terms, 1) * TILE_ROWS * (int64_t)sizeof(ELEMENT);
    const int64_t block = osw_max_int(ROW_BLOCK_BYTES / row_bytes, 1) * TILE_ROWS;
    const ELEMENT *const b =
        (const ELEMENT *)p->b + (p->transposed ? j * p->b_term + d : d * p->b_term + j);
    for (int64_t m = 0; m < p->rows; m += block) {
        const int64_t end = osw_min_int(m + block, p->rows);
        for (int64_t k = 0; k < columns;) {
            const int64_t rest = columns - k, vectors = panel_vectors(osw_ceil(rest, VLANES));
            const int64_t width = vectors * VLANES, count = osw_min_int(rest, width);
            const bool packs = p->transposed || p->rows > FEW_ROWS || count < width;
            ELEMENT *const panel = panels + k * terms;
            const ELEMENT *const from = b + (p->transposed ? k * p->b_term : k);
            if (packs && m == 0 && p->transposed)
                LOCAL(pack_transposed)(from, p->b_term, terms, count, width, panel);
            else if (packs && m == 0)
                LOCAL(pack)(from, p->b_term, terms, count, width, panel);
            LOCAL(multiply_panel)(p, m, end, j + k, vectors, count - width + VLANES, d, terms,
                           packs ? panel : from, packs ? width : p->b_term);
            k += width;
        }
    }
}

static void LOCAL(multiply)(const osw_product *p)
{
    ELEMENT *const panels = osw_scratch_inner(PANEL_BYTES);
    const int64_t passes = osw_ceil(p->terms, p->a_term == 1 ? DEPTH : FAR_DEPTH);
    /* Passes of the same length, in whole vectors. */
    const int64_t depth =
        passes > 1 ? osw_round_up(osw_ceil(p->terms, passes), VLANES) : osw_max_int(p->terms, 1);
    const int64_t widest = MOST_VECTORS * VLANES;
    const int64_t full = PANEL_BYTES / (int64_t)sizeof(ELEMENT) / depth / widest * widest;
    for (int64_t j = 0; j < p->columns; j += full) {
        const int64_t columns = osw_min_int(p->columns - j, full);
        int64_t d = 0;
        do { /* once without terms too: c becomes `start` */
            LOCAL(multiply_columns)(p, j, columns, d, osw_min_int(p->terms - d, depth), panels);
            d += depth;
        } while (d < p->terms);
    }
}
