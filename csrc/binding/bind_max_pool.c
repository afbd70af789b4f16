/* SPDX-License-Identifier: MIT */
/* max_pool and max_pool_backward: a whole call each, the tensors that it makes included; and
 * describe_max_pool, what the public functions would work out in Python, for ordinary calls. */
#include "binding/pool_call.h"
#include "binding/tensor_new.h"
#include "binding/tensor_plain.h"
#include "pool/window.h"

/* Windows along one dimension, 0 where none fits. With `ceil_mode` the last one may reach past the
 * right padding, but has to start inside the input or the left padding. */
static int64_t output_size(const osw_pool_dim *dim, bool ceil_mode)
{
    const int64_t room = dim->input + 2 * dim->padding - dim->dilation * (dim->kernel - 1) - 1 +
                         (ceil_mode ? dim->stride - 1 : 0);
    if (room < 0)
        return 0;
    const int64_t count = room / dim->stride + 1;
    return ceil_mode && (count - 1) * dim->stride >= dim->input + dim->padding ? count - 1 : count;
}

/* The input's sizes into the dims, and those of the output; -1 with an exception. */
static int size_output(osw_pool_call *call, bool ceil_mode, int64_t *size)
{
    const osw_tensor *input = &call->tensors[INPUT];
    if (input->ndim != call->spatial + 2)
        return osw_pool_fail(call, "expected (N, C, *) with the spatial dimensions of the kernel",
                             input->ndim);
    if (call->pool.channel_step < 1)
        return osw_pool_fail(call, "channel_step must be positive", call->pool.channel_step);
    size[0] = input->size[0];
    size[1] = osw_ceil_div(input->size[1], call->pool.channel_step);
    for (int i = 0; i < call->spatial; i++) {
        osw_pool_dim *dim = &call->pool.dims[OSW_POOL_DIMS - call->spatial + i];
        dim->input = input->size[2 + i];
        size[2 + i] = output_size(dim, ceil_mode);
        if (size[2 + i] < 1)
            return osw_pool_fail(call, "no window fits an input of this size", dim->input);
    }
    return 0;
}

/* A new dense tensor at `role`, of the input's memory format. */
static PyObject *new_tensor(osw_pool_call *call, osw_role role, PyObject *like, const int64_t *size,
                            bool channels_last)
{
    if (!like)
        return NULL;
    call->given[role] = true;
    return osw_tensor_new(like, call->name, call->spatial + 2, size, channels_last,
                          &call->tensors[role]);
}

static PyObject *offsets_donor(const osw_pool_call *call)
{
    static PyObject *bytes, *ints;
    return osw_pool_fits_byte(&call->pool) ? osw_tensor_donor(&bytes, "byte")
                                           : osw_tensor_donor(&ints, "int");
}

/* `made` where the kernel has run, else what stands for it. */
static PyObject *run_into(osw_pool_call *call, PyObject *made)
{
    PyObject *done = made ? osw_pool_execute(call) : NULL;
    if (done != Py_None) {
        Py_XDECREF(made);
        return done;
    }
    Py_DECREF(done);
    return made;
}

enum { INPUT_AT, KERNEL, STRIDE, PADDING, DILATION, CEIL_MODE, STEP, WANTED, ARGUMENTS };

static PyObject *max_pool(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("max_pool", OP_max, false);
    int64_t size[OSW_MAX_DIMS];
    if (!osw_pool_expect(call.name, nargs, ARGUMENTS) ||
        osw_pool_tensor_arg(&call, INPUT, args[INPUT_AT]) != 0 ||
        osw_pool_window_args(&call, args[KERNEL], args[STRIDE], args[PADDING], args[DILATION]) !=
            0 ||
        osw_pool_int(args[STEP], &call.pool.channel_step) != 0 ||
        size_output(&call, args[CEIL_MODE] == Py_True, size) != 0)
        return NULL;
    const bool channels_last = osw_suggests_channels_last(&call.tensors[INPUT]);
    PyObject *output = new_tensor(&call, OUTPUT, args[INPUT_AT], size, channels_last);
    PyObject *offsets = NULL, *both = NULL;
    if (output && args[WANTED] == Py_True)
        offsets = new_tensor(&call, OFFSETS, offsets_donor(&call), size, channels_last);
    if (offsets || (output && args[WANTED] != Py_True))
        both = PyTuple_Pack(2, output, offsets ? offsets : Py_None);
    Py_XDECREF(output);
    Py_XDECREF(offsets);
    return run_into(&call, both);
}

