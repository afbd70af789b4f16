/* SPDX-License-Identifier: MIT */
#include "binding/linear_run.h"

#include "binding/profile.h"
#include "core/parallel.h"
#include "linear/holds.h"

#include <assert.h>

/* MIN_COST: multiplications that one thread should do at least before a second one is woken.
 * MOVE_COST: multiplications that take as long as moving an element. */
enum { MIN_COST = 1 << 17, MOVE_COST = 8 };

uint64_t osw_linear_calls[OSW_LINEAR_COUNT];

/* The blocks of up to two kernels, walked side by side: of `blocks` steps, step i takes the i-th
 * share of each kernel's. */
typedef struct osw_linear_work {
    const osw_linear *linear;
    osw_linear_fn *kernels[2];
    osw_linear_grid grids[2];
    int64_t totals[2];
    int count;
    int64_t blocks;
} osw_linear_work;

static void add_kernel(osw_linear_work *work, osw_linear_id id, osw_linear_grid grid, int64_t total)
{
    osw_linear_calls[id]++;
    work->kernels[work->count] = osw_linear_table[id];
    work->grids[work->count] = grid;
    work->totals[work->count++] = total;
    const int64_t blocks = osw_linear_blocks(&grid);
    work->blocks = blocks > work->blocks ? blocks : work->blocks;
}

static void run_blocks(int64_t begin, int64_t end, void *context)
{
    const osw_linear_work *work = context;
    for (int64_t i = begin; i < end; i++) {
        for (int k = 0; k < work->count; k++) {
            const int64_t blocks = osw_linear_blocks(&work->grids[k]);
            const int64_t last = (i + 1) * blocks / work->blocks;
            for (int64_t b = i * blocks / work->blocks; b < last; b++) {
                const osw_linear_block block =
                    osw_linear_block_at(work->linear, &work->grids[k], b, work->totals[k]);
                assert(osw_linear_block_holds(work->linear, &block, work->totals[k]));
                work->kernels[k](work->linear, &block);
            }
        }
    }
}

static void run(osw_linear_work *work)
{
    const osw_linear *l = work->linear;
    const int64_t total = l->first[l->groups];
    const int64_t cost = l->rows * total * l->in_features +
                         MOVE_COST * (l->rows * l->groups + total) * l->in_features;
    PyThreadState *state = cost > MIN_COST ? PyEval_SaveThread() : NULL;
    osw_parallel_for(work->blocks, MIN_COST / (cost / work->blocks + 1) + 1, run_blocks, work);
    if (state)
        PyEval_RestoreThread(state);
}

static void run_kernels(const osw_linear *l, osw_linear_dtype dtype)
{
    osw_linear_work work = {.linear = l};
    const int threads = osw_parallel_threads();
    if (l->output.base)
        add_kernel(&work, (osw_linear_id)(OSW_LINEAR_forward_f32 + (int)dtype),
                   osw_linear_row_grid(l, threads), l->rows);
    if (l->grad_input.base)
        add_kernel(&work, (osw_linear_id)(OSW_LINEAR_grad_input_f32 + (int)dtype),
                   osw_linear_row_grid(l, threads), l->rows);
    if (l->grad_weight || l->grad_bias)
        add_kernel(&work, (osw_linear_id)(OSW_LINEAR_grad_weight_f32 + (int)dtype),
                   osw_linear_feature_grid(l, threads), l->in_features);
    assert(osw_linear_holds(l));
    if (work.count)
        run(&work);
}

/* The gradients of weight and bias by way of one for every row part. */
static int run_in_parts(osw_linear *l, osw_linear_dtype dtype)
{
    const bool is_double = dtype == OSW_LINEAR_f64;
    const int64_t outputs = l->first[l->groups], weight = outputs * l->in_features;
    const size_t size = is_double ? sizeof(double) : sizeof(float);
    char *parts = PyMem_Malloc((size_t)(l->row_parts * (weight + outputs)) * size);
    if (!parts) {
        PyErr_NoMemory();
        return -1;
    }
    char *bias_parts = parts + (size_t)(l->row_parts * weight) * size;
    void *const grad_weight = l->grad_weight, *const grad_bias = l->grad_bias;
    l->grad_weight = grad_weight ? parts : NULL;
    l->grad_bias = grad_bias ? bias_parts : NULL;
    run_kernels(l, dtype);
    if (grad_weight)
        osw_linear_add_parts(is_double, l->row_parts, weight, parts, grad_weight);
    if (grad_bias)
        osw_linear_add_parts(is_double, l->row_parts, outputs, bias_parts, grad_bias);
    PyMem_Free(parts);
    return 0;
}

int osw_linear_run(const char *name, osw_linear *linear, osw_linear_dtype dtype)
{
    int done = 0;
    const bool cuts = dtype == OSW_LINEAR_f32 || dtype == OSW_LINEAR_f64;
    linear->row_parts = 1;
    linear->part_rows = linear->rows;
    if (cuts && (linear->grad_weight || linear->grad_bias))
        osw_linear_cut(linear);
    PyObject *range = osw_profile_begin(name);
    if (linear->row_parts > 1)
        done = run_in_parts(linear, dtype);
    else
        run_kernels(linear, dtype);
    osw_profile_end(range);
    return done;
}
