/* SPDX-License-Identifier: MIT */
/* The product of a 16-bit type: pieces of both factors are widened to float, multiplied by the
 * kernel of float, and the sums of all terms are rounded once. */
#include "core/ints.h"
#include "core/scratch.h"
#include "core/simd.h"
#include "linear/tiles.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "linear/product.h"
#    undef SUFFIX
#    undef ELEMENT
#    define SUFFIX  bf16
#    define ELEMENT uint16_t
#endif

/* Lines of `to` have room for whole vectors. */
static void LOCAL(widen_lines)(int64_t lines, int64_t count, const ELEMENT *from, int64_t from_step,
                        float *to, int64_t to_step)
{
    for (; lines > 0; lines--, from += from_step, to += to_step) {
        int64_t i = 0;
        for (; i + LANES <= count; i += LANES)
            store_f32(to + i, LOCAL(load)(from + i));
        if (i < count)
            store_f32(to + i, LOCAL(load_first)(from + i, count - i));
    }
}

static void LOCAL(round_lines)(int64_t lines, int64_t count, const float *from, int64_t from_step,
                        ELEMENT *to, int64_t to_step)
{
    for (; lines > 0; lines--, from += from_step, to += to_step) {
        int64_t i = 0;
        for (; i + LANES <= count; i += LANES)
            LOCAL(store_rounded)(to + i, load_f32(from + i));
        if (i < count)
            LOCAL(store_first)(to + i, load_f32(from + i), count - i);
    }
}

/* c of the piece += terms [d, d + terms) of a and b, for rows [m, m + rows) and columns
 * [j, j + columns). */
static void
LOCAL(add_terms)(const osw_product *p, int64_t m, int64_t rows, int64_t j, int64_t columns,
                      int64_t d, int64_t terms, osw_piece *piece)
{
    const bool along = p->a_term == 1; /* the terms of a row of a are neighbours */
    const ELEMENT *a = (const ELEMENT *)p->a + m * p->a_row + d * p->a_term;
    const ELEMENT *b =
        (const ELEMENT *)p->b + (p->transposed ? j * p->b_term + d : d * p->b_term + j);
    if (along)
        LOCAL(widen_lines)(rows, terms, a, p->a_row, piece->a, PIECE_TERMS);
    else
        LOCAL(widen_lines)(terms, rows, a, p->a_term, piece->a, PIECE_ROWS);
    if (p->transposed)
        LOCAL(widen_lines)(columns, terms, b, p->b_term, piece->b, PIECE_TERMS);
    else
        LOCAL(widen_lines)(terms, columns, b, p->b_term, piece->b, PIECE_COLUMNS);
    multiply_f32(&(osw_product){
        .rows = rows,
        .columns = columns,
        .terms = terms,
        .a = piece->a,
        .a_row = along ? PIECE_TERMS : 1,
        .a_term = along ? 1 : PIECE_ROWS,
        .b = piece->b,
        .b_term = p->transposed ? PIECE_TERMS : PIECE_COLUMNS,
        .transposed = p->transposed,
        .start = p->start ? piece->start : NULL,
        .adds = d > 0,
        .c = piece->c,
        .c_row = PIECE_COLUMNS,
    });
}

static void LOCAL(multiply)(const osw_product *p)
{
    osw_piece *const piece = osw_scratch_outer(sizeof *piece);
    for (int64_t j = 0; j < p->columns; j += PIECE_COLUMNS) {
        const int64_t columns = osw_min_int(p->columns - j, PIECE_COLUMNS);
        if (p->start)
            LOCAL(widen_lines)(1, columns, (const ELEMENT *)p->start + j, 0, piece->start, 0);
        for (int64_t m = 0; m < p->rows; m += PIECE_ROWS) {
            const int64_t rows = osw_min_int(p->rows - m, PIECE_ROWS);
            int64_t d = 0;
            do { /* once without terms too: c becomes `start` */
                const int64_t terms = osw_min_int(p->terms - d, PIECE_TERMS);
                LOCAL(add_terms)(p, m, rows, j, columns, d, terms, piece);
                d += PIECE_TERMS;
            } while (d < p->terms);
            ELEMENT *const c = (ELEMENT *)p->c + m * p->c_row + j;
            LOCAL(round_lines)(rows, columns, piece->c, PIECE_COLUMNS, c, p->c_row);
        }
    }
}

/* Rows are widened piece by piece: products do that. */
static bool
LOCAL(add_passes)(const osw_linear *l, int64_t g, int64_t part, int64_t begin, int64_t end,
                       ELEMENT *grad_weight)
{
    (void)l, (void)g, (void)part, (void)begin, (void)end, (void)grad_weight;
    return false;
}
