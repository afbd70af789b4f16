/* SPDX-License-Identifier: MIT */
/* What the kernels of a tier share whatever the dtype: products and the tiles they are cut into. */
#ifndef OSW_LINEAR_TILES_H
#define OSW_LINEAR_TILES_H

#include "core/ahead.h"
#include "core/half.h"
#include "core/ints.h"
#include "core/simd.h"
#include "core/simd_tiles.h"
#include "linear/linear.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DEPTH = 256,                /* terms that are summed before they are added to c */
    FAR_DEPTH = 128,            /* the same if the terms of a lie in rows of their own */
    PANEL_BYTES = 256 << 10,    /* of b, packed at once */
    ROW_BLOCK_BYTES = 64 << 10, /* of a, for which panels are fetched again */
    SUM_BYTES = 768 << 10,      /* of c, which several panels of b add to */
    TILE_ROWS = 24,             /* a multiple of the most rows of all tiles */
    FEW_ROWS = 32,              /* too few to pack b, unless it is transposed */
    FEW_TERMS = 32,             /* of which panels are small */
    /* From which rows on dot products are slower, whatever their length. */
    MANY_ROWS = VEC_BYTES == 64 ? 24 : 64,
    FEW_DOTS = 4,           /* outputs up to which dot products cost less than a vector */
    APART_BYTES = 4 << 20,  /* of an input whose rows lie in pages of their own */
    NEXT_BYTES = 1 << 20,   /* of input and grad_output from which on the next rows are asked for,*/
    KEPT_BYTES = 768 << 10, /* and of a part of their rows up to which it is still in L2 */
    PAGE_BYTES = 4096,      /* rows so far apart lie in pages of their own */
    MOST_LINES = 4, /* per term, of rows that a product asks for: more have others between them */
    DOT_ROWS = 3,
    DOT_OUTPUTS = 4,
    DOT_BLOCK_BYTES = 16 << 10, /* of weight, which stay in L1 while all rows pass */
    MOST_TERMS = 8,             /* of sums of rows as they lie in memory */
    FEW_OUTPUTS = 2,            /* of a group, up to which its gradients are plain sums of rows */
    STRIP = 1024,               /* features whose sums stay in L1 until they are rounded */
    BIAS_VECTORS = 4,
    BIAS_ROWS = 128,
};

/* c = start + a b. Element (m, d) of a lies at a[m * a_row + d * a_term]; (d, j) of b at
 * b[d * b_term + j], or at b[d + j * b_term] if transposed; (m, j) of c at c[m * c_row + j]. start:
 * one value per column, or NULL for zero; row_start: one per row. adds: c holds what is added
 * instead. asks_b: for the columns of the next panel of b ahead of their use. apart_b: the terms of
 * b are far from each other, so that b is packed term by term, as it lies in memory. 16-bit
 * elements have neither row_start nor adds nor apart_b.
 *
 * a_steps, b_steps or c_steps: the rows of a, the terms of b or the rows of c are rows `first` and
 * on of images, and the pointer is that of the images; terms of a transposed b lie one after
 * another in a line; not for 16-bit elements. */
typedef struct osw_product {
    int64_t rows, columns, terms;
    const void *a, *b, *start, *row_start;
    void *c;
    int64_t a_row, a_term, b_term, c_row;
    bool transposed, adds, asks_b, apart_b;
    const osw_linear_lines *lines;
    const osw_linear_steps *a_steps, *b_steps, *c_steps; /* NULL: no images */
    int64_t first;
} osw_product;

/* One tile of c, rows x vectors, of whose last vector `last` lanes are there; `start` is a tile
 * with rows start_row apart, NULL for zero. A row of a may be `runs` of so many terms, a_run apart;
 * 0 is one run. */
typedef struct osw_tile {
    int64_t terms, runs;
    const void *a;
    int64_t a_row, a_term, a_run;
    const void *panel;
    int64_t panel_step; /* from one term to the next */
    const void *start;
    int64_t start_row;
    const void *row_start; /* one value per row, or NULL for zero */
    void *c;
    int64_t c_row;
    int64_t last;
    osw_share ahead;
} osw_tile;

typedef void osw_tile_fn(const osw_tile *tile);

/* Of the product of a 16-bit type, widened: as many terms as are summed before they are added. */
enum { PIECE_ROWS = 128, PIECE_COLUMNS = 128, PIECE_TERMS = DEPTH };
typedef struct osw_piece {
    _Alignas(64) float a[PIECE_ROWS * PIECE_TERMS];
    _Alignas(64) float b[PIECE_COLUMNS * PIECE_TERMS];
    _Alignas(64) float c[PIECE_ROWS * PIECE_COLUMNS];
    _Alignas(64) float start[PIECE_COLUMNS];
} osw_piece;

/* Vectors of the next panel if so many are left: three, or four if that leaves threes and fours
 * only. */
static inline int64_t panel_vectors(int64_t left)
{
    if (left <= MOST_VECTORS)
        return left;
    return left % 3 == 1 || left == 8 ? 4 : 3;
}

/* Tiles of so many rows and columns, if all panels are as wide as the first one. */
static inline int64_t count_tiles(int64_t rows, int64_t columns, int64_t lanes)
{
    const int64_t vectors = panel_vectors(osw_ceil(columns, lanes));
    return osw_ceil(columns, vectors * lanes) * osw_ceil(rows, tile_rows[vectors]);
}

/* Where row or term m of a factor with these steps lies. */
static inline int64_t place_in(const osw_product *p, const osw_linear_steps *steps,
                               int64_t row_step, int64_t m)
{
    return steps ? osw_linear_place(p->lines, steps, row_step, p->first + m) : m * row_step;
}

/* Rows of the next tile, which does not cross the end of a line: `most`, or two tiles of about the
 * same height if no more than that is left of the line. */
static inline int64_t rows_of_tile(const osw_product *p, int64_t m, int64_t end, int64_t most)
{
    if (!p->a_steps && !p->c_steps)
        return end - m < most ? end - m : most;
    const int64_t rest = osw_linear_in_line(p->lines, p->first + m, end - m);
    return rest <= most ? rest : rest < 2 * most ? (rest + 1) / 2 : most;
}

#endif
