/* SPDX-License-Identifier: MIT */
/* All plain-C kernels of one dtype; included once a dtype by pool_scalar.c with SUFFIX, ELEMENT,
 * VALUE, LOAD, STORE, LOWEST and one of FLOATING, AVERAGED and neither defined. ROUND is the value
 * that memory would hold. */

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c)  JOIN_(a, b, c)
#define LOCAL(name)    JOIN(name, _, SUFFIX)
#define KERNEL(name)   JOIN(JOIN(osw_, name, _), SUFFIX, __scalar)
#define ROUND(value)   LOAD(STORE(value))
#define IS_NAN(value)  ((value) != (value))
#if AVERAGED
#    define DIVIDE(a, b) osw_divide_i64(a, b)
#else
#    define DIVIDE(a, b) ((a) / (b))
#endif

#include "pool/scalar/max.h"
#if FLOATING || AVERAGED
#    include "pool/scalar/gradient_rows.h"
#endif
#if FLOATING
#    include "pool/scalar/adaptive_max.h"
#    include "pool/scatter.h"

#    include "pool/scalar/max_backward.h"
#endif
#if FLOATING || AVERAGED
#    include "pool/scalar/avg.h"
#endif

#undef JOIN_
#undef JOIN
#undef LOCAL
#undef KERNEL
#undef ROUND
#undef IS_NAN
#undef DIVIDE
#undef SUFFIX
#undef ELEMENT
#undef VALUE
#undef LOAD
#undef STORE
#undef LOWEST
#undef FLOATING
#undef AVERAGED
