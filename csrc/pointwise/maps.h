/* SPDX-License-Identifier: MIT */
/* forward and grad_input: products of the weight with the planes of an image, which are packed.
 * Included once per dtype. */
#include "core/scratch.h"
#include "core/simd.h"
#include "linear/tiles.h"
#include "pointwise/pointwise.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "linear/product_tiles.h"

#    include "linear/product.h" /* of what product_tiles.h defines */
#endif

/* Planes [first, last) of the images of a block, from its first pixel on. */
static ELEMENT *LOCAL(block_of)(const osw_pointwise_images *images,
                                const osw_pointwise_block *block, int64_t first)
{
    return (ELEMENT *)images->base + block->image_begin * images->image_step +
           first * images->plane_step + block->begin;
}

/* Planes of several images, `count` of each, to or from one matrix, whose rows have all pixels. */
static void LOCAL(join)(const osw_pointwise_images *images, const osw_pointwise_block *block,
                        int64_t first, int64_t count, bool back, ELEMENT *joined)
{
    const int64_t pixels = block->end - block->begin;
    const int64_t width = pixels * (block->image_end - block->image_begin);
    ELEMENT *image = LOCAL(block_of)(images, block, first);
    for (int64_t at = 0; at < width; at += pixels, image += images->image_step)
        for (int64_t c = 0; c < count; c++) {
            ELEMENT *plane = image + c * images->plane_step, *row = joined + c * width + at;
            memcpy(back ? plane : row, back ? row : plane, (size_t)pixels * sizeof *row);
        }
}

/* Write the planes `to` of a block: the factor of the weight that `product` has, times the planes
 * `from`. */
static void LOCAL(multiply_block)(const osw_pointwise_images *from, const osw_pointwise_images *to,
                                  const osw_pointwise_block *block, osw_product product)
{
    const int64_t images = block->image_end - block->image_begin;
    const int64_t width = images * (block->end - block->begin);
    product.rows = block->last - block->first;
    product.columns = width;
    if (images == 1) {
        product.b = LOCAL(block_of)(from, block, 0), product.b_term = from->plane_step;
        product.asks_b = true;
        product.c = LOCAL(block_of)(to, block, block->first), product.c_row = to->plane_step;
        LOCAL(multiply)(&product);
        return;
    }
    ELEMENT *const b =
        osw_scratch_outer((size_t)((product.terms + product.rows) * width) * sizeof(ELEMENT));
    ELEMENT *const c = b + product.terms * width;
    product.b = b, product.b_term = width;
    product.c = c, product.c_row = width;
    LOCAL(join)(from, block, 0, product.terms, false, b);
    LOCAL(multiply)(&product);
    LOCAL(join)(to, block, block->first, product.rows, true, c);
}

static void KERNEL(pointwise_forward)(const osw_pointwise *p, const osw_pointwise_block *block)
{
    const ELEMENT *weight = p->weight, *bias = p->bias;
    LOCAL(multiply_block)(&p->input, &p->output, block,
                          (osw_product){
                              .terms = p->in_planes,
                              .a = weight + block->first * p->in_planes,
                              .a_row = p->in_planes,
                              .a_term = 1,
                              .row_start = bias ? bias + block->first : NULL,
                          });
}

static void KERNEL(pointwise_grad_input)(const osw_pointwise *p, const osw_pointwise_block *block)
{
    LOCAL(multiply_block)(&p->grad_output, &p->grad_input, block,
                          (osw_product){
                              .terms = p->out_planes,
                              .a = (const ELEMENT *)p->weight + block->first,
                              .a_row = 1,
                              .a_term = p->in_planes,
                          });
}
