/* SPDX-License-Identifier: MIT */
/* A whole map of planes, or its gradients: cut into blocks for the threads. */
#ifndef OSW_POINTWISE_RUN_H
#define OSW_POINTWISE_RUN_H

#include "core/dtype.h"
#include "pointwise/pointwise.h"

#include <stddef.h>

typedef struct osw_pointwise_job {
    osw_pointwise planes; /* but for parts and part_images; images without a base are not wanted */
    osw_dtype dtype;      /* float or double */

    /* Set by osw_pointwise_plan: the blocks of up to two kernels, walked side by side. Of `blocks`
     * steps, step i writes the i-th share of each kernel's. */
    osw_pointwise_fn *kernels[2];
    osw_pointwise_grid grids[2];
    int64_t counts[2];
    int count;
    int64_t blocks;
    int64_t cost; /* in multiplications */
} osw_pointwise_job;

/* Choose kernels, count them in `calls`, and cut the work. Returns the bytes that osw_pointwise_run
 * needs for parts of the gradients, 0 if there are none. */
size_t osw_pointwise_plan(osw_pointwise_job *job, uint64_t *calls);

/* Write the output, or every gradient that is wanted; memory: of the size that the plan told. */
void osw_pointwise_run(osw_pointwise_job *job, char *memory);

#endif
