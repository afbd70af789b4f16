/* SPDX-License-Identifier: MIT */
/* Whether a call keeps what linear.h says of its numbers; asserted when kernels are called. */
#ifndef OSW_LINEAR_HOLDS_H
#define OSW_LINEAR_HOLDS_H

#include "linear/linear.h"

#include <stddef.h>

static inline bool osw_linear_sizes_hold(const osw_linear *l)
{
    bool holds = l->rows >= 1 && l->groups >= 1 && l->in_features >= 1 && l->first[0] == 0;
    for (int64_t g = 0; holds && g < l->groups; g++)
        holds = l->first[g] <= l->first[g + 1];
    return holds;
}

/* Images of whole lines, of one group and of `wide` elements; those of grad_input do not overlap.
 * The pixels of planes lie one after another. */
static inline bool osw_linear_lines_hold(const osw_linear *l, bool wide)
{
    const osw_linear_lines *lines = &l->lines;
    if (lines->rows == 0)
        return !l->planes;
    const int64_t row = l->grad_input.row_step, line = l->grad_input_steps.line;
    const bool apart = row >= l->in_features && line >= (lines->rows - 1) * row + l->in_features &&
                       l->grad_input_steps.image >=
                           (lines->count - 1) * line + (lines->rows - 1) * row + l->in_features;
    const bool planes = !l->planes || l->input.row_step == 1;
    return wide && planes && l->groups == 1 && lines->rows > 0 && lines->count > 0 &&
           l->rows % (lines->rows * lines->count) == 0 && (!l->grad_input.base || apart);
}

/* After osw_linear_plan; `cuts`: the dtype may have several row parts. */
static inline bool osw_linear_holds(const osw_linear *l, bool cuts)
{
    return osw_linear_sizes_hold(l) && l->weight != NULL && l->row_parts >= 1 &&
           (cuts || l->row_parts == 1) && l->part_rows >= 1 && osw_linear_lines_hold(l, cuts) &&
           (l->row_parts - 1) * l->part_rows < l->rows && l->row_parts * l->part_rows >= l->rows;
}

/* `total`: rows, or features, that the blocks cut. */
static inline bool osw_linear_block_holds(const osw_linear *l, const osw_linear_block *b,
                                          int64_t total)
{
    return b->group_begin >= 0 && b->group_begin <= b->group_end && b->group_end <= l->groups &&
           b->begin >= 0 && b->begin <= b->end && b->end <= total && b->row_part >= 0 &&
           b->row_part < l->row_parts;
}

#endif
