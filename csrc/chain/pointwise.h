/* SPDX-License-Identifier: MIT */
/* 1 x 1 convolutions, block by block of pixels: what is normalised, or the gradient of what is,
 * goes to scratch memory, from there through the products, and the result is summed while it is in
 * the caches. */
#ifndef OSW_CHAIN_POINTWISE_H
#define OSW_CHAIN_POINTWISE_H

#include "chain/blocks.h"
#include "chain/chain.h"
#include "core/ahead.h"
#include "core/ints.h"
#include "core/scratch.h"
#include "core/simd.h"
#include "linear/tiles.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define FLOATS OSW_EACH_F32
#define EACH   "linear/product_tiles.h"
#include "core/each_float.h"

#define EACH "conv/panels.h"
#include "core/each_float.h"

#define EACH "linear/outer.h"
#include "core/each_float.h"

enum {
    LARGE_BYTES = 3 << 19, /* of all images of a stage, from which on asking ahead pays */
};

static bool is_large(const osw_chain_stage *s)
{
    const int64_t pixels =
        s->batch * (s->height * s->width * s->channels + s->out_height * s->out_width * s->outputs);
    return pixels * (int64_t)sizeof(float) >= LARGE_BYTES;
}

/* c = start + a b for the pixels of a block; terms: of a pixel. */
static void multiply_block(const packed_f32 *b, int64_t terms, int64_t pixels, const float *a,
                           float *c, osw_pass *pass)
{
    const osw_conv_terms all = {1, 1, terms};
    lines_f32 lines = {
        .lines = 1, .pixels = pixels, .a_pixel = terms, .runs = 1, .c = c, .c_pixel = b->columns};
    for (int64_t i = 0; i < osw_conv_pieces(&all); i++) {
        const osw_conv_piece piece = osw_conv_piece_at(&all, i);
        lines.a = a + piece.first;
        lines.run = piece.count;
        multiply_piece_f32(b, &lines, &piece, i == 0, pass);
    }
}

/* Tiles of a product of so many pixels. */
static int64_t tiles_of(int64_t terms, int64_t columns, int64_t pixels)
{
    return osw_ceil(terms, DEPTH) * count_tiles(pixels, columns, LANES);
}

/* sums[m][v] += sum of a[p][m] * b[p][v] over the pixels of a block */
static void add_products(int64_t pixels, const float *a, int64_t a_count, const float *b,
                         int64_t b_count, float *sums, osw_pass *pass)
{
    const outer_f32 t = {.lines = 1,
                         .length = pixels,
                         .a = a,
                         .a_pixel = a_count,
                         .b = b,
                         .b_pixel = b_count,
                         .sums = sums,
                         .sums_step = b_count};
    add_outer_products_f32(t, a_count, b_count, pass);
}

/* The terms of an output: the rows of its window. */
static osw_conv_terms chain_terms(const osw_chain_stage *s)
{
    const int64_t run = osw_chain_run(s);
    return (osw_conv_terms){1, osw_chain_terms(s) / run, run};
}

static void TIERED(osw_chain_pack)(const osw_chain_stage *s, const osw_chain_part *part)
{
    (void)part;
    const int64_t terms = s->packs_backward ? s->outputs : osw_chain_terms(s);
    const int64_t columns = s->packs_backward ? s->channels : s->outputs;
    const osw_conv_weight weight = {.data = s->weight,
                                    .output = s->packs_backward ? 1 : terms,
                                    .channel = s->packs_backward ? columns : 1};
    const osw_conv_terms all = s->packs_backward ? (osw_conv_terms){1, 1, terms} : chain_terms(s);
    pack_panels_f32(&weight, &all, 0, osw_conv_pieces(&all), 1, terms, columns, s->packed);
}

/* Where the pixels of block p begin, as the input of a product: in `room` if they are normalised.
 */
static const float *input_block(const osw_chain_stage *s, int64_t p, int64_t pixels, float *room)
{
    const float *input = s->input + p * s->channels;
    if (!s->before)
        return input;
    apply_block(s->before, s->channels, pixels, input, room);
    return room;
}

/* Pixels of the block behind the one at p, none if all images of the stage stay in the caches. */
static int64_t pixels_behind(const osw_chain_stage *s, const osw_chain_part *part, int64_t p)
{
    return is_large(s) ? osw_max_int(osw_min_int(part->end - p - s->block, s->block), 0) : 0;
}

