/* SPDX-License-Identifier: MIT */
/* max_pool and max_pool_backward: a whole call each, the tensors that it makes included. The plain
 * ones are those of the public functions, for ordinary calls. */
#include "binding/pool_make.h"
#include "binding/tensor_plain.h"
#include "binding/torch_names.h"
#include "pool/window.h"

/* (output, offsets or None), or NotImplemented; the input and the window are in the call. */
static PyObject *run_max(osw_pool_call *call, PyObject *input, bool ceil_mode, bool with_offsets)
{
    const osw_tensor *t = &call->tensors[INPUT];
    int64_t size[OSW_MAX_DIMS];
    if (osw_pool_output_size(call, ceil_mode, size) != 0)
        return NULL;
    const bool channels_last = osw_suggests_channels_last(t);
    PyObject *output =
        osw_pool_new(call, OUTPUT, input, OSW_SAME_DTYPE, t->ndim, size, channels_last);
    PyObject *offsets = NULL, *both = NULL;
    if (output && with_offsets)
        offsets = osw_pool_new(call, OFFSETS, input,
                               osw_pool_fits_byte(&call->pool) ? OSW_UINT8 : OSW_INT32, t->ndim,
                               size, channels_last);
    if (offsets || (output && !with_offsets))
        both = PyTuple_Pack(2, output, offsets ? offsets : Py_None);
    Py_XDECREF(output);
    Py_XDECREF(offsets);
    return osw_pool_run_into(call, both);
}

enum { INPUT_AT, WINDOW_AT, CEIL_MODE = WINDOW_AT + W_COUNT, STEP, WITH_OFFSETS, ARGUMENTS };

static PyObject *max_pool(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("max_pool", OP_max, false);
    PyObject *const *window = args + WINDOW_AT;
    if (!osw_expect(call.name, nargs, ARGUMENTS) ||
        osw_pool_window_args(&call, window[W_KERNEL], window[W_STRIDE], window[W_PADDING],
                             window[W_DILATION]) != 0 ||
        osw_pool_step_arg(&call, args[STEP]) != 0 ||
        osw_pool_tensor_arg(&call, INPUT, args[INPUT_AT]) != 0)
        return NULL;
    return run_max(&call, args[INPUT_AT], args[CEIL_MODE] == Py_True,
                   args[WITH_OFFSETS] == Py_True);
}

/* (output, offsets, described) of the pair that run_max makes, which it takes. */
static PyObject *describe(const osw_window *window, const osw_tensor *t, PyObject *ceil_mode,
                          PyObject *both)
{
    PyObject *format = osw_memory_format(t->ndim, osw_suggests_channels_last(t));
    PyObject *size = osw_tuple_of(t->ndim, t->size);
    PyObject *described = NULL;
    if (format && size)
        described = Py_BuildValue(
            "(OO((OOOOO)LOO))", PyTuple_GetItem(both, 0), PyTuple_GetItem(both, 1),
            window->tuples[W_KERNEL], window->tuples[W_STRIDE], window->tuples[W_PADDING],
            window->tuples[W_DILATION], ceil_mode, (long long)window->channel_step, size, format);
    Py_XDECREF(size);
    Py_DECREF(both);
    return described;
}

static PyObject *first_of(PyObject *both)
{
    PyObject *first = PyTuple_GetItem(both, 0);
    Py_XINCREF(first);
    Py_DECREF(both);
    return first;
}

enum { P_VOLUMES, P_INPUT, P_WINDOW, P_CEIL_MODE = P_WINDOW + W_COUNT, P_TRAINS, P_ARGUMENTS };

static PyObject *plain_max_pool(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("plain_max_pool", OP_max, false);
    if (!osw_expect(call.name, nargs, P_ARGUMENTS))
        return NULL;
    PyObject *ceil_mode = args[P_CEIL_MODE], *made = NULL;
    const bool trains = args[P_TRAINS] == Py_True;
    osw_window window;
    if (osw_window_read(&window, &call, args[P_VOLUMES] == Py_True, args[P_INPUT], args + P_WINDOW,
                        true) &&
        PyBool_Check(ceil_mode))
        made = run_max(&call, args[P_INPUT], ceil_mode == Py_True, trains);
    if (made && made != Py_NotImplemented)
        made = trains ? describe(&window, &call.tensors[INPUT], ceil_mode, made) : first_of(made);
    osw_window_clear(&window);
    return osw_or_declined(made);
}

