/* SPDX-License-Identifier: MIT */
/* layer_norm and layer_norm_backward over the last dimension: a whole call each, outputs included.
 * NotImplemented means that nothing was done: a tensor is not dense. layer_norm_variants(): the
 * kernels and how often each was called. */
#include "binding/norm_call.h"
#include "layer_norm/run.h"

enum { VECTORS = 4 }; /* weight, bias, grad_weight, grad_bias */

static uint64_t calls[OSW_LAYER_NORM_COUNT];

static osw_dtype dtype_of(const osw_tensor *t)
{
    return osw_dtype_of_dlpack(t->dtype.code, t->dtype.bits, t->dtype.lanes);
}

/* Sizes and dtype of the input, which are the job's. */
static int check_input(const osw_call *call, osw_layer_norm_job *job)
{
    const osw_tensor *x = &call->tensors[INPUT];
    if (osw_norm_dtype(call, &job->dtype) != 0)
        return -1;
    if (x->ndim < 2)
        return osw_norm_fail(call, INPUT, "must have at least 2 dimensions (*, C)", x->ndim);
    if (x->numel == 0)
        return osw_norm_fail(call, INPUT, "has no elements", 0);
    job->norm.channels = x->size[x->ndim - 1];
    job->rows = x->numel / job->norm.channels;
    return 0;
}

/* Vectors hold one value a channel, all in the dtype of the input, or all in float32 where that is
 * a 16-bit type. */
static int check_vectors(const osw_call *call, const osw_layer_norm_job *job)
{
    const osw_tensor *x = &call->tensors[INPUT], *first = NULL;
    for (osw_norm_role role = WEIGHT; role <= BIAS; role++) {
        const osw_tensor *t = &call->tensors[role];
        if (!call->objects[role])
            continue;
        if (t->numel != job->norm.channels || t->ndim != 1)
            return osw_norm_fail(call, role, "must hold one value a channel", t->numel);
        const bool mixed = x->dtype.bits == 16 && dtype_of(t) == OSW_F32;
        if ((!osw_same_dtype(t, x) && !mixed) || (first && !osw_same_dtype(t, first)))
            return osw_norm_fail(call, role, "has a dtype that does not fit, of bits",
                                 t->dtype.bits);
        first = t;
    }
    return 0;
}

static int check_gradient(const osw_call *call)
{
    const osw_tensor *x = &call->tensors[INPUT], *dy = &call->tensors[GRAD_OUTPUT];
    if (!osw_same_sizes(dy, x, -1))
        return osw_norm_fail(call, GRAD_OUTPUT, "must have the size of the input", dy->numel);
    return osw_same_dtype(dy, x)
               ? 0
               : osw_norm_fail(call, GRAD_OUTPUT, "must have the dtype of the input, not of bits",
                               dy->dtype.bits);
}

static int check_statistics(const osw_call *call)
{
    const osw_tensor *x = &call->tensors[INPUT], *s = &call->tensors[STATISTICS];
    const bool fits = s->ndim == x->ndim && dtype_of(s) == OSW_F64 && osw_is_dense(s, 0) &&
                      s->size[s->ndim - 1] == 2 && osw_same_sizes(s, x, s->ndim - 1);
    return fits
               ? 0
               : osw_norm_fail(call, STATISTICS, "must be a dense float64 tensor (*, 2)", s->numel);
}

static bool all_dense(const osw_call *call)
{
    for (osw_norm_role role = INPUT; role <= GRAD_INPUT; role++)
        if (call->objects[role] && !osw_is_dense(&call->tensors[role], 0))
            return false;
    return true;
}

static void place(const osw_call *call, osw_layer_norm_job *job, double *memory)
{
    const int64_t channels = job->norm.channels;
    job->norm.x = call->tensors[INPUT].data;
    job->norm.y = call->tensors[OUTPUT].data;
    job->norm.dy = call->tensors[GRAD_OUTPUT].data;
    job->norm.dx = call->tensors[GRAD_INPUT].data;
    job->norm.statistics = (double *)call->tensors[STATISTICS].data;
    job->weight = osw_norm_read(call, WEIGHT, memory);
    job->bias = osw_norm_read(call, BIAS, memory + channels);
    if (call->objects[GRAD_WEIGHT] || call->objects[GRAD_BIAS]) {
        job->grad_weight = memory + 2 * channels;
        job->grad_bias = memory + 3 * channels;
    }
}

static int run(const osw_call *call, osw_layer_norm_job *job, bool backward)
{
    const osw_tensor *x = &call->tensors[INPUT];
    if (osw_call_unchanged(call) != 0 || !all_dense(call))
        return -1;
    const size_t vectors = (size_t)(VECTORS * job->norm.channels) * sizeof(double);
    /* Whether there are gradients of vectors is known; where they lie, behind this. */
    double unplaced;
    if (call->objects[GRAD_WEIGHT] || call->objects[GRAD_BIAS])
        job->grad_weight = job->grad_bias = &unplaced;
    job->norm.dx = call->tensors[GRAD_INPUT].data;
    const size_t scratch = osw_layer_norm_plan(job, backward, calls);
    char *memory = osw_room(vectors + scratch);
    if (!memory)
        return -1;
    place(call, job, (double *)(void *)memory);
    const osw_running running = osw_run_begin(call->name, x->numel * x->itemsize > OSW_GRAIN_BYTES);
    (backward ? osw_layer_norm_backward : osw_layer_norm_forward)(job, memory + vectors);
    osw_run_end(running);
    if (backward) {
        osw_norm_write(call, GRAD_WEIGHT, job->grad_weight);
        osw_norm_write(call, GRAD_BIAS, job->grad_bias);
    }
    PyMem_Free(memory);
    return 0;
}

