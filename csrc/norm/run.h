/* SPDX-License-Identifier: MIT */
/* A whole normalisation, forward or backward: which kernel runs on which part, in which order, on
 * how many threads. Results are the same for any number of threads: partial sums belong to chunks
 * that depend on the sizes only, and are added in the order of the chunks. */
#ifndef OSW_NORM_RUN_H
#define OSW_NORM_RUN_H

#include "core/dtype.h"
#include "norm/norm.h"

#include <stdbool.h>

typedef enum osw_norm_form { OSW_NORM_PLANES, OSW_NORM_PIXELS } osw_norm_form;

/* One call. All arrays hold one value per channel; where NULL is allowed, the comment says so. */
typedef struct osw_norm_job {
    osw_norm norm; /* sizes, tensors and activation; the factors are set by the run */
    osw_norm_form form;
    osw_dtype dtype;
    bool training; /* statistics of the batch, not given ones */
    double eps;
    bool moves;                      /* the running statistics, after a forward in training, by */
    double momentum;                 /* any number */
    double *mean, *var;              /* biased; written by a forward in training, else read */
    const double *weight, *bias;     /* NULL: 1, 0 */
    double *grad_weight, *grad_bias; /* backward, both or none: NULL if neither is wanted */
    osw_norm_fn *sample, *sums, *write; /* NULL: no such pass; set by osw_norm_choose */
    /* Set by osw_norm_prepare. */
    int64_t chunks, chunk; /* number, and images or rows in each */
    double *partial;       /* [chunk][first, second][channel] */
} osw_norm_job;

/* Decide the chunks. Returns how many doubles of scratch the run needs. */
int64_t osw_norm_prepare(osw_norm_job *job);

/* Choose the kernels of a forward or a backward, whose outputs are set, and count them in `calls`,
 * by osw_norm_id. The caller holds the lock that guards the table and the counts; the run that
 * follows reads neither. */
void osw_norm_choose(osw_norm_job *job, bool backward, uint64_t *calls);

/* The output is beyond the caches, and not written over the input, which has its lines there. */
bool osw_norm_streams(const osw_norm_job *job);

/* Parts of pixels that begin at a multiple of so many rows, and end at one or with the tensor, give
 * each row the bits that it gets from all in one part. Divides OSW_NORM_ROWS. */
int64_t osw_norm_part_rows(int64_t channels);

/* y, and in training mean and var. */
void osw_norm_forward(osw_norm_job *job, double *scratch);

/* running += momentum * (batch - running), for the mean and the unbiased variance. */
void osw_norm_move(const osw_norm_job *job, double *running_mean, double *running_var);

/* dx unless norm.dx.base is NULL, grad_weight, grad_bias. */
void osw_norm_backward(osw_norm_job *job, double *scratch);

#endif
