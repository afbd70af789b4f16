/* SPDX-License-Identifier: MIT */
/* Depthwise convolutions, band by band of rows: what is normalised goes to scratch memory, where
 * the kernels of the family depthwise find it, and what they write is summed while it is in the
 * caches. */
#ifndef OSW_CHAIN_DEPTHWISE_H
#define OSW_CHAIN_DEPTHWISE_H

#include "chain/blocks.h"
#include "chain/chain.h"
#include "core/ints.h"
#include "core/scratch.h"
#include "depthwise/depthwise.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* One image for the kernels of depthwise, of which a band is at hand. */
static osw_depthwise one_image(const osw_chain_stage *s)
{
    return (osw_depthwise){.batch = 1,
                           .channels = s->channels,
                           .height = s->height,
                           .width = s->width,
                           .out_height = s->out_height,
                           .out_width = s->out_width,
                           .tall = s->side,
                           .wide = s->side,
                           .dilation = 1,
                           .stride = s->stride,
                           .top = s->side / 2,
                           .left = s->side / 2,
                           .taps = s->weight};
}

/* The input of the windows of a band, normalised in `room` if that is wanted: row 0 of its image.
 */
static const float *input_band(const osw_chain_stage *s, const osw_chain_band *b, float *room)
{
    const int64_t row = s->width * s->channels;
    const float *image = s->input + b->image * s->height * row;
    if (!s->before)
        return image;
    apply_block(s->before, s->channels, (b->under_end - b->under) * s->width,
                image + b->under * row, room);
    return osw_chain_row_zero(room, b->under, row);
}

static void
TIERED(osw_chain_depthwise_forward)(const osw_chain_stage *s, const osw_chain_part *part)
{
    const int64_t row = s->out_width * s->channels;
    float *const room = osw_scratch_outer(OSW_CHAIN_ROOM);
    osw_depthwise d = one_image(s);
    clear_sums(part, s->channels);
    for (int64_t i = part->begin; i < part->end; i++) {
        const osw_chain_band b = osw_chain_band_at(s, i);
        float *image = s->output + b.image * s->out_height * row;
        const int64_t pixels = (b.bottom - b.top) * s->out_width;
        d.input = input_band(s, &b, room);
        d.output = image;
        osw_depthwise_table[OSW_DEPTHWISE_forward_f32](&d, b.top, b.bottom, NULL);
        if (i == part->begin)
            find_center(s->channels, pixels, image + b.top * row, part);
        moments_block(s->channels, pixels, image + b.top * row, part);
    }
}

static void TIERED(osw_chain_depthwise_folded)(const osw_chain_stage *s, const osw_chain_part *part)
{
    const int64_t row = s->out_width * s->channels;
    osw_depthwise d = one_image(s);
    d.input = s->input;
    d.output = s->output;
    d.bias = s->after->shift;
    osw_depthwise_table[OSW_DEPTHWISE_forward_f32](&d, part->begin, part->end, NULL);
    activate_block(s->output + part->begin * row, (part->end - part->begin) * row,
                   &s->after->activation);
}

/* dz of all outputs whose windows reach the inputs of a band, in `room`: row 0 of its image. */
static const float *gradient_band(const osw_chain_stage *s, const osw_chain_band *b, float *room)
{
    const int64_t row = s->out_width * s->channels;
    const int64_t from = (b->image * s->out_height + b->over) * row;
    gradient_block(s->after, s->channels, (b->over_end - b->over) * s->out_width, s->output + from,
                   s->grad + from, room);
    return osw_chain_row_zero(room, b->over, row);
}

/* The gradient of the weight of a band, added. */
static void add_weights(const osw_chain_stage *s, const osw_depthwise *d, const osw_chain_band *b,
                        float *weights)
{
    float *const sums = osw_scratch_inner(OSW_SCRATCH_INNER);
    const int64_t count = osw_chain_weights(s);
    osw_depthwise_table[OSW_DEPTHWISE_grad_weight_f32](d, b->top, b->bottom, sums);
    for (int64_t k = 0; k < count; k++)
        weights[k] += sums[k];
}

static void
TIERED(osw_chain_depthwise_backward)(const osw_chain_stage *s, const osw_chain_part *part)
{
    const int64_t channels = s->channels, row = s->width * channels;
    const bool sums = s->grad_input && s->before;
    osw_depthwise d = one_image(s);
    memset(part->weights, 0, (size_t)osw_chain_weights(s) * sizeof(float));
    if (sums)
        clear_sums(part, channels);
    for (int64_t i = part->begin; i < part->end; i++) {
        const osw_chain_band b = osw_chain_band_at(s, i);
        float *const dz = osw_scratch_outer(OSW_CHAIN_ROOM);
        d.grad_output = gradient_band(s, &b, dz);
        d.input = input_band(s, &b, dz + (b.over_end - b.over) * s->out_width * channels);
        add_weights(s, &d, &b, part->weights);
        if (!s->grad_input)
            continue;
        float *const image = s->grad_input + b.image * s->height * row;
        d.grad_input = image;
        osw_depthwise_table[OSW_DEPTHWISE_grad_input_f32](&d, b.in_top, b.in_bottom, NULL);
        if (sums)
            reduce_block(s->before, channels, (b.in_bottom - b.in_top) * s->width,
                         s->input + b.image * s->height * row + b.in_top * row,
                         image + b.in_top * row, part);
    }
}

#endif
