/* SPDX-License-Identifier: MIT */
/* Plain loops for one dtype; included once per dtype. */
#include "conv/conv.h"
#include "core/names.h"

#include <stdint.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* The input under tap (r, s) of the window of output pixel (i, j), or NULL: outside. */
static const ELEMENT *
LOCAL(under)(const osw_conv *conv, int64_t n, int64_t i, int64_t j, int64_t r,
                            int64_t s)
{
    const osw_conv_axis *rows = &conv->rows, *columns = &conv->columns;
    const int64_t y = i * rows->stride + r * rows->dilation - rows->padding;
    const int64_t x = j * columns->stride + s * columns->dilation - columns->padding;
    if (y < 0 || y >= rows->size || x < 0 || x >= columns->size)
        return NULL;
    return (const ELEMENT *)conv->input.data + n * conv->input.image_step +
           y * conv->input.row_step + x * conv->input.pixel_step;
}

/* [r][s][c][o] */
static void KERNEL(conv_pack)(const osw_conv *conv, const osw_conv_part *part)
{
    const osw_conv_weight *w = &conv->weight;
    const int64_t taps = conv->columns.taps, channels = conv->channels, outputs = conv->outputs;
    for (int64_t i = part->block_begin; i < part->block_end; i++) {
        const osw_conv_piece piece = osw_conv_piece_at(&conv->terms, i);
        for (int64_t d = piece.first; d < piece.first + piece.count; d++)
            for (int64_t o = 0; o < outputs; o++)
                ((ELEMENT *)conv->packed)[d * outputs + o] =
                    ((const ELEMENT *)
                         w->data)[o * w->output + d % channels * w->channel +
                                  d / channels / taps * w->row + d / channels % taps * w->column];
    }
}

static ELEMENT LOCAL(one_output)(const osw_conv *conv, int64_t n, int64_t i, int64_t j, int64_t o)
{
    const ELEMENT *weight = (const ELEMENT *)conv->packed + o;
    ELEMENT sum = conv->bias ? ((const ELEMENT *)conv->bias)[o] : 0;
    for (int64_t r = 0; r < conv->rows.taps; r++)
        for (int64_t s = 0; s < conv->columns.taps; s++) {
            const ELEMENT *x = LOCAL(under)(conv, n, i, j, r, s);
            for (int64_t c = 0; c < conv->channels; c++, weight += conv->outputs)
                if (x)
                    sum += x[c] * *weight;
        }
    return sum;
}

static void KERNEL(conv_forward)(const osw_conv *conv, const osw_conv_part *part)
{
    const osw_conv_output *y = &conv->output;
    for (int64_t b = part->block_begin; b < part->block_end; b++) {
        const osw_conv_block block = osw_conv_block_at(conv, b);
        for (int64_t i = block.top; i < block.bottom; i++)
            for (int64_t j = block.left; j < block.right; j++)
                for (int64_t o = 0; o < conv->outputs; o++)
                    ((ELEMENT *)y->data)[block.image * y->image_step + i * y->row_step +
                                         j * y->pixel_step + o] =
                        LOCAL(one_output)(conv, block.image, i, j, o);
    }
}

/* Adds the products of one output and one tap of a block to those of each channel. */
static void LOCAL(add_tap)(const osw_conv *conv, const osw_conv_block *block, int64_t o, int64_t r,
                    int64_t s, ELEMENT *sums, int64_t step)
{
    const osw_conv_image *dy = &conv->grad_output;
    for (int64_t c = 0; c < conv->channels; c++) {
        ELEMENT sum = 0;
        for (int64_t i = block->top; i < block->bottom; i++)
            for (int64_t j = block->left; j < block->right; j++) {
                const ELEMENT *x = LOCAL(under)(conv, block->image, i, j, r, s);
                if (x)
                    sum += x[c] *
                           ((const ELEMENT *)dy->data)[block->image * dy->image_step +
                                                       i * dy->row_step + j * dy->pixel_step + o];
            }
        sums[c * step] += sum;
    }
}

static ELEMENT LOCAL(total)(const osw_conv *conv, const osw_conv_block *block, int64_t o)
{
    const osw_conv_image *dy = &conv->grad_output;
    const ELEMENT *image = (const ELEMENT *)dy->data + block->image * dy->image_step + o;
    ELEMENT sum = 0;
    for (int64_t i = block->top; i < block->bottom; i++)
        for (int64_t j = block->left; j < block->right; j++)
            sum += image[i * dy->row_step + j * dy->pixel_step];
    return sum;
}

static void KERNEL(conv_grad_weight)(const osw_conv *conv, const osw_conv_part *part)
{
    const int64_t taps = conv->rows.taps * conv->columns.taps;
    for (int64_t o = part->out_begin; o < part->out_end; o++) {
        for (int64_t t = 0; t < taps; t++) {
            const int64_t tap = (conv->crossed ? t * conv->channels * conv->outputs + o
                                               : (o * taps + t) * conv->channels);
            const int64_t step = conv->crossed ? conv->outputs : 1;
            ELEMENT *sums = (ELEMENT *)part->weight + tap;
            for (int64_t c = 0; c < conv->channels; c++)
                sums[c * step] = 0;
            for (int64_t b = part->block_begin; b < part->block_end; b++) {
                const osw_conv_block block = osw_conv_block_at(conv, b);
                LOCAL(
                    add_tap)(conv, &block, o, t / conv->columns.taps, t % conv->columns.taps, sums,
                        step);
            }
        }
        ELEMENT sum = 0;
        for (int64_t b = part->block_begin; part->bias && b < part->block_end; b++) {
            const osw_conv_block block = osw_conv_block_at(conv, b);
            sum += LOCAL(total)(conv, &block, o);
        }
        if (part->bias)
            ((ELEMENT *)part->bias)[o] = sum;
    }
}
