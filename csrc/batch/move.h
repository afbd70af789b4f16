/* SPDX-License-Identifier: MIT */
/* Elements bit by bit, to planes or in their order: see batch/batch.h. Pixels that do not fill the
 * last vector are covered by one that begins earlier. */
#ifndef OSW_BATCH_MOVE_H
#define OSW_BATCH_MOVE_H

#include "batch/batch.h"
#include "batch/below.h"
#include "core/ints.h"
#include "core/simd.h"

/* At least VEC_BYTES. */
OSW_INLINE void copy_forward(const uint8_t *x, uint8_t *y, int64_t bytes)
{
    for (int64_t i = 0; i < bytes - VEC_BYTES; i += VEC_BYTES)
        store_u8(y + i, load_u8(x + i));
    store_u8(y + bytes - VEC_BYTES, load_u8(x + bytes - VEC_BYTES));
}

OSW_INLINE void move_three_planes_u8(const uint8_t *x, uint8_t *y, int64_t pixels, int64_t step)
{
    for (int64_t i = 0; i < pixels; i += VEC_BYTES) {
        const int64_t at = i + VEC_BYTES <= pixels ? i : pixels - VEC_BYTES;
        vu8 v[3];
        unzip3_u8(x + at * 3, v);
        OSW_UNROLL
        for (int k = 0; k < 3; k++)
            store_u8(y + k * step + at, v[k]);
    }
}

OSW_INLINE void move_planes_u8(const uint8_t *x, uint8_t *y, int64_t pixels, int64_t step,
                               const int channels)
{
    if (channels == 3 && pixels >= VEC_BYTES) {
        move_three_planes_u8(x, y, pixels, step);
        return;
    }
    for (int64_t i = 0; i < pixels; i += LANES) {
        const int64_t at = i + LANES <= pixels ? i : pixels - LANES;
        vi32 v[MAX_CHANNELS];
        load_channels_u8(x + at * channels, channels, v);
        OSW_UNROLL
        for (int k = 0; k < channels; k++)
            store_u8_i32(y + k * step + at, v[k]);
    }
}

OSW_INLINE void move_planes_u32(const float *x, float *y, int64_t pixels, int64_t step,
                                const int channels)
{
    for (int64_t i = 0; i < pixels; i += LANES) {
        const int64_t at = i + LANES <= pixels ? i : pixels - LANES;
        vf32 v[MAX_CHANNELS];
        load_channels_f32(x + at * channels, channels, v);
        OSW_UNROLL
        for (int k = 0; k < channels; k++)
            store_f32(y + k * step + at, v[k]);
    }
}

#define MOVE(suffix, function)                                                                     \
    static void TIERED(osw_move_planes_##suffix)(const osw_batch_factors *f, const void *from,     \
                                                 void *to, int64_t pixels, int64_t step)           \
    {                                                                                              \
        if (pixels < LANES || f->channels > MAX_CHANNELS)                                          \
            below[OSW_BATCH_move_planes_##suffix](f, from, to, pixels, step);                      \
        else if (f->channels == 1)                                                                 \
            function(from, to, pixels, step, 1);                                                   \
        else if (f->channels == 2)                                                                 \
            function(from, to, pixels, step, 2);                                                   \
        else if (f->channels == 3)                                                                 \
            function(from, to, pixels, step, 3);                                                   \
        else                                                                                       \
            function(from, to, pixels, step, 4);                                                   \
    }

MOVE(x8, move_planes_u8)
MOVE(x32, move_planes_u32)

/* Bytes in their order, forward. Measured on Zen 5 with rows of 1700 bytes and padding of 200, from
 * memory: 1.5 times the speed of memcpy and memset, which write the ends of a row first. What is
 * large they write without reading its lines. */
static void TIERED(osw_move_pixels_x8)(const osw_batch_factors *f, const void *from, void *to,
                               int64_t pixels, int64_t step)
{
    const int64_t bytes = pixels * f->channels;
    if (bytes < VEC_BYTES || bytes >= OSW_BATCH_LARGE)
        below[OSW_BATCH_move_pixels_x8](f, from, to, pixels, step);
    else
        copy_forward(from, to, bytes);
}

static void TIERED(osw_stream_pixels_x8)(const osw_batch_factors *f, const void *from, void *to,
                                 int64_t pixels, int64_t step)
{
    const uint8_t *x = from;
    uint8_t *y = to;
    const int64_t bytes = pixels * f->channels;
    int64_t i = osw_min_int(bytes, (int64_t)(-(uintptr_t)y % VEC_BYTES));
    (void)step;
    memcpy(y, x, (size_t)i);
    for (; i + VEC_BYTES <= bytes; i += VEC_BYTES)
        stream_i32(y + i, load_i32(x + i));
    memcpy(y + i, x + i, (size_t)(bytes - i));
    if (bytes == 0)
        stream_fence();
}

#endif
