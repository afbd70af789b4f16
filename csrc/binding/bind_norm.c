/* SPDX-License-Identifier: MIT */
/* batch_norm and batch_norm_backward: a whole call each, outputs included. NotImplemented means
 * that nothing was done, and that the caller has to go another way. */
#include "binding/binding.h"
#include "binding/norm_call.h"
#include "binding/profile.h"
#include "binding/tensor_new.h"
#include "binding/tensor_plain.h"
#include "binding/variant_counts.h"
#include "core/parallel.h"

static uint64_t calls[OSW_NORM_COUNT];

/* running += momentum * (batch - running) for the mean and the unbiased variance; both vectors of
 * `memory` are free. */
static void update_running(const osw_norm_call *call, double *memory)
{
    const osw_norm_job *job = &call->job;
    const int64_t channels = job->norm.channels;
    const double count = (double)(job->norm.images * job->norm.positions), m = call->momentum;
    if (!call->moves || !call->given[RUNNING_MEAN])
        return;
    double *mean = osw_norm_read(call, RUNNING_MEAN, memory);
    double *var = osw_norm_read(call, RUNNING_VAR, memory + channels);
    for (int64_t c = 0; c < channels; c++) {
        mean[c] = (1 - m) * mean[c] + m * job->mean[c];
        var[c] = (1 - m) * var[c] + m * (job->var[c] * count / (count - 1));
    }
    osw_norm_write(call, RUNNING_MEAN, mean);
    osw_norm_write(call, RUNNING_VAR, var);
}

enum { VECTORS = 6 }; /* mean, var, weight, bias, grad_weight, grad_bias */

/* Give the job its vectors, from `memory` or from the statistics. */
static void place_vectors(osw_norm_call *call, bool backward, double *memory)
{
    osw_norm_job *job = &call->job;
    const int64_t channels = job->norm.channels;
    const bool given = call->given[STATISTICS];
    job->mean = given ? (double *)call->tensors[STATISTICS].data : memory;
    job->var = given ? job->mean + channels : memory + channels;
    if (!backward && !job->training) {
        osw_norm_read(call, RUNNING_MEAN, job->mean);
        osw_norm_read(call, RUNNING_VAR, job->var);
    }
    job->weight = osw_norm_read(call, WEIGHT, memory + 2 * channels);
    job->bias = osw_norm_read(call, BIAS, memory + 3 * channels);
    if (call->given[GRAD_WEIGHT] || call->given[GRAD_BIAS]) {
        job->grad_weight = memory + 4 * channels;
        job->grad_bias = memory + 5 * channels;
    }
}

/* The sums over no values. */
static int write_zeros(const osw_norm_call *call)
{
    double *zeros = PyMem_Calloc((size_t)call->tensors[INPUT].size[1] + 1, sizeof *zeros);
    if (!zeros) {
        PyErr_NoMemory();
        return -1;
    }
    osw_norm_write(call, GRAD_WEIGHT, zeros);
    osw_norm_write(call, GRAD_BIAS, zeros);
    PyMem_Free(zeros);
    return 1;
}

/* 1 when done, 0 where the memory of a tensor fits no form of csrc/norm, -1 with an exception. */
static int run(osw_norm_call *call, bool backward)
{
    osw_norm_job *job = &call->job;
    const osw_tensor *x = &call->tensors[INPUT];
    if (x->numel == 0)
        return write_zeros(call);
    if (!osw_norm_choose_form(call))
        return 0;
    const int64_t scratch = osw_norm_prepare(job), vectors = VECTORS * job->norm.channels;
    double *memory = PyMem_Malloc((size_t)(scratch + vectors) * sizeof *memory);
    if (!memory) {
        PyErr_NoMemory();
        return -1;
    }
    place_vectors(call, backward, memory);
    osw_norm_choose(job, backward, calls);
    PyObject *range = osw_profile_begin(call->name);
    PyThreadState *state = x->numel * x->itemsize > OSW_GRAIN_BYTES ? PyEval_SaveThread() : NULL;
    (backward ? osw_norm_backward : osw_norm_forward)(job, memory + vectors);
    if (state)
        PyEval_RestoreThread(state);
    osw_profile_end(range);
    if (backward) {
        osw_norm_write(call, GRAD_WEIGHT, job->grad_weight);
        osw_norm_write(call, GRAD_BIAS, job->grad_bias);
    } else if (job->training) {
        update_running(call, memory + 2 * job->norm.channels);
    }
    PyMem_Free(memory);
    return 1;
}

/* Parse tensors; those from `optional` on may be None. 1 when done, -1 with an exception; with
 * `plain`, 0 for what is not osw_tensor_plain. */
