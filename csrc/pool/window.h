/* SPDX-License-Identifier: MIT */
/* Arithmetic of windows: which taps overlap the input, which outputs overlap a position, which unit
 * is which row. */
#ifndef OSW_POOL_WINDOW_H
#define OSW_POOL_WINDOW_H

#include "pool/pool.h"

enum { DEPTH, HEIGHT, WIDTH };

/* Planes up to this size are scattered to: they stay in the L2 cache. */
enum { SCATTER_BYTES = 1 << 18 };

/* From more taps on, an output that adds its gradient where its offset says takes fewer steps than
 * a position of the input that looks through its windows. Zen 4, pixels in the L2 cache, 5 x 5:
 * half as long; 4 x 4, as long. */
enum { FEW_TAPS = 16 };

static inline int64_t count_taps(const osw_pool *pool)
{
    const osw_pool_dim *dims = pool->dims;
    return dims[DEPTH].kernel * dims[HEIGHT].kernel * dims[WIDTH].kernel;
}

static inline int64_t osw_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t osw_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ceil(a / b), 0 for negative a; b > 0 */
static inline int64_t osw_ceil_div(int64_t a, int64_t b)
{
    return a > 0 ? (a - 1) / b + 1 : 0;
}

/* Taps [first, end) of one dimension overlap the input; tap k at start + k * dilation. `first` is
 * the first tap that is not before the input, even if no tap overlaps it. */
typedef struct osw_span {
    int64_t start;
    int64_t first;
    int64_t end;
} osw_span;

static inline osw_span osw_taps(const osw_pool_dim *dim, int64_t o)
{
    const int64_t start = o * dim->stride - dim->padding;
    return (osw_span){
        .start = start,
        .first = osw_ceil_div(-start, dim->dilation),
        .end = osw_min(dim->kernel, osw_ceil_div(dim->input - start, dim->dilation)),
    };
}

/* The output whose tap k overlaps input position i, or -1. */
static inline int64_t osw_output_of(const osw_pool_dim *dim, int64_t i, int64_t k)
{
    const int64_t reach = i + dim->padding - k * dim->dilation;
    if (reach < 0 || reach % dim->stride != 0 || reach / dim->stride >= dim->output)
        return -1;
    return reach / dim->stride;
}

typedef struct osw_range {
    int64_t first;
    int64_t end;
} osw_range;

/* Taps [first, end) of one dimension that can overlap input positions [from, to) from some output;
 * all others overlap none. A window may have 2^31 taps over an input of a few positions. */
static inline osw_range osw_taps_meeting(const osw_pool_dim *dim, int64_t from, int64_t to)
{
    const int64_t last = (dim->output - 1) * dim->stride;
    return (osw_range){
        .first = osw_ceil_div(from + dim->padding - last, dim->dilation),
        .end = osw_min(dim->kernel, osw_ceil_div(to + dim->padding, dim->dilation)),
    };
}

/* Taps [first, end) of one dimension by which some of the outputs [from, to) overlaps the input. */
static inline osw_range osw_taps_of(const osw_pool_dim *dim, int64_t from, int64_t to)
{
    return (osw_range){osw_taps(dim, to - 1).first, osw_taps(dim, from).end};
}

/* Outputs [first, end) whose tap k overlaps input positions [from, to). */
static inline osw_range osw_outputs(const osw_pool_dim *dim, int64_t k, int64_t from, int64_t to)
{
    const int64_t shift = dim->padding - k * dim->dilation;
    return (osw_range){
        .first = osw_ceil_div(from + shift, dim->stride),
        .end = osw_min(dim->output, osw_ceil_div(to + shift, dim->stride)),
    };
}

/* Window of output o in adaptive pooling. */
static inline osw_range osw_adaptive(const osw_pool_dim *dim, int64_t o)
{
    return (osw_range){
        .first = o * dim->input / dim->output,
        .end = osw_ceil_div((o + 1) * dim->input, dim->output),
    };
}

/* Input positions that a dimension's window counts for the average: with the padding, or without.
 */
static inline int64_t osw_avg_count(const osw_pool_dim *dim, int64_t o, bool with_padding)
{
    const int64_t start = o * dim->stride - dim->padding;
    const int64_t edge = with_padding ? dim->padding : 0;
    return osw_min(start + dim->kernel, dim->input + edge) - osw_max(start, -edge);
}

static inline int64_t osw_avg_divisor(const osw_pool *pool, int64_t d, int64_t h, int64_t w)
{
    if (pool->divisor)
        return pool->divisor;
    return osw_avg_count(&pool->dims[DEPTH], d, pool->count_include_pad) *
           osw_avg_count(&pool->dims[HEIGHT], h, pool->count_include_pad) *
           osw_avg_count(&pool->dims[WIDTH], w, pool->count_include_pad);
}