/* Input, weight and bias. */
static int parse_common(osw_call *call, osw_layer_norm_job *job, PyObject *input, PyObject *weight,
                        PyObject *bias)
{
    if (osw_call_tensor(call, INPUT, input) != 0 || osw_norm_optional(call, WEIGHT, weight) != 0 ||
        osw_norm_optional(call, BIAS, bias) != 0 || check_input(call, job) != 0)
        return -1;
    return check_vectors(call, job);
}

static int make_outputs(osw_call *call)
{
    const osw_tensor *x = &call->tensors[INPUT];
    int64_t size[OSW_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++)
        size[i] = i == x->ndim - 1 ? 2 : x->size[i];
    return osw_call_make(call, OUTPUT, INPUT, OSW_SAME_DTYPE, x->ndim, x->size, false) == 0
               ? osw_call_make(call, STATISTICS, INPUT, OSW_FLOAT64, x->ndim, size, false)
               : -1;
}

/* The gradients of input, weight and bias that are needed: a tuple of bools. */
static int make_gradients(osw_call *call, PyObject *needed)
{
    static const osw_norm_role made[] = {GRAD_INPUT, GRAD_WEIGHT, GRAD_BIAS};
    static const osw_norm_role of[] = {INPUT, WEIGHT, BIAS};
    for (int i = 0; i < 3; i++) {
        const osw_tensor *t = &call->tensors[of[i]];
        if (PyTuple_GetItem(needed, i) == Py_True && call->objects[of[i]] &&
            osw_call_make(call, made[i], of[i], OSW_SAME_DTYPE, t->ndim, t->size, false) != 0)
            return -1;
    }
    return 0;
}

enum { F_EPS, F_INPUT, F_WEIGHT, F_BIAS, F_COUNT };

OSW_ENTRY(layer_norm)
{
    osw_call call = {.name = "layer_norm", .roles = osw_norm_roles};
    osw_layer_norm_job job = {.rows = 0};
    PyObject *results = NULL;
    if (!osw_expect(call.name, nargs, F_COUNT))
        return NULL;
    if (osw_float_arg(args[F_EPS], &job.norm.eps) == 0 &&
        parse_common(&call, &job, args[F_INPUT], args[F_WEIGHT], args[F_BIAS]) == 0 &&
        make_outputs(&call) == 0 && run(&call, &job, false) == 0)
        results = PyTuple_Pack(2, call.made[OUTPUT], call.made[STATISTICS]);
    return osw_call_end(&call, results);
}

enum { B_EPS, B_NEEDED, B_GRAD, B_INPUT, B_STATISTICS, B_WEIGHT, B_BIAS, B_COUNT };

OSW_ENTRY(layer_norm_backward)
{
    osw_call call = {.name = "layer_norm_backward", .roles = osw_norm_roles};
    osw_layer_norm_job job = {.rows = 0};
    PyObject *results = NULL;
    if (!osw_expect(call.name, nargs, B_COUNT) || !osw_norm_expect_needed(&call, args[B_NEEDED]))
        return NULL;
    if (osw_float_arg(args[B_EPS], &job.norm.eps) == 0 &&
        osw_call_tensor(&call, GRAD_OUTPUT, args[B_GRAD]) == 0 &&
        parse_common(&call, &job, args[B_INPUT], args[B_WEIGHT], args[B_BIAS]) == 0 &&
        check_gradient(&call) == 0 && osw_call_tensor(&call, STATISTICS, args[B_STATISTICS]) == 0 &&
        check_statistics(&call) == 0 && make_gradients(&call, args[B_NEEDED]) == 0 &&
        run(&call, &job, true) == 0)
        results = osw_norm_gradients(&call);
    return osw_call_end(&call, results);
}

OSW_ENTRY_COUNTS(layer_norm_variants, calls, OSW_LAYER_NORM_VARIANTS(OSW_VARIANT_2))

PyMethodDef osw_layer_norm_methods[] = {
    OSW_ENTRY_LINE(layer_norm,
                   "layer_norm(eps, input, weight, bias) -> the output and the statistics (*, 2): "
                   "means and inverse deviations in float64. NotImplemented unless the input is "
                   "dense."),
    OSW_ENTRY_LINE(
        layer_norm_backward,
        "layer_norm_backward(eps, needed, grad_output, input, statistics, weight, bias) -> "
        "the gradients of input, weight and bias, None where not needed; NotImplemented "
        "as layer_norm."),
    OSW_ENTRY_COUNTS_LINE(layer_norm_variants),
    {NULL, NULL, 0, NULL},
};
