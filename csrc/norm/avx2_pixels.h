/* SPDX-License-Identifier: MIT */
/* Kernels where the channels of a position are neighbours; included by avx2_types.h.
 *
 * A pattern is the least number of whole rows, but some, that fills whole vectors: no number of
 * channels has a tail. What a value takes depends on its place in the pattern only. Wide patterns
 * are walked in strips of at most STRIP values, whose factors and sums stay in L1. */

/* Rows of a pattern: the multiple that fills vectors, then more while the pattern is short. Divides
 * OSW_NORM_ROWS. */
static int64_t LOCAL(pattern_rows)(int64_t channels)
{
    int64_t rows = 1;
    while (rows * channels % LANES != 0 ||
           (rows * channels < SHORT_PATTERN && rows < OSW_NORM_ROWS))
        rows *= 2;
    return rows;
}

/* One factor of every value of a strip that starts at `column` of the pattern, into every
 * FACTORS-th vector: what one vector of values takes lies together. */
OSW_INLINE void LOCAL(spread)(float *to, const double *from, int64_t column, int64_t width,
                              int64_t channels)
{
    int64_t c = column % channels;
    for (int64_t i = 0; i < width; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            to[i * FACTORS + lane] = (float)from[c];
            c = c + 1 == channels ? 0 : c + 1;
        }
}

OSW_INLINE void LOCAL(fill_strip)(float *strip, const osw_norm *norm, int64_t column, int64_t width,
                                  const osw_mode mode)
{
    const double *const factors[FACTORS] = {norm->center, norm->scale, norm->shift,
                                            norm->slope,  norm->tilt,  norm->offset};
    const int count = factor_count(mode);
    for (int i = 0; i < count; i++)
        LOCAL(spread)(strip + i * LANES, factors[i], column, width, norm->channels);
}

OSW_INLINE osw_factors LOCAL(factors_at)(const float *strip, int64_t i, const osw_mode mode)
{
    osw_factors f;
    __m256 *const places[FACTORS] = {&f.center, &f.scale, &f.shift, &f.slope, &f.tilt, &f.offset};
    const int count = factor_count(mode);
    for (int n = 0; n < count; n++)
        *places[n] = _mm256_loadu_ps(strip + i * FACTORS + n * LANES);
    return f;
}

/* Ask for the lines of `width` values. The factors fill the load queue, which leaves few misses
 * under way: patterns are fetched AHEAD of their turn. Measured beyond L3 on Zen 4, training
 * forward gains 25 %, inference 20 %, the backward 10 %. */
OSW_INLINE void LOCAL(fetch)(const ELEMENT *at, int64_t width)
{
    for (int64_t i = 0; i < width; i += 64 / (int64_t)sizeof(ELEMENT))
        _mm_prefetch((const char *)(at + i), _MM_HINT_T0);
}

/* Add `count` patterns of a strip, `step` values from one to the next. */
OSW_INLINE void LOCAL(add_patterns)(float *first, float *second, const float *strip,
                                    const ELEMENT *x, const ELEMENT *dy, int64_t step,
                                    int64_t width, const int count, const osw_mode mode,
                                    const osw_activation activation)
{
    for (int64_t i = 0; i < width; i += LANES) {
        const osw_factors f = LOCAL(factors_at)(strip, i, mode);
        __m256 a = _mm256_loadu_ps(first + i), b = _mm256_loadu_ps(second + i);
        __m256 more_a = _mm256_setzero_ps(), more_b = _mm256_setzero_ps();
        for (int u = 0; u < count; u++) {
            const int64_t at = u * step + i;
            const __m256 centered = _mm256_sub_ps(LOAD8(x + at), f.center);
            const __m256 given = mode == REDUCE ? LOAD8(dy + at) : centered;
            const __m256 value = summand(centered, given, &f, mode, activation);
            more_a = _mm256_add_ps(more_a, value);
            more_b = _mm256_fmadd_ps(value, centered, more_b);
        }
        _mm256_storeu_ps(first + i, _mm256_add_ps(a, more_a));
        _mm256_storeu_ps(second + i, _mm256_add_ps(b, more_b));
    }
}

/* Carry the sums of a strip over to its channels, in double. */
OSW_INLINE void LOCAL(flush_strip)(double *to, float *from, int64_t column, int64_t width,
                                   int64_t channels)
{
    int64_t c = column % channels;
    for (int64_t i = 0; i < width;) {
        const int64_t run = channels - c < width - i ? channels - c : width - i;
        for (int64_t j = 0; j < run; j++)
            to[c + j] += (double)from[i + j];
        i += run;
        c = 0;
    }
    memset(from, 0, (size_t)width * sizeof *from);
}

