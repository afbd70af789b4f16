/* SPDX-License-Identifier: MIT */
#include "core/isa.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#    include <cpuid.h>
#endif

enum { MAX_FAMILIES = 8 };

static const char *const names[OSW_ISA_COUNT] = {"scalar", "avx2", "avx512"};
static void (*families[MAX_FAMILIES])(osw_isa);
static int family_count;
static osw_isa current = OSW_ISA_COUNT;
static osw_isa ceiling = OSW_ISA_AVX512;

const char *osw_isa_name(osw_isa isa)
{
    assert(isa < OSW_ISA_COUNT);
    return names[isa];
}

osw_isa osw_isa_from_name(const char *name)
{
    int isa = 0;
    while (isa < OSW_ISA_COUNT && strcmp(name, names[isa]) != 0)
        isa++;
    return (osw_isa)isa;
}

#if defined(__x86_64__)

static int has_bits(uint32_t value, uint32_t bits)
{
    return (value & bits) == bits;
}

/* XCR0: the register state that the operating system saves on a context switch. */
static uint32_t xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static osw_isa supported(void)
{
    const uint32_t osxsave = 1u << 27, fma = 1u << 12, f16c = 1u << 29;       /* leaf 1, ecx */
    const uint32_t avx2 = 1u << 5, bmi2 = 1u << 8;                            /* leaf 7, ebx */
    const uint32_t f_dq_cd_bw_vl = 1u << 16 | 1u << 17 | 1u << 28 | 3u << 30; /* leaf 7, ebx */
    const uint32_t ymm_state = 0x06, zmm_state = 0xe6;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has_bits(c, osxsave | fma | f16c))
        return OSW_ISA_SCALAR;
    const uint32_t state = xcr0();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return OSW_ISA_SCALAR;
    if (!has_bits(state, ymm_state) || !has_bits(b, avx2 | bmi2))
        return OSW_ISA_SCALAR;
    return has_bits(state, zmm_state) && has_bits(b, f_dq_cd_bw_vl) ? OSW_ISA_AVX512 : OSW_ISA_AVX2;
}

#else

static osw_isa supported(void)
{
    return OSW_ISA_SCALAR;
}

#endif

osw_isa osw_isa_best(void)
{
    const osw_isa isa = supported();
    return isa < ceiling ? isa : ceiling;
}

void osw_isa_cap(osw_isa isa)
{
    ceiling = isa;
    osw_isa_limit(isa);
}

osw_isa osw_isa_current(void)
{
    if (current == OSW_ISA_COUNT)
        current = osw_isa_best();
    return current;
}

void osw_isa_limit(osw_isa isa)
{
    const osw_isa best = osw_isa_best();
    current = isa < best ? isa : best;
    for (int i = 0; i < family_count; i++)
        families[i](current);
}

void osw_isa_register(void (*select)(osw_isa isa))
{
    int i = 0;
    while (i < family_count && families[i] != select)
        i++;
    assert(i < MAX_FAMILIES);
    families[i] = select;
    family_count = i < family_count ? family_count : i + 1;
    select(osw_isa_current());
}
