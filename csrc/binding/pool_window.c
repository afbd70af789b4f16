/* SPDX-License-Identifier: MIT */
#include "binding/pool_window.h"

#include "pool/window.h"

/* A tuple of call->spatial ints, each within [low, 2^31), into one field of the dims; dimensions
 * that the tensor does not have keep their values. */
int osw_pool_sizes(const osw_pool_call *call, PyObject *tuple, const char *what, int64_t low,
                   int64_t *first_field)
{
    int64_t values[OSW_POOL_DIMS];
    if (osw_ints_arg(call->base.name, what, tuple, call->spatial, low, INT32_MAX, values) != 0)
        return -1;
    const size_t stride = sizeof(osw_pool_dim) / sizeof(int64_t);
    for (int i = 0; i < call->spatial; i++)
        first_field[(size_t)(OSW_POOL_DIMS - call->spatial + i) * stride] = values[i];
    return 0;
}

int osw_pool_window_args(osw_pool_call *call, PyObject *const *window, bool dilated,
                         PyObject *channel_step)
{
    PyObject *kernel = window[W_KERNEL];
    osw_pool_dim *dims = call->pool.dims;
    call->has_window = true;
    call->spatial = PyTuple_Check(kernel) ? (int)PyTuple_Size(kernel) : 0;
    if (call->spatial < 1 || call->spatial > OSW_POOL_DIMS) {
        PyErr_Format(PyExc_TypeError, "%s: kernel must be a tuple of 1 to 3 ints, got %R",
                     call->base.name, kernel);
        return -1;
    }
    for (int i = 0; i < OSW_POOL_DIMS; i++)
        dims[i] = (osw_pool_dim){1, 1, 1, 1, 0, 1};
    if (osw_pool_sizes(call, kernel, "kernel", 1, &dims->kernel) != 0 ||
        osw_pool_sizes(call, window[W_STRIDE], "stride", 1, &dims->stride) != 0 ||
        osw_pool_sizes(call, window[W_PADDING], "padding", 0, &dims->padding) != 0 ||
        (dilated && osw_pool_sizes(call, window[W_DILATION], "dilation", 1, &dims->dilation) != 0))
        return -1;
    for (int i = 0; i < OSW_POOL_DIMS; i++)
        if (dims[i].padding > dims[i].kernel / 2)
            return osw_pool_fail(call, "padding must be at most half of the kernel",
                                 dims[i].padding);
    return channel_step ? osw_int_arg(call->base.name, "channel_step", channel_step, 1, INT64_MAX,
                                      &call->pool.channel_step)
                        : 0;
}

/* Windows along one dimension, 0 if none fits. With `ceil_mode` the last one may reach past the
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
    const osw_tensor *input = &call->base.tensors[INPUT];
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
        return osw_ints_arg(call->base.name, "the size", tuple, ndim, 0, INT64_MAX, size);
    return osw_fail(call->base.name, "expected %d sizes of a tensor, got %R", ndim, tuple);
}

int osw_pool_described(const osw_pool_call *call, PyObject *tuple, int length, PyObject **items)
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != length) {
        PyErr_Format(PyExc_TypeError, "%s: expected a tuple of %d arguments, got %R",
                     call->base.name, length, tuple);
        return -1;
    }
    for (int i = 0; i < length; i++)
        items[i] = PyTuple_GetItem(tuple, i);
    return 0;
}

int osw_pool_make(osw_pool_call *call, const int64_t *size, bool with_offsets)
{
    const osw_tensor *t = &call->base.tensors[INPUT];
    const bool last = osw_suggests_channels_last(t);
    const bool byte = call->has_window && osw_pool_fits_byte(&call->pool);
    if (osw_call_make(&call->base, OUTPUT, INPUT, OSW_SAME_DTYPE, t->ndim, size, last) != 0)
        return -1;
    return with_offsets ? osw_call_make(&call->base, OFFSETS, INPUT, byte ? OSW_UINT8 : OSW_INT32,
                                        t->ndim, size, last)
                        : 0;
}

PyObject *osw_pool_gradient(osw_pool_call *call, int ndim, const int64_t *size, bool channels_last)
{
    const bool done = osw_call_make(&call->base, GRAD_INPUT, GRAD_OUTPUT, OSW_SAME_DTYPE, ndim,
                                    size, channels_last) == 0 &&
                      osw_pool_execute(call) == 0;
    return osw_call_end(&call->base, done ? osw_call_made(&call->base, GRAD_INPUT) : NULL);
}

bool osw_autocast_converts(const osw_tensor *t, bool volumes)
{
    return volumes && t->itemsize == 2 && !osw_plain_eager(true);
}

bool osw_plain_sides(PyObject *object, int count, int64_t low, int64_t *sides)
{
    return (PyLong_CheckExact(object) || PyTuple_CheckExact(object) || PyList_CheckExact(object)) &&
           osw_exact_sides(object, count, false, low, sides);
}

static bool read_sides(osw_window *window, PyObject *const *arguments, bool dilated)
{
    for (int i = 0; i < (dilated ? W_COUNT : W_DILATION); i++) {
        const bool as_kernel = i == W_STRIDE && arguments[i] == Py_None;
        if (!osw_plain_sides(arguments[as_kernel ? W_KERNEL : i], window->spatial, i != W_PADDING,
                             window->sides[i]))
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
    const osw_tensor *t = &call->base.tensors[INPUT];
    *window = (osw_window){.spatial = volumes ? 3 : 2, .channel_step = 1};
    if (osw_call_tensor(&call->base, INPUT, input) != 0 || !osw_pool_supports(call->operation, t) ||
        t->numel == 0 || osw_autocast_converts(t, volumes) ||
        !read_sides(window, arguments, dilated))
        return false;
    const bool slices = volumes && t->ndim == 4;
    if (t->ndim != window->spatial + 2 && !(slices && drop_depth(window)))
        return false;
    set_dims(window, call);
    return true;
}
