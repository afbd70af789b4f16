/* SPDX-License-Identifier: MIT */
/* Kernels for layouts in which the channels of a position are neighbours; included once per dtype.
 *
 * A pattern is a number of whole rows that fills whole vectors: no number of channels has a tail.
 * The factors of a value depend on its place in the pattern only. Parts of many rows have patterns
 * of more than the least number; the rows that fill none of them have patterns of the least, so
 * that which rows are left depends on the channels alone. Wide patterns are walked in strips of at
 * most STRIP values, whose factors and sums stay in L1. */
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

/* Rows of the shortest pattern. */
static int64_t LOCAL(least_rows)(int64_t channels)
{
    int64_t rows = 1;
    while (rows * channels % LANES != 0)
        rows *= 2;
    return rows;
}

/* Rows of the patterns of a part of `length` rows: more than the least while the pattern is short,
 * and there is enough to do for the factors that it needs. Divides OSW_NORM_ROWS. */
static int64_t LOCAL(pattern_rows)(int64_t channels, int64_t length)
{
    int64_t rows = LOCAL(least_rows)(channels);
    while (length * channels >= MANY_VALUES && 2 * rows * channels <= SHORT_PATTERN &&
           rows < OSW_NORM_ROWS)
        rows *= 2;
    return rows;
}

/* A strip of all patterns of a part, and the factors of its values. */
typedef struct LOCAL(strip) {
    const ELEMENT *x, *dy;
    ELEMENT *to;
    int64_t patterns;
    int64_t step;  /* from one pattern to the next */
    int64_t ahead; /* from what is worked on to what is prefetched */
    int64_t width;
    int64_t channel; /* of its first value */
    int64_t channels;
    _Alignas(64) float factors[FACTORS][STRIP_ROW];
} LOCAL(strip);

static void LOCAL(fill_strip)(LOCAL(strip) *strip, const osw_norm *norm, const osw_mode mode)
{
    const double *const factors[FACTORS] = {norm->center, norm->scale, norm->shift, norm->tilt,
                                            norm->offset};
    const int count = factor_count(mode);
    for (int n = 0; n < count; n++) {
        float *to = strip->factors[n];
        int64_t c = strip->channel;
        for (int64_t i = 0; i < strip->width;) {
            const int64_t left = strip->width - i, run = strip->channels - c;
            const int64_t length = run < left ? run : left;
            for (int64_t j = 0; j < length; j++)
                to[i + j] = (float)factors[n][c + j];
            i += length;
            c = 0;
        }
    }
}

/* The strip at `column` of the pattern, of the patterns that a part has. */
OSW_INLINE void LOCAL(start_strip)(
    LOCAL(strip) *strip, const osw_norm *norm, const osw_norm_part *part,
                            int64_t column, int64_t rows, const osw_mode mode)
{
    const int64_t pattern = rows * norm->channels, start = part->begin * norm->channels + column;
    const bool writes = mode != MOMENTS && mode != REDUCE;
    strip->x = (const ELEMENT *)norm->x.base + start;
    if (mode != MOMENTS && mode != APPLY)
        strip->dy = (const ELEMENT *)norm->dy.base + start;
    if (writes)
        strip->to = (ELEMENT *)(mode == APPLY ? norm->y.base : norm->dx.base) + start;
    strip->patterns = (part->end - part->begin) / rows;
    strip->step = pattern;
    strip->width = pattern - column < STRIP ? pattern - column : STRIP;
    strip->ahead = strip->width < pattern ? 2 * pattern : AHEAD_BYTES / (int64_t)sizeof(ELEMENT);
    strip->channel = column % norm->channels;
    strip->channels = norm->channels;
    LOCAL(fill_strip)(strip, norm, mode);
}

OSW_INLINE osw_factors
LOCAL(factors_at)(const float (*factors)[STRIP_ROW], int64_t i, const osw_mode mode)
{
    osw_factors f = {.center = load_f32(factors[0] + i)};
    if (mode != MOMENTS) {
        f.scale = load_f32(factors[1] + i);
        f.shift = load_f32(factors[2] + i);
    }
    if (mode == GRADIENT) {
        f.tilt = load_f32(factors[3] + i);
        f.offset = load_f32(factors[4] + i);
    }
    return f;
}

/* Ask for the lines that `count` patterns need later, where value i of a pattern begins one. */
OSW_INLINE void
LOCAL(fetch)(const ELEMENT *from, int64_t i, int64_t step, int64_t ahead, const int count)
{
    if (i % (64 / (int64_t)sizeof(ELEMENT)) == 0)
        for (int u = 0; u < count; u++)
            prefetch_far(from + u * step + i + ahead);
}

