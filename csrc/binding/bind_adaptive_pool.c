/* SPDX-License-Identifier: MIT */
/* adaptive_max_pool and the maximum of whole planes with torch.amax's gradient, each with its
 * backward, like those of bind_max_pool.c. */
#include "binding/pool_make.h"
#include "binding/tensor_plain.h"
#include "binding/torch_names.h"
#include "pool/window.h"

#include <string.h>

/* (output, index or None), or NotImplemented. size: of the output. */
static PyObject *run_adaptive(osw_pool_call *call, PyObject *input, const int64_t *size,
                              bool with_index)
{
    const osw_tensor *t = &call->tensors[INPUT];
    const bool channels_last = osw_suggests_channels_last(t);
    PyObject *output =
        osw_pool_new(call, OUTPUT, input, OSW_SAME_DTYPE, t->ndim, size, channels_last);
    PyObject *index = NULL, *both = NULL;
    if (output && with_index)
        index = osw_pool_new(call, OFFSETS, input, OSW_INT32, t->ndim, size, channels_last);
    if (index || (output && !with_index))
        both = PyTuple_Pack(2, output, index ? index : Py_None);
    Py_XDECREF(output);
    Py_XDECREF(index);
    return osw_pool_run_into(call, both);
}

/* A tuple of 3 to 5 sizes, (N, C, *). */
static int read_size(const osw_pool_call *call, PyObject *tuple, int64_t *size, int *ndim)
{
    const Py_ssize_t length = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : 0;
    *ndim = length < 3 ? 3 : length > 2 + OSW_POOL_DIMS ? 2 + OSW_POOL_DIMS : (int)length;
    return osw_pool_tensor_size(call, tuple, *ndim, size);
}

static int check_ndim(const osw_pool_call *call, const osw_tensor *t, int ndim)
{
    return t->ndim == ndim
               ? 0
               : osw_pool_fail(call, "tensor and size must have the same dimensions", t->ndim);
}

static PyObject *adaptive_max_pool(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("adaptive_max_pool", OP_adaptive_max, false);
    int64_t size[OSW_MAX_DIMS];
    int ndim;
    if (!osw_expect(call.name, nargs, 3) || read_size(&call, args[1], size, &ndim) != 0 ||
        osw_pool_tensor_arg(&call, INPUT, args[0]) != 0 ||
        check_ndim(&call, &call.tensors[INPUT], ndim) != 0)
        return NULL;
    return run_adaptive(&call, args[0], size, args[2] == Py_True);
}

/* An ordinary input of planes or volumes, into the call. */
static bool read_input(osw_pool_call *call, PyObject *input, int spatial)
{
    osw_tensor *t = &call->tensors[INPUT];
    call->given[INPUT] = true;
    return osw_tensor_plain(input, t) && t->ndim == spatial + 2 && t->numel > 0 &&
           osw_pool_supports(OP_adaptive_max, t) && !osw_autocast_converts(t, spatial == 3);
}

/* A positive int for all dimensions, or a tuple or list of one each. */
static bool plain_output_size(PyObject *object, const osw_tensor *t, int64_t *size)
{
    size[0] = t->size[0];
    size[1] = t->size[1];
    const int spatial = t->ndim - 2;
    const bool is_tuple = PyTuple_CheckExact(object), is_list = PyList_CheckExact(object);
    bool plain = !is_tuple || PyTuple_Size(object) == spatial;
    plain = plain && (!is_list || PyList_Size(object) == spatial);
    for (int i = 0; plain && i < spatial; i++) {
        PyObject *side = is_tuple  ? PyTuple_GetItem(object, i)
                         : is_list ? PyList_GetItem(object, i)
                                   : object;
        plain = osw_exact_int(side, 1, INT32_MAX, &size[2 + i]);
    }
    return plain;
}

/* (output, index, (input size, memory format)) if it trains, else the output, of the pair that
 * run_adaptive makes, which it takes. */
static PyObject *describe(const osw_tensor *t, PyObject *both, bool trains)
{
    PyObject *output = PyTuple_GetItem(both, 0), *described = NULL;
    if (!trains) {
        Py_XINCREF(output);
        Py_DECREF(both);
        return output;
    }
    PyObject *format = osw_memory_format(t->ndim, osw_suggests_channels_last(t));
    PyObject *size = osw_tuple_of(t->ndim, t->size);
    if (format && size)
        described = Py_BuildValue("(OO(OO))", output, PyTuple_GetItem(both, 1), size, format);
    Py_XDECREF(size);
    Py_DECREF(both);
    return described;
}

enum { P_SPATIAL, P_INPUT, P_SIZE, P_TRAINS, P_ARGUMENTS };

