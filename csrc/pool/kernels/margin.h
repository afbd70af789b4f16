/* SPDX-License-Identifier: MIT */
/* Rows of the output kept with a margin, for the rows of the input that share them. */
#ifndef OSW_POOL_MARGIN_H
#define OSW_POOL_MARGIN_H

#include "core/simd_types.h"
#include "core/target.h"
#include "pool/kernels/rows.h"
#include "pool/window.h"

#include <string.h>

enum {
    MARGIN_ROWS = 32,
    MARGIN_ROOM = 264,
    AHEAD = 2, /* rows */
    MAX_STRIDE = 8,
    MAX_CODES = 64,
    NO_TAP = 255
};

/* A row of the output: element i is column first + i, with offset NO_TAP if there is none. */
typedef struct osw_margin_row {
    float gradient[MARGIN_ROOM];
    uint8_t offset[MARGIN_ROOM];
} osw_margin_row;

/* Columns of the input that leave the same remainder modulo the stride: their taps along the width,
 * and where in a margin row the output of the first of these columns lies for each. */
typedef struct osw_remainder {
    int count;
    int32_t tap[MAX_KERNEL];
    int64_t at[MAX_KERNEL];
} osw_remainder;

/* Rows of the output that an input row is read by, in order; `tap` is the first of each. */
typedef struct osw_met {
    int count;
    const osw_margin_row *row[MARGIN_ROWS];
    int32_t tap[MARGIN_ROWS];
} osw_met;

/* Columns [column, column + columns) of the input, column being a multiple of the stride. */
typedef struct osw_margin {
    int64_t column, columns;
    int64_t stride, pitch; /* pitch: elements between lines of the input */
    int64_t first;         /* column of the output at element 0 of a margin row; may be negative */
    int64_t from, to;      /* columns of the output that there are */
    int64_t slots_depth, slots_height; /* powers of two */
    int64_t room;                      /* floats of the sums of one remainder */
    osw_remainder remainders[MAX_STRIDE];
    osw_range depth, height; /* rows of the output that the input row before this one met */
    int64_t tag[MARGIN_ROWS];
    osw_margin_row rows[MARGIN_ROWS];
    float sums[2 * MARGIN_ROOM];
} osw_margin;

/* Output rows that one input row can overlap. */
static inline int64_t rows_met(const osw_pool_dim *dim)
{
    return osw_ceil_div((dim->kernel - 1) * dim->dilation + 1, dim->stride);
}

/* Columns of one remainder in a strip: whole vectors, with the margin of the widest tap and of a
 * last vector that reaches beyond the row. */
static inline int64_t margin_columns(const osw_pool *pool)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    const int64_t reach = rows_met(dim) + 1 + LANES;
    const int64_t room = osw_min(MARGIN_ROOM - reach, 2 * MARGIN_ROOM / dim->stride);
    return room / LANES * LANES;
}

/* Slots, a power of two, for the output rows that an input row overlaps, for those that the row
 * after it overlaps, which is done with it, and for those that are copied ahead. */
static inline int64_t slots_for(const osw_pool_dim *dim, int64_t more)
{
    int64_t slots = 1;
    while (slots < rows_met(dim) + more)
        slots *= 2;
    return slots;
}

static inline bool fits_margin(const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    return dims[WIDTH].stride <= MAX_STRIDE && dims[WIDTH].kernel <= MAX_KERNEL &&
           dims[HEIGHT].kernel <= MAX_KERNEL && dims[DEPTH].kernel <= MAX_KERNEL &&
           dims[DEPTH].kernel * dims[HEIGHT].kernel * dims[WIDTH].kernel <= MAX_CODES &&
           slots_for(&dims[DEPTH], 0) * slots_for(&dims[HEIGHT], 1 + AHEAD) <= MARGIN_ROWS &&
           rows_met(&dims[WIDTH]) < MARGIN_ROOM / 2 && !pool->wide;
}

