/* SPDX-License-Identifier: MIT */
/* The AVX2 kernels of one dtype; included once a dtype by linear_avx2.c with SUFFIX, ELEMENT (the
 * type in memory), SUM (that of sums), LOAD and STORE (the ways between them), VECTOR, LANES and V
 * (of SUM) defined; HALF stands for 16-bit elements. */

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c)  JOIN_(a, b, c)
#define LOCAL(name)    JOIN(name, _, SUFFIX)
#define KERNEL(name)   JOIN(JOIN(osw_linear_, name, _), SUFFIX, __avx2)

/* Element (m, d) of a lies at a[m * a_row + d * a_term]; (d, j) of b at b[d * b_term + j], or at
 * b[d + j * b_term] if transposed; (m, j) of c at c[m * c_row + j]. start: one value a column, or
 * NULL for zero. adds: c holds what is added instead; not for HALF. */
typedef struct LOCAL(product) {
    int64_t rows, columns, terms;
    const ELEMENT *a, *b, *start;
    ELEMENT *c;
    int64_t a_row, a_term, b_term, c_row;
    bool transposed, adds;
} LOCAL(product);

#include "linear/bias.h"
#include "linear/combine.h"
#include "linear/dot.h"

#ifdef HALF
#    include "linear/half_product.h"
#else
#    include "linear/product.h"
#endif

/* Packing costs by the weight, the sums over the lanes of dot products by the output: the first is
 * the lower price where there is at least a row for four input features. */
static bool LOCAL(pays_packing)(const osw_linear *l, int64_t outputs)
{
    return outputs >= LANES && 4 * l->rows >= l->in_features;
}

/* The first `outputs` outputs of group g, by a packed weight. */
static void LOCAL(packed_forward)(const osw_linear *l, int64_t g, int64_t begin, int64_t end,
                           int64_t outputs)
{
    const int64_t x_step = l->input.row_step, y_step = l->output.row_step, o = l->first[g];
    LOCAL(multiply)(&(LOCAL(product)){
        .rows = end - begin,
        .columns = outputs,
        .terms = l->in_features,
        .a = (const ELEMENT *)l->input.base + begin * x_step + g * l->input.group_step,
        .a_row = x_step,
        .a_term = 1,
        .b = (const ELEMENT *)l->weight + o * l->in_features,
        .b_term = l->in_features,
        .start = l->bias ? (const ELEMENT *)l->bias + o : NULL,
        .c = (ELEMENT *)l->output.base + begin * y_step + o,
        .c_row = y_step,
        .transposed = true,
    });
}

/* A few outputs behind whole vectors of them are dot products: as a tile they would cost as much as
 * a vector. */
static void KERNEL(forward)(const osw_linear *l, const osw_linear_block *block)
{
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        const int64_t o = l->first[g], outputs = l->first[g + 1] - o, rest = outputs % LANES;
        if (!LOCAL(pays_packing)(l, outputs)) {
            LOCAL(dot_forward)(l, g, block->begin, block->end);
        } else if (rest == 0 || rest > LANES / 2 || outputs > 2 * LANES) {
            LOCAL(packed_forward)(l, g, block->begin, block->end, outputs);
        } else {
            LOCAL(packed_forward)(l, g, block->begin, block->end, outputs - rest);
            LOCAL(dot_outputs)(l, g, block->begin, block->end, o + outputs - rest, o + outputs);
        }
    }
}

/* FEW: outputs of a group up to which its gradients are plain sums of rows; STRIP: features whose
 * sums stay in L1 until they are rounded. */
enum { LOCAL(FEW) = 2, LOCAL(STRIP) = 1024 };

