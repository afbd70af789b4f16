/* SPDX-License-Identifier: MIT */
#include "depthwise/depthwise.h"

#include "core/ints.h"

#include <string.h>

/* Output pixels of a chunk: MOST bounds the rounding of its sums, FEWEST what their storage costs,
 * SPREAD is the number of chunks wanted before they grow. */
enum { MOST_PIXELS = 1024, FEWEST_PIXELS = 256, SPREAD = 8 };

osw_depthwise_fn *osw_depthwise_table[OSW_DEPTHWISE_COUNT];

OSW_DEFINE_SELECT(osw_depthwise_select, osw_depthwise_fn **, osw_depthwise_table,
                  OSW_FILLS(osw_depthwise_fill))

bool osw_depthwise_leads(osw_isa isa)
{
    return isa == OSW_ISA_AVX2 || isa == OSW_ISA_AVX512;
}

osw_depthwise_chunks osw_depthwise_cut(const osw_depthwise *d)
{
    const int64_t pixels = d->out_height * d->out_width;
    if (pixels > MOST_PIXELS) {
        const int64_t parts = osw_min_int(osw_ceil(pixels, MOST_PIXELS), d->out_height);
        return (osw_depthwise_chunks){1, parts, d->batch * parts};
    }
    const int64_t fitting = osw_ceil(FEWEST_PIXELS, pixels);
    const int64_t images = osw_min_int(fitting, osw_ceil(d->batch, SPREAD));
    return (osw_depthwise_chunks){images, 1, osw_ceil(d->batch, images)};
}

int64_t osw_depthwise_first_row(const osw_depthwise *d, const osw_depthwise_chunks *chunks,
                                int64_t i, int64_t height)
{
    const int64_t image = osw_min_int(i / chunks->parts * chunks->images, d->batch);
    return image * height + i % chunks->parts * height / chunks->parts;
}

#define FLOATS OSW_EACH_F32 + OSW_EACH_F64 + OSW_EACH_BF16 + OSW_EACH_F16
#define EACH   "depthwise/arrange.h"
#include "core/each_float.h"

void osw_depthwise_pack(const osw_depthwise *d, osw_dtype dtype, const void *weight,
                        const void *bias, void *taps)
{
    static void (*const packs[])(const osw_depthwise *, const void *, const void *,
                                 void *) = {pack_f32, pack_f64, pack_bf16, pack_f16};
    packs[dtype](d, weight, bias, taps);
}

void osw_depthwise_finish(const osw_depthwise *d, osw_dtype dtype, int64_t count, const void *sums,
                          double *totals, void *grad_weight, void *grad_bias)
{
    static void (*const finishes[])(const osw_depthwise *, int64_t, const void *, double *, void *,
                                    void *) = {finish_f32, finish_f64, finish_bf16, finish_f16};
    finishes[dtype](d, count, sums, totals, grad_weight, grad_bias);
}
