/* SPDX-License-Identifier: MIT */
/* Instruction-set tiers: what the machine has, which one is in use, who is notified of a change. */
#ifndef OSW_CORE_ISA_H
#define OSW_CORE_ISA_H

#include <stdbool.h>

/* avx2 means AVX2, FMA, F16C and BMI2; avx512 means avx2 and AVX-512 F, BW, DQ, VL and CD; neon is
 * what every AArch64 has. From OSW_ISA_FIRST_HIDDEN on: the same kernels in plain C with vectors of
 * 16, 32 and 64 bytes, for tests; only builds with OSW_TEST_TIERS have them. */
typedef enum osw_isa {
    OSW_ISA_SCALAR,
    OSW_ISA_NEON,
    OSW_ISA_AVX2,
    OSW_ISA_AVX512,
    OSW_ISA_FIRST_HIDDEN,
    OSW_ISA_PORTABLE16 = OSW_ISA_FIRST_HIDDEN,
    OSW_ISA_PORTABLE32,
    OSW_ISA_PORTABLE64,
    OSW_ISA_COUNT
} osw_isa;

/* "scalar", "neon", "avx2", "avx512", "portable16", ... */
const char *osw_isa_name(osw_isa isa);

/* The tier of this name; OSW_ISA_COUNT if there is none. */
osw_isa osw_isa_from_name(const char *name);

/* Whether this build has the tier, the CPU and the operating system support it and osw_isa_cap
 * allows it. */
bool osw_isa_available(osw_isa isa);

/* The highest tier that is available, hidden ones aside unless osw_isa_cap named one. */
osw_isa osw_isa_best(void);

/* From now on no tier above `isa` exists for this process, and no hidden one but `isa`. */
void osw_isa_cap(osw_isa isa);

/* The tier in use. */
osw_isa osw_isa_current(void);

/* Use `isa` or, if it is not available, the highest one below it that is; instead of a hidden tier
 * the scalar one. Every registered family fills its table anew. Needs the lock that guards the
 * tables. A call reads its kernels from a table under that lock, but a kernel may look up another
 * to fall back to while it runs without: every entry is a valid kernel of its operation at any
 * time, so that results stay right, by one tier or the other. */
void osw_isa_limit(osw_isa isa);

/* Whether the kernels of `tier` go into a table for `limit`: of the scalar tier and of every
 * available one up to `limit`; for a hidden limit, of the scalar tier and of that one. Filled from
 * the lowest on, so that what a tier does not overwrite is the tier below it. */
bool osw_isa_fills(osw_isa tier, osw_isa limit);

/* For a family with kernels in every tier: an array of its fill functions by osw_isa, NULL if the
 * build lacks the tier. */
#define OSW_FILLS(fill)                                                                            \
    {[OSW_ISA_SCALAR] = fill##__scalar, OSW_FILLS_NATIVE(fill) OSW_FILLS_HIDDEN(fill)}

/* The same without avx512, for a family whose kernels were measured slower there: a CPU with
 * AVX-512 runs those of avx2. */
#define OSW_FILLS_TO_AVX2(fill)                                                                    \
    {[OSW_ISA_SCALAR] = fill##__scalar, OSW_FILLS_TO_AVX2_NATIVE(fill) OSW_FILLS_HIDDEN(fill)}

#if defined(__x86_64__)
#    define OSW_FILLS_TO_AVX2_NATIVE(fill) [OSW_ISA_AVX2] = fill##__avx2,
#    define OSW_FILLS_NATIVE(fill) OSW_FILLS_TO_AVX2_NATIVE(fill)[OSW_ISA_AVX512] = fill##__avx512,
#elif defined(__aarch64__)
#    define OSW_FILLS_TO_AVX2_NATIVE(fill) [OSW_ISA_NEON] = fill##__neon,
#    define OSW_FILLS_NATIVE(fill)         OSW_FILLS_TO_AVX2_NATIVE(fill)
#else
#    define OSW_FILLS_TO_AVX2_NATIVE(fill)
#    define OSW_FILLS_NATIVE(fill)
#endif
#ifdef OSW_TEST_TIERS
#    define OSW_FILLS_HIDDEN(fill)                                                                 \
        [OSW_ISA_PORTABLE16] = fill##__portable16, [OSW_ISA_PORTABLE32] = fill##__portable32,      \
        [OSW_ISA_PORTABLE64] = fill##__portable64,
#else
#    define OSW_FILLS_HIDDEN(fill)
#endif

/* Defines `void select(osw_isa isa)`, which fills a table, given as `pointer`, by the functions of
 * OSW_FILLS or OSW_FILLS_TO_AVX2, the last argument. */
#define OSW_DEFINE_SELECT(select, pointer, table, ...)                                             \
    void select(osw_isa isa)                                                                       \
    {                                                                                              \
        static void (*const fills[OSW_ISA_COUNT])(pointer) = __VA_ARGS__;                          \
        for (int tier = 0; tier < OSW_ISA_COUNT; tier++)                                           \
            if (fills[tier] && osw_isa_fills((osw_isa)tier, isa))                                  \
                fills[tier](table);                                                                \
    }

/* Declares the functions that OSW_FILLS names. */
#define OSW_DECLARE_FILLS(fill, table)                                                             \
    void fill##__scalar(table);                                                                    \
    void fill##__neon(table);                                                                      \
    void fill##__avx2(table);                                                                      \
    void fill##__avx512(table);                                                                    \
    void fill##__portable16(table);                                                                \
    void fill##__portable32(table);                                                                \
    void fill##__portable64(table)

/* Declares a table of `count` kernels, the functions that OSW_FILLS names, and `select`, which
 * fills the table for a tier: every entry by the scalar file, then each tier up to that one
 * overwrites what it improves. */
#define OSW_DECLARE_TABLE(type, table, count, select, fill)                                        \
    extern type *table[count];                                                                     \
    void select(osw_isa isa);                                                                      \
    OSW_DECLARE_FILLS(fill, type **)

/* `select` fills one family's table for a tier; called now and on every change of tier. A second
 * registration of the same function changes nothing. -1 if there are too many families. */
int osw_isa_register(void (*select)(osw_isa isa));

#endif
