/* SPDX-License-Identifier: MIT */
/* The kernels of one dtype in plain C; included once per dtype by pointwise_scalar.c. */
#include "core/ints.h"
#include "pointwise/pointwise.h"

#include <stddef.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* Planes [first, last) of `to` of one image, pixels [begin, end), each the sum of the `terms`
 * planes of `from`, times weight[row * row_step + term * term_step]. */
static void LOCAL(map_image)(const osw_pointwise_block *block, const ELEMENT *x, int64_t x_step,
                             ELEMENT *y, int64_t y_step, int64_t terms, const ELEMENT *weight,
                             int64_t row_step, int64_t term_step, const ELEMENT *bias)
{
    enum { STRIP = 256 };
    for (int64_t begin = block->begin; begin < block->end; begin += STRIP) {
        const int64_t length = osw_min_int(block->end - begin, STRIP);
        for (int64_t row = block->first; row < block->last; row++) {
            VALUE sums[STRIP] = {0};
            for (int64_t t = 0; t < terms; t++) {
                const VALUE factor = weight[row * row_step + t * term_step];
                for (int64_t i = 0; i < length; i++)
                    sums[i] += factor * x[t * x_step + begin + i];
            }
            for (int64_t i = 0; i < length; i++)
                y[row * y_step + begin + i] = bias ? sums[i] + bias[row] : sums[i];
        }
    }
}

static void LOCAL(map)(const osw_pointwise_block *block, const osw_pointwise_images *from,
                       const osw_pointwise_images *to, int64_t terms, const ELEMENT *weight,
                       int64_t row_step, int64_t term_step, const ELEMENT *bias)
{
    for (int64_t n = block->image_begin; n < block->image_end; n++)
        LOCAL(map_image)(block, (const ELEMENT *)from->base + n * from->image_step,
                         from->plane_step, (ELEMENT *)to->base + n * to->image_step, to->plane_step,
                         terms, weight, row_step, term_step, bias);
}

static void KERNEL(pointwise_forward)(const osw_pointwise *p, const osw_pointwise_block *block)
{
    LOCAL(map)(block, &p->input, &p->output, p->in_planes, p->weight, p->in_planes, 1, p->bias);
}

static void KERNEL(pointwise_grad_input)(const osw_pointwise *p, const osw_pointwise_block *block)
{
    LOCAL(map)(block, &p->grad_output, &p->grad_input, p->out_planes, p->weight, 1, p->in_planes,
               NULL);
}

/* Several sums side by side, so that the compiler may use vectors without changing any order;
 * x == NULL: of dy alone. */
static VALUE LOCAL(sum)(const ELEMENT *restrict dy, const ELEMENT *restrict x, int64_t count)
{
    enum { SUMS = 8 };
    VALUE sums[SUMS] = {0}, total = 0;
    int64_t i = 0;
    for (; i + SUMS <= count; i += SUMS)
        for (int j = 0; j < SUMS; j++)
            sums[j] += x ? dy[i + j] * x[i + j] : dy[i + j];
    for (; i < count; i++)
        total += x ? dy[i] * x[i] : dy[i];
    for (int j = 0; j < SUMS; j++)
        total += sums[j];
    return total;
}

/* The sum over all pixels of a block: of plane o of grad_output times plane i of the input, or
 * alone if i is negative. */
static VALUE LOCAL(total)(const osw_pointwise *p, const osw_pointwise_block *block, int64_t o,
                          int64_t i)
{
    const osw_pointwise_images *images = &p->grad_output, *inputs = &p->input;
    const ELEMENT *dy = (const ELEMENT *)images->base + o * images->plane_step;
    const ELEMENT *x = i < 0 ? NULL : (const ELEMENT *)inputs->base + i * inputs->plane_step;
    VALUE total = 0;
    for (int64_t n = block->image_begin; n < block->image_end; n++)
        total += LOCAL(sum)(dy + n * images->image_step, x ? x + n * inputs->image_step : NULL,
                            p->pixels);
    return total;
}

static void KERNEL(pointwise_grad_weight)(const osw_pointwise *p, const osw_pointwise_block *block)
{
    ELEMENT *grad_weight = p->grad_weight, *grad_bias = p->grad_bias;
    for (int64_t o = 0; o < p->out_planes; o++) {
        const int64_t row = block->part * p->out_planes + o;
        if (grad_bias && block->first == 0)
            grad_bias[row] = LOCAL(total)(p, block, o, -1);
        for (int64_t i = block->first; grad_weight && i < block->last; i++)
            grad_weight[row * p->in_planes + i] = LOCAL(total)(p, block, o, i);
    }
}
