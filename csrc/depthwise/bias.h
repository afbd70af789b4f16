/* SPDX-License-Identifier: MIT */
/* Sums for the gradient of the bias; included once per dtype by the kernels of a
 * tier. */
#include "depthwise/depthwise.h"

#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* sums[tall * wide][c] += sum of grad_output[row][j][c] over j, or nothing */
static void LOCAL(add_pixels)(const osw_depthwise *d, int64_t row, ELEMENT *sums)
{
    const int64_t channels = d->channels;
    const ELEMENT *restrict dy = (const ELEMENT *)d->grad_output + row * d->out_width * channels;
    ELEMENT *restrict to = sums + d->tall * d->wide * channels;
    for (int64_t j = 0; d->sums_output && j < d->out_width; j++)
        for (int64_t c = 0; c < channels; c++)
            to[c] += dy[j * channels + c];
}
