/* SPDX-License-Identifier: MIT */
#include "norm/mean_square.h"

#include "core/parallel.h"
#include "norm/holds.h"

#include <assert.h>
#include <float.h>
#include <math.h>

void osw_mean_square_choose(osw_mean_square_job *job, bool backward, uint64_t *calls)
{
    osw_norm_job *norm = &job->norm;
    norm->training = false;
    norm->grad_weight = norm->grad_bias = NULL; /* first what writes, then the sums */
    osw_norm_choose(norm, backward, calls);
    job->write = norm->write;
    void *const dx = norm->norm.dx.base;
    norm->grad_weight = &job->product;
    norm->grad_bias = &job->sum;
    norm->norm.dx.base = NULL;
    osw_norm_choose(norm, true, calls);
    norm->norm.dx.base = dx;
}

static void write_images(int64_t begin, int64_t end, void *context)
{
    const osw_mean_square_job *job = context;
    const osw_norm_part part = {.channel_end = 1, .begin = begin, .end = end};
    job->write(&job->norm.norm, &part);
}

/* y = x * scale, or dx = dy * scale + x * tilt. False, and nothing written, for factors that floats
 * do not hold. */
static bool write(osw_mean_square_job *job, double scale, double tilt)
{
    if (!(scale <= FLT_MAX && (scale >= FLT_MIN || scale == 0) && fabs(tilt) <= FLT_MAX))
        return false;
    osw_norm *n = &job->norm.norm;
    double zero = 0;
    n->center = n->shift = n->offset = &zero;
    n->scale = &scale;
    n->tilt = &tilt;
    const int64_t bytes = n->positions * osw_dtype_bytes(job->norm.dtype);
    osw_parallel_for(n->images, osw_grain(bytes), write_images, job);
    return true;
}

/* sum(dy * x): about a center of 0, and of a deviation of 1, a normalisation's gradient of the
 * weight. Nothing is written: there is no kernel for it. */
static double product(osw_mean_square_job *job, double *scratch)
{
    double mean = 0, var = 1;
    assert(osw_mean_square_holds(job));
    job->norm.mean = &mean;
    job->norm.var = &var;
    osw_norm_backward(&job->norm, scratch);
    return job->product;
}

static double count_of(const osw_mean_square_job *job)
{
    return (double)(job->norm.norm.images * job->norm.norm.positions);
}

bool osw_mean_square_forward(osw_mean_square_job *job, double *scratch)
{
    job->norm.norm.dy = job->norm.norm.x;
    job->mean_square = product(job, scratch) / count_of(job);
    return write(job, 1 / job->mean_square, 0);
}

bool osw_mean_square_backward(osw_mean_square_job *job, double *scratch)
{
    const double m = job->mean_square;
    return write(job, 1 / m, -2 * product(job, scratch) / (count_of(job) * m * m));
}
