/* SPDX-License-Identifier: MIT */
#include "linear/run.h"

#include "core/ints.h"
#include "core/parallel.h"
#include "core/parts.h"
#include "linear/holds.h"

#include <assert.h>

enum { MOVE_COST = 8 }; /* multiplications that take as long as moving an element */

static bool cuts_rows(const osw_linear_job *job)
{
    return job->dtype == OSW_F32 || job->dtype == OSW_F64;
}

static void add_kernel(osw_linear_job *job, osw_linear_id id, osw_linear_grid grid, int64_t total,
                       uint64_t *calls)
{
    id = (osw_linear_id)((int)id + (int)job->dtype);
    calls[id]++;
    job->kernels[job->count] = osw_linear_table[id];
    job->grids[job->count] = grid;
    job->totals[job->count++] = total;
    job->blocks = osw_max_int(job->blocks, osw_linear_blocks(&grid));
}

size_t osw_linear_plan(osw_linear_job *job, uint64_t *calls)
{
    osw_linear *l = &job->linear;
    assert(osw_linear_sizes_hold(l) && job->dtype < OSW_DTYPE_COUNT);
    const bool sums = l->grad_weight || l->grad_bias;
    const int threads = osw_parallel_threads();
    const int64_t outputs = l->first[l->groups];
    l->row_parts = 1;
    l->part_rows = l->rows;
    if (sums && cuts_rows(job))
        osw_linear_cut(l);
    if (l->output.base)
        add_kernel(job, OSW_LINEAR_forward_f32, osw_linear_row_grid(l, threads), l->rows, calls);
    job->gaps_of = l->grad_input.base && l->lines.rows ? job->count : -1;
    if (l->grad_input.base)
        add_kernel(job, OSW_LINEAR_grad_input_f32, osw_linear_row_grid(l, threads), l->rows, calls);
    if (sums)
        add_kernel(job, OSW_LINEAR_grad_weight_f32, osw_linear_feature_grid(l, threads),
                   l->in_features, calls);
    job->cost = l->rows * outputs * l->in_features +
                MOVE_COST * (l->rows * l->groups + outputs) * l->in_features;
    const int64_t part = outputs * (l->in_features + 1) * osw_dtype_bytes(job->dtype);
    return l->row_parts > 1 ? (size_t)(l->row_parts * part) : 0;
}

static void run_blocks(int64_t begin, int64_t end, void *context)
{
    const osw_linear_job *job = context;
    for (int64_t i = begin; i < end; i++) {
        for (int k = 0; k < job->count; k++) {
            const int64_t blocks = osw_linear_blocks(&job->grids[k]);
            const int64_t last = (i + 1) * blocks / job->blocks;
            for (int64_t b = i * blocks / job->blocks; b < last; b++) {
                const osw_linear_block block =
                    osw_linear_block_at(&job->linear, &job->grids[k], b, job->totals[k]);
                assert(osw_linear_block_holds(&job->linear, &block, job->totals[k]));
                if (k == job->gaps_of)
                    osw_linear_zero_gaps(&job->linear, osw_dtype_bytes(job->dtype), block.begin,
                                         block.end);
                job->kernels[k](&job->linear, &block);
            }
        }
    }
}

static void run_kernels(osw_linear_job *job)
{
    assert(osw_linear_holds(&job->linear, cuts_rows(job)));
    if (job->blocks)
        osw_parallel_for(job->blocks, OSW_GRAIN_PRODUCTS / (job->cost / job->blocks + 1) + 1,
                         run_blocks, job);
}

void osw_linear_run(osw_linear_job *job, char *memory)
{
    osw_linear *l = &job->linear;
    const int64_t outputs = l->first[l->groups];
    osw_parts parts = {.count = l->row_parts,
                       .weights = outputs * l->in_features,
                       .biases = outputs,
                       .dtype = job->dtype};
    osw_parts_begin(&parts, memory, &l->grad_weight, &l->grad_bias);
    run_kernels(job);
    osw_parts_end(&parts);
}
