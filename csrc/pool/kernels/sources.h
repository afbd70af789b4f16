/* SPDX-License-Identifier: MIT */
/* The windows that one position of the input belongs to, over pixels. */
#ifndef OSW_POOL_SOURCES_H
#define OSW_POOL_SOURCES_H

#include "core/target.h"
#include "pool/kernels/rows.h"
#include "pool/window.h"

/* The windows that one position of the input belongs to, in the order of the output. */
typedef struct osw_sources {
    int count;
    struct {
        const void *gradient;
        const uint8_t *offsets;
        int32_t tap;
    } source[MAX_TAPS];
} osw_sources;

/* Outputs [first, end) whose windows overlap input position i; dilation 1. */
static inline osw_range outputs_of(const osw_pool_dim *dim, int64_t i)
{
    return (osw_range){osw_ceil_div(i + dim->padding - dim->kernel + 1, dim->stride),
                       osw_min(dim->output, (i + dim->padding) / dim->stride + 1)};
}

static inline void set_output_rows(osw_rows *rows, const osw_pool *pool, const osw_row *row,
                                   int64_t element)
{
    const osw_pool_dim *dims = pool->dims;
    const osw_range depth = outputs_of(&dims[DEPTH], row->depth);
    const osw_range height = outputs_of(&dims[HEIGHT], row->height);
    rows->count = 0;
    for (int64_t d = depth.first; d < depth.end; d++) {
        for (int64_t h = height.first; h < height.end; h++) {
            OSW_FEW_TURNS(h);
            const int64_t position = osw_output_position(pool, d, h, 0);
            rows->at[rows->count] =
                (const char *)pool->grad_output.base +
                osw_place(&pool->grad_output, row->image, 0, position) * element;
            rows->taps[rows->count] =
                OSW_POOL_AT(const uint8_t, &pool->offsets, row->image, 0, position);
            rows->tap[rows->count++] =
                osw_tap(pool, row->depth + dims[DEPTH].padding - d * dims[DEPTH].stride,
                        row->height + dims[HEIGHT].padding - h * dims[HEIGHT].stride, 0);
        }
    }
}

/* The outputs that input column w belongs to; `range` is that of column w - 1, or of zeros. */
static inline void set_sources(osw_sources *sources, const osw_pool *pool, const osw_rows *rows,
                               int64_t w, osw_range *range, int64_t element)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    const int64_t column = w + dim->padding;
    while (range->first * dim->stride + dim->kernel <= column)
        range->first++;
    while (range->end < dim->output && range->end * dim->stride <= column)
        range->end++;
    const int64_t first = range->first, end = range->end, stride = dim->stride;
    const int64_t gradient_step = pool->grad_output.pixel_step * element;
    const int64_t offsets_step = pool->offsets.pixel_step;
    int count = 0;
    for (int r = 0; r < rows->count; r++) {
        const char *gradient = rows->at[r] + first * gradient_step;
        const uint8_t *offsets = rows->taps[r] + first * offsets_step;
        int32_t tap = rows->tap[r] + (int32_t)(column - first * stride);
        for (int64_t o = first; o < end; o++, tap -= (int32_t)stride) {
            OSW_FEW_TURNS(gradient);
            sources->source[count].gradient = gradient;
            sources->source[count].offsets = offsets;
            sources->source[count++].tap = tap;
            gradient += gradient_step;
            offsets += offsets_step;
        }
    }
    sources->count = count;
}

/* Blocks of two neighbouring columns of the input whose outputs, `before` the block and in it, all
 * exist. */
typedef struct osw_block_rows {
    int64_t count;
    osw_range columns;                   /* of the input */
    int64_t gradient_at, offsets_at;     /* the first output of the first block */
    int64_t gradient_step, offsets_step; /* from one output to the next */
} osw_block_rows;

/* False if there are none, or for a window that has no code of its own. */
static inline bool set_block_rows(osw_block_rows *block, const osw_pool *pool)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    if (!(dim->kernel == 3 && dim->stride <= 2) && !(dim->kernel == 2 && dim->stride == 2))
        return false;
    const int64_t before = (dim->kernel - 1) / dim->stride, step = 2 / dim->stride;
    const int64_t first = osw_max(before, osw_ceil_div(dim->padding, dim->stride));
    const int64_t last = osw_min(dim->output - step, (dim->input - 2 + dim->padding) / dim->stride);
    if (dim->input + dim->padding < 2 || last < first)
        return false;
    block->count = (last - first) / step + 1;
    block->columns.first = first * dim->stride - dim->padding;
    block->columns.end = block->columns.first + 2 * block->count;
    block->gradient_step = pool->grad_output.pixel_step;
    block->offsets_step = pool->offsets.pixel_step;
    block->gradient_at = (first - before) * block->gradient_step;
    block->offsets_at = (first - before) * block->offsets_step;
    return true;
}

#endif
