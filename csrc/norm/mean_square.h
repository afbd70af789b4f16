/* SPDX-License-Identifier: MIT */
/* A tensor over the mean of its squares, by the kernels of batch normalisation: with n elements,
 * m = sum(x^2) / n,
 *
 *     y = x / m          dx = dy / m - x * 2 * sum(dy * x) / (n * m^2)
 *
 * Results do not depend on the number of threads. */
#ifndef OSW_NORM_MEAN_SQUARE_H
#define OSW_NORM_MEAN_SQUARE_H

#include "norm/run.h"

typedef struct osw_mean_square_job {
    osw_norm_job norm; /* planes of one channel: images of so many positions */
    double mean_square;
    osw_norm_fn *write;  /* set by osw_mean_square_choose */
    double product, sum; /* sums of dy * x and of dy; of a forward dy is x */
} osw_mean_square_job;

/* As osw_norm_choose, behind osw_norm_prepare. */
void osw_mean_square_choose(osw_mean_square_job *job, bool backward, uint64_t *calls);

/* y and mean_square. False, and no y, if floats do not hold the quotient of 1 and it. */
bool osw_mean_square_forward(osw_mean_square_job *job, double *scratch);

/* dx, of mean_square. False, and no dx, if floats do not hold its factors. */
bool osw_mean_square_backward(osw_mean_square_job *job, double *scratch);

#endif