static void
TIERED(osw_chain_pointwise_forward)(const osw_chain_stage *s, const osw_chain_part *part)
{
    const packed_f32 weight = {s->packed, s->outputs, NULL};
    float *const room = osw_scratch_outer(OSW_CHAIN_ROOM);
    const int64_t in = s->channels * (int64_t)sizeof(float);
    const int64_t out = s->outputs * (int64_t)sizeof(float);
    clear_sums(part, s->outputs);
    for (int64_t p = part->begin; p < part->end; p += s->block) {
        const int64_t pixels = osw_min_int(part->end - p, s->block), next = p + pixels;
        const int64_t behind = pixels_behind(s, part, p);
        const int64_t tiles = tiles_of(s->channels, s->outputs, pixels);
        float *z = s->output + p * s->outputs;
        osw_pass pass = {0};
        add_stream(&pass, s->input + next * s->channels, behind * in, tiles);
        add_stream(&pass, s->output + next * s->outputs, behind * out, tiles);
        multiply_block(&weight, s->channels, pixels, input_block(s, p, pixels, room), z, &pass);
        if (p == part->begin)
            find_center(s->outputs, pixels, z, part);
        moments_block(s->outputs, pixels, z, part);
    }
}

static void TIERED(osw_chain_pointwise_folded)(const osw_chain_stage *s, const osw_chain_part *part)
{
    const packed_f32 weight = {s->packed, s->outputs, s->after->shift};
    osw_pass pass = {0};
    for (int64_t p = part->begin; p < part->end; p += s->block) {
        const int64_t pixels = osw_min_int(part->end - p, s->block);
        float *output = s->output + p * s->outputs;
        multiply_block(&weight, s->channels, pixels, s->input + p * s->channels, output, &pass);
        activate_block(output, pixels * s->outputs, &s->after->activation);
    }
}

/* The streams of the block behind the one at p, for both gradients. */
static osw_pass backward_pass(const osw_chain_stage *s, const osw_chain_part *part, int64_t p,
                              int64_t pixels)
{
    const int64_t in = s->channels * (int64_t)sizeof(float), next = p + pixels;
    const int64_t out = s->outputs * (int64_t)sizeof(float);
    const int64_t behind = pixels_behind(s, part, p);
    const int64_t rows = s->crossed ? s->channels : s->outputs;
    const int64_t columns = s->crossed ? s->outputs : s->channels;
    int64_t tiles = count_tiles(rows, columns, LANES);
    if (s->grad_input)
        tiles += tiles_of(s->outputs, s->channels, pixels);
    osw_pass pass = {0};
    add_stream(&pass, s->input + next * s->channels, behind * in, tiles);
    add_stream(&pass, s->output + next * s->outputs, behind * out, tiles);
    add_stream(&pass, s->grad + next * s->outputs, behind * out, tiles);
    if (s->grad_input)
        add_stream(&pass, s->grad_input + next * s->channels, behind * in, tiles);
    return pass;
}

static void
TIERED(osw_chain_pointwise_backward)(const osw_chain_stage *s, const osw_chain_part *part)
{
    const int64_t channels = s->channels, outputs = s->outputs;
    const packed_f32 weight = {s->packed, channels, NULL};
    float *const dz = osw_scratch_outer(OSW_CHAIN_ROOM);
    float *const room = dz + osw_round_up(s->block * outputs, LANES);
    const bool sums = s->grad_input && s->before;
    memset(part->weights, 0, (size_t)(channels * outputs) * sizeof(float));
    if (sums)
        clear_sums(part, channels);
    for (int64_t p = part->begin; p < part->end; p += s->block) {
        const int64_t pixels = osw_min_int(part->end - p, s->block);
        osw_pass pass = backward_pass(s, part, p, pixels);
        gradient_block(s->after, outputs, pixels, s->output + p * outputs, s->grad + p * outputs,
                       dz);
        const float *x = input_block(s, p, pixels, room);
        float *dx = s->grad_input ? s->grad_input + p * channels : NULL;
        if (dx)
            multiply_block(&weight, outputs, pixels, dz, dx, &pass);
        if (s->crossed)
            add_products(pixels, x, channels, dz, outputs, part->weights, &pass);
        else
            add_products(pixels, dz, outputs, x, channels, part->weights, &pass);
        if (sums)
            reduce_block(s->before, channels, pixels, s->input + p * channels, dx, part);
    }
}

#endif
