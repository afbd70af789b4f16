/* SPDX-License-Identifier: MIT */
/* Whether a call keeps what conv.h says of its numbers; asserted where kernels are called. */
#ifndef OSW_CONV_HOLDS_H
#define OSW_CONV_HOLDS_H

#include "conv/conv.h"

#include <stddef.h>

static inline bool osw_conv_axis_holds(const osw_conv_axis *axis)
{
    const int64_t window = (axis->taps - 1) * axis->dilation + 1;
    return axis->size >= 1 && axis->out_size >= 1 && axis->taps >= 1 &&
           axis->taps <= OSW_CONV_MOST_TAPS && axis->stride >= 1 && axis->padding >= 0 &&
           axis->dilation >= 1 &&
           (axis->out_size - 1) * axis->stride + window <= axis->size + 2 * axis->padding;
}

static inline bool osw_conv_sizes_hold(const osw_conv *conv)
{
    return conv->batch >= 1 && conv->channels >= 1 && conv->outputs >= 1 &&
           osw_conv_axis_holds(&conv->rows) && osw_conv_axis_holds(&conv->columns);
}

static inline bool osw_conv_blocks_hold(const osw_conv *conv)
{
    return conv->block_rows >= 1 && conv->block_columns >= 1 &&
           (conv->row_blocks - 1) * conv->block_rows < conv->rows.out_size &&
           conv->row_blocks * conv->block_rows >= conv->rows.out_size &&
           (conv->column_blocks - 1) * conv->block_columns < conv->columns.out_size &&
           conv->column_blocks * conv->block_columns >= conv->columns.out_size;
}

/* After osw_conv_prepare. */
static inline bool osw_conv_holds(const osw_conv *conv)
{
    return osw_conv_sizes_hold(conv) && conv->input.data != NULL &&
           conv->grad_output.data != NULL && conv->parts >= 1 && osw_conv_blocks_hold(conv);
}

static inline bool osw_conv_forward_axis_holds(const osw_conv_axis *axis)
{
    return axis->size >= 1 && axis->out_size >= 1 && axis->taps >= 1 &&
           axis->taps <= OSW_CONV_MOST_TAPS && axis->stride >= 1 && axis->dilation >= 1;
}

/* After osw_conv_prepare_forward. */
static inline bool osw_conv_forward_holds(const osw_conv *conv)
{
    return conv->batch >= 1 && conv->channels >= 1 && conv->outputs >= 1 &&
           osw_conv_forward_axis_holds(&conv->rows) &&
           osw_conv_forward_axis_holds(&conv->columns) && conv->input.data != NULL &&
           conv->weight.data != NULL && conv->packed != NULL && conv->output.data != NULL &&
           osw_conv_count_terms(&conv->terms) ==
               conv->rows.taps * conv->columns.taps * conv->channels &&
           osw_conv_blocks_hold(conv);
}

/* `count`: blocks, or pieces. */
static inline bool osw_conv_range_holds(const osw_conv_part *part, int64_t count)
{
    return part->block_begin >= 0 && part->block_begin <= part->block_end &&
           part->block_end <= count;
}

static inline bool osw_conv_part_holds(const osw_conv *conv, const osw_conv_part *part)
{
    const bool all = part->out_begin == 0 && part->out_end == conv->outputs;
    return part->block_begin >= 0 && part->block_begin <= part->block_end &&
           part->block_end <= osw_conv_blocks(conv) && part->out_begin >= 0 &&
           part->out_begin <= part->out_end && part->out_end <= conv->outputs &&
           (all || !conv->crossed) && part->weight != NULL;
}

#endif
