/* SPDX-License-Identifier: MIT */
/* Normalisation of pixels that are in the caches: a few vectors of channels at a time, whose
 * factors stay in registers, pixel by pixel. The last vector overlaps the one before it. */
#ifndef OSW_CHAIN_BLOCKS_H
#define OSW_CHAIN_BLOCKS_H

#include "chain/chain.h"
#include "core/ints.h"
#include "core/simd.h"
#include "norm/functions.h"

#include <stdint.h>
#include <string.h>

enum { BLOCK_VECTORS = 2, SUM_PIXELS = 64, SAMPLE = 4 };

/* One body per kind of activation, so that no loop asks which it is. */
#define KIND_OF(body, constant, given, ...)                                                        \
case constant:                                                                                     \
    body(__VA_ARGS__, (osw_activation){.kind = constant, .a = (given).a, .b = (given).b});         \
    break;
#define EACH_KIND(body, given, ...)                                                                \
    switch ((given).kind) {                                                                        \
        KIND_OF(body, OSW_RELU, given, __VA_ARGS__)                                                \
        KIND_OF(body, OSW_HARDTANH, given, __VA_ARGS__)                                            \
        KIND_OF(body, OSW_HARDSWISH, given, __VA_ARGS__)                                           \
    default:                                                                                       \
        body(__VA_ARGS__, (osw_activation){.kind = OSW_IDENTITY});                                 \
        break;                                                                                     \
    }

/* The first channel of vector v, of `channels`, at least a vector. */
OSW_INLINE int64_t channel_of(int64_t v, int64_t channels)
{
    return osw_min_int(v * LANES, channels - LANES);
}

/* Calls of body(vectors, first channel, second channel) for all channels. */
#define EACH_VECTORS(body, channels, ...)                                                          \
    {                                                                                              \
        const int64_t count_ = osw_ceil(channels, LANES);                                          \
        int64_t v_ = 0;                                                                            \
        for (; v_ + 2 <= count_; v_ += 2)                                                          \
            body(2, channel_of(v_, channels), channel_of(v_ + 1, channels), __VA_ARGS__);          \
        if (v_ < count_)                                                                           \
            body(1, channel_of(v_, channels), 0, __VA_ARGS__);                                     \
    }

/* z of a vector, and what is between it and its center. */
typedef struct osw_seen {
    vf32 centered, z;
} osw_seen;

typedef struct osw_few_factors {
    vf32 center, scale, shift;
} osw_few_factors;

OSW_INLINE osw_few_factors few_factors(const osw_chain_norm *n, int64_t c)
{
    return (osw_few_factors){load_f32(n->center + c), load_f32(n->scale + c),
                             load_f32(n->shift + c)};
}

OSW_INLINE osw_seen see(vf32 value, const osw_few_factors *f)
{
    const vf32 centered = value - f->center;
    return (osw_seen){centered, fma_f32(centered, f->scale, f->shift)};
}

OSW_INLINE void apply_vectors(const int vectors, int64_t c0, int64_t c1, const osw_chain_norm *n,
                              int64_t channels, int64_t pixels, const float *z, float *to,
                              const osw_activation activation)
{
    const int64_t at[BLOCK_VECTORS] = {c0, c1};
    osw_few_factors f[BLOCK_VECTORS];
    OSW_UNROLL
    for (int v = 0; v < vectors; v++)
        f[v] = few_factors(n, at[v]);
    for (; pixels > 0; pixels--, z += channels, to += channels) {
        OSW_UNROLL
        for (int v = 0; v < vectors; v++)
            store_f32(to + at[v], activate(see(load_f32(z + at[v]), &f[v]).z, activation));
    }
}

OSW_INLINE void apply_kind(const osw_chain_norm *n, int64_t channels, int64_t pixels,
                           const float *z, float *to, const osw_activation activation)
{
    EACH_VECTORS(apply_vectors, channels, n, channels, pixels, z, to, activation)
}

/* to = f of the normal of z */
static void apply_block(const osw_chain_norm *n, int64_t channels, int64_t pixels, const float *z,
                        float *to){
    EACH_KIND(apply_kind, n -> activation, n, channels, pixels, z, to)}

/* In place. */
OSW_INLINE void activate_kind(float *values, int64_t count, const osw_activation activation)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store_f32(values + i, activate(load_f32(values + i), activation));
    if (i < count) {
        const vf32 rest = load_first_f32(values + i, count - i);
        store_first_f32(values + i, activate(rest, activation), count - i);
    }
}

static void activate_block(float *values, int64_t count, const osw_activation *activation)
{
    if (activation->kind != OSW_IDENTITY)
        EACH_KIND(activate_kind, *activation, values, count)
}

OSW_INLINE void gradient_vectors(const int vectors, int64_t c0, int64_t c1, const osw_chain_norm *n,
                                 int64_t channels, int64_t pixels, const float *z, const float *d,
                                 float *to, const osw_activation activation)
{
    const int64_t at[BLOCK_VECTORS] = {c0, c1};
    osw_few_factors f[BLOCK_VECTORS];
    vf32 tilt[BLOCK_VECTORS], offset[BLOCK_VECTORS];
    OSW_UNROLL
    for (int v = 0; v < vectors; v++) {
        f[v] = few_factors(n, at[v]);
        tilt[v] = load_f32(n->tilt + at[v]);
        offset[v] = load_f32(n->offset + at[v]);
    }
    for (; pixels > 0; pixels--, z += channels, d += channels, to += channels) {
        OSW_UNROLL
        for (int v = 0; v < vectors; v++) {
            const osw_seen seen = see(load_f32(z + at[v]), &f[v]);
            const vf32 gated = gate(load_f32(d + at[v]), seen.z, activation);
            const vf32 rest = fma_f32(seen.centered, tilt[v], offset[v]);
            store_f32(to + at[v], fma_f32(gated, f[v].scale, rest));
        }
    }
}

