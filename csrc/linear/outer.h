/* SPDX-License-Identifier: MIT */
/* Tiles of outer products of rows or pixels, for gradients of weights: rows of sums, one to four
 * vectors wide. Nothing is packed; the last vector overlaps the one before it. Included once per
 * dtype. */
#include "core/ahead.h"
#include "core/ints.h"
#include "core/simd.h"
#include "linear/tiles.h"

#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* sums[m][v] += sum of a[m] * b[v] over `lines` lines of `length` pixels */
typedef struct LOCAL(outer) {
    int64_t lines, length;
    const ELEMENT *a; /* the first of the factors of a pixel; the next pixel and line: */
    int64_t a_pixel, a_line;
    const ELEMENT *b;
    int64_t b_pixel, b_line;
    int64_t
        last; /* lanes of the last vector: those of its end; the others belong to the one before */
    ELEMENT *sums;
    int64_t sums_step;
    osw_share ahead;
} LOCAL(outer);

typedef void LOCAL(outer_fn)(const LOCAL(outer) *tile);

OSW_INLINE void LOCAL(add_outer)(const int rows, const int vectors, const LOCAL(outer) *t,
                          VECTOR sums[MOST_ROWS][MOST_VECTORS])
{
    const int64_t end = (vectors - 2) * VLANES + t->last;
    const MASK mask = LOCAL(last_lanes)(t->last);
    OSW_UNROLL
    for (int m = 0; m < rows; m++) {
        ELEMENT *to = t->sums + m * t->sums_step;
        OSW_UNROLL
        for (int v = 0; v < vectors - 1; v++)
            LOCAL(store)(to + v * VLANES, LOCAL(load)(to + v * VLANES) + sums[m][v]);
        const VECTOR more = LOCAL(keep)(mask, sums[m][vectors - 1]);
        LOCAL(store)(to + end, LOCAL(load)(to + end) + more);
    }
}

OSW_INLINE void LOCAL(multiply_outer)(const int rows, const int vectors, const LOCAL(outer) *t)
{
    const int64_t a_pixel = t->a_pixel, b_pixel = t->b_pixel;
    const int64_t end = (vectors - 2) * VLANES + t->last;
    const char *ahead = t->ahead.at ? t->ahead.at : (const char *)t->b;
    const int64_t ahead_step = t->ahead.step;
    VECTOR sums[MOST_ROWS][MOST_VECTORS];
    OSW_UNROLL
    for (int m = 0; m < rows; m++) {
        OSW_UNROLL
        for (int v = 0; v < vectors; v++)
            sums[m][v] = (VECTOR){0};
    }
    for (int64_t line = 0; line < t->lines; line++) {
        const ELEMENT *a = t->a + line * t->a_line, *b = t->b + line * t->b_line;
        for (int64_t pixels = t->length; pixels > 0; pixels--) {
            VECTOR bs[MOST_VECTORS];
            OSW_UNROLL
            for (int v = 0; v < vectors - 1; v++)
                bs[v] = LOCAL(load)(b + v * VLANES);
            bs[vectors - 1] = LOCAL(load)(b + end);
            prefetch_far(ahead);
            ahead += ahead_step;
            OSW_UNROLL
            for (int m = 0; m < rows; m++) {
                const VECTOR as = LOCAL(set1)(a[m]);
                OSW_UNROLL
                for (int v = 0; v < vectors; v++)
                    sums[m][v] = LOCAL(fma)(as, bs[v], sums[m][v]);
            }
            a += a_pixel;
            b += b_pixel;
        }
    }
    LOCAL(add_outer)(rows, vectors, t, sums);
}

#define OUTER(rows, vectors)                                                                       \
    static void LOCAL(outer_##rows##x##vectors)(const LOCAL(outer) * t)                            \
    {                                                                                              \
        LOCAL(multiply_outer)(rows, vectors, t);                                                   \
    }
#define OUTER_NAME(rows, vectors) LOCAL(outer_##rows##x##vectors),
TILES_1(OUTER)
TILES_2(OUTER)
TILES_3(OUTER)
TILES_4(OUTER)
static LOCAL(outer_fn) *const LOCAL(outers)[MOST_VECTORS][MOST_ROWS] = {
    {TILES_1(OUTER_NAME)}, {TILES_2(OUTER_NAME)}, {TILES_3(OUTER_NAME)}, {TILES_4(OUTER_NAME)}};

/* The sums of a_count rows from t->sums on, of `vectors` vectors, the last of which ends with the
 * last of b_count factors. */
static void LOCAL(add_outer_rows)(LOCAL(outer) t, int64_t a_count, int64_t b_count, int64_t vectors,
                           osw_pass *pass)
{
    const int64_t tiles = osw_ceil(a_count, tile_rows[vectors]);
    t.last = osw_min_int(b_count - (vectors - 1) * VLANES, VLANES);
    for (int64_t i = 0, a = 0; i < tiles; i++) {
        const int64_t rows = osw_ceil(a_count - a, tiles - i);
        t.ahead = take_share(pass, t.lines * t.length);
        LOCAL(outers)[vectors - 1][rows - 1](&t);
        a += rows;
        t.a += rows;
        t.sums += rows * t.sums_step;
    }
}

/* All sums of a_count rows and b_count columns, at least a vector. */
static inline void LOCAL(add_outer_products)(
    LOCAL(outer) t, int64_t a_count, int64_t b_count, osw_pass *pass)
{
    for (int64_t j = 0, vectors; j < b_count; j += vectors * VLANES) {
        vectors = panel_vectors(osw_ceil(b_count - j, VLANES));
        LOCAL(add_outer_rows)(t, a_count, b_count - j, vectors, pass);
        t.b += vectors * VLANES;
        t.sums += vectors * VLANES;
    }
}
