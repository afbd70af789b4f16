/* SPDX-License-Identifier: MIT */
/* GNU C vectors of VEC_BYTES bytes. Arithmetic, comparison (all bits of a lane set, or none),
 * & | ^ ~, shifts and subscripts are the language's. A header that is compiled alone sees vectors
 * of 32 bytes. */
#ifndef OSW_CORE_SIMD_TYPES_H
#define OSW_CORE_SIMD_TYPES_H

#include <stdint.h>

#ifndef VEC_BYTES
#    define VEC_BYTES 32
#    define TIER      portable32
#    define REGISTERS 16
#endif

#define OSW_VECTOR(bytes) __attribute__((vector_size(bytes)))

typedef float vf32 OSW_VECTOR(VEC_BYTES);
typedef double vf64 OSW_VECTOR(VEC_BYTES);
typedef int8_t vi8 OSW_VECTOR(VEC_BYTES);
typedef int16_t vi16 OSW_VECTOR(VEC_BYTES);
typedef int32_t vi32 OSW_VECTOR(VEC_BYTES);
typedef int64_t vi64 OSW_VECTOR(VEC_BYTES);
typedef uint8_t vu8 OSW_VECTOR(VEC_BYTES);
typedef uint16_t vu16 OSW_VECTOR(VEC_BYTES);
typedef uint32_t vu32 OSW_VECTOR(VEC_BYTES);
typedef uint64_t vu64 OSW_VECTOR(VEC_BYTES);

/* LANES elements of 16 bits and of 8, 2 LANES of 8, LANES / 2 of float. */
typedef uint16_t vu16_half OSW_VECTOR(VEC_BYTES / 2);
typedef uint8_t vu8_quarter OSW_VECTOR(VEC_BYTES / 4);
typedef uint8_t vu8_half OSW_VECTOR(VEC_BYTES / 2);
typedef float vf32_half OSW_VECTOR(VEC_BYTES / 2);

/* As they lie in memory: at any address, of any declared type. */
#define OSW_UNALIGNED __attribute__((aligned(1), may_alias))
typedef vf32 vf32_memory OSW_UNALIGNED;
typedef vf64 vf64_memory OSW_UNALIGNED;
typedef vi32 vi32_memory OSW_UNALIGNED;
typedef vi16 vi16_memory OSW_UNALIGNED;
typedef vu8 vu8_memory OSW_UNALIGNED;
typedef vu16_half vu16_half_memory OSW_UNALIGNED;
typedef vu8_quarter vu8_quarter_memory OSW_UNALIGNED;
typedef vu8_half vu8_half_memory OSW_UNALIGNED;
typedef vf32_half vf32_half_memory OSW_UNALIGNED;

/* Lanes of 32 bits, 64 and 16. */
enum { LANES = VEC_BYTES / 4, LANES_64 = VEC_BYTES / 8, LANES_16 = VEC_BYTES / 2 };

#endif
