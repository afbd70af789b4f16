/* SPDX-License-Identifier: MIT */
/* All plain-C kernels of one dtype; included by pool_scalar.c with the macros of core/each_float.h,
 * LOWEST, DIVIDE and FLOATING. Integers that are AVERAGED have avg, too. */
#ifndef ROUND
#    define ROUND(value)  LOAD(STORE(value)) /* the value that memory would hold */
#    define IS_NAN(value) ((value) != (value))
#endif

#include "pool/scalar/max.h"

#if FLOATING || defined(AVERAGED)
#    include "pool/scalar/gradient_rows.h"

#    include "pool/scalar/avg.h"
#    include "pool/scalar/avg_backward.h"
#endif
#if FLOATING
#    include "pool/scalar/adaptive_max.h"
#    include "pool/scalar/adaptive_max_backward.h"
#    include "pool/scalar/amax.h"
#    include "pool/scalar/amax_backward.h"
#    include "pool/scatter.h"

#    include "pool/scalar/max_backward.h"
#endif
