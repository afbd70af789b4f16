/* SPDX-License-Identifier: MIT */
/* Batch normalisation, its activation, and a max pool over planes of the result, by the kernels of
 * norm and pool: strips of rows, or whole planes, are normalised into the cache and pooled from
 * there. The backward sums over the values that the pool has chosen, and makes the gradient of a
 * strip in the cache for what it writes. So nothing of the size of the input goes through memory
 * but the input and its gradient.
 *
 * Values are those of both operations one after the other, bit by bit; gradients are, but for the
 * order of the sums. Both do not depend on the number of threads. */
#ifndef OSW_NORM_POOL_RUN_H
#define OSW_NORM_POOL_RUN_H

#include "norm/run.h"
#include "norm_pool/gather.h"
#include "pool/pool.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct osw_norm_pool_job {
    /* Has no y and no dy; what it has is dense. The first member: kernels that get its osw_norm
     * find the job by it. */
    osw_norm_job norm;
    /* One slice deep, each channel. Has output or grad_output, and offsets unless they are not
     * wanted; no input and no grad_input. */
    osw_pool pool;
    /* Set by osw_norm_pool_choose: the max pool or its backward; NULL: no such pass. */
    osw_pool_fn *max;
    osw_norm_fn *apply, *reduce, *gradient;
    osw_gather gather; /* set by the backward */
} osw_norm_pool_job;

/* Whether what a window of the pool reads fits a strip: rows of pixels, at least two, or a plane.
 */
bool osw_norm_pool_fits(const osw_norm_pool_job *job);

/* As osw_norm_choose, behind osw_norm_prepare; pool_calls by osw_pool_id. */
void osw_norm_pool_choose(osw_norm_pool_job *job, bool backward, uint64_t *norm_calls,
                          uint64_t *pool_calls);

/* The pool's output and offsets, and in training mean and var. */
void osw_norm_pool_forward(osw_norm_pool_job *job, double *scratch);

/* dx unless norm.dx.base is NULL, grad_weight, grad_bias. */
void osw_norm_pool_backward(osw_norm_pool_job *job, double *scratch);

#endif
