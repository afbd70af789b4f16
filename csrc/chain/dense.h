/* SPDX-License-Identifier: MIT */
/* Dense convolutions in evaluation, block by block of pixels: what a window covers goes to scratch
 * memory, some terms at a time, and from there through the products of 1 x 1 convolutions. Copying
 * costs two of a hundred instructions for 64 outputs, and leaves no borders to the products. */
#ifndef OSW_CHAIN_DENSE_H
#define OSW_CHAIN_DENSE_H

#include "chain/chain.h"
#include "chain/pointwise.h"
#include "core/ints.h"
#include "core/scratch.h"
#include "core/simd.h"

#include <stdbool.h>
#include <stdint.h>

_Static_assert(OSW_CHAIN_DENSE_PIXELS * DEPTH * sizeof(float) <= OSW_SCRATCH_INNER, "room");

/* A run of terms of each of some windows of a row: from `row`, `length` floats long, the first run
 * from float `first` on and each `step` behind the one before it, `count` long; to rows of `terms`.
 */
typedef struct osw_runs {
    const float *row;
    int64_t length, first, step, count, terms;
} osw_runs;

/* Run number m, of which zeros lie beside the row. */
static void copy_beside(const osw_runs *r, int64_t m, float *to)
{
    const int64_t first = r->first + m * r->step;
    for (int64_t i = 0; i < r->count; i++) {
        const int64_t at = first + i;
        to[m * r->terms + i] = at >= 0 && at < r->length ? r->row[at] : 0;
    }
}

/* Runs [begin, end), which lie inside of the row. */
static void copy_inside(const osw_runs *r, int64_t begin, int64_t end, float *to)
{
    const int64_t count = r->count, whole = count / LANES * LANES;
    const float *from = r->row + r->first + begin * r->step;
    to += begin * r->terms;
    for (int64_t m = begin; m < end; m++, from += r->step, to += r->terms) {
        for (int64_t i = 0; i < whole; i += LANES)
            store_f32(to + i, load_f32(from + i));
        if (whole && whole < count)
            store_f32(to + count - LANES, load_f32(from + count - LANES));
        else if (!whole)
            store_first_f32(to, load_first_f32(from, count), count);
    }
}

static void copy_runs(const osw_runs *r, int64_t pixels, float *to)
{
    const int64_t behind = r->length - r->count - r->first; /* of the last that lies inside */
    int64_t begin = r->first < 0 ? osw_ceil(-r->first, r->step) : 0;
    int64_t end = behind < 0 ? 0 : osw_min_int(behind / r->step + 1, pixels);
    begin = osw_min_int(begin, pixels);
    end = osw_max_int(begin, end);
    for (int64_t m = 0; m < begin; m++)
        copy_beside(r, m, to);
    copy_inside(r, begin, end, to);
    for (int64_t m = end; m < pixels; m++)
        copy_beside(r, m, to);
}

/* Terms [d, d + terms) of output pixels [p, p + pixels) of an image. A row of the window is a run
 * of terms that lie one behind the other in the image too. */
static void gather(const osw_chain_stage *s, int64_t p, int64_t pixels, int64_t d, int64_t terms,
                   float *to)
{
    const osw_chain_window *w = &s->window;
    const int64_t run = w->width * s->channels;
    osw_runs r = {
        .length = s->width * s->channels, .step = w->stride_x * s->channels, .terms = terms};
    for (int64_t tap = d / run; tap * run < d + terms; tap++) {
        const int64_t from = osw_max_int(d - tap * run, 0);
        float *at = to + osw_max_int(tap * run - d, 0);
        r.count = osw_min_int(d + terms - tap * run, run) - from;
        for (int64_t m = 0; m < pixels;) {
            const int64_t i = (p + m) / s->out_width, j = (p + m) % s->out_width;
            const int64_t y = i * w->stride_y + tap - w->top;
            const int64_t row = osw_min_int(s->out_width - j, pixels - m);
            const bool inside = y >= 0 && y < s->height;
            osw_runs here = r;
            here.row = s->input + (inside ? y * r.length : 0);
            here.length = inside ? r.length : 0;
            here.first = j * r.step - w->left * s->channels + from;
            copy_runs(&here, row, at + m * terms);
            m += row;
        }
    }
}

static void TIERED(osw_chain_dense_folded)(const osw_chain_stage *s, const osw_chain_part *part)
{
    const osw_packed weight = {s->packed, osw_chain_terms(s), s->outputs, s->after->shift};
    const int64_t end = part->end * s->out_width;
    float *const room = osw_scratch_inner(OSW_SCRATCH_INNER);
    osw_pass pass = {0};
    for (int64_t p = part->begin * s->out_width; p < end; p += s->block) {
        const int64_t pixels = osw_min_int(end - p, s->block);
        float *output = s->output + p * s->outputs;
        osw_terms piece = terms_behind(&weight, 0, weight.panels);
        while (piece.terms) {
            gather(s, p, pixels, piece.d, piece.terms, room);
            piece = multiply_piece(&weight, piece, pixels, room, piece.terms, output, &pass);
        }
        activate_block(output, pixels * s->outputs, &s->after->activation);
    }
}

#endif
