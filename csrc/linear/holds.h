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

/* After osw_linear_plan; `cuts`: the dtype may have several row parts. */
static inline bool osw_linear_holds(const osw_linear *l, bool cuts)
{
    return osw_linear_sizes_hold(l) && l->weight != NULL && l->row_parts >= 1 &&
           (cuts || l->row_parts == 1) && l->part_rows >= 1 &&
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
