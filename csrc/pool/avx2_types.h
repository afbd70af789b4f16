/* SPDX-License-Identifier: MIT */
/* All AVX2 kernels of one dtype; included once a dtype by pool_avx2.c with SUFFIX, ELEMENT, LOAD
 * and STORE defined. */

#define JOIN_(a, b, c)       a##b##c
#define JOIN(a, b, c)        JOIN_(a, b, c)
#define LOCAL(name)          JOIN(name, _, SUFFIX)
#define KERNEL(name)         JOIN(JOIN(osw_, name, _), SUFFIX, __avx2)
#define OSW_POOL_ID_OF(name) JOIN(OSW_POOL_##name, _, SUFFIX)
#define VALUE                float
#define LOAD8                LOCAL(load)
#define STORE8               LOCAL(store)
#define ROUND8               LOCAL(round)

#include "pool/scatter.h"

#include "pool/avx2_direct.h"

#include "pool/avx2_collect.h"
#include "pool/avx2_global.h"

#include "pool/avx2_compact.h"

#include "pool/avx2_pixels.h"
#include "pool/avx2_planes.h"

#undef JOIN_
#undef JOIN
#undef LOCAL
#undef KERNEL
#undef OSW_POOL_ID_OF
#undef VALUE
#undef LOAD8
#undef STORE8
#undef ROUND8
#undef SUFFIX
#undef ELEMENT
#undef LOAD
#undef STORE
