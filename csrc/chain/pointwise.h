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

#define EACH "conv/outer.h"
#include "core/each_float.h"

enum {
    LARGE_BYTES = 3 << 19, /* of all images of a stage, from which on asking ahead pays */
    STREAMS = 4,           /* images that a pass reads and writes */
};

/* The streams of a pass, and the tiles between which their next blocks are asked for. */
typedef struct osw_pass {
    osw_ahead ahead[STREAMS];
} osw_pass;

OSW_INLINE void ask_all(osw_pass *pass)
{
    OSW_UNROLL
    for (int i = 0; i < STREAMS; i++)
        ask_ahead(&pass->ahead[i]);
}

static bool is_large(const osw_chain_stage *s)
{
    const int64_t pixels =
        s->batch * (s->height * s->width * s->channels + s->out_height * s->out_width * s->outputs);
    return pixels * (int64_t)sizeof(float) >= LARGE_BYTES;
}

/* Panels and pieces of the terms as pack_panels writes them, of runs of so many terms. start: of
 * every row, NULL for zero. */
typedef struct osw_packed {
    const float *panels;
    int64_t terms, run, columns;
    const float *start;
} osw_packed;

/* Terms of the piece that begins with term d: part of a run, or whole runs. */
static int64_t piece_of(int64_t terms, int64_t run, int64_t d)
{
    if (run > DEPTH)
        return osw_min_int(run - d % run, DEPTH);
    return osw_min_int(terms - d, DEPTH / run * run);
}

/* b is [terms][columns], or [columns][terms] if transposed. */
static void pack_panels(const float *b, bool transposed, int64_t terms, int64_t run,
                        int64_t columns, float *to)
{
    for (int64_t d = 0; d < terms;) {
        const int64_t piece = piece_of(terms, run, d);
        for (int64_t j = 0; j < columns;) {
            const int64_t vectors = panel_vectors(osw_ceil(columns - j, LANES));
            const int64_t width = vectors * LANES, count = osw_min_int(columns - j, width);
            if (transposed)
                pack_transposed_f32(b + j * terms + d, terms, piece, count, width, to);
            else
                pack_f32(b + d * columns + j, columns, piece, count, width, to);
            to += piece * width;
            j += width;
        }
        d += piece;
    }
}

/* Lines of pixels: of a, where a pixel is `runs` of terms, a_run apart, and of c. */
typedef struct osw_lines {
    int64_t lines, pixels;
    const float *a;
    int64_t a_line, a_pixel, a_run, runs;
    float *c;
    int64_t c_line;
} osw_lines;

/* c += a b for a piece of the terms, whose panels begin at `panel`; c = start + a b if it is the
 * first. Returns the panels behind. */
static const float *multiply_piece(const osw_packed *b, const osw_lines *l, int64_t terms,
                                   bool first, const float *panel, osw_pass *pass)
{
    for (int64_t j = 0; j < b->columns;) {
        const int64_t vectors = panel_vectors(osw_ceil(b->columns - j, LANES));
        const int64_t width = vectors * LANES, count = osw_min_int(b->columns - j, width);
        const int64_t tiles = osw_ceil(l->pixels, tile_rows[vectors]);
        for (int64_t n = 0; n < l->lines; n++) {
            for (int64_t i = 0, m = 0; i < tiles; i++) {
                const int64_t rows = osw_ceil(l->pixels - m, tiles - i);
                float *c = l->c + n * l->c_line + m * b->columns + j;
                const osw_tile tile = {
                    .terms = terms,
                    .runs = l->runs,
                    .a = l->a + n * l->a_line + m * l->a_pixel,
                    .a_row = l->a_pixel,
                    .a_term = 1,
                    .a_run = l->a_run,
                    .panel = panel,
                    .panel_step = width,
                    .start = !first     ? c
                             : b->start ? b->start + j
                                        : NULL,
                    .start_row = first ? 0 : b->columns,
                    .c = c,
                    .c_row = b->columns,
                    .last = count - width + LANES,
                };
                ask_all(pass);
                tiles_f32[vectors - 1][rows - 1](&tile);
                m += rows;
            }
        }
        panel += osw_max_int(l->runs, 1) * terms * width;
        j += width;
    }
    return panel;
}

/* c = start + a b for the pixels of a block. */
static void multiply_block(const osw_packed *b, int64_t pixels, const float *a, float *c,
                           osw_pass *pass)
{
    osw_lines lines = {.lines = 1, .pixels = pixels, .a = a, .a_pixel = b->terms, .c = c};
    const float *panel = b->panels;
    for (int64_t d = 0, piece; d < b->terms; d += piece) {
        piece = piece_of(b->terms, b->terms, d);
        lines.a = a + d;
        panel = multiply_piece(b, &lines, piece, d == 0, panel, pass);
    }
}

