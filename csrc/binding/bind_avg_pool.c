/* SPDX-License-Identifier: MIT */
/* avg_pool and avg_pool_backward, like those of bind_max_pool.c. */
#include "binding/pool_window.h"
#include "pool/window.h"

/* What both directions are told: kernel, stride, padding, ceil_mode, count_include_pad, divisor or
 * None, channel_step. */
enum { G_CEIL_MODE = W_DILATION, G_INCLUDE_PAD, G_DIVISOR, G_STEP, G_COUNT };

/* The kernel sides' product, which bounds every divisor, must be an int64: an int64 pool would
 * divide by what is left of it, perhaps by 0. */
static int check_area(const osw_call *call)
{
    const osw_pool_dim *dims = ((osw_pool_call *)call->job)->pool.dims;
    int64_t area;
    if (!__builtin_mul_overflow(dims[HEIGHT].kernel, dims[WIDTH].kernel, &area) &&
        !__builtin_mul_overflow(area, dims[DEPTH].kernel, &area))
        return 0;
    return osw_pool_fail(call, "kernel has more than 2^63 taps, one side", dims[WIDTH].kernel);
}

static int read_geometry(osw_call *call, PyObject *const *geometry)
{
    osw_pool_call *pool_call = call->job;
    osw_pool *pool = &pool_call->pool;
    pool->count_include_pad = geometry[G_INCLUDE_PAD] == Py_True;
    pool_call->ceil_mode = geometry[G_CEIL_MODE] == Py_True;
    if (osw_pool_read_window(call, geometry, false, geometry[G_STEP]) != 0 || check_area(call) != 0)
        return -1;
    if (geometry[G_DIVISOR] == Py_None)
        return 0;
    if (osw_int_arg(call->name, "divisor", geometry[G_DIVISOR], INT64_MIN, INT64_MAX,
                    &pool->divisor) != 0)
        return -1;
    return pool->divisor ? 0 : osw_pool_fail(call, "divisor must not be zero", 0);
}

static int read_forward(osw_call *call)
{
    return read_geometry(call, call->args + 1);
}

OSW_POOL_ENTRY(avg_pool, false, OP_avg, .name = "avg_pool", .arguments = 1 + G_COUNT,
               .numbers = read_forward, OSW_POOL_FORWARD(0),
               OSW_STEPS(osw_pool_make, osw_pool_execute))

enum { P_VOLUMES, P_INPUT, P_GEOMETRY, P_TRAINS = P_GEOMETRY + G_STEP, P_COUNT };

/* The divisor: None, or an int that one may divide by. */
static int read_plain(osw_call *call)
{
    osw_pool *pool = &((osw_pool_call *)call->job)->pool;
    PyObject *const *geometry = call->args + P_GEOMETRY, *divisor = geometry[G_DIVISOR];
    PyObject *ceil_mode = geometry[G_CEIL_MODE], *include_pad = geometry[G_INCLUDE_PAD];
    ((osw_pool_call *)call->job)->ceil_mode = ceil_mode == Py_True;
    pool->count_include_pad = include_pad == Py_True;
    if (!PyBool_Check(ceil_mode) || !PyBool_Check(include_pad) ||
        (divisor != Py_None &&
         !(osw_exact_int(divisor, INT64_MIN, INT64_MAX, &pool->divisor) && pool->divisor)))
        return -1;
    return osw_pool_read_plain_window(call, call->args[P_VOLUMES] == Py_True, geometry, false);
}

/* torch's rule for volumes alone: padding does not help an input that is smaller than the window.
 */
static int check_plain(osw_call *call)
{
    const osw_pool_call *pool_call = call->job;
    const osw_tensor *t = &call->tensors[INPUT];
    if (osw_pool_check_plain(call) != 0)
        return -1;
    for (int i = 0; call->args[P_VOLUMES] == Py_True && i < pool_call->spatial; i++)
        if (t->size[t->ndim - pool_call->spatial + i] < pool_call->sides[W_KERNEL][i])
            return -1;
    return check_area(call);
}

