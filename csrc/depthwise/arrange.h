/* SPDX-License-Identifier: MIT */
/* Weights from torch's order to that of the kernels and back; included once per dtype. */

#include "depthwise/depthwise.h"

#include <stdint.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

void LOCAL(osw_depthwise_pack)(const osw_depthwise *d, const ELEMENT *weight, ELEMENT *taps)
{
    const int64_t count = d->tall * d->wide;
    for (int64_t c = 0; c < d->channels; c++)
        for (int64_t t = 0; t < count; t++)
            taps[t * d->channels + c] = weight[c * count + t];
}

void LOCAL(osw_depthwise_finish)(const osw_depthwise *d, int64_t count, const ELEMENT *sums,
                          double *totals, ELEMENT *grad_weight, ELEMENT *grad_bias)
{
    const int64_t taps = d->tall * d->wide, length = (taps + 1) * d->channels;
    memset(totals, 0, (size_t)length * sizeof *totals);
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < length; k++)
            totals[k] += sums[i * length + k];
    for (int64_t c = 0; grad_weight && c < d->channels; c++)
        for (int64_t t = 0; t < taps; t++)
            grad_weight[c * taps + t] = (ELEMENT)totals[t * d->channels + c];
    for (int64_t c = 0; grad_bias && c < d->channels; c++)
        grad_bias[c] = (ELEMENT)totals[taps * d->channels + c];
}
