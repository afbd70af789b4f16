/* SPDX-License-Identifier: MIT */
/* Template: normalised elements as floats of one dtype; see core/each_float.h. Pixels that do not
 * fill the last vector are covered by one that begins earlier. */
#include "batch/batch.h"
#include "batch/below.h"
#include "batch/move.h"
#include "core/simd.h"
#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* Bytes do not become NaN. */
OSW_INLINE void
LOCAL(put)(ELEMENT *y, vf32 x, osw_lanes f, const bool bytes, const osw_batch_form form)
{
    if (form == OSW_BATCH_FUSED) {
        LOCAL(store_near)(y, fma_f32(x, f.slope, f.shift));
        return;
    }
    const vf32 d = x * f.scale - f.mean, q = d * f.inverse;
    if (form == OSW_BATCH_CORRECTED)
        LOCAL(store_near)(y, fma_f32(fma_f32(-q, f.std, d), f.inverse, q));
    else if (bytes)
        LOCAL(store_number)(y, d / f.std);
    else
        LOCAL(store_rounded)(y, d / f.std);
}

OSW_INLINE void LOCAL(planes_of_floats)(const osw_batch_factors *f, const float *x, ELEMENT *y,
                                 int64_t pixels, int64_t step, const int channels)
{
    osw_lanes lanes[MAX_CHANNELS];
    OSW_UNROLL
    for (int k = 0; k < channels; k++)
        lanes[k] = lanes_of(f, k, true, OSW_BATCH_DIVIDED);
    for (int64_t i = 0; i < pixels; i += LANES) {
        const int64_t at = i + LANES <= pixels ? i : pixels - LANES;
        vf32 v[MAX_CHANNELS];
        load_channels_f32(x + at * channels, channels, v);
        OSW_UNROLL
        for (int k = 0; k < channels; k++)
            LOCAL(put)(y + k * step + at, v[k], lanes[k], false, OSW_BATCH_DIVIDED);
    }
}

OSW_INLINE void LOCAL(planes_of_bytes)(const osw_batch_factors *f, const uint8_t *x, ELEMENT *y,
                                int64_t pixels, int64_t step, const int channels,
                                const osw_batch_form form)
{
    uint8_t planes[MAX_CHANNELS][CHUNK];
    osw_lanes lanes[MAX_CHANNELS];
    OSW_UNROLL
    for (int k = 0; k < channels; k++)
        lanes[k] = lanes_of(f, k, true, form);
    for (int64_t i = 0; i < pixels; i += CHUNK) {
        const osw_chunk chunk = chunk_from(i, pixels);
        move_planes_u8(x + chunk.first * channels, planes[0], chunk.pixels, CHUNK, channels);
        OSW_UNROLL
        for (int k = 0; k < channels; k++)
            for (int64_t j = 0; j < chunk.pixels; j += LANES) {
                const int64_t at = j + LANES <= chunk.pixels ? j : chunk.pixels - LANES;
                const vf32 v = f32_of_i32(load_u8_i32(planes[k] + at));
                LOCAL(put)(y + k * step + chunk.first + at, v, lanes[k], true, form);
            }
    }
}

OSW_INLINE void LOCAL(planes)(const osw_batch_factors *f, const void *x, ELEMENT *y, int64_t pixels,
                       int64_t step, const bool bytes, const int channels,
                       const osw_batch_form form)
{
    if (bytes)
        LOCAL(planes_of_bytes)(f, x, y, pixels, step, channels, form);
    else
        LOCAL(planes_of_floats)(f, x, y, pixels, step, channels);
}

/* `count` elements, at least LANES of them. */
OSW_INLINE void
LOCAL(pixels_of_any)(const osw_batch_factors *f, const void *x, ELEMENT *y, int64_t count,
                              const bool bytes, const osw_batch_form form)
{
    const int64_t channels = f->channels, jump = LANES % channels;
    int64_t channel = 0, i = 0;
    for (; i + LANES <= count; i += LANES) {
        LOCAL(put)(y + i, load_any(x, i, bytes), lanes_of(f, channel, false, form), bytes, form);
        channel += jump;
        channel -= channel >= channels ? channels : 0;
    }
    if (i < count) {
        i = count - LANES;
        const osw_lanes lanes = lanes_of(f, i % channels, false, form);
        LOCAL(put)(y + i, load_any(x, i, bytes), lanes, bytes, form);
    }
}

