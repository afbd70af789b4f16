/* SPDX-License-Identifier: MIT */
/* batch_norm and batch_norm_backward: a whole call each, outputs included. NotImplemented means
 * that nothing was done, and that the caller has to go another way. */
#include "binding/activation_arg.h"
#include "binding/norm_call.h"

enum { VECTORS = 6 }; /* mean, var, weight, bias, grad_weight, grad_bias */

/* Give the job its vectors, from `memory` or from the statistics. */
static void place_vectors(const osw_call *call, osw_norm_job *job, bool backward, double *memory)
{
    const int64_t channels = job->norm.channels;
    const bool given = call->objects[STATISTICS];
    job->mean = given ? (double *)call->tensors[STATISTICS].data : memory;
    job->var = given ? job->mean + channels : memory + channels;
    if (!backward && !job->training) {
        osw_norm_read(call, RUNNING_MEAN, job->mean);
        osw_norm_read(call, RUNNING_VAR, job->var);
    }
    job->weight = osw_norm_read(call, WEIGHT, memory + 2 * channels);
    job->bias = osw_norm_read(call, BIAS, memory + 3 * channels);
    if (call->objects[GRAD_WEIGHT] || call->objects[GRAD_BIAS]) {
        job->grad_weight = memory + 4 * channels;
        job->grad_bias = memory + 5 * channels;
    }
}

/* What is written channel by channel; `memory` is free but for mean and var. */
static void write_vectors(const osw_call *call, const osw_norm_job *job, bool backward,
                          double *memory)
{
    if (backward) {
        osw_norm_write(call, GRAD_WEIGHT, job->grad_weight);
        osw_norm_write(call, GRAD_BIAS, job->grad_bias);
    } else if (job->training && job->moves && call->objects[RUNNING_MEAN]) {
        double *mean = osw_norm_read(call, RUNNING_MEAN, memory + 2 * job->norm.channels);
        double *var = osw_norm_read(call, RUNNING_VAR, memory + 3 * job->norm.channels);
        osw_norm_move(job, mean, var);
        osw_norm_write(call, RUNNING_MEAN, mean);
        osw_norm_write(call, RUNNING_VAR, var);
    }
}

/* The sums over no values. */
static int write_zeros(const osw_call *call)
{
    double *zeros = PyMem_Calloc((size_t)call->tensors[INPUT].size[1] + 1, sizeof *zeros);
    if (!zeros) {
        PyErr_NoMemory();
        return -1;
    }
    osw_norm_write(call, GRAD_WEIGHT, zeros);
    osw_norm_write(call, GRAD_BIAS, zeros);
    PyMem_Free(zeros);
    return 0;
}

static int run(const osw_call *call, osw_norm_job *job, bool backward)
{
    const osw_tensor *x = &call->tensors[INPUT];
    if (osw_call_unchanged(call) != 0)
        return -1;
    if (x->numel == 0)
        return write_zeros(call);
    if (!osw_norm_choose_form(call, job))
        return -1;
    const int64_t scratch = osw_norm_prepare(job), vectors = VECTORS * job->norm.channels;
    double *memory = osw_room((size_t)(scratch + vectors) * sizeof *memory);
    if (!memory)
        return -1;
    place_vectors(call, job, backward, memory);
    osw_norm_choose(job, backward, osw_norm_calls);
    const osw_running running = osw_run_begin(call->name, x->numel * x->itemsize > OSW_GRAIN_BYTES);
    (backward ? osw_norm_backward : osw_norm_forward)(job, memory + vectors);
    osw_run_end(running);
    write_vectors(call, job, backward, memory);
    PyMem_Free(memory);
    return 0;
}

/* training, a bool; eps; activation, a name or None. */
static int read_options(const osw_call *call, osw_norm_job *job, PyObject *training, PyObject *eps,
                        PyObject *activation)
{
    if (!PyBool_Check(training)) {
        PyErr_Format(PyExc_TypeError, "%s: training must be bool, got %R", call->name, training);
        return -1;
    }
    if (osw_activation_arg(activation, call->name, &job->norm.activation) != 0)
        return -1;
    job->training = training == Py_True;
    return osw_float_arg(eps, &job->eps);
}

/* Tensors by their roles; those from `optional` on may be None. */
static int parse_tensors(osw_call *call, PyObject *const *args, const osw_norm_role *roles,
                         int count, int optional)
{
    for (int i = 0; i < count; i++)
        if ((i < optional || args[i] != Py_None) && osw_call_tensor(call, roles[i], args[i]) != 0)
            return -1;
    return 0;
}

static bool requires_grad(PyObject *tensor)
{
    PyObject *answer = tensor == Py_None ? NULL : PyObject_GetAttrString(tensor, "requires_grad");
    const bool yes = answer == Py_True;
    Py_XDECREF(answer);
    PyErr_Clear();
    return yes;
}

/* What a forward returns. */
typedef enum osw_result {
    FRESH,  /* a new output */
    OVER,   /* the input, overwritten */
    TRACED, /* (new output, new statistics) */
    RESULT_COUNT
} osw_result;

enum { F_TRAINING, F_MOMENTUM, F_EPS, F_ACTIVATION, F_TENSORS };
enum { F_INPUT = F_TENSORS, F_MEAN, F_VAR, F_WEIGHT, F_BIAS, F_RESULT, F_GRAPH, F_COUNT };

