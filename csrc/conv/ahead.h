/* SPDX-License-Identifier: MIT */
/* The pixels of the next block that tiles ask for. */
#ifndef OSW_CONV_AHEAD_H
#define OSW_CONV_AHEAD_H

#include "conv/conv.h"
#include "core/ahead.h"
#include "core/ints.h"

#include <stdint.h>

enum { LARGE_BYTES = 3 << 19 }; /* of both images, from which on it pays */

/* Elements of both images. */
static inline int64_t elements_of(const osw_conv *conv)
{
    return conv->batch * (conv->rows.size * conv->columns.size * conv->channels +
                          conv->rows.out_size * conv->columns.out_size * conv->outputs);
}

/* Let so many tiles ask for `count` pixels from (n, y, x) on, row after row; of an image with
 * `rows` rows of `columns` columns and `channels` channels. Nothing if these are not neighbours. */
static void add_pixels(osw_pass *pass, const osw_conv *conv, const osw_conv_image *image,
                       int64_t rows, int64_t columns, int64_t channels, int64_t element_bytes,
                       int64_t n, int64_t y, int64_t x, int64_t count, int64_t tiles)
{
    const int64_t pixel = image->pixel_step;
    const int64_t last = conv->batch * rows * columns;
    if (pixel > 2 * channels || image->row_step != columns * pixel ||
        image->image_step != rows * image->row_step)
        return;
    const int64_t from = osw_min_int(osw_max_int((n * rows + y) * columns + x, 0), last);
    const int64_t bytes = osw_min_int(count, last - from) * pixel * element_bytes;
    const char *at = (const char *)image->data + from * pixel * element_bytes;
    add_stream(pass, at, bytes, tiles);
}

#endif
