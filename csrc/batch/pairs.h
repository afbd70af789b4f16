/* SPDX-License-Identifier: MIT */
/* Bytes to bfloat16, two vectors of floats at a time. Only with fused factors; the template in
 * batch/normalize.h does the rest.
 *
 * Vectors of 64 bytes hold the elements in their order, and a shuffle takes the upper halves of
 * both. Measured on Zen 4 in the first cache, per 32 elements: 1.42 ns in order and 1.70 to planes,
 * as pairs 1.66 and 2.21. Its instruction that rounds two vectors (AVX512-BF16) would make 1.65 of
 * the 1.70.
 *
 * Shorter vectors hold two elements per lane of 32 bits: nothing is packed, because each half is
 * rounded if it stays. Measured on Zen 3 in the first cache, with the elements of three channels in
 * their order: 0.7 ns per 8 elements in place of 1.2. */
#ifndef OSW_BATCH_PAIRS_H
#define OSW_BATCH_PAIRS_H

#include "batch/batch.h"
#include "batch/below.h"
#include "batch/move.h"
#include "core/simd.h"

enum { PAIRED = 2 * LANES };

/* The kernels for what is not taken in pairs, one element per lane. */
static osw_batch_fn *single_planes, *single_pixels;

/* AHEAD: bytes of the image that are fetched early where rows become planes at once. On Zen 4, with
 * images in the third cache, the batch of 224 pixels takes 0.85 of the time; in the elements' order
 * 1.1 times at 640 pixels. */
enum { IN_ORDER = VEC_BYTES == 64, AHEAD = 2048 };

/* Of the elements in the lower halves of the lanes, and of those in the upper halves; of the first
 * LANES elements and of those behind them if they are in order. */
typedef struct osw_pairs {
    vf32 low_slope, low_shift, high_slope, high_shift;
} osw_pairs;

OSW_INLINE osw_pairs pairs_of(const osw_batch_factors *f, int64_t channel)
{
    const float *const slope = f->slope + channel, *const shift = f->shift + channel;
    if (IN_ORDER)
        return (osw_pairs){load_f32(slope), load_f32(shift), load_f32(slope + LANES),
                           load_f32(shift + LANES)};
    osw_pairs p;
    unzip_f32(load_f32(slope), load_f32(slope + LANES), &p.low_slope, &p.high_slope);
    unzip_f32(load_f32(shift), load_f32(shift + LANES), &p.low_shift, &p.high_shift);
    if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
        return p;
    return (osw_pairs){p.high_slope, p.high_shift, p.low_slope, p.low_shift};
}

/* The same for all elements. */
OSW_INLINE osw_pairs pairs_of_one(const osw_batch_factors *f, int64_t channel)
{
    const vf32 slope = set1_f32(f->slope[channel]), shift = set1_f32(f->shift[channel]);
    return (osw_pairs){slope, shift, slope, shift};
}

OSW_INLINE void put_in_order(uint16_t *y, vi32 first, vi32 second, osw_pairs p)
{
    const vf32 low = fma_f32(f32_of_i32(first), p.low_slope, p.low_shift);
    const vf32 high = fma_f32(f32_of_i32(second), p.high_slope, p.high_shift);
    store_near_two_bf16(y, low, high);
}

OSW_INLINE void put_pairs(uint16_t *y, const uint8_t *x, osw_pairs p)
{
    if (IN_ORDER) {
        put_in_order(y, load_u8_i32(x), load_u8_i32(x + LANES), p);
        return;
    }
    const vi32 both = load_u8_pairs(x);
    const vf32 low = fma_f32(f32_of_i32(both & 0xffff), p.low_slope, p.low_shift);
    const vf32 high = fma_f32(f32_of_i32(both >> 16), p.high_slope, p.high_shift);
    store_near_pairs_bf16(y, low, high);
}

/* At least PAIRED elements; those that do not fill the last vector are covered by one that begins
 * earlier. */
