/* SPDX-License-Identifier: MIT */
/* Integers: sizes and offsets are int64_t, and not negative unless said. */
#ifndef OSW_CORE_INTS_H
#define OSW_CORE_INTS_H

#include <assert.h>
#include <stdint.h>

static inline int64_t osw_min_int(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t osw_max_int(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* a / b rounded up; a >= 0, b > 0. */
static inline int64_t osw_ceil(int64_t a, int64_t b)
{
    assert(a >= 0 && b > 0);
    return a / b + (a % b != 0);
}

/* The greatest number that divides both. */
static inline int64_t osw_common_factor(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The least multiple of b from a on, which must fit. */
static inline int64_t osw_round_up(int64_t a, int64_t b)
{
    assert(osw_ceil(a, b) <= INT64_MAX / b);
    return osw_ceil(a, b) * b;
}

#endif