static PyObject *plain_adaptive_max_pool(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("plain_adaptive_max_pool", OP_adaptive_max, false);
    int64_t spatial, size[OSW_MAX_DIMS];
    if (!osw_expect(call.name, nargs, P_ARGUMENTS) ||
        osw_int_arg(call.name, "spatial", args[P_SPATIAL], 1, OSW_POOL_DIMS, &spatial) != 0)
        return NULL;
    const osw_tensor *t = &call.tensors[INPUT];
    const bool trains = args[P_TRAINS] == Py_True;
    PyObject *made = NULL;
    if (read_input(&call, args[P_INPUT], (int)spatial) && plain_output_size(args[P_SIZE], t, size))
        made = run_adaptive(&call, args[P_INPUT], size, trains);
    if (made && made != Py_NotImplemented)
        made = describe(t, made, trains);
    return osw_or_declined(made);
}

/* The gradient of the input from that of the output and the index, both in the call. */
static PyObject *run_backward(osw_pool_call *call, PyObject *gradient, const int64_t *size,
                              int ndim, bool channels_last)
{
    if (check_ndim(call, &call->tensors[GRAD_OUTPUT], ndim) != 0)
        return NULL;
    return osw_pool_run_into(
        call, osw_pool_new(call, GRAD_INPUT, gradient, OSW_SAME_DTYPE, ndim, size, channels_last));
}

static PyObject *adaptive_max_pool_backward(PyObject *module, PyObject *const *args,
                                            Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call =
        osw_pool_begin("adaptive_max_pool_backward", OP_adaptive_max_backward, true);
    int64_t size[OSW_MAX_DIMS];
    int ndim;
    if (!osw_expect(call.name, nargs, 4) || read_size(&call, args[2], size, &ndim) != 0 ||
        osw_pool_tensor_arg(&call, GRAD_OUTPUT, args[0]) != 0 ||
        osw_pool_tensor_arg(&call, OFFSETS, args[1]) != 0)
        return NULL;
    return run_backward(&call, args[0], size, ndim, args[3] == Py_True);
}

static PyObject *plain_adaptive_max_pool_backward(PyObject *module, PyObject *const *args,
                                                  Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call =
        osw_pool_begin("plain_adaptive_max_pool_backward", OP_adaptive_max_backward, true);
    int64_t size[OSW_MAX_DIMS];
    int ndim;
    if (!osw_expect(call.name, nargs, 4))
        return NULL;
    if (read_size(&call, args[0], size, &ndim) != 0)
        return osw_or_declined(NULL);
    if (!osw_tensor_plain(args[3], &call.tensors[GRAD_OUTPUT]) ||
        !osw_tensor_plain(args[2], &call.tensors[OFFSETS]))
        Py_RETURN_NOTIMPLEMENTED;
    call.given[GRAD_OUTPUT] = call.given[OFFSETS] = true;
    return osw_or_declined(
        run_backward(&call, args[3], size, ndim, args[1] != osw_torch(OSW_TORCH_CONTIGUOUS)));
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

/* A new tensor at `role`, (N, C) or, with `keepdim`, (N, C, 1, 1). */
static PyObject *new_reduced(osw_pool_call *call, osw_role role, PyObject *like,
                             osw_new_dtype dtype, bool keepdim)
{
    const osw_tensor *t = &call->tensors[INPUT];
    if (t->ndim < 3 || t->ndim > 2 + OSW_POOL_DIMS) {
        osw_pool_fail(call, "expected (N, C, *)", t->ndim);
        return NULL;
    }
    const int64_t size[] = {t->size[0], t->size[1], 1, 1};
    PyObject *made = osw_pool_new(call, role, like, dtype, keepdim ? 4 : 2, size, false);
    if (made && as_reduced(call, &call->tensors[role], t) != 0)
        Py_CLEAR(made);
    return made;
}

static PyObject *amax(PyObject *module, PyObject *input)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("amax", OP_adaptive_max, false);
    if (osw_pool_tensor_arg(&call, INPUT, input) != 0)
        return NULL;
    return osw_pool_run_into(&call, new_reduced(&call, OUTPUT, input, OSW_SAME_DTYPE, false));
}

/* (output, positions), or NotImplemented; the input is in the call. */
static PyObject *run_amax(osw_pool_call *call, PyObject *input, bool keepdim)
{
    PyObject *output = new_reduced(call, OUTPUT, input, OSW_SAME_DTYPE, keepdim), *both = NULL;
    PyObject *positions = output ? new_reduced(call, OFFSETS, input, OSW_INT32, false) : NULL;
    if (positions)
        both = PyTuple_Pack(2, output, positions);
    Py_XDECREF(output);
    Py_XDECREF(positions);
    return osw_pool_run_into(call, both);
}

