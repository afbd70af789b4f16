/* SPDX-License-Identifier: MIT */
#include "channels/channels.h"
#include "core/target.h"

#if defined(__x86_64__)

#    include <immintrin.h>
#    include <string.h>

OSW_TARGET_BEGIN_AVX2

/* Lines this far ahead of every source and target are fetched while a pixel is worked on; 1 to 4
 * KiB are alike. */
#    define PREFETCH_AHEAD 2048

OSW_INLINE void prefetch(const char *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        _mm_prefetch(at + PREFETCH_AHEAD + i, _MM_HINT_T0);
}

/* zip: lo, hi = x0 y0 x1 y1 ...; unzip: even = x0 x2 ... y0 y2 ..., odd = x1 x3 ... y1 y3 ... */
#    define ZIP(width)                                                                             \
        OSW_INLINE void zip_x##width(__m128i x, __m128i y, __m128i *lo, __m128i *hi)               \
        {                                                                                          \
            *lo = _mm_unpacklo_epi##width(x, y);                                                   \
            *hi = _mm_unpackhi_epi##width(x, y);                                                   \
        }

ZIP(8)
ZIP(16)
ZIP(32)
ZIP(64)

/* Sort the elements of both vectors into an even and an odd half, then join the halves. */
OSW_INLINE void unzip_bytes(__m128i x, __m128i y, __m128i halves, __m128i *even, __m128i *odd)
{
    x = _mm_shuffle_epi8(x, halves);
    y = _mm_shuffle_epi8(y, halves);
    *even = _mm_unpacklo_epi64(x, y);
    *odd = _mm_unpackhi_epi64(x, y);
}

OSW_INLINE void unzip_x8(__m128i x, __m128i y, __m128i *even, __m128i *odd)
{
    const __m128i halves = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    unzip_bytes(x, y, halves, even, odd);
}

OSW_INLINE void unzip_x16(__m128i x, __m128i y, __m128i *even, __m128i *odd)
{
    const __m128i halves = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    unzip_bytes(x, y, halves, even, odd);
}

OSW_INLINE void unzip_x32(__m128i x, __m128i y, __m128i *even, __m128i *odd)
{
    const __m128 a = _mm_castsi128_ps(x), b = _mm_castsi128_ps(y);
    *even = _mm_castps_si128(_mm_shuffle_ps(a, b, 0x88));
    *odd = _mm_castps_si128(_mm_shuffle_ps(a, b, 0xdd));
}

OSW_INLINE void unzip_x64(__m128i x, __m128i y, __m128i *even, __m128i *odd)
{
    *even = _mm_unpacklo_epi64(x, y);
    *odd = _mm_unpackhi_epi64(x, y);
}

/* Groups of four elements lose their last one and close up; spread is the inverse, with any value
 * in the gaps. */
OSW_INLINE __m128i close_x8(__m128i v)
{
    return _mm_shuffle_epi8(v, _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 3, 3, 3));
}

OSW_INLINE __m128i spread_x8(__m128i v)
{
    return _mm_shuffle_epi8(v, _mm_setr_epi8(0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11));
}

OSW_INLINE __m128i close_x16(__m128i v)
{
    return _mm_shuffle_epi8(v, _mm_setr_epi8(0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 6, 7, 6, 7));
}

OSW_INLINE __m128i spread_x16(__m128i v)
{
    return _mm_shuffle_epi8(v, _mm_setr_epi8(0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9, 10, 11, 10, 11));
}

OSW_INLINE __m128i close_x32(__m128i v)
{
    return v;
}

OSW_INLINE __m128i spread_x32(__m128i v)
{
    return v;
}

#    define WIDTH   8
#    define ELEMENT uint8_t
#    define THREE   1
#    include "channels/avx2_width.h"

#    define WIDTH   16
#    define ELEMENT uint16_t
#    define THREE   1
#    include "channels/avx2_width.h"

#    define WIDTH   32
#    define ELEMENT uint32_t
#    define THREE   1
#    include "channels/avx2_width.h"

#    define WIDTH   64
#    define ELEMENT uint64_t
#    define THREE   0
#    include "channels/avx2_width.h"

OSW_INLINE void copy_32(char *to, const char *from)
{
    _mm256_storeu_si256((__m256i *)to, _mm256_loadu_si256((const __m256i *)from));
}

OSW_INLINE void copy_bytes(char *restrict to, const char *restrict from, int64_t bytes)
{
    if (bytes < 32) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    int64_t i = 0;
    for (; i + 64 <= bytes; i += 64) {
        _mm_prefetch(from + i + PREFETCH_AHEAD, _MM_HINT_T0);
        _mm_prefetch(to + i + PREFETCH_AHEAD, _MM_HINT_T0);
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
