/* SPDX-License-Identifier: MIT */
/* Template: normalised elements as floats of one dtype; see core/each_float.h. Pixels that do not
 * fill the last vector are covered by one that begins earlier. */
#include "batch/batch.h"
#include "batch/below.h"
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

OSW_INLINE void LOCAL(planes)(const osw_batch_factors *f, const void *x, ELEMENT *y, int64_t pixels,
                       int64_t step, const bool bytes, const int channels,
                       const osw_batch_form form)
{
    osw_lanes lanes[MAX_CHANNELS];
    OSW_UNROLL
    for (int k = 0; k < channels; k++)
        lanes[k] = lanes_of(f, k, true, form);
    for (int64_t i = 0; i < pixels; i += LANES) {
        const int64_t at = i + LANES <= pixels ? i : pixels - LANES;
        vi32 whole[MAX_CHANNELS];
        vf32 v[MAX_CHANNELS];
        if (bytes)
            load_channels_u8((const uint8_t *)x + at * channels, channels, whole);
        else
            load_channels_f32((const float *)x + at * channels, channels, v);
        OSW_UNROLL
        for (int k = 0; k < channels; k++) {
            const vf32 z = bytes ? f32_of_i32(whole[k]) : v[k];
            LOCAL(put)(y + k * step + at, z, lanes[k], bytes, form);
        }
    }
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