static PyObject *plain_amax(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (!osw_expect("plain_amax", nargs, 3))
        return NULL;
    const bool trains = args[2] == Py_True, keepdim = args[0] == Py_True;
    osw_pool_call call = osw_pool_begin("plain_amax", trains ? OP_amax : OP_adaptive_max, false);
    PyObject *made = NULL;
    if (read_input(&call, args[1], 2) && PyBool_Check(args[0]))
        made = trains ? run_amax(&call, args[1], keepdim)
                      : osw_pool_run_into(
                            &call, new_reduced(&call, OUTPUT, args[1], OSW_SAME_DTYPE, keepdim));
    return osw_or_declined(made);
}

/* The gradient of the input; the tensors are in the call. */
static PyObject *run_amax_backward(osw_pool_call *call, PyObject *input)
{
    osw_tensor *t = call->tensors;
    if (t[INPUT].ndim < 3 || t[INPUT].ndim > 2 + OSW_POOL_DIMS) {
        osw_pool_fail(call, "expected (N, C, *)", t[INPUT].ndim);
        return NULL;
    }
    if (as_reduced(call, &t[OUTPUT], &t[INPUT]) != 0 ||
        as_reduced(call, &t[GRAD_OUTPUT], &t[INPUT]) != 0 ||
        (call->given[OFFSETS] && as_reduced(call, &t[OFFSETS], &t[INPUT]) != 0))
        return NULL;
    return osw_pool_run_into(call,
                             osw_pool_new(call, GRAD_INPUT, input, OSW_SAME_DTYPE, t[INPUT].ndim,
                                          t[INPUT].size, osw_suggests_channels_last(&t[INPUT])));
}

static PyObject *amax_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("amax_backward", OP_amax_backward, true);
    if (!osw_expect(call.name, nargs, 3) || osw_pool_tensor_arg(&call, INPUT, args[0]) != 0 ||
        osw_pool_tensor_arg(&call, OUTPUT, args[1]) != 0 ||
        osw_pool_tensor_arg(&call, GRAD_OUTPUT, args[2]) != 0)
        return NULL;
    return run_amax_backward(&call, args[0]);
}

static PyObject *plain_amax_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    static const osw_role roles[] = {INPUT, OUTPUT, OFFSETS, GRAD_OUTPUT};
    osw_pool_call call = osw_pool_begin("plain_amax_backward", OP_amax_backward, true);
    if (!osw_expect(call.name, nargs, 4))
        return NULL;
    for (int i = 0; i < 4; i++) {
        if (!osw_tensor_plain(args[i], &call.tensors[roles[i]]))
            Py_RETURN_NOTIMPLEMENTED;
        call.given[roles[i]] = true;
    }
    return osw_or_declined(run_amax_backward(&call, args[0]));
}

PyMethodDef osw_adaptive_pool_methods[] = {
    {"adaptive_max_pool", OSW_METHOD(adaptive_max_pool), METH_FASTCALL,
     "adaptive_max_pool(input, (N, C, *output_size), with_index) -> (output, index or None); "
     "NotImplemented where the input must be dense first"},
    {"plain_adaptive_max_pool", OSW_METHOD(plain_adaptive_max_pool), METH_FASTCALL,
     "plain_adaptive_max_pool(spatial, input, output_size, trains) -> output; if it trains "
     "(output, index, (input size, memory format)); NotImplemented where the call is not an "
     "ordinary one"},
    {"adaptive_max_pool_backward", OSW_METHOD(adaptive_max_pool_backward), METH_FASTCALL,
     "adaptive_max_pool_backward(grad_output, index, input_size, channels_last) -> grad_input; "
     "NotImplemented where a tensor must be dense first"},
    {"plain_adaptive_max_pool_backward", OSW_METHOD(plain_adaptive_max_pool_backward),
     METH_FASTCALL,
     "plain_adaptive_max_pool_backward(input_size, memory_format, index, grad_output) -> "
     "grad_input, or NotImplemented"},
    {"amax", amax, METH_O,
     "amax(input) -> maximum of every plane, (N, C); NotImplemented where the input must be dense "
     "first"},
    {"plain_amax", OSW_METHOD(plain_amax), METH_FASTCALL,
     "plain_amax(keepdim, input, trains) -> output, (N, C) or (N, C, 1, 1); if it trains (output, "
     "positions); NotImplemented where the call is not an ordinary one"},
    {"amax_backward", OSW_METHOD(amax_backward), METH_FASTCALL,
     "amax_backward(input, output, grad_output) -> grad_input; NotImplemented where a tensor must "
     "be dense first"},
    {"plain_amax_backward", OSW_METHOD(plain_amax_backward), METH_FASTCALL,
     "plain_amax_backward(input, output, positions, grad_output) -> grad_input, or NotImplemented"},
    {NULL, NULL, 0, NULL},
};