/* `channels` vectors at a time, which begin with a pixel; at least LANES pixels. */
OSW_INLINE void
LOCAL(pixels_of)(const osw_batch_factors *f, const void *x, ELEMENT *y, int64_t pixels,
                          const bool bytes, const int channels, const osw_batch_form form)
{
    osw_lanes lanes[MAX_CHANNELS];
    OSW_UNROLL
    for (int k = 0; k < channels; k++)
        lanes[k] = lanes_of(f, k * LANES % channels, false, form);
    for (int64_t i = 0; i < pixels; i += LANES) {
        const int64_t first = (i + LANES <= pixels ? i : pixels - LANES) * channels;
        OSW_UNROLL
        for (int k = 0; k < channels; k++) {
            const int64_t at = first + k * LANES;
            LOCAL(put)(y + at, load_any(x, at, bytes), lanes[k], bytes, form);
        }
    }
}

OSW_INLINE void
LOCAL(planes_in)(const osw_batch_factors *f, const void *x, ELEMENT *y, int64_t pixels,
                          int64_t step, const bool bytes, const osw_batch_form form)
{
    if (f->channels == 1)
        LOCAL(planes)(f, x, y, pixels, step, bytes, 1, form);
    else if (f->channels == 2)
        LOCAL(planes)(f, x, y, pixels, step, bytes, 2, form);
    else if (f->channels == 3)
        LOCAL(planes)(f, x, y, pixels, step, bytes, 3, form);
    else
        LOCAL(planes)(f, x, y, pixels, step, bytes, 4, form);
}

OSW_INLINE void
LOCAL(pixels_in)(const osw_batch_factors *f, const void *x, ELEMENT *y, int64_t pixels,
                          int64_t step, const bool bytes, const osw_batch_form form)
{
    (void)step;
    if (f->channels == 1)
        LOCAL(pixels_of)(f, x, y, pixels, bytes, 1, form);
    else if (f->channels == 3 && pixels >= LANES)
        LOCAL(pixels_of)(f, x, y, pixels, bytes, 3, form);
    else
        LOCAL(pixels_of_any)(f, x, y, pixels * f->channels, bytes, form);
}

#define KERNEL_OF(operation, body, bytes, elements, most)                                          \
    static void KERNEL(operation)(const osw_batch_factors *f, const void *x, void *y,              \
                                  int64_t pixels, int64_t step)                                    \
    {                                                                                              \
        if ((elements) < LANES || f->channels > (most))                                            \
            below[OSW_JOIN(OSW_BATCH_##operation##_, SUFFIX)](f, x, y, pixels, step);              \
        else if ((bytes) && f->form == OSW_BATCH_FUSED)                                            \
            LOCAL(body)(f, x, y, pixels, step, bytes, OSW_BATCH_FUSED);                            \
        else if ((bytes) && f->form == OSW_BATCH_CORRECTED)                                        \
            LOCAL(body)(f, x, y, pixels, step, bytes, OSW_BATCH_CORRECTED);                        \
        else                                                                                       \
            LOCAL(body)(f, x, y, pixels, step, bytes, OSW_BATCH_DIVIDED);                          \
    }

KERNEL_OF(normalize_planes_u8, planes_in, true, pixels, MAX_CHANNELS)
KERNEL_OF(normalize_planes_float, planes_in, false, pixels, MAX_CHANNELS)
KERNEL_OF(normalize_pixels_u8, pixels_in, true, pixels * f->channels, INT64_MAX)
KERNEL_OF(normalize_pixels_float, pixels_in, false, pixels * f->channels, INT64_MAX)

#undef KERNEL_OF
