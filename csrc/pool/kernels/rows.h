/* SPDX-License-Identifier: MIT */
/* Windows of at most MAX_TAPS taps over pixels: the rows that one reads, or is read by. */
#ifndef OSW_POOL_ROWS_H
#define OSW_POOL_ROWS_H

#include "core/simd_types.h"
#include "pool/window.h"

#include <stdbool.h>
#include <stdint.h>

enum { MAX_TAPS = 64, MAX_KERNEL = 16 };

/* Dilated windows may have no valid tap. */
static inline bool fits_rows(const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    for (int i = 0; i < OSW_POOL_DIMS; i++)
        if (dims[i].dilation != 1 || dims[i].kernel > MAX_TAPS)
            return false;
    const int64_t step = pool->channel_step;
    return (step == 1 || step == 2 || step == 4) && pool->channels >= LANES;
}

static inline bool fits_window(const osw_pool *pool)
{
    return fits_rows(pool) && !pool->wide && count_taps(pool) <= MAX_TAPS;
}

/* Rows of the input that the windows of an output row read, or rows of the output that an input row
 * is read by; in the order of the taps, or of the output. */
typedef struct osw_rows {
    int count;
    const char *at[MAX_TAPS];
    int64_t number[MAX_TAPS]; /* of a row of the input, counted in its image */
    const uint8_t *taps[MAX_TAPS];
    int32_t tap[MAX_TAPS]; /* the first of the row */
} osw_rows;

#endif
