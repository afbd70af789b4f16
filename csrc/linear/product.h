/* SPDX-License-Identifier: MIT */
/* A matrix product c = start + a b with one of its factors, b, packed in panels of one to four
 * vectors of columns. A panel stays in L1 while the rows of a block of a pass. Included once per
 * dtype that sums are taken in. */
#include "core/ahead.h"
#include "core/ints.h"
#include "core/scratch.h"
#include "core/simd.h"
#include "linear/tiles.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "linear/product_tiles.h"
#endif

/* The share of tile i, of what the tiles from row m on need: the next rows of a, and in turn those
 * of c if a single panel writes whole rows of it, not much shorter ones, both for two tiles then.
 * Nothing if others lie between the rows. Measured on Zen 5: 24 to 58 columns on 33 MB 1.4 times as
 * fast by it, 48 to 64 1.15 times. */
static osw_share
LOCAL(rows_ahead)(const osw_product *p, int64_t i, int64_t m, int64_t rows, int64_t d,
                            int64_t terms)
{
    const bool whole = d == 0 && !p->c_steps && p->columns <= MOST_VECTORS * VLANES &&
                       p->c_row <= 2 * p->columns && 2 * p->c_row > p->a_row;
    const bool writes = whole && i % 2 == 1;
    const int64_t row = (writes ? p->c_row : p->a_row) * (int64_t)sizeof(ELEMENT);
    const int64_t bytes = osw_min_int(whole ? 2 * rows : rows, p->rows - m) * row;
    if (p->a_term != 1 || bytes > MOST_LINES * LINE_BYTES * terms)
        return (osw_share){NULL, 0};
    if (writes)
        return share_of((const ELEMENT *)p->c + m * p->c_row, bytes, terms);
    const int64_t at = place_in(p, p->a_steps, p->a_row, m) + d;
    return share_of((const ELEMENT *)p->a + at, bytes, terms);
}

/* Bring into L1 columns [j, j + columns) of the terms [d, d + terms) of b. */
static void
LOCAL(ask_columns)(const osw_product *p, int64_t j, int64_t columns, int64_t d, int64_t terms)
{
    const ELEMENT *b = (const ELEMENT *)p->b + d * p->b_term + j;
    for (; terms > 0; terms--, b += p->b_term)
        for (int64_t i = 0; i < columns * (int64_t)sizeof(ELEMENT); i += 64)
            prefetch_near((const char *)b + i);
}

/* Rows [m, end) of c, from column j on, terms [d, d + terms), by one panel. Each tile asks for its
 * share of the next panel's `ahead` columns. */
static void
LOCAL(multiply_panel)(const osw_product *p, int64_t m, int64_t end, int64_t j, int64_t vectors,
                           int64_t last, int64_t d, int64_t terms, const ELEMENT *panel,
                           int64_t panel_step, int64_t ahead)
{
    const bool adds = d > 0 || p->adds;
    const ELEMENT *a = p->a;
    const int64_t most = tile_rows[vectors], shares = osw_ceil(end - m, most);
    for (int64_t rows, i = 0; m < end; m += rows, i++) {
        rows = rows_of_tile(p, m, end, most);
        if (ahead)
            LOCAL(ask_columns)(p, j + vectors * VLANES, ahead, d + terms * i / shares,
                        terms * (i + 1) / shares - terms * i / shares);
        ELEMENT *const c = (ELEMENT *)p->c + place_in(p, p->c_steps, p->c_row, m) + j;
        const osw_tile tile = {
            .terms = terms,
            .a = a + place_in(p, p->a_steps, p->a_row, m) + d * p->a_term,
            .a_row = p->a_row,
            .a_term = p->a_term,
            .panel = panel,
            .panel_step = panel_step,
            .start = adds       ? c
                     : p->start ? (const ELEMENT *)p->start + j
                                : NULL,
            .start_row = adds ? p->c_row : 0,
            .row_start = adds || !p->row_start ? NULL : (const ELEMENT *)p->row_start + m,
            .c = c,
            .c_row = p->c_row,
            .last = last,
            .ahead = LOCAL(rows_ahead)(p, i, m + rows, rows, d, terms),
        };
        LOCAL(tiles)[vectors - 1][rows - 1](&tile);
    }
}

/* The terms [d, d + terms) of b from column j on, one line of images after the other if b consists
 * of them. */
static void
LOCAL(pack_terms)(const osw_product *p, int64_t j, int64_t d, int64_t terms, int64_t columns,
                       int64_t width, ELEMENT *panel)
{
    const ELEMENT *const b = (const ELEMENT *)p->b + (p->transposed ? j * p->b_term : j);
    for (int64_t length; terms > 0; terms -= length, d += length, panel += length * width) {
        const ELEMENT *from = b + place_in(p, p->b_steps, p->transposed ? 1 : p->b_term, d);
        length = p->b_steps ? osw_linear_in_line(p->lines, p->first + d, terms) : terms;
        if (p->transposed)
            LOCAL(pack_transposed)(from, p->b_term, length, columns, width, panel);
        else
            LOCAL(pack)(from, p->b_term, length, columns, width, panel);
    }
}