static int parse_tensors(osw_norm_call *call, PyObject *const *args, const osw_norm_role *roles,
                         int count, int optional, bool plain)
{
    for (int i = 0; i < count; i++) {
        osw_tensor *t = &call->tensors[roles[i]];
        if (i >= optional && args[i] == Py_None)
            continue;
        if (plain && !osw_tensor_plain(args[i], t))
            return 0;
        if (!plain && osw_tensor_arg(args[i], call->name, t) != 0)
            return -1;
        call->given[roles[i]] = true;
    }
    return 1;
}

static bool requires_grad(PyObject *tensor)
{
    PyObject *answer = tensor == Py_None ? NULL : PyObject_GetAttrString(tensor, "requires_grad");
    const bool yes = answer == Py_True;
    Py_XDECREF(answer);
    PyErr_Clear();
    return yes;
}

/* A new dense tensor like the one at `role`, which `made` becomes in the call. */
static PyObject *new_like(osw_norm_call *call, osw_norm_role role, PyObject *object,
                          osw_norm_role made)
{
    const osw_tensor *t = &call->tensors[role];
    const bool channels_last = role == INPUT && osw_suggests_channels_last(t);
    call->given[made] = true;
    return osw_tensor_new(object, OSW_SAME_DTYPE, call->name, t->ndim, t->size, channels_last,
                          &call->tensors[made]);
}

/* A new (2, C) float64 tensor. */
static PyObject *new_statistics(osw_norm_call *call, PyObject *like)
{
    const int64_t size[2] = {2, call->tensors[INPUT].size[1]};
    call->given[STATISTICS] = true;
    return osw_tensor_new(like, OSW_FLOAT64, call->name, 2, size, false,
                          &call->tensors[STATISTICS]);
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

/* Options, tensors and their checks: 1, 0 for what is not plain, -1 with an exception. */
static int parse_forward(osw_norm_call *call, PyObject *const *args, osw_result result)
{
    static const osw_norm_role roles[] = {INPUT, RUNNING_MEAN, RUNNING_VAR, WEIGHT, BIAS};
    const int count = sizeof roles / sizeof roles[0];
    if (osw_norm_options(call, args[F_TRAINING], args[F_EPS], args[F_ACTIVATION]) != 0)
        return -1;
    call->moves = result != TRACED || args[F_MOMENTUM] != Py_None;
    if (call->moves && osw_float_arg(args[F_MOMENTUM], &call->momentum) != 0)
        return -1;
    const int plain = parse_tensors(call, args + F_TENSORS, roles, count, 1, result != TRACED);
    if (plain != 1)
        return plain;
    if (osw_norm_check(call) != 0 || osw_norm_check_statistics(call) != 0)
        return -1;
    if (requires_grad(args[F_MEAN]) || requires_grad(args[F_VAR]))
        return osw_norm_fail(call, RUNNING_MEAN, "and running_var must not require gradients", 1);
    return 1;
}

static PyObject *make_results(osw_norm_call *call, PyObject *const *args, osw_result result)
{
    PyObject *output = args[F_INPUT];
    if (result == OVER) {
        Py_INCREF(output);
        call->tensors[OUTPUT] = call->tensors[INPUT];
        call->given[OUTPUT] = true;
        if (osw_no_overlap(&call->tensors[OUTPUT]))
            return output;
        Py_DECREF(output);
        Py_RETURN_NOTIMPLEMENTED;
    }
    output = new_like(call, INPUT, output, OUTPUT);
    if (!output || result == FRESH)
        return output;
    PyObject *statistics = new_statistics(call, args[F_INPUT]);
    PyObject *both = statistics ? PyTuple_Pack(2, output, statistics) : NULL;
    Py_XDECREF(statistics);
    Py_DECREF(output);
    return both;
}

/* `results` where the run is done, else what stands for it. */
static PyObject *run_into(osw_norm_call *call, bool backward, PyObject *results)
{
    if (!results || results == Py_NotImplemented)
        return results;
    const int done = osw_tensors_unchanged(call->name, call->tensors, ROLE_COUNT) == 0
                         ? run(call, backward)
                         : -1;
    if (done == 1)
        return results;
    Py_DECREF(results);
    if (done < 0)
        return NULL;
    Py_RETURN_NOTIMPLEMENTED;
}

static PyObject *batch_norm(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    osw_norm_call call = {.name = "batch_norm"};
    if (!osw_expect(call.name, nargs, F_COUNT))
        return NULL;
    const long result = PyLong_AsLong(args[F_RESULT]);
    if (result < 0 || result >= RESULT_COUNT) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "%s: unknown result %ld", call.name, result);
        return NULL;
    }
    const int parsed = parse_forward(&call, args, (osw_result)result);
    if (parsed < 0)
        return NULL;
    if (parsed == 0)
        Py_RETURN_NOTIMPLEMENTED;
    if (args[F_GRAPH] == Py_True && (requires_grad(args[F_INPUT]) ||
                                     requires_grad(args[F_WEIGHT]) || requires_grad(args[F_BIAS])))
        Py_RETURN_FALSE;
    return run_into(&call, false, make_results(&call, args, (osw_result)result));
}