/* Sums of one strip in float. */
typedef struct LOCAL(strip_sums) {
    _Alignas(64) float first[STRIP_ROW];
    _Alignas(64) float second[STRIP_ROW];
} LOCAL(strip_sums);

/* Add `count` patterns of a strip, the first of which is number p. */
OSW_INLINE void LOCAL(add_patterns)(
    LOCAL(strip_sums) *sums, const LOCAL(strip) *strip, int64_t p, const int count,
                             const osw_mode mode, const osw_activation activation)
{
    const int64_t step = strip->step, ahead = strip->ahead, width = strip->width;
    const ELEMENT *x = strip->x + p * step, *dy = mode == REDUCE ? strip->dy + p * step : NULL;
    for (int64_t i = 0; i < width; i += LANES) {
        LOCAL(fetch)(x, i, step, ahead, count);
        if (mode == REDUCE)
            LOCAL(fetch)(dy, i, step, ahead, count);
        const osw_factors f = LOCAL(factors_at)(strip->factors, i, mode);
        vf32 first = load_f32(sums->first + i), second = load_f32(sums->second + i);
        for (int u = 0; u < count; u++) {
            const int64_t at = u * step + i;
            const vf32 centered = LOCAL(load)(x + at) - f.center;
            const vf32 given = mode == REDUCE ? LOCAL(load)(dy + at) : centered;
            const vf32 value = summand(centered, given, &f, mode, activation);
            first += value;
            second = fma_f32(value, centered, second);
        }
        store_f32(sums->first + i, first);
        store_f32(sums->second + i, second);
    }
}

/* Carry sums of a strip over to its channels, in double. */
static void LOCAL(flush_strip)(double *to, float *from, const LOCAL(strip) *strip)
{
    int64_t c = strip->channel;
    for (int64_t i = 0; i < strip->width;) {
        const int64_t left = strip->width - i, run = strip->channels - c;
        const int64_t length = run < left ? run : left;
        for (int64_t j = 0; j < length; j++)
            to[c + j] += (double)from[i + j];
        i += length;
        c = 0;
    }
    memset(from, 0, (size_t)strip->width * sizeof *from);
}

OSW_INLINE void
LOCAL(sum_strip)(const osw_norm_part *part, const LOCAL(strip) *strip, const osw_mode mode,
                          const osw_activation activation)
{
    LOCAL(strip_sums) sums = {{0}, {0}};
    const int64_t patterns = strip->patterns;
    for (int64_t p = 0; p < patterns;) {
        const int64_t stop = p + FLUSH_PATTERNS < patterns ? p + FLUSH_PATTERNS : patterns;
        for (; !is_lean(activation) && p + 2 <= stop; p += 2)
            LOCAL(add_patterns)(&sums, strip, p, 2, mode, activation);
        for (; p < stop; p++)
            LOCAL(add_patterns)(&sums, strip, p, 1, mode, activation);
        LOCAL(flush_strip)(part->first, sums.first, strip);
        LOCAL(flush_strip)(part->second, sums.second, strip);
    }
}

/* Write `count` patterns of a strip, the first of which is number p. */
OSW_INLINE void
LOCAL(write_patterns)(const LOCAL(strip) *strip, int64_t p, const int count, const bool stream,
                               const osw_mode mode, const osw_activation activation)
{
    const int64_t step = strip->step, ahead = strip->ahead, width = strip->width;
    const ELEMENT *x = strip->x + p * step, *dy = mode == APPLY ? NULL : strip->dy + p * step;
    ELEMENT *to = strip->to + p * step;
    for (int64_t i = 0; i < width; i += LANES) {
        LOCAL(fetch)(x, i, step, ahead, count);
        if (mode != APPLY)
            LOCAL(fetch)(dy, i, step, ahead, count);
        if (!stream)
            LOCAL(fetch)(to, i, step, ahead, count);
        const osw_factors f = LOCAL(factors_at)(strip->factors, i, mode);
        for (int u = 0; u < count; u++) {
            const int64_t at = u * step + i;
            const vf32 given = mode == APPLY ? (vf32){0} : LOCAL(load)(dy + at);
            const vf32 value = written(LOCAL(load)(x + at), given, &f, mode, activation);
            if (stream)
                LOCAL(stream_rounded)(to + at, value);
            else
                LOCAL(store_rounded)(to + at, value);
        }
    }
}

