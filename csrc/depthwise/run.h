/* SPDX-License-Identifier: MIT */
/* A whole depthwise convolution, or its gradients: cut into rows for the threads. */
#ifndef OSW_DEPTHWISE_RUN_H
#define OSW_DEPTHWISE_RUN_H

#include "core/dtype.h"
#include "depthwise/depthwise.h"

#include <stddef.h>

typedef struct osw_depthwise_job {
    osw_depthwise d;        /* but for taps, bias, sums_output; grad_input NULL: not wanted */
    osw_dtype dtype;        /* of the images */
    osw_dtype weight_dtype; /* the same, or OSW_F32 beside images of 16 bits */
    const void *weight;     /* [channels][tall][wide] */
    const void *bias;       /* [channels]; NULL: none */
    void *grad_weight;      /* as weight; NULL: not wanted */
    void *grad_bias;        /* [channels]; NULL: not wanted */

    /* Set by osw_depthwise_plan. */
    osw_depthwise_fn *kernels[2]; /* forward; or grad_weight and grad_input, NULL: not wanted */
    osw_depthwise_chunks chunks;
    int64_t bytes; /* that are moved */
    char *sums;
    int64_t sums_bytes; /* of a chunk */
} osw_depthwise_job;

/* Choose kernels, count them in `calls`, and cut the work. Returns the bytes that the run needs. */
size_t osw_depthwise_plan(osw_depthwise_job *job, bool backward, uint64_t *calls);

/* Write the output, or every gradient that is wanted. */
void osw_depthwise_forward(osw_depthwise_job *job, char *room);
void osw_depthwise_backward(osw_depthwise_job *job, char *room);

#endif
