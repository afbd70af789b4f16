/* SPDX-License-Identifier: MIT */
/* Outputs, block by block: a row of a window is a run of terms that are neighbours in the image, so
 * that pixels are rows of a product with the packed weight. Pixels whose windows have the same taps
 * inside of the image are computed together, by these taps alone. Included once per dtype. */
#include "conv/ahead.h"
#include "conv/conv.h"
#include "conv/reach.h"
#include "conv/terms.h"
#include "core/ints.h"
#include "core/simd.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "linear/product_tiles.h"

#    include "conv/panels.h" /* of what product_tiles.h defines */
#endif

/* Output pixels of a block under whose windows the same taps are inside of the image. */
typedef struct LOCAL(patch) {
    const osw_conv *conv;
    osw_conv_block pixels;
    osw_conv_span rows, columns; /* of taps */
} LOCAL(patch);

/* The pixels of a patch as lines, without their terms: at its first tap. */
static LOCAL(lines) LOCAL(lines_of)(const LOCAL(patch) *p)
{
    const osw_conv *conv = p->conv;
    const osw_conv_axis *rows = &conv->rows, *columns = &conv->columns;
    const osw_conv_image *x = &conv->input;
    const osw_conv_output *y = &conv->output;
    const osw_conv_block *at = &p->pixels;
    const int64_t top = at->top * rows->stride + p->rows.begin * rows->dilation - rows->padding;
    const int64_t left =
        at->left * columns->stride + p->columns.begin * columns->dilation - columns->padding;
    LOCAL(lines) l = {
        .lines = at->bottom - at->top,
        .pixels = at->right - at->left,
        .a = (const ELEMENT *)x->data + at->image * x->image_step,
        .a_line = rows->stride * x->row_step,
        .a_pixel = columns->stride * x->pixel_step,
        .c = (ELEMENT *)y->data + at->image * y->image_step + at->top * y->row_step +
             at->left * y->pixel_step,
        .c_line = y->row_step,
        .c_pixel = y->pixel_step,
    };
    if (p->rows.begin < p->rows.end && p->columns.begin < p->columns.end)
        l.a += top * x->row_step + left * x->pixel_step;
    if (l.a_line == l.pixels * l.a_pixel && l.c_line == l.pixels * l.c_pixel) {
        l.pixels *= l.lines; /* one long line */
        l.lines = 1;
    } else if (l.pixels < FEW_PIXELS && l.lines > l.pixels) { /* a border: columns as lines */
        const LOCAL(lines) o = l;
        l.lines = o.pixels, l.a_line = o.a_pixel, l.c_line = o.c_pixel;
        l.pixels = o.lines, l.a_pixel = o.a_line, l.c_pixel = o.c_line;
    }
    return l;
}

static void LOCAL(fill_bias)(const osw_conv *conv, const LOCAL(lines) *l)
{
    for (int64_t n = 0; n < l->lines; n++)
        for (int64_t m = 0; m < l->pixels; m++)
            for (int64_t o = 0; o < conv->outputs; o++)
                l->c[n * l->c_line + m * l->c_pixel + o] =
                    conv->bias ? ((const ELEMENT *)conv->bias)[o] : 0;
}

