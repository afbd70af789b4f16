/* SPDX-License-Identifier: MIT */
/* max_pool and max_pool_backward: a whole call each, the tensors that it makes included. The plain
 * ones are those of the public functions, for ordinary calls. max_pool_indices: indices from
 * offsets. pool_variants(): the kernels of all pools and how often each was called. */
#include "binding/pool_window.h"
#include "pool/window.h"

enum { A_WINDOW = 1, A_CEIL_MODE = A_WINDOW + W_COUNT, A_STEP, A_WITH_OFFSETS, A_COUNT };

static int read_forward(osw_call *call)
{
    osw_pool_call *pool_call = call->job;
    pool_call->ceil_mode = call->args[A_CEIL_MODE] == Py_True;
    pool_call->trains = call->args[A_WITH_OFFSETS] == Py_True;
    return osw_pool_read_window(call, call->args + A_WINDOW, true, call->args[A_STEP]);
}

OSW_POOL_ENTRY(max_pool, false, OP_max, .name = "max_pool", .arguments = A_COUNT,
               .numbers = read_forward, OSW_POOL_FORWARD(0),
               OSW_STEPS(osw_pool_make, osw_pool_execute), .results = 2)

enum { P_VOLUMES, P_INPUT, P_WINDOW, P_CEIL_MODE = P_WINDOW + W_COUNT, P_TRAINS, P_COUNT };

static int read_plain(osw_call *call)
{
    osw_pool_call *pool_call = call->job;
    PyObject *const *args = call->args;
    pool_call->ceil_mode = args[P_CEIL_MODE] == Py_True;
    pool_call->trains = args[P_TRAINS] == Py_True;
    return PyBool_Check(args[P_CEIL_MODE])
               ? osw_pool_read_plain_window(call, args[P_VOLUMES] == Py_True, args + P_WINDOW, true)
               : -1;
}

/* If it trains (output, offsets, described). */
static PyObject *give(const osw_call *call)
{
    const osw_pool_call *pool_call = call->job;
    if (!pool_call->trains)
        return osw_call_made(call, OUTPUT);
    return Py_BuildValue("(OO((NNNNO)LNO))", call->made[OUTPUT], call->made[OFFSETS],
                         osw_pool_sides(call, W_KERNEL), osw_pool_sides(call, W_STRIDE),
                         osw_pool_sides(call, W_PADDING), osw_pool_sides(call, W_DILATION),
                         call->args[P_CEIL_MODE], (long long)pool_call->pool.channel_step,
                         osw_pool_input_size(call), osw_pool_format(call));
}

OSW_POOL_ENTRY(plain_max_pool, true, OP_max, .name = "max_pool", .arguments = P_COUNT,
               .numbers = read_plain, OSW_READS(P_INPUT, 1, INPUT),
               OSW_STEPS(osw_pool_check_plain, osw_pool_make, osw_pool_execute), .give = give)

/* Window, channel step and the size of the input. */
static int read_gradient(osw_call *call, PyObject *const *window, PyObject *channel_step,
                         PyObject *input_size, bool channels_last)
{
    osw_pool_call *pool_call = call->job;
    pool_call->channels_last = channels_last;
    return osw_pool_read_window(call, window, true, channel_step) == 0
               ? osw_pool_read_size(call, input_size, pool_call->spatial + 2)
               : -1;
}

enum { B_SIZE = 2, B_WINDOW, B_STEP = B_WINDOW + W_COUNT, B_LAST, B_COUNT };

static int read_backward(osw_call *call)
{
    PyObject *const *args = call->args;
    return read_gradient(call, args + B_WINDOW, args[B_STEP], args[B_SIZE],
                         args[B_LAST] == Py_True);
}

OSW_POOL_ENTRY(max_pool_backward, false, OP_max_backward, .name = "max_pool_backward",
               .arguments = B_COUNT, .numbers = read_backward,
               OSW_POOL_BACKWARD(0, 2, GRAD_OUTPUT, OFFSETS))

enum { D_WINDOW, D_STEP, D_SIZE, D_FORMAT, D_OFFSETS, D_GRADIENT, D_COUNT };

static int read_described(osw_call *call)
{
    PyObject *window[W_COUNT + 1], *const *args = call->args;
    return osw_pool_described(call, args[D_WINDOW], W_COUNT + 1, window) == 0
               ? read_gradient(call, window, args[D_STEP], args[D_SIZE],
                               osw_pool_is_last(args[D_FORMAT]))
               : -1;
}

