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

static void osw_draw_mask__scalar(osw_twister *twister, uint64_t threshold, uint8_t *mask,
                                  int64_t count)
{
    memset(mask, 0, (size_t)((count + 7) / 8));
    for (int64_t i = 0; i < count; i++) {
        const uint64_t upper = next_word(twister) & OSW_DRAW_UPPER;
        const uint64_t number = (upper << 32) | next_word(twister);
        mask[i / 8] |= (uint8_t)((number < threshold) << (i % 8));
    }
}

#define TIER   scalar
#define FLOATS OSW_EACH_F32 + OSW_EACH_F64 + OSW_EACH_BF16 + OSW_EACH_F16
#define EACH   "dropout/scalar.h"
#include "core/each_float.h"

void osw_dropout_fill__scalar(osw_dropout_table *table)
{
    table->draw = osw_draw_mask__scalar;
    table->apply[OSW_F32] = osw_apply_mask_f32__scalar;
    table->apply[OSW_F64] = osw_apply_mask_f64__scalar;
    table->apply[OSW_BF16] = osw_apply_mask_bf16__scalar;
    table->apply[OSW_F16] = osw_apply_mask_f16__scalar;
}
