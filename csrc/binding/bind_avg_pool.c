/* SPDX-License-Identifier: MIT */
/* avg_pool and avg_pool_backward, like those of bind_max_pool.c. */
#include "binding/pool_make.h"
#include "binding/tensor_plain.h"
#include "binding/torch_names.h"
#include "pool/window.h"

/* The new output; the input and the window are in the call. */
static PyObject *run_avg(osw_pool_call *call, PyObject *input, bool ceil_mode)
{
    const osw_tensor *t = &call->tensors[INPUT];
    int64_t size[OSW_MAX_DIMS];
    if (osw_pool_output_size(call, ceil_mode, size) != 0)
        return NULL;
    return osw_pool_run_into(call, osw_pool_new(call, OUTPUT, input, OSW_SAME_DTYPE, t->ndim, size,
                                                osw_suggests_channels_last(t)));
}

/* What both directions are told: kernel, stride, padding, ceil_mode, count_include_pad, divisor or
 * None, channel_step. */
enum { G_CEIL_MODE = W_DILATION, G_INCLUDE_PAD, G_DIVISOR, G_STEP, G_COUNT };

/* The kernel sides' product, which bounds every divisor, must be an int64: an int64 pool would
 * divide by what is left of it, perhaps by 0. */
static int check_area(const osw_pool_call *call)
{
    const osw_pool_dim *dims = call->pool.dims;
    int64_t area;
    if (!__builtin_mul_overflow(dims[HEIGHT].kernel, dims[WIDTH].kernel, &area) &&
        !__builtin_mul_overflow(area, dims[DEPTH].kernel, &area))
        return 0;
    return osw_pool_fail(call, "kernel has more than 2^63 taps, one side", dims[WIDTH].kernel);
}

static int read_divisor(osw_pool_call *call, PyObject *object)
{
    if (object == Py_None)
        return 0;
    if (osw_int_arg(call->name, "divisor", object, INT64_MIN, INT64_MAX, &call->pool.divisor) != 0)
        return -1;
    return call->pool.divisor ? 0 : osw_pool_fail(call, "divisor must not be zero", 0);
}

static int read_geometry(osw_pool_call *call, PyObject *const *geometry)
{
    call->pool.count_include_pad = geometry[G_INCLUDE_PAD] == Py_True;
    return osw_pool_window_args(call, geometry[W_KERNEL], geometry[W_STRIDE], geometry[W_PADDING],
                                NULL) != 0 ||
                   check_area(call) != 0 || osw_pool_step_arg(call, geometry[G_STEP]) != 0 ||
                   read_divisor(call, geometry[G_DIVISOR]) != 0
               ? -1
               : 0;
}

static PyObject *avg_pool(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("avg_pool", OP_avg, false);
    PyObject *const *geometry = args + 1;
    if (!osw_expect(call.name, nargs, 1 + G_COUNT) || read_geometry(&call, geometry) != 0 ||
        osw_pool_tensor_arg(&call, INPUT, args[0]) != 0)
        return NULL;
    return run_avg(&call, args[0], geometry[G_CEIL_MODE] == Py_True);
}

/* None, or an int that one may divide by. */
static bool plain_divisor(PyObject *object, int64_t *divisor)
{
    *divisor = 0;
    return object == Py_None ||
           (osw_exact_int(object, INT64_MIN, INT64_MAX, divisor) && *divisor != 0);
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
    if (!osw_expect(call.name, nargs, P_ARGUMENTS))
        return NULL;
    PyObject *const *geometry = args + P_GEOMETRY;
    PyObject *ceil_mode = geometry[G_CEIL_MODE], *include_pad = geometry[G_INCLUDE_PAD];
    const bool volumes = args[P_VOLUMES] == Py_True;
    PyObject *made = NULL;
    osw_window window;
    if (osw_window_read(&window, &call, volumes, args[P_INPUT], geometry, false) &&
        PyBool_Check(ceil_mode) && PyBool_Check(include_pad) &&
        plain_divisor(geometry[G_DIVISOR], &call.pool.divisor) &&
        is_filled(&call, &window, volumes) && check_area(&call) == 0) {
        call.pool.count_include_pad = include_pad == Py_True;
        made = run_avg(&call, args[P_INPUT], ceil_mode == Py_True);
    }
    if (made && made != Py_NotImplemented && args[P_TRAINS] == Py_True)
        made = describe(&window, &call.tensors[INPUT], geometry, made);
    osw_window_clear(&window);
    return osw_or_declined(made);
}

/* The numbers of a backward: the geometry into the call, and the input's size. */
static int read_numbers(osw_pool_call *call, PyObject *const *geometry, PyObject *input_size,
                        int64_t *size)
{
    if (read_geometry(call, geometry) != 0)
        return -1;
    return osw_pool_tensor_size(call, input_size, call->spatial + 2, size);
}

/* The gradient of the input from that of the output, which is in the call. */
static PyObject *run_backward(osw_pool_call *call, PyObject *gradient, const int64_t *size,
                              bool channels_last)
{
    return osw_pool_run_into(call, osw_pool_new(call, GRAD_INPUT, gradient, OSW_SAME_DTYPE,
                                                call->spatial + 2, size, channels_last));
}

enum { GRAD_AT, SIZE_AT, GEOMETRY_AT, LAST_AT = GEOMETRY_AT + G_COUNT, B_ARGUMENTS };

static PyObject *avg_pool_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("avg_pool_backward", OP_avg_backward, true);
    int64_t size[OSW_MAX_DIMS];
    if (!osw_expect(call.name, nargs, B_ARGUMENTS) ||
        read_numbers(&call, args + GEOMETRY_AT, args[SIZE_AT], size) != 0 ||
        osw_pool_tensor_arg(&call, GRAD_OUTPUT, args[GRAD_AT]) != 0)
        return NULL;
    return run_backward(&call, args[GRAD_AT], size, args[LAST_AT] == Py_True);
}

enum { D_GEOMETRY, D_SIZE, D_FORMAT, D_GRADIENT, D_ARGUMENTS };

static PyObject *plain_avg_pool_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("plain_avg_pool_backward", OP_avg_backward, true);
    PyObject *geometry[G_COUNT];
    int64_t size[OSW_MAX_DIMS];
    if (!osw_expect(call.name, nargs, D_ARGUMENTS) ||
        osw_pool_described(&call, args[D_GEOMETRY], G_COUNT, geometry, G_COUNT) != 0)
        return NULL;
    if (read_numbers(&call, geometry, args[D_SIZE], size) != 0)
        return osw_or_declined(NULL);
    if (!osw_tensor_plain(args[D_GRADIENT], &call.tensors[GRAD_OUTPUT]))
        Py_RETURN_NOTIMPLEMENTED;
    call.given[GRAD_OUTPUT] = true;
    return osw_or_declined(run_backward(&call, args[D_GRADIENT], size,
                                        args[D_FORMAT] != osw_torch(OSW_TORCH_CONTIGUOUS)));
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
    {"plain_avg_pool_backward", OSW_METHOD(plain_avg_pool_backward), METH_FASTCALL,
     "plain_avg_pool_backward(*described, grad_output) -> grad_input, or NotImplemented"},
    {NULL, NULL, 0, NULL},
};