OSW_POOL_ENTRY(plain_max_pool_backward, true, OP_max_backward, .name = "max_pool_backward",
               .arguments = D_COUNT, .numbers = read_described,
               OSW_POOL_BACKWARD(D_OFFSETS, 2, OFFSETS, GRAD_OUTPUT))

enum { I_SIZE = 2, I_WINDOW, I_COUNT = I_WINDOW + W_COUNT };

static int read_indices(osw_call *call)
{
    osw_pool_call *pool_call = call->job;
    if (osw_pool_read_window(call, call->args + I_WINDOW, true, NULL) != 0)
        return -1;
    return osw_ints_arg(call->name, "input size", call->args[I_SIZE], pool_call->spatial, 0,
                        INT32_MAX, pool_call->size);
}

/* The input itself is not needed: a tensor of its size without memory represents it. */
static int check_indices(osw_call *call)
{
    const osw_pool_call *pool_call = call->job;
    const osw_tensor *indices = &call->tensors[OUTPUT];
    osw_tensor *input = &call->tensors[INPUT];
    *input = *indices;
    input->object = NULL;
    for (int i = 0; i < pool_call->spatial && input->ndim == pool_call->spatial + 2; i++)
        input->size[2 + i] = pool_call->size[i];
    if (osw_pool_check(call) != 0)
        return -1;
    if (indices->dtype.code != 0 || indices->dtype.bits != 64)
        return osw_pool_fail(call, "indices must be int64", indices->dtype.bits);
    return osw_no_overlap(indices) ? 0 : osw_fail(call->name, "output overlaps itself");
}

static int write_indices(osw_call *call)
{
    const osw_pool_call *pool_call = call->job;
    const osw_tensor *indices = &call->tensors[OUTPUT];
    const osw_pool *pool = &pool_call->pool;
    if (indices->numel == 0)
        return 0;
    const osw_form form = osw_pool_choose_form(call);
    if (form == FORM_COUNT)
        return -1;
    const int64_t taps =
        pool->dims[DEPTH].kernel * pool->dims[HEIGHT].kernel * pool->dims[WIDTH].kernel;
    int64_t *distance = NULL;
    if (taps <= OSW_POOL_TABLE_TAPS) {
        distance = osw_call_room(call, (size_t)taps * sizeof *distance);
        if (!distance)
            return -1;
        osw_pool_distances(pool, distance, taps);
    }
    osw_pool_indices work = {pool, pool->output, distance, form == FORM_pixels};
    const int64_t bytes = indices->numel * indices->itemsize;
    OSW_RUN(call->name, bytes > OSW_GRAIN_BYTES,
            osw_pool_run_indices(&work, osw_pool_units_of(pool_call, form), bytes));
    return 0;
}

static PyObject *give_none(const osw_call *Py_UNUSED(call))
{
    return Py_NewRef(Py_None);
}

OSW_POOL_ENTRY(max_pool_indices, false, OP_max, .name = "max_pool_indices", .arguments = I_COUNT,
               .numbers = read_indices, OSW_READS(0, 2, OFFSETS, OUTPUT),
               OSW_STEPS(check_indices, write_indices), .give = give_none)

OSW_ENTRY_COUNTS(pool_variants, osw_pool_calls, OSW_POOL_VARIANTS(OSW_VARIANT_3))

PyMethodDef osw_max_pool_methods[] = {
    OSW_ENTRY_LINE(
        max_pool,
        "max_pool(input, kernel, stride, padding, dilation, ceil_mode, channel_step, with_offsets) "
        "-> (output, offsets or None); NotImplemented if the input must be dense first"),
    OSW_ENTRY_LINE(plain_max_pool,
                   "plain_max_pool(volumes, input, kernel_size, stride, padding, dilation, "
                   "ceil_mode, trains) -> output; if it trains (output, offsets, ((kernel, stride, "
                   "padding, dilation, ceil_mode), channel step, input size, memory format)); "
                   "NotImplemented if the call is not an ordinary one"),
    OSW_ENTRY_LINE(max_pool_backward, "max_pool_backward(grad_output, offsets, input_size, kernel, "
                                      "stride, padding, dilation, channel_step, channels_last) -> "
                                      "grad_input; NotImplemented if a tensor must be dense first"),
    OSW_ENTRY_LINE(plain_max_pool_backward, "plain_max_pool_backward(*described, offsets, "
                                            "grad_output) -> grad_input, or NotImplemented"),
    OSW_ENTRY_LINE(
        max_pool_indices,
        "max_pool_indices(offsets, indices, input_size, kernel, stride, padding, dilation)"),
    OSW_ENTRY_COUNTS_LINE(pool_variants),
    {NULL, NULL, 0, NULL},
};
