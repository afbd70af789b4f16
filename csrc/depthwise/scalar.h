/* SPDX-License-Identifier: MIT */
/* Plain loops for one dtype; included once per dtype. */
#include "core/names.h"
#include "depthwise/depthwise.h"

#include <stdint.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

#include "depthwise/bias.h"

/* to[c] += a[c] * b[c] */
static void
LOCAL(add_products)(int64_t channels, const ELEMENT *restrict a, const ELEMENT *restrict b,
                         ELEMENT *restrict to)
{
    for (int64_t c = 0; c < channels; c++)
        to[c] += a[c] * b[c];
}

/* The input under tap (r, s) of the window of pixel j of an output row, or NULL: outside. */
static const ELEMENT *
LOCAL(under)(const osw_depthwise *d, int64_t row, int64_t j, int64_t r, int64_t s)
{
    const int64_t n = row / d->out_height;
    const int64_t y = row % d->out_height * d->stride + r * d->dilation - d->top;
    const int64_t x = j * d->stride + s * d->dilation - d->left;
    if (y < 0 || y >= d->height || x < 0 || x >= d->width)
        return NULL;
    return (const ELEMENT *)d->input + ((n * d->height + y) * d->width + x) * d->channels;
}

static void
KERNEL(depthwise_forward)(const osw_depthwise *d, int64_t begin, int64_t end, void *sums)
{
    (void)sums;
    const size_t bytes = (size_t)d->channels * sizeof(ELEMENT);
    for (int64_t row = begin; row < end; row++) {
        for (int64_t j = 0; j < d->out_width; j++) {
            ELEMENT *y = (ELEMENT *)d->output + (row * d->out_width + j) * d->channels;
            if (d->bias)
                memcpy(y, d->bias, bytes);
            else
                memset(y, 0, bytes);
            for (int64_t t = 0; t < d->tall * d->wide; t++) {
                const ELEMENT *x = LOCAL(under)(d, row, j, t / d->wide, t % d->wide);
                if (x)
                    LOCAL(
                        add_products)(d->channels, x, (const ELEMENT *)d->taps + t * d->channels, y);
            }
        }
    }
}

static void
KERNEL(depthwise_grad_weight)(const osw_depthwise *d, int64_t begin, int64_t end, void *sums)
{
    ELEMENT *to = sums;
    memset(to, 0, (size_t)((d->tall * d->wide + 1) * d->channels) * sizeof *to);
    for (int64_t row = begin; row < end; row++) {
        for (int64_t j = 0; j < d->out_width; j++) {
            const ELEMENT *dy =
                (const ELEMENT *)d->grad_output + (row * d->out_width + j) * d->channels;
            for (int64_t t = 0; t < d->tall * d->wide; t++) {
                const ELEMENT *x = LOCAL(under)(d, row, j, t / d->wide, t % d->wide);
                if (x)
                    LOCAL(add_products)(d->channels, x, dy, to + t * d->channels);
            }
        }
        LOCAL(add_pixels)(d, row, to);
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
    for (int64_t row = begin; row < end; row++) {
        const int64_t n = row / d->height, y = row % d->height + d->top;
        for (int64_t x = 0; x < d->width; x++) {
            ELEMENT *dx = (ELEMENT *)d->grad_input + (row * d->width + x) * d->channels;
            memset(dx, 0, (size_t)d->channels * sizeof *dx);
            for (int64_t t = 0; t < d->tall * d->wide; t++) {
                const int64_t r = t / d->wide * d->dilation, s = t % d->wide * d->dilation;
                const int64_t i = LOCAL(reached)(y - r, d->stride, d->out_height);
                const int64_t j = LOCAL(reached)(x + d->left - s, d->stride, d->out_width);
                if (i < 0 || j < 0)
                    continue;
                const int64_t pixel = (n * d->out_height + i) * d->out_width + j;
                LOCAL(
                    add_products)(d->channels, (const ELEMENT *)d->grad_output + pixel * d->channels,
                             (const ELEMENT *)d->taps + t * d->channels, dx);
            }
        }
    }
}
