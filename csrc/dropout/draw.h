/* SPDX-License-Identifier: MIT */
#include "core/target.h"
#include "dropout/dropout.h"
#include "dropout/twister.h"

#if defined(__x86_64__)

#    include <immintrin.h>
#    include <string.h>

/* The scalar kernels, for what is left over. */
static osw_dropout_table fallback;

OSW_TARGET_BEGIN_AVX2

#    include "core/avx2_half.h"

OSW_INLINE __m256i load_words(const uint32_t *words)
{
    return _mm256_loadu_si256((const __m256i *)words);
}

/* The words of one round and behind them those of the next, each made of old ones ahead of it and,
 * in the end, of the new ones that begin there. */
static void refill(osw_twister *twister)
{
    enum { WORDS = OSW_TWISTER_WORDS, VECTOR = 8 };
    uint32_t rounds[2 * WORDS];
    memcpy(rounds, twister->words, sizeof twister->words);
    const __m256i top = _mm256_set1_epi32((int)OSW_TWISTER_UPPER);
    for (int i = 0; i < WORDS; i += VECTOR) {
        const __m256i following = load_words(rounds + i + 1);
        const __m256i mixed = _mm256_or_si256(_mm256_and_si256(top, load_words(rounds + i)),
                                              _mm256_andnot_si256(top, following));
        const __m256i odd = _mm256_srai_epi32(_mm256_slli_epi32(following, 31), 31);
        const __m256i matrix = _mm256_and_si256(odd, _mm256_set1_epi32((int)OSW_TWISTER_MATRIX));
        const __m256i ahead = load_words(rounds + i + OSW_TWISTER_SHIFT);
        const __m256i word =
            _mm256_xor_si256(_mm256_xor_si256(ahead, _mm256_srli_epi32(mixed, 1)), matrix);
        _mm256_storeu_si256((__m256i *)(rounds + WORDS + i), word);
    }
    memcpy(twister->words, rounds + WORDS, sizeof twister->words);
    twister->next = 0;
}

OSW_INLINE __m256i temper(__m256i word)
{
    word = _mm256_xor_si256(word, _mm256_srli_epi32(word, 11));
    word = _mm256_xor_si256(
        word, _mm256_and_si256(_mm256_slli_epi32(word, 7), _mm256_set1_epi32((int)OSW_TEMPER_7)));
    word = _mm256_xor_si256(
        word, _mm256_and_si256(_mm256_slli_epi32(word, 15), _mm256_set1_epi32((int)OSW_TEMPER_15)));
    return _mm256_xor_si256(word, _mm256_srli_epi32(word, 18));
}

/* Four bits from eight words. */
OSW_INLINE unsigned draw_4(const uint32_t *words, __m256i threshold)
{
    const __m256i turned = _mm256_shuffle_epi32(temper(load_words(words)), 0xb1);
    const __m256i low_53 = _mm256_set1_epi64x(((int64_t)OSW_DRAW_UPPER << 32) | 0xffffffff);
    const __m256i kept = _mm256_cmpgt_epi64(threshold, _mm256_and_si256(turned, low_53));
    return (unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(kept));
}

/* The next `count` words as they are, of this round and the one after it. */
static void take_words(osw_twister *twister, uint32_t *words, int count)
{
    for (int taken = 0; taken < count;) {
        if (twister->next == OSW_TWISTER_WORDS)
            refill(twister);
        const int left = OSW_TWISTER_WORDS - twister->next;
        const int part = left < count - taken ? left : count - taken;
        memcpy(words + taken, twister->words + twister->next, (size_t)part * sizeof *words);
        twister->next += part;
        taken += part;
    }
}

static void draw_bits(osw_twister *twister, uint64_t threshold, uint8_t *mask, int64_t count)
{
    enum { BYTE_WORDS = 16 };
    const __m256i limit = _mm256_set1_epi64x((int64_t)threshold);
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint32_t edge[BYTE_WORDS];
        const uint32_t *words = twister->words + twister->next;
        if (twister->next + BYTE_WORDS <= OSW_TWISTER_WORDS) {
            twister->next += BYTE_WORDS;
        } else {
            take_words(twister, edge, BYTE_WORDS);
            words = edge;
        }
        mask[i / 8] = (uint8_t)(draw_4(words, limit) | draw_4(words + 8, limit) << 4);
    }
    if (i < count)
        fallback.draw_bits(twister, threshold, mask + i / 8, count - i);
}

/* All ones in the lanes whose bits are set. */
OSW_INLINE __m256 lanes_of(uint8_t bits)
{
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(
        _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), each), each));
}

/* A NaN among products of bfloat16 numbers has an empty lower half, so that nothing is lost. */
OSW_INLINE void store_product_bf16(uint16_t *y, __m256 v)
{
    store_bf16(y, _mm256_castsi256_ps(carry_bf16(v)));
}

#    define APPLY(dtype, element, store)                                                           \
        static void apply_##dtype(const void *input, const uint8_t *mask, double scale,            \
                                  void *output, int64_t begin, int64_t end)                        \
        {                                                                                          \
            const element *x = input;                                                              \
            element *y = output;                                                                   \
            const __m256 factor = _mm256_set1_ps((float)scale);                                    \
            int64_t i = begin;                                                                     \
            for (; i + 8 <= end; i += 8) {                                                         \
                const __m256 kept = _mm256_and_ps(factor, lanes_of(mask[i / 8]));                  \
                store(y + i, _mm256_mul_ps(load_##dtype(x + i), kept));                            \
            }                                                                                      \
            if (i < end)                                                                           \
                fallback.apply_##dtype(input, mask, scale, output, i, end);                        \
        }

APPLY(f32, float, store_f32)
APPLY(bf16, uint16_t, store_product_bf16)
APPLY(f16, uint16_t, store_f16)

OSW_TARGET_END

#    define FILL(operation)                                                                        \
        fallback.operation = table->operation;                                                     \
        table->operation = operation;

void osw_dropout_fill__avx2(osw_dropout_table *table)
{
    FILL(draw_bits)
    FILL(apply_f32)
    FILL(apply_bf16)
    FILL(apply_f16)
}

#endif
