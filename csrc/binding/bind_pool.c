/* SPDX-License-Identifier: MIT */
/* Indices from the offsets of max pools, and which kernels have run. */
#include "binding/pool_call.h"
#include "pool/indices.h"
#include "pool/window.h"

static void run_indices(int64_t begin, int64_t end, void *context)
{
    osw_pool_write_indices(context, begin, end);
}

static PyObject *execute_indices(osw_pool_call *call)
{
    const osw_tensor *indices = &call->tensors[OUTPUT];
    osw_pool *pool = &call->pool;
    if (indices->dtype.code != 0 || indices->dtype.bits != 64) {
        osw_pool_fail(call, "indices must be int64", indices->dtype.bits);
        return NULL;
    }
    if (indices->numel == 0)
        Py_RETURN_NONE;
    const osw_form form = osw_pool_choose_form(call);
    if (form == FORM_COUNT)
        Py_RETURN_NOTIMPLEMENTED;
    const int64_t taps =
        pool->dims[DEPTH].kernel * pool->dims[HEIGHT].kernel * pool->dims[WIDTH].kernel;
    int64_t *distance = NULL;
    if (taps <= OSW_POOL_TABLE_TAPS) {
        distance = PyMem_Malloc((size_t)taps * sizeof *distance);
        if (!distance)
            return PyErr_NoMemory();
        osw_pool_distances(pool, distance, taps);
    }
    osw_pool_indices work = {pool, pool->output, distance, form == FORM_pixels};
    osw_pool_run(call->name, osw_pool_units(call, form), indices->numel * indices->itemsize,
                 run_indices, &work);
    PyMem_Free(distance);
    Py_RETURN_NONE;
}

/* The input itself is not needed: a tensor of its size without memory stands for it. */
static PyObject *max_pool_indices(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("max_pool_indices", OP_max, false);
    osw_tensor *t = call.tensors;
    if (!osw_expect(call.name, nargs, 7) ||
        osw_pool_window_args(&call, args[3], args[4], args[5], args[6]) != 0 ||
        osw_pool_sizes(&call, args[2], "input size", 0, &call.pool.dims->input) != 0 ||
        osw_pool_tensor_arg(&call, OFFSETS, args[0]) != 0 ||
        osw_pool_tensor_arg(&call, OUTPUT, args[1]) != 0)
        return NULL;
    t[INPUT] = t[OUTPUT];
    for (int i = 0; i < call.spatial && t[INPUT].ndim == call.spatial + 2; i++)
        t[INPUT].size[2 + i] = call.pool.dims[OSW_POOL_DIMS - call.spatial + i].input;
    if (osw_pool_check(&call) != 0)
        return NULL;
    return execute_indices(&call);
}

static PyObject *pool_variants(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return osw_pool_count_calls();
}

PyMethodDef osw_pool_methods[] = {
    {"max_pool_indices", OSW_METHOD(max_pool_indices), METH_FASTCALL,
     "max_pool_indices(offsets, indices, input_size, kernel, stride, padding, dilation)"},
    {"pool_variants", pool_variants, METH_NOARGS, "Calls of every kernel, by name."},
    {NULL, NULL, 0, NULL},
};
