/* SPDX-License-Identifier: MIT */
/* Every function of core/simd.h on the same input, tier by tier: what it returns goes to a log that
 * is compared with that of the portable tier of the same width. */
#ifndef OSW_TESTS_PRIMITIVES_H
#define OSW_TESTS_PRIMITIVES_H

#include <stddef.h>
#include <stdint.h>

enum { INPUT_BYTES = 2048, LOG_BYTES = 1 << 16, MAX_ENTRIES = 1024 };

/* Results one after another: entry i is named name[i] and ends at end[i]. */
typedef struct osw_log {
    size_t count;
    const char *name[MAX_ENTRIES];
    size_t end[MAX_ENTRIES];
    uint8_t bytes[LOG_BYTES];
} osw_log;

/* `bits`: any bits, of floats of all kinds. `whole`: floats that are small whole numbers, so that
 * sums in any order are the same. */
typedef struct osw_input {
    uint8_t bits[INPUT_BYTES];
    float whole[INPUT_BYTES / 4];
    double whole_64[INPUT_BYTES / 8];
} osw_input;

typedef void osw_primitives(const osw_input *input, osw_log *log);

osw_primitives primitives__avx2, primitives__avx512, primitives__neon;
osw_primitives primitives__portable16, primitives__portable32, primitives__portable64;

#endif