static void KERNEL(grad_input)(const osw_linear *l, const osw_linear_block *block)
{
    const int64_t dy_step = l->grad_output.row_step, dx_step = l->grad_input.row_step;
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        const int64_t o = l->first[g], outputs = l->first[g + 1] - o,
                      rows = block->end - block->begin;
        const ELEMENT *weight = (const ELEMENT *)l->weight + o * l->in_features;
        const ELEMENT *dy = (const ELEMENT *)l->grad_output.base + block->begin * dy_step + o;
        ELEMENT *dx =
            (ELEMENT *)l->grad_input.base + block->begin * dx_step + g * l->grad_input.group_step;
        if (outputs > 0 && outputs <= LOCAL(FEW)) {
            for (int64_t n = 0; n < rows; n++)
                LOCAL(
                    combine)(outputs, false, l->in_features, dy + n * dy_step, 1, weight, l->in_features,
                        NULL, dx + n * dx_step);
            continue;
        }
        LOCAL(multiply)(&(LOCAL(product)){
            .rows = rows,
            .columns = l->in_features,
            .terms = outputs,
            .a = dy,
            .a_row = dy_step,
            .a_term = 1,
            .b = weight,
            .b_term = l->in_features,
            .c = dx,
            .c_row = dx_step,
        });
    }
}

/* Features [i, i + count) of the weights of group g, the input read once. grad_weight: that of the
 * row part. */
static void LOCAL(few_grad_weights)(const osw_linear *l, int64_t g, int64_t row_part, int64_t i,
                             int64_t count, ELEMENT *grad_weight)
{
    alignas(32) SUM sums[LOCAL(FEW)][LOCAL(STRIP)];
    const int64_t dy_step = l->grad_output.row_step, x_step = l->input.row_step, o = l->first[g];
    const int64_t first = row_part * l->part_rows, end = osw_linear_part_end(l, row_part);
    const ELEMENT *dy = (const ELEMENT *)l->grad_output.base + o;
    const ELEMENT *x = (const ELEMENT *)l->input.base + g * l->input.group_step + i;
    for (int64_t n = first; n < end; n += LOCAL(MOST_TERMS)) {
        const bool last = end - n <= LOCAL(MOST_TERMS);
        for (int64_t k = 0; k < l->first[g + 1] - o; k++)
            LOCAL(
                combine)(last ? end - n : LOCAL(MOST_TERMS), n > first, count, dy + n * dy_step + k, dy_step,
                    x + n * x_step, x_step, sums[k],
                    last ? grad_weight + (o + k) * l->in_features + i : NULL);
    }
}

static void KERNEL(grad_weight)(const osw_linear *l, const osw_linear_block *block)
{
    const int64_t part = block->row_part, row = part * l->part_rows;
    ELEMENT *grad_weight = (ELEMENT *)l->grad_weight;
    if (grad_weight)
        grad_weight += part * l->first[l->groups] * l->in_features;
    for (int64_t g = block->group_begin; g < block->group_end; g++) {
        const int64_t o = l->first[g], outputs = l->first[g + 1] - o;
        if (block->begin == 0 && l->grad_bias)
            LOCAL(sum_rows)(l, g, part);
        if (!grad_weight)
            continue;
        if (outputs <= LOCAL(FEW)) {
            for (int64_t i = block->begin; i < block->end; i += LOCAL(STRIP))
                LOCAL(
                    few_grad_weights)(l, g, part, i, block->end - i < LOCAL(STRIP) ? block->end - i : LOCAL(STRIP),
                                 grad_weight);
            continue;
        }
        LOCAL(multiply)(&(LOCAL(product)){
            .rows = outputs,
            .columns = block->end - block->begin,
            .terms = osw_linear_part_end(l, part) - row,
            .a = (const ELEMENT *)l->grad_output.base + row * l->grad_output.row_step + o,
            .a_row = 1,
            .a_term = l->grad_output.row_step,
            .b = (const ELEMENT *)l->input.base + row * l->input.row_step +
                 g * l->input.group_step + block->begin,
            .b_term = l->input.row_step,
            .c = grad_weight + o * l->in_features + block->begin,
            .c_row = l->in_features,
        });
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
#undef VECTOR
#undef LANES
#undef V
