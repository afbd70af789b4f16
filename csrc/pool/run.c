/* SPDX-License-Identifier: MIT */
#include "pool/run.h"

#include "core/parallel.h"
#include "pool/holds.h"
#include "pool/window.h"

#include <assert.h>

int64_t osw_pool_output_size(const osw_pool_dim *dim, bool ceil_mode)
{
    const int64_t room = dim->input + 2 * dim->padding - dim->dilation * (dim->kernel - 1) - 1 +
                         (ceil_mode ? dim->stride - 1 : 0);
    if (room < 0)
        return 0;
    const int64_t count = room / dim->stride + 1;
    return ceil_mode && (count - 1) * dim->stride >= dim->input + dim->padding ? count - 1 : count;
}

int64_t osw_pool_units(const osw_pool *p, bool has_window, bool backward, bool pixels)
{
    if (!has_window)
        return p->images * (pixels ? osw_blocks(p) : p->channels);
    const int64_t rows = backward ? p->dims[DEPTH].input * p->dims[HEIGHT].input
                                  : p->dims[DEPTH].output * p->dims[HEIGHT].output;
    return p->images * rows * (pixels ? 1 : backward ? p->input_channels : p->channels);
}

/* Wide blocks are read faster; narrow ones give every thread work if there are few images. */
int64_t osw_pool_block(int64_t images)
{
    if (osw_parallel_threads() == 1 || images >= 2 * osw_parallel_threads())
        return OSW_POOL_MAX_BLOCK;
    return OSW_POOL_MIN_BLOCK;
}

static void run_job(int64_t begin, int64_t end, void *context)
{
    const osw_pool_job *job = context;
    job->kernel(job->pool, begin, end);
}

void osw_pool_run(const osw_pool_job *job)
{
    assert(osw_pool_holds(job->pool, job->has_window, job->units));
    assert(osw_pool_tensors_hold(job->pool, job->pixels));
    osw_parallel_for(job->units, osw_grain(job->bytes / job->units), run_job, (void *)job);
}

static void run_indices(int64_t begin, int64_t end, void *context)
{
    osw_pool_write_indices(context, begin, end);
}

void osw_pool_run_indices(const osw_pool_indices *work, int64_t units, int64_t bytes)
{
    assert(osw_pool_dims_hold(work->pool, true) && units >= 1);
    osw_parallel_for(units, osw_grain(bytes / units), run_indices, (void *)work);
}
