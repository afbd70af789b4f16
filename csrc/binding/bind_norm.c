/* SPDX-License-Identifier: MIT */
/* The functions of batch normalisation. Each returns None when done, or NotImplemented where the
 * memory of a tensor fits neither form of csrc/norm: the caller makes it dense and calls again. */
#include "binding/binding.h"
#include "binding/tensor_arg.h"
#include "core/half.h"
#include "core/parallel.h"
#include "norm/run.h"

#include <string.h>

static uint64_t calls[OSW_NORM_COUNT];

static const osw_dl_dtype dtypes[OSW_NORM_DTYPES_COUNT] = {
    {2, 32, 1}, {2, 64, 1}, {4, 16, 1}, {2, 16, 1}};

/* What the tensors of a call are to it: activations first, then statistics, then vectors. */
typedef enum osw_role {
    INPUT,
    OUTPUT,
    GRAD_OUTPUT,
    GRAD_INPUT,
    STATISTICS,
    RUNNING_MEAN,
    RUNNING_VAR,
    WEIGHT,
    BIAS,
    GRAD_WEIGHT,
    GRAD_BIAS,
    ROLE_COUNT
} osw_role;

static const char *const role_names[ROLE_COUNT] = {
    "input",       "output", "grad_output", "grad_input",  "statistics", "running_mean",
    "running_var", "weight", "bias",        "grad_weight", "grad_bias"};

typedef struct osw_norm_call {
    const char *name;
    osw_tensor tensors[ROLE_COUNT];
    bool given[ROLE_COUNT];
    double momentum; /* below zero: running statistics stay */
    osw_norm_job job;
} osw_norm_call;

static int fail(const osw_norm_call *call, osw_role role, const char *problem, long long got)
{
    PyErr_Format(PyExc_RuntimeError, "%s: %s %s, got %lld", call->name, role_names[role], problem,
                 got);
    return -1;
}

/* None is a tensor that is not given; the first two must be. */
static int parse_tensors(osw_norm_call *call, PyObject *const *args, const osw_role *roles,
                         int count)
{
    for (int i = 0; i < count; i++) {
        if (i >= 2 && args[i] == Py_None)
            continue;
        if (osw_tensor_arg(args[i], call->name, &call->tensors[roles[i]]) != 0)
            return -1;
        call->given[roles[i]] = true;
    }
    return 0;
}

static osw_norm_dtype dtype_of(const osw_tensor *t)
{
    int dtype = 0;
    while (dtype < OSW_NORM_DTYPES_COUNT && memcmp(&dtypes[dtype], &t->dtype, sizeof t->dtype) != 0)
        dtype++;
    return (osw_norm_dtype)dtype;
}

/* Sizes and dtypes of the large tensors; those of the job. */
static int check_large(osw_norm_call *call)
{
    const osw_tensor *x = &call->tensors[INPUT];
    call->job.dtype = dtype_of(x);
    if (call->job.dtype == OSW_NORM_DTYPES_COUNT) {
        PyErr_Format(PyExc_NotImplementedError, "%s: not implemented for dtype code %d, %d bit",
                     call->name, (int)x->dtype.code, (int)x->dtype.bits);
        return -1;
    }
    if (x->ndim < 2)
        return fail(call, INPUT, "must have at least 2 dimensions (N, C, *)", x->ndim);
    for (osw_role role = OUTPUT; role <= GRAD_INPUT; role++) {
        const osw_tensor *t = &call->tensors[role];
        if (!call->given[role])
            continue;
        if (t->ndim != x->ndim || memcmp(t->size, x->size, (size_t)x->ndim * sizeof *x->size) != 0)
            return fail(call, role, "must have the size of the input", t->numel);
        if (!osw_same_dtype(t, x))
            return fail(call, role, "must have the dtype of the input, not of bits", t->dtype.bits);
        if (role != GRAD_OUTPUT && !osw_no_overlap(t))
            return fail(call, role, "overlaps itself", t->numel);
    }
    return 0;
}

/* Vectors hold one value a channel, all in the dtype of the input, or all in float32 where that is
 * a 16-bit type. */
