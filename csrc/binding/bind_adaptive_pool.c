/* SPDX-License-Identifier: MIT */
/* adaptive_max_pool and the maximum of whole planes with torch.amax's gradient, each with its
 * backward, like those of bind_max_pool.c. */
#include "binding/pool_window.h"
#include "binding/torch_names.h"

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

OSW_ENTRY(adaptive_max_pool)
{
    osw_pool_call call = osw_pool_begin("adaptive_max_pool", OP_adaptive_max, false);
    int64_t size[OSW_MAX_DIMS];
    int ndim;
    const bool done =
        osw_expect(call.base.name, nargs, 3) && read_size(&call, args[1], size, &ndim) == 0 &&
        osw_call_tensor(&call.base, INPUT, args[0]) == 0 &&
        check_ndim(&call, &call.base.tensors[INPUT], ndim) == 0 &&
        osw_pool_make(&call, size, args[2] == Py_True) == 0 && osw_pool_execute(&call) == 0;
    return osw_call_end(&call.base, done ? osw_call_tuple(&call.base, OUTPUT, 2) : NULL);
}

/* An ordinary input of planes or volumes, into the call. */
static bool read_input(osw_pool_call *call, PyObject *input, int spatial)
{
    const osw_tensor *t = &call->base.tensors[INPUT];
    return osw_call_tensor(&call->base, INPUT, input) == 0 && t->ndim == spatial + 2 &&
           t->numel > 0 && osw_pool_supports(OP_adaptive_max, t) &&
           !osw_autocast_converts(t, spatial == 3);
}

/* (output, index, (input size, memory format)) */
static PyObject *describe(const osw_call *call)
{
    const osw_tensor *t = &call->tensors[INPUT];
    return Py_BuildValue("(OO(NO))", call->made[OUTPUT], call->made[OFFSETS],
                         osw_tuple_of(t->ndim, t->size),
                         osw_memory_format(t->ndim, osw_suggests_channels_last(t)));
}

enum { P_SPATIAL, P_INPUT, P_SIZE, P_TRAINS, P_ARGUMENTS };

OSW_ENTRY(plain_adaptive_max_pool)
{
    osw_pool_call call = osw_pool_begin("plain_adaptive_max_pool", OP_adaptive_max, true);
    int64_t spatial, size[OSW_MAX_DIMS];
    if (!osw_expect(call.base.name, nargs, P_ARGUMENTS) ||
        osw_int_arg(call.base.name, "spatial", args[P_SPATIAL], 1, OSW_POOL_DIMS, &spatial) != 0)
        return NULL;
    const osw_tensor *t = &call.base.tensors[INPUT];
    const bool trains = args[P_TRAINS] == Py_True;
    PyObject *result = NULL;
    if (read_input(&call, args[P_INPUT], (int)spatial) &&
        osw_plain_sides(args[P_SIZE], (int)spatial, 1, size + 2)) {
        size[0] = t->size[0];
        size[1] = t->size[1];
        if (osw_pool_make(&call, size, trains) == 0 && osw_pool_execute(&call) == 0)
            result = trains ? describe(&call.base) : osw_call_made(&call.base, OUTPUT);
    }
    return osw_or_declined(osw_call_end(&call.base, result));
}

/* The size of the input, then the tensors. */
static PyObject *run_backward(osw_pool_call *call, PyObject *input_size, bool channels_last,
                              PyObject *gradient, PyObject *index)
{
    int64_t size[OSW_MAX_DIMS];
    int ndim;
    if (read_size(call, input_size, size, &ndim) != 0 ||
        osw_call_tensor(&call->base, GRAD_OUTPUT, gradient) != 0 ||
        osw_call_tensor(&call->base, OFFSETS, index) != 0 ||
        check_ndim(call, &call->base.tensors[GRAD_OUTPUT], ndim) != 0)
        return osw_call_end(&call->base, NULL);
    return osw_pool_gradient(call, ndim, size, channels_last);
}

OSW_ENTRY(adaptive_max_pool_backward)
{
    osw_pool_call call =
        osw_pool_begin("adaptive_max_pool_backward", OP_adaptive_max_backward, false);
    if (!osw_expect(call.base.name, nargs, 4))
        return NULL;
    return run_backward(&call, args[2], args[3] == Py_True, args[0], args[1]);
}

