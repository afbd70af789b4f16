/* SPDX-License-Identifier: MIT */
/* Kernels for layouts in which the positions of a channel are neighbours; included once per dtype.
 */
#include "core/simd.h"
#include "norm/activation.h"
#include "norm/below.h"
#include "norm/norm.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* Factors of one channel, in every lane. */
OSW_INLINE osw_factors LOCAL(broadcast)(const osw_norm *norm, int64_t c, const osw_mode mode)
{
    osw_factors f = {.center = set1_f32((float)norm->center[c])};
    if (mode != MOMENTS) {
        f.scale = set1_f32((float)norm->scale[c]);
        f.shift = set1_f32((float)norm->shift[c]);
    }
    if (mode == GRADIENT) {
        f.tilt = set1_f32((float)norm->tilt[c]);
        f.offset = set1_f32((float)norm->offset[c]);
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
    vf32 first, second;
} LOCAL(sums);

/* Add the vector at x; of the last one only the lanes that `keep` has. */
OSW_INLINE void LOCAL(add)(
    LOCAL(sums) *sums, const ELEMENT *x, const ELEMENT *dy, const vi32 *keep,
                    const osw_factors *f, const osw_mode mode, const osw_activation activation)
{
    const vf32 given = mode == REDUCE ? LOCAL(load)(dy) : (vf32){0};
    vf32 centered = LOCAL(load)(x) - f->center;
    if (keep && mode == MOMENTS)
        centered = keep_f32(*keep, centered);
    vf32 a = summand(centered, given, f, mode, activation);
    if (keep && mode == REDUCE) {
        centered = keep_f32(*keep, centered);
        a = keep_f32(*keep, a);
    }
    sums->first += a;
    sums->second = fma_f32(a, centered, sums->second);
}

/* Add `count` values. If count is not a multiple of LANES, at least LANES - 1 values lie before x.
 */
OSW_INLINE void LOCAL(add_run)(
    LOCAL(sums) *sums, const ELEMENT *x, const ELEMENT *dy, int64_t count,
                        const osw_factors *f, const osw_mode mode, const osw_activation activation)
{
    const vf32 none = (vf32){0};
    LOCAL(sums) s[4] = {*sums, {none, none}, {none, none}, {none, none}};
    int64_t i = 0;
    for (; !is_lean(activation) && i + 4 * LANES <= count; i += 4 * LANES) {
        if (osw_prefetch_ahead) {
            prefetch_ahead(x + i);
            prefetch_ahead(x + i + 2 * LANES);
            if (mode == REDUCE) {
                prefetch_ahead(dy + i);
                prefetch_ahead(dy + i + 2 * LANES);
            }
        }
        for (int u = 0; u < 4; u++)
            LOCAL(
                add)(&s[u], x + i + u * LANES, mode == REDUCE ? dy + i + u * LANES : NULL, NULL, f, mode,
                activation);
    }
    for (; i + LANES <= count; i += LANES)
        LOCAL(add)(&s[1], x + i, mode == REDUCE ? dy + i : NULL, NULL, f, mode, activation);
    if (i < count) {
        const int64_t at = count - LANES;
        const vi32 keep = last_lanes_i32(count - i);
        LOCAL(add)(&s[2], x + at, mode == REDUCE ? dy + at : NULL, &keep, f, mode, activation);
    }
    sums->first = (s[0].first + s[1].first) + (s[2].first + s[3].first);
    sums->second = (s[0].second + s[1].second) + (s[2].second + s[3].second);
}

/* Carry the float sums over into double ones. */
OSW_INLINE void LOCAL(flush)(LOCAL(sums) *sums, double (*total)[LANES])
{
    add_as_doubles(total[0], sums->first);
    add_as_doubles(total[1], sums->second);
    sums->first = sums->second = (vf32){0};
}

/* One plane in runs of at most OSW_NORM_FLUSH values; a flush after each run but the last. */
OSW_INLINE void LOCAL(add_plane)(
    LOCAL(sums) *sums, double (*total)[LANES], const ELEMENT *x, const ELEMENT *dy,
                          int64_t positions, const osw_factors *f, const osw_mode mode,
                          const osw_activation activation)
{
    int64_t p = 0;
    for (; p + OSW_NORM_FLUSH < positions; p += OSW_NORM_FLUSH) {
        LOCAL(
            add_run)(sums, x + p, mode == REDUCE ? dy + p : NULL, OSW_NORM_FLUSH, f, mode, activation);
        LOCAL(flush)(sums, total);
    }
    LOCAL(add_run)(sums, x + p, mode == REDUCE ? dy + p : NULL, positions - p, f, mode, activation);
}

OSW_INLINE void
LOCAL(sum_planes)(const osw_norm *norm, const osw_norm_part *part, const osw_mode mode,
                           const osw_activation activation)
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
            LOCAL(
                add_plane)(&sums[i], totals[i], x + LOCAL(plane_at)(norm, &norm->x, n, c),
                      mode == REDUCE ? dy + LOCAL(plane_at)(norm, &norm->dy, n, c) : NULL, norm->positions,
                      &f, mode, activation);
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
OSW_INLINE vf32
LOCAL(written_at)(const ELEMENT *x, const ELEMENT *dy, int64_t i, const osw_factors *f,
                           const osw_mode mode, const osw_activation activation)
{
    const vf32 given = mode == APPLY ? (vf32){0} : LOCAL(load)(dy + i);
    return written(LOCAL(load)(x + i), given, f, mode, activation);
}

/* The last vector overlaps the one before; it is read before that is written, as `to` may be `x`.
 */
OSW_INLINE void LOCAL(write_plane)(ELEMENT *to, const ELEMENT *x, const ELEMENT *dy, int64_t count,
                            const osw_factors *f, const osw_mode mode,
                            const osw_activation activation)
{
    const int64_t end = count - LANES;
    const vf32 last = LOCAL(written_at)(x, dy, end, f, mode, activation);
    int64_t i = 0;
    for (; !is_lean(activation) && i + 4 * LANES <= count; i += 4 * LANES) {
        if (osw_prefetch_ahead)
            for (int u = 0; u < 4; u += 2) {
                prefetch_ahead(x + i + u * LANES);
                prefetch_ahead(to + i + u * LANES);
                if (mode != APPLY)
                    prefetch_ahead(dy + i + u * LANES);
            }
        for (int u = 0; u < 4; u++) {
            const int64_t at = i + u * LANES;
            LOCAL(store_rounded)(to + at, LOCAL(written_at)(x, dy, at, f, mode, activation));
        }
    }
    for (; i + LANES <= count; i += LANES)
        LOCAL(store_rounded)(to + i, LOCAL(written_at)(x, dy, i, f, mode, activation));
    if (i < count)
        LOCAL(store_rounded)(to + end, last);
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
        LOCAL(store_rounded)(line + i, LOCAL(written_at)(x, dy, start + i, f, mode, activation));
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
            LOCAL(stream_rounded)(to + at, LOCAL(written_at)(x, dy, at, f, mode, activation));
    if (i < count)
        LOCAL(write_edge)(to, x, dy, i, count, f, mode, activation);
}

OSW_INLINE void
LOCAL(write_planes)(const osw_norm *norm, const osw_norm_part *part, const osw_mode mode,
                             const osw_activation activation)
{
    const osw_norm_tensor *to = mode == APPLY ? &norm->y : &norm->dx;
    const bool stream = !is_lean(activation) && norm->stream && norm->positions >= STREAM_VALUES;
    for (int64_t n = part->begin; n < part->end; n++)
        for (int64_t c = part->channel_begin; c < part->channel_end; c++) {
            const osw_factors f = LOCAL(broadcast)(norm, c, mode);
            ELEMENT *plane = (ELEMENT *)to->base + LOCAL(plane_at)(norm, to, n, c);
            const ELEMENT *x = (const ELEMENT *)norm->x.base +
                               LOCAL(plane_at)(norm, &norm->x, n, c);
            const ELEMENT *dy =
                mode == APPLY ? NULL
                              : (const ELEMENT *)norm->dy.base +
                                    LOCAL(plane_at)(norm, &norm->dy, n, c);
            if (stream)
                LOCAL(stream_plane)(plane, x, dy, norm->positions, &f, mode, activation);
            else
                LOCAL(write_plane)(plane, x, dy, norm->positions, &f, mode, activation);
        }
    if (stream)
        stream_fence();
}

/* Planes without a whole vector are left to the tier below. */
#define OR_BELOW(operation)                                                                        \
    if (norm->positions < LANES) {                                                                 \
        below[ID_OF(operation##_planes)](norm, part);                                              \
        return;                                                                                    \
    }

static void KERNEL(moments_planes)(const osw_norm *norm, const osw_norm_part *part)
{
    OR_BELOW(moments)
    LOCAL(sum_planes)(norm, part, MOMENTS, IDENTITY);
}

static void KERNEL(reduce_planes)(const osw_norm *norm, const osw_norm_part *part)
{
    OR_BELOW(reduce)
    EACH_ACTIVATION(LOCAL(sum_planes), REDUCE)
}

static void KERNEL(apply_planes)(const osw_norm *norm, const osw_norm_part *part)
{
    OR_BELOW(apply)
    EACH_ACTIVATION(LOCAL(write_planes), APPLY)
}

static void KERNEL(gradient_planes)(const osw_norm *norm, const osw_norm_part *part)
{
    OR_BELOW(gradient)
    if (norm->tilt)
        EACH_ACTIVATION(LOCAL(write_planes), GRADIENT)
    else
        EACH_ACTIVATION(LOCAL(write_planes), SCALED_GRADIENT)
}

#undef OR_BELOW
