/* SPDX-License-Identifier: MIT */
/* The kernels of one dtype in plain C; included once per dtype by linear_scalar.c. */
#include "core/ints.h"
#include "linear/linear.h"

#include <stddef.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#endif

/* grad_bias[o] = sum of grad_output[n][o] over n of a row part, for the outputs of group g; in
 * blocks of rows, whose sums are added up, so that the error grows slowly. */
static void LOCAL(sum_rows)(const osw_linear *l, int64_t g, int64_t part)
{
    enum { COLUMNS = 16, ROWS = 128 };
    const int64_t step = l->grad_output.row_step, end = l->first[g + 1];
    const int64_t rows_end = osw_linear_part_end(l, part);
    ELEMENT *grad_bias = (ELEMENT *)l->grad_bias + part * l->first[l->groups];
    for (int64_t o = l->first[g]; o < end; o += COLUMNS) {
        const int columns = end - o < COLUMNS ? (int)(end - o) : COLUMNS;
        VALUE total[COLUMNS] = {0};
        for (int64_t n = part * l->part_rows; n < rows_end; n += ROWS) {
            const int64_t last = rows_end - n < ROWS ? rows_end : n + ROWS;
            VALUE sum[COLUMNS] = {0};
            for (int64_t m = n; m < last; m++) {
                const ELEMENT *dy = (const ELEMENT *)l->grad_output.base + m * step + o;
                if (columns == COLUMNS)
                    for (int j = 0; j < COLUMNS; j++)
                        sum[j] += LOAD(dy[j]);
                else
                    for (int j = 0; j < columns; j++)
                        sum[j] += LOAD(dy[j]);
            }
            for (int j = 0; j < COLUMNS; j++)
                total[j] += sum[j];
        }
        for (int j = 0; j < columns; j++)
            grad_bias[o + j] = STORE(total[j]);
    }
}

/* Several sums side by side, so that the compiler may use vectors without changing any order. */
static VALUE LOCAL(dot)(const ELEMENT *restrict x, int64_t x_step, const ELEMENT *restrict w,
                 int64_t count)
{
    enum { SUMS = 8 };
    VALUE sums[SUMS] = {0}, total = 0;
    int64_t i = 0;
    for (; x_step == 1 && i + SUMS <= count; i += SUMS)
        for (int j = 0; j < SUMS; j++)
            sums[j] += LOAD(x[i + j]) * LOAD(w[i + j]);
    for (; i < count; i++)
        total += LOAD(x[i * x_step]) * LOAD(w[i]);
    for (int j = 0; j < SUMS; j++)
        total += sums[j];
    return total;
}

/* y[i] = sum of factors[t * factor_step] * row t[i] over t < terms, i < count. Row t lies at
 * rows + t * row_step, or is the row of input n + t if `images` is given. */
static void LOCAL(combine)(int64_t terms, const ELEMENT *restrict factors, int64_t factor_step,
                    const ELEMENT *restrict rows, int64_t row_step, int64_t count,
                    ELEMENT *restrict y, const osw_linear *images, int64_t n)
{
    enum { STRIP = 256 };
    const int64_t step = images ? osw_linear_feature_step(images) : 1;
    for (int64_t begin = 0; begin < count; begin += STRIP) {
        const int64_t length = count - begin < STRIP ? count - begin : STRIP;
        VALUE sums[STRIP] = {0};
        for (int64_t t = 0; t < terms; t++) {
            const VALUE factor = LOAD(factors[t * factor_step]);
            const int64_t at = images ? osw_linear_input_at(images, n + t) : t * row_step;
            const ELEMENT *row = rows + at + begin * step;
            for (int64_t i = 0; i < length; i++)
                sums[i] += factor * LOAD(row[i * step]);
        }
        for (int64_t i = 0; i < length; i++)
            y[begin + i] = STORE(sums[i]);
    }
}

static void KERNEL(linear_forward)(const osw_linear *l, const osw_linear_block *block)
{
    const ELEMENT *weight = l->weight, *bias = l->bias, *input = l->input.base;
    const int64_t inputs = l->in_features, step = osw_linear_feature_step(l);
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        for (int64_t n = block->begin; n < block->end; n++) {
            const ELEMENT *x = input + osw_linear_input_at(l, n) + g * l->input.group_step;
            ELEMENT *y = (ELEMENT *)l->output.base + n * l->output.row_step;
            for (int64_t o = l->first[g]; o < l->first[g + 1]; o++) {
                const VALUE sum = LOCAL(dot)(x, step, weight + o * inputs, inputs);
                y[o] = STORE(bias ? sum + LOAD(bias[o]) : sum);
            }
        }
    }
}

static void KERNEL(linear_grad_input)(const osw_linear *l, const osw_linear_block *block)
{
    const ELEMENT *weight = l->weight, *grad_output = l->grad_output.base;
    ELEMENT *grad_input = l->grad_input.base;
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        const int64_t o = l->first[g];
        for (int64_t n = block->begin; n < block->end; n++)
            LOCAL(
                combine)(l->first[g + 1] - o, grad_output + n * l->grad_output.row_step + o, 1,
                    weight + o * l->in_features, l->in_features, l->in_features,
                    grad_input + osw_linear_grad_input_at(l, n) + g * l->grad_input.group_step,
                    NULL, 0);
    }
}

static void KERNEL(linear_grad_weight)(const osw_linear *l, const osw_linear_block *block)
{
    const int64_t part = block->row_part, first = part * l->part_rows;
    const int64_t rows = osw_linear_part_end(l, part) - first, dy_step = l->grad_output.row_step;
    const ELEMENT *input = l->input.base;
    const ELEMENT *grad_output = (const ELEMENT *)l->grad_output.base + first * dy_step;
    ELEMENT *grad_weight = l->grad_weight;
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        if (block->begin == 0 && l->grad_bias)
            LOCAL(sum_rows)(l, g, part);
        const ELEMENT *x =
            input + g * l->input.group_step + block->begin * osw_linear_feature_step(l);
        const int64_t count = block->end - block->begin;
        for (int64_t o = l->first[g]; grad_weight && o < l->first[g + 1]; o++) {
            const int64_t row = part * l->first[l->groups] + o;
            LOCAL(combine)(rows, grad_output + o, dy_step, x, l->input.row_step, count,
                    grad_weight + row * l->in_features + block->begin, l, first);
        }
    }
}