OSW_ENTRY(plain_adaptive_max_pool_backward)
{
    osw_pool_call call =
        osw_pool_begin("plain_adaptive_max_pool_backward", OP_adaptive_max_backward, true);
    if (!osw_expect(call.base.name, nargs, 4))
        return NULL;
    return osw_or_declined(
        run_backward(&call, args[0], args[1] != osw_torch(OSW_TORCH_CONTIGUOUS), args[3], args[2]));
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

/* Make the maximum of every plane, (N, C) or, with `keepdim`, (N, C, 1, 1), and positions, and run.
 */
static int execute_amax(osw_pool_call *call, bool keepdim, bool with_positions)
{
    osw_tensor *t = call->base.tensors;
    if (t[INPUT].ndim < 3 || t[INPUT].ndim > 2 + OSW_POOL_DIMS)
        return osw_pool_fail(call, "expected (N, C, *)", t[INPUT].ndim);
    const int64_t size[] = {t[INPUT].size[0], t[INPUT].size[1], 1, 1};
    if (osw_call_make(&call->base, OUTPUT, INPUT, OSW_SAME_DTYPE, keepdim ? 4 : 2, size, false) !=
            0 ||
        as_reduced(call, &t[OUTPUT], &t[INPUT]) != 0)
        return -1;
    if (with_positions &&
        (osw_call_make(&call->base, OFFSETS, INPUT, OSW_INT32, 2, size, false) != 0 ||
         as_reduced(call, &t[OFFSETS], &t[INPUT]) != 0))
        return -1;
    return osw_pool_execute(call);
}

static PyObject *amax(PyObject *Py_UNUSED(module), PyObject *input)
{
    osw_pool_call call = osw_pool_begin("amax", OP_adaptive_max, false);
    const bool done =
        osw_call_tensor(&call.base, INPUT, input) == 0 && execute_amax(&call, false, false) == 0;
    return osw_call_end(&call.base, done ? osw_call_made(&call.base, OUTPUT) : NULL);
}

OSW_ENTRY(plain_amax)
{
    if (!osw_expect("plain_amax", nargs, 3))
        return NULL;
    const bool trains = args[2] == Py_True;
    osw_pool_call call = osw_pool_begin("plain_amax", trains ? OP_amax : OP_adaptive_max, true);
    PyObject *result = NULL;
    if (read_input(&call, args[1], 2) && PyBool_Check(args[0]) &&
        execute_amax(&call, args[0] == Py_True, trains) == 0)
        result = trains ? osw_call_tuple(&call.base, OUTPUT, 2) : osw_call_made(&call.base, OUTPUT);
    return osw_or_declined(osw_call_end(&call.base, result));
}

/* Tensors by their roles, the input, output and gradient of the output among them. */
static PyObject *run_amax_backward(osw_pool_call *call, const osw_role *roles, int count,
                                   PyObject *const *args)
{
    osw_tensor *t = call->base.tensors, *x = &t[INPUT];
    bool done = true;
    for (int i = 0; done && i < count; i++)
        done = osw_call_tensor(&call->base, roles[i], args[i]) == 0;
    if (done && (x->ndim < 3 || x->ndim > 2 + OSW_POOL_DIMS))
        done = osw_pool_fail(call, "expected (N, C, *)", x->ndim) == 0;
    for (int i = 1; done && i < count; i++)
        done = as_reduced(call, &t[roles[i]], x) == 0;
    done = done &&
           osw_call_make(&call->base, GRAD_INPUT, INPUT, OSW_SAME_DTYPE, x->ndim, x->size,
                         osw_suggests_channels_last(x)) == 0 &&
           osw_pool_execute(call) == 0;
    return osw_call_end(&call->base, done ? osw_call_made(&call->base, GRAD_INPUT) : NULL);
}

OSW_ENTRY(amax_backward)
{
    static const osw_role roles[] = {INPUT, OUTPUT, GRAD_OUTPUT};
    osw_pool_call call = osw_pool_begin("amax_backward", OP_amax_backward, false);
    return osw_expect(call.base.name, nargs, 3) ? run_amax_backward(&call, roles, 3, args) : NULL;
}

OSW_ENTRY(plain_amax_backward)
{
    static const osw_role roles[] = {INPUT, OUTPUT, OFFSETS, GRAD_OUTPUT};
    osw_pool_call call = osw_pool_begin("plain_amax_backward", OP_amax_backward, true);
    return osw_expect(call.base.name, nargs, 4)
               ? osw_or_declined(run_amax_backward(&call, roles, 4, args))
               : NULL;
}

PyMethodDef osw_adaptive_pool_methods[] = {
    OSW_ENTRY_LINE(
        adaptive_max_pool,
        "adaptive_max_pool(input, (N, C, *output_size), with_index) -> (output, index or None); "
        "NotImplemented if the input must be dense first"),
    OSW_ENTRY_LINE(
        plain_adaptive_max_pool,
        "plain_adaptive_max_pool(spatial, input, output_size, trains) -> output; if it trains "
        "(output, index, (input size, memory format)); NotImplemented if the call is not an "
        "ordinary one"),
    OSW_ENTRY_LINE(
        adaptive_max_pool_backward,
        "adaptive_max_pool_backward(grad_output, index, input_size, channels_last) -> grad_input; "
        "NotImplemented if a tensor must be dense first"),
    OSW_ENTRY_LINE(
        plain_adaptive_max_pool_backward,
        "plain_adaptive_max_pool_backward(input_size, memory_format, index, grad_output) -> "
        "grad_input, or NotImplemented"),
    {"amax", amax, METH_O,
     "amax(input) -> maximum of every plane, (N, C); NotImplemented if the input must be dense "
     "first"},
    OSW_ENTRY_LINE(plain_amax, "plain_amax(keepdim, input, trains) -> output, (N, C) or (N, C, 1, "
                               "1); if it trains (output, "
                               "positions); NotImplemented if the call is not an ordinary one"),
    OSW_ENTRY_LINE(amax_backward, "amax_backward(input, output, grad_output) -> grad_input; "
                                  "NotImplemented if a tensor must "
                                  "be dense first"),
    OSW_ENTRY_LINE(plain_amax_backward, "plain_amax_backward(input, output, positions, "
                                        "grad_output) -> grad_input, or NotImplemented"),
    {NULL, NULL, 0, NULL},
};
