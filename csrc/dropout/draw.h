/* SPDX-License-Identifier: MIT */
/* Bits by the numbers of a Mersenne Twister. */
#ifndef OSW_DROPOUT_DRAW_H
#define OSW_DROPOUT_DRAW_H

#include "core/ints.h"
#include "core/simd.h"
#include "dropout/below.h"
#include "dropout/dropout.h"
#include "dropout/twister.h"

#include <stdint.h>
#include <string.h>

OSW_INLINE vu32 load_words(const uint32_t *words)
{
    return (vu32)load_i32(words);
}

/* The words of one round and after them those of the next, each made of old ones ahead of it and,
 * in the end, of the new ones that begin there. */
static void refill(osw_twister *twister)
{
    enum { WORDS = OSW_TWISTER_WORDS };
    uint32_t rounds[2 * WORDS];
    memcpy(rounds, twister->words, sizeof twister->words);
    for (int i = 0; i < WORDS; i += LANES) {
        const vu32 following = load_words(rounds + i + 1);
        const vu32 mixed =
            (load_words(rounds + i) & OSW_TWISTER_UPPER) | (following & OSW_TWISTER_LOWER);
        const vi32 odd = (vi32)(following << 31) >> 31;
        const vu32 ahead = load_words(rounds + i + OSW_TWISTER_SHIFT);
        const vu32 word = ahead ^ (mixed >> 1) ^ ((vu32)odd & OSW_TWISTER_MATRIX);
        store_i32(rounds + WORDS + i, (vi32)word);
    }
    memcpy(twister->words, rounds + WORDS, sizeof twister->words);
    twister->next = 0;
}

OSW_INLINE vu32 temper(vu32 word)
{
    word ^= word >> 11;
    word ^= (word << 7) & OSW_TEMPER_7;
    word ^= (word << 15) & OSW_TEMPER_15;
    return word ^ (word >> 18);
}

/* LANES_64 bits from LANES words. */
OSW_INLINE uint32_t draw_bits(const uint32_t *words, vi64 threshold)
{
    const vi64 turned = (vi64)swap_pairs_i32((vi32)temper(load_words(words)));
    const vi64 number = turned & (((int64_t)OSW_DRAW_UPPER << 32) | 0xffffffff);
    return bits_i64((vi64)(threshold > number));
}

/* The next `count` words as they are, of this round and the one after it. */
static void take_words(osw_twister *twister, uint32_t *words, int count)
{
    for (int taken = 0; taken < count;) {
        if (twister->next == OSW_TWISTER_WORDS)
            refill(twister);
        const int part = (int)osw_min_int(OSW_TWISTER_WORDS - twister->next, count - taken);
        memcpy(words + taken, twister->words + twister->next, (size_t)part * sizeof *words);
        twister->next += part;
        taken += part;
    }
}

static void
TIERED(osw_draw_mask)(osw_twister *twister, uint64_t threshold, uint8_t *mask, int64_t count)
{
    enum { BYTE_WORDS = 16 };
    const vi64 limit = set1_i64((int64_t)threshold);
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint32_t edge[BYTE_WORDS], bits = 0;
        const uint32_t *words = twister->words + twister->next;
        if (twister->next + BYTE_WORDS <= OSW_TWISTER_WORDS) {
            twister->next += BYTE_WORDS;
        } else {
            take_words(twister, edge, BYTE_WORDS);
            words = edge;
        }
        OSW_UNROLL
        for (int at = 0; at < BYTE_WORDS; at += LANES)
            bits |= draw_bits(words + at, limit) << at / 2;
        mask[i / 8] = (uint8_t)bits;
    }
    if (i < count)
        below.draw(twister, threshold, mask + i / 8, count - i);
}

#endif
