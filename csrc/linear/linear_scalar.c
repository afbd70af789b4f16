/* SPDX-License-Identifier: MIT */
#include "core/half.h"
#include "linear/linear.h"

#define SUFFIX   f32
#define ELEMENT  float
#define SUM      float
#define LOAD(x)  (x)
#define STORE(x) (x)
#include "linear/scalar.h"

#define SUFFIX   f64
#define ELEMENT  double
#define SUM      double
#define LOAD(x)  (x)
#define STORE(x) (x)
#include "linear/scalar.h"

#define SUFFIX   bf16
#define ELEMENT  uint16_t
#define SUM      float
#define LOAD(x)  osw_float_of_bf16(x)
#define STORE(x) osw_bf16_of_float(x)
#include "linear/scalar.h"

#define SUFFIX   f16
#define ELEMENT  uint16_t
#define SUM      float
#define LOAD(x)  osw_float_of_f16(x)
#define STORE(x) osw_f16_of_float(x)
#include "linear/scalar.h"

#define FILL(operation, dtype)                                                                     \
    table[OSW_LINEAR_##operation##_##dtype] = osw_linear_##operation##_##dtype##__scalar;

void osw_linear_fill__scalar(osw_linear_fn **table)
{
    OSW_LINEAR_VARIANTS(FILL)
}
