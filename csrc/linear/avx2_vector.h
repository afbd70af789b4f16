/* SPDX-License-Identifier: MIT */
/* What the kernels need of vectors of float and double, under one name and a suffix, with elements
 * of float, double, bfloat16 and float16 in memory. */

OSW_INLINE __m256d load_f64(const double *p)
{
    return _mm256_loadu_pd(p);
}

OSW_INLINE void store_rounded_f64(double *p, __m256d v)
{
    _mm256_storeu_pd(p, v);
}

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

/* Store lanes [0, count), count < lanes, rounded. Masked stores are slow on AMD. */
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

/* Elements [0, count) of eight, count < 8; the others are zero. */
OSW_INLINE __m128i load_some_16(const uint16_t *from, int64_t count)
{
    __m128i v = _mm_setzero_si128();
    if (count & 1)
        v = _mm_cvtsi32_si128(from[count - 1]);
    if (count & 2) {
        int32_t two;
        memcpy(&two, from + (count & 4), sizeof two);
        v = _mm_insert_epi32(_mm_slli_si128(v, 4), two, 0);
    }
    if (count & 4)
        v = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)from), v);
    return v;
}

OSW_INLINE void store_some_16(uint16_t *to, __m128i v, int64_t count)
{
    if (count & 4) {
        _mm_storel_epi64((__m128i *)to, v);
        v = _mm_unpackhi_epi64(v, v);
        to += 4;
    }
    if (count & 2) {
        const int32_t two = _mm_cvtsi128_si32(v);
        memcpy(to, &two, sizeof two);
        v = _mm_srli_si128(v, 4);
        to += 2;
    }
    if (count & 1)
        *to = (uint16_t)_mm_extract_epi16(v, 0);
}

OSW_INLINE __m256 load_some_f32(const float *from, int64_t count)
{
    return _mm256_maskload_ps(from, mask_f32(count));
}

OSW_INLINE __m256d load_some_f64(const double *from, int64_t count)
{
    return _mm256_maskload_pd(from, mask_f64(count));
}

OSW_INLINE __m256 load_some_bf16(const uint16_t *from, int64_t count)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_some_16(from, count)), 16));
}

OSW_INLINE __m256 load_some_f16(const uint16_t *from, int64_t count)
{
    return _mm256_cvtph_ps(load_some_16(from, count));
}

OSW_INLINE void store_some_bf16(uint16_t *to, __m256 v, int64_t count)
{
    store_some_16(to, upper_halves(carry_any_bf16(v)), count);
}

OSW_INLINE void store_some_f16(uint16_t *to, __m256 v, int64_t count)
{
    store_some_16(to, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT), count);
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

OSW_INLINE void sum4_bf16(const __m256 *v, float *out)
{
    sum4_f32(v, out);
}

OSW_INLINE void sum4_f16(const __m256 *v, float *out)
{
    sum4_f32(v, out);
}