/* a / b, if the least number by -1 is itself, as in a sum that wraps, and no trap; b is not 0.
 */
static inline int64_t osw_divide_i64(int64_t a, int64_t b)
{
    return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

/* One row of the input or of the output. */
typedef struct osw_row {
    int64_t image;
    int64_t channel;
    int64_t depth;
    int64_t height;
} osw_row;

/* Row number `unit`, counted through image, `channels` channels, depth and height. */
static inline osw_row osw_row_of(int64_t unit, int64_t channels, int64_t depth, int64_t height)
{
    osw_row row;
    row.height = unit % height;
    unit /= height;
    row.depth = unit % depth;
    unit /= depth;
    row.channel = unit % channels;
    row.image = unit / channels;
    return row;
}

static inline osw_row osw_output_row(const osw_pool *pool, int64_t channels, int64_t unit)
{
    return osw_row_of(unit, channels, pool->dims[DEPTH].output, pool->dims[HEIGHT].output);
}

static inline osw_row osw_input_row(const osw_pool *pool, int64_t channels, int64_t unit)
{
    return osw_row_of(unit, channels, pool->dims[DEPTH].input, pool->dims[HEIGHT].input);
}

/* The rows of the output that a row of the input overlaps, in their order, and with which taps:
 * these run backwards. */
typedef struct osw_walk {
    const osw_pool_dim *dims;
    int64_t depth, height; /* of the input */
    osw_range kds, khs;    /* taps that can overlap the row */
    int64_t kd, kh;        /* the tap */
    int64_t od, oh;        /* the output */
} osw_walk;

static inline osw_walk osw_walk_begin(const osw_pool *pool, const osw_row *row)
{
    const osw_range kds = osw_taps_meeting(&pool->dims[DEPTH], row->depth, row->depth + 1);
    const osw_range khs = osw_taps_meeting(&pool->dims[HEIGHT], row->height, row->height + 1);
    return (osw_walk){.dims = pool->dims,
                      .depth = row->depth,
                      .height = row->height,
                      .kds = kds,
                      .khs = khs,
                      .kd = kds.end,
                      .kh = khs.first};
}

/* To the next row; false if there is none. */
static inline bool osw_walk_next(osw_walk *walk)
{
    for (;;) {
        while (walk->kh > walk->khs.first) {
            walk->oh = osw_output_of(&walk->dims[HEIGHT], walk->height, --walk->kh);
            if (walk->oh >= 0)
                return true;
        }
        do {
            if (walk->kd <= walk->kds.first)
                return false;
            walk->od = osw_output_of(&walk->dims[DEPTH], walk->depth, --walk->kd);
        } while (walk->od < 0);
        walk->kh = walk->khs.end;
    }
}

/* Elements from the base to image n, channel c, position p. */
static inline int64_t osw_place(const osw_pool_tensor *t, int64_t n, int64_t c, int64_t p)
{
    return n * t->image_step + c * t->channel_step + p * t->pixel_step;
}

/* The element there, of this type. */
#define OSW_POOL_AT(type, t, n, c, p) ((type *)(t)->base + osw_place(t, n, c, p))

static inline int64_t osw_input_position(const osw_pool *pool, int64_t d, int64_t h, int64_t w)
{
    return (d * pool->dims[HEIGHT].input + h) * pool->dims[WIDTH].input + w;
}

static inline int64_t osw_output_position(const osw_pool *pool, int64_t d, int64_t h, int64_t w)
{
    return (d * pool->dims[HEIGHT].output + h) * pool->dims[WIDTH].output + w;
}

static inline int64_t osw_input_plane(const osw_pool *pool)
{
    return pool->dims[DEPTH].input * pool->dims[HEIGHT].input * pool->dims[WIDTH].input;
}

static inline int64_t osw_output_plane(const osw_pool *pool)
{
    return pool->dims[DEPTH].output * pool->dims[HEIGHT].output * pool->dims[WIDTH].output;
}

static inline int32_t osw_tap(const osw_pool *pool, int64_t d, int64_t h, int64_t w)
{
    return (int32_t)((d * pool->dims[HEIGHT].kernel + h) * pool->dims[WIDTH].kernel + w);
}

/* Blocks of pool->block channels in an image. */
static inline int64_t osw_blocks(const osw_pool *pool)
{
    return osw_ceil_div(pool->channels, pool->block);
}

/* Channels [first, end) of one image. */
typedef struct osw_block {
    int64_t image;
    int64_t first;
    int64_t end;
} osw_block;

static inline osw_block osw_block_of(const osw_pool *pool, int64_t unit)
{
    const int64_t first = unit % osw_blocks(pool) * pool->block;
    return (osw_block){unit / osw_blocks(pool), first,
                       osw_min(first + pool->block, pool->channels)};
}

#endif
