/* SPDX-License-Identifier: MIT */
/* A whole convolution, or its gradients: cut into parts for the threads, and their sums added. */
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

/* Outputs, or the gradient of the input; `conv` has its sizes and tensors, but `packed`. */
typedef struct osw_conv_product {
    osw_conv conv;
    osw_conv_fn *pack, *forward;
    int64_t element_bytes;
} osw_conv_product;

/* Bytes that either needs for the packed weight. */
size_t osw_conv_product_room(const osw_conv_product *product);

/* Write conv.output by conv.input. */
void osw_conv_run_forward(osw_conv_product *product, void *room);

/* Write conv.output, the gradient of the input, by conv.grad_output. */
void osw_conv_run_grad_input(osw_conv_product *product, void *room);

#endif
