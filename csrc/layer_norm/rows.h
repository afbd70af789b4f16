/* SPDX-License-Identifier: MIT */
/* Several rows at a time, which share the sums of lanes and, in a backward, what is loaded and
 * stored of the parameters; included once per dtype. Memory is walked in its order, one row after
 * another: from beyond the caches, rows side by side take twice as long. */
#include "core/simd.h"
#include "layer_norm/layer_norm.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

#ifndef OSW_LAYER_NORM_ROWS_H
#    define OSW_LAYER_NORM_ROWS_H

/* ROWS: whose lanes sum4_f32 adds up together. Rows shorter than WIDE go by MOST_ROWS, which hides
 * how long a sum of lanes takes. In a backward they are side by side for the sums over rows: two,
 * or ROWS where they are no longer than NARROW and registers are many. */
enum {
    ROWS = 4,
    MOST_ROWS = 2 * ROWS,
    WIDE = 256,
    ROWS_BACK = 2,
    NARROW = REGISTERS >= 32 ? 64 : 0,
};

/* What h of a row takes: h = (x - center) * rstd + beyond. */
typedef struct osw_row {
    float center, rstd, beyond;
} osw_row;

OSW_INLINE vf32 normalised(vf32 x, osw_row row)
{
    return fma_f32(x - set1_f32(row.center), set1_f32(row.rstd), set1_f32(row.beyond));
}

/* What h takes from the sums of x - center and of its squares; sets the statistics of the row. */
OSW_INLINE osw_row finish_row(const osw_layer_norm *n, int64_t row, float center, float first,
                              float second)
{
    const double share = 1 / (double)n->channels, shift = (double)first * share;
    const double variance = (double)second * share - shift * shift;
    const double rstd = 1 / sqrt((variance < 0 ? 0 : variance) + n->eps);
    n->statistics[2 * row] = (double)center + shift;
    n->statistics[2 * row + 1] = rstd;
    return (osw_row){center, (float)rstd, (float)(-shift * rstd)};
}

/* Sums by lanes of x - center and of its squares. */
typedef struct osw_moments {
    vf32 off, squares;
} osw_moments;

/* out[r] = the sum of the lanes of v[r]. */
OSW_INLINE void sum_rows(const vf32 v[MOST_ROWS], float out[MOST_ROWS], const int rows)
{
    sum4_f32(v, out);
    if (rows > ROWS)
        sum4_f32(v + ROWS, out + ROWS);
}

OSW_INLINE osw_row read_row(const osw_layer_norm *n, int64_t row)
{
    const double mean = n->statistics[2 * row], rstd = n->statistics[2 * row + 1];
    const float center = (float)mean;
    return (osw_row){center, (float)rstd, (float)(((double)center - mean) * rstd)};
}
#endif

/* The `lanes` values at p: a whole vector, or what is left of a row. */
OSW_INLINE vf32 LOCAL(read)(const ELEMENT *p, int64_t lanes, const bool whole)
{
    return whole ? LOCAL(load)(p) : LOCAL(load_first)(p, lanes);
}

OSW_INLINE void LOCAL(put)(ELEMENT *p, vf32 v, int64_t lanes, const bool whole)
{
    if (whole)
        LOCAL(store_rounded)(p, v);
    else
        LOCAL(store_first)(p, v, lanes);
}

/* Call `body` for each vector of a row. */
#undef EACH_VECTOR
#define EACH_VECTOR(channels, body, ...)                                                           \
    do {                                                                                           \
        int64_t at = 0;                                                                            \
        for (; at + LANES <= (channels); at += LANES)                                              \
            body(__VA_ARGS__, at, LANES, true);                                                    \
        if (at < (channels))                                                                       \
            body(__VA_ARGS__, at, (channels) - at, false);                                         \
    } while (0)

/* The same for sums: vectors go to into[0] and into[1] in turn, so that none waits for the one
 * before it. */
#undef EACH_IN_TURN
#define EACH_IN_TURN(channels, body, into, ...)                                                    \
    do {                                                                                           \
        int64_t at = 0;                                                                            \
        for (; at + 2 * LANES <= (channels); at += 2 * LANES) {                                    \
            body(into, __VA_ARGS__, at, LANES, true);                                              \
            body((into) + 1, __VA_ARGS__, at + LANES, LANES, true);                                \
        }                                                                                          \
        if (at + LANES <= (channels)) {                                                            \
            body(into, __VA_ARGS__, at, LANES, true);                                              \
            at += LANES;                                                                           \
        }                                                                                          \
        if (at < (channels))                                                                       \
            body((into) + 1, __VA_ARGS__, at, (channels) - at, false);                             \
    } while (0)

