/* SPDX-License-Identifier: MIT */
/* adaptive_max_pool and the maximum of whole planes with torch.amax's gradient, each with its
 * backward, like those of bind_max_pool.c. */
#include "binding/pool_window.h"

/* A tuple of 3 to 5 sizes, (N, C, *). */
static int read_size(osw_call *call, PyObject *tuple)
{
    const Py_ssize_t length = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : 0;
    const Py_ssize_t most = 2 + OSW_POOL_DIMS;
    return osw_pool_read_size(call, tuple, (int)(length < 3 ? 3 : length > most ? most : length));
}

static int read_forward(osw_call *call)
{
    ((osw_pool_call *)call->job)->trains = call->args[2] == Py_True;
    return read_size(call, call->args[1]);
}

OSW_POOL_ENTRY(adaptive_max_pool, false, OP_adaptive_max, .name = "adaptive_max_pool",
               .arguments = 3, .numbers = read_forward, OSW_POOL_FORWARD(0),
               OSW_STEPS(osw_pool_make, osw_pool_execute), .results = 2)

/* An ordinary input of planes or volumes. */
static bool is_ordinary(const osw_tensor *t, int spatial)
{
    return t->ndim == spatial + 2 && t->numel > 0 && osw_pool_supports(OP_adaptive_max, t) &&
           !osw_autocast_converts(t, spatial == 3);
}

enum { P_SPATIAL, P_INPUT, P_SIZE, P_TRAINS, P_COUNT };

static int read_plain(osw_call *call)
{
    osw_pool_call *pool_call = call->job;
    int64_t spatial;
    if (!osw_exact_int(call->args[P_SPATIAL], 1, OSW_POOL_DIMS, &spatial) ||
        !osw_plain_sides(call->args[P_SIZE], (int)spatial, 1, pool_call->size + 2))
        return -1;
    pool_call->ndim = (int)spatial + 2;
    pool_call->trains = call->args[P_TRAINS] == Py_True;
    return 0;
}

static int check_plain(osw_call *call)
{
    osw_pool_call *pool_call = call->job;
    const osw_tensor *t = &call->tensors[INPUT];
    pool_call->size[0] = t->size[0];
    pool_call->size[1] = t->size[1];
    return is_ordinary(t, pool_call->ndim - 2) ? 0 : -1;
}

/* If it trains (output, index, (input size, memory format)). */
static PyObject *give(const osw_call *call)
{
    if (!((osw_pool_call *)call->job)->trains)
        return osw_call_made(call, OUTPUT);
    return Py_BuildValue("(OO(NO))", call->made[OUTPUT], call->made[OFFSETS],
                         osw_pool_input_size(call), osw_pool_format(call));
}

OSW_POOL_ENTRY(plain_adaptive_max_pool, true, OP_adaptive_max, .name = "adaptive_max_pool",
               .arguments = P_COUNT, .numbers = read_plain, OSW_READS(P_INPUT, 1, INPUT),
               OSW_STEPS(check_plain, osw_pool_make, osw_pool_execute), .give = give)

static int read_backward(osw_call *call)
{
    ((osw_pool_call *)call->job)->channels_last = call->args[3] == Py_True;
    return read_size(call, call->args[2]);
}

OSW_POOL_ENTRY(adaptive_max_pool_backward, false, OP_adaptive_max_backward,
               .name = "adaptive_max_pool_backward", .arguments = 4, .numbers = read_backward,
               OSW_POOL_BACKWARD(0, 2, GRAD_OUTPUT, OFFSETS))

static int read_described(osw_call *call)
{
    ((osw_pool_call *)call->job)->channels_last = osw_pool_is_last(call->args[1]);
    return read_size(call, call->args[0]);
}

OSW_POOL_ENTRY(plain_adaptive_max_pool_backward, true, OP_adaptive_max_backward,
               .name = "adaptive_max_pool_backward", .arguments = 4, .numbers = read_described,
               OSW_POOL_BACKWARD(2, 2, OFFSETS, GRAD_OUTPUT))

/* (N, C), or (N, C, 1, ...), as a tensor of the dimensions of the input. */
static int as_reduced(const osw_call *call, int role)
{
    const osw_tensor *like = &call->tensors[INPUT];
    osw_tensor *t = &call->tensors[role];
    if (t->ndim < 2 || like->ndim < 2 || t->size[0] != like->size[0] ||
        t->size[1] != like->size[1] || t->numel != t->size[0] * t->size[1])
        return osw_pool_fail(call, "output and grad_output must be (N, C) or (N, C, 1, ...)",
                             t->numel);
    for (int i = 2; i < like->ndim; i++)
        t->size[i] = t->stride[i] = 1;
    t->ndim = like->ndim;
    return 0;
}

/* That the input has planes or volumes. */
static int check_input(const osw_call *call)
{
    const int ndim = call->tensors[INPUT].ndim;
    return ndim < 3 || ndim > 2 + OSW_POOL_DIMS ? osw_pool_fail(call, "expected (N, C, *)", ndim)
                                                : 0;
}

