/* SPDX-License-Identifier: MIT */
/* Whether a call keeps what depthwise.h says of its numbers; asserted when kernels are called. */
#ifndef OSW_DEPTHWISE_HOLDS_H
#define OSW_DEPTHWISE_HOLDS_H

#include "depthwise/depthwise.h"

static inline bool osw_depthwise_holds(const osw_depthwise *d)
{
    return d->batch >= 1 && d->channels >= 1 && d->height >= 1 && d->width >= 1 &&
           d->out_height >= 1 && d->out_width >= 1 && osw_depthwise_has_side(d->tall) &&
           osw_depthwise_has_side(d->wide) && d->dilation >= 1 &&
           (d->stride == 1 || (d->stride == 2 && d->dilation == 1)) && d->top >= 0 &&
           d->left >= 0 && d->out_height == osw_depthwise_outputs(d, d->tall, d->height, d->top) &&
           d->out_width == osw_depthwise_outputs(d, d->wide, d->width, d->left);
}

/* Whether a weight may have this dtype beside images of that one. */
static inline bool osw_depthwise_dtypes_hold(osw_dtype images, osw_dtype weight)
{
    return weight == images || (weight == OSW_F32 && osw_dtype_bytes(images) == 2);
}

/* Rows [begin, end) of all images, which are `height` high. */
static inline bool osw_depthwise_rows_hold(const osw_depthwise *d, int64_t begin, int64_t end,
                                           int64_t height)
{
    return begin >= 0 && begin <= end && end <= d->batch * height;
}

#endif