/* All panels of columns [j, j + columns), of the terms [d, d + terms). */
static void
LOCAL(pack_apart)(const osw_product *p, int64_t j, int64_t columns, int64_t d, int64_t terms,
                       ELEMENT *panels)
{
    const ELEMENT *b = (const ELEMENT *)p->b + d * p->b_term + j;
    for (int64_t t = 0; t < terms; t++, b += p->b_term)
        for (int64_t k = 0, width; k < columns; k += width) {
            width = panel_vectors(osw_ceil(columns - k, VLANES)) * VLANES;
            const int64_t count = osw_min_int(columns - k, width);
            LOCAL(pack)(b + k, 0, 1, count, width, panels + k * terms + t * width);
        }
}

/* Rows [begin, end) and columns [j, j + columns) of c, terms [d, d + terms). b is packed, then the
 * rows pass; for few rows whole vectors of it are read where they lie. */
static void LOCAL(multiply_columns)(const osw_product *p, int64_t begin, int64_t end, int64_t j,
                             int64_t columns, int64_t d, int64_t terms, ELEMENT *panels)
{
    const int64_t row_bytes = osw_max_int(terms, 1) * TILE_ROWS * (int64_t)sizeof(ELEMENT);
    /* Small panels are fetched again sooner than pages of c are opened again. */
    const bool few = terms <= FEW_TERMS && p->c_row * (int64_t)sizeof(ELEMENT) >= PAGE_BYTES;
    const int64_t block = osw_max_int(few ? 1 : ROW_BLOCK_BYTES / row_bytes, 1) * TILE_ROWS;
    const bool once =
        end - begin <= block && !p->apart_b; /* each panel may take the last one's place */
    if (p->apart_b)
        LOCAL(pack_apart)(p, j, columns, d, terms, panels);
    for (int64_t m = begin; m < end; m += block) {
        const int64_t next = osw_min_int(m + block, end);
        for (int64_t k = 0; k < columns;) {
            const int64_t rest = columns - k, vectors = panel_vectors(osw_ceil(rest, VLANES));
            const int64_t width = vectors * VLANES, count = osw_min_int(rest, width);
            const bool packs =
                p->transposed || p->b_steps || p->apart_b || p->rows > FEW_ROWS || count < width;
            ELEMENT *const panel = panels + (once ? 0 : k * terms);
            const ELEMENT *const b = packs ? panel : (const ELEMENT *)p->b + d * p->b_term + j + k;
            const int64_t b_term = packs ? width : p->b_term, last = count - width + VLANES;
            if (packs && !p->apart_b && m == begin)
                LOCAL(pack_terms)(p, j + k, d, terms, count, width, panel);
            const int64_t ahead = p->asks_b && m == begin ? osw_min_int(rest - count, width) : 0;
            LOCAL(multiply_panel)(p, m, next, j + k, vectors, last, d, terms, b, b_term, ahead);
            k += width;
        }
    }
}

/* Rows that pass all of b before the next ones do: what is added to c stays in L2 meanwhile. All of
 * them if they pass once, or if the terms of a are far apart, which costs more than c does. */
static int64_t LOCAL(rows_of_pass)(const osw_product *p, int64_t passes, int64_t columns)
{
    if (p->a_term != 1 || (passes == 1 && p->columns <= columns))
        return osw_max_int(p->rows, 1);
    const int64_t row_bytes = osw_min_int(p->columns, columns) * (int64_t)sizeof(ELEMENT);
    const int64_t most = osw_max_int(SUM_BYTES / row_bytes / TILE_ROWS, 1) * TILE_ROWS;
    const int64_t even = osw_ceil(p->rows, osw_max_int(osw_ceil(p->rows, most), 1));
    return osw_round_up(osw_max_int(even, 1), TILE_ROWS);
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
    const int64_t rows = LOCAL(rows_of_pass)(p, passes, full);
    for (int64_t m = 0; m < p->rows; m += rows) {
        const int64_t end = osw_min_int(m + rows, p->rows);
        for (int64_t j = 0; j < p->columns; j += full) {
            const int64_t columns = osw_min_int(p->columns - j, full);
            int64_t d = 0;
            do { /* once without terms too: c becomes `start` */
                LOCAL(multiply_columns)(p, m, end, j, columns, d, osw_min_int(p->terms - d, depth),
                                 panels);
                d += depth;
            } while (d < p->terms);
        }
    }
}
