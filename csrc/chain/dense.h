/* SPDX-License-Identifier: MIT */
/* Dense convolutions in evaluation: a row of a window is a run of floats that lie one behind the
 * other in the image, so that a few rows of the output are products as those of 1 x 1 convolutions,
 * whose terms are some runs. With zeros around the image these rows of it are copied first. */
#ifndef OSW_CHAIN_DENSE_H
#define OSW_CHAIN_DENSE_H

#include "chain/chain.h"
#include "chain/pointwise.h"
#include "core/ints.h"
#include "core/scratch.h"
#include "core/simd.h"

#include <stdint.h>
#include <string.h>

/* Rows [begin, end) of an image, with zeros around it. */
static void copy_rows(const osw_chain_stage *s, int64_t begin, int64_t end, float *to)
{
    const int64_t row = s->width * s->channels, left = s->window.left * s->channels;
    const size_t zeros = (size_t)left * sizeof *to, bytes = (size_t)row * sizeof *to;
    for (int64_t y = begin; y < end; y++, to += row + 2 * left) {
        if (y < 0 || y >= s->height) {
            memset(to, 0, 2 * zeros + bytes);
            continue;
        }
        memset(to, 0, zeros);
        memcpy(to + left, s->input + y * row, bytes);
        memset(to + left + row, 0, zeros);
    }
}

/* The lines of output rows [begin, end), without their runs. */
static lines_f32 lines_of(const osw_chain_stage *s, int64_t begin, int64_t end, float *room)
{
    const osw_chain_window *w = &s->window;
    const int64_t row = osw_chain_padded_row(s), from = begin * w->stride_y - w->top;
    lines_f32 l = {.lines = end - begin,
                   .pixels = s->out_width,
                   .a = room,
                   .a_line = w->stride_y * row,
                   .a_pixel = w->stride_x * s->channels,
                   .a_run = row,
                   .c = s->output + begin * s->out_width * s->outputs,
                   .c_line = s->out_width * s->outputs,
                   .c_pixel = s->outputs};
    if (osw_chain_padded(s))
        copy_rows(s, from, from + (l.lines - 1) * w->stride_y + w->height, room);
    else
        l.a = s->input + from * row;
    if (l.a_line == l.pixels * l.a_pixel) { /* one long line */
        l.pixels *= l.lines;
        l.lines = 1;
    }
    return l;
}

static void TIERED(osw_chain_dense_folded)(const osw_chain_stage *s, const osw_chain_part *part)
{
    const osw_conv_terms terms = chain_terms(s);
    const packed_f32 weight = {s->packed, s->outputs, s->after->shift};
    float *const room = osw_scratch_inner(OSW_SCRATCH_INNER);
    osw_pass pass = {0};
    for (int64_t row = part->begin; row < part->end; row += s->block) {
        const int64_t end = osw_min_int(row + s->block, part->end);
        const lines_f32 all = lines_of(s, row, end, room);
        for (int64_t i = 0; i < osw_conv_pieces(&terms); i++) {
            const osw_conv_piece piece = osw_conv_piece_at(&terms, i);
            lines_f32 lines = all;
            lines.runs = piece.run_end - piece.run_begin;
            lines.run = piece.end - piece.begin;
            lines.a += piece.run_begin * all.a_run + piece.begin;
            multiply_piece_f32(&weight, &lines, &piece, i == 0, &pass);
        }
        activate_block(all.c, (end - row) * all.c_line, &s->after->activation);
    }
}

#endif
