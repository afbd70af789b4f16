/* SPDX-License-Identifier: MIT */
/* The gradients of weight and bias; included once per dtype. */
#include "core/ints.h"
#include "core/scratch.h"
#include "core/simd.h"
#include "linear/tiles.h"
#include "pointwise/pointwise.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "linear/product_tiles.h"
#endif

/* Terms that are summed before they are added: pixels [begin, begin + pixels) of `images` images
 * from n on. */
typedef struct LOCAL(pass) {
    int64_t n, images;
    int64_t begin, pixels;
} LOCAL(pass);

/* Columns [j, j + columns) of the weight, whose planes become panels of their pixels. */
static void LOCAL(pack_planes)(const osw_pointwise *p, const LOCAL(pass) * pass, int64_t j,
                               int64_t columns, ELEMENT *panels)
{
    const osw_pointwise_images *x = &p->input;
    for (int64_t k = 0; k < columns;) {
        const int64_t vectors = panel_vectors(osw_ceil(columns - k, VLANES));
        const int64_t width = vectors * VLANES, count = osw_min_int(columns - k, width);
        for (int64_t n = 0; n < pass->images; n++)
            LOCAL(pack_transposed)((const ELEMENT *)x->base + (pass->n + n) * x->image_step +
                                       (j + k) * x->plane_step + pass->begin,
                                   x->plane_step, pass->pixels, count, width,
                                   panels + (k * pass->images + n * width) * pass->pixels);
        k += width;
    }
}

/* Rows [m, end) and columns [j, j + columns) of the gradient, by the panels of a pass. */
static void LOCAL(multiply_planes)(const osw_pointwise *p, const LOCAL(pass) * pass, int64_t m,
                                   int64_t end, int64_t j, int64_t columns, const ELEMENT *panels,
                                   bool adds, ELEMENT *grad_weight)
{
    const osw_pointwise_images *dy = &p->grad_output;
    const ELEMENT *a = (const ELEMENT *)dy->base + pass->n * dy->image_step + pass->begin;
    for (int64_t k = 0; k < columns;) {
        const int64_t vectors = panel_vectors(osw_ceil(columns - k, VLANES));
        const int64_t width = vectors * VLANES, count = osw_min_int(columns - k, width);
        const int64_t tiles = osw_ceil(end - m, tile_rows[vectors]);
        for (int64_t i = 0, o = m; i < tiles; i++) {
            const int64_t rows = osw_ceil(end - o, tiles - i);
            ELEMENT *c = grad_weight + o * p->in_planes + j + k;
            const osw_tile tile = {
                .terms = pass->pixels,
                .runs = pass->images,
                .a = a + o * dy->plane_step,
                .a_row = dy->plane_step,
                .a_term = 1,
                .a_run = dy->image_step,
                .panel = panels + k * pass->images * pass->pixels,
                .panel_step = width,
                .start = adds ? c : NULL,
                .start_row = p->in_planes,
                .c = c,
                .c_row = p->in_planes,
                .last = count - width + VLANES,
            };
            LOCAL(tiles)[vectors - 1][rows - 1](&tile);
            o += rows;
        }
        k += width;
    }
}

/* Columns [first, last) of the gradient: its old value if it adds, and what a pass has. */
static void LOCAL(add_pass)(const osw_pointwise *p, const LOCAL(pass) * pass, int64_t first,
                            int64_t last, bool adds, ELEMENT *grad_weight)
{
    ELEMENT *const panels = osw_scratch_inner(PANEL_BYTES);
    const int64_t terms = pass->images * pass->pixels, widest = MOST_VECTORS * VLANES;
    const int64_t full = PANEL_BYTES / (int64_t)sizeof(ELEMENT) / terms / widest * widest;
    const int64_t row_bytes = terms * TILE_ROWS * (int64_t)sizeof(ELEMENT);
    const int64_t block = osw_max_int(ROW_BLOCK_BYTES / row_bytes, 1) * TILE_ROWS;
    for (int64_t j = first; j < last; j += full) {
        const int64_t columns = osw_min_int(last - j, full);
        LOCAL(pack_planes)(p, pass, j, columns, panels);
        for (int64_t m = 0; m < p->out_planes; m += block)
            LOCAL(multiply_planes)(p, pass, m, osw_min_int(m + block, p->out_planes), j, columns,
                                   panels, adds, grad_weight);
    }
}

/* The sum of a plane, in lanes that are added up at its end. */
static VALUE LOCAL(sum_plane)(const ELEMENT *dy, int64_t pixels)
{
    enum { SUMS = 4 };
    VECTOR sums[SUMS] = {{0}};
    VALUE four[SUMS];
    int64_t i = 0;
    for (; i + SUMS * VLANES <= pixels; i += SUMS * VLANES) {
        OSW_UNROLL
        for (int s = 0; s < SUMS; s++)
            sums[s] += LOCAL(load)(dy + i + s * VLANES);
    }
    for (; i + VLANES <= pixels; i += VLANES)
        sums[0] += LOCAL(load)(dy + i);
    if (i < pixels)
        sums[1] += LOCAL(load_first)(dy + i, pixels - i);
    LOCAL(sum4)(sums, four);
    return four[0] + four[1] + (four[2] + four[3]);
}

static void LOCAL(grad_bias)(const osw_pointwise *p, const osw_pointwise_block *block)
{
    const osw_pointwise_images *dy = &p->grad_output;
    ELEMENT *grad_bias = (ELEMENT *)p->grad_bias + block->part * p->out_planes;
    for (int64_t o = 0; o < p->out_planes; o++) {
        VALUE sum = 0;
        for (int64_t n = block->image_begin; n < block->image_end; n++)
            sum += LOCAL(sum_plane)(
                (const ELEMENT *)dy->base + n * dy->image_step + o * dy->plane_step, p->pixels);
        grad_bias[o] = sum;
    }
}

/* Passes of several small images, or of pieces of a large one. */
static void KERNEL(pointwise_grad_weight)(const osw_pointwise *p, const osw_pointwise_block *block)
{
    const int64_t pieces = osw_ceil(p->pixels, DEPTH);
    const int64_t piece = osw_round_up(osw_ceil(p->pixels, pieces), pieces > 1 ? VLANES : 1);
    const int64_t images = osw_max_int(DEPTH / p->pixels, 1);
    const int64_t end = block->image_end;
    bool adds = false;
    if (block->first == 0 && p->grad_bias)
        LOCAL(grad_bias)(p, block);
    if (!p->grad_weight)
        return;
    ELEMENT *grad_weight = (ELEMENT *)p->grad_weight + block->part * p->out_planes * p->in_planes;
    for (int64_t n = block->image_begin; n < end; n += images)
        for (int64_t begin = 0; begin < p->pixels; begin += piece) {
            const LOCAL(pass) pass = {n, osw_min_int(images, end - n), begin,
                                      osw_min_int(piece, p->pixels - begin)};
            LOCAL(add_pass)(p, &pass, block->first, block->last, adds, grad_weight);
            adds = true;
        }
}
