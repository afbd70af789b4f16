/* SPDX-License-Identifier: MIT */
/* Code for one instruction set inside a file that is built for the baseline. Include every header
 * before the region.
 *
 *     OSW_TARGET_BEGIN_AVX2
 *     static void osw_copy__avx2(...) { ... }
 *     OSW_TARGET_END
 */
#ifndef OSW_CORE_TARGET_H
#define OSW_CORE_TARGET_H

#define OSW_PRAGMA(x) _Pragma(#x)

#if defined(__clang__)
#    define OSW_TARGET_BEGIN(features)                                                             \
        OSW_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#    define OSW_TARGET_END OSW_PRAGMA(clang attribute pop)
#else
#    define OSW_TARGET_BEGIN(features) OSW_PRAGMA(GCC push_options) OSW_PRAGMA(GCC target(features))
#    define OSW_TARGET_END             OSW_PRAGMA(GCC pop_options)
#endif

#define OSW_TARGET_BEGIN_AVX2 OSW_TARGET_BEGIN("avx2,fma,f16c,bmi2")

/* Before a loop of constant bounds whose variables belong in registers. */
#if defined(__clang__)
#    define OSW_UNROLL OSW_PRAGMA(clang loop unroll(full))
#else
#    define OSW_UNROLL OSW_PRAGMA(GCC unroll 16)
#endif

#define OSW_INLINE static inline __attribute__((always_inline))

#endif
