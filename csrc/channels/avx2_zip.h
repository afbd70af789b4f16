/* SPDX-License-Identifier: MIT */
/* zip and unzip of two vectors of 32 to 256 bits, for elements of 8 to 64 bits; included by
 * channels_avx2.c inside its target region.
 *
 *     zip:    lo, hi    = x0 y0 x1 y1 ...
 *     unzip:  even, odd = x0 x2 ... y0 y2 ..., x1 x3 ... y1 y3 ...
 *
 * Vectors of 32 and 64 bits are the lower part of an __m128i; the rest holds anything. */

#define ZIP_128(width)                                                                             \
    OSW_INLINE void zip_x##width##_v128(__m128i x, __m128i y, __m128i *lo, __m128i *hi)            \
    {                                                                                              \
        *lo = _mm_unpacklo_epi##width(x, y);                                                       \
        *hi = _mm_unpackhi_epi##width(x, y);                                                       \
    }

#define ZIP_64(width)                                                                              \
    OSW_INLINE void zip_x##width##_v64(__m128i x, __m128i y, __m128i *lo, __m128i *hi)             \
    {                                                                                              \
        *lo = _mm_unpacklo_epi##width(x, y);                                                       \
        *hi = _mm_unpackhi_epi64(*lo, *lo);                                                        \
    }

/* AVX2 zips within 128-bit halves: the halves must change places afterwards. */
#define ZIP_256(width)                                                                             \
    OSW_INLINE void zip_x##width##_v256(__m256i x, __m256i y, __m256i *lo, __m256i *hi)            \
    {                                                                                              \
        const __m256i even = _mm256_unpacklo_epi##width(x, y);                                     \
        const __m256i odd = _mm256_unpackhi_epi##width(x, y);                                      \
        *lo = _mm256_permute2x128_si256(even, odd, 0x20);                                          \
        *hi = _mm256_permute2x128_si256(even, odd, 0x31);                                          \
    }

OSW_INLINE void zip_x8_v32(__m128i x, __m128i y, __m128i *lo, __m128i *hi)
{
    *lo = _mm_unpacklo_epi8(x, y);
    *hi = _mm_srli_epi64(*lo, 32);
}

ZIP_64(8)
ZIP_64(16)
ZIP_64(32)
ZIP_128(8)
ZIP_128(16)
ZIP_128(32)
ZIP_128(64)
ZIP_256(8)
ZIP_256(16)
ZIP_256(32)
ZIP_256(64)

/* Order of bytes that puts the even elements of 16 bytes before the odd ones. */
#define HALVES_8  0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15
#define HALVES_16 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15
#define HALVES_32 0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15
#define HALVES_64 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15

#define UNZIP_64(width)                                                                            \
    OSW_INLINE void unzip_x##width##_v64(__m128i x, __m128i y, __m128i *even, __m128i *odd)        \
    {                                                                                              \
        *even = _mm_shuffle_epi8(_mm_unpacklo_epi64(x, y), _mm_setr_epi8(HALVES_##width));         \
        *odd = _mm_unpackhi_epi64(*even, *even);                                                   \
    }

#define UNZIP_128(width)                                                                           \
    OSW_INLINE void unzip_x##width##_v128(__m128i x, __m128i y, __m128i *even, __m128i *odd)       \
    {                                                                                              \
        x = _mm_shuffle_epi8(x, _mm_setr_epi8(HALVES_##width));                                    \
        y = _mm_shuffle_epi8(y, _mm_setr_epi8(HALVES_##width));                                    \
        *even = _mm_unpacklo_epi64(x, y);                                                          \
        *odd = _mm_unpackhi_epi64(x, y);                                                           \
    }

#define UNZIP_256(width)                                                                           \
    OSW_INLINE void unzip_x##width##_v256(__m256i x, __m256i y, __m256i *even, __m256i *odd)       \
    {                                                                                              \
        const __m256i halves = _mm256_setr_epi8(HALVES_##width, HALVES_##width);                   \
        x = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, halves), 0xd8);                        \
        y = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(y, halves), 0xd8);                        \
        *even = _mm256_permute2x128_si256(x, y, 0x20);                                             \
        *odd = _mm256_permute2x128_si256(x, y, 0x31);                                              \
    }

OSW_INLINE void unzip_x8_v32(__m128i x, __m128i y, __m128i *even, __m128i *odd)
{
    const __m128i halves = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 0, 2, 4, 6, 1, 3, 5, 7);
    *even = _mm_shuffle_epi8(_mm_unpacklo_epi32(x, y), halves);
    *odd = _mm_srli_epi64(*even, 32);
}

UNZIP_64(8)
UNZIP_64(16)
UNZIP_64(32)
UNZIP_128(8)
UNZIP_128(16)
UNZIP_128(64)
UNZIP_256(8)
UNZIP_256(16)

OSW_INLINE void unzip_x32_v128(__m128i x, __m128i y, __m128i *even, __m128i *odd)
{
    const __m128 a = _mm_castsi128_ps(x), b = _mm_castsi128_ps(y);
    *even = _mm_castps_si128(_mm_shuffle_ps(a, b, 0x88));
    *odd = _mm_castps_si128(_mm_shuffle_ps(a, b, 0xdd));
}

OSW_INLINE void unzip_x32_v256(__m256i x, __m256i y, __m256i *even, __m256i *odd)
{
    const __m256 a = _mm256_castsi256_ps(x), b = _mm256_castsi256_ps(y);
    *even = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), 0xd8);
    *odd = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8);
}

OSW_INLINE void unzip_x64_v256(__m256i x, __m256i y, __m256i *even, __m256i *odd)
{
    *even = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(x, y), 0xd8);
    *odd = _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(x, y), 0xd8);
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

OSW_INLINE __m128i load_v32(const void *from)
{
    int32_t bits;
    memcpy(&bits, from, sizeof bits);
    return _mm_cvtsi32_si128(bits);
}

OSW_INLINE __m128i load_v64(const void *from)
{
    return _mm_loadl_epi64(from);
}

OSW_INLINE __m128i load_v128(const void *from)
{
    return _mm_loadu_si128(from);
}

OSW_INLINE __m256i load_v256(const void *from)
{
    return _mm256_loadu_si256(from);
}

OSW_INLINE void store_v32(void *to, __m128i v)
{
    const int32_t bits = _mm_cvtsi128_si32(v);
    memcpy(to, &bits, sizeof bits);
}

OSW_INLINE void store_v64(void *to, __m128i v)
{
    _mm_storel_epi64(to, v);
}

OSW_INLINE void store_v128(void *to, __m128i v)
{
    _mm_storeu_si128(to, v);
}

OSW_INLINE void store_v256(void *to, __m256i v)
{
    _mm256_storeu_si256(to, v);
}
