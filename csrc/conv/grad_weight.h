/* SPDX-License-Identifier: MIT */
/* The gradients of weight and bias, block by block of output pixels; included once per dtype. */
#include "conv/ahead.h"
#include "conv/below.h"
#include "conv/conv.h"
#include "core/ints.h"
#include "core/simd.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "linear/outer.h"
#endif

/* A part as tiles see it: one image has the rows of sums, its channels from a_begin on, the other
 * one their vectors. */
typedef struct LOCAL(sweep) {
    const osw_conv *conv;
    int64_t a_begin, a_end;
    int64_t b_channels;
    ELEMENT *sums;
    int64_t a_step, tap_step; /* of the sums: from one channel of a and from one tap to the next */
    bool joins;               /* the taps of a row */
    int64_t tiles;            /* per block, about */
    osw_pass pass;
} LOCAL(sweep);

/* Few channels fill vectors, or rows of tiles, badly; those of neighbouring pixels do better. */
static bool LOCAL(joins_taps)(const osw_conv *conv)
{
    const osw_conv_axis *columns = &conv->columns;
    return conv->channels < FEW_CHANNELS && columns->taps > 1 && columns->dilation == 1 &&
           conv->input.pixel_step == conv->channels;
}

static int64_t LOCAL(count_tiles)(const LOCAL(sweep) *sweep)
{
    const osw_conv *conv = sweep->conv;
    int64_t a = sweep->a_end - sweep->a_begin, b = sweep->b_channels;
    if (sweep->joins && conv->crossed)
        a *= conv->columns.taps;
    else if (sweep->joins)
        b *= conv->columns.taps;
    const int64_t vectors = tile_vectors(osw_ceil(b, VLANES), a);
    const int64_t tiles = osw_ceil(b, vectors * VLANES) * osw_ceil(a, tile_rows[vectors]);
    return conv->rows.taps * (sweep->joins ? 1 : conv->columns.taps) * tiles;
}

static LOCAL(sweep) LOCAL(sweep_of)(const osw_conv *conv, const osw_conv_part *part)
{
    const int64_t taps = conv->rows.taps * conv->columns.taps;
    const bool crossed = conv->crossed;
    LOCAL(sweep) sweep = {
        .conv = conv,
        .a_begin = crossed ? 0 : part->out_begin,
        .a_end = crossed ? conv->channels : part->out_end,
        .b_channels = crossed ? conv->outputs : conv->channels,
        .sums = part->weight,
        .a_step = crossed ? conv->outputs : taps * conv->channels,
        .tap_step = crossed ? conv->channels * conv->outputs : conv->channels,
        .joins = LOCAL(joins_taps)(conv),
    };
    sweep.tiles = LOCAL(count_tiles)(&sweep);
    return sweep;
}

/* The output pixels of a block under which tap (r, s) is inside of the image, as lines, without
 * their channels; false if there are none. */
static bool LOCAL(reach)(const osw_conv *conv, osw_conv_block block, int64_t r, int64_t s,
                         LOCAL(outer) *t)
{
    const osw_conv_axis *rows = &conv->rows, *columns = &conv->columns;
    const osw_conv_image *x = &conv->input, *dy = &conv->grad_output;
    keep_inside(rows, r, &block.top, &block.bottom);
    keep_inside(columns, s, &block.left, &block.right);
    if (block.top >= block.bottom || block.left >= block.right)
        return false;
    t->a = (const ELEMENT *)dy->data + block.image * dy->image_step + block.top * dy->row_step +
           block.left * dy->pixel_step;
    t->a_pixel = dy->pixel_step;
    t->a_line = dy->row_step;
    t->b =
        (const ELEMENT *)x->data + block.image * x->image_step +
        (block.top * rows->stride + r * rows->dilation - rows->padding) * x->row_step +
        (block.left * columns->stride + s * columns->dilation - columns->padding) * x->pixel_step;
    t->b_pixel = columns->stride * x->pixel_step;
    t->b_line = rows->stride * x->row_step;
    t->lines = block.bottom - block.top;
    t->length = block.right - block.left;
    if (t->a_line == t->length * t->a_pixel && t->b_line == t->length * t->b_pixel) {
        t->length *= t->lines;
        t->lines = 1;
    }
    if (conv->crossed) {
        const LOCAL(outer) other = *t;
        t->a = other.b, t->a_pixel = other.b_pixel, t->a_line = other.b_line;
        t->b = other.a, t->b_pixel = other.a_pixel, t->b_line = other.a_line;
    }
    return true;
}

