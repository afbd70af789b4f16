/* SPDX-License-Identifier: MIT */
/* Planes read eight at a time, side by side, so that a vector holds one position of each and no row
 * is too short for it; included inside a target region. */

/* Positions of a plane that are worked on together: with eight planes, half of an L1 cache. */
enum { OCTET_TILE = 1024 };

/* Rows of 4 + 4 lanes turned into columns. */
OSW_INLINE void transpose8(__m256 v[8])
{
    __m256 pairs[8], quads[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
    }
}

/* The tap of one position of eight planes, as integers of each plane. */
OSW_INLINE void separate_taps(const int32_t *from, int64_t count, int32_t *const *planes)
{
    for (int64_t i = 0; count >= 8 && i < count; i += 8) {
        const int64_t at = osw_min(i, count - 8);
        __m256 v[8];
        for (int position = 0; position < 8; position++)
            v[position] = _mm256_loadu_ps((const float *)(from + (at + position) * 8));
        transpose8(v);
        for (int plane = 0; plane < 8; plane++)
            _mm256_storeu_ps((float *)(planes[plane] + at), v[plane]);
    }
    for (int64_t i = 0; count < 8 && i < count; i++)
        for (int plane = 0; plane < 8; plane++)
            planes[plane][i] = from[i * 8 + plane];
}