enum { B_TRAINING, B_EPS, B_ACTIVATION, B_NEEDED, B_TENSORS };
enum { B_GRAD = B_TENSORS, B_INPUT, B_STATISTICS, B_WEIGHT, B_BIAS, B_PLAIN, B_COUNT };

/* The gradients of input, weight and bias as a tuple, with None for those that are not needed. */
static PyObject *make_gradients(osw_norm_call *call, PyObject *const *args)
{
    static const osw_norm_role made[] = {GRAD_INPUT, GRAD_WEIGHT, GRAD_BIAS};
    static const osw_norm_role of[] = {INPUT, WEIGHT, BIAS};
    PyObject *const objects[] = {args[B_INPUT], args[B_WEIGHT], args[B_BIAS]};
    PyObject *gradients = PyTuple_New(3);
    for (int i = 0; gradients && i < 3; i++) {
        PyObject *gradient = Py_None;
        if (PyTuple_GetItem(args[B_NEEDED], i) != Py_True || !call->given[of[i]])
            Py_INCREF(gradient);
        else
            gradient = new_like(call, of[i], objects[i], made[i]);
        if (!gradient || PyTuple_SetItem(gradients, i, gradient) != 0)
            Py_CLEAR(gradients);
    }
    return gradients;
}

static PyObject *batch_norm_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const osw_norm_role roles[] = {GRAD_OUTPUT, INPUT, STATISTICS, WEIGHT, BIAS};
    const int count = sizeof roles / sizeof roles[0];
    (void)module;
    osw_norm_call call = {.name = "batch_norm_backward"};
    if (!osw_expect(call.name, nargs, B_COUNT))
        return NULL;
    if (!PyTuple_Check(args[B_NEEDED]) || PyTuple_Size(args[B_NEEDED]) != 3) {
        PyErr_Format(PyExc_TypeError, "%s: expected a tuple of 3 bools, got %R", call.name,
                     args[B_NEEDED]);
        return NULL;
    }
    if (osw_norm_options(&call, args[B_TRAINING], args[B_EPS], args[B_ACTIVATION]) != 0)
        return NULL;
    const int parsed =
        parse_tensors(&call, args + B_TENSORS, roles, count, 3, args[B_PLAIN] == Py_True);
    if (parsed == 0)
        Py_RETURN_NOTIMPLEMENTED;
    if (parsed < 0 || osw_norm_check(&call) != 0)
        return NULL;
    return run_into(&call, true, make_gradients(&call, args));
}

#define VARIANT_NAME(operation, form, dtype) #operation "_" #form "_" #dtype,

static PyObject *norm_variants(PyObject *module, PyObject *unused)
{
    static const char *const names[] = {OSW_NORM_VARIANTS(VARIANT_NAME)};
    (void)module, (void)unused;
    return osw_variant_counts(OSW_NORM_COUNT, names, calls);
}

PyMethodDef osw_norm_methods[] = {
    {"batch_norm", OSW_METHOD(batch_norm), METH_FASTCALL,
     "batch_norm(training, momentum, eps, activation, input, running_mean, running_var, weight, "
     "bias, result, graph) -> result 0: a new output, 1: the input, overwritten, 2: a new output "
     "and the statistics; 0 and 1 are for plain tensors. False where a graph is wanted and a "
     "tensor requires a gradient; NotImplemented where a tensor is not plain or must be dense "
     "first. Momentum None, with result 2, leaves running statistics alone."},
    {"batch_norm_backward", OSW_METHOD(batch_norm_backward), METH_FASTCALL,
     "batch_norm_backward(training, eps, activation, needed, grad_output, input, statistics, "
     "weight, bias, plain) -> the gradients of input, weight and bias, None where not needed; "
     "NotImplemented where a tensor must be dense first or, with plain, is not plain."},
    {"norm_variants", norm_variants, METH_NOARGS, "Calls of every kernel, by name."},
    {NULL, NULL, 0, NULL},
};
