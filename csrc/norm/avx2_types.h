/* SPDX-License-Identifier: MIT */
/* All AVX2 kernels of one dtype; included once a dtype by norm_avx2.c with SUFFIX, ELEMENT, LOAD
 * and STORE defined. */

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c)  JOIN_(a, b, c)
#define LOCAL(name)    JOIN(name, _, SUFFIX)
#define KERNEL(name)   JOIN(JOIN(osw_, name, _), SUFFIX, __avx2)
#define ID_OF(name)    JOIN(OSW_NORM_##name, _, SUFFIX)
#define LOAD8          LOCAL(load)
#define STORE8         LOCAL(store_rounded)
#define STREAM8        LOCAL(stream_rounded)
#define VALUE          float

/* One body for each activation, so that no loop asks which it is. */
#define EACH_ACTIVATION(body, mode)                                                                \
    switch (norm->activation) {                                                                    \
    case OSW_RELU:                                                                                 \
        body(norm, part, mode, OSW_RELU);                                                          \
        break;                                                                                     \
    case OSW_RELU6:                                                                                \
        body(norm, part, mode, OSW_RELU6);                                                         \
        break;                                                                                     \
    case OSW_HARDSWISH:                                                                            \
        body(norm, part, mode, OSW_HARDSWISH);                                                     \
        break;                                                                                     \
    default:                                                                                       \
        body(norm, part, mode, OSW_IDENTITY);                                                      \
        break;                                                                                     \
    }

#include "norm/avx2_pixels.h"
#include "norm/avx2_planes.h"

#undef JOIN_
#undef JOIN
#undef LOCAL
#undef KERNEL
#undef ID_OF
#undef LOAD8
#undef STORE8
#undef STREAM8
#undef VALUE
#undef EACH_ACTIVATION
#undef SUFFIX
#undef ELEMENT
