/* SPDX-License-Identifier: MIT */
/* avg_pool and avg_pool_backward, like those of bind_max_pool.c. */
#include "binding/pool_make.h"
#include "binding/tensor_new.h"
#include "binding/tensor_plain.h"
#include "pool/window.h"

/* The new output; the input and the window are in the call. */
static PyObject *run_avg(osw_pool_call *call, PyObject *input, bool ceil_mode)
{
    const osw_tensor *t = &call->tensors[INPUT];
    int64_t size[OSW_MAX_DIMS];
    if (osw_pool_output_size(call, ceil_mode, size) != 0)
        return NULL;
    return osw_pool_run_into(
        call, osw_pool_new(call, OUTPUT, input, t->ndim, size, osw_suggests_channels_last(t)));
}

/* What both directions are told: kernel, stride, padding, ceil_mode, count_include_pad, divisor or
 * None, channel_step. */
enum { G_CEIL_MODE = W_DILATION, G_INCLUDE_PAD, G_DIVISOR, G_STEP, G_COUNT };

static int read_geometry(osw_pool_call *call, PyObject *const *geometry)
{
    call->pool.count_include_pad = geometry[G_INCLUDE_PAD] == Py_True;
    if (osw_pool_window_args(call, geometry[W_KERNEL], geometry[W_STRIDE], geometry[W_PADDING],
                             NULL) != 0 ||
        osw_pool_int(geometry[G_STEP], &call->pool.channel_step) != 0)
        return -1;
    return geometry[G_DIVISOR] == Py_None ? 0
                                          : osw_pool_int(geometry[G_DIVISOR], &call->pool.divisor);
}

static PyObject *avg_pool(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("avg_pool", OP_avg, false);
    PyObject *const *geometry = args + 1;
    if (!osw_pool_expect(call.name, nargs, 1 + G_COUNT) ||
        osw_pool_tensor_arg(&call, INPUT, args[0]) != 0 || read_geometry(&call, geometry) != 0)
        return NULL;
    return run_avg(&call, args[0], geometry[G_CEIL_MODE] == Py_True);
}

/* None, or an int that one may divide by. */
static bool plain_divisor(PyObject *object, int64_t *divisor)
{
    *divisor = 0;
    if (object == Py_None)
        return true;
    if (PyLong_CheckExact(object))
        *divisor = PyLong_AsLongLong(object);
    return *divisor != 0 && !PyErr_Occurred();
}

/* torch's rule for volumes alone: padding does not help an input that is smaller than the window.
 */
static bool is_filled(const osw_pool_call *call, const osw_window *window, bool volumes)
{
    const osw_tensor *t = &call->tensors[INPUT];
    bool filled = true;
    for (int i = 0; volumes && i < window->spatial; i++)
        filled = filled && t->size[t->ndim - window->spatial + i] >= window->sides[W_KERNEL][i];
    return filled;
}

enum { P_VOLUMES, P_INPUT, P_GEOMETRY, P_TRAINS = P_GEOMETRY + G_STEP, P_ARGUMENTS };

/* (output, (geometry, input size, memory format)); takes the output. */
static PyObject *describe(const osw_window *window, const osw_tensor *t, PyObject *const *geometry,
                          PyObject *output)
{
    PyObject *format = osw_memory_format(t->ndim, osw_suggests_channels_last(t));
    PyObject *size = osw_tuple_of(t->ndim, t->size);
    PyObject *described = NULL;
    if (format && size)
        described = Py_BuildValue(
            "(O((OOOOOOL)OO))", output, window->tuples[W_KERNEL], window->tuples[W_STRIDE],
            window->tuples[W_PADDING], geometry[G_CEIL_MODE], geometry[G_INCLUDE_PAD],
            geometry[G_DIVISOR], (long long)window->channel_step, size, format);
    Py_XDECREF(size);
    Py_DECREF(output);
    return described;
}

