/* SPDX-License-Identifier: MIT */
/* Includes OSW_POOL_KERNELS, a header of AVX2 kernels, once a dtype, with SUFFIX, ELEMENT (in
 * memory), LOAD, STORE, the names of vectors of that dtype, and of its keys (keys.h), defined.
 * No include guard. */

#define JOIN_(a, b, c)       a##b##c
#define JOIN(a, b, c)        JOIN_(a, b, c)
#define LOCAL(name)          JOIN(name, _, SUFFIX)
#define KERNEL(name)         JOIN(JOIN(osw_, name, _), SUFFIX, __avx2)
#define OSW_POOL_ID_OF(name) JOIN(OSW_POOL_##name, _, SUFFIX)
#define VALUE                float
#define LOAD8                LOCAL(load)
#define STORE8               LOCAL(store)
#define ZIP8                 LOCAL(store_zip)
#define ROUND8               LOCAL(round)
#define ROUND_SUM8           LOCAL(round_sum)
#define ROUND_MODERATE8      LOCAL(round_moderate)

#define SUFFIX       f32
#define ELEMENT      float
#define LOAD(x)      (x)
#define STORE(x)     (x)
#define POSITION     int32_t
#define KEY(name)    name##_f32
#define KEY_INFINITY 0
#include OSW_POOL_KERNELS
#undef SUFFIX
#undef ELEMENT
#undef LOAD
#undef STORE
#undef POSITION
#undef KEY
#undef KEY_INFINITY

#define SUFFIX       bf16
#define ELEMENT      uint16_t
#define LOAD(x)      osw_float_of_bf16(x)
#define STORE(x)     osw_bf16_of_float(x)
#define POSITION     uint16_t
#define KEY(name)    name##_16
#define KEY_INFINITY 0x7f80
#include OSW_POOL_KERNELS
#undef SUFFIX
#undef LOAD
#undef STORE
#undef KEY_INFINITY

#define SUFFIX       f16
#define LOAD(x)      _cvtsh_ss(x)
#define STORE(x)     _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)
#define KEY_INFINITY 0x7c00
#include OSW_POOL_KERNELS
#undef SUFFIX
#undef ELEMENT
#undef LOAD
#undef STORE
#undef POSITION
#undef KEY
#undef KEY_INFINITY

#undef JOIN_
#undef JOIN
#undef LOCAL
#undef KERNEL
#undef OSW_POOL_ID_OF
#undef VALUE
#undef LOAD8
#undef STORE8
#undef ROUND8
#undef ZIP8
#undef ROUND_SUM8
#undef ROUND_MODERATE8
#undef OSW_POOL_KERNELS
