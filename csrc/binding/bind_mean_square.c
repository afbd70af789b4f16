/* SPDX-License-Identifier: MIT */
/* plain_over_mean_square and its backward: a whole call each, of ordinary tensors that are dense in
 * one of both memory formats. They decline all else. */
#include "binding/norm_call.h"
#include "norm/mean_square.h"

/* Elements behind each other, image after image. */
static bool is_dense(const osw_tensor *t)
{
    return osw_is_dense(t, 0) || osw_is_pixels(t);
}

static bool same_order(const osw_tensor *a, const osw_tensor *b)
{
    return osw_same_sizes(a, b, -1) && (osw_is_dense(a, 0) ? osw_is_dense(b, 0) : osw_is_pixels(b));
}

static int describe(osw_call *call)
{
    osw_norm_job *job = &((osw_mean_square_job *)call->job)->norm;
    const osw_tensor *x = &call->tensors[INPUT], *grad = &call->tensors[GRAD_OUTPUT];
    job->dtype = osw_dtype_of(x);
    if (x->ndim < 1 || x->numel == 0 || !is_dense(x) || job->dtype > OSW_F16 ||
        job->dtype == OSW_F64)
        return -1;
    if (call->objects[GRAD_OUTPUT] && (!osw_same_dtype(grad, x) || !same_order(grad, x)))
        return -1;
    job->form = OSW_NORM_PLANES;
    job->norm.channels = 1;
    job->norm.images = x->size[0];
    job->norm.positions = x->numel / x->size[0];
    return 0;
}

static osw_norm_tensor images_of(const osw_call *call, int role)
{
    const osw_norm *norm = &((osw_mean_square_job *)call->job)->norm.norm;
    return (osw_norm_tensor){call->tensors[role].data, norm->positions};
}

static int make(osw_call *call)
{
    osw_norm *norm = &((osw_mean_square_job *)call->job)->norm.norm;
    const bool last = !osw_is_dense(&call->tensors[INPUT], 0);
    const osw_norm_role made = call->backward ? GRAD_INPUT : OUTPUT;
    if (osw_norm_make_like(call, INPUT, made, last) != 0)
        return -1;
    norm->x = images_of(call, INPUT);
    if (call->backward)
        norm->dy = images_of(call, GRAD_OUTPUT);
    *(call->backward ? &norm->dx : &norm->y) = images_of(call, made);
    return 0;
}

static int run(osw_call *call)
{
    osw_mean_square_job *job = call->job;
    const int64_t scratch = osw_norm_prepare(&job->norm);
    double *memory = osw_call_room(call, (size_t)scratch * sizeof *memory);
    if (!memory)
        return -1;
    osw_mean_square_choose(job, call->backward, osw_norm_calls);
    bool written;
    OSW_RUN(call->name, osw_norm_is_large(call),
            written =
                (call->backward ? osw_mean_square_backward : osw_mean_square_forward)(job, memory));
    return written ? 0 : -1;
}

enum { F_INPUT, F_TRAINS, F_COUNT };

/* The output; if it trains, also the mean square. */
static PyObject *give(const osw_call *call)
{
    const osw_mean_square_job *job = call->job;
    return call->args[F_TRAINS] == Py_True
               ? Py_BuildValue("(Od)", call->made[OUTPUT], job->mean_square)
               : osw_call_made(call, OUTPUT);
}

OSW_ENTRY_OF(plain_over_mean_square, true, (osw_mean_square_job){.mean_square = 0},
             .name = "over_mean_square", .roles = osw_norm_roles, .arguments = F_COUNT,
             OSW_READS(F_INPUT, 1, INPUT), OSW_STEPS(describe, make, run), .give = give)

enum { B_GRAD, B_INPUT, B_MEAN_SQUARE, B_COUNT };

static int read_mean_square(osw_call *call)
{
    return osw_float_arg(call->args[B_MEAN_SQUARE],
                         &((osw_mean_square_job *)call->job)->mean_square);
}

OSW_ENTRY_OF(plain_over_mean_square_backward, true, (osw_mean_square_job){.mean_square = 0},
             .name = "over_mean_square_backward", .roles = osw_norm_roles, .arguments = B_COUNT,
             .backward = true, .numbers = read_mean_square,
             OSW_READS(B_GRAD, 2, GRAD_OUTPUT, INPUT), OSW_STEPS(describe, make, run),
             .result = GRAD_INPUT, .results = 1)

PyMethodDef osw_mean_square_methods[] = {
    OSW_ENTRY_LINE(plain_over_mean_square,
                   "plain_over_mean_square(input, trains) -> output; if it trains (output, mean "
                   "square); NotImplemented if the call is not an ordinary one"),
    OSW_ENTRY_LINE(plain_over_mean_square_backward,
                   "plain_over_mean_square_backward(grad_output, input, mean_square) -> the "
                   "gradient of the input, or NotImplemented"),
    {NULL, NULL, 0, NULL},
};
