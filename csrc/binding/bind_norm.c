/* SPDX-License-Identifier: MIT */
/* batch_norm and batch_norm_backward: a whole call each, outputs included. NotImplemented means
 * that nothing was done, and that the caller has to go another way. */
#include "binding/activation_arg.h"
#include "binding/norm_call.h"

#include <string.h>

/* What a forward returns. */
typedef enum osw_result {
    FRESH,  /* a new output */
    OVER,   /* the input, overwritten */
    TRACED, /* (new output, new statistics) */
    RESULT_COUNT
} osw_result;

typedef struct osw_norm_call {
    osw_norm_job job;
    osw_result result; /* of a forward */
} osw_norm_call;

/* The sums over no values. */
static int write_zeros(osw_call *call)
{
    const size_t bytes = (size_t)call->tensors[INPUT].size[1] * sizeof(double);
    double *zeros = osw_call_room(call, bytes);
    if (!zeros)
        return -1;
    memset(zeros, 0, bytes);
    osw_norm_write_gradients(call, zeros, zeros);
    return 0;
}

static int run(osw_call *call)
{
    osw_norm_job *job = &((osw_norm_call *)call->job)->job;
    if (call->tensors[INPUT].numel == 0)
        return write_zeros(call);
    if (!osw_norm_choose_form(call, job))
        return -1;
    double *scratch = osw_norm_begin(call, job);
    if (!scratch)
        return -1;
    osw_norm_choose(job, call->backward, osw_norm_calls);
    OSW_RUN(call->name, osw_norm_is_large(call),
            (call->backward ? osw_norm_backward : osw_norm_forward)(job, scratch));
    osw_norm_end(call, job, scratch);
    return 0;
}

enum { F_TRAINING, F_MOMENTUM, F_EPS, F_ACTIVATION, F_INPUT, F_MEAN, F_VAR, F_WEIGHT, F_BIAS };
enum { F_RESULT = F_BIAS + 1, F_GRAPH, F_COUNT };

static int read_forward(osw_call *call)
{
    osw_norm_call *norm = call->job;
    PyObject *const *args = call->args;
    const long result = PyLong_AsLong(args[F_RESULT]);
    if (result < 0 || result >= RESULT_COUNT)
        return PyErr_Occurred()
                   ? -1
                   : osw_raise(PyExc_ValueError, "%s: unknown result %ld", call->name, result);
    if (osw_norm_read_options(call, &norm->job, args[F_TRAINING], args[F_EPS],
                              args[F_ACTIVATION]) != 0)
        return -1;
    norm->result = (osw_result)result;
    call->plain = norm->result != TRACED;
    norm->job.moves = call->plain || args[F_MOMENTUM] != Py_None;
    return norm->job.moves ? osw_float_arg(args[F_MOMENTUM], &norm->job.momentum) : 0;
}

/* Ends the call with False if a graph is wanted and a tensor requires a gradient. Plain calls
 * without values are declined: torch runs those of every kind of tensor, so that a checkpoint, in
 * which the kind changes, records the same graph twice. It refuses those without channels. */
static int check_forward(osw_call *call)
{
    osw_norm_call *norm = call->job;
    PyObject *const *args = call->args;
    if (osw_norm_check(call, &norm->job) != 0 || osw_norm_check_given(call, &norm->job) != 0)
        return -1;
    if (call->plain && call->tensors[INPUT].numel == 0 && call->tensors[INPUT].size[1] > 0)
        return -1;
    if (osw_norm_requires_grad(args[F_MEAN]) || osw_norm_requires_grad(args[F_VAR]))
        return osw_norm_fail(call, RUNNING_MEAN, "and running_var must not require gradients", 1);
    if (args[F_GRAPH] != Py_True ||
        !(osw_norm_requires_grad(args[F_INPUT]) || osw_norm_requires_grad(args[F_WEIGHT]) ||
          osw_norm_requires_grad(args[F_BIAS])))
        return 0;
    call->result = Py_NewRef(Py_False);
    return -1;
}

/* The memory format of the output: batch_norm_format of ops/_layout.py. */
static bool gives_channels_last(const osw_tensor *x)
{
    return !osw_is_dense(x, 0) && (osw_is_channels_last(x) || osw_suggests_channels_last(x));
}

/* The memory format of the gradient of x: batch_norm_gradient_format of ops/_layout.py. */
static bool gradient_is_channels_last(const osw_tensor *grad, const osw_tensor *x)
{
    const bool suggested = osw_suggests_channels_last(x);
    const bool fits = osw_is_dense(grad, 0) || osw_is_channels_last(grad);
    return fits && osw_suggests_channels_last(grad) == suggested ? gives_channels_last(x)
                                                                 : suggested;
}

