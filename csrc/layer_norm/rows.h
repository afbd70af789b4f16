/* SPDX-License-Identifier: MIT */
/* Several rows side by side, which share what is loaded of the parameters and the sums of lanes;
 * included once per dtype. */
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

/* ROWS: whose lanes sum4_f32 adds up together. Rows of up to FEW_CHANNELS go by MOST_ROWS, which
 * hides how long a sum of lanes takes; a backward, which has more to hold, by ROWS_BACK. */
enum {
    ROWS = 4,
    MOST_ROWS = 2 * ROWS,
    FEW_CHANNELS = REGISTERS >= 32 ? 256 : 0,
    ROWS_BACK = REGISTERS >= 32 ? 4 : 2,
};

/* What h of the rows takes: h = (x - center) * rstd + beyond. */
typedef struct osw_rows {
    float center[MOST_ROWS], rstd[MOST_ROWS], beyond[MOST_ROWS];
} osw_rows;

OSW_INLINE vf32 normalised(vf32 x, const osw_rows *rows, int r)
{
    return fma_f32(x - set1_f32(rows->center[r]), set1_f32(rows->rstd[r]),
                   set1_f32(rows->beyond[r]));
}

/* The moments of row r from the sums of x - center and of its squares. */
OSW_INLINE void finish_row(const osw_layer_norm *n, int64_t row, osw_rows *rows, int r, float first,
                           float second)
{
    const double share = 1 / (double)n->channels, shift = (double)first * share;
    const double variance = (double)second * share - shift * shift;
    const double rstd = 1 / sqrt((variance < 0 ? 0 : variance) + n->eps);
    n->statistics[2 * (row + r)] = (double)rows->center[r] + shift;
    n->statistics[2 * (row + r) + 1] = rstd;
    rows->rstd[r] = (float)rstd;
    rows->beyond[r] = (float)(-shift * rstd);
}

/* out[r] = the sum of the lanes of v[r]. */
OSW_INLINE void sum_rows(const vf32 v[MOST_ROWS], float out[MOST_ROWS], const int rows)
{
    sum4_f32(v, out);
    if (rows > ROWS)
        sum4_f32(v + ROWS, out + ROWS);
}

OSW_INLINE osw_rows read_rows(const osw_layer_norm *n, int64_t row, const int rows)
{
    osw_rows of = {.center = {0}};
    for (int r = 0; r < rows; r++) {
        const double mean = n->statistics[2 * (row + r)], rstd = n->statistics[2 * (row + r) + 1];
        of.center[r] = (float)mean;
        of.rstd[r] = (float)rstd;
        of.beyond[r] = (float)(((double)of.center[r] - mean) * rstd);
    }
    return of;
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
            body(__VA_ARGS__, at, LANES, true, rows);                                              \
        if (at < (channels))                                                                       \
            body(__VA_ARGS__, at, (channels) - at, false, rows);                                   \
    } while (0)

OSW_INLINE void LOCAL(add_values)(vf32 *sums, const ELEMENT *x, int64_t channels, int64_t at,
                           int64_t lanes, const bool whole, const int rows)
{
    OSW_UNROLL
    for (int r = 0; r < rows; r++) {
        const ELEMENT *from = x + r * channels + at;
        prefetch_near(from + rows * channels);
        sums[r] += LOCAL(read)(from, lanes, whole);
    }
}

OSW_INLINE void LOCAL(add_moments)(vf32 *first, vf32 *second, const float *center, const ELEMENT *x,
                            int64_t channels, int64_t at, int64_t lanes, const bool whole,
                            const int rows)
{
    OSW_UNROLL
    for (int r = 0; r < rows; r++) {
        vf32 off = LOCAL(read)(x + r * channels + at, lanes, whole) - set1_f32(center[r]);
        if (!whole)
            off = keep_f32(first_lanes_i32(lanes), off);
        first[r] += off;
        second[r] = fma_f32(off, off, second[r]);
    }
}

OSW_INLINE void LOCAL(write_values)(const osw_layer_norm *n, const osw_rows *of, const ELEMENT *x,
                             ELEMENT *y, int64_t at, int64_t lanes, const bool whole,
                             const int rows)
{
    const float *weights = n->weight, *biases = n->bias;
    const vf32 weight = whole ? load_f32(weights + at) : load_first_f32(weights + at, lanes);
    const vf32 bias = whole ? load_f32(biases + at) : load_first_f32(biases + at, lanes);
    OSW_UNROLL
    for (int r = 0; r < rows; r++) {
        const int64_t i = r * n->channels + at;
        const vf32 h = normalised(LOCAL(read)(x + i, lanes, whole), of, r);
        LOCAL(put)(y + i, fma_f32(h, weight, bias), lanes, whole);
    }
}

