/* SPDX-License-Identifier: MIT */
/* Vectors of eight floats: activations, and what z and dx of eight values take; included by
 * norm_avx2.c inside its target region. */

enum { LANES = 8, FACTORS = 5 };

/* All bits of the last `count` lanes, 0 to 8. */
OSW_INLINE __m256 last_lanes(int64_t count)
{
    static const int32_t bits[2 * LANES] = {0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *)(bits + count)));
}

/* Eight float sums, in double, onto the sums of as many channels. */
OSW_INLINE void add_lanes(double *to, const float *from)
{
    for (int i = 0; i < LANES; i += 4) {
        const __m256d more = _mm256_cvtps_pd(_mm_loadu_ps(from + i));
        _mm256_storeu_pd(to + i, _mm256_add_pd(_mm256_loadu_pd(to + i), more));
    }
}

typedef struct osw_factors {
    __m256 center, scale, shift, tilt, offset;
} osw_factors;

/* What a kernel adds up, or writes. */
typedef enum osw_mode { MOMENTS, REDUCE, APPLY, GRADIENT, SCALED_GRADIENT } osw_mode;

/* How many of the factors a mode takes: the first ones. */
OSW_INLINE int factor_count(const osw_mode mode)
{
    static const int counts[] = {
        [MOMENTS] = 1, [REDUCE] = 3, [APPLY] = 3, [SCALED_GRADIENT] = 3, [GRADIENT] = FACTORS};
    return counts[mode];
}

/* max and min return their second operand where one is NaN, and max that of -0.0 and 0.0. */
OSW_INLINE __m256 clamp_low(__m256 z)
{
    return _mm256_max_ps(_mm256_setzero_ps(), z);
}

OSW_INLINE __m256 clamp6(__m256 z)
{
    return _mm256_min_ps(_mm256_set1_ps(6), clamp_low(z));
}

OSW_INLINE __m256 activate(__m256 z, const osw_activation activation)
{
    switch (activation) {
    case OSW_RELU:
        return clamp_low(z);
    case OSW_RELU6:
        return clamp6(z);
    case OSW_HARDSWISH:
        return _mm256_mul_ps(_mm256_mul_ps(z, clamp6(_mm256_add_ps(z, _mm256_set1_ps(3)))),
                             _mm256_set1_ps(1.0f / 6));
    default:
        return z;
    }
}

/* dy * f'(z); comparisons "not less" and "not greater" are true of a NaN. */
OSW_INLINE __m256 gate(__m256 dy, __m256 z, const osw_activation activation)
{
    const __m256 zero = _mm256_setzero_ps(), three = _mm256_set1_ps(3);
    switch (activation) {
    case OSW_RELU:
        return _mm256_and_ps(dy, _mm256_cmp_ps(z, zero, _CMP_NLE_UQ));
    case OSW_RELU6: {
        const __m256 above = _mm256_cmp_ps(z, zero, _CMP_NLE_UQ);
        const __m256 below = _mm256_cmp_ps(z, _mm256_set1_ps(6), _CMP_NGE_UQ);
        return _mm256_and_ps(dy, _mm256_and_ps(above, below));
    }
    case OSW_HARDSWISH: {
        const __m256 slope = _mm256_fmadd_ps(z, _mm256_set1_ps(1.0f / 3), _mm256_set1_ps(0.5f));
        const __m256 linear = _mm256_cmp_ps(z, three, _CMP_NLT_UQ);
        const __m256 d = _mm256_blendv_ps(_mm256_mul_ps(dy, slope), dy, linear);
        return _mm256_and_ps(d, _mm256_cmp_ps(z, _mm256_set1_ps(-3), _CMP_NLE_UQ));
    }
    default:
        return dy;
    }
}

OSW_INLINE __m256 z_of(__m256 centered, const osw_factors *f)
{
    return _mm256_fmadd_ps(centered, f->scale, f->shift);
}

/* The value that a writing kernel stores; dy counts for a gradient only. */
OSW_INLINE __m256 written(__m256 x, __m256 dy, const osw_factors *f, const osw_mode mode,
                          const osw_activation activation)
{
    const __m256 centered = _mm256_sub_ps(x, f->center);
    if (mode == APPLY)
        return activate(z_of(centered, f), activation);
    const __m256 d = gate(dy, z_of(centered, f), activation);
    if (mode == SCALED_GRADIENT)
        return _mm256_mul_ps(d, f->scale);
    return _mm256_fmadd_ps(d, f->scale, _mm256_fmadd_ps(centered, f->tilt, f->offset));
}

/* What a value gives to the first sum; its product with x - center goes to the second. */
OSW_INLINE __m256 summand(__m256 centered, __m256 dy, const osw_factors *f, const osw_mode mode,
                          const osw_activation activation)
{
    return mode == MOMENTS ? centered : gate(dy, z_of(centered, f), activation);
}

OSW_INLINE void prefetch(const void *at)
{
    _mm_prefetch((const char *)at + osw_prefetch_ahead, _MM_HINT_T0);
}