static int check_vectors(const osw_norm_call *call)
{
    const osw_tensor *x = &call->tensors[INPUT], *first = NULL;
    for (osw_role role = RUNNING_MEAN; role < ROLE_COUNT; role++) {
        const osw_tensor *t = &call->tensors[role];
        int64_t count, step;
        if (!call->given[role])
            continue;
        if (t->numel != x->size[1] || !osw_flatten(t, 0, &count, &step))
            return fail(call, role, "must hold one value a channel", t->numel);
        const bool mixed = x->dtype.bits == 16 && dtype_of(t) == OSW_NORM_F32;
        if ((!osw_same_dtype(t, x) && !mixed) || (first && !osw_same_dtype(t, first)))
            return fail(call, role, "has a dtype that does not fit, of bits", t->dtype.bits);
        if ((role == RUNNING_MEAN || role == RUNNING_VAR || role >= GRAD_WEIGHT) &&
            !osw_no_overlap(t))
            return fail(call, role, "overlaps itself", t->numel);
        first = t;
    }
    const osw_tensor *s = &call->tensors[STATISTICS];
    if (call->given[STATISTICS] && x->size[1] > 0 &&
        (dtype_of(s) != OSW_NORM_F64 || s->ndim != 2 || s->size[0] != 2 ||
         s->size[1] != x->size[1] || s->stride[1] != 1 || s->stride[0] != s->size[1]))
        return fail(call, STATISTICS, "must be a dense float64 tensor (2, C)", s->numel);
    return 0;
}

/* Describe `t` in the given form; false if its memory does not allow it. */
static bool describe(const osw_tensor *t, osw_norm_form form, osw_norm_tensor *out)
{
    int64_t positions, step;
    if (!osw_flatten(t, 2, &positions, &step))
        return false;
    const int64_t channels = t->size[1], image = channels * positions;
    if (form == OSW_NORM_PIXELS) {
        if ((channels > 1 && t->stride[1] != 1) || (positions > 1 && step != channels) ||
            (t->size[0] > 1 && t->stride[0] != image))
            return false;
    } else if ((positions > 1 && step != 1) || (channels > 1 && t->stride[1] != positions)) {
        return false;
    }
    *out = (osw_norm_tensor){t->data, t->size[0] > 1 ? t->stride[0] : image};
    return true;
}

static bool describe_all(osw_norm_call *call, osw_norm_form form)
{
    osw_norm *n = &call->job.norm;
    osw_norm_tensor *const places[] = {&n->x, &n->y, &n->dy, &n->dx};
    for (osw_role role = INPUT; role <= GRAD_INPUT; role++)
        if (call->given[role] && !describe(&call->tensors[role], form, places[role]))
            return false;
    call->job.form = form;
    return true;
}

/* One channel is a plane; where both forms fit, there are no vectors along one position. */
static bool choose_form(osw_norm_call *call)
{
    const osw_tensor *x = &call->tensors[INPUT];
    osw_norm *n = &call->job.norm;
    n->images = x->size[0];
    n->channels = x->size[1];
    n->positions = x->numel / (x->size[0] * x->size[1]);
    const osw_norm_form first = n->channels > 1 ? OSW_NORM_PIXELS : OSW_NORM_PLANES;
    const osw_norm_form second = n->channels > 1 ? OSW_NORM_PLANES : OSW_NORM_PIXELS;
    return describe_all(call, first) || describe_all(call, second);
}

static double read_value(const osw_tensor *t, int64_t i)
{
    switch (dtype_of(t)) {
    case OSW_NORM_F32:
        return (double)((const float *)t->data)[i];
    case OSW_NORM_F64:
        return ((const double *)t->data)[i];
    case OSW_NORM_BF16:
        return (double)osw_float_of_bf16(((const uint16_t *)t->data)[i]);
    default:
        return (double)osw_float_of_f16(((const uint16_t *)t->data)[i]);
    }
}

static void write_value(const osw_tensor *t, int64_t i, double value)
{
    switch (dtype_of(t)) {
    case OSW_NORM_F32:
        ((float *)t->data)[i] = (float)value;
        break;
    case OSW_NORM_F64:
        ((double *)t->data)[i] = value;
        break;
    case OSW_NORM_BF16:
        ((uint16_t *)t->data)[i] = osw_bf16_of_float((float)value);
        break;
    default:
        ((uint16_t *)t->data)[i] = osw_f16_of_float((float)value);
        break;
    }
}

