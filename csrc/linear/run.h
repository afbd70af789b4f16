/* SPDX-License-Identifier: MIT */
/* A whole linear map, or its gradients: cut into blocks for the threads. */
#ifndef OSW_LINEAR_RUN_H
#define OSW_LINEAR_RUN_H

#include "core/dtype.h"
#include "linear/linear.h"

#include <stddef.h>

typedef struct osw_linear_job {
    osw_linear linear; /* but for row_parts and part_rows; an output without a base is not wanted */
    osw_dtype dtype;

    /* Set by osw_linear_plan: the blocks of up to two kernels, walked side by side. Of `blocks`
     * steps, step i writes the i-th share of each kernel's. */
    osw_linear_fn *kernels[2];
    osw_linear_grid grids[2];
    int64_t totals[2];
    int count;
    int gaps_of; /* the kernel that writes rows of grad_input with gaps between them, or -1 */
    int64_t blocks;
    int64_t cost; /* in multiplications */
} osw_linear_job;

/* Choose kernels, count them in `calls`, and cut the work. Returns the bytes that osw_linear_run
 * needs for parts of the gradients, 0 if there are none. */
size_t osw_linear_plan(osw_linear_job *job, uint64_t *calls);

/* Write the output, or every gradient that is wanted; memory: of the size that the plan told. */
void osw_linear_run(osw_linear_job *job, char *memory);

#endif