OSW_INLINE void LOCAL(sum_strip)(const osw_norm *norm, const osw_norm_part *part, int64_t column,
                                 int64_t width, int64_t pattern, int64_t patterns,
                                 const osw_mode mode, const osw_activation activation)
{
    float strip[FACTORS * STRIP];
    float first[STRIP] = {0}, second[STRIP] = {0};
    LOCAL(fill_strip)(strip, norm, column, width, mode);
    const int64_t start = part->begin * norm->channels + column;
    const ELEMENT *x = (const ELEMENT *)norm->x.base + start;
    const ELEMENT *dy = mode == REDUCE ? (const ELEMENT *)norm->dy.base + start : NULL;
    for (int64_t p = 0; p < patterns;) {
        const int64_t stop = p + FLUSH_PATTERNS < patterns ? p + FLUSH_PATTERNS : patterns;
        for (; p + 2 <= stop; p += 2) {
            const int64_t skip = p * pattern;
            for (int64_t next = skip + AHEAD * pattern, n = 0; n < 2; n++, next += pattern) {
                LOCAL(fetch)(x + next, width);
                if (mode == REDUCE)
                    LOCAL(fetch)(dy + next, width);
            }
            LOCAL(add_patterns)(first, second, strip, x + skip, mode == REDUCE ? dy + skip : NULL,
                                pattern, width, 2, mode, activation);
        }
        for (; p < stop; p++)
            LOCAL(add_patterns)(first, second, strip, x + p * pattern,
                                mode == REDUCE ? dy + p * pattern : NULL, pattern, width, 1, mode,
                                activation);
        LOCAL(flush_strip)(part->first, first, column, width, norm->channels);
        LOCAL(flush_strip)(part->second, second, column, width, norm->channels);
    }
}

/* The rows that fill no pattern go to the scalar kernel. */
OSW_INLINE void LOCAL(sum_pixels)(const osw_norm *norm, const osw_norm_part *part,
                                  const osw_mode mode, const osw_activation activation)
{
    const int64_t rows = LOCAL(pattern_rows)(norm->channels), pattern = rows * norm->channels;
    const int64_t patterns = (part->end - part->begin) / rows;
    for (int64_t column = 0; patterns && column < pattern; column += STRIP) {
        const int64_t width = pattern - column < STRIP ? pattern - column : STRIP;
        LOCAL(sum_strip)(norm, part, column, width, pattern, patterns, mode, activation);
    }
    osw_norm_part rest = *part;
    rest.begin += patterns * rows;
    const osw_norm_id id = mode == MOMENTS ? ID_OF(moments_pixels) : ID_OF(reduce_pixels);
    if (rest.begin < rest.end)
        fallback[id](norm, &rest);
}

OSW_INLINE void LOCAL(write_strip)(const osw_norm *norm, const osw_norm_part *part, int64_t column,
                                   int64_t width, int64_t pattern, int64_t patterns,
                                   const osw_mode mode, const osw_activation activation)
{
    float strip[FACTORS * STRIP];
    LOCAL(fill_strip)(strip, norm, column, width, mode);
    const int64_t start = part->begin * norm->channels + column;
    const ELEMENT *x = (const ELEMENT *)norm->x.base + start;
    const ELEMENT *dy = mode == APPLY ? NULL : (const ELEMENT *)norm->dy.base + start;
    ELEMENT *to = (ELEMENT *)(mode == APPLY ? norm->y.base : norm->dx.base) + start;
    for (int64_t p = 0; p < patterns; p++) {
        const int64_t skip = p * pattern, next = skip + AHEAD * pattern;
        LOCAL(fetch)(x + next, width);
        LOCAL(fetch)(to + next, width);
        if (mode != APPLY)
            LOCAL(fetch)(dy + next, width);
        for (int64_t i = 0; i < width; i += LANES) {
            const osw_factors f = LOCAL(factors_at)(strip, i, mode);
            const __m256 given = mode == APPLY ? _mm256_setzero_ps() : LOAD8(dy + skip + i);
            STORE8(to + skip + i, written(LOAD8(x + skip + i), given, &f, mode, activation));
        }
    }
}

OSW_INLINE void LOCAL(write_pixels)(const osw_norm *norm, const osw_norm_part *part,
                                    const osw_mode mode, const osw_activation activation)
{
    const int64_t rows = LOCAL(pattern_rows)(norm->channels), pattern = rows * norm->channels;
    const int64_t patterns = (part->end - part->begin) / rows;
    for (int64_t column = 0; patterns && column < pattern; column += STRIP) {
        const int64_t width = pattern - column < STRIP ? pattern - column : STRIP;
        LOCAL(write_strip)(norm, part, column, width, pattern, patterns, mode, activation);
    }
    osw_norm_part rest = *part;
    rest.begin += patterns * rows;
    const osw_norm_id id = mode == APPLY ? ID_OF(apply_pixels) : ID_OF(gradient_pixels);
    if (rest.begin < rest.end)
        fallback[id](norm, &rest);
}

static void KERNEL(moments_pixels)(const osw_norm *norm, const osw_norm_part *part)
{
    LOCAL(sum_pixels)(norm, part, MOMENTS, OSW_IDENTITY);
}

static void KERNEL(reduce_pixels)(const osw_norm *norm, const osw_norm_part *part)
{
    EACH_ACTIVATION(LOCAL(sum_pixels), REDUCE)
}

static void KERNEL(apply_pixels)(const osw_norm *norm, const osw_norm_part *part)
{
    EACH_ACTIVATION(LOCAL(write_pixels), APPLY)
}

static void KERNEL(gradient_pixels)(const osw_norm *norm, const osw_norm_part *part)
{
    if (norm->tilt)
        EACH_ACTIVATION(LOCAL(write_pixels), GRADIENT)
    else
        EACH_ACTIVATION(LOCAL(write_pixels), SCALED_GRADIENT)
}
