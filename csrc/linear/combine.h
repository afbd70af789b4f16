/* SPDX-License-Identifier: MIT */
/* Sums of few rows, each times a number, in the order in which they lie in memory: gradients where
 * a group has so few outputs that there is nothing to gain from packing. */

enum { LOCAL(MOST_TERMS) = 8 };

/* (add ? sums[j] : 0) + sum of a[t * a_term] * b[t * b_term + j] over t < terms, j < columns; to
 * sums[j], of which whole vectors are there, or rounded to c[j] where c is given. */
OSW_INLINE void LOCAL(combine_terms)(const int terms, bool add, int64_t columns, const ELEMENT *a,
                              int64_t a_term, const ELEMENT *b, int64_t b_term, SUM *sums,
                              ELEMENT *c)
{
    VECTOR factors[LOCAL(MOST_TERMS)];
    for (int t = 0; t < terms; t++)
        factors[t] = V(set1)(LOAD(a[t * a_term]));
    int64_t j = 0;
    for (; j + LANES <= columns; j += LANES) {
        VECTOR sum = add ? V(loadu)(sums + j) : V(setzero)();
        for (int t = 0; t < terms; t++)
            sum = V(fmadd)(factors[t], LOCAL(load)(b + t * b_term + j), sum);
        if (c)
            LOCAL(store_rounded)(c + j, sum);
        else
            V(storeu)(sums + j, sum);
    }
    if (j < columns) {
        VECTOR sum = add ? V(loadu)(sums + j) : V(setzero)();
        for (int t = 0; t < terms; t++)
            sum = V(fmadd)(factors[t], LOCAL(load_some)(b + t * b_term + j, columns - j), sum);
        if (c)
            LOCAL(store_some)(c + j, sum, columns - j);
        else
            V(storeu)(sums + j, sum);
    }
}

static void
LOCAL(combine)(int64_t terms, bool add, int64_t columns, const ELEMENT *a, int64_t a_term,
                    const ELEMENT *b, int64_t b_term, SUM *sums, ELEMENT *c)
{
#define CASE(terms)                                                                                \
    case terms:                                                                                    \
        LOCAL(combine_terms)(terms, add, columns, a, a_term, b, b_term, sums, c);                  \
        break;
    switch (terms) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
    }
#undef CASE
}
