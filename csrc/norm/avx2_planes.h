/* SPDX-License-Identifier: MIT */
/* Kernels where the positions of a channel are neighbours; included by avx2_types.h. */

/* Factors of one channel, in every lane. */
OSW_INLINE osw_factors LOCAL(broadcast)(const osw_norm *norm, int64_t c, const osw_mode mode)
{
    osw_factors f = {.center = _mm256_set1_ps((float)norm->center[c])};
    if (mode != MOMENTS) {
        f.scale = _mm256_set1_ps((float)norm->scale[c]);
        f.shift = _mm256_set1_ps((float)norm->shift[c]);
    }
    if (mode == GRADIENT || mode == SCALED_GRADIENT)
        f.slope = _mm256_set1_ps((float)norm->slope[c]);
    if (mode == GRADIENT) {
        f.tilt = _mm256_set1_ps((float)norm->tilt[c]);
        f.offset = _mm256_set1_ps((float)norm->offset[c]);
    }
    return f;
}

OSW_INLINE int64_t LOCAL(plane_at)(const osw_norm *norm, const osw_norm_tensor *t, int64_t image,
                                   int64_t channel)
{
    return image * t->image_step + channel * norm->positions;
}

/* The two sums of some values of a channel. */
typedef struct LOCAL(sums) {
    __m256 first, second;
} LOCAL(sums);

OSW_INLINE void LOCAL(add)(LOCAL(sums) * sums, __m256 x, __m256 dy, __m256 keep,
                           const osw_factors *f, const osw_mode mode,
                           const osw_activation activation)
{
    const __m256 centered = _mm256_and_ps(_mm256_sub_ps(x, f->center), keep);
    const __m256 a = _mm256_and_ps(summand(centered, dy, f, mode, activation), keep);
    sums->first = _mm256_add_ps(sums->first, a);
    sums->second = _mm256_fmadd_ps(a, centered, sums->second);
}

/* Add `count` values. Where count is no multiple of eight, at least seven values lie before x. */
OSW_INLINE void LOCAL(add_run)(LOCAL(sums) * sums, const ELEMENT *x, const ELEMENT *dy,
                               int64_t count, const osw_factors *f, const osw_mode mode,
                               const osw_activation activation)
{
    const __m256 all = last_lanes(LANES), none = _mm256_setzero_ps();
    LOCAL(sums) s[4] = {*sums, {none, none}, {none, none}, {none, none}};
    int64_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES) {
        if (osw_prefetch_ahead) {
            prefetch(x + i);
            prefetch(x + i + 2 * LANES);
            if (mode == REDUCE) {
                prefetch(dy + i);
                prefetch(dy + i + 2 * LANES);
            }
        }
        for (int u = 0; u < 4; u++) {
            const int64_t at = i + u * LANES;
            LOCAL(add)(&s[u], LOAD8(x + at), mode == REDUCE ? LOAD8(dy + at) : none, all, f, mode,
                       activation);
        }
    }
    for (; i + LANES <= count; i += LANES)
        LOCAL(add)(&s[1], LOAD8(x + i), mode == REDUCE ? LOAD8(dy + i) : none, all, f, mode,
                   activation);
    if (i < count) {
        const int64_t at = count - LANES;
        LOCAL(add)(&s[2], LOAD8(x + at), mode == REDUCE ? LOAD8(dy + at) : none,
                   last_lanes(count - i), f, mode, activation);
    }
    sums->first =
        _mm256_add_ps(_mm256_add_ps(s[0].first, s[1].first), _mm256_add_ps(s[2].first, s[3].first));
    sums->second = _mm256_add_ps(_mm256_add_ps(s[0].second, s[1].second),
                                 _mm256_add_ps(s[2].second, s[3].second));
}

/* Carry the float sums over into double ones. */
OSW_INLINE void LOCAL(flush)(LOCAL(sums) * sums, double (*total)[LANES])
{
    float lanes[LANES];
    _mm256_storeu_ps(lanes, sums->first);
    add_lanes(total[0], lanes);
    _mm256_storeu_ps(lanes, sums->second);
    add_lanes(total[1], lanes);
    sums->first = sums->second = _mm256_setzero_ps();
}

/* One plane in runs of at most OSW_NORM_FLUSH values; a flush after each run but the last. */
OSW_INLINE void LOCAL(add_plane)(LOCAL(sums) * sums, double (*total)[LANES], const ELEMENT *x,
                                 const ELEMENT *dy, int64_t positions, const osw_factors *f,
                                 const osw_mode mode, const osw_activation activation)
{
    int64_t p = 0;
    for (; p + OSW_NORM_FLUSH < positions; p += OSW_NORM_FLUSH) {
        LOCAL(add_run)(sums, x + p, mode == REDUCE ? dy + p : NULL, OSW_NORM_FLUSH, f, mode,
                       activation);
        LOCAL(flush)(sums, total);
    }
    LOCAL(add_run)(sums, x + p, mode == REDUCE ? dy + p : NULL, positions - p, f, mode, activation);
}

