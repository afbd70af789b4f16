/* SPDX-License-Identifier: MIT */
#include "conv/run.h"

#include "conv/holds.h"
#include "core/parallel.h"

#include <assert.h>

static void run_parts(int64_t begin, int64_t end, void *context)
{
    const osw_conv_job *job = context;
    for (int64_t i = begin; i < end; i++) {
        osw_conv_part part = osw_conv_part_at(&job->conv, job->output_parts, i);
        const int64_t offset = i / job->output_parts * job->step;
        part.weight = job->weight + offset;
        part.bias = job->bias ? job->bias + offset : NULL;
        assert(osw_conv_part_holds(&job->conv, &part));
        job->kernel(&job->conv, &part);
    }
}

static bool taps_last(const osw_conv_job *job)
{
    return !job->channels_last && job->conv.rows.taps * job->conv.columns.taps > 1;
}

size_t osw_conv_plan(osw_conv_job *job)
{
    osw_conv *conv = &job->conv;
    assert(osw_conv_sizes_hold(conv) && (job->element_bytes == 4 || job->element_bytes == 8));
    osw_conv_prepare(conv, job->element_bytes);
    const int64_t weights = osw_conv_weights(conv);
    job->products = conv->batch * conv->rows.out_size * conv->columns.out_size * weights;
    job->output_parts = osw_conv_output_parts(conv, job->element_bytes, osw_parallel_threads());
    job->step = (weights + conv->outputs) * job->element_bytes;
    const bool direct = conv->parts == 1 && !conv->crossed && !taps_last(job);
    return direct ? 0 : (size_t)(conv->parts * job->step);
}

void osw_conv_run(osw_conv_job *job, char *sums)
{
    const osw_conv *conv = &job->conv;
    const int64_t count = conv->parts * job->output_parts;
    char *bias_sums = sums ? sums + osw_conv_weights(conv) * job->element_bytes : NULL;
    job->weight = sums ? sums : job->grad_weight;
    job->bias = sums && job->grad_bias ? bias_sums : job->grad_bias;
    assert(osw_conv_holds(conv));
    osw_parallel_for(count, OSW_GRAIN_PRODUCTS / (job->products / count + 1) + 1, run_parts, job);
    if (sums && job->element_bytes == sizeof(double))
        osw_conv_finish_f64(conv, (double *)(void *)sums, taps_last(job), job->grad_weight,
                            job->grad_bias);
    else if (sums)
        osw_conv_finish_f32(conv, (float *)(void *)sums, taps_last(job), job->grad_weight,
                            job->grad_bias);
}
