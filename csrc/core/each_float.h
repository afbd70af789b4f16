/* SPDX-License-Identifier: MIT */
/* Includes the header EACH once per dtype of FLOATS, a sum of OSW_EACH_F32, _F64, _BF16 and _F16:
 *
 *     #define EACH   "norm/planes.h"
 *     #define FLOATS OSW_EACH_F32 + OSW_EACH_BF16 + OSW_EACH_F16
 *     #include "core/each_float.h"
 *
 * What EACH sees: SUFFIX for names, ELEMENT in memory, VALUE for arithmetic; LOAD(x) and STORE(x)
 * from one element to a VALUE and back, rounded; in a tier of vectors VECTOR of VLANES values and
 * MASK, what a comparison of two of them gives. Without SUFFIX, as when a template header is
 * compiled alone, this header defines the names for f32 and includes nothing. */
#include "core/half.h"
#include "core/names.h"

#include <stdint.h>

#ifndef OSW_EACH_F32
#    define OSW_EACH_F32  1
#    define OSW_EACH_F64  2
#    define OSW_EACH_BF16 4
#    define OSW_EACH_F16  8
#    define VLANES        (VEC_BYTES / (int)sizeof(VALUE))
#    define OSW_SAME(x)   (x)
/* fma -> fma_f32 or fma_f64: of the type that a dtype is computed in. */
#    define VALUED(name) _Generic((VALUE)0, float: name##_f32, double: name##_f64)
#endif

#if !defined(EACH)
#    define SUFFIX  f32
#    define ELEMENT float
#    define VALUE   float
#    define LOAD    OSW_SAME
#    define STORE   OSW_SAME
#    define VECTOR  vf32
#    define MASK    vi32
#    ifndef TIER
#        define TIER scalar
#    endif
#else

#    if (FLOATS) & OSW_EACH_F32
#        define SUFFIX  f32
#        define ELEMENT float
#        define VALUE   float
#        define LOAD    OSW_SAME
#        define STORE   OSW_SAME
#        define VECTOR  vf32
#        define MASK    vi32
#        include EACH
#        include "core/each_float_end.h"
#    endif

#    if (FLOATS) & OSW_EACH_F64
#        define SUFFIX  f64
#        define ELEMENT double
#        define VALUE   double
#        define LOAD    OSW_SAME
#        define STORE   OSW_SAME
#        define VECTOR  vf64
#        define MASK    vi64
#        include EACH
#        include "core/each_float_end.h"
#    endif

#    if (FLOATS) & OSW_EACH_BF16
#        define SUFFIX  bf16
#        define ELEMENT uint16_t
#        define VALUE   float
#        define LOAD    osw_float_of_bf16
#        define STORE   osw_bf16_of_float
#        define VECTOR  vf32
#        define MASK    vi32
#        include EACH
#        include "core/each_float_end.h"
#    endif

#    if (FLOATS) & OSW_EACH_F16
#        define SUFFIX  f16
#        define ELEMENT uint16_t
#        define VALUE   float
#        define LOAD    osw_float_of_f16
#        define STORE   osw_f16_of_float
#        define VECTOR  vf32
#        define MASK    vi32
#        include EACH
#        include "core/each_float_end.h"
#    endif

#    undef EACH
#endif
