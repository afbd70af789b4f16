/* SPDX-License-Identifier: MIT */
#include "core/half.h"
#include "dropout/dropout.h"
#include "dropout/twister.h"

#include <string.h>

static uint32_t twist(uint32_t word, uint32_t following, uint32_t ahead)
{
    const uint32_t mixed = (word & OSW_TWISTER_UPPER) | (following & OSW_TWISTER_LOWER);
    return ahead ^ (mixed >> 1) ^ (following & 1 ? OSW_TWISTER_MATRIX : 0);
}

static void refill(osw_twister *twister)
{
    enum { WORDS = OSW_TWISTER_WORDS, SHIFT = OSW_TWISTER_SHIFT };
    uint32_t *words = twister->words;
    int i = 0;
    for (; i < WORDS - SHIFT; i++)
        words[i] = twist(words[i], words[i + 1], words[i + SHIFT]);
    for (; i < WORDS - 1; i++)
        words[i] = twist(words[i], words[i + 1], words[i + SHIFT - WORDS]);
    words[i] = twist(words[i], words[0], words[SHIFT - 1]);
    twister->next = 0;
}

static uint32_t next_word(osw_twister *twister)
{
    if (twister->next == OSW_TWISTER_WORDS)
        refill(twister);
    uint32_t word = twister->words[twister->next++];
    word ^= word >> 11;
    word ^= (word << 7) & OSW_TEMPER_7;
    word ^= (word << 15) & OSW_TEMPER_15;
    return word ^ (word >> 18);
}

static void draw_bits(osw_twister *twister, uint64_t threshold, uint8_t *mask, int64_t count)
{
    memset(mask, 0, (size_t)((count + 7) / 8));
    for (int64_t i = 0; i < count; i++) {
        const uint64_t upper = next_word(twister) & OSW_DRAW_UPPER;
        const uint64_t number = (upper << 32) | next_word(twister);
        mask[i / 8] |= (uint8_t)((number < threshold) << (i % 8));
    }
}

#define APPLY(dtype, element, value, load, store)                                                  \
    static void apply_##dtype(const void *input, const uint8_t *mask, double scale, void *output,  \
                              int64_t begin, int64_t end)                                          \
    {                                                                                              \
        const element *x = input;                                                                  \
        element *y = output;                                                                       \
        for (int64_t i = begin; i < end; i++) {                                                    \
            const value factor = (mask[i / 8] >> (i % 8)) & 1 ? (value)scale : 0;                  \
            y[i] = store((value)load(x[i]) * factor);                                              \
        }                                                                                          \
    }

#define SAME(x) (x)
APPLY(f32, float, float, SAME, SAME)
APPLY(f64, double, double, SAME, SAME)
APPLY(bf16, uint16_t, float, osw_float_of_bf16, osw_bf16_of_float)
APPLY(f16, uint16_t, float, osw_float_of_f16, osw_f16_of_float)

#define FILL(type, operation, dtype) table->operation##_##dtype = operation##_##dtype;

void osw_dropout_fill__scalar(osw_dropout_table *table)
{
    OSW_DROPOUT_VARIANTS(FILL)
}