static int64_t step_of(const osw_tensor *t)
{
    int64_t count, step;
    osw_flatten(t, 0, &count, &step);
    return step;
}

/* The vector of this role in double, NULL where it is not given. */
static double *read_vector(const osw_norm_call *call, osw_role role, double *to)
{
    const osw_tensor *t = &call->tensors[role];
    if (!call->given[role])
        return NULL;
    const int64_t step = step_of(t);
    for (int64_t c = 0; c < t->numel; c++)
        to[c] = read_value(t, c * step);
    return to;
}

static void write_vector(const osw_norm_call *call, osw_role role, const double *from)
{
    const osw_tensor *t = &call->tensors[role];
    if (!call->given[role])
        return;
    const int64_t step = step_of(t);
    for (int64_t c = 0; c < t->numel; c++)
        write_value(t, c * step, from[c]);
}

/* running += momentum * (batch - running) for the mean and the unbiased variance. */
static void update_running(const osw_norm_call *call)
{
    const osw_norm_job *job = &call->job;
    const double count = (double)(job->norm.images * job->norm.positions), m = call->momentum;
    const osw_tensor *mean = &call->tensors[RUNNING_MEAN], *var = &call->tensors[RUNNING_VAR];
    if (m < 0 || !call->given[RUNNING_MEAN] || !call->given[RUNNING_VAR])
        return;
    const int64_t mean_step = step_of(mean), var_step = step_of(var);
    for (int64_t c = 0; c < job->norm.channels; c++) {
        const double unbiased = job->var[c] * count / (count - 1);
        const double old_mean = read_value(mean, c * mean_step);
        const double old_var = read_value(var, c * var_step);
        write_value(mean, c * mean_step, (1 - m) * old_mean + m * job->mean[c]);
        write_value(var, c * var_step, (1 - m) * old_var + m * unbiased);
    }
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
        read_vector(call, RUNNING_MEAN, job->mean);
        read_vector(call, RUNNING_VAR, job->var);
    }
    job->weight = read_vector(call, WEIGHT, memory + 2 * channels);
    job->bias = read_vector(call, BIAS, memory + 3 * channels);
    if (call->given[GRAD_WEIGHT] || call->given[GRAD_BIAS]) {
        job->grad_weight = memory + 4 * channels;
        job->grad_bias = memory + 5 * channels;
    }
}

static PyObject *execute(osw_norm_call *call, bool backward)
{
    osw_norm_job *job = &call->job;
    const osw_tensor *x = &call->tensors[INPUT];
    if (!choose_form(call))
        Py_RETURN_NOTIMPLEMENTED;
    job->calls = calls;
    const int64_t scratch = osw_norm_prepare(job), vectors = VECTORS * job->norm.channels;
    double *memory = PyMem_Malloc((size_t)(scratch + vectors) * sizeof *memory);
    if (!memory)
        return PyErr_NoMemory();
    place_vectors(call, backward, memory);
    PyThreadState *state = x->numel * x->itemsize > OSW_GRAIN_BYTES ? PyEval_SaveThread() : NULL;
    (backward ? osw_norm_backward : osw_norm_forward)(job, memory + vectors);
    if (state)
        PyEval_RestoreThread(state);
    if (backward) {
        write_vector(call, GRAD_WEIGHT, job->grad_weight);
        write_vector(call, GRAD_BIAS, job->grad_bias);
    } else if (job->training) {
        update_running(call);
    }
    PyMem_Free(memory);
    Py_RETURN_NONE;
}

/* training, eps, activation */
static int parse_options(osw_norm_call *call, PyObject *const *args)
{
    const int training = PyObject_IsTrue(args[0]);
    call->job.eps = PyFloat_AsDouble(args[1]);
    const long activation = PyLong_AsLong(args[2]);
    if (training < 0 || PyErr_Occurred())
        return -1;
    if (activation < 0 || activation >= OSW_ACTIVATION_COUNT) {
        PyErr_Format(PyExc_ValueError, "%s: unknown activation %ld", call->name, activation);
        return -1;
    }
    call->job.training = training;
    call->job.norm.activation = (osw_activation)activation;
    return 0;
}

