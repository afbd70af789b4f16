/* SPDX-License-Identifier: MIT */
/* The kernels of one dtype in plain C; included once a dtype by linear_scalar.c with SUFFIX and
 * ELEMENT defined. */

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c)  JOIN_(a, b, c)
#define LOCAL(name)    JOIN(name, _, SUFFIX)
#define KERNEL(name)   JOIN(JOIN(osw_linear_, name, _), SUFFIX, __scalar)

#include "linear/bias.h"

/* Several sums side by side, so that the compiler may use vectors without changing any order. */
static ELEMENT LOCAL(dot)(const ELEMENT *restrict x, const ELEMENT *restrict w, int64_t count)
{
    enum { SUMS = 8 };
    ELEMENT sums[SUMS] = {0}, total = 0;
    int64_t i = 0;
    for (; i + SUMS <= count; i += SUMS)
        for (int j = 0; j < SUMS; j++)
            sums[j] += x[i + j] * w[i + j];
    for (; i < count; i++)
        total += x[i] * w[i];
    for (int j = 0; j < SUMS; j++)
        total += sums[j];
    return total;
}

static void LOCAL(add_scaled)(ELEMENT *restrict y, const ELEMENT *restrict x, ELEMENT factor,
                              int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] += factor * x[i];
}

static void KERNEL(forward)(const osw_linear *l, const osw_linear_block *block)
{
    const ELEMENT *weight = l->weight, *bias = l->bias, *input = l->input.base;
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        for (int64_t n = block->begin; n < block->end; n++) {
            const ELEMENT *x = input + n * l->input.row_step + g * l->input.group_step;
            ELEMENT *y = (ELEMENT *)l->output.base + n * l->output.row_step;
            for (int64_t o = l->first[g]; o < l->first[g + 1]; o++) {
                const ELEMENT sum = LOCAL(dot)(x, weight + o * l->in_features, l->in_features);
                y[o] = bias ? sum + bias[o] : sum;
            }
        }
    }
}

static void KERNEL(grad_input)(const osw_linear *l, const osw_linear_block *block)
{
    const ELEMENT *weight = l->weight, *grad_output = l->grad_output.base;
    ELEMENT *grad_input = l->grad_input.base;
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        for (int64_t n = block->begin; n < block->end; n++) {
            const ELEMENT *dy = grad_output + n * l->grad_output.row_step;
            ELEMENT *dx = grad_input + n * l->grad_input.row_step + g * l->grad_input.group_step;
            memset(dx, 0, (size_t)l->in_features * sizeof *dx);
            for (int64_t o = l->first[g]; o < l->first[g + 1]; o++)
                LOCAL(add_scaled)(dx, weight + o * l->in_features, dy[o], l->in_features);
        }
    }
}

static void KERNEL(grad_weight)(const osw_linear *l, const osw_linear_block *block)
{
    const ELEMENT *input = l->input.base, *grad_output = l->grad_output.base;
    const int64_t count = block->end - block->begin, part = block->row_part;
    const int64_t rows_end = osw_linear_part_end(l, part);
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        if (block->begin == 0 && l->grad_bias)
            LOCAL(sum_rows)(l, g, part);
        for (int64_t o = l->first[g]; l->grad_weight && o < l->first[g + 1]; o++) {
            const int64_t row = part * l->first[l->groups] + o;
            ELEMENT *dw = (ELEMENT *)l->grad_weight + row * l->in_features + block->begin;
            memset(dw, 0, (size_t)count * sizeof *dw);
            for (int64_t n = part * l->part_rows; n < rows_end; n++) {
                const ELEMENT *x = input + n * l->input.row_step + g * l->input.group_step;
                LOCAL(add_scaled)
                (dw, x + block->begin, grad_output[n * l->grad_output.row_step + o], count);
            }
        }
    }
}

#undef JOIN_
#undef JOIN
#undef LOCAL
#undef KERNEL
#undef SUFFIX
#undef ELEMENT
