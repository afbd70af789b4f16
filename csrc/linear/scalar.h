/* SPDX-License-Identifier: MIT */
/* The kernels of one dtype in plain C; included once a dtype by linear_scalar.c with SUFFIX,
 * ELEMENT, SUM, LOAD and STORE defined: the type in memory, that of sums, and the ways between. */

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c)  JOIN_(a, b, c)
#define LOCAL(name)    JOIN(name, _, SUFFIX)
#define KERNEL(name)   JOIN(JOIN(osw_linear_, name, _), SUFFIX, __scalar)

#include "linear/bias.h"

/* Several sums side by side, so that the compiler may use vectors without changing any order. */
static SUM LOCAL(dot)(const ELEMENT *restrict x, const ELEMENT *restrict w, int64_t count)
{
    enum { SUMS = 8 };
    SUM sums[SUMS] = {0}, total = 0;
    int64_t i = 0;
    for (; i + SUMS <= count; i += SUMS)
        for (int j = 0; j < SUMS; j++)
            sums[j] += LOAD(x[i + j]) * LOAD(w[i + j]);
    for (; i < count; i++)
        total += LOAD(x[i]) * LOAD(w[i]);
    for (int j = 0; j < SUMS; j++)
        total += sums[j];
    return total;
}

/* y[i] = sum of factors[t * factor_step] * rows[t * row_step + i] over t < terms, i < count */
static void LOCAL(combine)(int64_t terms, const ELEMENT *restrict factors, int64_t factor_step,
                    const ELEMENT *restrict rows, int64_t row_step, int64_t count,
                    ELEMENT *restrict y)
{
    enum { STRIP = 256 };
    for (int64_t begin = 0; begin < count; begin += STRIP) {
        const int64_t length = count - begin < STRIP ? count - begin : STRIP;
        SUM sums[STRIP] = {0};
        for (int64_t t = 0; t < terms; t++) {
            const SUM factor = LOAD(factors[t * factor_step]);
            const ELEMENT *row = rows + t * row_step + begin;
            for (int64_t i = 0; i < length; i++)
                sums[i] += factor * LOAD(row[i]);
        }
        for (int64_t i = 0; i < length; i++)
            y[begin + i] = STORE(sums[i]);
    }
}

static void KERNEL(forward)(const osw_linear *l, const osw_linear_block *block)
{
    const ELEMENT *weight = l->weight, *bias = l->bias, *input = l->input.base;
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        for (int64_t n = block->begin; n < block->end; n++) {
            const ELEMENT *x = input + n * l->input.row_step + g * l->input.group_step;
            ELEMENT *y = (ELEMENT *)l->output.base + n * l->output.row_step;
            for (int64_t o = l->first[g]; o < l->first[g + 1]; o++) {
                const SUM sum = LOCAL(dot)(x, weight + o * l->in_features, l->in_features);
                y[o] = STORE(bias ? sum + LOAD(bias[o]) : sum);
            }
        }
    }
}

static void KERNEL(grad_input)(const osw_linear *l, const osw_linear_block *block)
{
    const ELEMENT *weight = l->weight, *grad_output = l->grad_output.base;
    ELEMENT *grad_input = l->grad_input.base;
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        const int64_t o = l->first[g];
        for (int64_t n = block->begin; n < block->end; n++)
            LOCAL(combine)(l->first[g + 1] - o, grad_output + n * l->grad_output.row_step + o, 1,
                    weight + o * l->in_features, l->in_features, l->in_features,
                    grad_input + n * l->grad_input.row_step + g * l->grad_input.group_step);
    }
}

static void KERNEL(grad_weight)(const osw_linear *l, const osw_linear_block *block)
{
    const int64_t part = block->row_part, first = part * l->part_rows;
    const int64_t rows = osw_linear_part_end(l, part) - first, dy_step = l->grad_output.row_step;
    const ELEMENT *input = (const ELEMENT *)l->input.base + first * l->input.row_step;
    const ELEMENT *grad_output = (const ELEMENT *)l->grad_output.base + first * dy_step;
    ELEMENT *grad_weight = l->grad_weight;
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        if (block->begin == 0 && l->grad_bias)
            LOCAL(sum_rows)(l, g, part);
        for (int64_t o = l->first[g]; grad_weight && o < l->first[g + 1]; o++)
            LOCAL(
                combine)(rows, grad_output + o, dy_step, input + g * l->input.group_step + block->begin,
                    l->input.row_step, block->end - block->begin,
                    grad_weight + (part * l->first[l->groups] + o) * l->in_features + block->begin);
    }
}

#undef JOIN_
#undef JOIN
#undef LOCAL
#undef KERNEL
#undef SUFFIX
#undef ELEMENT
#undef SUM
#undef LOAD
#undef STORE
