/* SPDX-License-Identifier: MIT */
/* max_pool and max_pool_backward: a whole call each, the tensors that it makes included. The plain
 * ones are those of the public functions, for ordinary calls. */
#include "binding/pool_window.h"
#include "binding/torch_names.h"

/* The input and the window are in the call. */
static int execute(osw_pool_call *call, bool ceil_mode, bool with_offsets)
{
    int64_t size[OSW_MAX_DIMS];
    return osw_pool_output_size(call, ceil_mode, size) != 0 ||
                   osw_pool_make(call, size, with_offsets) != 0 || osw_pool_execute(call) != 0
               ? -1
               : 0;
}

enum { INPUT_AT, WINDOW_AT, CEIL_MODE = WINDOW_AT + W_COUNT, STEP, WITH_OFFSETS, ARGUMENTS };

OSW_ENTRY(max_pool)
{
    osw_pool_call call = osw_pool_begin("max_pool", OP_max, false);
    const bool done =
        osw_expect(call.base.name, nargs, ARGUMENTS) &&
        osw_pool_window_args(&call, args + WINDOW_AT, true, args[STEP]) == 0 &&
        osw_call_tensor(&call.base, INPUT, args[INPUT_AT]) == 0 &&
        execute(&call, args[CEIL_MODE] == Py_True, args[WITH_OFFSETS] == Py_True) == 0;
    return osw_call_end(&call.base, done ? osw_call_tuple(&call.base, OUTPUT, 2) : NULL);
}

/* (output, offsets, described) */
static PyObject *describe(const osw_call *call, const osw_window *w, PyObject *ceil_mode)
{
    const osw_tensor *t = &call->tensors[INPUT];
    return Py_BuildValue(
        "(OO((NNNNO)LNO))", call->made[OUTPUT], call->made[OFFSETS],
        osw_tuple_of(w->spatial, w->sides[W_KERNEL]), osw_tuple_of(w->spatial, w->sides[W_STRIDE]),
        osw_tuple_of(w->spatial, w->sides[W_PADDING]),
        osw_tuple_of(w->spatial, w->sides[W_DILATION]), ceil_mode, (long long)w->channel_step,
        osw_tuple_of(t->ndim, t->size), osw_memory_format(t->ndim, osw_suggests_channels_last(t)));
}

enum { P_VOLUMES, P_INPUT, P_WINDOW, P_CEIL_MODE = P_WINDOW + W_COUNT, P_TRAINS, P_ARGUMENTS };

OSW_ENTRY(plain_max_pool)
{
    osw_pool_call call = osw_pool_begin("plain_max_pool", OP_max, true);
    if (!osw_expect(call.base.name, nargs, P_ARGUMENTS))
        return NULL;
    PyObject *ceil_mode = args[P_CEIL_MODE], *result = NULL;
    const bool trains = args[P_TRAINS] == Py_True;
    osw_window window;
    if (osw_window_read(&window, &call, args[P_VOLUMES] == Py_True, args[P_INPUT], args + P_WINDOW,
                        true) &&
        PyBool_Check(ceil_mode) && execute(&call, ceil_mode == Py_True, trains) == 0)
        result =
            trains ? describe(&call.base, &window, ceil_mode) : osw_call_made(&call.base, OUTPUT);
    return osw_or_declined(osw_call_end(&call.base, result));
}

enum { GRAD_AT, OFFSETS_AT, SIZE_AT, GEOMETRY_AT, STEP_AT = GEOMETRY_AT + 4, LAST_AT, B_ARGUMENTS };

/* The numbers before the tensors: window, channel step and the size of the input. */
static PyObject *run_backward(osw_pool_call *call, PyObject *const *window, PyObject *channel_step,
                              PyObject *input_size, bool channels_last, PyObject *gradient,
                              PyObject *offsets)
{
    int64_t size[OSW_MAX_DIMS];
    if (osw_pool_window_args(call, window, true, channel_step) != 0 ||
        osw_pool_tensor_size(call, input_size, call->spatial + 2, size) != 0 ||
        osw_call_tensor(&call->base, GRAD_OUTPUT, gradient) != 0 ||
        osw_call_tensor(&call->base, OFFSETS, offsets) != 0)
        return osw_call_end(&call->base, NULL);
    return osw_pool_gradient(call, call->spatial + 2, size, channels_last);
}

OSW_ENTRY(max_pool_backward)
{
    osw_pool_call call = osw_pool_begin("max_pool_backward", OP_max_backward, false);
    if (!osw_expect(call.base.name, nargs, B_ARGUMENTS))
        return NULL;
    return run_backward(&call, args + GEOMETRY_AT, args[STEP_AT], args[SIZE_AT],
                        args[LAST_AT] == Py_True, args[GRAD_AT], args[OFFSETS_AT]);
}

enum { D_WINDOW, D_STEP, D_SIZE, D_FORMAT, D_OFFSETS, D_GRADIENT, D_ARGUMENTS };

OSW_ENTRY(plain_max_pool_backward)
{
    osw_pool_call call = osw_pool_begin("plain_max_pool_backward", OP_max_backward, true);
    PyObject *window[W_COUNT + 1];
    if (!osw_expect(call.base.name, nargs, D_ARGUMENTS) ||
        osw_pool_described(&call, args[D_WINDOW], W_COUNT + 1, window) != 0)
        return NULL;
    return osw_or_declined(run_backward(&call, window, args[D_STEP], args[D_SIZE],
                                        args[D_FORMAT] != osw_torch(OSW_TORCH_CONTIGUOUS),
                                        args[D_GRADIENT], args[D_OFFSETS]));
}

PyMethodDef osw_max_pool_methods[] = {
    OSW_ENTRY_LINE(max_pool,
                   "max_pool(input, kernel, stride, padding, dilation, ceil_mode, channel_step, "
                   "with_offsets) -> "
                   "(output, offsets or None); NotImplemented if the input must be dense first"),
    OSW_ENTRY_LINE(
        plain_max_pool,
        "plain_max_pool(volumes, input, kernel_size, stride, padding, dilation, ceil_mode, trains) "
        "-> "
        "output; if it trains (output, offsets, ((kernel, stride, padding, dilation, ceil_mode), "
        "channel step, input size, memory format)); NotImplemented if the call is not an "
        "ordinary "
        "one"),
    OSW_ENTRY_LINE(
        max_pool_backward,
        "max_pool_backward(grad_output, offsets, input_size, kernel, stride, padding, dilation, "
        "channel_step, channels_last) -> grad_input; NotImplemented if a tensor must be dense "
        "first"),
    OSW_ENTRY_LINE(plain_max_pool_backward, "plain_max_pool_backward(*described, offsets, "
                                            "grad_output) -> grad_input, or NotImplemented"),
    {NULL, NULL, 0, NULL},
};