static int make_reduced(osw_call *call, int role, osw_new_dtype dtype, int ndim)
{
    const osw_tensor *x = &call->tensors[INPUT];
    const int64_t size[] = {x->size[0], x->size[1], 1, 1};
    return osw_call_make(call, role, INPUT, dtype, ndim, size, false) == 0 ? as_reduced(call, role)
                                                                           : -1;
}

static int make_amax(osw_call *call)
{
    return check_input(call) == 0 ? make_reduced(call, OUTPUT, OSW_SAME_DTYPE, 2) : -1;
}

OSW_POOL_ENTRY(amax, false, OP_adaptive_max, .name = "amax", .arguments = 1, OSW_POOL_FORWARD(0),
               OSW_STEPS(make_amax, osw_pool_execute))

static int read_plain_amax(osw_call *call)
{
    osw_pool_call *pool_call = call->job;
    pool_call->trains = call->args[2] == Py_True;
    pool_call->operation = pool_call->trains ? OP_amax : OP_adaptive_max;
    return PyBool_Check(call->args[0]) ? 0 : -1;
}

/* (N, C) or, with `keepdim`, (N, C, 1, 1), and positions if it trains. */
static int make_plain_amax(osw_call *call)
{
    if (!is_ordinary(&call->tensors[INPUT], 2) ||
        make_reduced(call, OUTPUT, OSW_SAME_DTYPE, call->args[0] == Py_True ? 4 : 2) != 0)
        return -1;
    return ((osw_pool_call *)call->job)->trains ? make_reduced(call, OFFSETS, OSW_INT32, 2) : 0;
}

static PyObject *give_amax(const osw_call *call)
{
    return ((osw_pool_call *)call->job)->trains ? osw_call_tuple(call, OUTPUT, 2)
                                                : osw_call_made(call, OUTPUT);
}

OSW_POOL_ENTRY(plain_amax, true, OP_adaptive_max, .name = "amax", .arguments = 3,
               .numbers = read_plain_amax, OSW_READS(1, 1, INPUT),
               OSW_STEPS(make_plain_amax, osw_pool_execute), .give = give_amax)

static int make_amax_gradient(osw_call *call)
{
    const osw_tensor *x = &call->tensors[INPUT];
    if (check_input(call) != 0)
        return -1;
    for (int role = OUTPUT; role <= GRAD_OUTPUT; role++)
        if (call->objects[role] && as_reduced(call, role) != 0)
            return -1;
    return osw_call_make(call, GRAD_INPUT, INPUT, OSW_SAME_DTYPE, x->ndim, x->size,
                         osw_suggests_channels_last(x));
}

OSW_POOL_ENTRY(amax_backward, false, OP_amax_backward, .name = "amax_backward", .arguments = 3,
               OSW_READS(0, 3, INPUT, OUTPUT, GRAD_OUTPUT),
               OSW_STEPS(make_amax_gradient, osw_pool_execute), .result = GRAD_INPUT)

OSW_POOL_ENTRY(plain_amax_backward, true, OP_amax_backward, .name = "amax_backward", .arguments = 4,
               OSW_READS(0, 4, INPUT, OUTPUT, OFFSETS, GRAD_OUTPUT),
               OSW_STEPS(make_amax_gradient, osw_pool_execute), .result = GRAD_INPUT)

PyMethodDef osw_adaptive_pool_methods[] = {
    OSW_ENTRY_LINE(adaptive_max_pool,
                   "adaptive_max_pool(input, (N, C, *output_size), with_index) -> (output, index "
                   "or None); NotImplemented if the input must be dense first"),
    OSW_ENTRY_LINE(plain_adaptive_max_pool,
                   "plain_adaptive_max_pool(spatial, input, output_size, trains) -> output; if it "
                   "trains (output, index, (input size, memory format)); NotImplemented if the "
                   "call is not an ordinary one"),
    OSW_ENTRY_LINE(adaptive_max_pool_backward,
                   "adaptive_max_pool_backward(grad_output, index, input_size, channels_last) -> "
                   "grad_input; NotImplemented if a tensor must be dense first"),
    OSW_ENTRY_LINE(plain_adaptive_max_pool_backward,
                   "plain_adaptive_max_pool_backward(input_size, memory_format, index, "
                   "grad_output) -> grad_input, or NotImplemented"),
    OSW_ENTRY_LINE(amax, "amax(input) -> maximum of every plane, (N, C); NotImplemented if the "
                         "input must be dense first"),
    OSW_ENTRY_LINE(plain_amax,
                   "plain_amax(keepdim, input, trains) -> output, (N, C) or (N, C, 1, 1); if it "
                   "trains (output, positions); NotImplemented if the call is not an ordinary one"),
    OSW_ENTRY_LINE(amax_backward, "amax_backward(input, output, grad_output) -> grad_input; "
                                  "NotImplemented if a tensor must be dense first"),
    OSW_ENTRY_LINE(plain_amax_backward, "plain_amax_backward(input, output, positions, "
                                        "grad_output) -> grad_input, or NotImplemented"),
    {NULL, NULL, 0, NULL},
};