/* Taps that overlap column `column` + s of the input, with the output column of each. */
static void set_remainder(osw_remainder *remainder, const osw_pool_dim *dim, int64_t column)
{
    remainder->count = 0;
    for (int64_t k = 0; k < dim->kernel; k++) {
        const int64_t reach = column + dim->padding - k * dim->dilation;
        if (reach % dim->stride != 0)
            continue;
        remainder->tap[remainder->count] = (int32_t)k;
        remainder->at[remainder->count++] = reach / dim->stride;
    }
}

/* Set all of the strip that begins at input column `column`. */
static void set_margin(osw_margin *margin, const osw_pool *pool, int64_t column)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    margin->column = column;
    margin->room = margin_columns(pool);
    margin->columns = osw_min(margin->room * dim->stride, dim->input - column);
    margin->stride = dim->stride;
    margin->pitch = dim->input;
    margin->slots_depth = slots_for(&pool->dims[DEPTH], 0);
    margin->slots_height = slots_for(&pool->dims[HEIGHT], 1 + AHEAD);
    int64_t first = INT64_MAX, last = 0;
    for (int64_t s = 0; s < dim->stride; s++) {
        osw_remainder *remainder = &margin->remainders[s];
        set_remainder(remainder, dim, column + s);
        for (int k = 0; k < remainder->count; k++) {
            first = osw_min(first, remainder->at[k]);
            last = osw_max(last, remainder->at[k]);
        }
    }
    for (int64_t s = 0; s < dim->stride; s++)
        for (int k = 0; k < margin->remainders[s].count; k++)
            margin->remainders[s].at[k] -= first;
    margin->first = first;
    margin->from = osw_max(first, 0);
    margin->to = osw_min(dim->output, last + osw_ceil_div(margin->columns, dim->stride));
    for (int64_t i = 0; i < margin->slots_depth * margin->slots_height; i++) {
        memset(margin->rows[i].gradient, 0, sizeof margin->rows[i].gradient);
        memset(margin->rows[i].offset, NO_TAP, sizeof margin->rows[i].offset);
    }
}

/* Bytes of a row, without a call of memcpy for so few. */
OSW_INLINE void copy_bytes(const uint8_t *from, uint8_t *to, int64_t count)
{
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        memcpy(to + i, from + i, 8);
    if (i < count && count >= 8)
        memcpy(to + count - 8, from + count - 8, 8);
    else
        for (; i < count; i++)
            to[i] = from[i];
}

/* Begin with a plane: nothing of it is there yet. The margins stay from plane to plane. */
static inline void begin_margin(osw_margin *margin, const osw_pool *pool, int64_t column)
{
    if (margin->column != column)
        set_margin(margin, pool, column);
    margin->depth = margin->height = (osw_range){0, 0};
    for (int64_t i = 0; i < margin->slots_depth * margin->slots_height; i++)
        margin->tag[i] = -1;
}

/* From the outputs that input position i - 1 overlaps, or none, to those that i overlaps;
 * dilation 1. */
static inline void advance(osw_range *range, const osw_pool_dim *dim, int64_t i)
{
    const int64_t reach = i + dim->padding;
    while (range->first * dim->stride + dim->kernel <= reach)
        range->first++;
    while (range->end < dim->output && range->end * dim->stride <= reach)
        range->end++;
}

/* To the outputs that `row` overlaps; dilation 1. Returns whether the row before it met the same.
 */
static inline bool meet_outputs(osw_margin *margin, const osw_pool *pool, const osw_row *row)
{
    const osw_range depth = margin->depth, height = margin->height;
    advance(&margin->depth, &pool->dims[DEPTH], row->depth);
    if (row->height == 0)
        margin->height = (osw_range){0, 0};
    advance(&margin->height, &pool->dims[HEIGHT], row->height);
    return depth.first == margin->depth.first && depth.end == margin->depth.end &&
           height.first == margin->height.first && height.end == margin->height.end;
}

static inline int64_t margin_slot(const osw_margin *margin, int64_t d, int64_t h)
{
    return (d & (margin->slots_depth - 1)) * margin->slots_height +
           (h & (margin->slots_height - 1));
}

static inline bool is_dilated(const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    return dims[DEPTH].dilation > 1 || dims[HEIGHT].dilation > 1 || dims[WIDTH].dilation > 1;
}

#endif