OSW_INLINE void
LOCAL(add_values)(vf32 *sum, const ELEMENT *x, int64_t at, int64_t lanes, const bool whole)
{
    *sum += LOCAL(read)(x + at, lanes, whole);
}

OSW_INLINE void LOCAL(add_moments)(osw_moments *into, float center, const ELEMENT *x, int64_t at,
                            int64_t lanes, const bool whole)
{
    vf32 off = LOCAL(read)(x + at, lanes, whole) - set1_f32(center);
    if (!whole)
        off = keep_f32(first_lanes_i32(lanes), off);
    into->off += off;
    into->squares = fma_f32(off, off, into->squares);
}

OSW_INLINE void
LOCAL(write_values)(const osw_layer_norm *n, osw_row row, const ELEMENT *x, ELEMENT *y,
                             int64_t at, int64_t lanes, const bool whole)
{
    const float *weights = n->weight, *biases = n->bias;
    const vf32 weight = whole ? load_f32(weights + at) : load_first_f32(weights + at, lanes);
    const vf32 bias = whole ? load_f32(biases + at) : load_first_f32(biases + at, lanes);
    const vf32 h = normalised(LOCAL(read)(x + at, lanes, whole), row);
    LOCAL(put)(y + at, fma_f32(h, weight, bias), lanes, whole);
}

OSW_INLINE void LOCAL(forward_rows)(const osw_layer_norm *n, int64_t row, const int rows)
{
    const int64_t channels = n->channels;
    const ELEMENT *x = (const ELEMENT *)n->x + row * channels;
    ELEMENT *y = (ELEMENT *)n->y + row * channels;
    vf32 sums[MOST_ROWS] = {{0}}, first[MOST_ROWS] = {{0}}, second[MOST_ROWS] = {{0}};
    float total[MOST_ROWS], center[MOST_ROWS], squares[MOST_ROWS];
    OSW_UNROLL
    for (int r = 0; r < rows; r++) {
        vf32 parts[2] = {{0}};
        EACH_IN_TURN(channels, LOCAL(add_values), parts, x + r * channels);
        sums[r] = parts[0] + parts[1];
    }
    sum_rows(sums, total, rows);
    OSW_UNROLL
    for (int r = 0; r < rows; r++) {
        osw_moments parts[2] = {{.off = {0}}};
        center[r] = total[r] / (float)channels;
        EACH_IN_TURN(channels, LOCAL(add_moments), parts, center[r], x + r * channels);
        first[r] = parts[0].off + parts[1].off;
        second[r] = parts[0].squares + parts[1].squares;
    }
    sum_rows(first, total, rows);
    sum_rows(second, squares, rows);
    OSW_UNROLL
    for (int r = 0; r < rows; r++) {
        const osw_row of = finish_row(n, row + r, center[r], total[r], squares[r]);
        EACH_VECTOR(channels, LOCAL(write_values), n, of, x + r * channels, y + r * channels);
    }
}

static void KERNEL(layer_norm_forward)(const osw_layer_norm *n, int64_t begin, int64_t end)
{
    for (; n->channels < WIDE && begin + MOST_ROWS <= end; begin += MOST_ROWS)
        LOCAL(forward_rows)(n, begin, MOST_ROWS);
    for (; begin < end; begin++)
        LOCAL(forward_rows)(n, begin, 1);
}

/* Sums of each row over d and d * h, and over rows, into n->sums, of dy * h and dy. */
OSW_INLINE void
LOCAL(add_products)(const osw_layer_norm *n, const osw_row *of, vf32 *given, vf32 *dot,
                             const ELEMENT *x, const ELEMENT *dy, const bool sums, const int rows,
                             int64_t at, int64_t lanes, const bool whole)
{
    const float *weights = n->weight;
    float *of_weight = NULL, *of_bias = NULL;
    const vf32 weight = whole ? load_f32(weights + at) : load_first_f32(weights + at, lanes);
    vf32 first = {0}, second = {0};
    if (sums) {
        of_weight = (float *)n->sums + at;
        of_bias = of_weight + n->channels;
        first = whole ? load_f32(of_bias) : load_first_f32(of_bias, lanes);
        second = whole ? load_f32(of_weight) : load_first_f32(of_weight, lanes);
    }
    OSW_UNROLL
    for (int r = 0; r < rows; r++) {
        const int64_t i = r * n->channels + at;
        const vf32 h = normalised(LOCAL(read)(x + i, lanes, whole), of[r]);
        const vf32 g = LOCAL(read)(dy + i, lanes, whole), d = g * weight;
        first += g;
        second = fma_f32(g, h, second);
        given[r] += d;
        dot[r] = fma_f32(d, h, dot[r]);
    }
    if (sums && whole) {
        store_f32(of_bias, first);
        store_f32(of_weight, second);
    } else if (sums) {
        store_first_f32(of_bias, first, lanes);
        store_first_f32(of_weight, second, lanes);
    }
}

