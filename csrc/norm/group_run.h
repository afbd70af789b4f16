/* SPDX-License-Identifier: MIT */
/* A whole group normalisation, forward or backward, of pixels: the kernels of norm.h on one image
 * after the other, whose channels are combined group by group between the two passes. Instance
 * normalisation has as many groups as channels. Results are the same for any number of threads. */
#ifndef OSW_NORM_GROUP_RUN_H
#define OSW_NORM_GROUP_RUN_H

#include "norm/run.h"

#include <stdint.h>

/* One call. Of `all` the run reads the sizes, tensors, dtype, eps, weight, bias, kernels and where
 * the gradients of weight and bias go; the form is OSW_NORM_PIXELS, and training is true. */
typedef struct osw_group_job {
    osw_norm_job all;
    int64_t groups;     /* divides the channels */
    double *statistics; /* [image][group][mean, biased variance]; written by a forward, else read */
    /* Set by osw_group_prepare. */
    int64_t blocks, block; /* number, and images in each */
    int64_t room;          /* doubles for the images of a block, one after the other */
    double *rooms;         /* [block] */
    double *gradients;     /* [block][of bias, of weight][channel] */
} osw_group_job;

/* Decide chunks of rows and blocks of images. Returns how many doubles of scratch the run needs. */
int64_t osw_group_prepare(osw_group_job *job);

/* y and the statistics. */
void osw_group_forward(osw_group_job *job, double *scratch);

/* dx unless all.norm.dx.base is NULL, all.grad_weight, all.grad_bias. */
void osw_group_backward(osw_group_job *job, double *scratch);

#endif
