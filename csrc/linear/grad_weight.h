/* SPDX-License-Identifier: MIT */
/* The gradients of weight and bias; included once per dtype. */
#include "core/ints.h"
#include "core/simd.h"
#include "linear/linear.h"
#include "linear/tiles.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef SUFFIX
#    include "core/each_float.h"
#    include "linear/combine.h"
#    include "linear/outer.h"
#    include "linear/product_tiles.h"

#    include "linear/product.h" /* of what product_tiles.h defines */
#    include "linear/weight_passes.h"
#endif

/* grad_bias[o + j] = sum of grad_output[n][o + j] over the rows of a part, for so many vectors of
 * outputs, `last` lanes of the last one; in blocks of rows, whose sums are added up, so that the
 * error grows slowly. */
OSW_INLINE void LOCAL(sum_outputs)(const osw_linear *l, int64_t part, int64_t o, const int vectors,
                            int64_t last)
{
    const int64_t step = l->grad_output.row_step, end = osw_linear_part_end(l, part);
    VECTOR totals[BIAS_VECTORS] = {{0}};
    for (int64_t n = part * l->part_rows; n < end; n += BIAS_ROWS) {
        const ELEMENT *dy = (const ELEMENT *)l->grad_output.base + n * step + o;
        VECTOR sums[BIAS_VECTORS] = {{0}};
        for (int64_t rows = osw_min_int(end - n, BIAS_ROWS); rows > 0; rows--, dy += step) {
            OSW_UNROLL
            for (int v = 0; v < vectors; v++)
                sums[v] +=
                    last == VLANES ? LOCAL(load)(dy + v * VLANES) : LOCAL(load_first)(dy + v * VLANES, last);
        }
        OSW_UNROLL
        for (int v = 0; v < vectors; v++)
            totals[v] += sums[v];
    }
    ELEMENT *to = (ELEMENT *)l->grad_bias + part * l->first[l->groups] + o;
    OSW_UNROLL
    for (int v = 0; v < vectors; v++)
        LOCAL(store_first)(to + v * VLANES, totals[v], last);
}

static void LOCAL(grad_bias)(const osw_linear *l, int64_t g, int64_t part)
{
    const int64_t end = l->first[g + 1];
    int64_t o = l->first[g];
    for (; end - o >= BIAS_VECTORS * VLANES; o += BIAS_VECTORS * VLANES)
        LOCAL(sum_outputs)(l, part, o, BIAS_VECTORS, VLANES);
    for (; o < end; o += VLANES)
        LOCAL(sum_outputs)(l, part, o, 1, osw_min_int(end - o, VLANES));
}

/* Features [i, i + count) of the weights of group g, the input read once. grad_weight: that of the
 * row part. */
static void
LOCAL(few_grad_weights)(const osw_linear *l, int64_t g, int64_t part, int64_t i, int64_t count,
                             ELEMENT *grad_weight)
{
    _Alignas(64) VALUE sums[FEW_OUTPUTS][STRIP];
    const int64_t dy_step = l->grad_output.row_step, x_step = l->input.row_step, o = l->first[g];
    const int64_t first = part * l->part_rows, end = osw_linear_part_end(l, part);
    const ELEMENT *dy = (const ELEMENT *)l->grad_output.base + o;
    const ELEMENT *x = (const ELEMENT *)l->input.base + g * l->input.group_step + i;
    for (int64_t n = first, terms; n < end; n += terms) {
        terms = osw_linear_in_line(&l->lines, n, osw_min_int(end - n, MOST_TERMS));
        const bool last = n + terms == end;
        for (int64_t k = 0; k < l->first[g + 1] - o; k++) {
            const ELEMENT *factors = dy + n * dy_step + k, *rows = x + osw_linear_input_at(l, n);
            ELEMENT *to = last ? grad_weight + (o + k) * l->in_features + i : NULL;
            LOCAL(combine)(terms, n > first, count, factors, dy_step, rows, x_step, sums[k], to);
        }
    }
}

/* Measured with AVX-512 on Sapphire Rapids: 64 rows of 100 groups of 768 floats take 0.6 of the
 * time, doubles 0.5, inputs in L2 as long or 1.1. */
static bool LOCAL(rows_apart)(const osw_linear *l)
{
    const int64_t step = l->input.row_step * (int64_t)sizeof(ELEMENT);
    return !l->planes && !l->lines.rows && step >= PAGE_BYTES && l->rows * step >= APART_BYTES;
}

static void KERNEL(linear_grad_weight)(const osw_linear *l, const osw_linear_block *block)
{
    const int64_t part = block->row_part, row = part * l->part_rows;
    const osw_linear_steps *const steps = l->lines.rows ? &l->input_steps : NULL;
    ELEMENT *grad_weight = l->grad_weight;
    if (grad_weight)
        grad_weight += part * l->first[l->groups] * l->in_features;
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        const int64_t o = l->first[g], outputs = l->first[g + 1] - o;
        if (block->begin == 0 && l->grad_bias)
            LOCAL(grad_bias)(l, g, part);
        if (!grad_weight)
            continue;
        if (outputs <= FEW_OUTPUTS && !l->planes) {
            for (int64_t i = block->begin; i < block->end; i += STRIP) {
                const int64_t count = osw_min_int(block->end - i, STRIP);
                LOCAL(few_grad_weights)(l, g, part, i, count, grad_weight);
            }
            continue;
        }
        if (LOCAL(add_passes)(l, g, part, block->begin, block->end, grad_weight))
            continue;
        LOCAL(multiply)(&(osw_product){
            .rows = outputs,
            .columns = block->end - block->begin,
            .terms = osw_linear_part_end(l, part) - row,
            .a = (const ELEMENT *)l->grad_output.base + row * l->grad_output.row_step + o,
            .a_row = 1,
            .a_term = l->grad_output.row_step,
            .b = (const ELEMENT *)l->input.base + (steps ? 0 : row * l->input.row_step) +
                 g * l->input.group_step + block->begin * osw_linear_feature_step(l),
            .b_term = l->planes ? l->plane_step : l->input.row_step,
            .transposed = l->planes,
            .apart_b = LOCAL(rows_apart)(l),
            .lines = &l->lines,
            .b_steps = steps,
            .first = row,
            .c = grad_weight + o * l->in_features + block->begin,
            .c_row = l->in_features,
        });
    }
}
