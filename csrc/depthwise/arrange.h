/* SPDX-License-Identifier: MIT */
/* Weights and biases of one dtype, from torch's order to that of the kernels and back; included
 * once per dtype. */

#include "depthwise/depthwise.h"

#include <stdint.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* taps[t][c] = weight[c][t], and behind them bias[c] if there is one. */
static void LOCAL(pack)(const osw_depthwise *d, const void *weight, const void *bias, void *to)
{
    const int64_t count = d->tall * d->wide, channels = d->channels;
    const ELEMENT *from = weight, *start = bias;
    VALUE *taps = to;
    for (int64_t c = 0; c < channels; c++) {
        for (int64_t t = 0; t < count; t++)
            taps[t * channels + c] = LOAD(from[c * count + t]);
        if (start)
            taps[count * channels + c] = LOAD(start[c]);
    }
}

/* The sums of `count` chunks, added in their order in double: grad_weight[c][t] for t below tall *
 * wide, grad_bias[c] for the last; either may be NULL. totals: room for the sums of one chunk. */
static void LOCAL(finish)(const osw_depthwise *d, int64_t count, const void *chunks, double *totals,
                   void *grad_weight, void *grad_bias)
{
    const int64_t taps = d->tall * d->wide, channels = d->channels, length = (taps + 1) * channels;
    const VALUE *sums = chunks;
    ELEMENT *weight = grad_weight, *bias = grad_bias;
    memset(totals, 0, (size_t)length * sizeof *totals);
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < length; k++)
            totals[k] += sums[i * length + k];
    for (int64_t c = 0; weight && c < channels; c++)
        for (int64_t t = 0; t < taps; t++)
            weight[c * taps + t] = STORE((VALUE)totals[t * channels + c]);
    for (int64_t c = 0; bias && c < channels; c++)
        bias[c] = STORE((VALUE)totals[taps * channels + c]);
}
