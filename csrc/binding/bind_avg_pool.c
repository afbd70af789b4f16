/* SPDX-License-Identifier: MIT */
/* avg_pool and avg_pool_backward, like those of bind_max_pool.c. */
#include "binding/pool_window.h"
#include "binding/torch_names.h"
#include "pool/window.h"

/* The input and the window are in the call. */
static int execute(osw_pool_call *call, bool ceil_mode)
{
    int64_t size[OSW_MAX_DIMS];
    return osw_pool_output_size(call, ceil_mode, size) != 0 ||
                   osw_pool_make(call, size, false) != 0 || osw_pool_execute(call) != 0
               ? -1
               : 0;
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
    if (osw_int_arg(call->base.name, "divisor", object, INT64_MIN, INT64_MAX,
                    &call->pool.divisor) != 0)
        return -1;
    return call->pool.divisor ? 0 : osw_pool_fail(call, "divisor must not be zero", 0);
}

static int read_geometry(osw_pool_call *call, PyObject *const *geometry)
{
    call->pool.count_include_pad = geometry[G_INCLUDE_PAD] == Py_True;
    return osw_pool_window_args(call, geometry, false, geometry[G_STEP]) != 0 ||
                   check_area(call) != 0 || read_divisor(call, geometry[G_DIVISOR]) != 0
               ? -1
               : 0;
}

OSW_ENTRY(avg_pool)
{
    osw_pool_call call = osw_pool_begin("avg_pool", OP_avg, false);
    PyObject *const *geometry = args + 1;
    const bool done = osw_expect(call.base.name, nargs, 1 + G_COUNT) &&
                      read_geometry(&call, geometry) == 0 &&
                      osw_call_tensor(&call.base, INPUT, args[0]) == 0 &&
                      execute(&call, geometry[G_CEIL_MODE] == Py_True) == 0;
    return osw_call_end(&call.base, done ? osw_call_made(&call.base, OUTPUT) : NULL);
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
    const osw_tensor *t = &call->base.tensors[INPUT];
    bool filled = true;
    for (int i = 0; volumes && i < window->spatial; i++)
        filled = filled && t->size[t->ndim - window->spatial + i] >= window->sides[W_KERNEL][i];
    return filled;
}

enum { P_VOLUMES, P_INPUT, P_GEOMETRY, P_TRAINS = P_GEOMETRY + G_STEP, P_ARGUMENTS };

/* (output, (geometry, input size, memory format)) */
static PyObject *describe(const osw_call *call, const osw_window *w, PyObject *const *geometry)
{
    const osw_tensor *t = &call->tensors[INPUT];
    return Py_BuildValue(
        "(O((NNNOOOL)NO))", call->made[OUTPUT], osw_tuple_of(w->spatial, w->sides[W_KERNEL]),
        osw_tuple_of(w->spatial, w->sides[W_STRIDE]), osw_tuple_of(w->spatial, w->sides[W_PADDING]),
        geometry[G_CEIL_MODE], geometry[G_INCLUDE_PAD], geometry[G_DIVISOR],
        (long long)w->channel_step, osw_tuple_of(t->ndim, t->size),
        osw_memory_format(t->ndim, osw_suggests_channels_last(t)));
}

OSW_ENTRY(plain_avg_pool)
{
    osw_pool_call call = osw_pool_begin("plain_avg_pool", OP_avg, true);
    if (!osw_expect(call.base.name, nargs, P_ARGUMENTS))
        return NULL;
    PyObject *const *geometry = args + P_GEOMETRY;
    PyObject *ceil_mode = geometry[G_CEIL_MODE], *include_pad = geometry[G_INCLUDE_PAD];
    const bool volumes = args[P_VOLUMES] == Py_True;
    PyObject *result = NULL;
    osw_window window;
    call.pool.count_include_pad = include_pad == Py_True;
    if (osw_window_read(&window, &call, volumes, args[P_INPUT], geometry, false) &&
        PyBool_Check(ceil_mode) && PyBool_Check(include_pad) &&
        plain_divisor(geometry[G_DIVISOR], &call.pool.divisor) &&
        is_filled(&call, &window, volumes) && check_area(&call) == 0 &&
        execute(&call, ceil_mode == Py_True) == 0)
        result = args[P_TRAINS] == Py_True ? describe(&call.base, &window, geometry)
                                           : osw_call_made(&call.base, OUTPUT);
    return osw_or_declined(osw_call_end(&call.base, result));
}

enum { GRAD_AT, SIZE_AT, GEOMETRY_AT, LAST_AT = GEOMETRY_AT + G_COUNT, B_ARGUMENTS };

/* The numbers before the tensor: geometry and the size of the input. */
static PyObject *run_backward(osw_pool_call *call, PyObject *const *geometry, PyObject *input_size,
                              bool channels_last, PyObject *gradient)
{
    int64_t size[OSW_MAX_DIMS];
    if (read_geometry(call, geometry) != 0 ||
        osw_pool_tensor_size(call, input_size, call->spatial + 2, size) != 0 ||
        osw_call_tensor(&call->base, GRAD_OUTPUT, gradient) != 0)
        return osw_call_end(&call->base, NULL);
    return osw_pool_gradient(call, call->spatial + 2, size, channels_last);
}

OSW_ENTRY(avg_pool_backward)
{
    osw_pool_call call = osw_pool_begin("avg_pool_backward", OP_avg_backward, false);
    if (!osw_expect(call.base.name, nargs, B_ARGUMENTS))
        return NULL;
    return run_backward(&call, args + GEOMETRY_AT, args[SIZE_AT], args[LAST_AT] == Py_True,
                        args[GRAD_AT]);
}

enum { D_GEOMETRY, D_SIZE, D_FORMAT, D_GRADIENT, D_ARGUMENTS };

OSW_ENTRY(plain_avg_pool_backward)
{
    osw_pool_call call = osw_pool_begin("plain_avg_pool_backward", OP_avg_backward, true);
    PyObject *geometry[G_COUNT];
    if (!osw_expect(call.base.name, nargs, D_ARGUMENTS) ||
        osw_pool_described(&call, args[D_GEOMETRY], G_COUNT, geometry) != 0)
        return NULL;
    return osw_or_declined(run_backward(&call, geometry, args[D_SIZE],
                                        args[D_FORMAT] != osw_torch(OSW_TORCH_CONTIGUOUS),
                                        args[D_GRADIENT]));
}

PyMethodDef osw_avg_pool_methods[] = {
    OSW_ENTRY_LINE(
        avg_pool,
        "avg_pool(input, kernel, stride, padding, ceil_mode, count_include_pad, divisor or None, "
        "channel_step) -> output; NotImplemented if the input must be dense first"),
    OSW_ENTRY_LINE(
        plain_avg_pool,
        "plain_avg_pool(volumes, input, kernel_size, stride, padding, ceil_mode, "
        "count_include_pad, "
        "divisor_override, trains) -> output; if it trains (output, ((kernel, stride, padding, "
        "ceil_mode, count_include_pad, divisor_override, channel step), input size, memory "
        "format)); "
        "NotImplemented if the call is not an ordinary one"),
    OSW_ENTRY_LINE(
        avg_pool_backward,
        "avg_pool_backward(grad_output, input_size, kernel, stride, padding, ceil_mode, "
        "count_include_pad, divisor or None, channel_step, channels_last) -> grad_input; "
        "NotImplemented if grad_output must be dense first"),
    OSW_ENTRY_LINE(
        plain_avg_pool_backward,
        "plain_avg_pool_backward(*described, grad_output) -> grad_input, or NotImplemented"),
    {NULL, NULL, 0, NULL},
};
