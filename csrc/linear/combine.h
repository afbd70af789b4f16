/* SPDX-License-Identifier: MIT */
/* Sums of few rows, each times a number, in the order in which they lie in memory: gradients of
 * groups with so few outputs that packing gains nothing. */
#include "core/simd.h"
#include "linear/tiles.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* (add ? sums[j] : 0) + sum of a[t * a_term] * b[t * b_term + j] over t < terms, j < columns; to
 * sums[j], which has room for whole vectors, or rounded to c[j] if c is given. */
OSW_INLINE void LOCAL(combine_terms)(const int terms, bool add, int64_t columns, const ELEMENT *a,
                              int64_t a_term, const ELEMENT *b, int64_t b_term, VALUE *sums,
                              ELEMENT *c)
{
    VECTOR factors[MOST_TERMS];
    OSW_UNROLL
    for (int t = 0; t < terms; t++)
        factors[t] = VALUED(set1)(LOCAL(widen_one)(a[t * a_term]));
    int64_t j = 0;
    for (; j + VLANES <= columns; j += VLANES) {
        VECTOR sum = add ? VALUED(load)(sums + j) : (VECTOR){0};
        OSW_UNROLL
        for (int t = 0; t < terms; t++)
            sum = VALUED(fma)(factors[t], LOCAL(load)(b + t * b_term + j), sum);
        if (c)
            LOCAL(store_rounded)(c + j, sum);
        else
            VALUED(store)(sums + j, sum);
    }
    if (j < columns) {
        VECTOR sum = add ? VALUED(load)(sums + j) : (VECTOR){0};
        OSW_UNROLL
        for (int t = 0; t < terms; t++)
            sum = VALUED(fma)(factors[t], LOCAL(load_first)(b + t * b_term + j, columns - j), sum);
        if (c)
            LOCAL(store_first)(c + j, sum, columns - j);
        else
            VALUED(store)(sums + j, sum);
    }
}

static void
LOCAL(combine)(int64_t terms, bool add, int64_t columns, const ELEMENT *a, int64_t a_term,
                    const ELEMENT *b, int64_t b_term, VALUE *sums, ELEMENT *c)
{
#define COMBINE(terms, unused)                                                                     \
    case terms:                                                                                    \
        LOCAL(combine_terms)(terms, add, columns, a, a_term, b, b_term, sums, c);                  \
        break;
    switch (terms) {
        UP_TO_8(COMBINE, )
    }
}
