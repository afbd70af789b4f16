/* SPDX-License-Identifier: MIT */
/* What kernels need of vectors and the language cannot express. An ISA header (core/simd_avx2.h and
 * its like) defines a function of its own, and a macro of the same name, if it has a faster one;
 * what it leaves out has its body here, in plain C, which is also what the others are tested
 * against.
 *
 * Suffixes: the type of a lane, or of the elements in memory (bf16 and f16 become f32 lanes). A
 * mask is a vector of integers, as comparison makes it: every lane has all bits set or none. n, the
 * number of lanes in *_first_*, is 0 to the number of lanes; no memory beyond them is touched. */
#ifndef OSW_CORE_SIMD_H
#define OSW_CORE_SIMD_H

#include "core/simd_before.h"
#include "core/simd_lanes.h"
#include "core/simd_memory.h"
#include "core/simd_order.h"

#endif
