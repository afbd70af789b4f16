/* SPDX-License-Identifier: MIT */
/* A whole layer normalisation, forward or backward. Results are the same for any number of threads:
 * sums over rows belong to chunks that depend on the sizes only, and are added in their order. */
#ifndef OSW_LAYER_NORM_RUN_H
#define OSW_LAYER_NORM_RUN_H

#include "core/dtype.h"
#include "layer_norm/layer_norm.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct osw_layer_norm_job {
    osw_layer_norm norm; /* but for the parameters and sums, which the run sets */
    osw_dtype dtype;
    int64_t rows;
    const double *weight, *bias;     /* [channel]; NULL: 1, 0 */
    double *grad_weight, *grad_bias; /* backward, both or none: NULL where neither is wanted */
    /* Set by osw_layer_norm_plan. */
    osw_layer_norm_fn *kernel; /* NULL: nothing is wanted */
    int64_t chunks, chunk;     /* of a backward: number, and rows in each */
    char *room;
} osw_layer_norm_job;

/* Choose the kernel, count it in `calls`, and cut the work. Returns the bytes that the run needs,
 * aligned as doubles. The caller holds the lock that guards the table and the counts; the run that
 * follows reads neither. */
size_t osw_layer_norm_plan(osw_layer_norm_job *job, bool backward, uint64_t *calls);

/* y and the statistics. */
void osw_layer_norm_forward(osw_layer_norm_job *job, char *room);

/* dx unless norm.dx is NULL, grad_weight, grad_bias. */
void osw_layer_norm_backward(osw_layer_norm_job *job, char *room);

#endif
