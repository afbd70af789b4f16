/* SPDX-License-Identifier: MIT */
#include "conv/run.h"

#include "conv/holds.h"
#include "core/ints.h"
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

enum { ALIGNED = 64 };

size_t osw_conv_product_room(const osw_conv_product *product)
{
    osw_conv turned = product->conv; /* of the gradient */
    turned.channels = product->conv.outputs;
    turned.outputs = product->conv.channels;
    const int64_t count = osw_max_int(osw_conv_packed(&product->conv), osw_conv_packed(&turned));
    return ALIGNED + (size_t)(count * product->element_bytes);
}

static void pack_pieces(int64_t begin, int64_t end, void *context)
{
    const osw_conv_product *p = context;
    const osw_conv_part part = {.block_begin = begin, .block_end = end};
    assert(osw_conv_range_holds(&part, osw_conv_pieces(&p->conv.terms)));
    p->pack(&p->conv, &part);
}

static void run_blocks(int64_t begin, int64_t end, void *context)
{
    const osw_conv_product *p = context;
    const osw_conv_part part = {.block_begin = begin, .block_end = end};
    assert(osw_conv_range_holds(&part, osw_conv_blocks(&p->conv)));
    p->forward(&p->conv, &part);
}

/* All blocks, after osw_conv_prepare_forward. */
static void run_product(osw_conv_product *p)
{
    const osw_conv *conv = &p->conv;
    const int64_t weights = osw_conv_weights(conv), pieces = osw_conv_pieces(&conv->terms);
    const int64_t products = conv->block_rows * conv->block_columns * weights;
    assert(osw_conv_forward_holds(conv));
    osw_parallel_for(pieces, osw_grain(weights / pieces * p->element_bytes), pack_pieces, p);
    osw_parallel_for(osw_conv_blocks(conv), OSW_GRAIN_PRODUCTS / (products + 1) + 1, run_blocks, p);
}

static void *aligned(void *room)
{
    return (char *)room + (ALIGNED - (uintptr_t)room % ALIGNED) % ALIGNED;
}

void osw_conv_run_forward(osw_conv_product *product, void *room)
{
    product->conv.packed = aligned(room);
    osw_conv_prepare_forward(&product->conv, product->element_bytes);
    run_product(product);
}

void osw_conv_run_grad_input(osw_conv_product *product, void *room)
{
    osw_conv *conv = &product->conv;
    conv->packed = aligned(room);
    for (int64_t row = 0; row < conv->rows.stride; row++)
        for (int64_t column = 0; column < conv->columns.stride; column++) {
            osw_conv_product phase = *product;
            if (osw_conv_phase(conv, &conv->output, product->element_bytes, row, column,
                               &phase.conv))
                run_product(&phase);
        }
}
