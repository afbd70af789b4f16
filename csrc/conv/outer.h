/* SPDX-License-Identifier: MIT */
/* Tiles of outer products of pixels: rows of sums, a vector of factors wide. Included once per
 * dtype. */
#include "core/simd.h"
#include "core/simd_tiles.h"

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
