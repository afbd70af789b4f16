/* SPDX-License-Identifier: MIT */
#include "core/half.h"
#include "norm/norm.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    LANES = 8,   /* sums of a plane side by side, so that no addition waits for the one before */
    SAMPLES = 8, /* images sampled at most, and positions of each */
    SAMPLE_ROWS = 32, /* rows sampled at most */
};

#define SUFFIX   f32
#define ELEMENT  float
#define VALUE    float
#define LOAD(x)  (x)
#define STORE(x) (x)
#include "norm/scalar_types.h"

#define SUFFIX   f64
#define ELEMENT  double
#define VALUE    double
#define LOAD(x)  (x)
#define STORE(x) (x)
#include "norm/scalar_types.h"

#define SUFFIX   bf16
#define ELEMENT  uint16_t
#define VALUE    float
#define LOAD(x)  osw_float_of_bf16(x)
#define STORE(x) osw_bf16_of_float(x)
#include "norm/scalar_types.h"

#define SUFFIX   f16
#define ELEMENT  uint16_t
#define VALUE    float
#define LOAD(x)  osw_float_of_f16(x)
#define STORE(x) osw_f16_of_float(x)
#include "norm/scalar_types.h"

#define FILL(operation, form, dtype)                                                               \
    table[OSW_NORM_##operation##_##form##_##dtype] = osw_##operation##_##form##_##dtype##__scalar;

void osw_norm_fill__scalar(osw_norm_fn **table)
{
    OSW_NORM_VARIANTS(FILL)
}
