/* SPDX-License-Identifier: MIT */
/* Instruction-set tiers: what the machine has, which one is in use, who must hear of a change. */
#ifndef OSW_CORE_ISA_H
#define OSW_CORE_ISA_H

/* avx2 means AVX2, FMA, F16C and BMI2; avx512 means avx2 and AVX-512 F, BW, DQ, VL and CD. */
typedef enum osw_isa { OSW_ISA_SCALAR, OSW_ISA_AVX2, OSW_ISA_AVX512, OSW_ISA_COUNT } osw_isa;

/* "scalar", "avx2", "avx512" */
const char *osw_isa_name(osw_isa isa);

/* The tier of this name; OSW_ISA_COUNT if there is none. */
osw_isa osw_isa_from_name(const char *name);

/* The highest tier that the CPU and the operating system support and that osw_isa_cap allows. */
osw_isa osw_isa_best(void);

/* From now on no tier above `isa` exists for this process. */
void osw_isa_cap(osw_isa isa);

/* The tier in use. */
osw_isa osw_isa_current(void);

/* Use the lower of `isa` and osw_isa_best(): every registered family fills its table anew. */
void osw_isa_limit(osw_isa isa);

/* `select` fills one family's table for a tier; called now and on every change of tier. A second
 * registration of the same function changes nothing. */
void osw_isa_register(void (*select)(osw_isa isa));

#endif
