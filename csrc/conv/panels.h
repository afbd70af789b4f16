/* SPDX-License-Identifier: MIT */
/* Products of lines of pixels with a packed weight: for each piece of the terms its panels, one to
 * four vectors of outputs wide. Included once per dtype, behind linear/product_tiles.h. */
#include "conv/conv.h"
#include "conv/terms.h"
#include "core/ahead.h"
#include "core/ints.h"
#include "core/simd.h"
#include "linear/tiles.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "linear/product_tiles.h"
#endif

/* A weight as pack_panels writes it. start: of every row, NULL for zero. */
typedef struct LOCAL(packed) {
    const ELEMENT *panels;
    int64_t columns;
    const ELEMENT *start;
} LOCAL(packed);

/* Lines of pixels: of a, where a pixel has `runs` of `run` terms, a_run apart, and of c. The panels
 * of the piece have `skip` terms in front of them. */
typedef struct LOCAL(lines) {
    int64_t lines, pixels;
    const ELEMENT *a;
    int64_t a_line, a_pixel, a_run;
    int64_t runs, run, skip;
    ELEMENT *c;
    int64_t c_line, c_pixel;
} LOCAL(lines);

/* Elements of the panels in front of those of a piece. */
static int64_t LOCAL(panels_before)(const osw_conv_piece *piece, int64_t columns)
{
    return piece->first * osw_round_up(columns, VLANES);
}

/* `count` terms of `columns` outputs, from `from` on. */
static void
LOCAL(pack_some)(const osw_conv_weight *w, const ELEMENT *from, int64_t count, int64_t columns,
                      int64_t width, ELEMENT *panel)
{
    if (w->output == 1) {
        LOCAL(pack)(from, w->channel, count, columns, width, panel);
        return;
    }
    if (w->channel == 1) {
        LOCAL(pack_transposed)(from, w->output, count, columns, width, panel);
        return;
    }
    for (int64_t d = 0; d < count; d++)
        for (int64_t j = 0; j < width; j++)
            panel[d * width + j] = j < columns ? from[d * w->channel + j * w->output] : 0;
}

/* Pieces [begin, end) of the terms, each an output tap by tap with `channels` channels, in rows of
 * `taps`. */
static void LOCAL(pack_panels)(const osw_conv_weight *w, const osw_conv_terms *terms, int64_t begin,
                        int64_t end, int64_t taps, int64_t channels, int64_t columns,
                        ELEMENT *packed)
{
    for (int64_t i = begin; i < end; i++) {
        const osw_conv_piece piece = osw_conv_piece_at(terms, i);
        ELEMENT *panel = packed + LOCAL(panels_before)(&piece, columns);
        for (int64_t j = 0; j < columns;) {
            const int64_t vectors = panel_vectors(osw_ceil(columns - j, VLANES));
            const int64_t width = vectors * VLANES, count = osw_min_int(columns - j, width);
            for (int64_t d = 0, some; d < piece.count; d += some) {
                const int64_t tap = (piece.first + d) / channels;
                const int64_t channel = (piece.first + d) % channels;
                some = osw_min_int(channels - channel, piece.count - d);
                LOCAL(
                    pack_some)(w,
                          (const ELEMENT *)w->data + tap / taps * w->row + tap % taps * w->column +
                              channel * w->channel + j * w->output,
                          some, count, width, panel + d * width);
            }
            panel += piece.count * width;
            j += width;
        }
    }
}

/* c += a b for a piece of the terms; c = start + a b if it is the first. */
static void LOCAL(
    multiply_piece)(const LOCAL(packed) *b, const LOCAL(lines) *l, const osw_conv_piece *piece, bool first,
                           osw_pass *pass)
{
    const ELEMENT *panel = b->panels + LOCAL(panels_before)(piece, b->columns);
    for (int64_t j = 0; j < b->columns;) {
        const int64_t vectors = panel_vectors(osw_ceil(b->columns - j, VLANES));
        const int64_t width = vectors * VLANES, count = osw_min_int(b->columns - j, width);
        const int64_t tiles = osw_ceil(l->pixels, tile_rows[vectors]);
        for (int64_t n = 0; n < l->lines; n++) {
            for (int64_t i = 0, m = 0; i < tiles; i++) {
                const int64_t rows = osw_ceil(l->pixels - m, tiles - i);
                ELEMENT *c = l->c + n * l->c_line + m * l->c_pixel + j;
                const osw_tile tile = {
                    .terms = l->run,
                    .runs = l->runs,
                    .a = l->a + n * l->a_line + m * l->a_pixel,
                    .a_row = l->a_pixel,
                    .a_term = 1,
                    .a_run = l->a_run,
                    .panel = panel + l->skip * width,
                    .panel_step = width,
                    .start = !first     ? c
                             : b->start ? b->start + j
                                        : NULL,
                    .start_row = first ? 0 : l->c_pixel,
                    .c = c,
                    .c_row = l->c_pixel,
                    .last = count - width + VLANES,
                    .ahead = take_share(pass, l->run * l->runs),
                };
                LOCAL(tiles)[vectors - 1][rows - 1](&tile);
                m += rows;
            }
        }
        panel += piece->count * width;
        j += width;
    }
}
