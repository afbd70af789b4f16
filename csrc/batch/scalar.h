/* SPDX-License-Identifier: MIT */
/* Template: the textbook kernels that write floats; see core/each_float.h. */
#include "batch/batch.h"
#ifndef SUFFIX
#    include "core/each_float.h"
#endif

#define NORMALIZE(name, type)                                                                      \
    static void KERNEL(normalize_planes_##name)(const osw_batch_factors *f, const void *from,      \
                                                void *to, int64_t pixels, int64_t step)            \
    {                                                                                              \
        const type *x = from;                                                                      \
        ELEMENT *y = to;                                                                           \
        for (int64_t c = 0; c < f->channels; c++)                                                  \
            for (int64_t i = 0; i < pixels; i++)                                                   \
                y[c * step + i] = STORE(normalized(f, c, x[i * f->channels + c]));                 \
    }                                                                                              \
                                                                                                   \
    static void KERNEL(normalize_pixels_##name)(const osw_batch_factors *f, const void *from,      \
                                                void *to, int64_t pixels, int64_t step)            \
    {                                                                                              \
        (void)step;                                                                                \
        const type *x = from;                                                                      \
        ELEMENT *y = to;                                                                           \
        for (int64_t i = 0; i < pixels; i++)                                                       \
            for (int64_t c = 0; c < f->channels; c++)                                              \
                y[i * f->channels + c] = STORE(normalized(f, c, x[i * f->channels + c]));          \
    }

NORMALIZE(u8, uint8_t)
NORMALIZE(float, float)

#undef NORMALIZE
