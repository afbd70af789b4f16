/* SPDX-License-Identifier: MIT */
/* What the kernels of a tier share whatever the dtype. */
#ifndef OSW_DEPTHWISE_BELOW_H
#define OSW_DEPTHWISE_BELOW_H

#include "core/names.h"
#include "core/simd.h"
#include "depthwise/depthwise.h"

#include <stdbool.h>
#include <stdint.h>

/* The kernels of the tier below, for what `leaves` contains. */
static osw_depthwise_fn *below[OSW_DEPTHWISE_COUNT];

/* Columns from one tap of a row to the next, which rows of a single tap do not have. */
static int64_t columns_apart(const osw_depthwise *d)
{
    return d->wide > 1 ? d->dilation : 1;
}

/* Whether strips go down the columns of the images, each under windows of its own alone: with a
 * window of 5 x 1, 11 values are then read for 7 pixels in place of 35. */
static bool goes_down(const osw_depthwise *d)
{
    return d->wide == 1 && d->stride == 1 && d->left == 0;
}

/* Taps of a window along a strip. */
static int64_t strip_taps(const osw_depthwise *d)
{
    return goes_down(d) ? d->tall : d->wide;
}

#define ID_OF(name) OSW_JOIN(OSW_DEPTHWISE_##name##_, SUFFIX)

#endif
