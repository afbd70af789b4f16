/* SPDX-License-Identifier: MIT */
/* forward as dot products: rows of the input against rows of the weight, both as they lie in
 * memory. For few rows and few outputs, if a packed weight does not pay. */
#include "core/ints.h"
#include "core/simd.h"
#include "linear/linear.h"
#include "linear/tiles.h"

#include <stddef.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* y[r][o] = bias[o] + sum of x[r][i] * w[o][i] */
OSW_INLINE void LOCAL(dot_tile)(const int rows, const int outputs, int64_t count, const ELEMENT *x,
                         int64_t x_step, const ELEMENT *w, const ELEMENT *bias, ELEMENT *y,
                         int64_t y_step)
{
    VECTOR sums[DOT_ROWS][DOT_OUTPUTS] = {{{0}}}, xs[DOT_ROWS];
    int64_t i = 0;
    for (; i + VLANES <= count; i += VLANES) {
        OSW_UNROLL
        for (int r = 0; r < rows; r++)
            xs[r] = LOCAL(load)(x + r * x_step + i);
        OSW_UNROLL
        for (int o = 0; o < outputs; o++) {
            const VECTOR ws = LOCAL(load)(w + o * count + i);
            OSW_UNROLL
            for (int r = 0; r < rows; r++)
                sums[r][o] = VALUED(fma)(xs[r], ws, sums[r][o]);
        }
    }
    if (i < count) {
        OSW_UNROLL
        for (int r = 0; r < rows; r++)
            xs[r] = LOCAL(load_first)(x + r * x_step + i, count - i);
        OSW_UNROLL
        for (int o = 0; o < outputs; o++) {
            const VECTOR ws = LOCAL(load_first)(w + o * count + i, count - i);
            OSW_UNROLL
            for (int r = 0; r < rows; r++)
                sums[r][o] = VALUED(fma)(xs[r], ws, sums[r][o]);
        }
    }
    OSW_UNROLL
    for (int r = 0; r < rows; r++) {
        VALUE four[DOT_OUTPUTS];
        VALUED(sum4)(sums[r], four);
        for (int o = 0; o < outputs; o++)
            y[r * y_step + o] =
                LOCAL(narrow_one)(bias ? four[o] + LOCAL(widen_one)(bias[o]) : four[o]);
    }
}

typedef void LOCAL(dot_fn)(int64_t count, const ELEMENT *x, int64_t x_step, const ELEMENT *w,
                    const ELEMENT *bias, ELEMENT *y, int64_t y_step);
#define DOT(outputs, rows)                                                                         \
    static void LOCAL(dot_##rows##x##outputs)(int64_t count, const ELEMENT *x, int64_t x_step,     \
                                              const ELEMENT *w, const ELEMENT *bias, ELEMENT *y,   \
                                              int64_t y_step)                                      \
    {                                                                                              \
        LOCAL(dot_tile)(rows, outputs, count, x, x_step, w, bias, y, y_step);                      \
    }
#define DOT_NAME(outputs, rows) LOCAL(dot_##rows##x##outputs),
UP_TO_4(DOT, 1)
UP_TO_4(DOT, 2)
UP_TO_4(DOT, 3)
static LOCAL(dot_fn) *const LOCAL(dots)[DOT_ROWS][DOT_OUTPUTS] = {
    {UP_TO_4(DOT_NAME, 1)}, {UP_TO_4(DOT_NAME, 2)}, {UP_TO_4(DOT_NAME, 3)}};

/* Outputs [first, last) of group g for rows [begin, end). */
static void
LOCAL(dot_outputs)(const osw_linear *l, int64_t g, int64_t begin, int64_t end, int64_t first,
                        int64_t last)
{
    const ELEMENT *weight = l->weight, *bias = l->bias, *input = l->input.base;
    const int64_t count = l->in_features, x_step = l->input.row_step, y_step = l->output.row_step;
    for (int64_t n = begin, rows; n < end; n += rows) {
        rows = osw_linear_in_line(&l->lines, n, osw_min_int(end - n, DOT_ROWS));
        const ELEMENT *x = input + osw_linear_input_at(l, n) + g * l->input.group_step;
        ELEMENT *y = (ELEMENT *)l->output.base + n * y_step;
        for (int64_t o = first; o < last; o += DOT_OUTPUTS) {
            const int64_t outputs = osw_min_int(last - o, DOT_OUTPUTS);
            LOCAL(dots)[rows - 1][outputs - 1](count, x, x_step, weight + o * count,
                                        bias ? bias + o : NULL, y + o, y_step);
        }
    }
}

static void LOCAL(dot_forward)(const osw_linear *l, int64_t g, int64_t begin, int64_t end)
{
    const int64_t fitting = DOT_BLOCK_BYTES / (int64_t)sizeof(ELEMENT) / l->in_features;
    const int64_t block = osw_max_int(fitting / DOT_OUTPUTS, 1) * DOT_OUTPUTS;
    for (int64_t o = l->first[g]; o < l->first[g + 1]; o += block)
        LOCAL(dot_outputs)(l, g, begin, end, o, osw_min_int(o + block, l->first[g + 1]));
}