/* Options, tensors and their checks. */
static int parse_forward(osw_call *call, osw_norm_job *job, PyObject *const *args,
                         osw_result result)
{
    static const osw_norm_role roles[] = {INPUT, RUNNING_MEAN, RUNNING_VAR, WEIGHT, BIAS};
    if (read_options(call, job, args[F_TRAINING], args[F_EPS], args[F_ACTIVATION]) != 0)
        return -1;
    job->moves = result != TRACED || args[F_MOMENTUM] != Py_None;
    if (job->moves && osw_float_arg(args[F_MOMENTUM], &job->momentum) != 0)
        return -1;
    call->plain = result != TRACED;
    if (parse_tensors(call, args + F_TENSORS, roles, 5, 1) != 0 || osw_norm_check(call, job) != 0 ||
        osw_norm_check_statistics(call, job) != 0)
        return -1;
    if (requires_grad(args[F_MEAN]) || requires_grad(args[F_VAR]))
        return osw_norm_fail(call, RUNNING_MEAN, "and running_var must not require gradients", 1);
    return 0;
}

static int make_results(osw_call *call, osw_result result)
{
    const osw_tensor *x = &call->tensors[INPUT];
    const int64_t size[2] = {2, x->size[1]};
    /* As in torch, what fits both formats, by one pixel or channel, gives a contiguous output. */
    const bool last = osw_suggests_channels_last(x), contiguous = osw_is_dense(x, 0);
    if (result == OVER) {
        call->objects[OUTPUT] = call->objects[INPUT];
        call->tensors[OUTPUT] = *x;
        return osw_no_overlap(x) && !(last && contiguous) ? 0 : -1;
    }
    if (osw_call_make(call, OUTPUT, INPUT, OSW_SAME_DTYPE, x->ndim, x->size, last && !contiguous) !=
        0)
        return -1;
    return result == FRESH ? 0
                           : osw_call_make(call, STATISTICS, INPUT, OSW_FLOAT64, 2, size, false);
}

static PyObject *results_of(const osw_call *call, osw_result result)
{
    return result == TRACED ? PyTuple_Pack(2, call->made[OUTPUT], call->made[STATISTICS])
                            : Py_NewRef(call->objects[OUTPUT]);
}

OSW_ENTRY(batch_norm)
{
    osw_call call = {.name = "batch_norm", .roles = osw_norm_roles};
    osw_norm_job job = {.training = false};
    PyObject *results = NULL;
    if (!osw_expect(call.name, nargs, F_COUNT))
        return NULL;
    const long result = PyLong_AsLong(args[F_RESULT]);
    if (result < 0 || result >= RESULT_COUNT) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "%s: unknown result %ld", call.name, result);
        return NULL;
    }
    if (parse_forward(&call, &job, args, (osw_result)result) == 0) {
        if (args[F_GRAPH] == Py_True &&
            (requires_grad(args[F_INPUT]) || requires_grad(args[F_WEIGHT]) ||
             requires_grad(args[F_BIAS])))
            Py_RETURN_FALSE;
        if (make_results(&call, (osw_result)result) == 0 && run(&call, &job, false) == 0)
            results = results_of(&call, (osw_result)result);
    }
    return osw_call_end(&call, results);
}

enum { B_TRAINING, B_EPS, B_ACTIVATION, B_NEEDED, B_TENSORS };
enum { B_GRAD = B_TENSORS, B_INPUT, B_STATISTICS, B_WEIGHT, B_BIAS, B_PLAIN, B_COUNT };

OSW_ENTRY(batch_norm_backward)
{
    static const osw_norm_role roles[] = {GRAD_OUTPUT, INPUT, STATISTICS, WEIGHT, BIAS};
    osw_call call = {.name = "batch_norm_backward", .roles = osw_norm_roles};
    osw_norm_job job = {.training = false};
    if (!osw_expect(call.name, nargs, B_COUNT))
        return NULL;
    if (!PyTuple_Check(args[B_NEEDED]) || PyTuple_Size(args[B_NEEDED]) != 3) {
        PyErr_Format(PyExc_TypeError, "%s: expected a tuple of 3 bools, got %R", call.name,
                     args[B_NEEDED]);
        return NULL;
    }
    call.plain = args[B_PLAIN] == Py_True;
    const bool done =
        read_options(&call, &job, args[B_TRAINING], args[B_EPS], args[B_ACTIVATION]) == 0 &&
        parse_tensors(&call, args + B_TENSORS, roles, 5, 3) == 0 &&
        osw_norm_check(&call, &job) == 0 && osw_norm_make_gradients(&call, args[B_NEEDED]) == 0 &&
        run(&call, &job, true) == 0;
    return osw_call_end(&call, done ? osw_norm_gradients(&call) : NULL);
}

OSW_ENTRY_COUNTS(norm_variants, osw_norm_calls, OSW_NORM_VARIANTS(OSW_VARIANT_3))

PyMethodDef osw_norm_methods[] = {
    OSW_ENTRY_LINE(
        batch_norm,
        "batch_norm(training, momentum, eps, activation, input, running_mean, running_var, weight, "
        "bias, result, graph) -> result 0: a new output, 1: the input, overwritten, 2: a new "
        "output "
        "and the statistics; 0 and 1 are for plain tensors. False if a graph is wanted and a "
        "tensor requires a gradient; NotImplemented if a tensor is not plain or must be dense "
        "first. Momentum None, with result 2, leaves running statistics alone."),
    OSW_ENTRY_LINE(
        batch_norm_backward,
        "batch_norm_backward(training, eps, activation, needed, grad_output, input, statistics, "
        "weight, bias, plain) -> the gradients of input, weight and bias, None if not needed; "
        "NotImplemented if a tensor must be dense first or, with plain, is not plain."),
    OSW_ENTRY_COUNTS_LINE(norm_variants),
    {NULL, NULL, 0, NULL},
};