enum { GRAD_AT, OFFSETS_AT, SIZE_AT, GEOMETRY_AT, STEP_AT = GEOMETRY_AT + 4, LAST_AT, B_ARGUMENTS };

/* A tuple of spatial + 2 sizes of a tensor that can be. */
static int parse_size(const osw_pool_call *call, PyObject *tuple, int64_t *size)
{
    int64_t room = INT64_MAX;
    bool fits = PyTuple_Check(tuple) && PyTuple_Size(tuple) == call->spatial + 2;
    for (int i = 0; fits && i < call->spatial + 2; i++) {
        if (osw_pool_int(PyTuple_GetItem(tuple, i), &size[i]) != 0)
            return -1;
        fits = size[i] >= 0 && size[i] <= room;
        room /= osw_max(size[i], 1);
    }
    if (fits)
        return 0;
    PyErr_Format(PyExc_RuntimeError, "%s: input size must be %d sizes of a tensor, got %R",
                 call->name, call->spatial + 2, tuple);
    return -1;
}

static PyObject *max_pool_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_pool_call call = osw_pool_begin("max_pool_backward", OP_max_backward, true);
    int64_t size[OSW_MAX_DIMS];
    PyObject *const *geometry = args + GEOMETRY_AT;
    if (!osw_pool_expect(call.name, nargs, B_ARGUMENTS) ||
        osw_pool_tensor_arg(&call, GRAD_OUTPUT, args[GRAD_AT]) != 0 ||
        osw_pool_tensor_arg(&call, OFFSETS, args[OFFSETS_AT]) != 0 ||
        osw_pool_window_args(&call, geometry[0], geometry[1], geometry[2], geometry[3]) != 0 ||
        osw_pool_int(args[STEP_AT], &call.pool.channel_step) != 0 ||
        parse_size(&call, args[SIZE_AT], size) != 0)
        return NULL;
    const bool channels_last = args[LAST_AT] == Py_True;
    return run_into(&call, new_tensor(&call, GRAD_INPUT, args[GRAD_AT], size, channels_last));
}

/* A positive or, with `zero`, non-negative int, no bool; below 2^31. */
static bool plain_int(PyObject *object, bool zero, int64_t *value)
{
    if (!PyLong_CheckExact(object))
        return false;
    *value = PyLong_AsLongLong(object);
    PyErr_Clear();
    return *value >= (zero ? 0 : 1) && *value <= INT32_MAX;
}

/* An int for all dimensions, or a tuple or list of one each, as a tuple; NULL, perhaps with an
 * exception, for all else. */
static PyObject *plain_sides(PyObject *object, int spatial, bool zero, int64_t *sides)
{
    PyObject *tuple = NULL;
    if (PyLong_CheckExact(object))
        tuple = spatial == 2 ? PyTuple_Pack(2, object, object)
                             : PyTuple_Pack(3, object, object, object);
    else if (PyTuple_CheckExact(object) || PyList_CheckExact(object))
        tuple = PySequence_Tuple(object);
    bool plain = tuple && PyTuple_Size(tuple) == spatial;
    for (int i = 0; plain && i < spatial; i++)
        plain = plain_int(PyTuple_GetItem(tuple, i), zero, &sides[i]);
    if (!plain)
        Py_CLEAR(tuple);
    return tuple;
}

/* A window as the arguments of a public function give it. */
typedef struct osw_described {
    int spatial;
    int64_t sides[4][OSW_POOL_DIMS]; /* kernel, stride, padding, dilation */
    PyObject *tuples[4];
} osw_described;

static bool read_window(osw_described *window, PyObject *const *args)
{
    bool plain = true;
    for (int i = 0; i < 4; i++) {
        PyObject *object = i == 1 && args[1] == Py_None ? args[0] : args[i];
        window->tuples[i] =
            plain ? plain_sides(object, window->spatial, i == 2, window->sides[i]) : NULL;
        plain = plain && window->tuples[i];
    }
    for (int i = 0; plain && i < window->spatial; i++)
        plain = window->sides[2][i] <= window->sides[0][i] / 2;
    return plain;
}

