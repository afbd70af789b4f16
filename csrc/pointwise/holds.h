/* SPDX-License-Identifier: MIT */
/* Whether a call keeps what pointwise.h says of its numbers; asserted when kernels are called. */
#ifndef OSW_POINTWISE_HOLDS_H
#define OSW_POINTWISE_HOLDS_H

#include "pointwise/pointwise.h"

#include <stddef.h>

static inline bool osw_pointwise_sizes_hold(const osw_pointwise *p)
{
    return p->images >= 1 && p->pixels >= 1 && p->in_planes >= 1 && p->out_planes >= 1;
}

/* Images that are written do not overlap. */
static inline bool osw_pointwise_are_apart(const osw_pointwise *p,
                                           const osw_pointwise_images *images, int64_t count)
{
    return !images->base || (images->plane_step >= p->pixels &&
                             images->image_step >= (count - 1) * images->plane_step + p->pixels);
}

/* After osw_pointwise_plan. */
static inline bool osw_pointwise_holds(const osw_pointwise *p)
{
    return osw_pointwise_sizes_hold(p) && p->weight != NULL && p->parts >= 1 &&
           p->part_images >= 1 && (p->parts - 1) * p->part_images < p->images &&
           p->parts * p->part_images >= p->images &&
           osw_pointwise_are_apart(p, &p->output, p->out_planes) &&
           osw_pointwise_are_apart(p, &p->grad_input, p->in_planes);
}

/* `count`: planes or columns that the blocks cut. */
static inline bool osw_pointwise_block_holds(const osw_pointwise *p, const osw_pointwise_block *b,
                                             int64_t count)
{
    const bool whole = b->begin == 0 && b->end == p->pixels;
    return b->image_begin >= 0 && b->image_begin < b->image_end && b->image_end <= p->images &&
           (whole || b->image_end - b->image_begin == 1) && b->part >= 0 && b->begin >= 0 &&
           b->begin <= b->end && b->end <= p->pixels && b->first >= 0 && b->first <= b->last &&
           b->last <= count;
}

#endif
