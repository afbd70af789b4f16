/* SPDX-License-Identifier: MIT */
#include "core/half.h"
#include "pool/indices.h"
#include "pool/pool.h"
#include "pool/window.h"

#include <math.h>
#include <string.h>

#define SUFFIX   f32
#define ELEMENT  float
#define VALUE    float
#define LOAD(x)  (x)
#define STORE(x) (x)
#define LOWEST   -INFINITY
#define FLOATING 1
#define AVERAGED 0
#include "pool/scalar/each.h"

#define SUFFIX   f64
#define ELEMENT  double
#define VALUE    double
#define LOAD(x)  (x)
#define STORE(x) (x)
#define LOWEST   -(double)INFINITY
#define FLOATING 1
#define AVERAGED 0
#include "pool/scalar/each.h"

#define SUFFIX   bf16
#define ELEMENT  uint16_t
#define VALUE    float
#define LOAD(x)  osw_float_of_bf16(x)
#define STORE(x) osw_bf16_of_float(x)
#define LOWEST   -INFINITY
#define FLOATING 1
#define AVERAGED 0
#include "pool/scalar/each.h"

#define SUFFIX   f16
#define ELEMENT  uint16_t
#define VALUE    float
#define LOAD(x)  osw_float_of_f16(x)
#define STORE(x) osw_f16_of_float(x)
#define LOWEST   -INFINITY
#define FLOATING 1
#define AVERAGED 0
#include "pool/scalar/each.h"

#define SUFFIX   u8
#define ELEMENT  uint8_t
#define VALUE    uint8_t
#define LOAD(x)  (x)
#define STORE(x) (x)
#define LOWEST   0
#define FLOATING 0
#define AVERAGED 0
#include "pool/scalar/each.h"

#define SUFFIX   i8
#define ELEMENT  int8_t
#define VALUE    int8_t
#define LOAD(x)  (x)
#define STORE(x) (x)
#define LOWEST   INT8_MIN
#define FLOATING 0
#define AVERAGED 0
#include "pool/scalar/each.h"

#define SUFFIX   i16
#define ELEMENT  int16_t
#define VALUE    int16_t
#define LOAD(x)  (x)
#define STORE(x) (x)
#define LOWEST   INT16_MIN
#define FLOATING 0
#define AVERAGED 0
#include "pool/scalar/each.h"

#define SUFFIX   i32
#define ELEMENT  int32_t
#define VALUE    int32_t
#define LOAD(x)  (x)
#define STORE(x) (x)
#define LOWEST   INT32_MIN
#define FLOATING 0
#define AVERAGED 0
#include "pool/scalar/each.h"

#define SUFFIX   i64
#define ELEMENT  int64_t
#define VALUE    int64_t
#define LOAD(x)  (x)
#define STORE(x) (x)
#define LOWEST   INT64_MIN
#define FLOATING 0
#define AVERAGED 1
#include "pool/scalar/each.h"

#define FILL(operation, form, dtype)                                                               \
    table[OSW_POOL_##operation##_##form##_##dtype] = osw_##operation##_##form##_##dtype##__scalar;

void osw_pool_fill__scalar(osw_pool_fn **table)
{
    OSW_POOL_VARIANTS(FILL)
}