OSW_INLINE void gradient_kind(const osw_chain_norm *n, int64_t channels, int64_t pixels,
                              const float *z, const float *d, float *to,
                              const osw_activation activation)
{
    EACH_VECTORS(gradient_vectors, channels, n, channels, pixels, z, d, to, activation)
}

/* to = dz, of z and the gradient d of what the normalisation makes of it */
static void gradient_block(const osw_chain_norm *n, int64_t channels, int64_t pixels,
                           const float *z, const float *d, float *to)
{
    EACH_KIND(gradient_kind, n->activation, n, channels, pixels, z, d, to)
}

/* Sums of a block in float, of every channel. */
typedef struct osw_block_sums {
    float first[OSW_CHAIN_MOST_CHANNELS], second[OSW_CHAIN_MOST_CHANNELS];
} osw_block_sums;

static void flush_sums(const osw_block_sums *sums, int64_t channels, const osw_chain_part *part)
{
    for (int64_t c = 0; c < channels; c++) {
        part->first[c] += (double)sums->first[c];
        part->second[c] += (double)sums->second[c];
    }
}

static void clear_sums(const osw_chain_part *part, int64_t channels)
{
    memset(part->first, 0, (size_t)channels * sizeof *part->first);
    memset(part->second, 0, (size_t)channels * sizeof *part->second);
}

OSW_INLINE void reduce_vectors(const int vectors, int64_t c0, int64_t c1, const osw_chain_norm *n,
                               int64_t channels, int64_t pixels, const float *z, const float *d,
                               osw_block_sums *sums, const osw_activation activation)
{
    const int64_t at[BLOCK_VECTORS] = {c0, c1};
    osw_few_factors f[BLOCK_VECTORS];
    vf32 first[BLOCK_VECTORS], second[BLOCK_VECTORS];
    OSW_UNROLL
    for (int v = 0; v < vectors; v++) {
        f[v] = few_factors(n, at[v]);
        first[v] = second[v] = (vf32){0};
    }
    for (; pixels > 0; pixels--, z += channels, d += channels) {
        OSW_UNROLL
        for (int v = 0; v < vectors; v++) {
            const osw_seen seen = see(load_f32(z + at[v]), &f[v]);
            const vf32 gated = gate(load_f32(d + at[v]), seen.z, activation);
            first[v] += gated;
            second[v] = fma_f32(gated, seen.centered, second[v]);
        }
    }
    OSW_UNROLL
    for (int v = 0; v < vectors; v++) {
        store_f32(sums->first + at[v], first[v]);
        store_f32(sums->second + at[v], second[v]);
    }
}

OSW_INLINE void reduce_kind(const osw_chain_norm *n, int64_t channels, int64_t pixels,
                            const float *z, const float *d, osw_block_sums *sums,
                            const osw_activation activation)
{
    EACH_VECTORS(reduce_vectors, channels, n, channels, pixels, z, d, sums, activation)
}

/* Adds to first and second of a part. */
static void reduce_block(const osw_chain_norm *n, int64_t channels, int64_t pixels, const float *z,
                         const float *d, const osw_chain_part *part)
{
    osw_block_sums sums;
    for (; pixels > 0; pixels -= SUM_PIXELS) {
        const int64_t few = osw_min_int(pixels, SUM_PIXELS);
        EACH_KIND(reduce_kind, n->activation, n, channels, few, z, d, &sums)
        flush_sums(&sums, channels, part);
        z += few * channels;
        d += few * channels;
    }
}

OSW_INLINE void moments_vectors(const int vectors, int64_t c0, int64_t c1, const float *center,
                                int64_t channels, int64_t pixels, const float *z,
                                osw_block_sums *sums)
{
    const int64_t at[BLOCK_VECTORS] = {c0, c1};
    vf32 centers[BLOCK_VECTORS], first[BLOCK_VECTORS], second[BLOCK_VECTORS];
    OSW_UNROLL
    for (int v = 0; v < vectors; v++) {
        centers[v] = load_f32(center + at[v]);
        first[v] = second[v] = (vf32){0};
    }
    for (; pixels > 0; pixels--, z += channels) {
        OSW_UNROLL
        for (int v = 0; v < vectors; v++) {
            const vf32 centered = load_f32(z + at[v]) - centers[v];
            first[v] += centered;
            second[v] = fma_f32(centered, centered, second[v]);
        }
    }
    OSW_UNROLL
    for (int v = 0; v < vectors; v++) {
        store_f32(sums->first + at[v], first[v]);
        store_f32(sums->second + at[v], second[v]);
    }
}

/* Adds to first and second of a part, about its center. */
static void moments_block(int64_t channels, int64_t pixels, const float *z,
                          const osw_chain_part *part)
{
    osw_block_sums sums;
    for (; pixels > 0; pixels -= SUM_PIXELS) {
        const int64_t few = osw_min_int(pixels, SUM_PIXELS);
        EACH_VECTORS(moments_vectors, channels, part->center, channels, few, z, &sums)
        flush_sums(&sums, channels, part);
        z += few * channels;
    }
}

/* center of a part: the means of a few of these pixels, or 0, about which the sum of infinities is
 * infinite too. */
static void find_center(int64_t channels, int64_t pixels, const float *z,
                        const osw_chain_part *part)
{
    for (int64_t c = 0; c < channels; c++) {
        float sum = 0;
        for (int64_t i = 0; i < SAMPLE; i++)
            sum += z[i * (pixels - 1) / (SAMPLE - 1) * channels + c];
        part->center[c] = sum - sum == 0 ? sum / SAMPLE : 0;
    }
}

#endif
