/* SPDX-License-Identifier: MIT */
#include "depthwise/depthwise.h"

#include <string.h>

/* Output pixels of a chunk: MOST bounds the rounding of its sums, FEWEST what their storage costs,
 * SPREAD is the number of chunks wanted before they grow. */
enum { MOST_PIXELS = 1024, FEWEST_PIXELS = 256, SPREAD = 8 };

osw_depthwise_fn *osw_depthwise_table[OSW_DEPTHWISE_COUNT];

void osw_depthwise_select(osw_isa isa)
{
    osw_depthwise_fill__scalar(osw_depthwise_table);
#if defined(__x86_64__)
    if (isa >= OSW_ISA_AVX2)
        osw_depthwise_fill__avx2(osw_depthwise_table);
#else
    (void)isa;
#endif
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

osw_depthwise_chunks osw_depthwise_cut(const osw_depthwise *d)
{
    const int64_t pixels = d->out_height * d->out_width;
    if (pixels > MOST_PIXELS) {
        const int64_t parts = smaller(ceil_div(pixels, MOST_PIXELS), d->out_height);
        return (osw_depthwise_chunks){1, parts, d->batch * parts};
    }
    const int64_t fitting = ceil_div(FEWEST_PIXELS, pixels);
    const int64_t images = smaller(fitting, ceil_div(d->batch, SPREAD));
    return (osw_depthwise_chunks){images, 1, ceil_div(d->batch, images)};
}

int64_t osw_depthwise_first_row(const osw_depthwise *d, const osw_depthwise_chunks *chunks,
                                int64_t i, int64_t height)
{
    const int64_t image = smaller(i / chunks->parts * chunks->images, d->batch);
    return image * height + i % chunks->parts * height / chunks->parts;
}

#define SUFFIX  f32
#define ELEMENT float
#include "depthwise/arrange.h"

#define SUFFIX  f64
#define ELEMENT double
#include "depthwise/arrange.h"
