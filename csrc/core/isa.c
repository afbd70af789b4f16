/* SPDX-License-Identifier: MIT */
#include "core/isa.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#    include <cpuid.h>
#endif

enum { MAX_FAMILIES = 16 };

static const char *const names[OSW_ISA_COUNT] = {"scalar",     "neon",       "avx2",      "avx512",
                                                 "portable16", "portable32", "portable64"};
static void (*families[MAX_FAMILIES])(osw_isa);
static int family_count;
static osw_isa current = OSW_ISA_COUNT;
static osw_isa ceiling = OSW_ISA_FIRST_HIDDEN - 1;

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

static bool has(osw_isa isa)
{
    return isa != OSW_ISA_NEON && isa <= supported();
}

#else

static bool has(osw_isa isa)
{
#    if defined(__aarch64__)
    return isa <= OSW_ISA_NEON;
#    else
    return isa == OSW_ISA_SCALAR;
#    endif
}

#endif

/* Hidden tiers are compiled for AVX2 on x86. */
static bool has_hidden(void)
{
#if !defined(OSW_TEST_TIERS)
    return false;
#elif defined(__x86_64__)
    return has(OSW_ISA_AVX2);
#else
    return true;
#endif
}

bool osw_isa_available(osw_isa isa)
{
    const bool capped = ceiling >= OSW_ISA_FIRST_HIDDEN;
    if (isa >= OSW_ISA_FIRST_HIDDEN)
        return has_hidden() && (capped ? isa == ceiling : isa < OSW_ISA_COUNT);
    return isa == OSW_ISA_SCALAR || (!capped && isa <= ceiling && has(isa));
}

osw_isa osw_isa_best(void)
{
    osw_isa isa = ceiling;
    while (!osw_isa_available(isa))
        isa = isa >= OSW_ISA_FIRST_HIDDEN ? OSW_ISA_SCALAR : isa - 1;
    return isa;
}

bool osw_isa_fills(osw_isa tier, osw_isa limit)
{
    if (tier == OSW_ISA_SCALAR || tier == limit)
        return true;
    return limit < OSW_ISA_FIRST_HIDDEN && tier < limit;
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
    while (!osw_isa_available(isa))
        isa = isa >= OSW_ISA_FIRST_HIDDEN ? OSW_ISA_SCALAR : isa - 1;
    current = isa;
    for (int i = 0; i < family_count; i++)
        families[i](current);
}

int osw_isa_register(void (*select)(osw_isa isa))
{
    int i = 0;
    while (i < family_count && families[i] != select)
        i++;
    if (i == MAX_FAMILIES)
        return -1;
    families[i] = select;
    family_count = i < family_count ? family_count : i + 1;
    select(osw_isa_current());
    return 0;
}