/* Tiles of a product of so many pixels: calls of ask_all. */
static int64_t tiles_of(int64_t terms, int64_t columns, int64_t pixels)
{
    const int64_t vectors = panel_vectors(osw_ceil(columns, LANES));
    return osw_ceil(terms, DEPTH) * osw_ceil(columns, vectors * LANES) *
           osw_ceil(pixels, tile_rows[vectors]);
}

/* sums[m][v] += sum of a[p][m] * b[p][v] over the pixels of a block */
static void add_products(int64_t pixels, const float *a, int64_t a_count, const float *b,
                         int64_t b_count, float *sums, osw_pass *pass)
{
    for (int64_t j = 0; j < b_count;) {
        const int64_t vectors = panel_vectors(osw_ceil(b_count - j, LANES));
        const int64_t tiles = osw_ceil(a_count, tile_rows[vectors]);
        outer_f32 t = {.lines = 1,
                       .length = pixels,
                       .a = a,
                       .a_pixel = a_count,
                       .b = b + j,
                       .b_pixel = b_count,
                       .last = osw_min_int(b_count - j - (vectors - 1) * LANES, LANES),
                       .sums = sums + j,
                       .sums_step = b_count};
        for (int64_t i = 0, m = 0; i < tiles; i++) {
            const int64_t rows = osw_ceil(a_count - m, tiles - i);
            ask_all(pass);
            outers_f32[vectors - 1][rows - 1](&t);
            m += rows;
            t.a += rows;
            t.sums += rows * b_count;
        }
        j += vectors * LANES;
    }
}

static void TIERED(osw_chain_pack)(const osw_chain_stage *s, const osw_chain_part *part)
{
    (void)part;
    if (s->packs_backward)
        pack_panels(s->weight, false, s->outputs, s->outputs, s->channels, s->packed);
    else
        pack_panels(s->weight, true, osw_chain_terms(s), osw_chain_run(s), s->outputs, s->packed);
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
    const osw_packed weight = {s->packed, s->channels, s->channels, s->outputs, NULL};
    float *const room = osw_scratch_outer(OSW_CHAIN_ROOM);
    const int64_t in = s->channels * (int64_t)sizeof(float);
    const int64_t out = s->outputs * (int64_t)sizeof(float);
    clear_sums(part, s->outputs);
    for (int64_t p = part->begin; p < part->end; p += s->block) {
        const int64_t pixels = osw_min_int(part->end - p, s->block), next = p + pixels;
        const int64_t behind = pixels_behind(s, part, p);
        const int64_t calls = tiles_of(s->channels, s->outputs, pixels);
        float *z = s->output + p * s->outputs;
        osw_pass pass = {{ahead_of(s->input + next * s->channels, behind * in, calls),
                          ahead_of(s->output + next * s->outputs, behind * out, calls)}};
        multiply_block(&weight, pixels, input_block(s, p, pixels, room), z, &pass);
        if (p == part->begin)
            find_center(s->outputs, pixels, z, part);
        moments_block(s->outputs, pixels, z, part);
    }
}

static void TIERED(osw_chain_pointwise_folded)(const osw_chain_stage *s, const osw_chain_part *part)
{
    const osw_packed weight = {s->packed, s->channels, s->channels, s->outputs, s->after->shift};
    osw_pass pass = {0};
    for (int64_t p = part->begin; p < part->end; p += s->block) {
        const int64_t pixels = osw_min_int(part->end - p, s->block);
        float *output = s->output + p * s->outputs;
        multiply_block(&weight, pixels, s->input + p * s->channels, output, &pass);
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
    const int64_t vectors = panel_vectors(osw_ceil(columns, LANES));
    int64_t calls = osw_ceil(rows, tile_rows[vectors]) * osw_ceil(columns, vectors * LANES);
    if (s->grad_input)
        calls += tiles_of(s->outputs, s->channels, pixels);
    osw_pass pass = {{ahead_of(s->input + next * s->channels, behind * in, calls),
                      ahead_of(s->output + next * s->outputs, behind * out, calls),
                      ahead_of(s->grad + next * s->outputs, behind * out, calls)}};
    if (s->grad_input)
        pass.ahead[3] = ahead_of(s->grad_input + next * s->channels, behind * in, calls);
    return pass;
}

static void
TIERED(osw_chain_pointwise_backward)(const osw_chain_stage *s, const osw_chain_part *part)
{
    const int64_t channels = s->channels, outputs = s->outputs;
    const osw_packed weight = {s->packed, outputs, outputs, channels, NULL};
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
            multiply_block(&weight, pixels, dz, dx, &pass);
        if (s->crossed)
            add_products(pixels, x, channels, dz, outputs, part->weights, &pass);
        else
            add_products(pixels, dz, outputs, x, channels, part->weights, &pass);
        if (sums)
            reduce_block(s->before, channels, pixels, s->input + p * channels, dx, part);
    }
}

#endif
