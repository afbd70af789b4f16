/* SPDX-License-Identifier: MIT */
/* The windows of avg and of its backward. */
#ifndef OSW_POOL_AVG_WINDOWS_H
#define OSW_POOL_AVG_WINDOWS_H

#include "core/target.h"
#include "pool/kernels/rows.h"
#include "pool/kernels/sources.h"
#include "pool/kernels/tile.h"
#include "pool/window.h"

enum { MAX_SUMMED = 1024 };
enum { PREFETCHED_TAPS = 25 }; /* and more: the next window is prefetched even if it shares taps */

/* The valid taps of one window: where channel 0 of each lies. */
typedef struct osw_taps_at {
    int count;
    const void *at[MAX_SUMMED];
} osw_taps_at;

static inline bool fits_sum(const osw_pool *pool)
{
    return fits_rows(pool) && count_taps(pool) <= MAX_SUMMED;
}

/* Taps of output w of one dimension that overlap the input, as input positions; dilation 1. */
static inline osw_range inputs_of(const osw_pool_dim *dim, int64_t o)
{
    const int64_t start = o * dim->stride - dim->padding;
    return (osw_range){osw_max(start, 0), osw_min(start + dim->kernel, dim->input)};
}

static inline void set_taps_at(osw_taps_at *taps, const osw_pool *pool, const osw_row *row,
                               int64_t w, int64_t element)
{
    const osw_range depth = inputs_of(&pool->dims[DEPTH], row->depth);
    const osw_range height = inputs_of(&pool->dims[HEIGHT], row->height);
    const osw_range width = inputs_of(&pool->dims[WIDTH], w);
    const int64_t step = pool->input.pixel_step * element;
    int count = 0;
    for (int64_t d = depth.first; d < depth.end; d++)
        for (int64_t h = height.first; h < height.end; h++) {
            const int64_t position = osw_input_position(pool, d, h, width.first);
            const char *at = (const char *)pool->input.base +
                             osw_place(&pool->input, row->image, 0, position) * element;
            for (int64_t i = width.first; i < width.end; i++, at += step) {
                OSW_FEW_TURNS(at);
                taps->at[count++] = at;
            }
        }
    taps->count = count;
}

/* Rows of the output over their divisors, for a block of channels of one image; a row of the input
 * overlaps at most one row of each slot. */
enum { RING_FLOATS = 16384 };

typedef struct osw_ring {
    int64_t image;
    int64_t first, channels; /* of the block */
    int64_t slots_depth, slots_height;
    int64_t tag[MAX_TAPS]; /* number of the row in the slot, or -1 */
    float share[RING_FLOATS];
} osw_ring;

/* Output rows that overlap one row of the input, at most. */
static inline int64_t rows_meeting(const osw_pool_dim *dim)
{
    return osw_ceil_div(dim->kernel, dim->stride);
}

static inline int64_t ring_slots(const osw_pool *pool)
{
    return rows_meeting(&pool->dims[DEPTH]) * rows_meeting(&pool->dims[HEIGHT]);
}

/* Channels of a block: all, or whole vectors; fewer than a vector if a row does not fit. */
static inline int64_t ring_channels(const osw_pool *pool)
{
    const int64_t room = RING_FLOATS / (ring_slots(pool) * pool->dims[WIDTH].output);
    const int64_t most = osw_min(room, OSW_POOL_MAX_BLOCK);
    return most >= pool->channels ? pool->channels : most / LANES * LANES;
}

static inline bool fits_ring(const osw_pool *pool)
{
    return fits_rows(pool) && ring_slots(pool) <= MAX_TAPS && ring_channels(pool) >= LANES;
}

/* Channels of the input of a block. */
static inline int64_t ring_inputs(const osw_ring *ring, const osw_pool *pool)
{
    const int64_t step = pool->channel_step;
    return osw_min(ring->channels * step, pool->input_channels - ring->first * step);
}

static inline void begin_ring(osw_ring *ring, const osw_pool *pool, int64_t image, int64_t first,
                              int64_t channels)
{
    ring->image = image;
    ring->first = first;
    ring->channels = channels;
    ring->slots_depth = rows_meeting(&pool->dims[DEPTH]);
    ring->slots_height = rows_meeting(&pool->dims[HEIGHT]);
    for (int i = 0; i < MAX_TAPS; i++)
        ring->tag[i] = -1;
}

/* What a row of the input overlaps: the slots, in the order of the output. */
typedef struct osw_slots {
    int count;
    const float *at[MAX_TAPS];
} osw_slots;

