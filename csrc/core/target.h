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
#    define OSW_TARGET_BEGIN_BASELINE OSW_PRAGMA(clang attribute push)
#    define OSW_TARGET_END            OSW_PRAGMA(clang attribute pop)
#else
#    define OSW_TARGET_BEGIN(features) OSW_PRAGMA(GCC push_options) OSW_PRAGMA(GCC target(features))
#    define OSW_TARGET_BEGIN_BASELINE  OSW_PRAGMA(GCC push_options)
#    define OSW_TARGET_END             OSW_PRAGMA(GCC pop_options)
#endif

#define OSW_TARGET_BEGIN_AVX2 OSW_TARGET_BEGIN("avx2,fma,f16c,bmi2")
#define OSW_TARGET_BEGIN_AVX512                                                                    \
    OSW_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma,f16c,bmi2")

/* Until the end of the region a * b + c may round once: for kernels whose results may round. */
#if defined(__clang__)
#    define OSW_TARGET_CONTRACT OSW_PRAGMA(clang fp contract(fast))
#else
#    define OSW_TARGET_CONTRACT OSW_PRAGMA(GCC optimize("fp-contract=fast"))
#endif

/* Before a loop of constant bounds whose variables belong in registers. */
#if defined(__clang__)
#    define OSW_UNROLL      OSW_PRAGMA(clang loop unroll(full))
#    define OSW_UNROLL_LONG OSW_UNROLL
#else
#    define OSW_UNROLL      OSW_PRAGMA(GCC unroll 16)
#    define OSW_UNROLL_LONG OSW_PRAGMA(GCC unroll 32)
#endif

/* In the body of a loop of few turns, of its counter: gcc makes no vectors of it, whose prologue
 * would cost more than the turns. */
#define OSW_FEW_TURNS(i) __asm__("" : "+r"(i))

/* Before a loop over the lanes of a vector, which is to become one instruction. */
#if defined(__clang__)
#    define OSW_NOT_UNROLLED
#else
#    define OSW_NOT_UNROLLED OSW_PRAGMA(GCC unroll 1)
#endif

#define OSW_INLINE  static inline __attribute__((always_inline))
#define OSW_OUTLINE static __attribute__((noinline))

#endif