/* Every tap for itself, the same channels of all of them one after the other. */
static void LOCAL(add_taps)(LOCAL(sweep) *sweep, const osw_conv_block *block)
{
    const osw_conv *conv = sweep->conv;
    const int64_t taps = conv->rows.taps * conv->columns.taps, rows = sweep->a_end - sweep->a_begin;
    int64_t vectors;
    for (int64_t b = 0; b < sweep->b_channels; b += vectors * VLANES) {
        vectors = tile_vectors(osw_ceil(sweep->b_channels - b, VLANES), rows);
        for (int64_t i = 0; i < taps; i++) {
            LOCAL(outer) t = {.sums_step = sweep->a_step};
            if (!LOCAL(reach)(conv, *block, i / conv->columns.taps, i % conv->columns.taps, &t))
                continue;
            t.a += sweep->a_begin;
            t.b += b;
            t.sums = sweep->sums + sweep->a_begin * sweep->a_step + i * sweep->tap_step + b;
            LOCAL(add_outer_rows)(t, rows, sweep->b_channels - b, vectors, &sweep->pass);
        }
    }
}

/* Taps [s, end) of row r, whose channels are neighbours, as one tap with all of them. */
static void LOCAL(add_joined)(
    LOCAL(sweep) *sweep, const osw_conv_block *block, int64_t r, int64_t s, int64_t end)
{
    const osw_conv *conv = sweep->conv;
    const int64_t joined = (end - s) * conv->channels;
    const int64_t a_count = conv->crossed ? joined : sweep->a_end - sweep->a_begin;
    const int64_t b_count = conv->crossed ? sweep->b_channels : joined;
    int64_t vectors;
    LOCAL(outer) t = {.sums_step = sweep->a_step};
    if (!LOCAL(reach)(conv, *block, r, s, &t))
        return;
    t.a += sweep->a_begin;
    t.sums = sweep->sums + sweep->a_begin * sweep->a_step +
             (r * conv->columns.taps + s) * sweep->tap_step;
    for (int64_t b = 0; b < b_count; b += vectors * VLANES) {
        vectors = tile_vectors(osw_ceil(b_count - b, VLANES), a_count);
        LOCAL(add_outer_rows)(t, a_count, b_count - b, vectors, &sweep->pass);
        t.b += vectors * VLANES;
        t.sums += vectors * VLANES;
    }
}

/* The taps of a row together: of all columns that have the same taps inside of the image. */
static void LOCAL(add_tap_rows)(LOCAL(sweep) *sweep, const osw_conv_block *block)
{
    const osw_conv_axis *columns = &sweep->conv->columns;
    int64_t inner = block->left, outer = block->right;
    keep_inside(columns, 0, &inner, &outer);
    keep_inside(columns, columns->taps - 1, &inner, &outer);
    for (int64_t r = 0; r < sweep->conv->rows.taps; r++) {
        osw_conv_block same = *block;
        for (int64_t j = block->left; j < block->right; j = same.right) {
            const int64_t first = j * columns->stride - columns->padding;
            const int64_t s = osw_max_int(-first, 0);
            const int64_t end = osw_min_int(columns->size - first, columns->taps);
            same.left = j;
            same.right = j == inner && inner < outer ? outer : j + 1;
            if (s < end)
                LOCAL(add_joined)(sweep, &same, r, s, end);
        }
    }
}

