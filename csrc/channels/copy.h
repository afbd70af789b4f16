/* SPDX-License-Identifier: MIT */
/* Whole planes. */
#ifndef OSW_CHANNELS_COPY_H
#define OSW_CHANNELS_COPY_H

#include "channels/below.h"
#include "channels/channels.h"
#include "core/prefetch.h"
#include "core/simd.h"

#include <stdint.h>
#include <string.h>

OSW_INLINE void copy_vector(char *to, const char *from)
{
    store_i32(to, load_i32(from));
}

/* The last vector overlaps the one before. */
OSW_INLINE void copy_bytes(char *restrict to, const char *restrict from, int64_t bytes)
{
    if (bytes < VEC_BYTES) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    if (osw_prefetch_ahead) {
        prefetch_ahead(from, bytes);
        prefetch_ahead(to, bytes);
    }
    int64_t i = 0;
    for (; i + 2 * VEC_BYTES <= bytes; i += 2 * VEC_BYTES) {
        copy_vector(to + i, from + i);
        copy_vector(to + i + VEC_BYTES, from + i + VEC_BYTES);
    }
    if (bytes - i >= VEC_BYTES)
        copy_vector(to + i, from + i);
    copy_vector(to + bytes - VEC_BYTES, from + bytes - VEC_BYTES);
}

static void
TIERED(osw_copy_planes)(const osw_move *moves, int64_t channels, int64_t bytes, int64_t begin,
                            int64_t end)
{
    int64_t image = begin / channels, channel = begin % channels;
    for (int64_t i = begin; i < end; i++) {
        copy_bytes(osw_at(&moves[channel].to, image, 0), osw_at(&moves[channel].from, image, 0),
                   bytes);
        if (++channel == channels) {
            channel = 0;
            image++;
        }
    }
}

#endif
