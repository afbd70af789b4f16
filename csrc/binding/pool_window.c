/* SPDX-License-Identifier: MIT */
#include "binding/pool_window.h"

#include "binding/torch_names.h"
#include "pool/window.h"

/* The sides that were read, as dims of the pool: the last ones; others are of one tap. */
static void set_dims(osw_pool_call *pool_call)
{
    const int missing = OSW_POOL_DIMS - pool_call->spatial;
    pool_call->has_window = true;
    for (int i = 0; i < OSW_POOL_DIMS; i++) {
        osw_pool_dim *dim = &pool_call->pool.dims[i];
        *dim = (osw_pool_dim){1, 1, 1, 1, 0, 1};
        if (i < missing)
            continue;
        dim->kernel = pool_call->sides[W_KERNEL][i - missing];
        dim->stride = pool_call->sides[W_STRIDE][i - missing];
        dim->padding = pool_call->sides[W_PADDING][i - missing];
        dim->dilation = pool_call->sides[W_DILATION][i - missing];
    }
}

static int check_padding(const osw_call *call)
{
    const osw_pool_call *pool_call = call->job;
    for (int i = 0; i < pool_call->spatial; i++) {
        const int64_t padding = pool_call->sides[W_PADDING][i];
        if (padding > pool_call->sides[W_KERNEL][i] / 2)
            return osw_pool_fail(call, "padding must be at most half of the kernel", padding);
    }
    return 0;
}

int osw_pool_read_window(osw_call *call, PyObject *const *window, bool dilated,
                         PyObject *channel_step)
{
    static const char *const names[] = {"kernel", "stride", "padding", "dilation"};
    osw_pool_call *pool_call = call->job;
    PyObject *kernel = window[W_KERNEL];
    pool_call->spatial = PyTuple_Check(kernel) ? (int)PyTuple_Size(kernel) : 0;
    if (pool_call->spatial < 1 || pool_call->spatial > OSW_POOL_DIMS)
        return osw_raise(PyExc_TypeError, "%s: kernel must be a tuple of 1 to 3 ints, got %R",
                         call->name, kernel);
    for (int i = 0; i < OSW_POOL_DIMS; i++)
        pool_call->sides[W_DILATION][i] = 1;
    for (int i = 0; i < (dilated ? W_COUNT : W_DILATION); i++)
        if (osw_ints_arg(call->name, names[i], window[i], pool_call->spatial, i != W_PADDING,
                         INT32_MAX, pool_call->sides[i]) != 0)
            return -1;
    if (check_padding(call) != 0)
        return -1;
    set_dims(pool_call);
    return channel_step ? osw_int_arg(call->name, "channel_step", channel_step, 1, INT64_MAX,
                                      &pool_call->pool.channel_step)
                        : 0;
}

int osw_pool_read_plain_window(osw_call *call, bool volumes, PyObject *const *window, bool dilated)
{
    osw_pool_call *pool_call = call->job;
    pool_call->spatial = volumes ? 3 : 2;
    for (int i = 0; i < W_COUNT; i++) {
        const bool as_kernel = i == W_STRIDE && window[i] == Py_None;
        if (i == W_DILATION && !dilated)
            pool_call->sides[i][0] = pool_call->sides[i][1] = pool_call->sides[i][2] = 1;
        else if (!osw_plain_sides(window[as_kernel ? W_KERNEL : i], pool_call->spatial,
                                  i != W_PADDING, pool_call->sides[i]))
            return -1;
    }
    return check_padding(call);
}

static bool drop_depth(osw_pool_call *pool_call)
{
    int64_t (*sides)[OSW_POOL_DIMS] = pool_call->sides;
    if (sides[W_KERNEL][0] != 1)
        return false;
    pool_call->pool.channel_step = sides[W_STRIDE][0];
    pool_call->spatial--;
    for (int i = 0; i < W_COUNT; i++) {
        sides[i][0] = sides[i][1];
        sides[i][1] = sides[i][2];
    }
    return true;
}

bool osw_autocast_converts(const osw_tensor *t, bool volumes)
{
    return volumes && t->itemsize == 2 && !osw_plain_eager(true);
}

int osw_pool_check_plain(osw_call *call)
{
    osw_pool_call *pool_call = call->job;
    const osw_tensor *t = &call->tensors[INPUT];
    const bool volumes = pool_call->spatial == 3, slices = volumes && t->ndim == 4;
    if (t->numel == 0 || !osw_pool_supports(pool_call->operation, t) ||
        osw_autocast_converts(t, volumes) ||
        (t->ndim != pool_call->spatial + 2 && !(slices && drop_depth(pool_call))))
        return -1;
    set_dims(pool_call);
    return 0;
}

