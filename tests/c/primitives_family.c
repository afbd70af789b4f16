/* SPDX-License-Identifier: MIT */
/* The functions of core/simd.h of a tier against their portable bodies, on random and worst-case
 * input. */
#include "driver.h"
#include "primitives.h"

#include <stdio.h>
#include <string.h>

/* Bits of floats, doubles and half floats that are zero, subnormal, infinite, NaN or ties between
 * two numbers of a narrower type, among random ones. */
static void draw_input(osw_input *input)
{
    static const uint32_t words[] = {0,          0x80000000, 0x3f800000, 0xbf800000, 0x7f800000,
                                     0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001, 0x7fffffff,
                                     1,          0x80000001, 0x7f7fffff, 0x3f808000, 0x3f818000,
                                     0x3f807fff, 0x477ff000, 0x477fefff, 0x38800000, 0x387fffff,
                                     0x33000000, 0x33000001, 0x3f801000, 0x3f803000, 0x80008000,
                                     0x7fff7fff, 0x7c007c00, 0xfc00fc00, 0x7e007c01, 0x80017fff};
    for (size_t i = 0; i < INPUT_BYTES; i += 4) {
        uint32_t word = driver_draw();
        if (driver_draw() % 3 == 0)
            word = words[driver_draw() % (sizeof words / sizeof *words)];
        if (driver_draw() % 8 == 0 && i >= 64)
            memcpy(&word, input->bits + i - 64, 4); /* equal lanes of two vectors */
        memcpy(input->bits + i, &word, 4);
    }
    for (size_t i = 0; i < INPUT_BYTES / 4; i++)
        input->whole[i] = (float)(int)(driver_draw() % 2001) - 1000;
    for (size_t i = 0; i < INPUT_BYTES / 8; i++)
        input->whole_64[i] = (double)(int)(driver_draw() % 2001) - 1000;
}

static void print_bytes(const char *label, const uint8_t *bytes, size_t count)
{
    printf("  %s", label);
    for (size_t i = 0; i < count; i++)
        printf("%s%02x", i % 4 ? "" : " ", bytes[i]);
    printf("\n");
}

/* Names the first function whose results differ. */
static int compare(const char *tier, const osw_log *log, const osw_log *portable)
{
    size_t start = 0;
    for (size_t i = 0; i < log->count; i++) {
        const size_t count = log->end[i] - start;
        if (memcmp(log->bytes + start, portable->bytes + start, count) != 0) {
            printf("%s: %s differs from its portable body\n", tier, log->name[i]);
            print_bytes("tier    ", log->bytes + start, count);
            print_bytes("portable", portable->bytes + start, count);
            return 1;
        }
        start = log->end[i];
    }
    return log->count != portable->count;
}

static void check(driver *d)
{
    static const struct {
        osw_isa isa;
        osw_primitives *tier, *portable;
    } pairs[] = {
#if defined(__x86_64__)
        {OSW_ISA_AVX2, primitives__avx2, primitives__portable32},
        {OSW_ISA_AVX512, primitives__avx512, primitives__portable64},
#elif defined(__aarch64__)
        {OSW_ISA_NEON, primitives__neon, primitives__portable16},
#endif
    };
    static osw_input input;
    static osw_log log, portable;
    const int rounds = d->quick ? 5 : 50;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (pairs[i].isa != d->tier || !pairs[i].tier || !pairs[i].portable)
            continue;
        for (int round = 0; round < rounds; round++) {
            draw_input(&input);
            log.count = portable.count = 0;
            pairs[i].tier(&input, &log);
            pairs[i].portable(&input, &portable);
            d->cases += (int64_t)log.count;
            if (compare(osw_isa_name(d->tier), &log, &portable) != 0) {
                d->failures++;
                return;
            }
        }
    }
}

const driver_family driver_primitives = {.name = "primitives", .check = check};
