/* SPDX-License-Identifier: MIT */
/* The C driver: every kernel of every family and tier that this CPU has against the scalar one of
 * the same variant, on random and worst-case input, without Python and torch. tests/driver.py
 * builds it; the families that it has are FAMILIES, a list of X(name), and the tiers TIERS, a
 * string of names. Arguments:
 *
 *     --seed N      of the random numbers; 1
 *     --rounds N    over all cases, each with other numbers; 1
 *     --tier NAME   these tiers alone; may stand several times
 *     --threads N   among which calls are divided; 1 cuts them into parts as well
 *     --quick       fewer sizes
 *     --heap        tensors from malloc, without guards: for tools that watch the heap
 *     --time        measure instead of comparing
 *     --contracts   break the contracts of families, which asserts must notice, in place of all
 * else FAMILY ...    these alone
 *
 * Prints what was run. Exit status: 1 after a difference, which it prints, 2 for wrong arguments, 3
 * after an invalid access or instruction. */
#include "c/driver.h"
#include "c/driver_compare.h"
#include "c/driver_contract.h"
#include "c/driver_rooms.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define X(name) extern const driver_family driver_##name;
FAMILIES
#undef X

#define X(name) &driver_##name,
static const driver_family *const families[] = {FAMILIES};
#undef X
extern const driver_contract driver_core_contract;
enum { FAMILY_COUNT = sizeof families / sizeof *families };

typedef struct options {
    bool tiers[OSW_ISA_COUNT], families[FAMILY_COUNT];
    bool some_tiers, some_families, contracts;
    int rounds;
} options;

static bool choose_family(options *o, const char *name)
{
    for (int i = 0; i < FAMILY_COUNT; i++) {
        if (strcmp(families[i]->name, name) != 0)
            continue;
        o->families[i] = o->some_families = true;
        return true;
    }
    return false;
}

static bool choose_tier(options *o, const char *name)
{
    const osw_isa tier = osw_isa_from_name(name);
    if (tier == OSW_ISA_COUNT)
        return false;
    return o->tiers[tier] = o->some_tiers = true;
}

/* Whether the tier was compiled, the CPU has it, and the arguments ask for it. */
static bool runs(const options *o, osw_isa tier)
{
    const char *name = osw_isa_name(tier), *found = strstr(TIERS, name);
    const char behind = found ? found[strlen(name)] : 'x';
    return (behind == ' ' || behind == '\0') && osw_isa_available(tier) &&
           (o->tiers[tier] || !o->some_tiers);
}

/* One of the arguments that a value follows. */
static bool read_value(driver *d, options *o, const char *name, const char *value)
{
    if (strcmp(name, "--seed") == 0)
        d->seed = strtoull(value, NULL, 10);
    else if (strcmp(name, "--rounds") == 0)
        o->rounds = atoi(value);
    else if (strcmp(name, "--threads") == 0)
        driver_threads = atoi(value);
    else if (strcmp(name, "--tier") == 0)
        return choose_tier(o, value);
    else
        return false;
    return true;
}

static bool read_arguments(driver *d, options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            d->quick = true;
        else if (strcmp(argv[i], "--heap") == 0)
            d->heap = true;
        else if (strcmp(argv[i], "--time") == 0)
            d->timed = true;
        else if (strcmp(argv[i], "--contracts") == 0)
            o->contracts = true;
        else if (argv[i][0] != '-' && choose_family(o, argv[i]))
            continue;
        else if (i + 1 == argc || !read_value(d, o, argv[i], argv[i + 1]))
            return false;
        else
            i++;
    }
    return true;
}

static void *copy_of_table(const driver_family *family, osw_isa tier)
{
    if (!family->select)
        return NULL;
    family->select(tier);
    void *copy = malloc(family->bytes);
    if (!copy)
        abort();
    return memcpy(copy, family->table, family->bytes);
}

static int64_t vector_bytes(osw_isa tier)
{
    static const int64_t bytes[OSW_ISA_COUNT] = {32, 16, 32, 64, 16, 32, 64};
    return bytes[tier];
}

static void check_family(driver *d, const driver_family *family, osw_isa tier, int rounds)
{
    const int64_t failed = d->failures;
    void *table = copy_of_table(family, tier);
    driver_scalar_table = copy_of_table(family, OSW_ISA_SCALAR);
    if (table && tier != OSW_ISA_SCALAR && memcmp(table, driver_scalar_table, family->bytes) == 0) {
        printf("%s %s: the same kernels as scalar\n", family->name, osw_isa_name(tier));
        d->failures++;
    }
    d->family = family;
    d->tier = tier;
    d->vector_bytes = vector_bytes(tier);
    d->table = table;
    d->cases = 0;
    for (int round = 0; round < rounds && d->failures == failed; round++)
        family->check(d);
    driver_give_back(d);
    if (d->failures == failed && !d->timed && d->cases > 0)
        printf("%s %s: %lld cases as expected\n", family->name, osw_isa_name(tier),
               (long long)d->cases);
    fflush(stdout);
    free(table);
    free(driver_scalar_table);
}

static bool check_contracts(const options *o)
{
    bool holds = driver_contract_holds("core", &driver_core_contract);
    for (int i = 0; i < FAMILY_COUNT; i++) {
        const driver_family *family = families[i];
        if (!family->contract || (o->some_families && !o->families[i]))
            continue;
        family->select(OSW_ISA_SCALAR);
        holds &= driver_contract_holds(family->name, family->contract);
    }
    return holds;
}

int main(int argc, char **argv)
{
    static driver d = {.seed = 1};
    static options o = {.rounds = 1};
    if (!read_arguments(&d, &o, argc, argv)) {
        printf("kernels: see the first lines of kernels.c for its arguments\n");
        return 2;
    }
    if (o.contracts)
        return !check_contracts(&o);
    driver_watch(&d);
    driver_seed(d.seed);
    printf("seed %llu, best tier %s\n", (unsigned long long)d.seed, osw_isa_name(osw_isa_best()));
    for (int tier = 0; tier < OSW_ISA_COUNT; tier++) {
        if (!runs(&o, (osw_isa)tier))
            continue;
        for (int i = 0; i < FAMILY_COUNT; i++)
            if (!o.some_families || o.families[i])
                check_family(&d, families[i], (osw_isa)tier, o.rounds);
    }
    return d.failures > 0;
}
