/* SPDX-License-Identifier: MIT */
/* The gradients of a whole convolution: cut into parts for the threads, and their sums added. */
#ifndef OSW_CONV_RUN_H
#define OSW_CONV_RUN_H

#include "conv/conv.h"

#include <stddef.h>

typedef struct osw_conv_job {
    osw_conv conv;
    osw_conv_fn *kernel;
    int64_t element_bytes;
    bool channels_last; /* of the weight: [o][r][s][c], else [o][c][r][s] */
    void *grad_weight;
    void *grad_bias; /* NULL: not wanted */

    /* Set by osw_conv_plan. */
    int64_t products;
    int64_t output_parts;
    char *weight, *bias; /* the sums of the first of conv.parts, */
    int64_t step;        /* and bytes to those of the next */
} osw_conv_job;

/* Cut the work. Returns the bytes that osw_conv_run needs for sums, 0 if the gradients hold them.
 */
size_t osw_conv_plan(osw_conv_job *job);

/* Write the gradients. */
void osw_conv_run(osw_conv_job *job, char *sums);

#endif