/* The sizes that a window gives the input of the call, all at least 1 but the batch. */
static int set_output_size(const osw_call *call)
{
    osw_pool_call *pool_call = call->job;
    osw_pool *pool = &pool_call->pool;
    const osw_tensor *input = &call->tensors[INPUT];
    int64_t *size = pool_call->size;
    if (input->ndim != pool_call->spatial + 2)
        return osw_pool_fail(call, "expected (N, C, *) with the spatial dimensions of the kernel",
                             input->ndim);
    pool->channel_step = osw_pool_bounded_step(pool->channel_step, input->size[1]);
    pool_call->ndim = input->ndim;
    size[0] = input->size[0];
    size[1] = osw_ceil_div(input->size[1], pool->channel_step);
    for (int i = 0; i < pool_call->spatial; i++) {
        osw_pool_dim *dim = &pool->dims[OSW_POOL_DIMS - pool_call->spatial + i];
        dim->input = input->size[2 + i];
        size[2 + i] = osw_pool_output_size(dim, pool_call->ceil_mode);
        if (size[2 + i] < 1)
            return osw_pool_fail(call, "no window fits an input of this size", dim->input);
    }
    return 0;
}

int osw_pool_read_size(osw_call *call, PyObject *tuple, int ndim)
{
    osw_pool_call *pool_call = call->job;
    pool_call->ndim = ndim;
    if (PyTuple_Check(tuple) && PyTuple_Size(tuple) == ndim)
        return osw_ints_arg(call->name, "the size", tuple, ndim, 0, INT64_MAX, pool_call->size);
    return osw_fail(call->name, "expected %d sizes of a tensor, got %R", ndim, tuple);
}

int osw_pool_described(const osw_call *call, PyObject *tuple, int length, PyObject **items)
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != length)
        return osw_raise(PyExc_TypeError, "%s: expected a tuple of %d arguments, got %R",
                         call->name, length, tuple);
    for (int i = 0; i < length; i++)
        items[i] = PyTuple_GetItem(tuple, i);
    return 0;
}

bool osw_pool_is_last(PyObject *format)
{
    return format != osw_torch(OSW_TORCH_CONTIGUOUS);
}

/* Without a window, the size that was read is one of a tensor of as many dimensions. */
static int check_ndim(const osw_call *call, int role)
{
    const osw_pool_call *pool_call = call->job;
    const int ndim = call->tensors[role].ndim;
    return pool_call->has_window || ndim == pool_call->ndim
               ? 0
               : osw_pool_fail(call, "tensor and size must have the same dimensions", ndim);
}

int osw_pool_make(osw_call *call)
{
    osw_pool_call *pool_call = call->job;
    const bool last = osw_suggests_channels_last(&call->tensors[INPUT]);
    const bool byte = pool_call->has_window && osw_pool_fits_byte(&pool_call->pool);
    if (check_ndim(call, INPUT) != 0 || (pool_call->has_window && set_output_size(call) != 0) ||
        osw_call_make(call, OUTPUT, INPUT, OSW_SAME_DTYPE, pool_call->ndim, pool_call->size,
                      last) != 0)
        return -1;
    return pool_call->trains ? osw_call_make(call, OFFSETS, INPUT, byte ? OSW_UINT8 : OSW_INT32,
                                             pool_call->ndim, pool_call->size, last)
                             : 0;
}

int osw_pool_make_gradient(osw_call *call)
{
    const osw_pool_call *pool_call = call->job;
    return check_ndim(call, GRAD_OUTPUT) == 0
               ? osw_call_make(call, GRAD_INPUT, GRAD_OUTPUT, OSW_SAME_DTYPE, pool_call->ndim,
                               pool_call->size, pool_call->channels_last)
               : -1;
}

PyObject *osw_pool_sides(const osw_call *call, int kind)
{
    const osw_pool_call *pool_call = call->job;
    return osw_tuple_of(pool_call->spatial, pool_call->sides[kind]);
}

PyObject *osw_pool_input_size(const osw_call *call)
{
    return osw_tuple_of(call->tensors[INPUT].ndim, call->tensors[INPUT].size);
}

PyObject *osw_pool_format(const osw_call *call)
{
    const osw_tensor *t = &call->tensors[INPUT];
    return osw_memory_format(t->ndim, osw_suggests_channels_last(t));
}