static PyObject *plain_avg_pool(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("plain_avg_pool", OP_avg, false);
    if (!osw_pool_expect(call.name, nargs, P_ARGUMENTS))
        return NULL;
    PyObject *const *geometry = args + P_GEOMETRY;
    PyObject *ceil_mode = geometry[G_CEIL_MODE], *include_pad = geometry[G_INCLUDE_PAD];
    const bool volumes = args[P_VOLUMES] == Py_True;
    PyObject *made = NULL;
    osw_window window;
    if (osw_window_read(&window, &call, volumes, args[P_INPUT], geometry, false) &&
        PyBool_Check(ceil_mode) && PyBool_Check(include_pad) &&
        plain_divisor(geometry[G_DIVISOR], &call.pool.divisor) &&
        is_filled(&call, &window, volumes)) {
        call.pool.count_include_pad = include_pad == Py_True;
        made = run_avg(&call, args[P_INPUT], ceil_mode == Py_True);
    }
    if (made && made != Py_NotImplemented && args[P_TRAINS] == Py_True)
        made = describe(&window, &call.tensors[INPUT], geometry, made);
    osw_window_clear(&window);
    return osw_or_declined(made);
}

/* The gradient of the input from that of the output, which is in the call. */
static PyObject *run_backward(osw_pool_call *call, PyObject *gradient, PyObject *input_size,
                              PyObject *const *geometry, bool channels_last)
{
    int64_t size[OSW_MAX_DIMS];
    if (read_geometry(call, geometry) != 0 ||
        osw_pool_tensor_size(call, input_size, call->spatial + 2, size) != 0)
        return NULL;
    return osw_pool_run_into(
        call, osw_pool_new(call, GRAD_INPUT, gradient, call->spatial + 2, size, channels_last));
}

enum { GRAD_AT, SIZE_AT, GEOMETRY_AT, LAST_AT = GEOMETRY_AT + G_COUNT, B_ARGUMENTS };

static PyObject *avg_pool_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("avg_pool_backward", OP_avg_backward, true);
    if (!osw_pool_expect(call.name, nargs, B_ARGUMENTS) ||
        osw_pool_tensor_arg(&call, GRAD_OUTPUT, args[GRAD_AT]) != 0)
        return NULL;
    return run_backward(&call, args[GRAD_AT], args[SIZE_AT], args + GEOMETRY_AT,
                        args[LAST_AT] == Py_True);
}

static PyObject *plain_avg_pool_backward(PyObject *module, PyObject *args)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("plain_avg_pool_backward", OP_avg_backward, true);
    PyObject *geometry[G_COUNT], *size, *format, *gradient;
    if (!PyArg_ParseTuple(args, "(OOOOOOO)OOO:plain_avg_pool_backward", &geometry[W_KERNEL],
                          &geometry[W_STRIDE], &geometry[W_PADDING], &geometry[G_CEIL_MODE],
                          &geometry[G_INCLUDE_PAD], &geometry[G_DIVISOR], &geometry[G_STEP], &size,
                          &format, &gradient))
        return NULL;
    if (!osw_tensor_plain(gradient, &call.tensors[GRAD_OUTPUT]))
        Py_RETURN_NOTIMPLEMENTED;
    call.given[GRAD_OUTPUT] = true;
    return osw_or_declined(
        run_backward(&call, gradient, size, geometry, format != osw_memory_format(4, false)));
}

PyMethodDef osw_avg_pool_methods[] = {
    {"avg_pool", OSW_METHOD(avg_pool), METH_FASTCALL,
     "avg_pool(input, kernel, stride, padding, ceil_mode, count_include_pad, divisor or None, "
     "channel_step) -> output; NotImplemented where the input must be dense first"},
    {"plain_avg_pool", OSW_METHOD(plain_avg_pool), METH_FASTCALL,
     "plain_avg_pool(volumes, input, kernel_size, stride, padding, ceil_mode, count_include_pad, "
     "divisor_override, trains) -> output; if it trains (output, ((kernel, stride, padding, "
     "ceil_mode, count_include_pad, divisor_override, channel step), input size, memory format)); "
     "NotImplemented where the call is not an ordinary one"},
    {"avg_pool_backward", OSW_METHOD(avg_pool_backward), METH_FASTCALL,
     "avg_pool_backward(grad_output, input_size, kernel, stride, padding, ceil_mode, "
     "count_include_pad, divisor or None, channel_step, channels_last) -> grad_input; "
     "NotImplemented where grad_output must be dense first"},
    {"plain_avg_pool_backward", plain_avg_pool_backward, METH_VARARGS,
     "plain_avg_pool_backward(*described, grad_output) -> grad_input, or NotImplemented"},
    {NULL, NULL, 0, NULL},
};
