/* SPDX-License-Identifier: MIT */
#include "depthwise/run.h"

#include "core/parallel.h"
#include "depthwise/holds.h"

#include <assert.h>

static osw_depthwise_fn *kernel_of(const osw_depthwise_job *job, osw_depthwise_id id,
                                   uint64_t *calls)
{
    id = (osw_depthwise_id)((int)id + (int)job->dtype);
    calls[id]++;
    return osw_depthwise_table[id];
}

/* Elements of the weight, and of the sums for weight and bias. */
static int64_t taps_of(const osw_depthwise *d)
{
    return d->tall * d->wide * d->channels;
}

static int64_t sums_of(const osw_depthwise *d)
{
    return taps_of(d) + d->channels;
}

size_t osw_depthwise_plan(osw_depthwise_job *job, bool backward, uint64_t *calls)
{
    const osw_depthwise *d = &job->d;
    assert(osw_depthwise_holds(d) && osw_depthwise_dtypes_hold(job->dtype, job->weight_dtype));
    const int64_t value = osw_dtype_value_bytes(job->dtype);
    const int64_t pixels = d->height * d->width + d->out_height * d->out_width;
    const bool sums = job->grad_weight || job->grad_bias;
    job->bytes = d->batch * pixels * d->channels * osw_dtype_bytes(job->dtype) * (backward ? 2 : 1);
    if (!backward) {
        job->kernels[0] = kernel_of(job, OSW_DEPTHWISE_forward_f32, calls);
        return (size_t)(sums_of(d) * value);
    }
    job->chunks = osw_depthwise_cut(d);
    job->sums_bytes = sums ? sums_of(d) * value : 0;
    if (sums)
        job->kernels[0] = kernel_of(job, OSW_DEPTHWISE_grad_weight_f32, calls);
    if (d->grad_input)
        job->kernels[1] = kernel_of(job, OSW_DEPTHWISE_grad_input_f32, calls);
    return (size_t)(sums_of(d) * ((int64_t)sizeof(double) + value) +
                    job->chunks.count * job->sums_bytes);
}

static void run_rows(int64_t begin, int64_t end, void *context)
{
    const osw_depthwise_job *job = context;
    assert(osw_depthwise_rows_hold(&job->d, begin, end, job->d.out_height));
    job->kernels[0](&job->d, begin, end, NULL);
}

/* The output's rows of a chunk are read by both kernels, one soon after the other. */
static void run_chunks(int64_t begin, int64_t end, void *context)
{
    const osw_depthwise_job *job = context;
    const osw_depthwise *d = &job->d;
    for (int64_t i = begin; i < end; i++) {
        const int64_t heights[] = {d->out_height, d->height};
        char *const sums[] = {job->sums + i * job->sums_bytes, NULL};
        for (int k = 0; k < 2; k++) {
            const int64_t first = osw_depthwise_first_row(d, &job->chunks, i, heights[k]);
            const int64_t last = osw_depthwise_first_row(d, &job->chunks, i + 1, heights[k]);
            assert(osw_depthwise_rows_hold(d, first, last, heights[k]));
            if (job->kernels[k])
                job->kernels[k](d, first, last, sums[k]);
        }
    }
}

static void run(osw_depthwise_job *job, int64_t count, osw_body *body)
{
    assert(osw_depthwise_holds(&job->d) && count >= 1);
    osw_parallel_for(count, osw_grain(job->bytes / count), body, job);
}

static void pack(osw_depthwise_job *job, char *taps)
{
    osw_depthwise_pack(&job->d, job->weight_dtype, job->weight, job->bias, taps);
    job->d.taps = taps;
    job->d.bias = job->bias ? taps + taps_of(&job->d) * osw_dtype_value_bytes(job->dtype) : NULL;
}

void osw_depthwise_forward(osw_depthwise_job *job, char *room)
{
    pack(job, room);
    run(job, job->d.batch * job->d.out_height, run_rows);
}

/* The room: the total of all sums in double, the taps, the sums of every chunk. */
void osw_depthwise_backward(osw_depthwise_job *job, char *room)
{
    osw_depthwise *d = &job->d;
    char *taps = room + sums_of(d) * (int64_t)sizeof(double);
    double *totals = (double *)(void *)room;
    job->sums = taps + sums_of(d) * osw_dtype_value_bytes(job->dtype);
    d->sums_output = job->grad_bias != NULL;
    if (d->grad_input)
        pack(job, taps);
    run(job, job->chunks.count, run_chunks);
    if (!job->sums_bytes)
        return;
    osw_depthwise_finish(d, job->weight_dtype, job->chunks.count, job->sums, totals,
                         job->grad_weight, job->grad_bias);
}
