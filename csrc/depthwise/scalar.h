/* SPDX-License-Identifier: MIT */
/* Plain loops for one dtype; included once per dtype. */
#include "core/names.h"
#include "depthwise/depthwise.h"

#include <stdint.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* The place of the input under tap t of the window of pixel j of an output row, or -1: outside. */
static int64_t LOCAL(under)(const osw_depthwise *d, int64_t row, int64_t j, int64_t t)
{
    const int64_t n = row / d->out_height, r = t / d->wide, s = t % d->wide;
    const int64_t y = row % d->out_height * d->stride + r * d->dilation - d->top;
    const int64_t x = j * d->stride + s * d->dilation - d->left;
    if (y < 0 || y >= d->height || x < 0 || x >= d->width)
        return -1;
    return ((n * d->height + y) * d->width + x) * d->channels;
}

static void
KERNEL(depthwise_forward)(const osw_depthwise *d, int64_t begin, int64_t end, void *sums)
{
    (void)sums;
    const int64_t channels = d->channels;
    const ELEMENT *input = d->input;
    const VALUE *taps = d->taps, *bias = d->bias;
    ELEMENT *output = d->output;
    for (int64_t i = begin * d->out_width; i < end * d->out_width; i++) {
        for (int64_t c = 0; c < channels; c++) {
            VALUE sum = bias ? bias[c] : 0;
            for (int64_t t = 0; t < d->tall * d->wide; t++) {
                const int64_t x = LOCAL(under)(d, i / d->out_width, i % d->out_width, t);
                if (x >= 0)
                    sum += LOAD(input[x + c]) * taps[t * channels + c];
            }
            output[i * channels + c] = STORE(sum);
        }
    }
}

static void
KERNEL(depthwise_grad_weight)(const osw_depthwise *d, int64_t begin, int64_t end, void *sums)
{
    const int64_t channels = d->channels, count = d->tall * d->wide;
    const ELEMENT *input = d->input, *grad_output = d->grad_output;
    VALUE *to = sums;
    memset(to, 0, (size_t)((count + 1) * channels) * sizeof *to);
    for (int64_t i = begin * d->out_width; i < end * d->out_width; i++) {
        const ELEMENT *dy = grad_output + i * channels;
        for (int64_t t = 0; t < count; t++) {
            const int64_t x = LOCAL(under)(d, i / d->out_width, i % d->out_width, t);
            for (int64_t c = 0; x >= 0 && c < channels; c++)
                to[t * channels + c] += LOAD(input[x + c]) * LOAD(dy[c]);
        }
        for (int64_t c = 0; d->sums_output && c < channels; c++)
            to[count * channels + c] += LOAD(dy[c]);
    }
}

/* The output pixel whose window has its tap at `place` of a padded row or column of the input, or
 * -1: none. */
static int64_t LOCAL(reached)(int64_t place, int64_t stride, int64_t count)
{
    return place >= 0 && place % stride == 0 && place / stride < count ? place / stride : -1;
}

static void
KERNEL(depthwise_grad_input)(const osw_depthwise *d, int64_t begin, int64_t end, void *sums)
{
    (void)sums;
    const int64_t channels = d->channels;
    const ELEMENT *grad_output = d->grad_output;
    const VALUE *taps = d->taps;
    ELEMENT *grad_input = d->grad_input;
    for (int64_t k = begin * d->width; k < end * d->width; k++) {
        const int64_t n = k / d->width / d->height, y = k / d->width % d->height + d->top;
        const int64_t x = k % d->width + d->left;
        for (int64_t c = 0; c < channels; c++) {
            VALUE sum = 0;
            for (int64_t t = 0; t < d->tall * d->wide; t++) {
                const int64_t r = t / d->wide * d->dilation, s = t % d->wide * d->dilation;
                const int64_t i = LOCAL(reached)(y - r, d->stride, d->out_height);
                const int64_t j = LOCAL(reached)(x - s, d->stride, d->out_width);
                const int64_t pixel = (n * d->out_height + i) * d->out_width + j;
                if (i >= 0 && j >= 0)
                    sum += LOAD(grad_output[pixel * channels + c]) * taps[t * channels + c];
            }
            grad_input[k * channels + c] = STORE(sum);
        }
    }
}
