/* SPDX-License-Identifier: MIT */
#include "pointwise/run.h"

#include "core/ints.h"
#include "core/parallel.h"
#include "core/parts.h"
#include "pointwise/holds.h"

#include <assert.h>

enum { MOVE_COST = 8 }; /* multiplications that take as long as moving an element */

static void add_kernel(osw_pointwise_job *job, osw_pointwise_id id, osw_pointwise_grid grid,
                       int64_t count, uint64_t *calls)
{
    id = (osw_pointwise_id)((int)id + (int)job->dtype);
    calls[id]++;
    job->kernels[job->count] = osw_pointwise_table[id];
    job->grids[job->count] = grid;
    job->counts[job->count++] = count;
    job->blocks = osw_max_int(job->blocks, osw_pointwise_blocks(&grid));
}

size_t osw_pointwise_plan(osw_pointwise_job *job, uint64_t *calls)
{
    osw_pointwise *p = &job->planes;
    assert(osw_pointwise_sizes_hold(p) && (job->dtype == OSW_F32 || job->dtype == OSW_F64));
    const bool sums = p->grad_weight || p->grad_bias;
    const int threads = osw_parallel_threads();
    const int64_t bytes = osw_dtype_bytes(job->dtype);
    p->parts = 1;
    p->part_images = p->images;
    if (sums)
        osw_pointwise_cut(p);
    if (p->output.base)
        add_kernel(job, OSW_POINTWISE_forward_f32,
                   osw_pointwise_image_grid(p, p->out_planes, bytes, threads), p->out_planes,
                   calls);
    if (p->grad_input.base)
        add_kernel(job, OSW_POINTWISE_grad_input_f32,
                   osw_pointwise_image_grid(p, p->in_planes, bytes, threads), p->in_planes, calls);
    if (sums)
        add_kernel(job, OSW_POINTWISE_grad_weight_f32, osw_pointwise_weight_grid(p, threads),
                   p->in_planes, calls);
    job->cost = p->images * p->pixels *
                (p->out_planes * p->in_planes + MOVE_COST * (p->out_planes + p->in_planes));
    const int64_t part = p->out_planes * (p->in_planes + 1) * bytes;
    return p->parts > 1 ? (size_t)(p->parts * part) : 0;
}

static void run_blocks(int64_t begin, int64_t end, void *context)
{
    const osw_pointwise_job *job = context;
    for (int64_t i = begin; i < end; i++) {
        for (int k = 0; k < job->count; k++) {
            const int64_t blocks = osw_pointwise_blocks(&job->grids[k]);
            const int64_t last = (i + 1) * blocks / job->blocks;
            for (int64_t b = i * blocks / job->blocks; b < last; b++) {
                const osw_pointwise_block block =
                    osw_pointwise_block_at(&job->planes, &job->grids[k], b, job->counts[k]);
                assert(osw_pointwise_block_holds(&job->planes, &block, job->counts[k]));
                job->kernels[k](&job->planes, &block);
            }
        }
    }
}

static void run_kernels(osw_pointwise_job *job)
{
    assert(osw_pointwise_holds(&job->planes));
    if (job->blocks)
        osw_parallel_for(job->blocks, OSW_GRAIN_PRODUCTS / (job->cost / job->blocks + 1) + 1,
                         run_blocks, job);
}

void osw_pointwise_run(osw_pointwise_job *job, char *memory)
{
    osw_pointwise *p = &job->planes;
    osw_parts parts = {.count = p->parts,
                       .weights = p->out_planes * p->in_planes,
                       .biases = p->out_planes,
                       .dtype = job->dtype};
    osw_parts_begin(&parts, memory, &p->grad_weight, &p->grad_bias);
    run_kernels(job);
    osw_parts_end(&parts);
}
