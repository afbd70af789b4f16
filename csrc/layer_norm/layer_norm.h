/* SPDX-License-Identifier: MIT */
/* Layer normalisation of rows, each of `channels` values that are neighbours: what every kernel of
 * the family does. Of a row, with the biased variance,
 *
 *     rstd = 1 / sqrt(variance + eps)       statistics[row] = {mean, rstd}
 *     h = (x - mean) * rstd                 y = h * weight + bias
 *     d = dy * weight
 *     dx = rstd * (d - sum(d) / channels - h * sum(d * h) / channels)
 *
 *     forward     y and the statistics
 *     backward    dx; of_bias += sum of dy, of_weight += sum of dy * h, over rows
 *
 * Rows follow each other without a gap. Arithmetic of f32, bf16 and f16 is float, of f64 double.
 * A mean that is large against the deviation costs no digits: x - center is exact, where center is
 * the mean as the dtype of the arithmetic holds it, and what the mean has beyond that is added
 * after the scaling. Sums of a row are within as many roundings as a lane has terms; those over
 * rows add at most OSW_LAYER_NORM_FLUSH rows before they go on in double. The results for a row do
 * not depend on where it lies. */
#ifndef OSW_LAYER_NORM_LAYER_NORM_H
#define OSW_LAYER_NORM_LAYER_NORM_H

#include "core/isa.h"

#include <stdint.h>

enum { OSW_LAYER_NORM_FLUSH = 128 };

/* Of a backward dx may be NULL, and so may be where its sums go. */
typedef struct osw_layer_norm {
    int64_t channels;
    double eps;
    const void *x, *dy;
    void *y, *dx;
    double *statistics;          /* [row][mean, rstd]; of a backward read only */
    const void *weight, *bias;   /* [channel], in the type of the arithmetic */
    double *of_weight, *of_bias; /* [channel], both or none */
    void *sums; /* room for two values of the arithmetic per channel, beside of_weight */
} osw_layer_norm;

/* Rows [begin, end). */
typedef void osw_layer_norm_fn(const osw_layer_norm *n, int64_t begin, int64_t end);

/* The list of variants. X(operation, dtype) makes the numbers, the table and the list that tests
 * and benchmarks walk. */
#define OSW_LAYER_NORM_OPERATION(X, operation)                                                     \
    X(operation, f32)                                                                              \
    X(operation, f64)                                                                              \
    X(operation, bf16)                                                                             \
    X(operation, f16)

#define OSW_LAYER_NORM_VARIANTS(X)                                                                 \
    OSW_LAYER_NORM_OPERATION(X, forward)                                                           \
    OSW_LAYER_NORM_OPERATION(X, backward)

#define OSW_LAYER_NORM_ID(operation, dtype) OSW_LAYER_NORM_##operation##_##dtype,
typedef enum osw_layer_norm_id {
    OSW_LAYER_NORM_VARIANTS(OSW_LAYER_NORM_ID) OSW_LAYER_NORM_COUNT
} osw_layer_norm_id;

/* Kernels in use, by osw_layer_norm_id. */
OSW_DECLARE_TABLE(osw_layer_norm_fn, osw_layer_norm_table, OSW_LAYER_NORM_COUNT,
                  osw_layer_norm_select, osw_layer_norm_fill);

#endif