OSW_INLINE void pairs_in_order(const osw_batch_factors *f, const uint8_t *x, uint16_t *y,
                               int64_t count, const int channels)
{
    osw_pairs pairs[3];
    OSW_UNROLL
    for (int k = 0; k < channels; k++)
        pairs[k] = pairs_of(f, k * PAIRED % channels);
    int64_t i = 0;
    for (; i + channels * PAIRED <= count; i += channels * PAIRED) {
        OSW_UNROLL
        for (int k = 0; k < channels; k++)
            put_pairs(y + i + k * PAIRED, x + i + k * PAIRED, pairs[k]);
    }
    for (; i < count; i += PAIRED) {
        const int64_t at = i + PAIRED <= count ? i : count - PAIRED;
        put_pairs(y + at, x + at, pairs_of(f, at % channels));
    }
}

/* At least PAIRED pixels of three channels, which are parted in registers: rows of a chunk or less,
 * that would be written in turns anyway. */
OSW_INLINE void row_to_planes(const osw_batch_factors *f, const uint8_t *x, uint16_t *y,
                              int64_t pixels, int64_t step)
{
    osw_pairs pairs[3];
    OSW_UNROLL
    for (int k = 0; k < 3; k++)
        pairs[k] = pairs_of_one(f, k);
    for (int64_t i = 0; i < pixels; i += PAIRED) {
        const int64_t at = i + PAIRED <= pixels ? i : pixels - PAIRED;
        vi32 first[3], second[3];
        prefetch_near(x + at * 3 + AHEAD);
        prefetch_near(x + at * 3 + AHEAD + 64);
        unzip3_u8_i32(x + at * 3, first);
        unzip3_u8_i32(x + (at + LANES) * 3, second);
        OSW_UNROLL
        for (int k = 0; k < 3; k++)
            put_in_order(y + k * step + at, first[k], second[k], pairs[k]);
    }
}

/* At least VEC_BYTES pixels of three channels. */
OSW_INLINE void pairs_to_planes(const osw_batch_factors *f, const uint8_t *x, uint16_t *y,
                                int64_t pixels, int64_t step)
{
    if (IN_ORDER && pixels <= CHUNK) {
        row_to_planes(f, x, y, pixels, step);
        return;
    }
    osw_pairs pairs[3];
    OSW_UNROLL
    for (int k = 0; k < 3; k++)
        pairs[k] = pairs_of_one(f, k);
    uint8_t planes[3][CHUNK];
    for (int64_t i = 0; i < pixels; i += CHUNK) {
        const osw_chunk chunk = chunk_from(i, pixels);
        move_planes_u8(x + chunk.first * 3, planes[0], chunk.pixels, CHUNK, 3);
        OSW_UNROLL
        for (int k = 0; k < 3; k++)
            for (int64_t j = 0; j < chunk.pixels; j += PAIRED) {
                const int64_t at = j + PAIRED <= chunk.pixels ? j : chunk.pixels - PAIRED;
                put_pairs(y + k * step + chunk.first + at, planes[k] + at, pairs[k]);
            }
    }
}

static void
TIERED(osw_normalize_planes_u8_pairs)(const osw_batch_factors *f, const void *x, void *y,
                                          int64_t pixels, int64_t step)
{
    if (f->form == OSW_BATCH_FUSED && f->channels == 3 && pixels >= VEC_BYTES)
        pairs_to_planes(f, x, y, pixels, step);
    else
        single_planes(f, x, y, pixels, step);
}

static void
TIERED(osw_normalize_pixels_u8_pairs)(const osw_batch_factors *f, const void *x, void *y,
                                          int64_t pixels, int64_t step)
{
    const int64_t count = pixels * f->channels;
    if (f->form == OSW_BATCH_FUSED && f->channels == 3 && count >= PAIRED)
        pairs_in_order(f, x, y, count, 3);
    else if (f->form == OSW_BATCH_FUSED && f->channels == 1 && count >= PAIRED)
        pairs_in_order(f, x, y, count, 1);
    else
        single_pixels(f, x, y, pixels, step);
}

#endif