static void LOCAL(multiply_patch)(const LOCAL(patch) *p, osw_pass *pass)
{
    const osw_conv *conv = p->conv;
    const LOCAL(packed) weight = {conv->packed, conv->outputs, conv->bias};
    const osw_conv_reach reach = reach_of(conv, p->rows, p->columns);
    LOCAL(lines) lines = LOCAL(lines_of)(p);
    const ELEMENT *const a = lines.a;
    bool first = true;
    lines.a_run = reach.run_step;
    for (int64_t i = 0; i < osw_conv_pieces(&conv->terms); i++) {
        const osw_conv_piece piece = osw_conv_piece_at(&conv->terms, i);
        const int64_t length = piece.end - piece.begin;
        const osw_conv_span runs = common_span(reach.runs, piece.run_begin, piece.run_end);
        const osw_conv_span terms = common_span(reach.terms, piece.begin, piece.end);
        if (piece.group < reach.groups.begin || piece.group >= reach.groups.end ||
            terms.begin >= terms.end)
            continue;
        const bool whole = terms.end - terms.begin == length;
        lines.run = terms.end - terms.begin;
        lines.runs = whole ? runs.end - runs.begin : 1;
        for (int64_t run = runs.begin; run < runs.end; run += lines.runs) {
            lines.skip = (run - piece.run_begin) * length + terms.begin - piece.begin;
            lines.a = a + (piece.group - reach.groups.begin) * reach.group_step +
                      (run - reach.runs.begin) * reach.run_step + terms.begin - reach.terms.begin;
            LOCAL(multiply_piece)(&weight, &lines, &piece, first, pass);
            first = false;
        }
    }
    if (first)
        LOCAL(fill_bias)(conv, &lines);
}

static void LOCAL(multiply_pixels)(const osw_conv *conv, osw_conv_block block, osw_pass *pass)
{
    LOCAL(patch) p = {.conv = conv, .pixels = block};
    for (p.pixels.top = block.top; p.pixels.top < block.bottom; p.pixels.top = p.pixels.bottom) {
        p.pixels.bottom = same_taps(&conv->rows, p.pixels.top, block.bottom, &p.rows);
        for (p.pixels.left = block.left; p.pixels.left < block.right;
             p.pixels.left = p.pixels.right) {
            p.pixels.right = same_taps(&conv->columns, p.pixels.left, block.right, &p.columns);
            LOCAL(multiply_patch)(&p, pass);
        }
    }
}

/* What of the pixels of block i the blocks before it have not read, and where it writes. */
static osw_pass LOCAL(next_block)(const osw_conv *conv, int64_t i)
{
    const osw_conv_axis *rows = &conv->rows, *columns = &conv->columns;
    const osw_conv_output *y = &conv->output;
    const osw_conv_image written = {y->data, y->image_step, y->row_step, y->pixel_step};
    const osw_conv_block next = osw_conv_block_at(conv, i);
    const bool whole = conv->column_blocks == 1;
    const int64_t width = next.right - next.left, height = next.bottom - next.top;
    const int64_t size = (int64_t)sizeof(ELEMENT);
    const int64_t tiles =
        osw_conv_pieces(&conv->terms) * count_tiles(width * height, conv->outputs, VLANES);
    const int64_t y_in =
        next.top * rows->stride + (rows->taps - 1) * rows->dilation - rows->padding;
    osw_pass pass = {0};
    add_pixels(&pass, conv, &conv->input, rows->size, columns->size, conv->channels, size,
               next.image, y_in, whole ? 0 : next.left * columns->stride,
               whole ? height * rows->stride * columns->size : width * columns->stride, tiles);
    add_pixels(&pass, conv, &written, rows->out_size, columns->out_size, conv->outputs, size,
               next.image, next.top, next.left, width * height, tiles);
    return pass;
}

static void KERNEL(conv_forward)(const osw_conv *conv, const osw_conv_part *part)
{
    const bool asks = elements_of(conv) >= LARGE_BYTES / (int64_t)sizeof(ELEMENT);
    for (int64_t i = part->block_begin; i < part->block_end; i++) {
        osw_pass pass = {0};
        if (asks && i + 1 < part->block_end)
            pass = LOCAL(next_block)(conv, i + 1);
        LOCAL(multiply_pixels)(conv, osw_conv_block_at(conv, i), &pass);
    }
}

static void KERNEL(conv_pack)(const osw_conv *conv, const osw_conv_part *part)
{
    LOCAL(
        pack_panels)(&conv->weight, &conv->terms, part->block_begin, part->block_end, conv->columns.taps,
                conv->channels, conv->outputs, conv->packed);
}
