/* SPDX-License-Identifier: MIT */
#include "batch/batch.h"
#include "core/half.h"

#include <string.h>

#define TIER scalar

static float normalized(const osw_batch_factors *f, int64_t channel, float x)
{
    return (x * f->scale - f->mean[channel]) / f->std[channel];
}

#define EACH   "batch/scalar.inc"
#define FLOATS OSW_EACH_F32 + OSW_EACH_BF16 + OSW_EACH_F16
#include "core/each_float.h"

#define MOVE_PLANES(suffix, type)                                                                  \
    static void osw_move_planes_##suffix##__scalar(const osw_batch_factors *f, const void *from,   \
                                                   void *to, int64_t pixels, int64_t step)         \
    {                                                                                              \
        const type *x = from;                                                                      \
        type *y = to;                                                                              \
        for (int64_t c = 0; c < f->channels; c++)                                                  \
            for (int64_t i = 0; i < pixels; i++)                                                   \
                y[c * step + i] = x[i * f->channels + c];                                          \
    }

MOVE_PLANES(x8, uint8_t)
MOVE_PLANES(x16, uint16_t)
MOVE_PLANES(x32, uint32_t)

static void osw_move_pixels_x8__scalar(const osw_batch_factors *f, const void *from, void *to,
                                       int64_t pixels, int64_t step)
{
    (void)step;
    memcpy(to, from, (size_t)(pixels * f->channels));
}

static void osw_stream_pixels_x8__scalar(const osw_batch_factors *f, const void *from, void *to,
                                         int64_t pixels, int64_t step)
{
    osw_move_pixels_x8__scalar(f, from, to, pixels, step);
}

#define FILL(operation, dtype)                                                                     \
    table[OSW_BATCH_##operation##_##dtype] = osw_##operation##_##dtype##__scalar;

void osw_batch_fill__scalar(osw_batch_fn **table)
{
    OSW_BATCH_VARIANTS(FILL)
}
