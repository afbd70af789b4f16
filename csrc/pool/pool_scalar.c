/* SPDX-License-Identifier: MIT */
#include "core/half.h"
#include "pool/indices.h"
#include "pool/pool.h"
#include "pool/window.h"

#include <math.h>
#include <string.h>

#define TIER scalar

#define FLOATING     1
#define LOWEST       (-(VALUE)INFINITY)
#define DIVIDE(a, b) ((a) / (b))
#define EACH         "pool/scalar/each.inc"
#define FLOATS       OSW_EACH_F32 + OSW_EACH_F64 + OSW_EACH_BF16 + OSW_EACH_F16
#include "core/each_float.h"
#undef FLOATING
#undef LOWEST
#undef DIVIDE

#define FLOATING     0
#define DIVIDE(a, b) osw_divide_i64(a, b)
#define LOAD         OSW_SAME
#define STORE        OSW_SAME
#define ELEMENT      VALUE

#define SUFFIX u8
#define VALUE  uint8_t
#define LOWEST 0
#include "pool/scalar/each.inc"
#undef SUFFIX
#undef VALUE
#undef LOWEST

#define SUFFIX i8
#define VALUE  int8_t
#define LOWEST INT8_MIN
#include "pool/scalar/each.inc"
#undef SUFFIX
#undef VALUE
#undef LOWEST

#define SUFFIX i16
#define VALUE  int16_t
#define LOWEST INT16_MIN
#include "pool/scalar/each.inc"
#undef SUFFIX
#undef VALUE
#undef LOWEST

#define SUFFIX i32
#define VALUE  int32_t
#define LOWEST INT32_MIN
#include "pool/scalar/each.inc"
#undef SUFFIX
#undef VALUE
#undef LOWEST

#define AVERAGED
#define SUFFIX i64
#define VALUE  int64_t
#define LOWEST INT64_MIN
#include "pool/scalar/each.inc"

#define FILL(operation, form, dtype)                                                               \
    table[OSW_POOL_##operation##_##form##_##dtype] = osw_##operation##_##form##_##dtype##__scalar;

void osw_pool_fill__scalar(osw_pool_fn **table)
{
    OSW_POOL_VARIANTS(FILL)
}