/* The numbers of a backward: the window and the channel step into the call, and the input's size.
 */
static int read_numbers(osw_pool_call *call, PyObject *const *window, PyObject *channel_step,
                        PyObject *input_size, int64_t *size)
{
    return osw_pool_window_args(call, window[W_KERNEL], window[W_STRIDE], window[W_PADDING],
                                window[W_DILATION]) != 0 ||
                   osw_pool_step_arg(call, channel_step) != 0 ||
                   osw_pool_tensor_size(call, input_size, call->spatial + 2, size) != 0
               ? -1
               : 0;
}

/* The gradient of the input from that of the output and the offsets, both in the call. */
static PyObject *run_backward(osw_pool_call *call, PyObject *gradient, const int64_t *size,
                              bool channels_last)
{
    return osw_pool_run_into(call, osw_pool_new(call, GRAD_INPUT, gradient, OSW_SAME_DTYPE,
                                                call->spatial + 2, size, channels_last));
}

enum { GRAD_AT, OFFSETS_AT, SIZE_AT, GEOMETRY_AT, STEP_AT = GEOMETRY_AT + 4, LAST_AT, B_ARGUMENTS };

static PyObject *max_pool_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("max_pool_backward", OP_max_backward, true);
    int64_t size[OSW_MAX_DIMS];
    if (!osw_expect(call.name, nargs, B_ARGUMENTS) ||
        read_numbers(&call, args + GEOMETRY_AT, args[STEP_AT], args[SIZE_AT], size) != 0 ||
        osw_pool_tensor_arg(&call, GRAD_OUTPUT, args[GRAD_AT]) != 0 ||
        osw_pool_tensor_arg(&call, OFFSETS, args[OFFSETS_AT]) != 0)
        return NULL;
    return run_backward(&call, args[GRAD_AT], size, args[LAST_AT] == Py_True);
}

enum { D_WINDOW, D_STEP, D_SIZE, D_FORMAT, D_OFFSETS, D_GRADIENT, D_ARGUMENTS };

static PyObject *plain_max_pool_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("plain_max_pool_backward", OP_max_backward, true);
    PyObject *window[W_COUNT];
    int64_t size[OSW_MAX_DIMS];
    if (!osw_expect(call.name, nargs, D_ARGUMENTS) ||
        osw_pool_described(&call, args[D_WINDOW], W_COUNT + 1, window, W_COUNT) != 0)
        return NULL;
    if (read_numbers(&call, window, args[D_STEP], args[D_SIZE], size) != 0)
        return osw_or_declined(NULL);
    if (!osw_tensor_plain(args[D_GRADIENT], &call.tensors[GRAD_OUTPUT]) ||
        !osw_tensor_plain(args[D_OFFSETS], &call.tensors[OFFSETS]))
        Py_RETURN_NOTIMPLEMENTED;
    call.given[GRAD_OUTPUT] = call.given[OFFSETS] = true;
    return osw_or_declined(run_backward(&call, args[D_GRADIENT], size,
                                        args[D_FORMAT] != osw_torch(OSW_TORCH_CONTIGUOUS)));
}

PyMethodDef osw_max_pool_methods[] = {
    {"max_pool", OSW_METHOD(max_pool), METH_FASTCALL,
     "max_pool(input, kernel, stride, padding, dilation, ceil_mode, channel_step, with_offsets) -> "
     "(output, offsets or None); NotImplemented where the input must be dense first"},
    {"plain_max_pool", OSW_METHOD(plain_max_pool), METH_FASTCALL,
     "plain_max_pool(volumes, input, kernel_size, stride, padding, dilation, ceil_mode, trains) -> "
     "output; if it trains (output, offsets, ((kernel, stride, padding, dilation, ceil_mode), "
     "channel step, input size, memory format)); NotImplemented where the call is not an ordinary "
     "one"},
    {"max_pool_backward", OSW_METHOD(max_pool_backward), METH_FASTCALL,
     "max_pool_backward(grad_output, offsets, input_size, kernel, stride, padding, dilation, "
     "channel_step, channels_last) -> grad_input; NotImplemented where a tensor must be dense "
     "first"},
    {"plain_max_pool_backward", OSW_METHOD(plain_max_pool_backward), METH_FASTCALL,
     "plain_max_pool_backward(*described, offsets, grad_output) -> grad_input, or NotImplemented"},
    {NULL, NULL, 0, NULL},
};