static int make_results(osw_call *call)
{
    const osw_result result = ((osw_norm_call *)call->job)->result;
    const osw_tensor *x = &call->tensors[INPUT];
    const int64_t size[2] = {2, x->size[1]};
    const bool last = gives_channels_last(x);
    if (result == OVER) {
        call->objects[OUTPUT] = call->objects[INPUT];
        call->tensors[OUTPUT] = *x;
        return osw_no_overlap(x) && last == osw_suggests_channels_last(x) ? 0 : -1;
    }
    if (osw_norm_make_like(call, INPUT, OUTPUT, last) != 0)
        return -1;
    return result == FRESH ? 0
                           : osw_call_make(call, STATISTICS, INPUT, OSW_FLOAT64, 2, size, false);
}

static PyObject *give(const osw_call *call)
{
    return ((osw_norm_call *)call->job)->result == TRACED ? osw_call_tuple(call, OUTPUT, 2)
                                                          : Py_NewRef(call->objects[OUTPUT]);
}

OSW_ENTRY_OF(batch_norm, false, (osw_norm_call){0}, .name = "batch_norm", .roles = osw_norm_roles,
             .arguments = F_COUNT, .numbers = read_forward,
             OSW_READS(F_INPUT, 1, INPUT, RUNNING_MEAN, RUNNING_VAR, WEIGHT, BIAS),
             OSW_STEPS(check_forward, make_results, run), .give = give)

enum { B_TRAINING, B_EPS, B_ACTIVATION, B_NEEDED, B_TENSORS, B_PLAIN = B_TENSORS + 5, B_COUNT };

static int read_backward(osw_call *call)
{
    osw_norm_call *norm = call->job;
    PyObject *const *args = call->args;
    call->plain = args[B_PLAIN] == Py_True;
    return osw_norm_expect_needed(call, args[B_NEEDED]) == 0
               ? osw_norm_read_options(call, &norm->job, args[B_TRAINING], args[B_EPS],
                                       args[B_ACTIVATION])
               : -1;
}

static int check_backward(osw_call *call)
{
    const int64_t size[] = {2, call->tensors[INPUT].size[1]};
    if (osw_norm_check(call, &((osw_norm_call *)call->job)->job) != 0)
        return -1;
    return size[1] > 0 ? osw_norm_check_statistics(call, 2, size, "(2, C)") : 0;
}

static int make_gradients(osw_call *call)
{
    const osw_tensor *grad = &call->tensors[GRAD_OUTPUT], *x = &call->tensors[INPUT];
    return osw_norm_make_gradients(call, call->args[B_NEEDED], gradient_is_channels_last(grad, x));
}

OSW_ENTRY_OF(batch_norm_backward, false, (osw_norm_call){0}, .name = "batch_norm_backward",
             .roles = osw_norm_roles, .arguments = B_COUNT, .backward = true,
             .numbers = read_backward,
             OSW_READS(B_TENSORS, 3, GRAD_OUTPUT, INPUT, STATISTICS, WEIGHT, BIAS),
             OSW_STEPS(check_backward, make_gradients, run), .result = GRAD_INPUT, .results = 3)

OSW_ENTRY_COUNTS(norm_variants, osw_norm_calls, OSW_NORM_VARIANTS(OSW_VARIANT_3))

PyMethodDef osw_norm_methods[] = {
    OSW_ENTRY_LINE(
        batch_norm,
        "batch_norm(training, momentum, eps, activation, input, running_mean, running_var, weight, "
        "bias, result, graph) -> result 0: a new output, 1: the input, overwritten, 2: a new "
        "output and the statistics; 0 and 1 are for plain tensors. False if a graph is wanted and "
        "a tensor requires a gradient; NotImplemented if a tensor is not plain or must be dense "
        "first. Momentum None, with result 2, leaves running statistics alone."),
    OSW_ENTRY_LINE(
        batch_norm_backward,
        "batch_norm_backward(training, eps, activation, needed, grad_output, input, statistics, "
        "weight, bias, plain) -> the gradients of input, weight and bias, None if not needed; "
        "NotImplemented if a tensor must be dense first or, with plain, is not plain."),
    OSW_ENTRY_COUNTS_LINE(norm_variants),
    {NULL, NULL, 0, NULL},
};
