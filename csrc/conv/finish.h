/* SPDX-License-Identifier: MIT */
/* From the sums of the parts to the gradients; included once per dtype. */
#include "conv/conv.h"

#include <stdint.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

static void LOCAL(add_parts)(int64_t parts, int64_t length, ELEMENT *sums)
{
    for (int64_t p = 1; p < parts; p++) {
        const ELEMENT *restrict from = sums + p * length;
        ELEMENT *restrict to = sums;
        for (int64_t i = 0; i < length; i++)
            to[i] += from[i];
    }
}

void LOCAL(
    osw_conv_finish)(const osw_conv *conv, ELEMENT *sums, bool taps_last, ELEMENT *grad_weight,
                     ELEMENT *grad_bias)
{
    const int64_t outputs = conv->outputs, channels = conv->channels;
    const int64_t taps = conv->rows.taps * conv->columns.taps, count = osw_conv_weights(conv);
    const int64_t from_output = conv->crossed ? 1 : taps * channels;
    const int64_t from_tap = conv->crossed ? channels * outputs : channels;
    const int64_t from_channel = conv->crossed ? outputs : 1;
    const int64_t to_tap = taps_last ? 1 : channels, to_channel = taps_last ? taps : 1;
    LOCAL(add_parts)(conv->parts, count + outputs, sums);
    if (grad_bias)
        memcpy(grad_bias, sums + count, (size_t)outputs * sizeof *grad_bias);
    if (!conv->crossed && (!taps_last || taps == 1)) {
        memcpy(grad_weight, sums, (size_t)count * sizeof *grad_weight);
        return;
    }
    for (int64_t o = 0; o < outputs; o++)
        for (int64_t t = 0; t < taps; t++)
            for (int64_t c = 0; c < channels; c++)
                grad_weight[(o * channels * taps) + t * to_tap + c * to_channel] =
                    sums[o * from_output + t * from_tap + c * from_channel];
}
