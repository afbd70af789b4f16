/* SPDX-License-Identifier: MIT */
#include "binding/pool_make.h"

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

int osw_pool_output_size(osw_pool_call *call, bool ceil_mode, int64_t *size)
{
    const osw_tensor *input = &call->tensors[INPUT];
    if (input->ndim != call->spatial + 2)
        return osw_pool_fail(call, "expected (N, C, *) with the spatial dimensions of the kernel",
                             input->ndim);
    call->pool.channel_step = osw_pool_bounded_step(call->pool.channel_step, input->size[1]);
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

int osw_pool_tensor_size(const osw_pool_call *call, PyObject *tuple, int ndim, int64_t *size)
{
    if (PyTuple_Check(tuple) && PyTuple_Size(tuple) == ndim)
        return osw_ints_arg(call->name, "the size", tuple, ndim, 0, INT64_MAX, size);
    PyErr_Format(PyExc_RuntimeError, "%s: expected %d sizes of a tensor, got %R", call->name, ndim,
                 tuple);
    return -1;
}

int osw_pool_described(const osw_pool_call *call, PyObject *tuple, int length, PyObject **items,
                       int wanted)
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != length) {
        PyErr_Format(PyExc_TypeError, "%s: expected a tuple of %d arguments, got %R", call->name,
                     length, tuple);
        return -1;
    }
    for (int i = 0; i < wanted; i++)
        items[i] = PyTuple_GetItem(tuple, i);
    return 0;
}

PyObject *osw_pool_new(osw_pool_call *call, osw_role role, PyObject *like, osw_new_dtype dtype,
                       int ndim, const int64_t *size, bool channels_last)
{
    call->given[role] = true;
    return osw_tensor_new(like, dtype, call->name, ndim, size, channels_last, &call->tensors[role]);
}

PyObject *osw_pool_run_into(osw_pool_call *call, PyObject *made)
{
    PyObject *done = made ? osw_pool_execute(call) : NULL;
    if (done != Py_None) {
        Py_XDECREF(made);
        return done;
    }
    Py_DECREF(done);
    return made;
}

bool osw_autocast_converts(const osw_tensor *t, bool volumes)
{
    return volumes && t->itemsize == 2 && !osw_plain_eager(true);
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
        plain = osw_exact_int(PyTuple_GetItem(tuple, i), zero ? 0 : 1, INT32_MAX, &sides[i]);
    if (!plain)
        Py_CLEAR(tuple);
    return tuple;
}

static bool read_sides(osw_window *window, PyObject *const *arguments, bool dilated)
{
    for (int i = 0; i < (dilated ? W_COUNT : W_DILATION); i++) {
        const bool as_kernel = i == W_STRIDE && arguments[i] == Py_None;
        window->tuples[i] = plain_sides(arguments[as_kernel ? W_KERNEL : i], window->spatial,
                                        i == W_PADDING, window->sides[i]);
        if (!window->tuples[i])
            return false;
    }
    for (int i = 0; i < window->spatial; i++) {
        if (!dilated)
            window->sides[W_DILATION][i] = 1;
        if (window->sides[W_PADDING][i] > window->sides[W_KERNEL][i] / 2)
            return false;
    }
    return true;
}

/* Drop the depth of a window that is one slice deep; its stride is the channel step. */
static bool drop_depth(osw_window *window)
{
    if (window->sides[W_KERNEL][0] != 1)
        return false;
    window->channel_step = window->sides[W_STRIDE][0];
    window->spatial--;
    for (int i = 0; i < W_COUNT; i++) {
        PyObject *rest = window->tuples[i] ? PyTuple_GetSlice(window->tuples[i], 1, 3) : NULL;
        if (window->tuples[i] && !rest)
            return false;
        Py_XDECREF(window->tuples[i]);
        window->tuples[i] = rest;
        window->sides[i][0] = window->sides[i][1];
        window->sides[i][1] = window->sides[i][2];
    }
    return true;
}

static void set_dims(const osw_window *window, osw_pool_call *call)
{
    call->has_window = true;
    call->spatial = window->spatial;
    call->pool.channel_step = window->channel_step;
    for (int i = 0; i < OSW_POOL_DIMS; i++) {
        const int of_window = i - (OSW_POOL_DIMS - window->spatial);
        call->pool.dims[i] = (osw_pool_dim){1, 1, 1, 1, 0, 1};
        if (of_window < 0)
            continue;
        call->pool.dims[i].kernel = window->sides[W_KERNEL][of_window];
        call->pool.dims[i].stride = window->sides[W_STRIDE][of_window];
        call->pool.dims[i].padding = window->sides[W_PADDING][of_window];
        call->pool.dims[i].dilation = window->sides[W_DILATION][of_window];
    }
}

bool osw_window_read(osw_window *window, osw_pool_call *call, bool volumes, PyObject *input,
                     PyObject *const *arguments, bool dilated)
{
    osw_tensor *t = &call->tensors[INPUT];
    *window = (osw_window){.spatial = volumes ? 3 : 2, .channel_step = 1};
    if (!osw_tensor_plain(input, t) || !osw_pool_supports(call->operation, t) || t->numel == 0 ||
        osw_autocast_converts(t, volumes) || !read_sides(window, arguments, dilated))
        return false;
    const bool slices = volumes && t->ndim == 4;
    if (t->ndim != window->spatial + 2 && !(slices && drop_depth(window)))
        return false;
    call->given[INPUT] = true;
    set_dims(window, call);
    return true;
}

void osw_window_clear(osw_window *window)
{
    for (int i = 0; i < W_COUNT; i++)
        Py_CLEAR(window->tuples[i]);
}
