/* SPDX-License-Identifier: MIT */
#include "core/half.h"
#include "norm/norm.h"
#include "norm/scalar_smooth.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    LANES = 8,   /* sums of a plane side by side, so that no addition waits for the one before */
    SAMPLES = 8, /* images sampled at most, and positions of each */
    SAMPLE_ROWS = 32, /* rows sampled at most */
};

#define TIER   scalar
#define EACH   "norm/scalar_types.inc"
#define FLOATS OSW_EACH_F32 + OSW_EACH_F64 + OSW_EACH_BF16 + OSW_EACH_F16
#include "core/each_float.h"

#define FILL(operation, form, dtype)                                                               \
    table[OSW_NORM_##operation##_##form##_##dtype] = osw_##operation##_##form##_##dtype##__scalar;

void osw_norm_fill__scalar(osw_norm_fn **table)
{
    OSW_NORM_VARIANTS(FILL)
}
