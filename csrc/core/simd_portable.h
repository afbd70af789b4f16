/* SPDX-License-Identifier: MIT */
/* The hidden tiers portable16, portable32 and portable64: plain C with vectors of VEC_BYTES (16, 32
 * or 64, by the compiler's command line), for any CPU. Tests run the kernels of a width
 * on machines without it. On x86 they are compiled for AVX2, so that they are not slower still. */
#ifndef OSW_CORE_SIMD_PORTABLE_H
#define OSW_CORE_SIMD_PORTABLE_H

#ifndef VEC_BYTES
#    define VEC_BYTES 32
#endif
#if VEC_BYTES == 64
#    define TIER portable64
#elif VEC_BYTES == 32
#    define TIER portable32
#else
#    define TIER portable16
#endif
#define REGISTERS (VEC_BYTES == 32 ? 16 : 32) /* as avx2, and as neon and avx512 */

#include "core/simd_before.h"

/* No register holds what a loop would be unrolled for. */
#undef OSW_UNROLL
#undef OSW_UNROLL_LONG
#define OSW_UNROLL
#define OSW_UNROLL_LONG

#if defined(__x86_64__)
OSW_TARGET_BEGIN_AVX2
#else
OSW_TARGET_BEGIN_BASELINE
#endif
#ifdef OSW_CONTRACT
OSW_TARGET_CONTRACT
#endif

#include "core/simd.h"
#ifdef OSW_KERNELS
#    include OSW_KERNELS
#endif

OSW_TARGET_END

#endif
