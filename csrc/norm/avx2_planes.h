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

/* Add the vector at x; of the last one only the lanes that `keep` has. */
OSW_INLINE void LOCAL(add)(LOCAL(sums) * sums, const ELEMENT *x, const ELEMENT *dy,
                           const __m256 *keep, const osw_factors *f, const osw_mode mode,
                           const osw_activation activation)
{
    const __m256 given = mode == REDUCE ? LOAD8(dy) : _mm256_setzero_ps();
    __m256 centered = _mm256_sub_ps(LOAD8(x), f->center);
    if (keep && mode == MOMENTS)
        centered = _mm256_and_ps(centered, *keep);
    __m256 a = summand(centered, given, f, mode, activation);
    if (keep && mode == REDUCE) {
        centered = _mm256_and_ps(centered, *keep);
        a = _mm256_and_ps(a, *keep);
    }
    sums->first = _mm256_add_ps(sums->first, a);
    sums->second = _mm256_fmadd_ps(a, centered, sums->second);
}

/* Add `count` values. Where count is no multiple of eight, at least seven values lie before x. */
OSW_INLINE void LOCAL(add_run)(LOCAL(sums) * sums, const ELEMENT *x, const ELEMENT *dy,
                               int64_t count, const osw_factors *f, const osw_mode mode,
                               const osw_activation activation)
{
    const __m256 none = _mm256_setzero_ps();
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
        for (int u = 0; u < 4; u++)
            LOCAL(add)(&s[u], x + i + u * LANES, mode == REDUCE ? dy + i + u * LANES : NULL, NULL,
                       f, mode, activation);
    }
    for (; i + LANES <= count; i += LANES)
        LOCAL(add)(&s[1], x + i, mode == REDUCE ? dy + i : NULL, NULL, f, mode, activation);
    if (i < count) {
        const int64_t at = count - LANES;
        const __m256 keep = last_lanes(count - i);
        LOCAL(add)(&s[2], x + at, mode == REDUCE ? dy + at : NULL, &keep, f, mode, activation);
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

/* Vector i of a plane to be written. */
OSW_INLINE __m256 LOCAL(written_at)(const ELEMENT *x, const ELEMENT *dy, int64_t i,
                                    const osw_factors *f, const osw_mode mode,
                                    const osw_activation activation)
{
    const __m256 given = mode == APPLY ? _mm256_setzero_ps() : LOAD8(dy + i);
    return written(LOAD8(x + i), given, f, mode, activation);
}

/* The last vector overlaps the one before; it is read before that is written, as `to` may be `x`.
 */
OSW_INLINE void LOCAL(write_plane)(ELEMENT *to, const ELEMENT *x, const ELEMENT *dy, int64_t count,
                                   const osw_factors *f, const osw_mode mode,
                                   const osw_activation activation)
{
    const int64_t end = count - LANES;
    const __m256 last = LOCAL(written_at)(x, dy, end, f, mode, activation);
    int64_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES) {
        if (osw_prefetch_ahead)
            for (int u = 0; u < 4; u += 2) {
                prefetch(x + i + u * LANES);
                prefetch(to + i + u * LANES);
                if (mode != APPLY)
                    prefetch(dy + i + u * LANES);
            }
        for (int u = 0; u < 4; u++) {
            const int64_t at = i + u * LANES;
            STORE8(to + at, LOCAL(written_at)(x, dy, at, f, mode, activation));
        }
    }
    for (; i + LANES <= count; i += LANES)
        STORE8(to + i, LOCAL(written_at)(x, dy, i, f, mode, activation));
    if (i < count)
        STORE8(to + end, last);
}

/* Write values [begin, end), less than a line, of a plane of at least one line. */
OSW_INLINE void LOCAL(write_edge)(ELEMENT *to, const ELEMENT *x, const ELEMENT *dy, int64_t begin,
                                  int64_t end, const osw_factors *f, const osw_mode mode,
                                  const osw_activation activation)
{
    ELEMENT line[64 / sizeof(ELEMENT)];
    const int64_t last = 64 / (int64_t)sizeof(ELEMENT);
    const int64_t start = end < last ? 0 : end - last;
    for (int64_t i = 0; i < last; i += LANES)
        STORE8(line + i, LOCAL(written_at)(x, dy, start + i, f, mode, activation));
    memcpy(to + begin, line + (begin - start), (size_t)(end - begin) * sizeof *to);
}

/* The same around the caches: whole lines only, since a line written both ways is fetched first.
 * For planes of several lines that nothing overlaps. */
OSW_INLINE void LOCAL(stream_plane)(ELEMENT *to, const ELEMENT *x, const ELEMENT *dy, int64_t count,
                                    const osw_factors *f, const osw_mode mode,
                                    const osw_activation activation)
{
    const int64_t line = 64 / (int64_t)sizeof(ELEMENT);
    int64_t i = (int64_t)(-(uintptr_t)to % 64 / sizeof(ELEMENT));
    if (i > 0)
        LOCAL(write_edge)(to, x, dy, 0, i, f, mode, activation);
    for (; i + line <= count; i += line)
        for (int64_t at = i; at < i + line; at += LANES)
            STREAM8(to + at, LOCAL(written_at)(x, dy, at, f, mode, activation));
    if (i < count)
        LOCAL(write_edge)(to, x, dy, i, count, f, mode, activation);
}

OSW_INLINE void LOCAL(write_planes)(const osw_norm *norm, const osw_norm_part *part,
                                    const osw_mode mode, const osw_activation activation)
{
    const osw_norm_tensor *to = mode == APPLY ? &norm->y : &norm->dx;
    const bool stream = norm->stream && norm->positions >= STREAM_VALUES;
    for (int64_t n = part->begin; n < part->end; n++)
        for (int64_t c = part->channel_begin; c < part->channel_end; c++) {
            const osw_factors f = LOCAL(broadcast)(norm, c, mode);
            ELEMENT *plane = (ELEMENT *)to->base + LOCAL(plane_at)(norm, to, n, c);
            const ELEMENT *x =
                (const ELEMENT *)norm->x.base + LOCAL(plane_at)(norm, &norm->x, n, c);
            const ELEMENT *dy = mode == APPLY ? NULL
                                              : (const ELEMENT *)norm->dy.base +
                                                    LOCAL(plane_at)(norm, &norm->dy, n, c);
            if (stream)
                LOCAL(stream_plane)(plane, x, dy, norm->positions, &f, mode, activation);
            else
                LOCAL(write_plane)(plane, x, dy, norm->positions, &f, mode, activation);
        }
    if (stream)
        _mm_sfence();
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
