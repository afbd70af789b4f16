/* SPDX-License-Identifier: MIT */
/* Plain loops for one dtype; included once per dtype. */
#include "core/half.h"
#include "core/names.h"

#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

static void KERNEL(apply_mask)(const void *input, const uint8_t *mask, double scale, void *output,
                       int64_t begin, int64_t end)
{
    const ELEMENT *x = input;
    ELEMENT *y = output;
    for (int64_t i = begin; i < end; i++) {
        const VALUE factor = (mask[i / 8] >> (i % 8)) & 1 ? (VALUE)scale : 0;
        y[i] = STORE(LOAD(x[i]) * factor);
    }
}