/* If it trains (output, (geometry, input size, memory format)). */
static PyObject *give(const osw_call *call)
{
    PyObject *const *geometry = call->args + P_GEOMETRY;
    if (call->args[P_TRAINS] != Py_True)
        return osw_call_made(call, OUTPUT);
    return Py_BuildValue("(O((NNNOOOL)NO))", call->made[OUTPUT], osw_pool_sides(call, W_KERNEL),
                         osw_pool_sides(call, W_STRIDE), osw_pool_sides(call, W_PADDING),
                         geometry[G_CEIL_MODE], geometry[G_INCLUDE_PAD], geometry[G_DIVISOR],
                         (long long)((osw_pool_call *)call->job)->pool.channel_step,
                         osw_pool_input_size(call), osw_pool_format(call));
}

OSW_POOL_ENTRY(plain_avg_pool, true, OP_avg, .name = "avg_pool", .arguments = P_COUNT,
               .numbers = read_plain, OSW_READS(P_INPUT, 1, INPUT),
               OSW_STEPS(check_plain, osw_pool_make, osw_pool_execute), .give = give)

/* Geometry and the size of the input. */
static int read_gradient(osw_call *call, PyObject *const *geometry, PyObject *input_size,
                         bool channels_last)
{
    osw_pool_call *pool_call = call->job;
    pool_call->channels_last = channels_last;
    return read_geometry(call, geometry) == 0
               ? osw_pool_read_size(call, input_size, pool_call->spatial + 2)
               : -1;
}

enum { B_SIZE = 1, B_GEOMETRY, B_LAST = B_GEOMETRY + G_COUNT, B_COUNT };

static int read_backward(osw_call *call)
{
    PyObject *const *args = call->args;
    return read_gradient(call, args + B_GEOMETRY, args[B_SIZE], args[B_LAST] == Py_True);
}

OSW_POOL_ENTRY(avg_pool_backward, false, OP_avg_backward, .name = "avg_pool_backward",
               .arguments = B_COUNT, .numbers = read_backward, OSW_POOL_BACKWARD(0, 1, GRAD_OUTPUT))

enum { D_GEOMETRY, D_SIZE, D_FORMAT, D_GRADIENT, D_COUNT };

static int read_described(osw_call *call)
{
    PyObject *geometry[G_COUNT], *const *args = call->args;
    return osw_pool_described(call, args[D_GEOMETRY], G_COUNT, geometry) == 0
               ? read_gradient(call, geometry, args[D_SIZE], osw_pool_is_last(args[D_FORMAT]))
               : -1;
}

OSW_POOL_ENTRY(plain_avg_pool_backward, true, OP_avg_backward, .name = "avg_pool_backward",
               .arguments = D_COUNT, .numbers = read_described,
               OSW_POOL_BACKWARD(D_GRADIENT, 1, GRAD_OUTPUT))

PyMethodDef osw_avg_pool_methods[] = {
    OSW_ENTRY_LINE(
        avg_pool,
        "avg_pool(input, kernel, stride, padding, ceil_mode, count_include_pad, divisor or None, "
        "channel_step) -> output; NotImplemented if the input must be dense first"),
    OSW_ENTRY_LINE(
        plain_avg_pool,
        "plain_avg_pool(volumes, input, kernel_size, stride, padding, ceil_mode, "
        "count_include_pad, divisor_override, trains) -> output; if it trains (output, ((kernel, "
        "stride, padding, ceil_mode, count_include_pad, divisor_override, channel step), input "
        "size, memory format)); NotImplemented if the call is not an ordinary one"),
    OSW_ENTRY_LINE(avg_pool_backward,
                   "avg_pool_backward(grad_output, input_size, kernel, stride, padding, ceil_mode, "
                   "count_include_pad, divisor or None, channel_step, channels_last) -> "
                   "grad_input; NotImplemented if grad_output must be dense first"),
    OSW_ENTRY_LINE(
        plain_avg_pool_backward,
        "plain_avg_pool_backward(*described, grad_output) -> grad_input, or NotImplemented"),
    {NULL, NULL, 0, NULL},
};