/* dx = d * rstd + ((x - center) * tilt + offset) */
OSW_INLINE void
LOCAL(write_gradient)(const osw_layer_norm *n, osw_row row, float tilt, float offset,
                               const ELEMENT *x, const ELEMENT *dy, ELEMENT *dx, int64_t at,
                               int64_t lanes, const bool whole)
{
    const float *weights = n->weight;
    const vf32 weight = whole ? load_f32(weights + at) : load_first_f32(weights + at, lanes);
    const vf32 off = LOCAL(read)(x + at, lanes, whole) - set1_f32(row.center);
    const vf32 d = LOCAL(read)(dy + at, lanes, whole) * weight;
    const vf32 rest = fma_f32(off, set1_f32(tilt), set1_f32(offset));
    LOCAL(put)(dx + at, fma_f32(d, set1_f32(row.rstd), rest), lanes, whole);
}

OSW_INLINE void
LOCAL(backward_rows)(const osw_layer_norm *n, int64_t row, const bool sums, const int rows)
{
    const int64_t channels = n->channels;
    const ELEMENT *x = (const ELEMENT *)n->x + row * channels;
    const ELEMENT *dy = (const ELEMENT *)n->dy + row * channels;
    osw_row of[ROWS];
    vf32 given[ROWS] = {{0}}, dot[ROWS] = {{0}};
    float sum[ROWS], product[ROWS];
    for (int r = 0; r < rows; r++)
        of[r] = read_row(n, row + r);
    EACH_VECTOR(channels, LOCAL(add_products), n, of, given, dot, x, dy, sums, rows);
    if (!n->dx)
        return;
    sum4_f32(given, sum);
    sum4_f32(dot, product);
    ELEMENT *dx = (ELEMENT *)n->dx + row * channels;
    OSW_UNROLL
    for (int r = 0; r < rows; r++) {
        const float share = -of[r].rstd / (float)channels, of_h = product[r] * share;
        const float tilt = of_h * of[r].rstd, offset = sum[r] * share + of_h * of[r].beyond;
        const int64_t at_row = r * channels;
        EACH_VECTOR(channels,
                    LOCAL(write_gradient), n, of[r], tilt, offset, x + at_row, dy + at_row,
                    dx + at_row);
    }
}

OSW_INLINE void
LOCAL(backward_part)(const osw_layer_norm *n, int64_t begin, int64_t end, const bool sums)
{
    for (; n->channels <= NARROW && begin + ROWS <= end; begin += ROWS)
        LOCAL(backward_rows)(n, begin, sums, ROWS);
    for (; n->channels < WIDE && begin + ROWS_BACK <= end; begin += ROWS_BACK)
        LOCAL(backward_rows)(n, begin, sums, ROWS_BACK);
    for (; begin < end; begin++)
        LOCAL(backward_rows)(n, begin, sums, 1);
}

static void KERNEL(layer_norm_backward)(const osw_layer_norm *n, int64_t begin, int64_t end)
{
    if (!n->of_weight) {
        LOCAL(backward_part)(n, begin, end, false);
        return;
    }
    const float *of_weight = n->sums, *of_bias = of_weight + n->channels;
    for (int64_t next; begin < end; begin = next) {
        next = end - begin < OSW_LAYER_NORM_FLUSH ? end : begin + OSW_LAYER_NORM_FLUSH;
        memset(n->sums, 0, (size_t)(2 * n->channels) * sizeof *of_weight);
        LOCAL(backward_part)(n, begin, next, true);
        for (int64_t c = 0; c < n->channels; c++) {
            n->of_weight[c] += (double)of_weight[c];
            n->of_bias[c] += (double)of_bias[c];
        }
    }
}
