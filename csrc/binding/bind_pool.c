/* SPDX-License-Identifier: MIT */
/* Indices from the offsets of max pools, and which kernels have run. */
#include "binding/pool_window.h"
#include "pool/window.h"

static int execute_indices(osw_pool_call *call)
{
    const osw_tensor *indices = &call->base.tensors[OUTPUT];
    osw_pool *pool = &call->pool;
    if (indices->dtype.code != 0 || indices->dtype.bits != 64)
        return osw_pool_fail(call, "indices must be int64", indices->dtype.bits);
    if (!osw_no_overlap(indices))
        return osw_fail(call->base.name, "output overlaps itself");
    if (indices->numel == 0)
        return 0;
    const osw_form form = osw_pool_choose_form(call);
    if (form == FORM_COUNT)
        return -1;
    const int64_t taps =
        pool->dims[DEPTH].kernel * pool->dims[HEIGHT].kernel * pool->dims[WIDTH].kernel;
    int64_t *distance = NULL;
    if (taps <= OSW_POOL_TABLE_TAPS) {
        distance = osw_room((size_t)taps * sizeof *distance);
        if (!distance)
            return -1;
        osw_pool_distances(pool, distance, taps);
    }
    osw_pool_indices work = {pool, pool->output, distance, form == FORM_pixels};
    const int64_t bytes = indices->numel * indices->itemsize;
    const osw_running running = osw_run_begin(call->base.name, bytes > OSW_GRAIN_BYTES);
    osw_pool_run_indices(&work, osw_pool_units_of(call, form), bytes);
    osw_run_end(running);
    PyMem_Free(distance);
    return 0;
}

/* The input itself is not needed: a tensor of its size without memory represents it. */
OSW_ENTRY(max_pool_indices)
{
    osw_pool_call call = osw_pool_begin("max_pool_indices", OP_max, false);
    osw_tensor *t = call.base.tensors;
    if (!osw_expect(call.base.name, nargs, 7) ||
        osw_pool_window_args(&call, args + 3, true, NULL) != 0 ||
        osw_pool_sizes(&call, args[2], "input size", 0, &call.pool.dims->input) != 0 ||
        osw_call_tensor(&call.base, OFFSETS, args[0]) != 0 ||
        osw_call_tensor(&call.base, OUTPUT, args[1]) != 0)
        return NULL;
    t[INPUT] = t[OUTPUT];
    for (int i = 0; i < call.spatial && t[INPUT].ndim == call.spatial + 2; i++)
        t[INPUT].size[2 + i] = call.pool.dims[OSW_POOL_DIMS - call.spatial + i].input;
    const bool done = osw_pool_check(&call) == 0 && execute_indices(&call) == 0;
    return osw_call_end(&call.base, done ? Py_NewRef(Py_None) : NULL);
}

OSW_ENTRY_COUNTS(pool_variants, osw_pool_calls, OSW_POOL_VARIANTS(OSW_VARIANT_3))

PyMethodDef osw_pool_methods[] = {
    OSW_ENTRY_LINE(
        max_pool_indices,
        "max_pool_indices(offsets, indices, input_size, kernel, stride, padding, dilation)"),
    OSW_ENTRY_COUNTS_LINE(pool_variants),
    {NULL, NULL, 0, NULL},
};