OSW_INLINE void
LOCAL(write_strip)(const LOCAL(strip) *strip, const bool stream, const osw_mode mode,
                            const osw_activation activation)
{
    int64_t p = 0;
    for (; !is_lean(activation) && p + 2 <= strip->patterns; p += 2)
        LOCAL(write_patterns)(strip, p, 2, stream, mode, activation);
    for (; p < strip->patterns; p++)
        LOCAL(write_patterns)(strip, p, 1, stream, mode, activation);
}

/* The rows that fill no pattern are left in `part`. */
OSW_INLINE void LOCAL(walk_pixels)(const osw_norm *norm, osw_norm_part *part, const osw_mode mode,
                            const osw_activation activation)
{
    const bool sums = mode == MOMENTS || mode == REDUCE;
    const int64_t least = LOCAL(least_rows)(norm->channels);
    int64_t rows = LOCAL(pattern_rows)(norm->channels, part->end - part->begin);
    for (; part->end - part->begin >= least; rows = least) {
        const int64_t pattern = rows * norm->channels;
        LOCAL(strip) strip;
        for (int64_t column = 0; column < pattern; column += STRIP) {
            LOCAL(start_strip)(&strip, norm, part, column, rows, mode);
            if (sums)
                LOCAL(sum_strip)(part, &strip, mode, activation);
            else if (!is_lean(activation) && norm->stream && (uintptr_t)strip.to % VEC_BYTES == 0)
                LOCAL(write_strip)(&strip, true, mode, activation);
            else
                LOCAL(write_strip)(&strip, false, mode, activation);
        }
        part->begin = part->end - (part->end - part->begin) % rows;
    }
    if (!sums && norm->stream)
        stream_fence();
}

/* On their own: strips are gone from the stack when the tier below runs, and those of both
 * gradients do not lie in one frame. */
OSW_OUTLINE void LOCAL(moments_of_patterns)(const osw_norm *norm, osw_norm_part *part)
{
    LOCAL(walk_pixels)(norm, part, MOMENTS, IDENTITY);
}

OSW_OUTLINE void LOCAL(reduce_patterns)(const osw_norm *norm,
                                 osw_norm_part *part){EACH_ACTIVATION(
    LOCAL(walk_pixels), REDUCE)}

OSW_OUTLINE void LOCAL(apply_patterns)(const osw_norm *norm,
                                osw_norm_part *part){EACH_ACTIVATION(
    LOCAL(walk_pixels), APPLY)}

OSW_OUTLINE void LOCAL(scale_patterns)(const osw_norm *norm,
                                osw_norm_part *part){EACH_ACTIVATION(
    LOCAL(walk_pixels), SCALED_GRADIENT)}

OSW_OUTLINE void LOCAL(gradient_patterns)(const osw_norm *norm,
                                   osw_norm_part *part){EACH_ACTIVATION(
    LOCAL(walk_pixels), GRADIENT)}

/* The rows that fill no pattern are left to the tier below. */
OSW_INLINE void LOCAL(
    rest_of_pixels)(const osw_norm *norm, const osw_norm_part *rest, osw_norm_id id)
{
    if (rest->begin < rest->end)
        below[id](norm, rest);
}

static void KERNEL(moments_pixels)(const osw_norm *norm, const osw_norm_part *part)
{
    osw_norm_part rest = *part;
    LOCAL(moments_of_patterns)(norm, &rest);
    LOCAL(rest_of_pixels)(norm, &rest, ID_OF(moments_pixels));
}

static void KERNEL(reduce_pixels)(const osw_norm *norm, const osw_norm_part *part)
{
    osw_norm_part rest = *part;
    LOCAL(reduce_patterns)(norm, &rest);
    LOCAL(rest_of_pixels)(norm, &rest, ID_OF(reduce_pixels));
}

static void KERNEL(apply_pixels)(const osw_norm *norm, const osw_norm_part *part)
{
    osw_norm_part rest = *part;
    LOCAL(apply_patterns)(norm, &rest);
    LOCAL(rest_of_pixels)(norm, &rest, ID_OF(apply_pixels));
}

static void KERNEL(gradient_pixels)(const osw_norm *norm, const osw_norm_part *part)
{
    osw_norm_part rest = *part;
    if (norm->tilt)
        LOCAL(gradient_patterns)(norm, &rest);
    else
        LOCAL(scale_patterns)(norm, &rest);
    LOCAL(rest_of_pixels)(norm, &rest, ID_OF(gradient_pixels));
}