OSW_INLINE void LOCAL(forward_rows)(const osw_layer_norm *n, int64_t row, const int rows)
{
    const int64_t channels = n->channels;
    const ELEMENT *x = (const ELEMENT *)n->x + row * channels;
    ELEMENT *y = (ELEMENT *)n->y + row * channels;
    vf32 sums[MOST_ROWS] = {{0}}, first[MOST_ROWS] = {{0}}, second[MOST_ROWS] = {{0}};
    float total[MOST_ROWS], squares[MOST_ROWS];
    osw_rows of = {.center = {0}};
    EACH_VECTOR(channels, LOCAL(add_values), sums, x, channels);
    sum_rows(sums, total, rows);
    for (int r = 0; r < rows; r++)
        of.center[r] = total[r] / (float)channels;
    EACH_VECTOR(channels, LOCAL(add_moments), first, second, of.center, x, channels);
    sum_rows(first, total, rows);
    sum_rows(second, squares, rows);
    for (int r = 0; r < rows; r++)
        finish_row(n, row, &of, r, total[r], squares[r]);
    EACH_VECTOR(channels, LOCAL(write_values), n, &of, x, y);
}

static void KERNEL(layer_norm_forward)(const osw_layer_norm *n, int64_t begin, int64_t end)
{
    for (; n->channels <= FEW_CHANNELS && begin + MOST_ROWS <= end; begin += MOST_ROWS)
        LOCAL(forward_rows)(n, begin, MOST_ROWS);
    for (; begin + ROWS <= end; begin += ROWS)
        LOCAL(forward_rows)(n, begin, ROWS);
    for (; begin < end; begin++)
        LOCAL(forward_rows)(n, begin, 1);
}

/* Sums of a row over d and d * h, and over rows, into n->sums, of dy * h and dy. */
OSW_INLINE void
LOCAL(add_products)(const osw_layer_norm *n, const osw_rows *of, vf32 *given, vf32 *dot,
                             const ELEMENT *x, const ELEMENT *dy, const bool sums, int64_t at,
                             int64_t lanes, const bool whole, const int rows)
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
        const int64_t i = r * n->channels + at, next = i + rows * n->channels;
        prefetch_near(x + next);
        prefetch_near(dy + next);
        const vf32 h = normalised(LOCAL(read)(x + i, lanes, whole), of, r);
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
LOCAL(write_gradient)(const osw_layer_norm *n, const osw_rows *of, const float *tilt,
                               const float *offset, const ELEMENT *x, const ELEMENT *dy,
                               ELEMENT *dx, int64_t at, int64_t lanes, const bool whole,
                               const int rows)
{
    const float *weights = n->weight;
    const vf32 weight = whole ? load_f32(weights + at) : load_first_f32(weights + at, lanes);
    OSW_UNROLL
    for (int r = 0; r < rows; r++) {
        const int64_t i = r * n->channels + at;
        const vf32 off = LOCAL(read)(x + i, lanes, whole) - set1_f32(of->center[r]);
        const vf32 d = LOCAL(read)(dy + i, lanes, whole) * weight;
        const vf32 rest = fma_f32(off, set1_f32(tilt[r]), set1_f32(offset[r]));
        LOCAL(put)(dx + i, fma_f32(d, set1_f32(of->rstd[r]), rest), lanes, whole);
    }
}

OSW_INLINE void
LOCAL(backward_rows)(const osw_layer_norm *n, int64_t row, const bool sums, const int rows)
{
    const int64_t channels = n->channels;
    const ELEMENT *x = (const ELEMENT *)n->x + row * channels;
    const ELEMENT *dy = (const ELEMENT *)n->dy + row * channels;
    const osw_rows of = read_rows(n, row, rows);
    vf32 given[ROWS] = {{0}}, dot[ROWS] = {{0}};
    float offset[ROWS], tilt[ROWS];
    EACH_VECTOR(channels, LOCAL(add_products), n, &of, given, dot, x, dy, sums);
    if (!n->dx)
        return;
    sum4_f32(given, offset);
    sum4_f32(dot, tilt);
    for (int r = 0; r < rows; r++) {
        const float share = -of.rstd[r] / (float)channels, of_h = tilt[r] * share;
        tilt[r] = of_h * of.rstd[r];
        offset[r] = offset[r] * share + of_h * of.beyond[r];
    }
    ELEMENT *dx = (ELEMENT *)n->dx + row * channels;
    EACH_VECTOR(channels, LOCAL(write_gradient), n, &of, tilt, offset, x, dy, dx);
}

OSW_INLINE void
LOCAL(backward_part)(const osw_layer_norm *n, int64_t begin, int64_t end, const bool sums)
{
    for (; begin + ROWS_BACK <= end; begin += ROWS_BACK)
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