static inline bool same_range(osw_range a, osw_range b)
{
    return a.first == b.first && a.end == b.end;
}

/* Whether the row before this one of the same image overlaps the same outputs. */
static inline bool as_row_before(const osw_pool *pool, const osw_row *row)
{
    const osw_pool_dim *dims = pool->dims;
    const int64_t height = row->height > 0 ? row->height : dims[HEIGHT].input;
    const int64_t depth = row->height > 0 ? row->depth : row->depth - 1;
    return depth >= 0 &&
           same_range(outputs_of(&dims[HEIGHT], row->height),
                      outputs_of(&dims[HEIGHT], height - 1)) &&
           same_range(outputs_of(&dims[DEPTH], row->depth), outputs_of(&dims[DEPTH], depth));
}

/* Outputs within [from, to) of a row whose divisors are equal. */
static inline osw_range even_outputs(const osw_pool *pool, int64_t from, int64_t to)
{
    const osw_pool_dim *dim = &pool->dims[WIDTH];
    if (pool->divisor)
        return (osw_range){from, to};
    const int64_t edge = pool->count_include_pad ? dim->padding : 0;
    const int64_t first = osw_ceil_div(dim->padding - edge, dim->stride);
    const int64_t reach = dim->input + edge + dim->padding - dim->kernel;
    const int64_t end = reach < 0 ? 0 : reach / dim->stride + 1;
    return (osw_range){osw_min(osw_max(first, from), to), osw_min(end, to)};
}

/* Windows one slice deep, of which a tile holds at least one row, in both directions. */
static inline bool fits_tile(const osw_pool *pool)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    return pool->dims[DEPTH].kernel == 1 && height->kernel <= MAX_TAPS &&
           width->kernel <= MAX_TAPS && height->kernel * width->input <= TILE &&
           height->kernel * width->output <= TILE;
}

/* Rows of the input that output rows read. */
static inline osw_range rows_read(const osw_pool_dim *height, osw_range rows)
{
    return (osw_range){inputs_of(height, rows.first).first, inputs_of(height, rows.end - 1).end};
}

/* Rows of the output that read input rows. */
static inline osw_range rows_reading(const osw_pool_dim *height, osw_range rows)
{
    return (osw_range){outputs_of(height, rows.first).first, outputs_of(height, rows.end - 1).end};
}

/* The depth that reads slice d of the input with a window one slice deep, or -1. */
static inline int64_t depth_reading(const osw_pool_dim *depth, int64_t d)
{
    return d % depth->stride == 0 && d / depth->stride < depth->output ? d / depth->stride : -1;
}

/* Output rows of a tile: as many as it holds with all that they read. */
static inline int64_t tile_outputs(const osw_pool *pool)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    const int64_t rows_in = TILE / width->input, rows_out = TILE / width->output;
    return osw_max(1, osw_min(rows_out, (rows_in - height->kernel) / height->stride + 1));
}

/* Input rows of a tile: as many as it holds with all that read them. */
static inline int64_t tile_inputs(const osw_pool *pool)
{
    const osw_pool_dim *height = &pool->dims[HEIGHT], *width = &pool->dims[WIDTH];
    const int64_t rows_in = TILE / width->input, rows_out = TILE / width->output;
    /* n rows of the input are read by at most (n + kernel - 2) / stride + 1 of the output. */
    return osw_max(1, osw_min(rows_in, (rows_out - 1) * height->stride - height->kernel + 2));
}

/* The outputs that overlap each column of the input, and whether they are those of the column
 * before.
 */
typedef struct osw_columns {
    int32_t first[TILE];
    int32_t end[TILE];
    bool same[TILE];
} osw_columns;

static inline void set_columns(osw_columns *columns, const osw_pool_dim *width)
{
    osw_range before = {-1, -1};
    for (int64_t w = 0; w < width->input; w++) {
        const osw_range range = outputs_of(width, w);
        columns->first[w] = (int32_t)range.first;
        columns->end[w] = (int32_t)range.end;
        columns->same[w] = same_range(range, before);
        before = range;
    }
}

/* The next planes of units [unit, end) that are rows of planes: up to `most` whole ones, or what is
 * there of one; their rows. */
static inline int64_t next_planes(int64_t unit, int64_t end, int64_t rows, int64_t most,
                                  osw_range *range)
{
    const int64_t first = unit % rows;
    *range = (osw_range){first, osw_min(rows, first + end - unit)};
    return first == 0 ? osw_max(1, osw_min(most, (end - unit) / rows)) : 1;
}

#endif
