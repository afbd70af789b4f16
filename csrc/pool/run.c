/* SPDX-License-Identifier: MIT */
#include "pool/run.h"

#include "core/parallel.h"
#include "pool/window.h"

int64_t osw_pool_units(const osw_pool *p, bool has_window, bool backward, bool pixels)
{
    if (!has_window)
        return p->images * (pixels ? osw_blocks(p) : p->channels);
    const int64_t rows = backward ? p->dims[DEPTH].input * p->dims[HEIGHT].input
                                  : p->dims[DEPTH].output * p->dims[HEIGHT].output;
    return p->images * rows * (pixels ? 1 : backward ? p->input_channels : p->channels);
}

/* Wide blocks are read faster; narrow ones give every thread work where there are few images. */
int64_t osw_pool_block(int64_t images)
{
    if (osw_parallel_threads() == 1 || images >= 2 * osw_parallel_threads())
        return OSW_POOL_MAX_BLOCK;
    return OSW_POOL_MIN_BLOCK;
}

typedef struct osw_job {
    const osw_pool *pool;
    osw_pool_fn *kernel;
} osw_job;

static void run_job(int64_t begin, int64_t end, void *context)
{
    const osw_job *job = context;
    job->kernel(job->pool, begin, end);
}

void osw_pool_run(const osw_pool *pool, osw_pool_fn *kernel, int64_t units, int64_t bytes)
{
    osw_job job = {pool, kernel};
    osw_parallel_for(units, osw_grain(bytes / units), run_job, &job);
}

static void run_indices(int64_t begin, int64_t end, void *context)
{
    osw_pool_write_indices(context, begin, end);
}

void osw_pool_run_indices(const osw_pool_indices *work, int64_t units, int64_t bytes)
{
    osw_parallel_for(units, osw_grain(bytes / units), run_indices, (void *)work);
}
