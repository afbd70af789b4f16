/* SPDX-License-Identifier: MIT */
/* The functions of pooling. Each returns None when done, or NotImplemented where the memory of a
 * tensor fits neither form of csrc/pool: the caller makes it dense and calls again. */
#include "binding/pool_call.h"
#include "pool/indices.h"
#include "pool/window.h"

static PyObject *avg_any(osw_pool_call *call, PyObject *const *args, Py_ssize_t nargs)
{
    const bool backward = call->large == GRAD_INPUT;
    if (!osw_pool_expect(call->name, nargs, 8) ||
        osw_pool_tensor_arg(call, backward ? GRAD_OUTPUT : INPUT, args[0]) != 0 ||
        osw_pool_tensor_arg(call, backward ? GRAD_INPUT : OUTPUT, args[1]) != 0 ||
        osw_pool_window_args(call, args[2], args[3], args[4], NULL) != 0 ||
        osw_pool_int(args[6], &call->pool.divisor) != 0 ||
        osw_pool_int(args[7], &call->pool.channel_step) != 0)
        return NULL;
    const int include = PyObject_IsTrue(args[5]);
    if (include < 0)
        return NULL;
    call->pool.count_include_pad = include;
    return osw_pool_execute(call);
}

static PyObject *avg_pool(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("avg_pool", OP_avg, false);
    return avg_any(&call, args, nargs);
}

static PyObject *avg_pool_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("avg_pool_backward", OP_avg_backward, true);
    return avg_any(&call, args, nargs);
}

static PyObject *adaptive_max_pool(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("adaptive_max_pool", OP_adaptive_max, false);
    if (!osw_pool_expect(call.name, nargs, 3) || osw_pool_tensor_arg(&call, INPUT, args[0]) != 0 ||
        osw_pool_tensor_arg(&call, OUTPUT, args[1]) != 0 ||
        (args[2] != Py_None && osw_pool_tensor_arg(&call, OFFSETS, args[2]) != 0))
        return NULL;
    return osw_pool_execute(&call);
}

static PyObject *adaptive_max_pool_backward(PyObject *module, PyObject *const *args,
                                            Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call =
        osw_pool_begin("adaptive_max_pool_backward", OP_adaptive_max_backward, true);
    if (!osw_pool_expect(call.name, nargs, 3) ||
        osw_pool_tensor_arg(&call, GRAD_OUTPUT, args[0]) != 0 ||
        osw_pool_tensor_arg(&call, OFFSETS, args[1]) != 0 ||
        osw_pool_tensor_arg(&call, GRAD_INPUT, args[2]) != 0)
        return NULL;
    return osw_pool_execute(&call);
}

/* (N, C), or (N, C, 1, ...), as a tensor of the dimensions of `like`. */
static int as_reduced(const osw_pool_call *call, osw_tensor *t, const osw_tensor *like)
{
    if (t->ndim < 2 || like->ndim < 2 || t->size[0] != like->size[0] ||
        t->size[1] != like->size[1] || t->numel != t->size[0] * t->size[1])
        return osw_pool_fail(call, "output and grad_output must be (N, C) or (N, C, 1, ...)",
                             t->numel);
    for (int i = 2; i < like->ndim; i++)
        t->size[i] = t->stride[i] = 1;
    t->ndim = like->ndim;
    return 0;
}

static PyObject *amax_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("amax_backward", OP_amax_backward, true);
    osw_tensor *t = call.tensors;
    if (!osw_pool_expect(call.name, nargs, 4) || osw_pool_tensor_arg(&call, INPUT, args[0]) != 0 ||
        osw_pool_tensor_arg(&call, OUTPUT, args[1]) != 0 ||
        osw_pool_tensor_arg(&call, GRAD_OUTPUT, args[2]) != 0 ||
        osw_pool_tensor_arg(&call, GRAD_INPUT, args[3]) != 0 ||
        as_reduced(&call, &t[OUTPUT], &t[INPUT]) != 0 ||
        as_reduced(&call, &t[GRAD_OUTPUT], &t[INPUT]) != 0)
        return NULL;
    if (!osw_pool_same_sizes(&t[INPUT], &t[GRAD_INPUT])) {
        osw_pool_fail(&call, "grad_input must have the size of the input", t[GRAD_INPUT].numel);
        return NULL;
    }
    return osw_pool_execute(&call);
}

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
    int64_t *distance = PyMem_Malloc((size_t)taps * sizeof *distance);
    if (!distance)
        return PyErr_NoMemory();
    osw_pool_distances(pool, distance, taps);
    osw_pool_indices work = {pool, pool->output, distance, form == FORM_pixels};
    osw_pool_run(osw_pool_units(call, form), indices->numel * indices->itemsize, run_indices,
                 &work);
    PyMem_Free(distance);
    Py_RETURN_NONE;
}

/* The input itself is not needed: a tensor of its size without memory stands for it. */
static PyObject *max_pool_indices(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("max_pool_indices", OP_max, false);
    osw_tensor *t = call.tensors;
    if (!osw_pool_expect(call.name, nargs, 7) ||
        osw_pool_tensor_arg(&call, OFFSETS, args[0]) != 0 ||
        osw_pool_tensor_arg(&call, OUTPUT, args[1]) != 0 ||
        osw_pool_window_args(&call, args[3], args[4], args[5], args[6]) != 0 ||
        osw_pool_sizes(&call, args[2], "input size", 0, &call.pool.dims->input) != 0)
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
    {"avg_pool", OSW_METHOD(avg_pool), METH_FASTCALL,
     "avg_pool(input, output, kernel, stride, padding, count_include_pad, divisor, channel_step)"},
    {"avg_pool_backward", OSW_METHOD(avg_pool_backward), METH_FASTCALL,
     "avg_pool_backward(grad_output, grad_input, kernel, stride, padding, count_include_pad, "
     "divisor, channel_step)"},
    {"adaptive_max_pool", OSW_METHOD(adaptive_max_pool), METH_FASTCALL,
     "adaptive_max_pool(input, output, index)"},
    {"adaptive_max_pool_backward", OSW_METHOD(adaptive_max_pool_backward), METH_FASTCALL,
     "adaptive_max_pool_backward(grad_output, index, grad_input)"},
    {"amax_backward", OSW_METHOD(amax_backward), METH_FASTCALL,
     "amax_backward(input, output, grad_output, grad_input)"},
    {"pool_variants", pool_variants, METH_NOARGS, "Calls of every kernel, by name."},
    {NULL, NULL, 0, NULL},
};
