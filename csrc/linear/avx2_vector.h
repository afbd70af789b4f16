/* SPDX-License-Identifier: MIT */
/* What the kernels need of vectors of float and double, under one name and a suffix. */

/* Lanes [0, count) are set; count <= lanes. */
OSW_INLINE __m256i mask_f32(int64_t count)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), lane);
}

OSW_INLINE __m256i mask_f64(int64_t count)
{
    const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), lane);
}

/* Store lanes [0, count), count < lanes. Masked stores are slow on AMD. */
OSW_INLINE void store_some_f32(float *to, __m256 v, int64_t count)
{
    __m128 half = _mm256_castps256_ps128(v);
    if (count & 4) {
        _mm_storeu_ps(to, half);
        half = _mm256_extractf128_ps(v, 1);
        to += 4;
    }
    if (count & 2) {
        _mm_storel_pi((__m64 *)to, half);
        half = _mm_movehl_ps(half, half);
        to += 2;
    }
    if (count & 1)
        _mm_store_ss(to, half);
}

OSW_INLINE void store_some_f64(double *to, __m256d v, int64_t count)
{
    __m128d half = _mm256_castpd256_pd128(v);
    if (count & 2) {
        _mm_storeu_pd(to, half);
        half = _mm256_extractf128_pd(v, 1);
        to += 2;
    }
    if (count & 1)
        _mm_store_sd(to, half);
}

/* out[j] = sum of the lanes of v[j], j < 4 */
OSW_INLINE void sum4_f32(const __m256 *v, float *out)
{
    const __m256 low = _mm256_hadd_ps(v[0], v[1]), high = _mm256_hadd_ps(v[2], v[3]);
    const __m256 halves = _mm256_hadd_ps(low, high);
    _mm_storeu_ps(out,
                  _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
}

OSW_INLINE void sum4_f64(const __m256d *v, double *out)
{
    const __m256d low = _mm256_hadd_pd(v[0], v[1]), high = _mm256_hadd_pd(v[2], v[3]);
    const __m256d crossed = _mm256_permute2f128_pd(low, high, 0x21);
    _mm256_storeu_pd(out, _mm256_add_pd(crossed, _mm256_blend_pd(low, high, 0xc)));
}

/* to[j * to_step + i] = from[i * from_step + j] for a square of as many rows as a vector has lanes
 */
OSW_INLINE void transpose_f32(const float *from, int64_t from_step, float *to, int64_t to_step)
{
    __m256 r[8], t[8];
    for (int i = 0; i < 4; i++) {
        const __m256 a = _mm256_loadu_ps(from + 2 * i * from_step);
        const __m256 b = _mm256_loadu_ps(from + (2 * i + 1) * from_step);
        t[2 * i] = _mm256_unpacklo_ps(a, b);
        t[2 * i + 1] = _mm256_unpackhi_ps(a, b);
    }
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 2; j++) {
            const __m256 a = t[4 * i + j], b = t[4 * i + 2 + j];
            r[4 * i + 2 * j] = _mm256_shuffle_ps(a, b, 0x44);
            r[4 * i + 2 * j + 1] = _mm256_shuffle_ps(a, b, 0xee);
        }
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * to_step, _mm256_permute2f128_ps(r[i], r[4 + i], 0x20));
        _mm256_storeu_ps(to + (4 + i) * to_step, _mm256_permute2f128_ps(r[i], r[4 + i], 0x31));
    }
}

OSW_INLINE void transpose_f64(const double *from, int64_t from_step, double *to, int64_t to_step)
{
    __m256d t[4];
    for (int i = 0; i < 2; i++) {
        const __m256d a = _mm256_loadu_pd(from + 2 * i * from_step);
        const __m256d b = _mm256_loadu_pd(from + (2 * i + 1) * from_step);
        t[2 * i] = _mm256_unpacklo_pd(a, b);
        t[2 * i + 1] = _mm256_unpackhi_pd(a, b);
    }
    for (int i = 0; i < 2; i++) {
        _mm256_storeu_pd(to + i * to_step, _mm256_permute2f128_pd(t[i], t[2 + i], 0x20));
        _mm256_storeu_pd(to + (2 + i) * to_step, _mm256_permute2f128_pd(t[i], t[2 + i], 0x31));
    }
}