/* Drop the depth of a window that is one slice deep; its stride is the channel step. */
static bool drop_depth(osw_described *window, int64_t *channel_step)
{
    if (window->sides[0][0] != 1)
        return false;
    *channel_step = window->sides[1][0];
    window->spatial--;
    for (int i = 0; i < 4; i++) {
        PyObject *rest = PyTuple_GetSlice(window->tuples[i], 1, 3);
        Py_DECREF(window->tuples[i]);
        window->tuples[i] = rest;
        if (!rest)
            return false;
        window->sides[i][0] = window->sides[i][1];
        window->sides[i][1] = window->sides[i][2];
    }
    return true;
}

/* At least one window in every dimension of a tensor that has elements. */
static bool has_output(const osw_described *window, const osw_tensor *t, bool ceil_mode)
{
    bool fits = t->ndim == window->spatial + 2 && t->numel > 0;
    for (int i = 0; fits && i < window->spatial; i++) {
        const osw_pool_dim dim = {
            .input = t->size[2 + i],
            .kernel = window->sides[0][i],
            .stride = window->sides[1][i],
            .padding = window->sides[2][i],
            .dilation = window->sides[3][i],
        };
        fits = output_size(&dim, ceil_mode) > 0;
    }
    return fits;
}

/* ((kernel, stride, padding, dilation, ceil_mode), channel step, input size, memory format) */
static PyObject *pack(const osw_described *window, const osw_tensor *t, PyObject *ceil_mode,
                      int64_t channel_step)
{
    PyObject *format = osw_memory_format(t->ndim, osw_suggests_channels_last(t));
    PyObject *size = osw_tuple_of(t->ndim, t->size);
    PyObject *packed = NULL;
    if (format && size)
        packed =
            Py_BuildValue("((OOOOO)LOO)", window->tuples[0], window->tuples[1], window->tuples[2],
                          window->tuples[3], ceil_mode, (long long)channel_step, size, format);
    Py_XDECREF(size);
    return packed;
}

/* Autocast computes volumes of 16-bit floats in float32. */
static bool autocast_converts(const osw_tensor *t, bool volumes)
{
    return volumes && t->itemsize == 2 && !osw_plain_eager(true);
}

enum { D_VOLUMES, D_INPUT, D_WINDOW, D_CEIL_MODE = D_WINDOW + 4, D_ARGUMENTS };

static PyObject *describe_max_pool(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (!osw_pool_expect("describe_max_pool", nargs, D_ARGUMENTS))
        return NULL;
    const bool volumes = args[D_VOLUMES] == Py_True;
    osw_described window = {.spatial = volumes ? 3 : 2};
    osw_tensor t;
    int64_t channel_step = 1;
    PyObject *described = NULL, *ceil_mode = args[D_CEIL_MODE];
    if (osw_tensor_plain(args[D_INPUT], &t) && osw_pool_supports(OP_max, &t) &&
        !autocast_converts(&t, volumes) && (ceil_mode == Py_True || ceil_mode == Py_False) &&
        read_window(&window, args + D_WINDOW) &&
        (window.spatial + 2 == t.ndim ||
         (volumes && t.ndim == 4 && drop_depth(&window, &channel_step))) &&
        has_output(&window, &t, ceil_mode == Py_True))
        described = pack(&window, &t, ceil_mode, channel_step);
    for (int i = 0; i < 4; i++)
        Py_XDECREF(window.tuples[i]);
    if (described || PyErr_Occurred())
        return described;
    Py_RETURN_NONE;
}

PyMethodDef osw_max_pool_methods[] = {
    {"max_pool", OSW_METHOD(max_pool), METH_FASTCALL,
     "max_pool(input, kernel, stride, padding, dilation, ceil_mode, channel_step, with_offsets) -> "
     "(output, offsets or None); NotImplemented where the input must be dense first"},
    {"max_pool_backward", OSW_METHOD(max_pool_backward), METH_FASTCALL,
     "max_pool_backward(grad_output, offsets, input_size, kernel, stride, padding, dilation, "
     "channel_step, channels_last) -> grad_input; NotImplemented where a tensor must be dense "
     "first"},
    {"describe_max_pool", OSW_METHOD(describe_max_pool), METH_FASTCALL,
     "describe_max_pool(volumes, input, kernel_size, stride, padding, dilation, ceil_mode) -> "
     "((kernel, stride, padding, dilation, ceil_mode), channel step, input size, memory format), "
     "or None where the call is not an ordinary one"},
    {NULL, NULL, 0, NULL},
};