OSW_INLINE void LOCAL(sum_planes)(const osw_norm *norm, const osw_norm_part *part,
                                  const osw_mode mode, const osw_activation activation)
{
    const ELEMENT *x = norm->x.base, *dy = norm->dy.base;
    LOCAL(sums) sums[OSW_NORM_MAX_BLOCK];
    double totals[OSW_NORM_MAX_BLOCK][2][LANES];
    const int64_t channels = part->channel_end - part->channel_begin;
    memset(sums, 0, (size_t)channels * sizeof *sums);
    memset(totals, 0, (size_t)channels * sizeof *totals);
    int64_t pending = 0;
    for (int64_t n = part->begin; n < part->end; n++) {
        pending += norm->positions;
        const bool full = pending + norm->positions > OSW_NORM_FLUSH || n + 1 == part->end;
        for (int64_t i = 0; i < channels; i++) {
            const int64_t c = part->channel_begin + i;
            const osw_factors f = LOCAL(broadcast)(norm, c, mode);
            LOCAL(add_plane)(&sums[i], totals[i], x + LOCAL(plane_at)(norm, &norm->x, n, c),
                             mode == REDUCE ? dy + LOCAL(plane_at)(norm, &norm->dy, n, c) : NULL,
                             norm->positions, &f, mode, activation);
            if (full)
                LOCAL(flush)(&sums[i], totals[i]);
        }
        pending = full ? 0 : pending;
    }
    for (int64_t i = 0; i < channels; i++)
        for (int lane = 0; lane < LANES; lane++) {
            part->first[part->channel_begin + i] += totals[i][0][lane];
            part->second[part->channel_begin + i] += totals[i][1][lane];
        }
}

/* The last vector overlaps the one before; it is read before that is written, as `to` may be `x`.
 */
OSW_INLINE void LOCAL(write_plane)(ELEMENT *to, const ELEMENT *x, const ELEMENT *dy, int64_t count,
                                   const osw_factors *f, const osw_mode mode,
                                   const osw_activation activation)
{
    const __m256 none = _mm256_setzero_ps();
    const bool reads_dy = mode != APPLY;
    const int64_t end = count - LANES;
    const __m256 last =
        written(LOAD8(x + end), reads_dy ? LOAD8(dy + end) : none, f, mode, activation);
    int64_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES) {
        if (osw_prefetch_ahead)
            for (int u = 0; u < 4; u += 2) {
                prefetch(x + i + u * LANES);
                prefetch(to + i + u * LANES);
                if (reads_dy)
                    prefetch(dy + i + u * LANES);
            }
        for (int u = 0; u < 4; u++) {
            const int64_t at = i + u * LANES;
            STORE8(to + at,
                   written(LOAD8(x + at), reads_dy ? LOAD8(dy + at) : none, f, mode, activation));
        }
    }
    for (; i + LANES <= count; i += LANES)
        STORE8(to + i, written(LOAD8(x + i), reads_dy ? LOAD8(dy + i) : none, f, mode, activation));
    if (i < count)
        STORE8(to + end, last);
}

OSW_INLINE void LOCAL(write_planes)(const osw_norm *norm, const osw_norm_part *part,
                                    const osw_mode mode, const osw_activation activation)
{
    const osw_norm_tensor *to = mode == APPLY ? &norm->y : &norm->dx;
    const ELEMENT *x = norm->x.base, *dy = norm->dy.base;
    for (int64_t n = part->begin; n < part->end; n++)
        for (int64_t c = part->channel_begin; c < part->channel_end; c++) {
            const osw_factors f = LOCAL(broadcast)(norm, c, mode);
            LOCAL(write_plane)((ELEMENT *)to->base + LOCAL(plane_at)(norm, to, n, c),
                               x + LOCAL(plane_at)(norm, &norm->x, n, c),
                               mode == APPLY ? NULL : dy + LOCAL(plane_at)(norm, &norm->dy, n, c),
                               norm->positions, &f, mode, activation);
        }
}

/* Where a plane has no whole vector, the scalar kernel works. */
#define OR_SCALAR(operation)                                                                       \
    if (norm->positions < LANES) {                                                                 \
        fallback[ID_OF(operation##_planes)](norm, part);                                           \
        return;                                                                                    \
    }

static void KERNEL(moments_planes)(const osw_norm *norm, const osw_norm_part *part)
{
    OR_SCALAR(moments)
    LOCAL(sum_planes)(norm, part, MOMENTS, OSW_IDENTITY);
}

static void KERNEL(reduce_planes)(const osw_norm *norm, const osw_norm_part *part)
{
    OR_SCALAR(reduce)
    EACH_ACTIVATION(LOCAL(sum_planes), REDUCE)
}

static void KERNEL(apply_planes)(const osw_norm *norm, const osw_norm_part *part)
{
    OR_SCALAR(apply)
    EACH_ACTIVATION(LOCAL(write_planes), APPLY)
}

static void KERNEL(gradient_planes)(const osw_norm *norm, const osw_norm_part *part)
{
    OR_SCALAR(gradient)
    if (norm->tilt)
        EACH_ACTIVATION(LOCAL(write_planes), GRADIENT)
    else
        EACH_ACTIVATION(LOCAL(write_planes), SCALED_GRADIENT)
}

#undef OR_SCALAR
