/* SPDX-License-Identifier: MIT */
/* Names of functions that are made once per dtype (SUFFIX) and once per tier (TIER). Both expand
 * if a name is used, so the macros are defined here once for all files. */
#ifndef OSW_CORE_NAMES_H
#define OSW_CORE_NAMES_H

#define OSW_JOIN_(a, b) a##b
#define OSW_JOIN(a, b)  OSW_JOIN_(a, b)

/* load -> load_f32 */
#define LOCAL(name) OSW_JOIN(name##_, SUFFIX)

/* osw_norm_fill -> osw_norm_fill__avx2 */
#define TIERED(name) OSW_JOIN(name##__, TIER)

/* apply_planes -> osw_apply_planes_f32__avx2 */
#define KERNEL(name) OSW_JOIN(OSW_JOIN(osw_##name##_, SUFFIX), OSW_JOIN(__, TIER))

#endif