/* What of the pixels of block i the blocks before it have not read. */
static void LOCAL(look_ahead)(LOCAL(sweep) *sweep, int64_t i)
{
    const osw_conv *conv = sweep->conv;
    const osw_conv_axis *rows = &conv->rows, *columns = &conv->columns;
    const osw_conv_block next = osw_conv_block_at(conv, i);
    const bool whole = conv->column_blocks == 1;
    const int64_t width = next.right - next.left, height = next.bottom - next.top;
    const int64_t y = next.top * rows->stride + (rows->taps - 1) * rows->dilation - rows->padding;
    const int64_t size = (int64_t)sizeof(ELEMENT);
    sweep->pass = (osw_pass){0};
    add_pixels(&sweep->pass, conv, &conv->grad_output, rows->out_size, columns->out_size,
               conv->outputs, size, next.image, next.top, next.left, width * height, sweep->tiles);
    add_pixels(&sweep->pass, conv, &conv->input, rows->size, columns->size, conv->channels, size,
               next.image, y, whole ? 0 : next.left * columns->stride,
               whole ? height * rows->stride * columns->size : width * columns->stride,
               sweep->tiles);
}

/* bias[o] += sum of grad_output[n][i][j][o] over the pixels of a block, for so many vectors of
 * outputs, `last` lanes of each. */
OSW_INLINE void LOCAL(add_outputs)(const osw_conv *conv, const osw_conv_block *block, int64_t o,
                            const int vectors, int64_t last, ELEMENT *bias)
{
    const osw_conv_image *dy = &conv->grad_output;
    const int64_t step = dy->pixel_step;
    const ELEMENT *first =
        (const ELEMENT *)dy->data + block->image * dy->image_step + block->left * step + o;
    VECTOR sums[MOST_VECTORS] = {{0}};
    for (int64_t i = block->top; i < block->bottom; i++) {
        const ELEMENT *pixel = first + i * dy->row_step;
        for (int64_t j = block->left; j < block->right; j++, pixel += step) {
            OSW_UNROLL
            for (int v = 0; v < vectors; v++)
                sums[v] += last == VLANES ? LOCAL(load)(pixel + v * VLANES)
                                          : LOCAL(load_first)(pixel + v * VLANES, last);
        }
    }
    OSW_UNROLL
    for (int v = 0; v < vectors; v++) {
        ELEMENT *to = bias + o + v * VLANES;
        LOCAL(store_first)(to, LOCAL(load_first)(to, last) + sums[v], last);
    }
}

static void
LOCAL(add_bias)(const osw_conv *conv, const osw_conv_block *block, const osw_conv_part *part)
{
    int64_t o = part->out_begin;
    for (; part->out_end - o >= MOST_VECTORS * VLANES; o += MOST_VECTORS * VLANES)
        LOCAL(add_outputs)(conv, block, o, MOST_VECTORS, VLANES, part->bias);
    for (; o < part->out_end; o += VLANES)
        LOCAL(add_outputs)(conv, block, o, 1, osw_min_int(part->out_end - o, VLANES), part->bias);
}

static void KERNEL(conv_grad_weight)(const osw_conv *conv, const osw_conv_part *part)
{
    LOCAL(sweep) sweep = LOCAL(sweep_of)(conv, part);
    if (sweep.b_channels < VLANES) {
        below[ID_OF(grad_weight)](conv, part);
        return;
    }
    const bool asks = elements_of(conv) >= LARGE_BYTES / (int64_t)sizeof(ELEMENT);
    const int64_t outputs = part->out_end - part->out_begin;
    const int64_t first = conv->crossed ? 0 : sweep.a_begin * sweep.a_step;
    memset(sweep.sums + first, 0,
           (size_t)(osw_conv_weights(conv) / conv->outputs * outputs) * sizeof(ELEMENT));
    if (part->bias)
        memset((ELEMENT *)part->bias + part->out_begin, 0, (size_t)outputs * sizeof(ELEMENT));
    for (int64_t i = part->block_begin; i < part->block_end; i++) {
        const osw_conv_block block = osw_conv_block_at(conv, i);
        if (asks && i + 1 < part->block_end)
            LOCAL(look_ahead)(&sweep, i + 1);
        if (part->bias)
            LOCAL(add_bias)(conv, &block, part);
        if (sweep.joins)
            LOCAL(add_tap_rows)(&sweep, &block);
        else
            LOCAL(add_taps)(&sweep, &block);
    }
}
