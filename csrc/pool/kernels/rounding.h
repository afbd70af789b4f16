/* SPDX-License-Identifier: MIT */
/* Vectors of eight floats: what pooling does with them beyond core/avx2_half.h; included inside a
 * target region. All arithmetic is done on floats. */

#define LANES 8

/* GCC moves a chain of sums down to where the last one is used, and spills all of their terms. */
#define KEEP_IN_PLACE(sum) __asm__("" : "+x"(sum))

/* Round a sum of two values of the dtype. */
OSW_INLINE __m256 round_sum_f32(__m256 v)
{
    return v;
}

OSW_INLINE __m256 round_moderate_f32(__m256 v)
{
    return v;
}

OSW_INLINE bool all_moderate_f32(const float *p, int64_t count)
{
    (void)p, (void)count;
    return true;
}

/* A NaN that comes of such a sum has nothing in the bits that go, so that it stays one. */
OSW_INLINE __m256 round_sum_bf16(__m256 v)
{
    return upper_half(_mm256_castsi256_ps(carry_bf16(v)));
}

/* The same for sums of magnitude below 2^110, in fewer steps: next to 1.5 * 2^16 times its power of
 * two, a float has the precision of bfloat16. A sum too small to be normal is exact already. */
OSW_INLINE __m256 round_moderate_bf16(__m256 v)
{
    const __m256 exponent = _mm256_castsi256_ps(_mm256_set1_epi32((int)0xff800000));
    const __m256 power = _mm256_and_ps(v, exponent), scale = _mm256_set1_ps(0x1.8p16f);
    return _mm256_fnmadd_ps(power, scale, _mm256_fmadd_ps(power, scale, v));
}

/* Whether `count` values are below 2^100, so that the sum of any 64 is below 2^110. */
OSW_INLINE bool all_moderate_bf16(const uint16_t *p, int64_t count)
{
    enum { MAGNITUDE = 0x7fff, TOO_LARGE = (100 + 127) << 7 };
    const __m256i magnitude = _mm256_set1_epi16(MAGNITUDE);
    __m256i most = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES)
        most = _mm256_max_epi16(
            most, _mm256_and_si256(magnitude, _mm256_loadu_si256((const __m256i *)(p + i))));
    bool moderate = _mm256_testz_si256(_mm256_cmpgt_epi16(most, _mm256_set1_epi16(TOO_LARGE - 1)),
                                       _mm256_set1_epi16(-1));
    for (; i < count; i++)
        moderate = moderate && (p[i] & MAGNITUDE) < TOO_LARGE;
    return moderate;
}

OSW_INLINE __m256 round_sum_f16(__m256 v)
{
    return round_f16(v);
}

OSW_INLINE __m256 round_moderate_f16(__m256 v)
{
    return round_f16(v);
}

OSW_INLINE bool all_moderate_f16(const uint16_t *p, int64_t count)
{
    (void)p, (void)count;
    return true;
}

/* The running maximum of eight lanes, and its tap. */
typedef struct osw_best {
    __m256 value;
    __m256i tap;
} osw_best;

/* A greater value wins, and so does a NaN. */
OSW_INLINE void take(osw_best *best, __m256 value, __m256i tap, const bool with_taps)
{
    const __m256 greater = _mm256_cmp_ps(value, best->value, _CMP_GT_OQ);
    const __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    const __m256 wins = _mm256_or_ps(greater, nan);
    best->value = _mm256_blendv_ps(best->value, value, wins);
    if (with_taps)
        best->tap = _mm256_castps_si256(
            _mm256_blendv_ps(_mm256_castsi256_ps(best->tap), _mm256_castsi256_ps(tap), wins));
}

/* Lanes in the order 0 1 4 5 2 3 6 7 put in order. */
OSW_INLINE void in_order(osw_best *best)
{
    best->value = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(best->value), 0xd8));
    best->tap = _mm256_permute4x64_epi64(best->tap, 0xd8);
}

/* The greater of two numbers, of two zeros the first. */
OSW_INLINE __m256 max_first(__m256 first, __m256 second)
{
    return _mm256_max_ps(second, first);
}

OSW_INLINE __m256i same_lanes(__m256 a, __m256 b)
{
    return _mm256_cmpeq_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b));
}

/* a where the mask is set, else b. */
OSW_INLINE __m256i choose(__m256i mask, __m256i a, __m256i b)
{
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(b), _mm256_castsi256_ps(a),
                                                _mm256_castsi256_ps(mask)));
}

OSW_INLINE void store_taps(uint8_t *p, __m256i tap)
{
    const __m128i narrow = narrow_16(tap);
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(narrow, narrow));
}

OSW_INLINE __m256i load_taps(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

OSW_INLINE __m256i load_ints(const int32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* x0 x2 ... y0 y2 ... and x1 x3 ... y1 y3 ... */
OSW_INLINE void unzip(__m256 x, __m256 y, __m256 *even, __m256 *odd)
{
    const __m256d e = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0x88));
    const __m256d o = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0xdd));
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(e, 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(o, 0xd8));
}

/* x0 y0 x1 y1 ... */
OSW_INLINE void zip(__m256 x, __m256 y, __m256 *low, __m256 *high)
{
    const __m256 a = _mm256_unpacklo_ps(x, y), b = _mm256_unpackhi_ps(x, y);
    *low = _mm256_permute2f128_ps(a, b, 0x20);
    *high = _mm256_permute2f128_ps(a, b, 0x31);
}

/* Store x0 y0 x1 y1 ..., values of the dtype; around the caches if `stream`, to a multiple of 32
 * bytes. */
OSW_INLINE void store_zip_f32(float *p, __m256 x, __m256 y, const bool stream)
{
    __m256 low, high;
    zip(x, y, &low, &high);
    if (stream) {
        stream_rounded_f32(p, low);
        stream_rounded_f32(p + LANES, high);
    } else {
        store_f32(p, low);
        store_f32(p + LANES, high);
    }
}

OSW_INLINE void store_zip_bf16(uint16_t *p, __m256 x, __m256 y, const bool stream)
{
    const __m256i low = _mm256_srli_epi32(_mm256_castps_si256(x), 16);
    const __m256i pairs = _mm256_blend_epi16(low, _mm256_castps_si256(y), 0xaa);
    if (stream)
        _mm256_stream_si256((__m256i *)p, pairs);
    else
        _mm256_storeu_si256((__m256i *)p, pairs);
}

OSW_INLINE void store_zip_f16(uint16_t *p, __m256 x, __m256 y, const bool stream)
{
    __m256 low, high;
    zip(x, y, &low, &high);
    if (stream) {
        stream_rounded_f16(p, low);
        stream_rounded_f16(p + LANES, high);
    } else {
        store_f16(p, low);
        store_f16(p + LANES, high);
    }
}