static bool expect(const char *name, Py_ssize_t nargs, Py_ssize_t wanted)
{
    if (nargs == wanted)
        return true;
    PyErr_Format(PyExc_TypeError, "%s: expected %zd arguments, got %zd", name, wanted, nargs);
    return false;
}

/* Statistics come from the batch in training, else from the running ones. */
static int check_statistics(const osw_norm_call *call)
{
    const osw_tensor *x = &call->tensors[INPUT];
    const int64_t channels = x->size[1] ? x->size[1] : 1;
    if (call->job.training && x->numel / channels == 1)
        return fail(call, INPUT, "must have more than 1 value per channel when training", 1);
    for (osw_role role = RUNNING_MEAN; role <= RUNNING_VAR; role++)
        if (!call->job.training && !call->given[role])
            return fail(call, role, "must be defined in evaluation mode", 0);
    return 0;
}

static PyObject *batch_norm(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const osw_role roles[] = {INPUT,       OUTPUT, STATISTICS, RUNNING_MEAN,
                                     RUNNING_VAR, WEIGHT, BIAS};
    enum { TENSORS = sizeof roles / sizeof roles[0] };
    (void)module;
    osw_norm_call call = {.name = "batch_norm", .momentum = -1};
    if (!expect(call.name, nargs, TENSORS + 4) || parse_tensors(&call, args, roles, TENSORS) != 0 ||
        parse_options(&call, args + TENSORS) != 0)
        return NULL;
    if (args[TENSORS + 3] != Py_None) {
        call.momentum = PyFloat_AsDouble(args[TENSORS + 3]);
        if (PyErr_Occurred())
            return NULL;
    }
    if (check_large(&call) != 0 || check_vectors(&call) != 0 || check_statistics(&call) != 0)
        return NULL;
    if (call.tensors[INPUT].numel == 0)
        Py_RETURN_NONE;
    return execute(&call, false);
}

static PyObject *batch_norm_backward(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const osw_role roles[] = {GRAD_OUTPUT, INPUT, GRAD_INPUT,  STATISTICS,
                                     WEIGHT,      BIAS,  GRAD_WEIGHT, GRAD_BIAS};
    enum { TENSORS = sizeof roles / sizeof roles[0] };
    (void)module;
    osw_norm_call call = {.name = "batch_norm_backward"};
    if (!expect(call.name, nargs, TENSORS + 3) || parse_tensors(&call, args, roles, TENSORS) != 0 ||
        parse_options(&call, args + TENSORS) != 0 || check_large(&call) != 0 ||
        check_vectors(&call) != 0)
        return NULL;
    if (call.tensors[INPUT].numel == 0)
        Py_RETURN_NONE;
    return execute(&call, true);
}

#define VARIANT_NAME(operation, form, dtype) #operation "_" #form "_" #dtype,

static PyObject *norm_variants(PyObject *module, PyObject *unused)
{
    static const char *const names[] = {OSW_NORM_VARIANTS(VARIANT_NAME)};
    (void)module, (void)unused;
    PyObject *counts = PyDict_New();
    for (int i = 0; counts && i < OSW_NORM_COUNT; i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(calls[i]);
        if (!count || PyDict_SetItemString(counts, names[i], count) != 0)
            Py_CLEAR(counts);
        Py_XDECREF(count);
    }
    return counts;
}

PyMethodDef osw_norm_methods[] = {
    {"batch_norm", OSW_METHOD(batch_norm), METH_FASTCALL,
     "batch_norm(input, output, statistics, running_mean, running_var, weight, bias, training, "
     "eps, "
     "activation, momentum)"},
    {"batch_norm_backward", OSW_METHOD(batch_norm_backward), METH_FASTCALL,
     "batch_norm_backward(grad_output, input, grad_input, statistics, weight, bias, grad_weight, "
     "grad_bias, training, eps, activation)"},
    {"norm_variants", norm_variants, METH_NOARGS, "Calls of every kernel, by name."},
    {NULL, NULL, 0, NULL},
};
