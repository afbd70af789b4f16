/* SPDX-License-Identifier: MIT */
/* Template: normalised elements as floats of one dtype; see core/each_float.h. Pixels that do not
 * fill the last vector are covered by one that begins earlier. */
#include "batch/batch.h"
#include "batch/below.h"
#include "core/simd.h"
#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* first, second: slope and shift if fused, else mean and std. */
OSW_INLINE vf32 LOCAL(normalized)(vf32 x, vf32 scale, vf32 first, vf32 second, const bool fused)
{
    return fused ? fma_f32(x, first, second) : (x * scale - first) / second;
}

OSW_INLINE void
LOCAL(normalize_planes)(const osw_batch_factors *f, const void *from, ELEMENT *y,
                                 int64_t pixels, int64_t step, const bool bytes, const int channels,
                                 const bool fused)
{
    vf32 first[MAX_CHANNELS], second[MAX_CHANNELS];
    const vf32 scale = set1_f32(f->scale);
    OSW_UNROLL
    for (int k = 0; k < channels; k++) {
        first[k] = set1_f32(fused ? f->slope[k] : f->mean[k]);
        second[k] = set1_f32(fused ? f->shift[k] : f->std[k]);
    }
    for (int64_t i = 0; i < pixels; i += LANES) {
        const int64_t at = i + LANES <= pixels ? i : pixels - LANES;
        vi32 whole[MAX_CHANNELS];
        vf32 v[MAX_CHANNELS];
        if (bytes)
            load_channels_u8((const uint8_t *)from + at * channels, channels, whole);
        else
            load_channels_f32((const float *)from + at * channels, channels, v);
        OSW_UNROLL
        for (int k = 0; k < channels; k++) {
            const vf32 x = bytes ? f32_of_i32(whole[k]) : v[k];
            const vf32 z = LOCAL(normalized)(x, scale, first[k], second[k], fused);
            LOCAL(store_rounded)(y + k * step + at, z);
        }
    }
}

/* The factors of element i are those from channel i % channels on. */
OSW_INLINE void LOCAL(normalize_pixels)(const osw_batch_factors *f, const void *from, ELEMENT *y,
                                 int64_t pixels, const bool bytes, const bool fused)
{
    const float *const firsts = fused ? f->slope : f->mean;
    const float *const seconds = fused ? f->shift : f->std;
    const vf32 scale = set1_f32(f->scale);
    const int64_t channels = f->channels, count = pixels * channels, jump = LANES % channels;
    int64_t channel = 0;
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t at = i;
        if (i + LANES > count) {
            at = count - LANES;
            channel = at % channels;
        }
        const vf32 x = bytes ? f32_of_i32(load_u8_i32((const uint8_t *)from + at))
                             : load_f32((const float *)from + at);
        const vf32 first = load_f32(firsts + channel), second = load_f32(seconds + channel);
        LOCAL(store_rounded)(y + at, LOCAL(normalized)(x, scale, first, second, fused));
        channel += jump;
        channel -= channel >= channels ? channels : 0;
    }
}

#define PLANES_OF(channels_, bytes_)                                                               \
    if ((bytes_) && f->fused)                                                                      \
        LOCAL(normalize_planes)(f, from, to, pixels, step, bytes_, channels_, true);               \
    else                                                                                           \
        LOCAL(normalize_planes)(f, from, to, pixels, step, bytes_, channels_, false)

#define NORMALIZE(name, bytes)                                                                     \
    static void KERNEL(normalize_planes_##name)(const osw_batch_factors *f, const void *from,      \
                                                void *to, int64_t pixels, int64_t step)            \
    {                                                                                              \
        if (pixels < LANES || f->channels > MAX_CHANNELS) {                                        \
            below[OSW_JOIN(OSW_BATCH_normalize_planes_##name##_, SUFFIX)](f, from, to, pixels,     \
                                                                          step);                   \
        } else if (f->channels == 1) {                                                             \
            PLANES_OF(1, bytes);                                                                   \
        } else if (f->channels == 2) {                                                             \
            PLANES_OF(2, bytes);                                                                   \
        } else if (f->channels == 3) {                                                             \
            PLANES_OF(3, bytes);                                                                   \
        } else {                                                                                   \
            PLANES_OF(4, bytes);                                                                   \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static void KERNEL(normalize_pixels_##name)(const osw_batch_factors *f, const void *from,      \
                                                void *to, int64_t pixels, int64_t step)            \
    {                                                                                              \
        if (pixels * f->channels < LANES)                                                          \
            below[OSW_JOIN(OSW_BATCH_normalize_pixels_##name##_, SUFFIX)](f, from, to, pixels,     \
                                                                          step);                   \
        else if ((bytes) && f->fused)                                                              \
            LOCAL(normalize_pixels)(f, from, to, pixels, bytes, true);                             \
        else                                                                                       \
            LOCAL(normalize_pixels)(f, from, to, pixels, bytes, false);                            \
    }

NORMALIZE(u8, true)
NORMALIZE(float, false)

#undef NORMALIZE
#undef PLANES_OF
