/* SPDX-License-Identifier: MIT */
#include "channels/channels.h"
#include "core/prefetch.h"
#include "core/target.h"

#if defined(__x86_64__)

#    include <immintrin.h>
#    include <string.h>

OSW_TARGET_BEGIN_AVX2

/* Fetch the lines that are osw_prefetch_ahead bytes further on. */
OSW_INLINE void prefetch(const char *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        _mm_prefetch(at + osw_prefetch_ahead + i, _MM_HINT_T0);
}

#    include "channels/avx2_zip.h"

#    define WIDTH   8
#    define ELEMENT uint8_t
#    include "channels/avx2_width.h"

#    define WIDTH   16
#    define ELEMENT uint16_t
#    include "channels/avx2_width.h"

#    define WIDTH   32
#    define ELEMENT uint32_t
#    include "channels/avx2_width.h"

#    define WIDTH   64
#    define ELEMENT uint64_t
#    include "channels/avx2_width.h"

OSW_INLINE void copy_32(char *to, const char *from)
{
    store_v256(to, load_v256(from));
}

OSW_INLINE void copy_bytes(char *restrict to, const char *restrict from, int64_t bytes)
{
    if (bytes < 32) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    if (osw_prefetch_ahead) {
        prefetch(from, bytes);
        prefetch(to, bytes);
    }
    int64_t i = 0;
    for (; i + 64 <= bytes; i += 64) {
        copy_32(to + i, from + i);
        copy_32(to + i + 32, from + i + 32);
    }
    if (bytes - i >= 32)
        copy_32(to + i, from + i);
    copy_32(to + bytes - 32, from + bytes - 32);
}

static void osw_copy_PLANES_x8__avx2(const osw_move *moves, int64_t channels, int64_t bytes,
                                     int64_t begin, int64_t end)
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

OSW_TARGET_END

#    define FILL(operation, rows, width)                                                           \
        table->operation##_##rows##_x##width = osw_##operation##_##rows##_x##width##__avx2;

#    define FILL_ROWS(operation, width)                                                            \
        FILL(operation, 2, width)                                                                  \
        FILL(operation, 4, width)                                                                  \
        FILL(operation, 8, width)                                                                  \
        FILL(operation, ANY, width)

#    define FILL_WIDTH(width)                                                                      \
        FILL_ROWS(interleave, width)                                                               \
        FILL_ROWS(deinterleave, width)

void osw_channels_fill__avx2(osw_channels_table *table)
{
    FILL_WIDTH(8)
    FILL_WIDTH(16)
    FILL_WIDTH(32)
    FILL_WIDTH(64)
    FILL(interleave, 3, 8)
    FILL(interleave, 3, 16)
    FILL(interleave, 3, 32)
    FILL(deinterleave, 3, 8)
    FILL(deinterleave, 3, 16)
    FILL(deinterleave, 3, 32)
    FILL(copy, PLANES, 8)
}

#endif
